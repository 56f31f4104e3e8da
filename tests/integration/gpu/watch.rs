//! The thread that has the driver asked, through all that may become of who asks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umawarden::daemon::clock::uptime;
use umawarden::model::{GpuDriver, GpuPicture, GpuReadings, Observation, Reading};
use umawarden::sources::gpu::{GpuSetup, GpuWatch, Patience};

use super::{Library, lives};
use crate::daemon::binary;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Patience of a test: what takes minutes takes a second.
const PATIENCE: Patience = Patience {
    first_answer: Duration::from_secs(5),
    answer: Duration::from_millis(400),
    outside_kernel: Duration::from_millis(800),
    in_kernel: Duration::from_millis(1600),
    most_abandoned: 2,
};

/// What was told last.
struct Followed {
    watch: GpuWatch,
    told: Option<GpuReadings>,
    picture: Option<Arc<GpuPicture>>,
    /// Responsive, age, restarts, abandoned, hanging.
    values: Vec<Reading<f64>>,
    error: Option<Arc<str>>,
    /// Everybody who was ever said to ask.
    askers: Vec<u32>,
}

impl Followed {
    fn start(library: PathBuf, program: &Path) -> Self {
        let watch = GpuWatch::start(GpuSetup {
            program: program.to_owned(),
            library: Some(library),
            interval: Some(100 * MILLISECOND),
            patience: PATIENCE,
            procfs: "/proc".into(),
            clock: uptime,
        });
        Self {
            watch: watch.unwrap(),
            told: None,
            picture: None,
            values: Vec::new(),
            error: None,
            askers: Vec::new(),
        }
    }

    fn take(&mut self) {
        let mut seen = Vec::new();
        self.watch.take(uptime(), &mut seen);
        for observation in seen {
            match observation {
                Observation::Gpu(told) => {
                    self.picture = told.picture.clone().or(self.picture.take());
                    for asker in &told.askers {
                        if !self.askers.contains(asker) {
                            self.askers.push(*asker);
                        }
                    }
                    self.told = Some(*told);
                }
                Observation::Readings(readings) => {
                    (self.values, self.error) = (readings.values, readings.error);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            let known = (&self.told, &self.values, &self.error);
            assert!(Instant::now() < deadline, "not {what} in 20 s: {known:?}");
            std::thread::sleep(5 * MILLISECOND);
            self.take();
        }
    }

    fn is_responsive(&self) -> Option<bool> {
        self.told.as_ref()?.driver.is_responsive()
    }

    fn value(&self, place: usize) -> f64 {
        self.values.get(place).and_then(|value| value.value()).unwrap_or(-1.0)
    }

    fn process_state(&self) -> Option<char> {
        match self.told.as_ref()?.driver {
            GpuDriver::Silent { process_state, .. } => process_state,
            _ => None,
        }
    }

    fn is_unknown(&self, part: &str) -> bool {
        let told = self.told.as_ref().map(|told| &told.driver);
        matches!(told, Some(GpuDriver::Unknown { why }) if why.contains(part))
    }

    fn living(&self) -> usize {
        self.askers.iter().filter(|asker| lives(**asker)).count()
    }
}

fn gib_used(followed: &Followed) -> u64 {
    let picture = followed.picture.as_ref().unwrap();
    picture.used_by(4242).value().unwrap_or_default() >> 30
}

const ANSWERS: &str = "machine gb10\nprocess 4242 1073741824";

#[test]
fn answers_follow_each_other_and_the_process_ends_with_the_watch() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("answered", |followed| followed.picture.is_some());
    assert_eq!((followed.is_responsive(), gib_used(&followed)), (Some(true), 1));
    library.say("machine gb10\nprocess 4242 2147483648");
    followed.until("answered anew", |followed| gib_used(followed) == 2);
    assert!((followed.value(0) - 1.0).abs() < 0.1 && followed.error.is_none());
    assert_eq!((followed.value(2), followed.askers.len()), (0.0, 1), "always the same one");
    let asker = followed.askers[0];
    drop(followed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while lives(asker) {
        assert!(Instant::now() < deadline, "it outlives who asked");
        std::thread::sleep(5 * MILLISECOND);
    }
}

#[test]
fn a_late_answer_says_that_the_driver_is_back_and_is_no_picture() {
    let Some(library) = Library::new(ANSWERS) else { return };
    // Asleep in the kernel, so that nobody kills it.
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("answered", |followed| followed.picture.is_some());
    let asker = followed.askers[0];
    library.say("machine gb10\nprocess 4242 3221225472\nstuck nvmlDeviceGetCount_v2");
    followed.until("silent", |followed| followed.process_state() == Some('D'));
    assert_eq!((followed.value(0), followed.is_responsive()), (0.0, Some(false)));
    let error = followed.error.clone().unwrap();
    assert!(error.contains("does not respond") && error.contains("hangs in the kernel"), "{error}");
    followed.picture = None;
    library.say("machine gb10\nprocess 4242 5368709120");
    followed.until("responsive", |followed| followed.is_responsive() == Some(true));
    followed.until("answered", |followed| followed.picture.is_some());
    assert_eq!((gib_used(&followed), &*followed.askers), (5, &[asker][..]));
    assert_eq!((followed.value(2), followed.value(3)), (0.0, 0.0), "neither ended nor given up");
}

#[test]
fn what_hangs_outside_of_the_kernel_is_killed_and_tried_again_ever_more_seldom() {
    let script = format!("{ANSWERS}\nhang nvmlDeviceGetUUID");
    let Some(library) = Library::new(&script) else { return };
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("silent", |followed| followed.is_responsive() == Some(false));
    followed.until("started again", |followed| followed.value(2) >= 1.0);
    assert_eq!(followed.is_responsive(), Some(false), "it has not answered since");
    assert_eq!(followed.value(3), 0.0, "nobody is given up who could be killed");
    assert!(followed.living() <= 1, "{:?}", followed.askers);
    library.say(ANSWERS);
    followed.until("answered", |followed| followed.is_responsive() == Some(true));
    assert_eq!(gib_used(&followed), 1);
}

#[test]
fn one_that_ends_is_started_again_and_its_end_is_told() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("answered", |followed| followed.picture.is_some());
    library.say("machine gb10\nnoise\ncrash nvmlDeviceGetName");
    followed.until("ended", |followed| followed.is_unknown("signal: 6"));
    let error = followed.error.clone().unwrap();
    assert!(error.contains("noise of nvmlDeviceGetName"), "its last words: {error}");
    assert_eq!(followed.values[0], Reading::Failed, "nobody knows");
    library.say(ANSWERS);
    followed.until("answered", |followed| followed.is_responsive() == Some(true));
    assert!(followed.value(2) >= 1.0 && followed.error.is_none());
}

#[test]
fn without_a_driver_or_a_gpu_or_its_library_nothing_runs() {
    let Some(library) = Library::new("error nvmlInit_v2 9") else { return };
    let is_absent = |followed: &Followed| {
        let told = followed.told.as_ref().map(|told| &told.driver);
        matches!(told, Some(GpuDriver::Absent { .. }))
    };
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("absent", is_absent);
    assert!(followed.living() == 0 && followed.values[0] == Reading::Unsupported);
    library.say("machine none");
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("absent", is_absent);
    assert!(followed.living() == 0 && followed.error.unwrap().contains("reports no GPU"));
    let mut followed = Followed::start(library.path().with_extension("gone"), &binary());
    followed.until("unknown", |followed| followed.is_unknown("No such file"));
    assert!(followed.living() == 0 && followed.is_unknown("gpu.library"));
}

#[test]
fn a_library_that_vanishes_is_missed_only_by_the_next_one() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut followed = Followed::start(library.path(), &binary());
    followed.until("answered", |followed| followed.picture.is_some());
    fs::remove_file(library.path()).unwrap();
    library.say("machine gb10\nprocess 4242 2147483648");
    followed.until("answered anew", |followed| gib_used(followed) == 2);
    library.say("crash nvmlDeviceGetCount_v2");
    followed.until("missed", |followed| followed.is_unknown("No such file"));
}

/// A program that is not ours, and says what a test wants.
fn pretender(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("pretender");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).unwrap();
    path
}

#[test]
fn whatever_else_comes_out_of_the_pipe_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (script, part) in [
        ("read q; echo nonsense; sleep 60", "it sent no answer"),
        ("read q; echo '{\"version\":9}'; sleep 60", "version 9"),
        (
            "read q; echo '{\"version\":1,\"number\":77,\"result\":{\"unavailable\":{\"kind\":\"driver\",\
             \"why\":\"\"}}}'; sleep 60",
            "a response without a request",
        ),
        ("read q; yes | tr -d '\\n'; sleep 60", "exceeds the size limit"),
        ("echo out of reach >&2; exit 3", "exit status: 3; its stderr: out of reach"),
        ("exec <&- >&-; sleep 60", ""),
    ] {
        let program = pretender(folder.path(), script);
        let mut followed = Followed::start("/nowhere".into(), &program);
        followed.until(part, |followed| followed.is_unknown(part));
        assert_eq!(followed.values[0], Reading::Failed);
    }
    let mut followed = Followed::start("/nowhere".into(), &folder.path().join("missing"));
    followed.until("missing", |followed| followed.is_unknown("cannot start"));
}

/// Processes that neither run nor die, as those do that wait in the driver.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/freezer");
        let group = root.join(format!("umawarden-gpu-{}", std::process::id()));
        let is_made = root.join("cgroup.procs").exists() && fs::create_dir(&group).is_ok();
        if !is_made {
            eprintln!("SKIPPED: there is no freezer of control groups (version 1, as root)");
        }
        is_made.then_some(Self(group))
    }

    fn freeze(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
        fs::write(self.0.join("freezer.state"), "FROZEN").unwrap();
    }

    fn thaw(&self) {
        fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.thaw();
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(10 * MILLISECOND);
        }
    }
}

#[test]
fn what_cannot_die_is_given_up_and_no_more_are_started_than_may_hang() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let Some(freezer) = Freezer::new() else { return };
    let mut followed = Followed::start(library.path(), &binary());
    // Whoever asks is frozen: two are given up, and the third is waited for.
    for given_up in [0.0, 1.0, 2.0] {
        followed.until("another one", |followed| {
            let living = followed.living();
            followed.value(3) == given_up
                && followed.askers.len() == living
                && living > 0
                && living == given_up as usize + 1
        });
        let newest = *followed.askers.last().unwrap();
        freezer.freeze(newest);
        followed.until("silent", |followed| followed.process_state() == Some('D'));
        if given_up < 2.0 {
            followed.until("given up", |followed| followed.value(3) == given_up + 1.0);
        }
    }
    let until = Instant::now() + 3 * PATIENCE.in_kernel;
    while Instant::now() < until {
        followed.take();
        std::thread::sleep(5 * MILLISECOND);
    }
    assert_eq!((followed.living(), followed.askers.len()), (3, 3), "no more, and none could die");
    assert_eq!((followed.value(2), followed.value(3), followed.value(4)), (0.0, 2.0, 2.0));
    assert_eq!(followed.is_responsive(), Some(false));
    freezer.thaw();
    // Those that were given up die as they come back, the last one answers.
    followed.until("back", |followed| {
        followed.is_responsive() == Some(true) && followed.value(4) == 0.0
    });
    assert_eq!((followed.living(), gib_used(&followed)), (1, 1));
}
