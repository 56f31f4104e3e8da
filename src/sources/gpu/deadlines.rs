//! Deadlines of the child that queries the driver: a pure function of times and states.

use std::time::Duration;

/// Time limits of the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The first response: the library searches for the driver, which may wake every GPU.
    pub first_answer: Duration,
    /// Any later response.
    pub answer: Duration,
    /// A child that hangs outside of the kernel is killed after this time.
    pub outside_kernel: Duration,
    /// A child that hangs in the kernel is abandoned after this time, and another one starts. Whole
    /// minutes: the next one most likely hangs too, and a driver that waits for memory should get
    /// few requests.
    pub in_kernel: Duration,
    /// The most abandoned children that may hang at once. No further one is started then.
    pub most_abandoned: usize,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_answer: Duration::from_secs(30),
            answer: Duration::from_secs(5),
            outside_kernel: Duration::from_secs(60),
            in_kernel: Duration::from_secs(600),
            most_abandoned: 3,
        }
    }
}

/// The state of a child with an open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenRequest {
    /// Time since the request.
    pub(super) waited: Duration,
    /// Whether it has ever responded.
    pub(super) has_answered: bool,
    /// The process state in `/proc/PID/stat`.
    pub(super) state: Option<char>,
    pub(super) is_killed: bool,
    /// Abandoned children that still hang.
    pub(super) abandoned: usize,
}

/// What happens to the child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeadlineStep {
    /// The deadline has not passed.
    Wait,
    /// Report the driver as silent, and wait.
    Silent,
    Kill,
    /// Abandon it: it cannot be killed.
    Abandon,
}

impl Patience {
    /// The deadline of a response.
    pub(super) fn answer_takes(&self, has_answered: bool) -> Duration {
        if has_answered { self.answer } else { self.first_answer.max(self.answer) }
    }

    /// Decides about a child with an open request.
    pub(super) fn next_step(&self, waiting: OpenRequest) -> DeadlineStep {
        let OpenRequest { waited, has_answered, state, is_killed, abandoned } = waiting;
        if waited <= self.answer_takes(has_answered) {
            return DeadlineStep::Wait;
        }
        let is_in_kernel = state == Some('D');
        // A child that was killed and still exists hangs in the kernel, whatever its state.
        if waited > self.in_kernel && (is_in_kernel || is_killed) {
            return if abandoned < self.most_abandoned {
                DeadlineStep::Abandon
            } else {
                DeadlineStep::Silent
            };
        }
        // An unreadable state is no reason to kill.
        if waited > self.outside_kernel && state.is_some() && !is_in_kernel && !is_killed {
            return DeadlineStep::Kill;
        }
        DeadlineStep::Silent
    }
}

/// The delay before the next start, doubled after each failed one.
#[derive(Debug)]
pub(super) struct BackOff {
    next: Duration,
}

impl BackOff {
    const FIRST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(600);

    pub(super) fn new() -> Self {
        Self { next: Self::FIRST }
    }

    /// Returns the delay, and doubles the next one.
    pub(super) fn take(&mut self) -> Duration {
        let rest = self.next;
        self.next = (rest * 2).min(Self::LONGEST);
        rest
    }

    /// Called after a response.
    pub(super) fn reset(&mut self) {
        self.next = Self::FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        first_answer: Duration::from_secs(30),
        answer: Duration::from_secs(5),
        outside_kernel: Duration::from_secs(60),
        in_kernel: Duration::from_secs(600),
        most_abandoned: 3,
    };

    fn step_after(seconds: u64, state: Option<char>) -> DeadlineStep {
        PATIENCE.next_step(OpenRequest {
            waited: Duration::from_secs(seconds),
            has_answered: true,
            state,
            is_killed: false,
            abandoned: 0,
        })
    }

    #[test]
    fn a_late_response_is_silence_and_only_killable_processes_are_killed() {
        for (seconds, state, step) in [
            (5, Some('D'), DeadlineStep::Wait),
            (6, Some('D'), DeadlineStep::Silent),
            (6, Some('S'), DeadlineStep::Silent),
            (60, Some('S'), DeadlineStep::Silent),
            (61, Some('S'), DeadlineStep::Kill),
            (61, Some('R'), DeadlineStep::Kill),
            (61, Some('D'), DeadlineStep::Silent),
            (61, None, DeadlineStep::Silent),
            (600, Some('D'), DeadlineStep::Silent),
            (601, Some('D'), DeadlineStep::Abandon),
            (601, None, DeadlineStep::Silent),
        ] {
            assert_eq!(step_after(seconds, state), step, "{seconds} s, {state:?}");
        }
    }

    #[test]
    fn the_first_response_may_take_longer() {
        let waited = Duration::from_secs(29);
        let waiting = OpenRequest {
            waited,
            has_answered: false,
            state: Some('D'),
            is_killed: false,
            abandoned: 0,
        };
        assert_eq!(PATIENCE.next_step(waiting), DeadlineStep::Wait);
        assert_eq!(
            PATIENCE.next_step(OpenRequest { has_answered: true, ..waiting }),
            DeadlineStep::Silent
        );
    }

    #[test]
    fn no_process_is_killed_twice_and_abandoned_ones_are_bounded() {
        let killed = |seconds, abandoned| {
            PATIENCE.next_step(OpenRequest {
                waited: Duration::from_secs(seconds),
                has_answered: true,
                state: Some('S'),
                is_killed: true,
                abandoned,
            })
        };
        assert_eq!(killed(300, 0), DeadlineStep::Silent);
        assert_eq!(killed(601, 2), DeadlineStep::Abandon);
        assert_eq!(killed(100_000, 3), DeadlineStep::Silent);
    }

    #[test]
    fn unsuccessful_starts_become_rare() {
        let mut back_off = BackOff::new();
        let rests: Vec<u64> = (0..12).map(|_| back_off.take().as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        back_off.reset();
        assert_eq!(back_off.take().as_secs(), 1);
    }
}
