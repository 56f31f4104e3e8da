//! Keeps a storm in what is watched from becoming one in the log.

use std::collections::BTreeMap;
use std::time::Duration;

/// Lines on one subject that pass at once.
const BURST: u32 = 20;

/// After a burst, one more line on the subject passes in each such time.
const PACE: Duration = Duration::from_secs(10);

/// Subjects that are remembered; with more than these, all begin anew.
const MOST_SUBJECTS: usize = 4096;

/// Which lines are logged. Journal and counters know nothing of it.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    subjects: BTreeMap<String, Subject>,
}

#[derive(Debug)]
struct Subject {
    left: u32,
    since: Duration,
    withheld: u64,
}

impl Thinning {
    /// Whether another line on that subject is logged at `now`; if so, how many were withheld
    /// since the last one.
    pub(super) fn pass(&mut self, subject: String, now: Duration) -> Option<u64> {
        if self.subjects.len() >= MOST_SUBJECTS && !self.subjects.contains_key(&subject) {
            self.subjects.clear();
        }
        let new = Subject { left: BURST, since: now, withheld: 0 };
        let subject = self.subjects.entry(subject).or_insert(new);
        let earned = now.saturating_sub(subject.since).as_nanos() / PACE.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned > 0 {
            subject.left = subject.left.saturating_add(earned).min(BURST);
            subject.since = subject.since.saturating_add(PACE.saturating_mul(earned));
        }
        match subject.left.checked_sub(1) {
            Some(left) => {
                subject.left = left;
                Some(std::mem::take(&mut subject.withheld))
            }
            None => {
                subject.withheld += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(thinning: &mut Thinning, subject: &str, times: u32, every: Duration) -> Vec<u64> {
        (0..times).filter_map(|time| thinning.pass(subject.to_owned(), every * time)).collect()
    }

    #[test]
    fn what_happens_now_and_then_is_always_told() {
        let told = passed(&mut Thinning::default(), "rule", 1000, PACE);
        assert_eq!(told, vec![0; 1000]);
    }

    #[test]
    fn a_storm_is_told_at_its_begin_and_then_at_a_pace_with_what_was_withheld() {
        let mut thinning = Thinning::default();
        // A hundred seconds at ten a second.
        let told = passed(&mut thinning, "rule", 1000, Duration::from_millis(100));
        assert!(told.len() <= BURST as usize + 10, "{told:?}");
        assert!(told[told.len() - 1] > 50, "{told:?}");
        assert_eq!(thinning.pass("another".to_owned(), Duration::ZERO), Some(0));
    }

    #[test]
    fn any_number_of_subjects_takes_bounded_memory() {
        let mut thinning = Thinning::default();
        for number in 0..3 * MOST_SUBJECTS {
            thinning.pass(number.to_string(), Duration::ZERO);
        }
        assert!(thinning.subjects.len() <= MOST_SUBJECTS);
    }
}
