//! Scenarios and their results.

use std::fmt;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::content;
use crate::hog::{self, Demand};
use crate::innocent;
use crate::job::{self, Way};
use crate::measure::{Watch, meminfo_bytes};
use crate::options::Options;
use crate::policy::{self, InForce, Policy};
use crate::pool::{self, PAGE_BYTES};
use crate::served::{self, Served};
use crate::watchdog::{LAST_BYTES, Watchdog};
use crate::worker::{Ended, Worker};

/// Free memory at which the hog is killed if no policy runs.
const KILLED_BELOW_BYTES: u64 = 256 << 20;

/// Longer than any scenario.
const LONGEST: Duration = Duration::from_secs(60);

/// Longest time of a job that takes memory without end.
const JOB_TAKES: Duration = Duration::from_secs(15);

/// Free memory at the bottom of a dip, as when CUDA graphs are captured.
const DIPS_TO: u64 = 4 << 30;

/// How long a dip lasts.
const DIP: Duration = Duration::from_millis(500);
const LINES_COME_FOR: Duration = Duration::from_secs(3);
const SERVED_FOR: Duration = Duration::from_secs(5);

/// Memory left to take. A virtual machine supplies untouched memory at only 0.4 GiB/s, and a job
/// can have only as many pipes of 1 MiB as files may be open.
const AVAILABLE_BYTES: u64 = 8 << 30;

/// Lines of the driver in the scenario `lines`.
const LINES: u64 = 1_000;

/// A situation that a policy has to handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// The hog takes all memory.
    Collapse,
    /// The hog leaves 4 GiB free and gives everything back, as when CUDA graphs are captured.
    Dip,
    /// A model is served through its mapping, with 2 GiB available and not enough to keep it.
    Served,
    /// The driver logs a thousand failures while 5 GiB are free.
    Lines,
    /// A job that is no engine takes all memory, while one engine loads and another one serves.
    Job(Way),
}

impl Scenario {
    pub const ALL: [Self; 7] = [
        Self::Collapse,
        Self::Dip,
        Self::Served,
        Self::Lines,
        Self::Job(Way::HugePages),
        Self::Job(Way::Pipes),
        Self::Job(Way::Sockets),
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Collapse => "collapse",
            Self::Dip => "dip",
            Self::Served => "served",
            Self::Lines => "lines",
            Self::Job(Way::HugePages) => "job-huge-pages",
            Self::Job(Way::Pipes) => "job-pipes",
            Self::Job(Way::Sockets) => "job-sockets",
        }
    }

    /// The policies worth a run: `none` only where a process is to be stopped.
    pub fn policies(self, chosen: &[Policy]) -> impl Iterator<Item = Policy> {
        chosen
            .iter()
            .copied()
            .filter(move |policy| self == Self::Collapse || *policy != Policy::None)
    }

    fn expects(self, stopped: Option<Stopped>) -> bool {
        match self {
            Self::Collapse => stopped == Some(Stopped::Hog),
            // A job may run out of huge pages long before memory ends.
            Self::Job(_) => matches!(stopped, None | Some(Stopped::ByWatchdog)),
            _ => stopped.is_none(),
        }
    }

    fn demand(self, options: &Options) -> Demand {
        let all =
            Demand { bytes_a_second: options.rate, leaves_bytes: 0, of: "MemFree:", keeps: DIP };
        match self {
            Self::Collapse | Self::Job(_) => all,
            Self::Dip => Demand { leaves_bytes: DIPS_TO, ..all },
            Self::Lines => Demand { leaves_bytes: 5 << 30, keeps: LINES_COME_FOR, ..all },
            Self::Served => Demand {
                leaves_bytes: 2 << 30,
                of: "MemAvailable:",
                keeps: Duration::from_secs(3_600),
                ..all
            },
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The process that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    Hog,
    Innocent,
    Served,
    /// An engine that took nothing.
    Bystander,
    /// The hog or the job, by this program.
    ByWatchdog,
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub stopped: Option<Stopped>,
    pub lowest_free_bytes: u64,
    /// From the begin of the scenario to the first death, or to its end.
    pub took: Duration,
}

/// The processes of a scenario.
struct Cast {
    hog: Worker,
    innocent: Worker,
    served: Option<Served>,
    bystanders: Vec<Worker>,
}

/// Runs a scenario once.
pub fn play(scenario: Scenario, policy: Policy, options: &Options, watchdog: &Watchdog) -> Run {
    watchdog.settle();
    let _pages = leave(AVAILABLE_BYTES + options.innocent_bytes);
    let mut cast = Cast {
        innocent: innocent::start(options.innocent_bytes),
        served: (scenario == Scenario::Served).then(|| served(options)),
        hog: match scenario {
            Scenario::Job(way) => job::start(way, options.rate),
            _ => hog::start(scenario.demand(options)),
        },
        bystanders: match scenario {
            Scenario::Job(_) => ["loads", "serves"].map(job::bystander).into(),
            _ => Vec::new(),
        },
    };
    for bystander in &mut cast.bystanders {
        bystander.go();
    }
    let floor = if policy == Policy::None { KILLED_BELOW_BYTES } else { LAST_BYTES };
    let pid = cast.hog.pid();
    if scenario == Scenario::Served {
        // Memory is short before the policy starts.
        watchdog.guard(pid, LAST_BYTES / 2);
        cast.hog.go();
        cast.hog.wait_for_signal();
    }
    if scenario != Scenario::Served {
        touch_free();
    }
    let mut in_force = policy::start(policy, options, cast.served.as_ref(), scenario);
    let watch = Watch::start();
    let run = match scenario {
        Scenario::Served => {
            let stopped = cast.watch(Instant::now(), SERVED_FOR);
            (stopped, SERVED_FOR)
        }
        Scenario::Collapse | Scenario::Dip | Scenario::Lines | Scenario::Job(_) => {
            watchdog.guard(pid, floor);
            let began = cast.hog.go();
            if scenario == Scenario::Lines {
                log_failures(&mut cast, &mut in_force, began)
            } else {
                let longest =
                    if matches!(scenario, Scenario::Job(_)) { JOB_TAKES } else { LONGEST };
                let stopped = cast.watch(began, longest);
                (stopped, began.elapsed())
            }
        }
    };
    let (stopped, took) = run;
    if scenario == Scenario::Lines && policy == Policy::Umawarden && stopped.is_none() {
        assert!(in_force.counts(LINES), "the driver's lines are not read");
    }
    if stopped.is_none()
        && let Some(served) = cast.served.take()
    {
        assert!(served.end() > 0, "all of the model stays in memory: the scenario did not happen");
    }
    let by_watchdog = watchdog.rest();
    watchdog.give_back();
    let lowest_free_bytes = watch.end().lowest_free_bytes;
    assert!(
        scenario != Scenario::Dip || stopped.is_some() || lowest_free_bytes <= DIPS_TO,
        "free memory did not dip"
    );
    let stopped = stopped.map(|process| if by_watchdog { Stopped::ByWatchdog } else { process });
    if !scenario.expects(stopped) {
        // The journal is written within this time.
        std::thread::sleep(Duration::from_millis(500));
        eprint!("{}", in_force.decisions());
    }
    Run { stopped, lowest_free_bytes, took }
}

/// Takes all but `bytes` of memory as untouched huge pages, until the result is dropped and the
/// pool is given back.
fn leave(bytes: u64) -> MmapMut {
    let pages = meminfo_bytes("MemAvailable:").saturating_sub(bytes) / PAGE_BYTES;
    let before = pool::pages().unwrap();
    let pages = pool::grow_to(before + pages).unwrap() - before;
    let length = (pages.max(1) * PAGE_BYTES) as usize;
    MmapOptions::new().len(length).huge(Some(21)).map_anon().unwrap()
}

/// Touches all free memory but the last GiB. The host of a virtual machine reclaims untouched
/// memory (free page reporting) and returns each page slowly.
fn touch_free() {
    let free = meminfo_bytes("MemFree:").saturating_sub(1 << 30);
    let all = MmapOptions::new().len(free as usize).map_anon().unwrap();
    // Not supported before Linux 5.14: the scenario is slower then.
    let _ = all.advise(Advice::PopulateWrite);
}

/// Logs failures of the driver while memory is short.
fn log_failures(
    cast: &mut Cast,
    in_force: &mut InForce,
    began: Instant,
) -> (Option<Stopped>, Duration) {
    cast.hog.wait_for_signal();
    for _ in 0..LINES / 10 {
        if let Some(log) = &mut in_force.kernel_log {
            log.fail(10);
        }
        std::thread::sleep(LINES_COME_FOR / 2 / 100);
    }
    (cast.watch(began, LONGEST), began.elapsed())
}

fn served(options: &Options) -> Served {
    let file = content::file(&options.directory, "served", options.served_bytes).unwrap();
    served::start(&file)
}

impl Cast {
    /// Waits until a process is stopped or the hog has ended, but no longer than `most`.
    fn watch(&mut self, began: Instant, most: Duration) -> Option<Stopped> {
        while began.elapsed() < most {
            if self.innocent.ended().is_some() {
                return Some(Stopped::Innocent);
            }
            if self.served.as_mut().is_some_and(|served| served.has_ended()) {
                return Some(Stopped::Served);
            }
            if self.bystanders.iter_mut().any(|engine| engine.ended().is_some()) {
                return Some(Stopped::Bystander);
            }
            match self.hog.ended() {
                Some(Ended::Stopped) => return Some(Stopped::Hog),
                Some(Ended::Done) => return None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        None
    }
}
