//! Which containers have deferred restarts, and their terms.

use std::collections::BTreeMap;
use std::sync::Arc;

use glob::Pattern;

use super::adopted::AdoptedContainers;
use crate::model::{
    DeclaredRestart, DeferredRestart, Mode, OnRequest, RestartLimits, RestartMatch, StartNeed,
    Supervisor, Workload, WorkloadState, pool_names, size_bytes,
};
use crate::parse::container::InspectedContainer;

/// The label of such a container, and its only value.
pub(super) const LABEL: &str = "umawarden.restart";
const WHEN_READY: &str = "when-ready";
/// Labels with its needs.
const NEED: &str = "umawarden.restart.need";
const CONTIGUOUS: &str = "umawarden.restart.contiguous";
const HOST_NEED: &str = "umawarden.restart.host-need";
const POOL: &str = "umawarden.restart.pool";

/// The terms of a deferred restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestartTerms {
    need: StartNeed,
    limits: RestartLimits,
    mode: Option<Mode>,
    found_by: Arc<str>,
    mistake: Option<String>,
}

/// Entries of the configuration and of the file of adopted containers.
pub(super) struct RestartEntries<'w> {
    pub(super) declared: &'w [DeclaredRestart],
    pub(super) adopted: &'w AdoptedContainers,
}

impl RestartEntries<'_> {
    /// The terms of a container, if it has a deferred restart. The first matching entry of the
    /// configuration decides; the container's own labels override its needs.
    pub(super) fn terms(
        &self,
        id: &str,
        name: &str,
        labels: &BTreeMap<String, String>,
    ) -> Option<RestartTerms> {
        let labelled = labels.get(LABEL);
        let declared = self.declared.iter().find_map(|entry| {
            let found_by = found_by(&entry.matches, name, labels)?;
            Some((entry, found_by))
        });
        let adopted = self.adopted.containers.get(id);
        let found_by = match (labelled, adopted, &declared) {
            (Some(_), ..) => format!("its label {LABEL}"),
            (None, Some(_), _) => "umawarden adopt".to_owned(),
            (None, None, Some((_, found_by))) => found_by.clone(),
            (None, None, None) => return None,
        };
        let declared = declared.map(|(entry, _)| entry);
        let mut terms = RestartTerms {
            need: declared.map(|entry| entry.need.clone()).unwrap_or_default(),
            limits: declared.map(|entry| entry.limits.clone()).unwrap_or_default(),
            mode: declared.and_then(|entry| entry.mode),
            found_by: found_by.into(),
            mistake: None,
        };
        if let Some(adopted) = adopted {
            terms.need = adopted.need.clone().or(&terms.need);
        }
        terms.read_labels(labels);
        Some(terms)
    }
}

impl RestartTerms {
    fn read_labels(&mut self, labels: &BTreeMap<String, String>) {
        let is_known = |value: &String| value == WHEN_READY;
        if !labels.get(LABEL).is_none_or(is_known) {
            self.mistake = Some(format!("its label {LABEL} must be {WHEN_READY}"));
        }
        let need = &mut self.need;
        let sizes = [
            (NEED, &mut need.need_bytes),
            (CONTIGUOUS, &mut need.contiguous_bytes),
            (HOST_NEED, &mut need.host_need_bytes),
        ];
        for (label, bytes) in sizes {
            let Some(written) = labels.get(label) else { continue };
            match size_bytes(written) {
                Ok(size) => *bytes = Some(size),
                Err(_) => {
                    self.mistake = Some(format!("its label {label} is not a size like 90GiB"))
                }
            }
        }
        match labels.get(POOL).map(|names| pool_names(names)) {
            Some(Ok(names)) => self.need.pools = names,
            Some(Err(why)) => self.mistake = Some(format!("its label {POOL}: {why}")),
            None => {}
        }
    }

    /// A container with these terms. `requested`: whether its end was requested.
    pub(super) fn deferred(
        self,
        found: &InspectedContainer,
        requested: OnRequest,
    ) -> DeferredRestart {
        let mut state = found.state.clone();
        if let WorkloadState::Ended(end) = &mut state {
            end.requested = requested;
        }
        let own_policy = (&*found.restart_policy != "no").then(|| {
            format!(
                "Docker starts it again itself (restart policy {}), whether or not there is \
                 memory: `umawarden adopt {}` changes that",
                found.restart_policy, found.name
            )
        });
        let removed = found.is_removed_at_end.then(|| {
            "Docker removes it when it ends (--rm), so that there is nothing to start".to_owned()
        });
        DeferredRestart {
            target: Workload {
                supervisor: Supervisor::Docker,
                name: Arc::clone(&found.name),
                id: Arc::clone(&found.id),
            },
            state,
            need: self.need,
            limits: self.limits,
            mode: self.mode,
            found_by: self.found_by,
            obstacle: self.mistake.or(own_policy).or(removed).map(Arc::from),
        }
    }

    /// A container with these terms that cannot be met.
    pub(super) fn never(
        self,
        target: Workload,
        state: WorkloadState,
        obstacle: &str,
    ) -> DeferredRestart {
        let Self { need, limits, mode, found_by, .. } = self;
        let obstacle = Some(Arc::from(obstacle));
        DeferredRestart { target, state, need, limits, mode, found_by, obstacle }
    }
}

fn found_by(
    matches: &RestartMatch,
    name: &str,
    labels: &BTreeMap<String, String>,
) -> Option<String> {
    let is_like = |glob: &str, text: &str| Pattern::new(glob).is_ok_and(|glob| glob.matches(text));
    match matches {
        RestartMatch::Container(glob) => {
            is_like(glob, name).then(|| format!("restarts: container {glob}"))
        }
        RestartMatch::Label(key, glob) => labels
            .get(&**key)
            .is_some_and(|value| is_like(glob, value))
            .then(|| format!("restarts: label {key}")),
        RestartMatch::Unit(_) | RestartMatch::UnitOfUser(..) => None,
    }
}
