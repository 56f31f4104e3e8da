//! File descriptors: inherited ones, their limit, and a reserve for actions when none are left.

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

/// The limit is not raised further: the kernel's own bound is 2^20, and programs that close all
/// possible descriptors take long for it.
const HIGHEST_LIMIT: u64 = 65_536;

/// Descriptors in the reserve. Stopping an engine needs one for each of its processes, and a few at
/// a time to read `/proc`.
const RESERVED: usize = 64;

/// The limits of this process at its start, once [`raise_limit`] has changed them.
static ORIGINAL: OnceLock<Rlimit> = OnceLock::new();

static RESERVE: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// The size of [`RESERVE`]: none before [`keep_reserve`].
static KEPT_BACK: AtomicUsize = AtomicUsize::new(0);

/// Closes everything but standard input, output and error. Must be called before any file is
/// opened.
pub fn close_inherited_descriptors() {
    // SAFETY: no value in this process owns a descriptor yet. Without the call (before Linux
    // 5.9) they stay open.
    unsafe {
        libc::syscall(libc::SYS_close_range, FIRST_OTHER, libc::c_uint::MAX, 0 as libc::c_uint);
    }
}

/// The result for the limit on open files.
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

/// Raises the soft limit on open files to the hard limit, or to 65,536 if that is higher. A higher
/// limit is kept. Children inherit it: see [`restore_limit_of`].
///
/// # Errors
///
/// The kernel refuses; the limit is unchanged.
pub fn raise_limit() -> io::Result<DescriptorLimit> {
    let before = getrlimit(Resource::Nofile);
    let wanted = before.maximum.unwrap_or(HIGHEST_LIMIT).min(HIGHEST_LIMIT);
    if before.current.is_none_or(|current| current >= wanted) {
        return Ok(DescriptorLimit { before: before.current, now: before.current });
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..before })?;
    let original = before.current;
    // Only the first call sets it.
    let _ = ORIGINAL.set(before);
    Ok(DescriptorLimit { before: original, now: Some(wanted) })
}

/// Gives a just started program the original limit on open files: select(2) cannot use descriptors
/// above 1023. A program that has ended needs none.
pub fn restore_limit_of(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(original), Some(pid)) = (ORIGINAL.get(), pid) {
        // It has ended, or changed to a user whom this process may not control.
        let _ = prlimit(Some(pid), Resource::Nofile, *original);
    }
}

/// The descriptors of one of `parts` equal parts of this process.
pub fn share(parts: usize) -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST_LIMIT);
    usize::try_from(limit).unwrap_or(usize::MAX) / parts.max(1)
}

/// Fills the reserve for [`with_reserve`].
///
/// # Errors
///
/// Fewer are available now; those are kept.
pub fn keep_reserve() -> io::Result<()> {
    KEPT_BACK.store(RESERVED, Ordering::Relaxed);
    refill(&mut reserve())
}

/// Opens something. Without free descriptors it closes one of the reserve and tries again,
/// repeatedly, since others may take it first. Later calls refill the reserve.
///
/// # Errors
///
/// Those of `open`; `EMFILE` and `ENFILE` only once the reserve is empty.
pub fn with_reserve<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    if KEPT_BACK.load(Ordering::Relaxed) > 0 {
        // Not refilled while none is free.
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

/// Closes this many of the reserve until the returned value is dropped, for code that
/// [`with_reserve`] does not cover.
#[must_use = "the reserve fills up again once this is dropped"]
pub fn lend(many: usize) -> LentDescriptors {
    // Held while descriptors are lent.
    let mut reserve = reserve();
    let of = KEPT_BACK.load(Ordering::Relaxed).min(many);
    KEPT_BACK.fetch_sub(of, Ordering::Relaxed);
    let left = reserve.len().saturating_sub(many);
    reserve.truncate(left);
    LentDescriptors(of)
}

/// Descriptors that [`lend`] has closed.
#[derive(Debug)]
pub struct LentDescriptors(usize);

impl Drop for LentDescriptors {
    fn drop(&mut self) {
        KEPT_BACK.fetch_add(self.0, Ordering::Relaxed);
    }
}

/// Whether an error means that no descriptor is left, for this process or the system.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

fn refill(reserve: &mut Vec<OwnedFd>) -> io::Result<()> {
    while reserve.len() < KEPT_BACK.load(Ordering::Relaxed) {
        reserve.push(eventfd(0, EventfdFlags::CLOEXEC)?);
    }
    Ok(())
}

/// No code panics while holding it.
fn reserve() -> MutexGuard<'static, Vec<OwnedFd>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}
