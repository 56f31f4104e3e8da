//! `umawarden replay`.

mod compare;
mod log_text;
mod show;
mod source;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use self::compare::{ComparisonSide, ReplayComparison};
use self::show::ResultWriter;
use super::Exit;
use super::log_input::not_a_log;
use crate::cli::output::{self, ReaderGone};
use crate::config::reader::read_rules;
use crate::config::settings::RuleSource;
use crate::recording::RecordingEntry;
pub use crate::replayer::Replayer;

/// Arguments of `umawarden replay`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArguments {
    /// A recording: an incident file, a segment or a folder of segments; or a kernel log as text.
    /// `-` is standard input.
    pub file: PathBuf,

    /// Rule file, folder of *.yaml, or glob, instead of the recorded rules; may be repeated.
    #[arg(long, value_name = "PATH")]
    pub rules: Vec<PathBuf>,

    /// One JSON object a line.
    #[arg(long)]
    pub json: bool,

    /// Print only decisions that differ from the recorded ones, or, with --rules, between the
    /// recorded and the given rules.
    #[arg(long)]
    pub diff: bool,
}

const AFTER_HELP: &str = "\
`umawarden run` records the input of its rules into `recording` in its storage folder, and keeps \
the minutes around each firing rule in `incidents`. A replay runs the same rules, or others, over \
it, and prints events, alerts and decisions with the recorded times. Nothing is done. A kernel log \
as text (any that `umawarden dmesg` reads) is replayed with the shipped rules; memory is unknown \
in it, and so are rules that need it.

A recording does not react: whatever a replay decides, the recorded events and outcomes follow.

A replay gives exactly the recorded decisions from the start of the process. A recording that \
begins later, as a ring or an incident does after some time, lacks the state of the rules: \
cooldowns, budgets, pending alerts. Its decisions are not compared with the recorded ones, and the \
first minutes are a warm-up.

Exit codes: 0 fine; 1 --diff found differences, or part of the recording is damaged or missing (as \
after a power cut: what is whole is shown, and a line that begins with # says what is not); 2 the \
file cannot be used: it is neither a recording nor a kernel log, or --diff has nothing to compare.

Examples:
  umawarden replay INCIDENT                 what was recorded, line by line
  umawarden replay INCIDENT --diff          what this version decides otherwise
  umawarden replay /var/lib/umawarden --rules my.yaml --diff
                                          what my rules would do differently
  umawarden replay INCIDENT --json | jq 'select(.kind == \"decision\")'
  journalctl -k -b -1 | umawarden replay -
                                          what rules find in the last boot's log";

/// Runs the command.
///
/// # Errors
/// The file cannot be read or used, or the output cannot be written.
pub fn execute(arguments: &ReplayArguments) -> anyhow::Result<Exit> {
    let mut session = ReplaySession::new(arguments, output::stdout())?;
    let shown = source::read(&arguments.file, &mut |found| session.take(found));
    match shown.and_then(|()| session.finish()) {
        Err(error) if error.is::<ReaderGone>() => Ok(session.exit()),
        Err(error) => {
            // Earlier results are still useful.
            let _ = session.show.flush();
            Err(error)
        }
        Ok(()) => Ok(session.exit()),
    }
}

pub(super) enum SourceItem {
    Entry(Box<RecordingEntry>),
    /// The source is a log without recorded decisions.
    Log,
    /// A remark for the reader; the source is incomplete.
    Cut(String),
    /// A remark for the reader.
    Remark(String),
    /// The source of this name was read as a log, and is hardly text.
    Bytes(String),
}

/// A replay, and a second one to compare two sets of rules.
struct ReplaySession<W: Write> {
    replayer: Replayer,
    /// With the recorded rules, if others are given.
    reference: Option<Replayer>,
    comparison: ReplayComparison,
    diff: bool,
    /// A part of the recording is damaged or missing.
    is_cut: bool,
    /// Given as a log, and hardly text.
    bytes: Option<String>,
    /// A log: its content does not change the exit code.
    is_log: bool,
    show: ResultWriter<W>,
}

impl<W: Write> ReplaySession<W> {
    fn new(arguments: &ReplayArguments, out: W) -> anyhow::Result<Self> {
        let mut show = ResultWriter::new(out, arguments.json, arguments.diff);
        let (replayer, reference) = if arguments.rules.is_empty() {
            (Replayer::under_recorded_rules(), None)
        } else {
            let source = RuleSource::given(&arguments.rules);
            let (texts, remarks) = read_rules(&source)?;
            for remark in remarks {
                show.remark(&remark)?;
            }
            let reference = arguments.diff.then(Replayer::under_recorded_rules);
            (Replayer::under(texts), reference)
        };
        let comparison = match (&reference, arguments.rules.is_empty()) {
            (Some(_), _) => ReplayComparison::of_rules(),
            (None, true) => ReplayComparison::with_recorded(),
            (None, false) => ReplayComparison::none(),
        };
        let (diff, is_cut, bytes) = (arguments.diff, false, None);
        Ok(Self { replayer, reference, comparison, diff, is_cut, bytes, is_log: false, show })
    }

    fn take(&mut self, found: SourceItem) -> anyhow::Result<()> {
        if output::is_reader_gone() && (self.is_log || self.exit() == Exit::Findings) {
            return Err(ReaderGone.into());
        }
        let entry = match found {
            SourceItem::Entry(entry) => entry,
            SourceItem::Log => {
                self.comparison.set_log();
                self.is_log = true;
                return Ok(());
            }
            SourceItem::Remark(text) => return self.show.remark(&text),
            SourceItem::Bytes(name) => {
                self.bytes = Some(name);
                return Ok(());
            }
            SourceItem::Cut(text) => {
                self.is_cut = true;
                self.replayer.cut();
                if let Some(reference) = &mut self.reference {
                    reference.cut();
                }
                return self.show.remark(&text);
            }
        };
        let stepped = self.replayer.take(&entry)?;
        let reference = match &mut self.reference {
            Some(reference) => Some(reference.take(&entry)?),
            None => None,
        };
        self.show.entry(&entry, &self.replayer, &stepped)?;
        let RecordingEntry::Step(recorded) = &*entry else { return Ok(()) };
        let differences = match &reference {
            Some(reference) => {
                self.comparison.step(&reference.step.decisions, &stepped.step.decisions)
            }
            None if self.replayer.is_whole() => {
                self.comparison.step(&recorded.said.decisions, &stepped.step.decisions)
            }
            None => {
                self.comparison.leave_out(recorded.said.decisions.len());
                Vec::new()
            }
        };
        if self.diff {
            for (side, decision) in differences {
                self.show.difference(recorded.at, side, self.comparison.name(side), decision)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> anyhow::Result<()> {
        anyhow::ensure!(
            self.replayer.has_begun(),
            "there is nothing to replay in it: it is empty or cut off at its start"
        );
        if let Some(name) = self.bytes.as_deref().filter(|_| !self.show.has_events()) {
            return Err(not_a_log(name));
        }
        self.show.summary(&self.comparison, self.is_cut)?;
        if self.diff && !self.comparison.has_compared() {
            self.show.flush()?;
            anyhow::bail!(
                "nothing could be compared: no part of it holds decisions from where a process \
                 started; give --rules to compare two sets of rules over it"
            );
        }
        self.show.flush()
    }

    fn exit(&self) -> Exit {
        let differs = self.diff && self.comparison.differences() > 0;
        if differs || self.is_cut { Exit::Findings } else { Exit::Fine }
    }
}

/// The side that alone has a decision.
impl ComparisonSide {
    fn sign(self) -> char {
        match self {
            Self::Before => '-',
            Self::Now => '+',
        }
    }
}
