//! A model served through its mapping while another one loads: its weights stay mapped and are read
//! again and again, as by llama.cpp.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use memmap2::Mmap;

use crate::measure::major_faults;

/// Time for one pass over all weights.
const ROUND: Duration = Duration::from_secs(1);

/// The served model, with all of its weights in memory.
pub struct Served {
    child: Child,
    stdin: ChildStdin,
    file: PathBuf,
    port: u16,
    faults_before: u64,
}

/// Starts the server and waits until it responds.
pub fn start(file: &Path) -> Served {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["served".as_ref(), file.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut port = [0; 2];
    child.stdout.as_mut().unwrap().read_exact(&mut port).unwrap();
    let stdin = child.stdin.take().unwrap();
    let faults_before = major_faults(child.id());
    let (file, port) = (file.canonicalize().unwrap(), u16::from_le_bytes(port));
    Served { child, stdin, file, port, faults_before }
}

impl Served {
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The port of its health endpoint.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Ends the server; returns its major faults since it was ready.
    pub fn end(mut self) -> u64 {
        let faults = major_faults(self.child.id()).saturating_sub(self.faults_before);
        drop(self.stdin);
        self.child.wait().unwrap();
        faults
    }
}

/// The process of the server: reads its weights again and again until its input ends.
pub fn run(arguments: &[String]) -> ExitCode {
    let mapped = map(&File::open(&arguments[0]).unwrap()).unwrap();
    let mut sum = touch(&mapped);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(healthy));
    io::stdout().write_all(&port.to_le_bytes()).unwrap();
    io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        for piece in mapped.chunks(mapped.len().div_ceil(100)) {
            sum = std::hint::black_box(sum.wrapping_add(touch(piece)));
            std::thread::sleep(ROUND / 100);
        }
    }
}

fn healthy(mut connection: impl Read + Write) {
    // The content of the request does not matter.
    let _ = connection.read(&mut [0; 4096]);
    let _answered =
        connection.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

fn touch(piece: &[u8]) -> u64 {
    piece.iter().step_by(4096).map(|byte| u64::from(*byte)).sum()
}

#[expect(unsafe_code, reason = "no process writes to the file while it is mapped")]
fn map(file: &File) -> io::Result<Mmap> {
    unsafe { Mmap::map(file) }
}
