//! Which engines are reported where there are more than are watched: any user can pretend to run
//! an engine, and must push out nobody else's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::model::ProcessId;
use crate::parse::process::Stat;

/// More engines than this are not reported.
pub(super) const MAX_ENGINES: usize = 32;

/// Of the engines of one user that nobody vouches for, only so many come before those of others.
const SHARE: usize = 8;

/// A process that used no processor time for so long takes nothing.
const AWAKE_FOR: Duration = Duration::from_secs(10);

/// What is left out and holds less than this takes no machine down by itself: 64 MiB in pages of
/// 4 KiB, which is more on kernels with larger pages. A guess.
const MUCH_PAGES: u64 = 16_384;

/// Of what is left out so many open files are looked at in one look.
const MOST_OPEN: usize = 4_096;

/// What decides whether an engine is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) head: ProcessId,
    /// Root has started it, or somebody vouches for it.
    pub(super) is_trusted: bool,
    /// Whose it is.
    pub(super) user: Option<u32>,
    /// It was reported before.
    pub(super) was_told: bool,
    /// The configuration declares it.
    pub(super) is_declared: bool,
    /// What its processes have resident, in pages.
    pub(super) pages: u64,
}

/// In the order in which they are reported.
pub(super) fn ranked(mut candidates: Vec<Candidate>) -> Vec<ProcessId> {
    let by_merit = |one: &Candidate| {
        let holds = std::cmp::Reverse(one.pages);
        (!one.is_trusted, !one.was_told, !one.is_declared, holds, one.head.start_ticks, one.head)
    };
    candidates.sort_by_key(by_merit);
    let mut of_user: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    let mut ranked: Vec<(bool, bool, ProcessId)> = Vec::new();
    for one in candidates {
        let before = of_user.entry(one.user).or_default();
        ranked.push((!one.is_trusted, !one.is_trusted && *before >= SHARE, one.head));
        *before += usize::from(!one.is_trusted);
    }
    // Stable: within each the order stays.
    ranked.sort_by_key(|(is_claimed, is_over, _)| (*is_claimed, *is_over));
    ranked.into_iter().map(|(.., head)| head).collect()
}

/// What is left out, and whether any of it may take memory.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    /// Processor time that each had used, and when that last changed.
    used: BTreeMap<ProcessId, (u64, Duration)>,
    /// Their numbers.
    pids: BTreeSet<u32>,
    open_left: usize,
}

impl LeftOut {
    /// Whether that process is among them.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.pids.contains(&pid)
    }

    /// Those from now on. Returns whether one of them may take memory: it has worked lately, and
    /// holds much or has the driver open. `devices` counts up to so many open files of a process
    /// and tells how many it has looked at, and whether one is of the driver.
    pub(super) fn look<'a>(
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

    /// Where too many files are open to look at all of them, it may.
    fn may_have_driver(
        &mut self,
        id: ProcessId,
        devices: impl Fn(u32, usize) -> (usize, bool),
    ) -> bool {
        let (looked_at, has_some) = devices(id.pid, self.open_left);
        self.open_left = self.open_left.saturating_sub(looked_at.max(1));
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
            was_told: false,
            is_declared: false,
            pages: 0,
        }
    }

    fn told(candidates: Vec<Candidate>) -> Vec<u32> {
        let ranked = ranked(candidates).into_iter().take(MAX_ENGINES);
        ranked.map(|head| head.pid).collect()
    }

    #[test]
    fn no_user_pushes_out_the_engines_of_root_or_of_another_user() {
        let mut all: Vec<Candidate> = (1..=10_000).map(|pid| candidate(pid, 65_534)).collect();
        all.push(candidate(20_000, 1000));
        all.push(Candidate { is_declared: true, ..candidate(20_001, 1001) });
        all.push(candidate(30_000, 0));
        for told_before in [false, true] {
            all.iter_mut().take(10_000).for_each(|one| one.was_told = told_before);
            let told = told(all.clone());
            assert_eq!((told[0], told.len()), (30_000, MAX_ENGINES));
            assert!(told.contains(&20_000) && told.contains(&20_001), "{told:?}");
        }
        // Of one user what holds most comes first, and who was told stays.
        let mut own: Vec<Candidate> = (1..=40).map(|pid| candidate(pid, 7)).collect();
        own[39].pages = 9;
        assert_eq!(told(own.clone())[0], 40);
        own.iter_mut().take(32).for_each(|one| one.was_told = true);
        assert!(!told(own).contains(&40));
    }

    #[test]
    fn what_sleeps_without_memory_matters_to_nobody() {
        let stat = |cpu_ticks: u64, resident_pages: u64| {
            let text = format!(
                "9 (a) S 1 1 1 0 -1 0 0 0 0 0 {cpu_ticks} 0 0 0 20 0 1 0 5 1 {resident_pages} 3\n"
            );
            crate::parse::process::stat(text.as_bytes()).unwrap()
        };
        let ids: Vec<ProcessId> =
            (0..10_000).map(|pid| ProcessId { pid, start_ticks: 5 }).collect();
        let mut left = LeftOut::default();
        let mut look = |seconds: u64, stat: &Stat, of: &[ProcessId], has_driver: bool| {
            let all = of.iter().map(|id| (*id, stat));
            left.look(Duration::from_secs(seconds), all, |_, most| (3.min(most), has_driver))
        };
        let asleep = stat(1, 100);
        assert!(look(0, &asleep, &ids, false), "too many are new to look at all of them");
        assert!(!look(10, &asleep, &ids, true), "whatever they have open, they do nothing");
        assert!(!look(11, &stat(2, 100), &ids[..9], false));
        assert!(look(12, &stat(3, 100), &ids[..9], true), "it works, and has the driver open");
        assert!(look(13, &stat(4, MUCH_PAGES), &ids[..9], false), "it works, and holds much");
    }
}
