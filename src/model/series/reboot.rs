//! Reboots of last resort.

use super::super::{RebootResult, RebootStage, Source};
use super::Metric;

const STAGES: [&str; RebootStage::ALL.len()] = names!(RebootStage);
const RESULTS: [&str; RebootResult::ALL.len()] = names!(RebootResult);

/// This area's metrics.
pub(super) const METRICS: &[Metric] = &[
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_scheduled_timestamp_seconds",
        &[],
        "When the reboot that is scheduled is due, in seconds since 1970; without a value where \
         none is scheduled.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_stage",
        &["stage"],
        "1 for how far a reboot has come: none, announcing, scheduled (everybody can cancel it), \
         waiting (it is due, and held back), warning (those who are logged in have some time), \
         taking_slot, draining (engines are being stopped), performing, handed_over (whoever does \
         it has agreed).",
    )
    .closed(&[("stage", &STAGES)])
    .flag(),
    Metric::counter(
        Source::Daemon,
        "uma_reboots_total",
        &["result"],
        "Reboots of this program that were judged, by what came of them: helped, did_not_help, \
         unknown (which counts as if not), not_rebooted (it was agreed to, and nothing happened), \
         called_off (after it was handed over).",
    )
    .closed(&[("result", &RESULTS)]),
    Metric::gauge(
        Source::Daemon,
        "uma_reboots_not_helped_in_a_row",
        &[],
        "Reboots in a row, the last ones, that did not help or were not judged yet; after two no \
         rule reboots any more until umawarden reboot --clear.",
    ),
    Metric::gauge(
        Source::Daemon,
        "uma_reboot_budget_left",
        &[],
        "How many more reboots reboot.at_most allows now, by its tightest bound.",
    ),
];
