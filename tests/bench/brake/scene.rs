//! What happens, and what came of it.

use std::fmt;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::content;
use crate::flow::{Ended, Flow};
use crate::hog::{self, Appetite};
use crate::innocent;
use crate::job::{self, Way};
use crate::measure::{Watch, meminfo_bytes};
use crate::options::Options;
use crate::policy::{self, InForce, Policy};
use crate::pool::{self, PAGE_BYTES};
use crate::served::{self, Served};
use crate::watchdog::{LAST_BYTES, Watchdog};

/// Where the hog is killed if nobody else is there to do it.
const KILLED_BELOW_BYTES: u64 = 256 << 20;

/// Longer than any scene.
const LONGEST: Duration = Duration::from_secs(60);

/// Who takes what it can get does so for no longer.
const JOB_TAKES: Duration = Duration::from_secs(15);

/// How much is left of free memory when CUDA graphs are captured.
const DIPS_TO: u64 = 4 << 30;

/// How long what has been taken stays away in a harmless scene.
const DIP: Duration = Duration::from_millis(500);
const LINES_COME_FOR: Duration = Duration::from_secs(3);
const SERVED_FOR: Duration = Duration::from_secs(5);

/// How much there is to take: what a virtual machine has not touched of late comes at 0.4 GiB a
/// second, and a job's pipes hold 1 MiB each, of which it can have as many as files may be open.
const ROOM_BYTES: u64 = 8 << 30;

/// Lines of the driver's in one scene.
const LINES: u64 = 1_000;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// The hog takes all memory.
    Collapse,
    /// It leaves 4 GiB, and gives everything back: CUDA graphs are captured.
    Dip,
    /// A model is served through its mapping, with 2 GiB available and not enough to keep it.
    Served,
    /// The driver logs a thousand failures while 5 GiB are free.
    Lines,
    /// A job that is no engine takes all memory, beside an engine that loads and one that serves.
    Job(Way),
}

impl Scene {
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

    /// Nothing is to be learnt of who does nothing where nothing is to be done.
    pub fn policies(self, asked: &[Policy]) -> impl Iterator<Item = Policy> {
        asked
            .iter()
            .copied()
            .filter(move |policy| self == Self::Collapse || *policy != Policy::None)
    }

    fn expects(self, stopped: Option<Stopped>) -> bool {
        match self {
            Self::Collapse => stopped == Some(Stopped::Hog),
            // It may find no huge page any more long before memory is at its end.
            Self::Job(_) => matches!(stopped, None | Some(Stopped::ByWatchdog)),
            _ => stopped.is_none(),
        }
    }

    fn appetite(self, options: &Options) -> Appetite {
        let all =
            Appetite { bytes_a_second: options.rate, leaves_bytes: 0, of: "MemFree:", keeps: DIP };
        match self {
            Self::Collapse | Self::Job(_) => all,
            Self::Dip => Appetite { leaves_bytes: DIPS_TO, ..all },
            Self::Lines => Appetite { leaves_bytes: 5 << 30, keeps: LINES_COME_FOR, ..all },
            Self::Served => Appetite {
                leaves_bytes: 2 << 30,
                of: "MemAvailable:",
                keeps: Duration::from_secs(3_600),
                ..all
            },
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Who was stopped.
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

/// What came of one run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub stopped: Option<Stopped>,
    pub lowest_free_bytes: u64,
    /// From the begin of the scene to the first death, or to its end.
    pub took: Duration,
}

/// Who is there.
struct Cast {
    hog: Flow,
    innocent: Flow,
    served: Option<Served>,
    bystanders: Vec<Flow>,
}

/// Plays a scene once.
pub fn play(scene: Scene, policy: Policy, options: &Options, watchdog: &Watchdog) -> Run {
    watchdog.settle();
    let _kept_away = leave(ROOM_BYTES + options.innocent_bytes);
    let mut cast = Cast {
        innocent: innocent::start(options.innocent_bytes),
        served: (scene == Scene::Served).then(|| served(options)),
        hog: match scene {
            Scene::Job(way) => job::start(way, options.rate),
            _ => hog::start(scene.appetite(options)),
        },
        bystanders: match scene {
            Scene::Job(_) => ["loads", "serves"].map(job::bystander).into(),
            _ => Vec::new(),
        },
    };
    for bystander in &mut cast.bystanders {
        bystander.go();
    }
    let floor = if policy == Policy::None { KILLED_BELOW_BYTES } else { LAST_BYTES };
    let pid = cast.hog.pid();
    if scene == Scene::Served {
        // It is like that already when anybody looks.
        watchdog.guard(pid, LAST_BYTES / 2);
        cast.hog.go();
        cast.hog.arrived();
    }
    if scene != Scene::Served {
        touch_free();
    }
    let mut in_force = policy::start(policy, options, cast.served.as_ref(), scene);
    let watch = Watch::start();
    let run = match scene {
        Scene::Served => {
            let stopped = cast.watch(Instant::now(), SERVED_FOR);
            (stopped, SERVED_FOR)
        }
        Scene::Collapse | Scene::Dip | Scene::Lines | Scene::Job(_) => {
            watchdog.guard(pid, floor);
            let began = cast.hog.go();
            if scene == Scene::Lines {
                log_failures(&mut cast, &mut in_force, began)
            } else {
                let longest = if matches!(scene, Scene::Job(_)) { JOB_TAKES } else { LONGEST };
                let stopped = cast.watch(began, longest);
                (stopped, began.elapsed())
            }
        }
    };
    let (stopped, took) = run;
    if scene == Scene::Lines && policy == Policy::Umawarden && stopped.is_none() {
        assert!(in_force.counts(LINES), "the driver's lines are not read");
    }
    if stopped.is_none()
        && let Some(served) = cast.served.take()
    {
        assert!(served.end() > 0, "all of the model stays in memory: that is not the scene");
    }
    let bitten = watchdog.rest();
    watchdog.give_back();
    let lowest_free_bytes = watch.end().lowest_free_bytes;
    assert!(
        scene != Scene::Dip || stopped.is_some() || lowest_free_bytes <= DIPS_TO,
        "it did not dip"
    );
    let stopped = stopped.map(|who| if bitten { Stopped::ByWatchdog } else { who });
    if !scene.expects(stopped) {
        // The journal is written within this time.
        std::thread::sleep(Duration::from_millis(500));
        eprint!("{}", in_force.decisions());
    }
    Run { stopped, lowest_free_bytes, took }
}

/// Takes all memory but so much for huge pages that nobody touches, until the answer is dropped and
/// the pool is given back.
fn leave(bytes: u64) -> MmapMut {
    let pages = meminfo_bytes("MemAvailable:").saturating_sub(bytes) / PAGE_BYTES;
    let before = pool::pages().unwrap();
    let pages = pool::grow_to(before + pages).unwrap() - before;
    let length = (pages.max(1) * PAGE_BYTES) as usize;
    MmapOptions::new().len(length).huge(Some(21)).map_anon().unwrap()
}

/// Touches all free memory but for a last GiB: what a virtual machine has not touched of late its
/// host takes away (free page reporting), and each page is slow to come back.
fn touch_free() {
    let free = meminfo_bytes("MemFree:").saturating_sub(1 << 30);
    let all = MmapOptions::new().len(free as usize).map_anon().unwrap();
    // Where the kernel is older than 5.14, the scene is slower.
    let _ = all.advise(Advice::PopulateWrite);
}

/// Has the driver fail while memory is short.
fn log_failures(
    cast: &mut Cast,
    in_force: &mut InForce,
    began: Instant,
) -> (Option<Stopped>, Duration) {
    cast.hog.arrived();
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
    /// Waits until somebody is stopped or the hog has done what it wanted, but no longer than that.
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
