//! Passes the output of the command through, and keeps its end.

use std::collections::VecDeque;
use std::io::{self, PipeReader, Read as _};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::cli::output::pass_on;
use crate::model::WorkloadLog;
use crate::sources::output_files::{MAX_BYTES, last_lines};

/// What the command wrote last is passed through within this time after its end. A process that
/// outlives it keeps the pipe open.
const PASSES_WITHIN: Duration = Duration::from_millis(500);

/// The end of one output.
type OutputTail = Arc<Mutex<VecDeque<u8>>>;

/// Both outputs of a command.
#[derive(Debug)]
pub(super) struct Tee {
    kept: [OutputTail; 2],
    /// Each thread that has passed everything through drops its sender.
    passing: Receiver<()>,
}

impl Tee {
    /// Has both outputs of a command be pipes that are passed through.
    ///
    /// # Errors
    /// No descriptor is left, or a thread cannot be started.
    pub(super) fn begin(command: &mut Command) -> io::Result<Self> {
        let (to, passing) = channel();
        let kept = [OutputTail::default(), OutputTail::default()];
        let (output, writer) = io::pipe()?;
        command.stdout(writer);
        pass(output, false, Arc::clone(&kept[0]), to.clone())?;
        let (error, writer) = io::pipe()?;
        command.stderr(writer);
        pass(error, true, Arc::clone(&kept[1]), to)?;
        Ok(Self { kept, passing })
    }

    /// The last lines of both, once they have been passed through.
    pub(super) fn last_lines(&self) -> WorkloadLog {
        let until = Instant::now() + PASSES_WITHIN;
        // It ends with an error once no thread is left, or in time.
        while self.passing.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
        let texts = self.kept.each_ref().map(|kept| {
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.iter().copied().collect()
        });
        last_lines(Ok(texts.to_vec()))
    }
}

fn pass(
    mut from: PipeReader,
    is_error: bool,
    kept: OutputTail,
    passing: Sender<()>,
) -> io::Result<()> {
    let pass = move || {
        let _passing = passing;
        let mut buffer = vec![0; MAX_BYTES];
        // Once nobody reads, the pipe is closed, and the command notices as it would without it.
        while let Ok(read @ 1..) = from.read(&mut buffer)
            && pass_on(&buffer[..read], is_error).is_ok()
        {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.extend(&buffer[..read]);
            let excess = kept.len().saturating_sub(MAX_BYTES);
            kept.drain(..excess);
        }
    };
    std::thread::Builder::new().name("output".to_owned()).spawn(pass).map(drop)
}
