//! `/dev/kmsg` itself (Documentation/ABI/testing/dev-kmsg).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use super::intake::Intake;
use super::{ReadClock, ReadEnd};
use crate::model::Observation;

/// The longest record that any kernel has handed out (CONSOLE_EXT_LOG_MAX); since 6.4 it is 2 KiB.
const RECORD_BYTES: usize = 8192;

#[derive(Debug)]
pub(super) struct Device {
    file: File,
    buffer: Box<[u8; RECORD_BYTES]>,
}

impl Device {
    /// A device starts at the oldest record of the ring.
    pub(super) fn new(file: File) -> Self {
        Self { file, buffer: Box::new([0; RECORD_BYTES]) }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    pub(super) fn read(
        &mut self,
        intake: &mut Intake,
        clock: &ReadClock,
        out: &mut Vec<Observation>,
        at_most: usize,
    ) -> Result<ReadEnd, String> {
        for _ in 0..at_most {
            match rustix::io::read(&self.file, &mut self.buffer[..]) {
                Ok(0) => return Ok(ReadEnd::Drained),
                Ok(length) => intake.take(&self.buffer[..length], clock, out),
                Err(Errno::AGAIN) => return Ok(ReadEnd::Drained),
                // EPIPE: the ring has overrun. The kernel has moved the reader to the oldest
                // record, whose number shows how many records are lost.
                Err(Errno::PIPE | Errno::INTR) => {}
                // The record is longer than the buffer, and the kernel has moved past it.
                Err(Errno::INVAL) => intake.malformed(out),
                Err(error) => return Err(format!("reading /dev/kmsg failed: {error}")),
            }
        }
        Ok(ReadEnd::More)
    }
}
