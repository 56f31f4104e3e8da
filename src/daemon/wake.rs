//! Wakes the loop from other threads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that the loop polls beside the kernel log.
#[derive(Clone, Debug)]
pub struct Wake {
    eventfd: Arc<OwnedFd>,
}

impl Wake {
    /// A new one. Fails only when the process is out of file descriptors.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { eventfd: Arc::new(eventfd(0, flags)?) })
    }

    /// Makes the loop run. A counter that is full already will do so too.
    pub fn notify(&self) {
        let _full_already = rustix::io::write(&*self.eventfd, &1u64.to_ne_bytes());
    }

    /// Takes back all notifications.
    pub fn drain(&self) {
        let _empty_already = rustix::io::read(&*self.eventfd, &mut [0u8; 8]);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}
