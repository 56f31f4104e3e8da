//! A stand-in for an engine that loads: takes memory at a steady pace, hardly any of it in its RSS.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::driver;
use crate::huge_file;
use crate::measure;
use crate::pool::PAGE_BYTES;
use crate::worker::{self, Worker};

/// Interval between two steps.
const TURN: Duration = Duration::from_millis(5);

/// Bytes of one step.
const STEP_BYTES: u64 = 8 * PAGE_BYTES;

/// How much memory the hog takes, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    pub bytes_a_second: u64,
    /// The hog stops at this value of the counter `of`; 0: it never stops.
    pub leaves_bytes: u64,
    /// A key of `/proc/meminfo`.
    pub of: &'static str,
    /// How long it keeps the memory before it gives it back.
    pub keeps: Duration,
}

/// Starts a hog, which waits for its start.
pub fn start(demand: Demand) -> Worker {
    let Demand { bytes_a_second, leaves_bytes, of, keeps } = demand;
    Worker::start(&[
        "hog".to_owned(),
        bytes_a_second.to_string(),
        leaves_bytes.to_string(),
        of.to_owned(),
        keeps.as_millis().to_string(),
    ])
}

/// The process of the hog.
pub fn run(arguments: &[String]) -> ExitCode {
    worker::end_with_parent();
    let _device = driver::open();
    let [pace, leaves, keeps] = [0, 1, 3].map(|index| arguments[index].parse::<u64>().unwrap());
    let of = &arguments[2];
    worker::signal();
    worker::await_start();
    let (mut taken, mut small) = (0, Vec::new());
    let began = Instant::now();
    while leaves == 0 || measure::meminfo_bytes(of) > leaves {
        let wanted = (began.elapsed().as_secs_f64() * pace as f64) as u64;
        if taken + STEP_BYTES > wanted {
            std::thread::sleep(TURN);
        } else if huge_file::extend_to(taken + STEP_BYTES).is_ok() {
            taken += STEP_BYTES;
        } else {
            // Without a free huge page the driver requests small pages.
            small.push(vec![1_u8; PAGE_BYTES as usize]);
            std::thread::sleep(TURN);
        }
    }
    worker::signal();
    std::thread::sleep(Duration::from_millis(keeps));
    huge_file::clear();
    ExitCode::SUCCESS
}
