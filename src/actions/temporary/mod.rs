//! Temporary settings, which are restored in any case.
//!
//! Before a setting is changed, its old and new values are in the undo log on disk. It is restored
//! by an undo of the policy, at the end of the program, and after a crash at the next start in the
//! same boot. A value that others have written since is left alone.

mod devices;
mod pause;
mod setting;
mod tally;
#[cfg(test)]
mod tests;
mod undo_log;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{DecisionId, DecisionRecord, Moment, Sysctl, UndoResult};
use setting::{Setting, SettingMounts};
use undo_log::{SettingChange, UndoLog};

pub use tally::SettingsTally;

/// The largest reserve: `1/4` of the memory. 40 GB on a machine of 128 stalled a load for good.
const LARGEST_RESERVE: u64 = 4;

/// What temporary settings need from the daemon.
pub struct TemporarySetup {
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// The folder of the undo log.
    pub storage: PathBuf,
    /// The id of this boot. Without it no setting is changed, since it could not be restored after
    /// a crash.
    pub boot_id: Option<String>,
    /// Reads both clocks.
    pub clock: fn() -> Moment,
    /// Reports events that no decision reports.
    pub report: Box<dyn Fn(String) + Send>,
    /// The counters.
    pub tally: Arc<SettingsTally>,
}

impl fmt::Debug for TemporarySetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporarySetup").field("storage", &self.storage).finish_non_exhaustive()
    }
}

/// Sets and restores settings.
pub struct TemporarySettings {
    mounts: SettingMounts,
    storage: PathBuf,
    boot_id: Option<String>,
    clock: fn() -> Moment,
    report: Box<dyn Fn(String) + Send>,
    tally: Arc<SettingsTally>,
    log: Option<UndoLog>,
    /// Changes in the order of their setting.
    open: Vec<OpenChange>,
    /// Attempts to resume engines that are still paused.
    tended: u32,
}

impl fmt::Debug for TemporarySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TemporarySettings").field("open", &self.open).finish_non_exhaustive()
    }
}

/// A change that is to be undone.
#[derive(Clone, Debug)]
struct OpenChange {
    change: SettingChange,
    /// No decision will undo it: it is of an earlier process, or of a failed act.
    is_orphan: bool,
}

impl TemporarySettings {
    /// Opens, reads and restores nothing yet.
    pub fn new(setup: TemporarySetup) -> Self {
        let TemporarySetup { procfs, sysfs, storage, boot_id, clock, report, tally } = setup;
        let mounts = SettingMounts { procfs, sysfs };
        Self {
            mounts,
            storage,
            boot_id,
            clock,
            report,
            tally,
            log: None,
            open: Vec::new(),
            tended: 0,
        }
    }

    /// Restores the settings of an earlier process in this boot.
    pub(super) fn begin(&mut self) {
        // A program that never acts creates no file.
        if UndoLog::is_there(&self.storage)
            && let Err(error) = self.ready()
        {
            tracing::error!(error, "temporary settings unavailable");
        }
    }

    /// Restores all settings.
    pub(super) fn end(&mut self) {
        let all = std::mem::take(&mut self.open);
        self.undo_all(all, "as umawarden ends");
    }

    /// Sets kernel settings for a limited time; all of them, or none.
    pub(super) fn set_sysctls(
        &mut self,
        decision: &DecisionRecord,
        values: &BTreeMap<Sysctl, u32>,
        for_at_most: Duration,
    ) -> Result<(), String> {
        let wanted = values.iter().map(|(sysctl, value)| self.sysctl(*sysctl, *value));
        let wanted = wanted.collect::<Result<_, _>>()?;
        self.set(decision, wanted, for_at_most)
    }

    /// Limits readahead, in KiB, for a limited time: of the named disks, and of the disks of the
    /// given paths.
    pub(super) fn throttle_readahead(
        &mut self,
        decision: &DecisionRecord,
        kib: u32,
        (devices, of): (&[String], &[String]),
        for_at_most: Duration,
    ) -> Result<(), String> {
        let disks = devices::resolve(&self.mounts.sysfs, devices, of);
        let disks = disks.map_err(|error| error.to_string())?;
        let value = in_whole_pages(kib).to_string();
        let wanted = disks.into_iter().map(|disk| (disk, value.clone())).collect();
        self.set(decision, wanted, for_at_most)
    }

    /// Checks the values against this machine.
    fn sysctl(&self, sysctl: Sysctl, value: u32) -> Result<(Setting, String), String> {
        let kibibytes = || memory_kib(&self.mounts.procfs);
        if sysctl == Sysctl::MinFreeKbytes
            && let Some(total) = kibibytes()
            && u64::from(value) > total / LARGEST_RESERVE
        {
            return Err(format!(
                "{sysctl} = {value} would reserve more than a quarter of this machine's {total} \
                 KiB: nothing is set"
            ));
        }
        if let Some(in_bytes) = sysctl.in_bytes() {
            let path = self.mounts.procfs.join("sys").join(in_bytes);
            let bytes = std::fs::read_to_string(&path).unwrap_or_default();
            if !matches!(bytes.trim(), "0" | "") {
                return Err(format!(
                    "{} is in force with {}, and writing {sysctl} would clear it: nothing is set",
                    path.display(),
                    bytes.trim()
                ));
            }
        }
        Ok((Setting::Sysctl(sysctl), value.to_string()))
    }

    fn set(
        &mut self,
        decision: &DecisionRecord,
        wanted: Vec<(Setting, String)>,
        for_at_most: Duration,
    ) -> Result<(), String> {
        self.ready()?;
        let boot_id = self.boot_id.clone().ok_or(
            "the boot ID is unknown (sys/kernel/random/boot_id), so nothing could be undone after \
             a crash: nothing is set",
        )?;
        let at = (self.clock)().utc;
        let mut changes = Vec::new();
        for (setting, new) in wanted {
            if let Some(held) = self.open.iter().find(|open| open.change.setting == setting) {
                let SettingChange { decision, rule, .. } = &held.change;
                return Err(format!("{setting} is held by #{decision} of {rule}: nothing is set"));
            }
            let old = setting.read(&self.mounts).map_err(|error| error.to_string())?;
            // A value that is already set needs no undo.
            if old == new {
                continue;
            }
            let Some(log) = &mut self.log else { return Err("no undo log".to_owned()) };
            changes.push(SettingChange {
                number: log.next_number(),
                setting,
                old,
                new,
                boot_id: boot_id.clone(),
                decision: decision.id,
                rule: decision.rule.clone(),
                at,
                until: at.saturating_add(for_at_most).unwrap_or(at),
            });
        }
        let Some(log) = &mut self.log else { return Err("no undo log".to_owned()) };
        if let Err(error) = log.begin(&changes) {
            // The log may be torn: the next change reopens it.
            self.log = None;
            return Err(format!("{error}: nothing is set"));
        }
        self.write(changes)
    }

    /// Applies the logged changes; all of them, or none.
    fn write(&mut self, changes: Vec<SettingChange>) -> Result<(), String> {
        let failed = changes.iter().find_map(|change| self.write_one(change).err());
        let is_orphan = failed.is_some();
        let open = changes.into_iter().map(|change| OpenChange { change, is_orphan });
        match failed {
            None => {
                self.open.extend(open);
                self.count();
                Ok(())
            }
            Some(error) => {
                let open = open.collect();
                self.undo_all(open, "since not all of its act could be done");
                Err(error)
            }
        }
    }

    fn write_one(&self, change: &SettingChange) -> Result<(), String> {
        let SettingChange { setting, old, new, .. } = change;
        let text = |error: setting::SettingError| error.to_string();
        let now = setting.read(&self.mounts).map_err(text)?;
        if now != *old {
            return Err(format!("{setting} has become {now} meanwhile: it is left alone"));
        }
        setting.write(&self.mounts, new).map_err(text)?;
        let now = setting.read(&self.mounts).map_err(text)?;
        if now == *new {
            return Ok(());
        }
        // Another value than in the log would count as set by others.
        setting.write(&self.mounts, old).map_err(text)?;
        Err(format!("{setting} was set to {new} and says {now}: it is {old} again"))
    }

    /// Undoes the changes of a decision.
    pub(super) fn undo(&mut self, decision: DecisionId) -> Result<(), String> {
        let is_its = |open: &mut OpenChange| open.change.decision == decision && !open.is_orphan;
        let its: Vec<OpenChange> = self.open.extract_if(.., is_its).collect();
        self.undo_all(its, "");
        let left = self.open.iter().find(|open| open.change.decision == decision);
        match left {
            None => Ok(()),
            Some(open) => {
                let SettingChange { setting, old, .. } = &open.change;
                Err(format!("{setting} could not be set back to {old}; it is tried again"))
            }
        }
    }

    /// Undoes these changes, the last one first; a failed undo stays open. `why` is reported where
    /// no decision reports it.
    fn undo_all(&mut self, mut changes: Vec<OpenChange>, why: &str) {
        let mut left = Vec::new();
        while let Some(open) = changes.pop() {
            if self.undo_one(&open.change, why) == UndoResult::Failed {
                left.push(open);
            }
        }
        left.reverse();
        self.open.extend(left);
        self.count();
        if self.open.is_empty()
            && let Some(log) = &mut self.log
            && let Err(error) = log.tidy()
        {
            tracing::warn!(%error, "undo log not emptied");
        }
    }

    fn undo_one(&mut self, change: &SettingChange, why: &str) -> UndoResult {
        let SettingChange { setting, old, new, decision, rule, .. } = change;
        let of = format!("#{decision} of {rule}");
        let (result, found, text) = match setting.read(&self.mounts) {
            Ok(now) if now == *old => (UndoResult::AlreadyBack, Some(now), None),
            Ok(now) if now == *new => match setting.write(&self.mounts, old) {
                Ok(()) => {
                    let text = format!("{setting} is {old} again, {why}; {of} had set it to {new}");
                    (UndoResult::Restored, Some(now), (!why.is_empty()).then_some(text))
                }
                Err(error) => (UndoResult::Failed, Some(now), Some(error.to_string())),
            },
            Ok(now) => {
                let text = format!(
                    "{setting} is left at {now}: {of} had set it from {old} to {new}, and another \
                     program has changed it since"
                );
                (UndoResult::LeftAlone, Some(now), Some(text))
            }
            Err(error) if error.is_gone() => {
                let text = format!("{setting} has gone; {of} had set it from {old} to {new}");
                (UndoResult::LeftAlone, None, Some(text))
            }
            Err(error) => (UndoResult::Failed, None, Some(error.to_string())),
        };
        self.tally.count_undone(result);
        if let Some(text) = text {
            (self.report)(text);
        }
        if result != UndoResult::Failed {
            self.close(change.number, Some(result), found);
        }
        result
    }

    /// Records the end of a change. If that fails, the next start finds the old value and leaves it
    /// alone.
    fn close(&mut self, number: u64, result: Option<UndoResult>, found: Option<String>) {
        let at = (self.clock)().utc;
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.end(number, result, found, at) {
            tracing::warn!(%error, "undo log not written");
            self.log = None;
        }
    }

    /// Opens the log, and retries changes that no decision will undo.
    fn ready(&mut self) -> Result<(), String> {
        if self.log.is_none() {
            let (log, found) = UndoLog::open(&self.storage).map_err(|error| error.to_string())?;
            if found.torn_bytes > 0 {
                let bytes = found.torn_bytes;
                tracing::info!(bytes, "unfinished entry cut off the undo log");
            }
            if !found.damaged.is_empty() {
                (self.report)(format!(
                    "lines {:?} of the undo log in {} cannot be read: a setting that they name \
                     stays as it is",
                    found.damaged,
                    self.storage.display()
                ));
            }
            self.log = Some(log);
            self.take_over(found.open);
        }
        let orphans: Vec<OpenChange> = self.open.extract_if(.., |open| open.is_orphan).collect();
        if !orphans.is_empty() {
            self.undo_all(orphans, "after an end that was none in order");
        }
        Ok(())
    }

    /// Adds the logged changes that this process does not know. A reboot has undone all changes.
    fn take_over(&mut self, found: Vec<SettingChange>) {
        let Some(boot_id) = self.boot_id.clone() else { return };
        for change in found {
            if change.boot_id != boot_id {
                self.close(change.number, None, None);
            } else if self.open.iter().all(|open| open.change.number != change.number) {
                self.open.push(OpenChange { change, is_orphan: true });
            }
        }
    }

    fn count(&self) {
        self.tally.set_in_force(self.open.iter().map(|open| open.change.setting.kind()));
    }
}

/// The kernel counts readahead in whole pages, and takes less than one as zero.
fn in_whole_pages(kib: u32) -> u32 {
    let page = u32::try_from(procfs::page_size() / 1024).unwrap_or(4).max(1);
    kib.div_ceil(page).saturating_mul(page)
}

fn memory_kib(procfs: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(procfs.join("meminfo")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse().ok()
}
