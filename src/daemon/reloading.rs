//! Takes a changed configuration.

use std::sync::Arc;

use super::{Daemon, clock, cluster, preflight, service};
use crate::config::reader::LoadedConfig;
use crate::exports::ReloadFailure;
use crate::journal::JournalEntry;

impl Daemon {
    pub(super) fn reload(
        &mut self,
        loaded: Result<Box<LoadedConfig>, String>,
        by: Option<&str>,
    ) -> Result<String, String> {
        let now = clock::now();
        let loaded = loaded.inspect_err(|error| {
            self.own.set_reload(false, now);
            let failure = ReloadFailure { at: now.utc, why: error.clone() };
            self.shared.reload_failure.store(Some(Arc::new(failure)));
            tracing::error!(by, error, "reload failed, the current rules stay");
            if let Some(by) = by {
                self.note(now, format!("a reload by {by} failed"));
            }
        })?;
        let repairs = loaded.settings.nvsentinel.as_ref().is_some_and(|it| it.repairs.is_some());
        // Of the two that may reboot, one stops before the other begins.
        self.alerting.health_reports.let_repair(false);
        let ended = self.policy.replace_rules(now, loaded.settings.mode, &loaded.rules);
        self.evicting.obey(&self.policy);
        if let Some(cluster) = &self.cluster {
            cluster.want(&self.policy.wanted_of_others());
        }
        let names = self.settings.cluster.as_ref().map(cluster::names);
        self.recorder.reload(now, &loaded, names, &ended);
        self.shared.rules.store(Arc::new(loaded.rules.clone()));
        self.engines.declare(loaded.settings.engines.clone());
        self.policy.set_assessment_limits(loaded.settings.assessment);
        self.policy.forget_received_after(loaded.settings.alertmanager.forget_after);
        self.deferred.declare(loaded.settings.restarts.clone());
        self.alerting.health_reports.let_repair(repairs);
        for change in ended {
            self.journal.record(&JournalEntry::Alert(change));
        }
        self.own.set_reload(true, now);
        self.shared.reload_failure.store(None);
        preflight::report(&loaded);
        let mut summary = service::summary(&loaded);
        let waiting = service::needs_restart(&self.settings, &loaded.settings).join(", ");
        if !waiting.is_empty() {
            summary.push_str(&format!("; other settings need a restart: {waiting}"));
        }
        tracing::info!(by, summary, "reloaded");
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        self.note(now, format!("reloaded{by}: {summary}"));
        Ok(summary)
    }
}
