//! Keeps the machine alive, and restores the pool however the benchmark ends.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode, Stdio, exit};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::huge_file;
use crate::measure;
use crate::pool::Pool;

/// Interval between two checks.
const TURN: Duration = Duration::from_millis(2);

/// Below this much free memory the machine may be lost.
pub const LAST_BYTES: u64 = 200 << 20;

/// Kills a process at a memory floor, and restores the pool when this program ends.
pub struct Watchdog {
    /// A process that restores the pool after a SIGKILL of this program.
    _keeper: Child,
    pool: Arc<Mutex<Pool>>,
    watched: Arc<Watched>,
    /// The setting `nr_overcommit_hugepages` from before.
    before: String,
}

#[derive(Default)]
struct Watched {
    /// The process to kill; 0: none.
    pid: AtomicU32,
    floor_bytes: AtomicU64,
    has_killed: AtomicBool,
}

impl Watchdog {
    pub fn start() -> Self {
        let before = huge_file::mount();
        let pool = Arc::new(Mutex::new(Pool::take_over().unwrap()));
        let keeper = Command::new(std::env::current_exe().unwrap())
            .args(["keeper", &before])
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let watched = Arc::new(Watched::default());
        watched.floor_bytes.store(LAST_BYTES, Ordering::Relaxed);
        let (own, its_pool) = (Arc::clone(&watched), Arc::clone(&pool));
        std::thread::spawn(move || {
            loop {
                own.check(&its_pool);
                std::thread::sleep(TURN);
            }
        });
        let (own, its_pool, setting) = (Arc::clone(&watched), Arc::clone(&pool), before.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(termination());
            own.kill();
            give_back(&its_pool);
            huge_file::unmount(&setting);
            exit(130);
        });
        Self { _keeper: keeper, pool, watched, before }
    }

    /// Kills the process once free memory is below the floor.
    pub fn guard(&self, pid: u32, floor_bytes: u64) {
        self.watched.has_killed.store(false, Ordering::SeqCst);
        self.watched.floor_bytes.store(floor_bytes, Ordering::SeqCst);
        self.watched.pid.store(pid, Ordering::SeqCst);
    }

    /// Stops guarding; returns whether the process was killed.
    pub fn rest(&self) -> bool {
        self.watched.pid.store(0, Ordering::SeqCst);
        self.watched.has_killed.load(Ordering::SeqCst)
    }

    /// Restores the state in which every run begins.
    pub fn settle(&self) {
        measure::settle(&locked(&self.pool));
    }

    /// Frees all huge pages.
    pub fn give_back(&self) {
        give_back(&self.pool);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.watched.kill();
        self.give_back();
        huge_file::unmount(&self.before);
    }
}

impl Watched {
    fn check(&self, pool: &Mutex<Pool>) {
        let floor = self.floor_bytes.load(Ordering::SeqCst);
        if self.pid.load(Ordering::SeqCst) == 0 || measure::meminfo_bytes("MemFree:") >= floor {
            return;
        }
        self.has_killed.store(true, Ordering::SeqCst);
        self.kill();
        give_back(pool);
    }

    fn kill(&self) {
        let pid = self.pid.swap(0, Ordering::SeqCst);
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // It may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// The process of the keeper: frees the huge pages once the program that started it has ended.
pub fn keep(arguments: &[String]) -> ExitCode {
    let _ended = io::stdin().read(&mut [0]);
    huge_file::unmount(&arguments[0]);
    ExitCode::SUCCESS
}

fn give_back(pool: &Mutex<Pool>) {
    huge_file::clear();
    locked(pool).give_back();
}

fn locked(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends at Ctrl-C and at SIGTERM.
async fn termination() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate()).unwrap();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}
