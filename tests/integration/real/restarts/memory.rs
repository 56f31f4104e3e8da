//! Memory that is really taken, and released at once.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use jiff::Timestamp;

use crate::daemon::meminfo_bytes;
use crate::real::Started;

pub fn gib(count: u64) -> u64 {
    count << 30
}

/// Roughly the memory that an engine could get now: the gate counts a little less.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
pub fn available() -> u64 {
    meminfo_bytes("MemAvailable") as u64
}

/// Fills pipes until it reads a line. No counter of the kernel names their memory.
const FILL: &str = "
import fcntl, os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
left, pipes = int(sys.argv[1]), []
size = 1 << 20
while left > 0:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, size)
    os.set_blocking(writer, False)
    page = bytes(1 << 20)
    try:
        while left > 0:
            left -= os.write(writer, page)
    except BlockingIOError:
        pass
    pipes.append((reader, writer))
print('filled', flush=True)
sys.stdin.readline()
";

/// A process that keeps filled pipes.
pub struct FilledPipes(Started);

impl FilledPipes {
    pub fn hold(bytes: u64) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", FILL, &bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "filled\n");
        Self(Started(child))
    }

    /// Releases all of it; returns the time when that was done.
    pub fn release(mut self) -> Timestamp {
        // It may have ended.
        let _ = self.0.0.stdin.take().unwrap().write_all(b"\n");
        self.0.0.wait().unwrap();
        Timestamp::now()
    }
}
