//! The thread that queries the driver through a child process, with children that fail in every
//! way.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use umawarden::daemon::clock::uptime;
use umawarden::model::{GpuDriver, GpuPicture, GpuReadings, Observation, Reading};
use umawarden::sources::gpu::{GpuSetup, GpuWatch, Patience};

use super::{Library, is_alive};
use crate::daemon::binary;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Time limits for tests: a second instead of minutes.
const PATIENCE: Patience = Patience {
    first_answer: Duration::from_secs(5),
    answer: Duration::from_millis(400),
    outside_kernel: Duration::from_millis(800),
    in_kernel: Duration::from_millis(1600),
    most_abandoned: 2,
};

/// A watch, and its last observations.
struct Observed {
    watch: GpuWatch,
    readings: Option<GpuReadings>,
    picture: Option<Arc<GpuPicture>>,
    /// Responsive, age, restarts, abandoned, hanging.
    values: Vec<Reading<f64>>,
    error: Option<Arc<str>>,
    /// All children that were ever reported.
    children: Vec<u32>,
}

impl Observed {
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
            readings: None,
            picture: None,
            values: Vec::new(),
            error: None,
            children: Vec::new(),
        }
    }

    fn take(&mut self) {
        let mut seen = Vec::new();
        self.watch.take(uptime(), &mut seen);
        for observation in seen {
            match observation {
                Observation::Gpu(readings) => {
                    self.picture = readings.picture.clone().or(self.picture.take());
                    for child in &readings.askers {
                        if !self.children.contains(child) {
                            self.children.push(*child);
                        }
                    }
                    self.readings = Some(*readings);
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
            let known = (&self.readings, &self.values, &self.error);
            assert!(Instant::now() < deadline, "not {what} in 20 s: {known:?}");
            std::thread::sleep(5 * MILLISECOND);
            self.take();
        }
    }

    fn is_responsive(&self) -> Option<bool> {
        self.readings.as_ref()?.driver.is_responsive()
    }

    fn value(&self, index: usize) -> f64 {
        self.values.get(index).and_then(|value| value.value()).unwrap_or(-1.0)
    }

    fn process_state(&self) -> Option<char> {
        match self.readings.as_ref()?.driver {
            GpuDriver::Silent { process_state, .. } => process_state,
            _ => None,
        }
    }

    fn is_unknown(&self, part: &str) -> bool {
        let driver = self.readings.as_ref().map(|readings| &readings.driver);
        matches!(driver, Some(GpuDriver::Unknown { why }) if why.contains(part))
    }

    fn alive(&self) -> usize {
        self.children.iter().filter(|child| is_alive(**child)).count()
    }
}

fn gib_used(observed: &Observed) -> u64 {
    let picture = observed.picture.as_ref().unwrap();
    picture.used_by(4242).value().unwrap_or_default() >> 30
}

const ANSWERS: &str = "machine gb10\nprocess 4242 1073741824";

#[test]
fn the_child_responds_repeatedly_and_ends_with_the_watch() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("first picture", |observed| observed.picture.is_some());
    assert_eq!((observed.is_responsive(), gib_used(&observed)), (Some(true), 1));
    library.set_script("machine gb10\nprocess 4242 2147483648");
    observed.until("second picture", |observed| gib_used(observed) == 2);
    assert!((observed.value(0) - 1.0).abs() < 0.1 && observed.error.is_none());
    assert_eq!((observed.value(2), observed.children.len()), (0.0, 1), "always the same child");
    let child = observed.children[0];
    drop(observed);
    let deadline = Instant::now() + Duration::from_secs(10);
    while is_alive(child) {
        assert!(Instant::now() < deadline, "the child outlives the watch");
        std::thread::sleep(5 * MILLISECOND);
    }
}

#[test]
fn a_late_response_marks_the_driver_responsive_but_gives_no_picture() {
    let Some(library) = Library::new(ANSWERS) else { return };
    // The child sleeps in the kernel and is not killed.
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("first picture", |observed| observed.picture.is_some());
    let child = observed.children[0];
    library.set_script("machine gb10\nprocess 4242 3221225472\nstuck nvmlDeviceGetCount_v2");
    observed.until("silent", |observed| observed.process_state() == Some('D'));
    assert_eq!((observed.value(0), observed.is_responsive()), (0.0, Some(false)));
    let error = observed.error.clone().unwrap();
    assert!(error.contains("does not respond") && error.contains("hangs in the kernel"), "{error}");
    observed.picture = None;
    library.set_script("machine gb10\nprocess 4242 5368709120");
    observed.until("responsive", |observed| observed.is_responsive() == Some(true));
    observed.until("first picture", |observed| observed.picture.is_some());
    assert_eq!((gib_used(&observed), &*observed.children), (5, &[child][..]));
    assert_eq!(
        (observed.value(2), observed.value(3)),
        (0.0, 0.0),
        "neither restarted nor given up"
    );
}

#[test]
fn a_child_that_hangs_in_user_space_is_killed_and_restarted_with_growing_delay() {
    let script = format!("{ANSWERS}\nhang nvmlDeviceGetUUID");
    let Some(library) = Library::new(&script) else { return };
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("silent", |observed| observed.is_responsive() == Some(false));
    observed.until("started again", |observed| observed.value(2) >= 1.0);
    assert_eq!(observed.is_responsive(), Some(false), "no response since");
    assert_eq!(observed.value(3), 0.0, "a child that can be killed is not given up");
    assert!(observed.alive() <= 1, "{:?}", observed.children);
    library.set_script(ANSWERS);
    observed.until("first picture", |observed| observed.is_responsive() == Some(true));
    assert_eq!(gib_used(&observed), 1);
}

#[test]
fn a_crashed_child_is_restarted_and_its_end_reported() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("first picture", |observed| observed.picture.is_some());
    library.set_script("machine gb10\nnoise\ncrash nvmlDeviceGetName");
    observed.until("ended", |observed| observed.is_unknown("signal: 6"));
    let error = observed.error.clone().unwrap();
    assert!(error.contains("noise of nvmlDeviceGetName"), "its last output: {error}");
    assert_eq!(observed.values[0], Reading::Failed, "the value is unknown");
    library.set_script(ANSWERS);
    observed.until("first picture", |observed| observed.is_responsive() == Some(true));
    assert!(observed.value(2) >= 1.0 && observed.error.is_none());
}

#[test]
fn no_child_runs_without_a_driver_a_gpu_or_the_library() {
    let Some(library) = Library::new("error nvmlInit_v2 9") else { return };
    let is_absent = |observed: &Observed| {
        let driver = observed.readings.as_ref().map(|readings| &readings.driver);
        matches!(driver, Some(GpuDriver::Absent { .. }))
    };
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("absent", is_absent);
    assert!(observed.alive() == 0 && observed.values[0] == Reading::Unsupported);
    library.set_script("machine none");
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("absent", is_absent);
    assert!(observed.alive() == 0 && observed.error.unwrap().contains("reports no GPU"));
    let mut observed = Observed::start(library.path().with_extension("gone"), &binary());
    observed.until("unknown", |observed| observed.is_unknown("No such file"));
    assert!(observed.alive() == 0 && observed.is_unknown("gpu.library"));
}

#[test]
fn a_removed_library_is_missed_only_by_the_next_child() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let mut observed = Observed::start(library.path(), &binary());
    observed.until("first picture", |observed| observed.picture.is_some());
    fs::remove_file(library.path()).unwrap();
    library.set_script("machine gb10\nprocess 4242 2147483648");
    observed.until("second picture", |observed| gib_used(observed) == 2);
    library.set_script("crash nvmlDeviceGetCount_v2");
    observed.until("missed", |observed| observed.is_unknown("No such file"));
}

/// A program in place of umawarden that runs a script of the test.
fn impostor(folder: &Path, script: &str) -> PathBuf {
    let path = folder.join("pretender");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&path, mode).unwrap();
    path
}

#[test]
fn malformed_output_of_the_child_is_rejected() {
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
        let program = impostor(folder.path(), script);
        let mut observed = Observed::start("/nowhere".into(), &program);
        observed.until(part, |observed| observed.is_unknown(part));
        assert_eq!(observed.values[0], Reading::Failed);
    }
    let mut observed = Observed::start("/nowhere".into(), &folder.path().join("missing"));
    observed.until("missing", |observed| observed.is_unknown("cannot start"));
}

/// Freezes processes, which then neither run nor die, like processes stuck in the driver.
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
fn unkillable_children_are_given_up_and_their_number_is_bounded() {
    let Some(library) = Library::new(ANSWERS) else { return };
    let Some(freezer) = Freezer::new() else { return };
    let mut observed = Observed::start(library.path(), &binary());
    // Each child is frozen: two are given up, and the third is waited for.
    for given_up in [0.0, 1.0, 2.0] {
        observed.until("another one", |observed| {
            let alive = observed.alive();
            observed.value(3) == given_up
                && observed.children.len() == alive
                && alive > 0
                && alive == given_up as usize + 1
        });
        let newest = *observed.children.last().unwrap();
        freezer.freeze(newest);
        observed.until("silent", |observed| observed.process_state() == Some('D'));
        if given_up < 2.0 {
            observed.until("given up", |observed| observed.value(3) == given_up + 1.0);
        }
    }
    let until = Instant::now() + 3 * PATIENCE.in_kernel;
    while Instant::now() < until {
        observed.take();
        std::thread::sleep(5 * MILLISECOND);
    }
    assert_eq!(
        (observed.alive(), observed.children.len()),
        (3, 3),
        "three children, and none could be killed"
    );
    assert_eq!((observed.value(2), observed.value(3), observed.value(4)), (0.0, 2.0, 2.0));
    assert_eq!(observed.is_responsive(), Some(false));
    freezer.thaw();
    // Thawed children that were given up die; the last one responds.
    observed.until("back", |observed| {
        observed.is_responsive() == Some(true) && observed.value(4) == 0.0
    });
    assert_eq!((observed.alive(), gib_used(&observed)), (1, 1));
}
