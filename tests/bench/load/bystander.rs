//! Somebody else on the machine, who keeps using files of their own.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use memmap2::Mmap;

use crate::measure::major_faults;

/// How long it takes over all of its pages once.
const ROUND: Duration = Duration::from_secs(2);

/// Makes the bystander's file, which is kept for the next time.
pub fn files(directory: &Path, bytes: u64) -> io::Result<PathBuf> {
    let path = directory.join(format!("bystander-{bytes}"));
    if !path.exists() {
        let unfinished = path.with_extension("unfinished");
        io::copy(&mut File::open("/dev/urandom")?.take(bytes), &mut File::create(&unfinished)?)?;
        File::open(&unfinished)?.sync_all()?;
        fs::rename(unfinished, &path)?;
    }
    Ok(path)
}

/// The bystander, with all of its file in the page cache.
pub struct Bystander {
    child: Child,
    stdin: ChildStdin,
    faults_before: u64,
}

/// Starts it, and waits until it has read its file once.
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
    Bystander { child, stdin, faults_before }
}

impl Bystander {
    /// Ends it; returns its major faults since it was ready.
    pub fn end(mut self) -> u64 {
        let faults = major_faults(self.child.id()).saturating_sub(self.faults_before);
        drop(self.stdin);
        self.child.wait().unwrap();
        faults
    }
}

/// The process itself: touches each page of its file every two seconds until its input ends.
pub fn run(arguments: &[String]) -> ExitCode {
    let file = File::open(&arguments[0]).unwrap();
    let mapped = map(&file).unwrap();
    let mut sum = touch(&mapped);
    io::stdout().write_all(b"!").unwrap();
    io::stdout().flush().unwrap();
    std::thread::spawn(|| {
        let _ended = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        for piece in mapped.chunks(mapped.len().div_ceil(100)) {
            sum = std::hint::black_box(sum.wrapping_add(touch(piece)));
            std::thread::sleep(ROUND / 100);
        }
    }
}

fn touch(piece: &[u8]) -> u64 {
    piece.iter().step_by(4096).map(|byte| u64::from(*byte)).sum()
}

#[expect(unsafe_code, reason = "nobody writes to the file while it is mapped")]
fn map(file: &File) -> io::Result<Mmap> {
    unsafe { Mmap::map(file) }
}
