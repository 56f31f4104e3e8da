//! The recording of a simulated process, and its replay.

use umawarden::cli::replay::Replayer;
use umawarden::model::{AlertChange, Moment, Observation};
use umawarden::policy::Step;
use umawarden::recording::{
    AddOutcome, RecordedRules, RecordedStep, RecordingEntry, SegmentBegin, SegmentReader,
    SegmentWriter, StepResult,
};

use super::checker::Violation;

/// All input and output of one process.
pub struct Recording {
    writer: SegmentWriter,
    bytes: Vec<u8>,
    pending: usize,
}

/// Larger blocks than in reality: only the whole file is used.
const OBSERVATIONS_A_BLOCK: usize = 4096;

impl Recording {
    pub fn new(begin: &SegmentBegin) -> Self {
        let (writer, bytes) = SegmentWriter::new(begin).unwrap();
        Self { writer, bytes, pending: 0 }
    }

    pub fn step(&mut self, at: Moment, seen: Vec<Observation>, step: &Step) {
        self.pending += seen.len();
        let said = StepResult {
            events: step.events.clone(),
            alerts: step.alerts.clone(),
            decisions: step.decisions.clone(),
            aim_checks: step.aim_checks.clone(),
        };
        self.take(&RecordingEntry::Step(RecordedStep { at, seen, said }));
    }

    pub fn reload(&mut self, at: Moment, rules: RecordedRules, ended: &[AlertChange]) {
        self.take(&RecordingEntry::Reload { at, rules, ended: ended.to_vec() });
    }

    fn take(&mut self, entry: &RecordingEntry) {
        assert_eq!(self.writer.take(entry), AddOutcome::Yes);
        if self.pending > OBSERVATIONS_A_BLOCK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.pending = 0;
        self.bytes.extend(self.writer.block().unwrap().unwrap_or_default());
    }

    /// Replays the input, and compares the output.
    pub fn replay(mut self) -> Result<(), Violation> {
        self.flush();
        let mut reader = SegmentReader::open(self.bytes.as_slice()).unwrap();
        let mut replayer = Replayer::under_recorded_rules();
        while let Some(entry) = reader.next_entry().unwrap() {
            let stepped = replayer.take(&entry).unwrap();
            match &entry {
                RecordingEntry::Step(recorded) => {
                    let again = StepResult {
                        events: stepped.step.events,
                        alerts: stepped.step.alerts,
                        decisions: stepped.step.decisions,
                        aim_checks: stepped.step.aim_checks,
                    };
                    same(recorded.at, &recorded.said, &again)?;
                }
                RecordingEntry::Reload { at, ended, .. } => same(*at, ended, &stepped.ended)?,
                RecordingEntry::Begin(_) | RecordingEntry::Gap { .. } => {}
            }
        }
        assert_eq!(reader.torn(), None);
        Ok(())
    }
}

/// As JSON, since a NaN does not equal itself.
fn same<T: serde::Serialize>(at: Moment, recorded: &T, again: &T) -> Result<(), Violation> {
    let [recorded, again] = [recorded, again].map(|step| serde_json::to_string(step).unwrap());
    if recorded == again {
        return Ok(());
    }
    let what = format!("at {:?}\nrecorded {recorded}\nreplayed {again}", at.uptime);
    Err(Violation { invariant: "a replay gives the same decisions", what })
}
