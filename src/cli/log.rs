//! The program's log is written to standard error by a thread of its own: a full disk, a closed
//! pipe or a hanging reader must not stop the loop.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::Context;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::output;
use crate::config::settings::{Log, LogFormat, LogLevel};

/// Buffered lines. Further lines are dropped and counted.
const MOST_LINES: usize = 512;

/// How long the end waits for the last lines.
const LAST_LINES_TAKE: Duration = Duration::from_millis(50);

/// Confirms that the last line is written.
#[derive(Debug)]
pub(super) struct LogThread {
    lines: LineWriter,
}

#[derive(Debug)]
enum LogMessage {
    Line(Vec<u8>),
    End(SyncSender<()>),
}

/// Takes whole lines. Never blocks.
#[derive(Clone, Debug)]
struct LineWriter {
    to: SyncSender<LogMessage>,
    lost: Arc<AtomicU64>,
}

/// Starts the log.
pub(super) fn begin(log: Log) -> anyhow::Result<LogThread> {
    let level = match log.level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let colours = output::colours_wanted(output::is_error_terminal());
    let lines = LineWriter::start(io::stderr()).context("cannot start the thread of the log")?;
    let to = lines.clone();
    let write = move || to.clone();
    // The client of Kubernetes logs each failed request as an error, without saying which. What
    // made the request reports it.
    let of_client = if level > LevelFilter::INFO { level } else { LevelFilter::OFF };
    let targets = Targets::new().with_default(level).with_target("kube_client", of_client);
    let registry = tracing_subscriber::registry().with(targets);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(write.clone())
        .with_ansi(colours)
        .with_target(false)
        // Its errors would be written to the same standard error, and panic.
        .log_internal_errors(false);
    match log.format {
        LogFormat::Text => registry.with(layer).init(),
        LogFormat::Logfmt => {
            let layer = tracing_logfmt::builder()
                .with_target(false)
                .layer()
                .log_internal_errors(false)
                .with_writer(write);
            registry.with(layer).init();
        }
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
    Ok(LogThread { lines })
}

impl LogThread {
    /// Waits a moment for pending lines.
    pub(super) fn end(self) {
        self.lines.flush(LAST_LINES_TAKE);
    }
}

impl LineWriter {
    fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let (to, messages) = sync_channel(MOST_LINES);
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        std::thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_all(out, &messages, &counted))?;
        Ok(Self { to, lost })
    }

    fn flush(&self, patience: Duration) {
        let (done, ended) = sync_channel(1);
        if self.to.try_send(LogMessage::End(done)).is_ok() {
            // Lines that are not written in time are lost with the process.
            let _ = ended.recv_timeout(patience);
        }
    }
}

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.to.try_send(LogMessage::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(mut out: impl Write, messages: &Receiver<LogMessage>, lost: &AtomicU64) {
    while let Ok(message) = messages.recv() {
        match message {
            LogMessage::Line(line) => {
                if out.write_all(&line).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                } else if lost.load(Ordering::Relaxed) > 0 {
                    let lines = lost.swap(0, Ordering::Relaxed);
                    tracing::warn!(lines, "log lines were lost: standard error took none");
                }
            }
            // The receiver may be gone.
            LogMessage::End(done) => drop(done.try_send(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    /// A writer that fails or blocks as configured.
    struct Out {
        written: Sender<String>,
        answers: Receiver<io::Result<()>>,
    }

    impl Write for Out {
        fn write(&mut self, line: &[u8]) -> io::Result<usize> {
            self.answers.recv().map_err(io::Error::other)??;
            // The receiver may be gone.
            let _ = self.written.send(String::from_utf8_lossy(line).into_owned());
            Ok(line.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn lines() -> (LineWriter, Sender<io::Result<()>>, Receiver<String>) {
        let (written, read) = channel();
        let (answer, answers) = channel();
        (LineWriter::start(Out { written, answers }).unwrap(), answer, read)
    }

    #[test]
    fn a_hanging_reader_blocks_no_thread_and_dropped_lines_are_counted() {
        let (mut lines, answer, written) = lines();
        for number in 0..2 * MOST_LINES {
            lines.write_all(format!("{number}\n").as_bytes()).unwrap();
        }
        let lost = usize::try_from(lines.lost.load(Ordering::Relaxed)).unwrap();
        assert!((MOST_LINES - 1..=MOST_LINES).contains(&lost), "{lost}");
        (0..=MOST_LINES).for_each(|_| answer.send(Ok(())).unwrap());
        assert_eq!(written.recv_timeout(LONG).unwrap(), "0\n");
        assert_eq!(written.recv_timeout(LONG).unwrap(), "1\n");
    }

    #[test]
    fn a_full_disk_costs_the_line_and_nothing_else() {
        let (mut lines, answer, written) = lines();
        answer.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
        answer.send(Ok(())).unwrap();
        lines.write_all(b"lost\n").unwrap();
        lines.write_all(b"kept\n").unwrap();
        assert_eq!(written.recv_timeout(LONG).unwrap(), "kept\n");
        lines.flush(LONG);
    }
}
