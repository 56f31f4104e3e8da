//! What becomes of a process that asks the driver: decided by times alone.

use std::time::Duration;

/// How long what may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The first answer: the library finds the driver, which may wake up every GPU.
    pub first_answer: Duration,
    /// Any other.
    pub answer: Duration,
    /// A process that hangs outside of the kernel is killed after that: it can be.
    pub outside_kernel: Duration,
    /// One that hangs in the kernel is given up after that, and another one tries. Whole minutes:
    /// most likely that one hangs too, and a driver that waits for memory needs no more askers.
    pub in_kernel: Duration,
    /// So many may hang in the kernel, given up; then none is started any more.
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

/// What a process that was asked does, and has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    /// How long ago it was asked.
    pub(super) waited: Duration,
    /// Whether it has ever answered.
    pub(super) has_answered: bool,
    /// Its state, as `/proc/PID/stat` has it.
    pub(super) state: Option<char>,
    /// Whether it was killed already.
    pub(super) is_killed: bool,
    /// How many were given up before it, and still hang.
    pub(super) abandoned: usize,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It has time.
    Wait,
    /// It is late: the driver is silent.
    Silent,
    /// It is late, and it can be killed.
    Kill,
    /// It cannot be killed.
    Abandon,
}

impl Patience {
    /// How long an answer may take.
    pub(super) fn answer_takes(&self, has_answered: bool) -> Duration {
        if has_answered { self.answer } else { self.first_answer.max(self.answer) }
    }

    /// What to do about one that has not answered yet.
    pub(super) fn judge(&self, waiting: Waiting) -> Step {
        let Waiting { waited, has_answered, state, is_killed, abandoned } = waiting;
        if waited <= self.answer_takes(has_answered) {
            return Step::Wait;
        }
        let is_in_kernel = state == Some('D');
        // One that was killed and is still there hangs in the kernel, whatever it looks like.
        if waited > self.in_kernel && (is_in_kernel || is_killed) {
            return if abandoned < self.most_abandoned { Step::Abandon } else { Step::Silent };
        }
        // A state that cannot be read is no reason to kill.
        if waited > self.outside_kernel && state.is_some() && !is_in_kernel && !is_killed {
            return Step::Kill;
        }
        Step::Silent
    }
}

/// Between two starts: longer after each that brought nothing.
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

    /// Until the next start.
    pub(super) fn take(&mut self) -> Duration {
        let rest = self.next;
        self.next = (rest * 2).min(Self::LONGEST);
        rest
    }

    /// It has brought something.
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

    fn judged(seconds: u64, state: Option<char>) -> Step {
        PATIENCE.judge(Waiting {
            waited: Duration::from_secs(seconds),
            has_answered: true,
            state,
            is_killed: false,
            abandoned: 0,
        })
    }

    #[test]
    fn a_late_answer_is_silence_and_only_what_can_die_is_killed() {
        for (seconds, state, step) in [
            (5, Some('D'), Step::Wait),
            (6, Some('D'), Step::Silent),
            (6, Some('S'), Step::Silent),
            (60, Some('S'), Step::Silent),
            (61, Some('S'), Step::Kill),
            (61, Some('R'), Step::Kill),
            (61, Some('D'), Step::Silent),
            (61, None, Step::Silent),
            (600, Some('D'), Step::Silent),
            (601, Some('D'), Step::Abandon),
            (601, None, Step::Silent),
        ] {
            assert_eq!(judged(seconds, state), step, "{seconds} s, {state:?}");
        }
    }

    #[test]
    fn the_first_answer_takes_longer() {
        let waited = Duration::from_secs(29);
        let waiting = Waiting {
            waited,
            has_answered: false,
            state: Some('D'),
            is_killed: false,
            abandoned: 0,
        };
        assert_eq!(PATIENCE.judge(waiting), Step::Wait);
        assert_eq!(PATIENCE.judge(Waiting { has_answered: true, ..waiting }), Step::Silent);
    }

    #[test]
    fn nothing_is_killed_twice_and_no_more_are_given_up_than_may_hang() {
        let killed = |seconds, abandoned| {
            PATIENCE.judge(Waiting {
                waited: Duration::from_secs(seconds),
                has_answered: true,
                state: Some('S'),
                is_killed: true,
                abandoned,
            })
        };
        assert_eq!(killed(300, 0), Step::Silent);
        assert_eq!(killed(601, 2), Step::Abandon);
        assert_eq!(killed(100_000, 3), Step::Silent);
    }

    #[test]
    fn starts_that_bring_nothing_become_rare() {
        let mut back_off = BackOff::new();
        let rests: Vec<u64> = (0..12).map(|_| back_off.take().as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        back_off.reset();
        assert_eq!(back_off.take().as_secs(), 1);
    }
}
