//! The kernel log of a simulated machine: a ring that forgets its oldest records.

use std::collections::VecDeque;
use std::time::Duration;

use umawarden::model::{KernelRecord, Moment, Observation};

const CAPACITY: usize = 1500;

struct Written {
    uptime: Duration,
    facility: u16,
    text: String,
}

#[derive(Default)]
pub struct KernelRing {
    records: VecDeque<Written>,
    next_seq: u64,
}

impl KernelRing {
    pub fn write(&mut self, uptime: Duration, text: String) {
        self.write_from(0, uptime, text);
    }

    /// Text of a program in user space, in any form.
    pub fn write_from(&mut self, facility: u16, uptime: Duration, text: String) {
        self.records.push_back(Written { uptime, facility, text });
        self.next_seq += 1;
        if self.records.len() > CAPACITY {
            self.records.pop_front();
        }
    }

    /// The first record for a new reader.
    pub fn oldest(&self) -> u64 {
        self.next_seq - self.records.len() as u64
    }

    pub fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// Reads at most `most` records from `from` on; returns the position after them.
    pub fn read(&self, from: u64, at: Moment, most: usize, out: &mut Vec<Observation>) -> u64 {
        let oldest = self.oldest();
        if from < oldest {
            out.push(Observation::KernelRecordsLost(oldest - from));
        }
        let first = from.max(oldest);
        let records = self.records.iter().skip((first - oldest) as usize).take(most);
        let mut seq = first;
        for record in records {
            let age = at.uptime.saturating_sub(record.uptime);
            out.push(Observation::KernelRecord(KernelRecord {
                seq,
                facility: record.facility,
                level: 4,
                usec: u64::try_from(record.uptime.as_micros()).unwrap(),
                caller: None,
                utc: at.utc - age,
                text: record.text.clone(),
                dictionary: String::new(),
            }));
            seq += 1;
        }
        seq
    }
}
