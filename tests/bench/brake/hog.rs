//! A stand-in for an engine that loads: takes memory at a steady pace, hardly any of it in its RSS.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::driver;
use crate::flow::{self, Flow};
use crate::huge_file;
use crate::measure;
use crate::pool::PAGE_BYTES;

/// How often it takes.
const TURN: Duration = Duration::from_millis(5);

/// How much it takes at once.
const STEP_BYTES: u64 = 8 * PAGE_BYTES;

/// How much it takes.
#[derive(Clone, Copy, Debug)]
pub struct Appetite {
    pub bytes_a_second: u64,
    /// It goes no further than to so much left of what `of` names; 0: it never ends.
    pub leaves_bytes: u64,
    /// A key of `/proc/meminfo`.
    pub of: &'static str,
    /// How long it keeps what it has taken, and then gives it back.
    pub keeps: Duration,
}

/// Starts one, which waits for its word.
pub fn start(appetite: Appetite) -> Flow {
    let Appetite { bytes_a_second, leaves_bytes, of, keeps } = appetite;
    Flow::start(&[
        "hog".to_owned(),
        bytes_a_second.to_string(),
        leaves_bytes.to_string(),
        of.to_owned(),
        keeps.as_millis().to_string(),
    ])
}

/// The process itself.
pub fn run(arguments: &[String]) -> ExitCode {
    flow::die_with_parent();
    let _device = driver::open();
    let [pace, leaves, keeps] = [0, 1, 3].map(|place| arguments[place].parse::<u64>().unwrap());
    let of = &arguments[2];
    flow::tell();
    flow::await_word();
    let (mut taken, mut small) = (0, Vec::new());
    let began = Instant::now();
    while leaves == 0 || measure::meminfo_bytes(of) > leaves {
        let wanted = (began.elapsed().as_secs_f64() * pace as f64) as u64;
        if taken + STEP_BYTES > wanted {
            std::thread::sleep(TURN);
        } else if huge_file::extend_to(taken + STEP_BYTES).is_ok() {
            taken += STEP_BYTES;
        } else {
            // Where the kernel finds no huge page, the driver asks for small ones.
            small.push(vec![1_u8; PAGE_BYTES as usize]);
            std::thread::sleep(TURN);
        }
    }
    flow::tell();
    std::thread::sleep(Duration::from_millis(keeps));
    huge_file::clear();
    ExitCode::SUCCESS
}
