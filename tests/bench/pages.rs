//! What open pages cost the daemon: 50 clients of the live picture, which read it as a browser does.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::processes::Program;
use super::row;

const PAGES: usize = 50;
const SLICES: usize = 6;
const SLICE: Duration = Duration::from_secs(10);

const LIVE: &[u8] = b"GET /api/v1/live HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\n\r\n";

/// The share of a core and the memory that the pages add.
pub fn measure() {
    let storage = tempfile::tempdir().unwrap();
    let ours = Program::umawarden(storage.path(), 19_945, &[]);
    // The start is over by then, and its memory given back.
    std::thread::sleep(Duration::from_secs(70));
    let share = |ours: &Program| {
        let (cpu, began) = (ours.cpu_seconds(), Instant::now());
        std::thread::sleep(SLICE);
        (ours.cpu_seconds() - cpu) / began.elapsed().as_secs_f64() * 100.0
    };
    let before: Vec<f64> = (0..SLICES).map(|_| share(&ours)).collect();
    let idle = before.iter().sum::<f64>() / SLICES as f64;
    let resident = ours.resident_mib();

    let (ends, bytes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..PAGES)
        .map(|_| {
            let mut stream = ours.connect();
            let (ends, bytes) = (Arc::clone(&ends), Arc::clone(&bytes));
            std::thread::spawn(move || {
                stream.write_all(LIVE).unwrap();
                let mut buffer = vec![0; 64 << 10];
                while !ends.load(Ordering::Relaxed) {
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0, "the stream has ended");
                    bytes.fetch_add(read as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_secs(5));
    let (received, began) = (bytes.load(Ordering::Relaxed), Instant::now());
    let with: Vec<f64> = (0..SLICES).map(|_| share(&ours) - idle).collect();
    let received = bytes.load(Ordering::Relaxed) - received;
    let each = received as f64 / PAGES as f64 / began.elapsed().as_secs_f64() / 1024.0;
    let grown = ours.resident_mib() - resident;
    ends.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    row("without pages: share of one core", "%", before);
    row(&format!("{PAGES} open pages: share of one core beyond that"), "%", with);
    row(&format!("{PAGES} open pages: resident memory beyond that"), "MiB", vec![grown]);
    row("what one page receives in a second", "KiB", vec![each]);
}
