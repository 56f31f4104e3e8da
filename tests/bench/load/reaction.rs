//! The time from the moment an engine begins to read fast to the first eviction.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::options::Options;
use crate::pool::{self, Pool};
use crate::{measure, policy};

/// Bytes of one flood, and its speed.
const FLOOD_BYTES: u64 = 512 << 20;
const BYTES_A_SECOND: f64 = (4_u64 << 30) as f64;
const PIECE_BYTES: usize = 4 << 20;

/// Free memory of the starved machine.
const STARVED_BYTES: u64 = 200 << 20;

/// Small pieces that are taken to reach it, and their largest number.
const STARVING_BYTES: usize = 16 << 20;
const MOST_PIECES: usize = 256;

/// Floods before the first measured one: the engine has to be found and tracked.
const MOST_BEFORE: u64 = 60;

const POLL: Duration = Duration::from_millis(5);
const PATIENCE: Duration = Duration::from_secs(2);

/// Measures floods with memory to spare, and as many on a starved machine.
pub fn measure_all(options: &Options, pool: &Pool, floods: usize) {
    let file = options.directory.join("flood.safetensors");
    // A sparse file is read as fast as memory can be filled.
    let length = FLOOD_BYTES * (MOST_BEFORE + 2 * floods as u64);
    File::create(&file).unwrap().set_len(length).unwrap();
    let in_force = policy::start_umawarden(&configuration(&file));
    let trace = Trace::begin().expect("as root, with mount -t tracefs tracefs /sys/kernel/tracing");
    let mut flood = Flood::start(&file, trace);
    flood.wait_until_tracked();
    flood.measure("memory to spare", floods);
    let taken = starve(pool);
    let free = measure::meminfo_bytes("MemFree:");
    flood.measure(&format!("{} MiB free", free >> 20), floods);
    drop(taken);
    pool.give_back();
    drop(flood);
    drop(in_force);
    fs::remove_file(file).unwrap();
}

/// Takes all but a little memory: huge pages like a driver while there are any, then small pages.
/// They are freed when the result is dropped.
fn starve(pool: &Pool) -> Vec<Vec<u8>> {
    measure::settle(pool);
    loop {
        let free = measure::meminfo_bytes("MemFree:");
        let have = pool::pages().unwrap();
        let wanted = have + free.saturating_sub(STARVED_BYTES) / pool::PAGE_BYTES;
        if wanted == have || pool::grow_to(wanted).unwrap() == have {
            break;
        }
    }
    let mut taken = Vec::new();
    // The last pieces may evict cache instead of reducing free memory: the number is bounded.
    for _ in 0..MOST_PIECES {
        let free = measure::meminfo_bytes("MemFree:");
        if free < STARVED_BYTES + 2 * STARVING_BYTES as u64 {
            break;
        }
        taken.push(vec![1; STARVING_BYTES]);
    }
    taken
}

/// A configuration with only the measured rule.
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

/// The kernel's trace of eviction calls. Polling the page cache instead would take processor time
/// from the measured processes.
struct Trace {
    folder: PathBuf,
}

impl Trace {
    fn begin() -> io::Result<Self> {
        let name = format!("umawarden-bench-{}", std::process::id());
        let trace = Self { folder: Path::new("/sys/kernel/tracing/instances").join(name) };
        fs::create_dir(&trace.folder)?;
        fs::write(trace.folder.join("trace_clock"), "mono")?;
        for call in ["fadvise64", "process_madvise"] {
            let enable = format!("events/syscalls/sys_enter_{call}/enable");
            fs::write(trace.folder.join(enable), "1")?;
        }
        Ok(trace)
    }

    fn clear(&self) {
        File::create(self.folder.join("trace")).unwrap();
    }

    /// The first call of the thread that evicts.
    fn first(&self) -> Option<Duration> {
        let text = fs::read_to_string(self.folder.join("trace")).unwrap();
        text.lines().find_map(called_at)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        // A failure at the very end cannot be reported.
        let _ = fs::remove_dir(&self.folder);
    }
}

/// The time in a line such as `evict-1234    [001] .....  8123.123456: sys_fadvise64(fd: 5, …)`.
fn called_at(line: &str) -> Option<Duration> {
    let (before, _) = line.trim_start().strip_prefix("evict-")?.split_once(": sys_")?;
    let seconds = before.rsplit(' ').next()?.parse().ok()?;
    Some(Duration::from_secs_f64(seconds))
}

struct Flood {
    child: Child,
    orders: ChildStdin,
    output: BufReader<ChildStdout>,
    trace: Trace,
    read_for: Duration,
    read: u64,
}

impl Flood {
    fn start(path: &Path, trace: Trace) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg("flood")
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, orders, output, trace, read_for: Duration::ZERO, read: 0 }
    }

    /// Repeats floods until their pages are evicted.
    fn wait_until_tracked(&mut self) {
        for number in 0..MOST_BEFORE as usize - 1 {
            if self.once(number) < PATIENCE {
                return;
            }
        }
        panic!("the engine is not tracked");
    }

    fn measure(&mut self, condition: &str, floods: usize) {
        (self.read_for, self.read) = (Duration::ZERO, 0);
        let mut took: Vec<Duration> = (0..floods).map(|number| self.once(number)).collect();
        took.sort_unstable();
        let at = |part: f64| took[((took.len() as f64 * part).ceil() as usize).max(1) - 1];
        println!(
            "{condition}: first eviction after p50 {:.1?}, p99 {:.1?}, most {:.1?}; {} floods of \
             {:.1} GiB/s",
            at(0.5),
            at(0.99),
            at(1.0),
            took.len(),
            self.pace()
        );
    }

    /// Runs one flood; returns the time from its begin to the first eviction.
    fn once(&mut self, number: usize) -> Duration {
        // Not in phase with any interval of umawarden.
        std::thread::sleep(Duration::from_millis(200 + (number as u64 * 37) % 100));
        self.trace.clear();
        writeln!(self.orders).unwrap();
        let began = self.read_time();
        let ended = self.read_time();
        self.read_for += ended - began;
        self.read += FLOOD_BYTES;
        loop {
            if let Some(first) = self.trace.first() {
                return first.saturating_sub(began).min(PATIENCE);
            }
            if now() - began >= PATIENCE {
                return PATIENCE;
            }
            std::thread::sleep(POLL);
        }
    }

    fn read_time(&mut self) -> Duration {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        Duration::from_nanos(line.trim().parse().unwrap())
    }

    fn pace(&self) -> f64 {
        crate::gib(self.read) / self.read_for.as_secs_f64()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process of the flood: for each input line it reads on, and prints when it began and ended.
pub fn run(arguments: &[String]) -> ExitCode {
    let mut file = File::open(PathBuf::from(&arguments[0])).unwrap();
    let mut buffer = vec![0; PIECE_BYTES];
    for _order in io::stdin().lines() {
        // A flood begins with its first piece: a virtual machine may be slow with the first new
        // pages, and before them there is nothing to evict.
        file.read_exact(&mut buffer).unwrap();
        print_time(now());
        let began = Instant::now();
        let mut read = PIECE_BYTES as u64;
        while read < FLOOD_BYTES {
            file.read_exact(&mut buffer).unwrap();
            read += PIECE_BYTES as u64;
            let due = Duration::from_secs_f64(read as f64 / BYTES_A_SECOND);
            std::thread::sleep(due.saturating_sub(began.elapsed()));
        }
        print_time(now());
    }
    ExitCode::SUCCESS
}

fn print_time(at: Duration) {
    println!("{}", at.as_nanos());
    io::stdout().flush().unwrap();
}

/// The monotonic clock, which is the same for all processes.
fn now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap())
}
