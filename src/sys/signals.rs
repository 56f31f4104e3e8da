//! Signals as a descriptor, with their sender.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;

/// `sizeof(struct signalfd_siginfo)`.
const INFO_BYTES: usize = 128;
/// Signals in one read.
const AT_ONCE: usize = 16;

/// SI_KERNEL: sent by the kernel, as for keys on a terminal.
const OF_KERNEL: i32 = 0x80;

/// A received signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedSignal {
    /// As in signal(7).
    pub signal: i32,
    /// Whether the kernel sent it: a key on the terminal, its hangup or resize.
    pub is_of_kernel: bool,
    /// The pid of the sender, if a process sent it.
    pub pid: u32,
    /// The sender's user id.
    pub uid: u32,
}

/// Signals that are blocked and can be read.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

impl Signals {
    /// Blocks these signals for the calling thread and the threads that it starts later.
    ///
    /// # Errors
    /// There is no such signal, or no descriptor left.
    pub fn take(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set before it is read; all pointers are to sets that
        // live until the calls return.
        let descriptor = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                if libc::sigaddset(set.as_mut_ptr(), *signal) != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created the descriptor; pthread_sigmask succeeded, and so has
        // filled the set.
        let (descriptor, before) =
            unsafe { (OwnedFd::from_raw_fd(descriptor), before.assume_init()) };
        Ok(Self { descriptor, before })
    }

    /// Pending signals. Never blocks.
    ///
    /// # Errors
    /// The descriptor cannot be read.
    pub fn read(&self) -> io::Result<Vec<ReceivedSignal>> {
        let mut all = Vec::new();
        loop {
            let mut bytes = [0; INFO_BYTES * AT_ONCE];
            match rustix::io::read(&self.descriptor, &mut bytes) {
                Ok(0) | Err(Errno::AGAIN) => return Ok(all),
                Ok(length) => all.extend(bytes[..length].chunks_exact(INFO_BYTES).map(received)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Restores the original signal mask in a command, which would inherit the blocked one.
    pub fn give_back_to(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: between fork and exec only pthread_sigmask is called, which is async-signal-safe
        // (signal-safety(7)), with a set that the closure owns.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(
                    libc::SIG_SETMASK,
                    &raw const before,
                    std::ptr::null_mut(),
                ) {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            });
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether this process leads its session, and so alone gets the terminal's hangup.
///
/// rustix cannot be used: if the leader is outside of this PID namespace, as under `docker exec`,
/// the kernel returns 0, which its `Pid` cannot represent.
pub fn is_session_leader() -> bool {
    // SAFETY: both only return numbers.
    unsafe { libc::getsid(0) == libc::getpid() }
}

/// `struct signalfd_siginfo`: number, errno, code, pid, uid, each of 32 bits, and more.
fn received(bytes: &[u8]) -> ReceivedSignal {
    let number = |index: usize| {
        let field = bytes.get(4 * index..4 * index + 4).and_then(|field| field.try_into().ok());
        field.map_or(0, u32::from_ne_bytes)
    };
    ReceivedSignal {
        signal: number(0).cast_signed(),
        is_of_kernel: number(2).cast_signed() == OF_KERNEL,
        pid: number(3),
        uid: number(4),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a thread of its own, with a signal that no other test uses: tests share a process.
    #[test]
    fn a_child_process_has_its_signals_unblocked() {
        let taking = std::thread::spawn(|| {
            let signals = Signals::take(&[libc::SIGUSR2]).unwrap();
            let run = |gives_back: bool| {
                let mut command = Command::new("sh");
                command.args(["-c", "kill -USR2 $$; exit 3"]);
                if gives_back {
                    signals.give_back_to(&mut command);
                }
                std::os::unix::process::ExitStatusExt::signal(&command.status().unwrap())
            };
            assert_eq!(run(true), Some(libc::SIGUSR2));
            assert_eq!(run(false), None, "blocked, it has not come: the test would not notice");
            assert_eq!(signals.read().unwrap(), []);
        });
        taking.join().unwrap();
        assert!(Signals::take(&[1000]).is_err());
    }

    #[test]
    fn signal_information_of_the_kernel_is_parsed() {
        let mut bytes = [0_u8; INFO_BYTES];
        for (index, value) in [(0, 15_u32), (2, 0x80), (3, 4711), (4, 1000)] {
            bytes[4 * index..4 * index + 4].copy_from_slice(&value.to_ne_bytes());
        }
        let expected = ReceivedSignal { signal: 15, is_of_kernel: true, pid: 4711, uid: 1000 };
        assert_eq!(received(&bytes), expected);
        assert_eq!(received(&[]).signal, 0);
    }
}
