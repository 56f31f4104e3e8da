//! File descriptors: those that a process inherits, how many it may have, and a few that are kept
//! back for what must go on when no more can be had.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit, setrlimit};

/// Standard input, output and error.
const FIRST_OTHER: libc::c_uint = 3;

/// The limit is raised no higher: the kernel's own bound is 2^20, and programs that close all that
/// they may have open take long over it.
const HIGHEST_LIMIT: u64 = 65_536;

/// Descriptors that are kept back. To stop an engine takes one for each of its processes, and a few
/// at a time to read `/proc`.
const RESERVED: usize = 64;

/// The limits that this process was started with, once [`raise_limit`] has changed them.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

static RESERVE: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// How many [`RESERVE`] should hold: none before [`keep_reserve`].
static KEPT_BACK: AtomicUsize = AtomicUsize::new(0);

/// Closes everything but standard input, output and error. To be called before anything else has
/// opened a file.
pub fn close_inherited_descriptors() {
    // SAFETY: no value in this process owns a descriptor yet, since nothing has opened one. Where
    // the kernel has no such call (before Linux 5.9) they stay open, as they were.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_OTHER, libc::c_uint::MAX, 0 as libc::c_uint);
    }
}

/// What has become of the limit on open files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorLimit {
    /// Soft limit at the start; `None`: unlimited.
    pub before: Option<u64>,
    /// Soft limit now; `None`: unlimited.
    pub now: Option<u64>,
}

impl fmt::Display for DescriptorLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |of| of.to_string());
        write!(f, "{} (was {})", text(self.now), text(self.before))
    }
}

/// Raises the soft limit on open files of this process to its hard limit, or to 65,536 where that
/// is higher. A limit that is higher already stays. Children inherit it: see
/// [`restore_limit_of`].
///
/// # Errors
///
/// The kernel refuses; the limit is as it was.
pub fn raise_limit() -> io::Result<DescriptorLimit> {
    let before = getrlimit(Resource::Nofile);
    let wanted = before.maximum.unwrap_or(HIGHEST_LIMIT).min(HIGHEST_LIMIT);
    if before.current.is_none_or(|current| current >= wanted) {
        return Ok(DescriptorLimit { before: before.current, now: before.current });
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..before })?;
    let original = before.current;
    let _is_set_once = ORIGINAL.set(before);
    Ok(DescriptorLimit { before: original, now: Some(wanted) })
}

/// Gives a program that this process has just started the limit on open files that this process was
/// started with: select(2) cannot name a descriptor of 1024 or more, and a program that uses it
/// must not get one. One that has ended already needs none.
pub fn restore_limit_of(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(original), Some(pid)) = (ORIGINAL.get(), pid) {
        // It has ended, or has become somebody whom this process may not change.
        let _ = prlimit(Some(pid), Resource::Nofile, *original);
    }
}

/// How many descriptors one part of this process may keep open, so that `parts` such parts fit into
/// the limit.
pub fn share(parts: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST_LIMIT);
    usize::try_from(limit).unwrap_or(usize::MAX) / parts.max(1)
}

/// Keeps a few descriptors back for [`with_reserve`], from now on.
///
/// # Errors
///
/// Not so many can be had now; what could be had is kept.
pub fn keep_reserve() -> io::Result<()> {
    KEPT_BACK.store(RESERVED, Ordering::Relaxed);
    refill(&mut reserve())
}

/// Opens something. Where no more descriptors can be had, one that was kept back is given up for
/// it, again and again: others may be quicker to take what is free. The reserve fills up again at a
/// later call.
///
/// # Errors
///
/// Those of `open`; `EMFILE` and `ENFILE` only once nothing is left of the reserve.
pub fn with_reserve<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    if KEPT_BACK.load(Ordering::Relaxed) > 0 {
        // It stays as it is where nothing is free.
        let _ = refill(&mut reserve());
    }
    loop {
        match open() {
            Err(error) if is_out_of_descriptors(&error) => {
                let given_up = reserve().pop();
                if given_up.is_none() {
                    return Err(error);
                }
            }
            opened => return opened,
        }
    }
}

/// Gives up so many of the reserve until the answer is dropped, for what opens descriptors where
/// [`with_reserve`] does not reach.
#[must_use = "the reserve fills up again once this is dropped"]
pub fn lend(many: usize) -> Lent {
    // Whoever lends holds this.
    let mut reserve = reserve();
    let of = KEPT_BACK.load(Ordering::Relaxed).min(many);
    KEPT_BACK.fetch_sub(of, Ordering::Relaxed);
    let left = reserve.len().saturating_sub(many);
    reserve.truncate(left);
    Lent(of)
}

/// What [`lend`] has given up.
#[derive(Debug)]
pub struct Lent(usize);

impl Drop for Lent {
    fn drop(&mut self) {
        KEPT_BACK.fetch_add(self.0, Ordering::Relaxed);
    }
}

/// Whether an error says that no more descriptors can be had: by this process, or by anybody.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn refill(reserve: &mut Vec<OwnedFd>) -> io::Result<()> {
    while reserve.len() < KEPT_BACK.load(Ordering::Relaxed) {
        reserve.push(eventfd(0, EventfdFlags::CLOEXEC)?);
    }
    Ok(())
}

/// Nobody panics while holding it.
fn reserve() -> MutexGuard<'static, Vec<OwnedFd>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}
