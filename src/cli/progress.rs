//! Progress with the time left, of what takes longer than two seconds: one line on standard error,
//! only if that is a terminal. Other output removes it.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use crate::cli::output;
use crate::model::{bytes_text, seconds_text};

/// Nothing is drawn before.
const AFTER: Duration = Duration::from_secs(2);

/// Between two lines.
const EVERY: Duration = Duration::from_millis(200);

/// The columns of a bar, without its brackets.
const BAR: usize = 20;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Bytes,
    /// Things with this name, in the plural.
    Things(&'static str),
}

/// The progress of one command. The line ends with it.
pub(crate) struct Progress {
    what: &'static str,
    unit: Unit,
    /// `None`: unknown, as of a pipe.
    total: Option<u64>,
    done: u64,
    began: Instant,
    drawn: Duration,
    is_on: bool,
}

impl Progress {
    /// Of bytes that are read.
    pub(crate) fn bytes(what: &'static str, total: Option<u64>) -> Self {
        Self::new(what, Unit::Bytes, total)
    }

    /// Of things with this name, in the plural, of which there are unknown many.
    pub(crate) fn uncounted(what: &'static str, things: &'static str) -> Self {
        Self::new(what, Unit::Things(things), None)
    }

    /// Of things with this name, in the plural.
    pub(crate) fn things(what: &'static str, things: &'static str, total: u64) -> Self {
        Self::new(what, Unit::Things(things), Some(total))
    }

    fn new(what: &'static str, unit: Unit, total: Option<u64>) -> Self {
        let is_on = output::is_error_terminal() && !output::is_dumb();
        let (began, drawn) = (Instant::now(), Duration::ZERO);
        Self { what, unit, total, done: 0, began, drawn, is_on }
    }

    /// How much is done.
    #[cfg(test)]
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// So much more is done.
    pub(crate) fn advance(&mut self, by: u64) {
        self.done = self.done.saturating_add(by);
        if !self.is_on {
            return;
        }
        let elapsed = self.began.elapsed();
        if elapsed < AFTER || elapsed < self.drawn + EVERY {
            return;
        }
        self.drawn = elapsed;
        output::draw_line(&self.line(elapsed));
    }

    fn line(&self, elapsed: Duration) -> String {
        let amount = |number: u64| match self.unit {
            Unit::Bytes => bytes_text(number),
            Unit::Things(_) => number.to_string(),
        };
        let things = match self.unit {
            Unit::Bytes => String::new(),
            Unit::Things(things) => format!(" {things}"),
        };
        let (what, done) = (self.what, amount(self.done));
        let Some(total) = self.total.filter(|total| *total > 0) else {
            return format!("{what}: {done}{things} in {}", seconds_text(elapsed));
        };
        let left = time_left(self.done, total, elapsed);
        let left = left.map(|left| format!(", about {} left", seconds_text(left)));
        format!(
            "{} {what}: {done} of {}{things}{}",
            bar(share(self.done, total)),
            amount(total),
            left.unwrap_or_default()
        )
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_on {
            output::clear_line();
        }
    }
}

/// How much of the total it is, from 0 to 1.
#[expect(clippy::cast_precision_loss, reason = "a share for a bar")]
pub(crate) fn share(done: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { (done as f64 / total as f64).clamp(0.0, 1.0) }
}

/// `[########------------]`.
pub(crate) fn bar(share: f64) -> String {
    bar_of(share, BAR)
}

/// A bar of so many cells, without its brackets.
pub(crate) fn bar_of(share: f64, cells: usize) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a small number"
    )]
    let full = (share * cells as f64) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(cells.saturating_sub(full)))
}

/// The time left at the pace so far; `None` before there is one, and at the end.
fn time_left(done: u64, total: u64, elapsed: Duration) -> Option<Duration> {
    let left = total.checked_sub(done).filter(|left| *left > 0 && done > 0)?;
    Duration::try_from_secs_f64(elapsed.as_secs_f64() / share(done, total) * share(left, total))
        .ok()
        .map(|left| left.max(Duration::from_secs(1)))
}

/// A reader whose bytes count as progress.
pub(crate) struct ProgressReader<'p, R> {
    inner: R,
    progress: &'p mut Progress,
}

impl<'p, R> ProgressReader<'p, R> {
    pub(crate) fn new(inner: R, progress: &'p mut Progress) -> Self {
        Self { inner, progress }
    }
}

impl<R: Read> Read for ProgressReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.progress.advance(u64::try_from(read).unwrap_or(u64::MAX));
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(progress: Progress, seconds: u64) -> String {
        progress.line(Duration::from_secs(seconds))
    }

    #[test]
    fn the_time_left_is_that_at_the_pace_so_far() {
        let progress = Progress { done: 1 << 30, ..Progress::bytes("replay", Some(4 << 30)) };
        assert_eq!(
            line(progress, 10),
            "[#####---------------] replay: 1.0 GiB of 4.0 GiB, about 30s left"
        );
        let progress = Progress { done: 3, ..Progress::things("rules test", "files", 4) };
        assert_eq!(
            line(progress, 3),
            "[###############-----] rules test: 3 of 4 files, about 1s left"
        );
        let progress = Progress { done: 2 << 20, ..Progress::bytes("dmesg", None) };
        assert_eq!(line(progress, 5), "dmesg: 2.0 MiB in 5s");
    }

    #[test]
    fn no_time_is_left_before_the_beginning_and_after_the_end() {
        let second = Duration::from_secs(1);
        assert_eq!(time_left(0, 9, second), None);
        assert_eq!(time_left(9, 9, second), None);
        assert_eq!(time_left(12, 9, second), None);
        assert_eq!(time_left(1, 0, second), None);
        assert_eq!(bar(f64::NAN), bar(0.0));
        assert_eq!(bar(7.0), format!("[{}]", "#".repeat(20)));
    }

    #[test]
    fn read_bytes_count() {
        let mut progress = Progress::bytes("test", None);
        let mut all = Vec::new();
        ProgressReader::new(&b"twelve bytes"[..], &mut progress).read_to_end(&mut all).unwrap();
        assert_eq!(progress.done, 12);
    }
}
