//! Rate limit of log lines, by subject.

use std::collections::BTreeMap;
use std::time::Duration;

/// Lines of a subject that are logged at once.
const BURST: u32 = 20;

/// After a burst, one line per subject in this time.
const PACE: Duration = Duration::from_secs(10);

/// Subjects that are tracked; with more, all begin anew.
const MOST_SUBJECTS: usize = 4096;

/// The rate limit. Journal and counters are not limited.
#[derive(Debug, Default)]
pub(super) struct Thinning {
    subjects: BTreeMap<String, ThinnedSubject>,
}

#[derive(Debug)]
struct ThinnedSubject {
    left: u32,
    since: Duration,
    withheld: u64,
}

impl Thinning {
    /// Whether a line of the subject is logged at `now`; if so, how many were suppressed before it.
    pub(super) fn pass(&mut self, subject: String, now: Duration) -> Option<u64> {
        if self.subjects.len() >= MOST_SUBJECTS && !self.subjects.contains_key(&subject) {
            self.subjects.clear();
        }
        let new = ThinnedSubject { left: BURST, since: now, withheld: 0 };
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
    fn occasional_lines_are_always_logged() {
        let suppressed = passed(&mut Thinning::default(), "rule", 1000, PACE);
        assert_eq!(suppressed, vec![0; 1000]);
    }

    #[test]
    fn a_storm_is_logged_at_its_begin_and_then_at_a_rate_with_the_suppressed_count() {
        let mut thinning = Thinning::default();
        // A hundred seconds at ten a second.
        let suppressed = passed(&mut thinning, "rule", 1000, Duration::from_millis(100));
        assert!(suppressed.len() <= BURST as usize + 10, "{suppressed:?}");
        assert!(suppressed[suppressed.len() - 1] > 50, "{suppressed:?}");
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
