//! The recording of a simulated process, and its replay.

use umawarden::cli::replay::Replayer;
use umawarden::model::{AlertChange, Moment, Observation};
use umawarden::policy::Step;
use umawarden::recording::{
    Begin, Entry, RecordedRules, RecordedStep, Said, SegmentReader, SegmentWriter, Taken,
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
    pub fn new(begin: &Begin) -> Self {
        let (writer, bytes) = SegmentWriter::new(begin).unwrap();
        Self { writer, bytes, pending: 0 }
    }

    pub fn step(&mut self, at: Moment, seen: Vec<Observation>, step: &Step) {
        self.pending += seen.len();
        let said = Said {
            events: step.events.clone(),
            alerts: step.alerts.clone(),
            decisions: step.decisions.clone(),
            aim_checks: step.aim_checks.clone(),
        };
        self.take(&Entry::Step(RecordedStep { at, seen, said }));
    }

    pub fn reload(&mut self, at: Moment, rules: RecordedRules, ended: &[AlertChange]) {
        self.take(&Entry::Reload { at, rules, ended: ended.to_vec() });
    }

    fn take(&mut self, entry: &Entry) {
        assert_eq!(self.writer.take(entry), Taken::Yes);
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
                Entry::Step(recorded) => {
                    let again = Said {
                        events: stepped.step.events,
                        alerts: stepped.step.alerts,
                        decisions: stepped.step.decisions,
                        aim_checks: stepped.step.aim_checks,
                    };
                    same(recorded.at, &recorded.said, &again)?;
                }
                Entry::Reload { at, ended, .. } => same(*at, ended, &stepped.ended)?,
                Entry::Begin(_) | Entry::Gap { .. } => {}
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
