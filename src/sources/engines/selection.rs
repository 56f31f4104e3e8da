//! Selects the reported engines when there are too many. Any user can imitate an engine, which must
//! not displace engines of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ProcessId;
use crate::parse::process::Stat;

/// The most engines that are reported.
pub(super) const MAX_ENGINES: usize = 32;

/// The most unproven engines of one user that come before those of others.
const SHARE: usize = 8;

/// A process without processor time for this long takes no memory.
const AWAKE_FOR: Duration = Duration::from_secs(10);

/// An unreported engine below this size does not exhaust the machine: 64 MiB in pages of 4 KiB,
/// more on kernels with larger pages. A guess.
const MUCH_PAGES: u64 = 16_384;

/// The most open files of unreported engines that one scan examines.
const MOST_OPEN: usize = 4_096;

/// The criteria of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) head: ProcessId,
    /// Whether root has started it, or a runtime or service proves it.
    pub(super) is_trusted: bool,
    pub(super) user: Option<u32>,
    /// Whether it was reported before.
    pub(super) was_reported: bool,
    pub(super) is_declared: bool,
    /// Resident pages of its processes.
    pub(super) pages: u64,
}

/// Sorts by priority.
pub(super) fn ranked(mut candidates: Vec<Candidate>) -> Vec<ProcessId> {
    let by_merit = |one: &Candidate| {
        let holds = std::cmp::Reverse(one.pages);
        (
            !one.is_trusted,
            !one.was_reported,
            !one.is_declared,
            holds,
            one.head.start_ticks,
            one.head,
        )
    };
    candidates.sort_by_key(by_merit);
    let mut of_user: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    let mut ranked: Vec<(bool, bool, ProcessId)> = Vec::new();
    for one in candidates {
        let before = of_user.entry(one.user).or_default();
        ranked.push((!one.is_trusted, !one.is_trusted && *before >= SHARE, one.head));
        *before += usize::from(!one.is_trusted);
    }
    // A stable sort keeps the order within each class.
    ranked.sort_by_key(|(is_claimed, is_over, _)| (*is_claimed, *is_over));
    ranked.into_iter().map(|(.., head)| head).collect()
}

/// The unreported engines, and whether they may take memory.
#[derive(Debug, Default)]
pub(super) struct UnreportedEngines {
    /// Processor time of each process, and when it last changed.
    used: BTreeMap<ProcessId, (u64, Duration)>,
    pids: BTreeSet<u32>,
    open_left: usize,
}

impl UnreportedEngines {
    pub(super) fn has(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Replaces the list. Returns whether one of them may take memory: it has run lately, and is
    /// large or has the driver open. `devices` examines up to a number of open files of a process.
    /// It returns how many it examined, and whether one belongs to the driver.
    pub(super) fn update<'a>(
        &mut self,
        now: Duration,
        processes: impl Iterator<Item = (ProcessId, &'a Stat)>,
        devices: impl Fn(u32, usize) -> (usize, bool),
    ) -> bool {
        let before = std::mem::take(&mut self.used);
        self.pids.clear();
        self.open_left = MOST_OPEN;
        let mut may_any = false;
        for (id, stat) in processes {
            let known = before.get(&id).filter(|(used, _)| *used == stat.cpu_ticks);
            let since = known.map_or(now, |(_, since)| *since);
            self.used.insert(id, (stat.cpu_ticks, since));
            self.pids.insert(id.pid);
            let is_awake = now.saturating_sub(since) < AWAKE_FOR && stat.state != 'Z';
            if is_awake && !may_any {
                may_any = stat.resident_pages >= MUCH_PAGES || self.may_have_driver(id, &devices);
            }
        }
        may_any
    }

    /// Whether it may have the driver open; true if it has too many files to examine.
    fn may_have_driver(
        &mut self,
        id: ProcessId,
        devices: impl Fn(u32, usize) -> (usize, bool),
    ) -> bool {
        let (examined, has_some) = devices(id.pid, self.open_left);
        self.open_left = self.open_left.saturating_sub(examined.max(1));
        has_some || self.open_left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(pid: u32, user: u32) -> Candidate {
        Candidate {
            head: ProcessId { pid, start_ticks: u64::from(pid) },
            is_trusted: user == 0,
            user: Some(user),
            was_reported: false,
            is_declared: false,
            pages: 0,
        }
    }

    fn selected(candidates: Vec<Candidate>) -> Vec<u32> {
        let ranked = ranked(candidates).into_iter().take(MAX_ENGINES);
        ranked.map(|head| head.pid).collect()
    }

    #[test]
    fn users_cannot_displace_the_engines_of_root_or_of_others() {
        let mut all: Vec<Candidate> = (1..=10_000).map(|pid| candidate(pid, 65_534)).collect();
        all.push(candidate(20_000, 1000));
        all.push(Candidate { is_declared: true, ..candidate(20_001, 1001) });
        all.push(candidate(30_000, 0));
        for reported_before in [false, true] {
            all.iter_mut().take(10_000).for_each(|one| one.was_reported = reported_before);
            let selected = selected(all.clone());
            assert_eq!((selected[0], selected.len()), (30_000, MAX_ENGINES));
            assert!(selected.contains(&20_000) && selected.contains(&20_001), "{selected:?}");
        }
        // Of one user the largest comes first, and engines already reported stay.
        let mut own: Vec<Candidate> = (1..=40).map(|pid| candidate(pid, 7)).collect();
        own[39].pages = 9;
        assert_eq!(selected(own.clone())[0], 40);
        own.iter_mut().take(32).for_each(|one| one.was_reported = true);
        assert!(!selected(own).contains(&40));
    }

    #[test]
    fn idle_processes_without_memory_are_not_reported_as_left_out() {
        let stat = |cpu_ticks: u64, resident_pages: u64| {
            let text = format!(
                "9 (a) S 1 1 1 0 -1 0 0 0 0 0 {cpu_ticks} 0 0 0 20 0 1 0 5 1 {resident_pages} 3\n"
            );
            crate::parse::process::stat(text.as_bytes()).unwrap()
        };
        let ids: Vec<ProcessId> =
            (0..10_000).map(|pid| ProcessId { pid, start_ticks: 5 }).collect();
        let mut left = UnreportedEngines::default();
        let mut update = |seconds: u64, stat: &Stat, of: &[ProcessId], has_driver: bool| {
            let all = of.iter().map(|id| (*id, stat));
            left.update(Duration::from_secs(seconds), all, |_, most| (3.min(most), has_driver))
        };
        let asleep = stat(1, 100);
        assert!(update(0, &asleep, &ids, false), "too many are new to check all of them");
        assert!(!update(10, &asleep, &ids, true), "they do nothing, even with the driver open");
        assert!(!update(11, &stat(2, 100), &ids[..9], false));
        assert!(update(12, &stat(3, 100), &ids[..9], true), "it works, and has the driver open");
        assert!(update(13, &stat(4, MUCH_PAGES), &ids[..9], false), "it works, and holds much");
    }
}
