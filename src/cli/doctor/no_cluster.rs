//! A build without the feature `kubernetes`.

use crate::config::settings::Settings;
use crate::doctor::{ClusterFacts, Fact};
use crate::policy::rule::RuleSet;

pub(super) fn cluster(_: &Settings, _: &RuleSet) -> Fact<ClusterFacts> {
    Fact::Absent
}
