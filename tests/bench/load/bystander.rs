//! A bystander that keeps using a file of its own: mapped while it is used, and only in the page
//! cache in between.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use memmap2::{Mmap, MmapOptions};

use crate::measure::{bytes_read, major_faults};

/// Bytes that are mapped at a time.
const PIECE_BYTES: u64 = 16 << 20;

/// Time for one pass over all pages.
const ROUND: Duration = Duration::from_secs(2);

/// A bystander with all of its file in the page cache.
pub struct Bystander {
    child: Child,
    stdin: ChildStdin,
    faults_before: u64,
    bytes_before: u64,
}

/// Starts the bystander and waits until it has read its file once.
pub fn start(file: &Path) -> Bystander {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .arg("bystander")
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    let stdin = child.stdin.take().unwrap();
    let faults_before = major_faults(child.id());
    let bytes_before = bytes_read(child.id());
    Bystander { child, stdin, faults_before, bytes_before }
}

impl Bystander {
    /// Ends the bystander; returns its major faults and the bytes it had to read again. A fault may
    /// read one page, or megabytes ahead.
    pub fn end(mut self) -> (u64, u64) {
        let faults = major_faults(self.child.id()).saturating_sub(self.faults_before);
        let bytes = bytes_read(self.child.id()).saturating_sub(self.bytes_before);
        drop(self.stdin);
        self.child.wait().unwrap();
        (faults, bytes)
    }
}

/// The process of the bystander: touches each page of its file every two seconds until its input
/// ends.
pub fn run(arguments: &[String]) -> ExitCode {
    let file = File::open(&arguments[0]).unwrap();
    let length = file.metadata().unwrap().len();
    let pieces = length.div_ceil(PIECE_BYTES);
    let mut sum = (0..pieces).map(|piece| use_once(&file, length, piece)).sum::<u64>();
    io::stdout().write_all(b"!").unwrap();
    io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        for piece in 0..pieces {
            sum = std::hint::black_box(sum.wrapping_add(use_once(&file, length, piece)));
            std::thread::sleep(ROUND / u32::try_from(pieces).unwrap());
        }
    }
}

/// Maps one piece, touches its pages and unmaps it.
fn use_once(file: &File, length: u64, piece: u64) -> u64 {
    let begin = piece * PIECE_BYTES;
    let bytes = PIECE_BYTES.min(length - begin) as usize;
    let mapped = map(file, begin, bytes).unwrap();
    mapped.iter().step_by(4096).map(|byte| u64::from(*byte)).sum()
}

#[expect(unsafe_code, reason = "no process writes to the file while it is mapped")]
fn map(file: &File, begin: u64, bytes: usize) -> io::Result<Mmap> {
    unsafe { MmapOptions::new().offset(begin).len(bytes).map(file) }
}
