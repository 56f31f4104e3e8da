//! How long it takes from the moment that an engine begins to read fast to the first eviction.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use umawarden::sys::page_cache::cachestat;

use crate::options::Options;
use crate::policy;

/// What one flood reads, and how fast.
const FLOOD_BYTES: u64 = 512 << 20;
const BYTES_A_SECOND: f64 = (4_u64 << 30) as f64;
const PIECE_BYTES: usize = 4 << 20;

/// What was read before a flood and is still cached lies within so much before it.
const LEFT_BYTES: u64 = 512 << 20;

/// Less than this is no eviction.
const LEAST_BYTES: u64 = 4 << 20;

/// Floods before the first that counts: the engine is to be found and followed.
const MOST_BEFORE: u64 = 60;

const POLL: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures so many floods, with memory to spare.
pub fn measure_all(options: &Options, floods: usize) {
    let file = options.directory.join("flood.safetensors");
    // A hole: it is read as fast as memory can be filled.
    let length = FLOOD_BYTES * (MOST_BEFORE + floods as u64);
    File::create(&file).unwrap().set_len(length).unwrap();
    let in_force = policy::start_umawarden(&configuration(&file));
    let mut flood = Flood::start(&file);
    flood.is_followed();
    let mut took: Vec<Duration> = (0..floods).map(|number| flood.once(number)).collect();
    took.sort_unstable();
    let at = |part: f64| took[((took.len() as f64 * part).ceil() as usize).max(1) - 1];
    println!(
        "first eviction after p50 {:.1?}, p99 {:.1?}, most {:.1?}; {} floods of {:.1} GiB/s",
        at(0.5),
        at(0.99),
        at(1.0),
        took.len(),
        flood.pace()
    );
    drop(flood);
    in_force.end();
    fs::remove_file(file).unwrap();
}

/// Only the rule that is measured.
fn configuration(file: &Path) -> String {
    format!(
        "mode: enforce
rule_files: [\"{}/rules/engines.yaml\"]
engines:
- name: flood
  match: {{cmdline: \"*load* flood *\"}}
  model_files: [\"{}\"]
",
        env!("CARGO_MANIFEST_DIR"),
        file.canonicalize().unwrap().display()
    )
}

struct Flood {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    file: File,
    position: u64,
    read_for: Duration,
    read: u64,
}

impl Flood {
    fn start(path: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("flood")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let file = File::open(path).unwrap();
        let (position, read_for, read) = (0, Duration::ZERO, 0);
        Self { child, orders, answers, file, position, read_for, read }
    }

    /// Floods until what was read is put out.
    fn is_followed(&mut self) {
        for number in 0..MOST_BEFORE as usize - 1 {
            if self.once(number) < PATIENCE {
                self.once(number);
                (self.read_for, self.read) = (Duration::ZERO, 0);
                return;
            }
        }
        panic!("the engine is not followed");
    }

    /// One flood; from its begin to the first eviction.
    fn once(&mut self, number: usize) -> Duration {
        // Not in step with anything.
        std::thread::sleep(Duration::from_millis(200 + (number as u64 * 37) % 100));
        let before = self.left();
        writeln!(self.orders).unwrap();
        let began = self.told();
        while self.left() + LEAST_BYTES > before && now() - began < PATIENCE {
            std::thread::sleep(POLL);
        }
        let took = (now() - began).min(PATIENCE);
        let ended = self.told();
        self.read_for += ended - began;
        self.read += FLOOD_BYTES;
        self.position += FLOOD_BYTES;
        took
    }

    /// What is cached of what earlier floods have read last.
    fn left(&self) -> u64 {
        let length = LEFT_BYTES.min(self.position);
        if length == 0 {
            return 0;
        }
        let pages = cachestat(self.file.as_fd(), self.position - length, length).unwrap();
        pages.cached * procfs::page_size()
    }

    fn told(&mut self) -> Duration {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        Duration::from_nanos(line.trim().parse().unwrap())
    }

    fn pace(&self) -> f64 {
        crate::gib(self.read) / self.read_for.as_secs_f64()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _already_dead = self.child.kill();
        let _already_reaped = self.child.wait();
    }
}

/// The process itself: for each line it reads on, and tells when it began and ended.
pub fn run(arguments: &[String]) -> ExitCode {
    let mut file = File::open(PathBuf::from(&arguments[0])).unwrap();
    let mut buffer = vec![0; PIECE_BYTES];
    for _order in io::stdin().lines() {
        let began = Instant::now();
        tell(now());
        let mut read = 0;
        while read < FLOOD_BYTES {
            file.read_exact(&mut buffer).unwrap();
            read += PIECE_BYTES as u64;
            let due = Duration::from_secs_f64(read as f64 / BYTES_A_SECOND);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        tell(now());
    }
    ExitCode::SUCCESS
}

fn tell(at: Duration) {
    println!("{}", at.as_nanos());
    io::stdout().flush().unwrap();
}

/// The same for all processes.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}
