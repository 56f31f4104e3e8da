//! The bytes in the queues of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use libc::{Ioctl, TIOCINQ, TIOCOUTQ, c_int};

/// Bytes to be read (SIOCINQ) and to be read by the peer (SIOCOUTQ); see unix(7), tcp(7) and
/// udp(7). For a UNIX socket the latter is the memory that they take.
///
/// # Errors
///
/// It is not a socket, or has no such queue.
pub fn queued(socket: &impl AsFd) -> io::Result<(u64, u64)> {
    let query = |request: Ioctl| {
        let mut bytes: c_int = 0;
        // SAFETY: both requests write one int, at the pointer.
        let done = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), request, &raw mut bytes) };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(u64::try_from(bytes).unwrap_or(0))
    };
    Ok((query(TIOCINQ)?, query(TIOCOUTQ)?))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn queued_bytes_of_a_socket_are_counted_until_they_are_read() {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        assert_eq!(queued(&one).unwrap(), (0, 0));
        one.write_all(&[7; 4096]).unwrap();
        let (_, leaving) = queued(&one).unwrap();
        assert!(leaving >= 4096, "{leaving}");
        assert_eq!(queued(&other).unwrap().0, 4096);
        other.read_exact(&mut [0; 4096]).unwrap();
        assert_eq!(queued(&one).unwrap(), (0, 0));
    }

    #[test]
    fn a_file_has_no_queues() {
        assert!(queued(&std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
