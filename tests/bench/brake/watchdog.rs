//! Keeps the machine alive, and puts the pool back whatever happens.

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

/// How often it looks.
const TURN: Duration = Duration::from_millis(2);

/// Below this much free memory the machine is about to be lost.
pub const LAST_BYTES: u64 = 200 << 20;

/// The watchdog. Whatever ends this program, the pool has its old size afterwards.
pub struct Watchdog {
    /// Puts it back where this program cannot; it sees the end of its input.
    _keeper: Child,
    pool: Arc<Mutex<Pool>>,
    watched: Arc<Watched>,
    /// What was allowed beyond the pool.
    before: String,
}

#[derive(Default)]
struct Watched {
    /// Whom to kill; 0: nobody.
    pid: AtomicU32,
    floor_bytes: AtomicU64,
    has_bitten: AtomicBool,
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
                own.look(&its_pool);
                std::thread::sleep(TURN);
            }
        });
        let (own, its_pool, put_back) = (Arc::clone(&watched), Arc::clone(&pool), before.clone());
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(asked_to_end());
            own.kill();
            give_back(&its_pool);
            huge_file::unmount(&put_back);
            exit(130);
        });
        Self { _keeper: keeper, pool, watched, before }
    }

    /// Guards against that process, which is killed below so much free memory.
    pub fn guard(&self, pid: u32, floor_bytes: u64) {
        self.watched.has_bitten.store(false, Ordering::SeqCst);
        self.watched.floor_bytes.store(floor_bytes, Ordering::SeqCst);
        self.watched.pid.store(pid, Ordering::SeqCst);
    }

    /// Nobody is to be killed any more; returns whether somebody was.
    pub fn rest(&self) -> bool {
        self.watched.pid.store(0, Ordering::SeqCst);
        self.watched.has_bitten.load(Ordering::SeqCst)
    }

    /// Brings the machine back to where every run begins.
    pub fn settle(&self) {
        measure::settle(&locked(&self.pool));
    }

    /// Gives back what was taken.
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
    fn look(&self, pool: &Mutex<Pool>) {
        let floor = self.floor_bytes.load(Ordering::SeqCst);
        if self.pid.load(Ordering::SeqCst) == 0 || measure::meminfo_bytes("MemFree:") >= floor {
            return;
        }
        self.has_bitten.store(true, Ordering::SeqCst);
        self.kill();
        give_back(pool);
    }

    fn kill(&self) {
        let pid = self.pid.swap(0, Ordering::SeqCst);
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            // Gone, perhaps.
            let _gone = kill_process(pid, Signal::KILL);
        }
    }
}

/// The keeper: gives back what was taken once whoever has started it is gone, however that came.
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
async fn asked_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut told = signal(SignalKind::terminate()).unwrap();
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = told.recv() => {}
    }
}
