//! Processor time of a kernel line, and the time from the line to the metric.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::processes::{Program, get};
use super::{processor_time, row};

const ROUNDS: u64 = 10;
const LINES: u64 = 2_000;
const EVENTS: u64 = 1_000;

/// Lines and events come through a FIFO in the form of `/dev/kmsg`, since only the kernel can write
/// records of its own facility.
pub fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("kmsg");
    let path = fifo.display().to_string();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success(), "mkfifo {path}");
    let storage = folder.path().join("journal");
    let ours = Program::umawarden(&storage, 19_944, &["--path.kmsg", &path]);
    let mut kmsg = OpenOptions::new().write(true).open(&fifo).unwrap();
    let bare = folder.path().join("bare");
    assert!(std::process::Command::new("mkfifo").arg(&bare).status().unwrap().success());
    std::thread::sleep(Duration::from_secs(1));
    let mut seq = 0;
    lines(&ours, &mut kmsg, &bare, &mut seq);
    latency(&ours, &mut kmsg, &mut seq);
}

/// Lines are written one at a time, as by a kernel. The second row is the cost of waking up for
/// each line and only reading it: on some machines most of the first row.
fn lines(ours: &Program, kmsg: &mut File, bare: &Path, seq: &mut u64) {
    let (mut microseconds, mut least) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (idle_cpu, idle_began) = (ours.cpu_seconds(), Instant::now());
        std::thread::sleep(Duration::from_secs(1));
        let idle = (ours.cpu_seconds() - idle_cpu) / idle_began.elapsed().as_secs_f64();
        let (cpu, began) = (ours.cpu_seconds(), Instant::now());
        write_lines(kmsg, seq);
        let used = ours.cpu_seconds() - cpu - idle * began.elapsed().as_secs_f64();
        microseconds.push(used.max(0.0) * 1e6 / LINES as f64);
        least.push(only_read(bare, seq));
    }
    row("CPU of a line, live, in a program that only reads it", "µs", least);
    row("CPU of a kernel line, live", "µs", microseconds);
}

fn write_lines(kmsg: &mut File, seq: &mut u64) {
    for _ in 0..LINES {
        let line = format!("6,{seq},{seq},-;usb 1-1: new device number {seq}\n");
        kmsg.write_all(line.as_bytes()).unwrap();
        *seq += 1;
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// Processor time of each line, in microseconds.
fn only_read(fifo: &Path, seq: &mut u64) -> f64 {
    let path = fifo.to_owned();
    let reader = std::thread::spawn(move || {
        let file = File::open(path).unwrap();
        let (began, mut buffer) = (processor_time(), [0; 8192]);
        loop {
            poll(&mut [PollFd::new(&file, PollFlags::IN)], None).unwrap();
            if rustix::io::read(&file, &mut buffer).unwrap() == 0 {
                return (processor_time() - began).as_secs_f64() * 1e6 / LINES as f64;
            }
        }
    });
    let mut writer = OpenOptions::new().write(true).open(fifo).unwrap();
    write_lines(&mut writer, seq);
    drop(writer);
    reader.join().unwrap()
}

/// From the write of the line to the first scrape that shows it; the scrape itself is included.
fn latency(ours: &Program, kmsg: &mut File, seq: &mut u64) {
    let mut stream = ours.connect();
    let mut milliseconds = Vec::new();
    for event in 1..=EVENTS {
        let wanted = format!("uma_kernel_events_total{{event=\"xid\"}} {event}\n");
        let began = Instant::now();
        let line = format!("4,{seq},{seq},-;NVRM: Xid (PCI:000f:01:00): 31, pid=1, name=x, f\n");
        kmsg.write_all(line.as_bytes()).unwrap();
        *seq += 1;
        loop {
            let body = get(&mut stream, "/metrics", "Accept: text/plain\r\n");
            if body.windows(wanted.len()).any(|window| window == wanted.as_bytes()) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "the event is not exported");
        }
        milliseconds.push(began.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(Duration::from_millis(event % 7));
    }
    row("kernel line → metric, the scrape included", "ms", milliseconds);
}
