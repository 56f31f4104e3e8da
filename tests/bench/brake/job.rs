//! A job that is no engine; the memory it takes appears in no process.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::net::sockopt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::driver;
use crate::pool::PAGE_BYTES;
use crate::worker::{self, Worker};

/// Interval between two steps.
const TURN: Duration = Duration::from_millis(5);

/// Bytes of one write.
const CHUNK: usize = 1 << 20;

/// How the job takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It maps huge pages.
    HugePages,
    /// It fills pipes.
    Pipes,
    /// It fills UNIX sockets that no process reads.
    Sockets,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::HugePages, Self::Pipes, Self::Sockets];

    pub fn name(self) -> &'static str {
        match self {
            Self::HugePages => "huge pages",
            Self::Pipes => "pipes",
            Self::Sockets => "sockets",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Starts a job, which waits for its start and then takes that much memory per second without end.
pub fn start(way: Way, bytes_a_second: u64) -> Worker {
    Worker::start(&["job".to_owned(), way.to_string(), bytes_a_second.to_string()])
}

/// Starts an engine that uses little processor time and takes no memory.
pub fn bystander(name: &str) -> Worker {
    Worker::start(&["bystander".to_owned(), name.to_owned()])
}

/// The process of that engine.
pub fn stand_by(arguments: &[String]) -> ExitCode {
    worker::end_with_parent();
    // Only one engine has the device open and could be suspected.
    let _device = (arguments[0] == "loads").then(driver::open);
    worker::signal();
    worker::await_start();
    loop {
        let began = Instant::now();
        while began.elapsed() < TURN * 2 {
            std::hint::spin_loop();
        }
        std::thread::sleep(TURN * 8);
    }
}

/// The process of the job.
pub fn run(arguments: &[String]) -> ExitCode {
    worker::end_with_parent();
    let way = Way::ALL.into_iter().find(|way| way.name() == arguments[0]).unwrap();
    let pace: u64 = arguments[1].parse().unwrap();
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let mut taken = Vec::new();
    worker::signal();
    worker::await_start();
    let began = Instant::now();
    let mut bytes = 0;
    loop {
        let wanted = (began.elapsed().as_secs_f64() * pace as f64) as u64;
        while bytes < wanted {
            bytes += take(way, &mut taken).unwrap();
        }
        std::thread::sleep(TURN);
    }
}

/// Memory of the job, never given back.
#[expect(dead_code, reason = "it is only kept")]
enum Taken {
    Pages(memmap2::MmapMut),
    Ends(OwnedFd, OwnedFd),
}

/// Takes a piece of memory; returns its size.
fn take(way: Way, taken: &mut Vec<Taken>) -> io::Result<u64> {
    let (reads, writes): (OwnedFd, OwnedFd) = match way {
        Way::HugePages => {
            let length = 16 * PAGE_BYTES;
            let mut options = memmap2::MmapOptions::new();
            if let Ok(mut pages) = options.len(length as usize).huge(Some(21)).map_anon() {
                pages.chunks_mut(4096).for_each(|page| page[0] = 1);
                taken.push(Taken::Pages(pages));
            }
            return Ok(length);
        }
        Way::Pipes => {
            let (reads, writes) = rustix::pipe::pipe()?;
            rustix::pipe::fcntl_setpipe_size(&writes, CHUNK)?;
            (reads, writes)
        }
        Way::Sockets => {
            let (one, other) = UnixStream::pair()?;
            sockopt::set_socket_send_buffer_size_force(&one, 32 * CHUNK)?;
            (other.into(), one.into())
        }
    };
    rustix::io::ioctl_fionbio(writes.as_fd(), true)?;
    let mut file = std::fs::File::from(writes.try_clone()?);
    let mut bytes = 0;
    let chunk = vec![1; CHUNK];
    while let Ok(written) = file.write(&chunk) {
        bytes += written as u64;
    }
    taken.push(Taken::Ends(reads, writes));
    Ok(bytes.max(1))
}
