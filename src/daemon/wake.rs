//! Wakes the loop from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that the loop polls with the kernel log.
#[derive(Clone, Debug)]
pub struct Wake {
    eventfd: Arc<OwnedFd>,
}

impl Wake {
    /// Fails only without file descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { eventfd: Arc::new(eventfd(0, flags)?) })
    }

    /// Wakes the loop. A full counter does so too.
    pub fn notify(&self) {
        let _ = rustix::io::write(&*self.eventfd, &1u64.to_ne_bytes());
    }

    /// Clears all notifications.
    pub fn drain(&self) {
        // It may be empty already.
        let _ = rustix::io::read(&*self.eventfd, &mut [0u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
