//! The time of an answer of the gate while many starts wait for memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use umawarden::daemon::clock::uptime;
use umawarden::leases::LeaseLedger;
use umawarden::model::{GateRequest, LeaseRequest};

use super::processes::{Program, get};
use super::row;

const WAITING: usize = 1000;
const ANSWERS: usize = 1000;
const REQUEST: &str = "/api/v1/gate?need=1GiB";

/// Who waits asks again within 10 s, or is forgotten.
const ASKS_EVERY: Duration = Duration::from_secs(4);

/// More than any machine has: nobody is let in.
const NEED: u64 = 1 << 60;

pub fn measure() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umawarden.yaml");
    let starts = format!("starts: {{folder: {}}}\n", folder.path().display());
    std::fs::write(&config, starts).unwrap();
    let arguments = ["--config.file", config.to_str().unwrap()];
    let program = Program::umawarden(&folder.path().join("data"), 19_945, &arguments);
    std::thread::sleep(Duration::from_secs(2));
    row("answer of the gate, nobody waits", "ms", answers(&program, || {}));
    let ledger = LeaseLedger::new(folder.path(), "/proc".as_ref());
    let mut turns = Vec::new();
    ask(&ledger, &mut turns);
    let is_over = AtomicBool::new(false);
    let while_waiting = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut asked = Instant::now();
            while !is_over.load(Ordering::Relaxed) {
                if asked.elapsed() >= ASKS_EVERY {
                    asked = Instant::now();
                    ask(&ledger, &mut turns);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // The daemon has read the ledger by then.
        std::thread::sleep(Duration::from_secs(2));
        let pause = || std::thread::sleep(Duration::from_millis(10));
        let times = answers(&program, pause);
        is_over.store(true, Ordering::Relaxed);
        times
    });
    let body = get(&mut program.connect(), "/api/v1/leases", "");
    let body = String::from_utf8(body).unwrap();
    assert_eq!(body.matches("\"waiting\"").count(), WAITING, "they wait until the end");
    row(&format!("answer of the gate, {WAITING} starts wait"), "ms", while_waiting);
    row(&format!("a turn of the ledger in which {WAITING} starts ask"), "ms", turns);
}

/// The times of answers, in milliseconds, over one connection.
fn answers(program: &Program, pause: impl Fn()) -> Vec<f64> {
    let mut stream = program.connect();
    let answer = |_| {
        pause();
        let began = Instant::now();
        get(&mut stream, REQUEST, "");
        began.elapsed().as_secs_f64() * 1000.0
    };
    (0..ANSWERS).map(answer).collect()
}

fn ask(ledger: &LeaseLedger, turns: &mut Vec<f64>) {
    let holder = ledger.own_process();
    let began = Instant::now();
    let asked = ledger.update(|book| {
        for number in 0..WAITING {
            let name: std::sync::Arc<str> = format!("start-{number}").into();
            let request = LeaseRequest {
                holder,
                ..LeaseRequest::new(name.clone(), name, GateRequest::of(NEED))
            };
            book.request(uptime(), &request).unwrap();
        }
    });
    asked.unwrap();
    turns.push(began.elapsed().as_secs_f64() * 1000.0);
}
