//! Reads dense lines of the kernel log together: a wake-up for each costs several times a read.

use std::time::Duration;

/// This many reads in close succession with few lines each are a stream,
const STREAM: u32 = 8;
const SOON: Duration = Duration::from_millis(1);
const FEW: usize = 64;

/// in which lines wait this long. The ring holds much more than comes meanwhile; of a faster stream
/// a read finds more than [`FEW`].
const BATCH_FOR: Duration = Duration::from_millis(3);

/// When the kernel log is read next, on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Batching {
    reads: u32,
    last: Duration,
    until: Option<Duration>,
}

impl Batching {
    /// How long new lines wait.
    pub(super) fn waits(&self, now: Duration) -> Option<Duration> {
        self.until?.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// Records a read with this many lines.
    pub(super) fn read(&mut self, now: Duration, lines: usize) {
        if self.waits(now).is_some() && lines == 0 {
            return;
        }
        let soon = if self.until.is_some() { BATCH_FOR + SOON } else { SOON };
        let is_soon = now.saturating_sub(self.last) <= soon;
        self.reads = match lines {
            0 if is_soon && self.until.is_none() => self.reads,
            1..=FEW if is_soon => self.reads.saturating_add(1),
            1..=FEW => 1,
            _ => 0,
        };
        if lines > 0 {
            self.last = now;
        }
        self.until = (self.reads >= STREAM).then(|| now + BATCH_FOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(microseconds: u64) -> Duration {
        Duration::from_micros(1_000_000 + microseconds)
    }

    /// Reads one line every so many microseconds, as long as none has to wait.
    fn streaming(every: u64, reads: u64) -> (Batching, u64) {
        let mut batching = Batching::default();
        for read in 0..reads {
            batching.read(at(read * every), 1);
            if batching.waits(at(read * every)).is_some() {
                return (batching, read * every);
            }
        }
        (batching, (reads - 1) * every)
    }

    #[test]
    fn a_stream_of_lines_is_batched_until_it_ends() {
        let (mut batching, mut now) = streaming(300, 100);
        assert_eq!(now, 7 * 300, "the eighth read");
        for _ in 0..5 {
            assert_eq!(batching.waits(at(now)), Some(BATCH_FOR));
            assert_eq!(batching.waits(at(now + 500)), Some(Duration::from_micros(2500)));
            assert_eq!(batching.waits(at(now + 3000)), None);
            now += 3050;
            batching.read(at(now), 7);
        }
        // A sample between two reads ends nothing, a read without a line does.
        batching.read(at(now + 100), 0);
        assert!(batching.waits(at(now + 100)).is_some());
        batching.read(at(now + 3050), 0);
        assert_eq!(batching.waits(at(now + 3050)), None);
        batching.read(at(now + 3100), 1);
        assert_eq!(batching.waits(at(now + 3100)), None, "it has to stream anew");
    }

    #[test]
    fn single_lines_and_floods_are_read_at_once() {
        let (batching, now) = streaming(1_100, 1000);
        assert_eq!(batching.waits(at(now)), None);
        let (mut batching, now) = streaming(300, 100);
        batching.read(at(now + 3050), FEW + 1);
        assert_eq!(batching.waits(at(now + 3050)), None);
        for read in 0..100 {
            batching.read(at(now + 3100 + read * 50), 1024);
            assert_eq!(batching.waits(at(now + 3100 + read * 50)), None);
        }
    }

    #[test]
    fn samples_between_the_lines_do_not_end_a_stream() {
        let mut batching = Batching::default();
        for read in 0..STREAM.into() {
            batching.read(at(read * 300), 1);
            batching.read(at(read * 300 + 100), 0);
        }
        assert!(batching.waits(at(u64::from(STREAM - 1) * 300 + 100)).is_some());
    }
}
