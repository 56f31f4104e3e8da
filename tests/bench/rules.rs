//! Evaluating two hundred rules, and the shipped ones.

use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use umawarden::config::mistake::SourceText;
use umawarden::config::rules::parse_rules;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{DecisionId, Mode, Moment, Observation};
use umawarden::policy::Policy;
use umawarden::sources::memory::MemorySource;

use super::{processor_time, row};

const RULES: usize = 200;
const STEPS: u32 = 3_000;
const INTERVAL: Duration = Duration::from_millis(100);

/// Half compare two signals, a quarter takes a rate over a minute, a quarter predicts.
fn rule_file() -> String {
    let expressions = [
        "uma_memory_free_bytes < uma_memory_reserve_bytes + {n} * 1024^2",
        "uma_memory_available_bytes < 0.1 * uma_memory_total_bytes - {n} * 1024^2 \
         and on() uma_memory_page_cache_bytes{state=\"clean\"} > 8 * 1024^3",
        "rate(uma_kernel_events_total{event=\"nv_no_memory\"}[1m]) > {n}",
        "predict_linear(uma_memory_free_bytes[10s], 5) < -{n} * 1024^2",
    ];
    let mut text = String::from("groups:\n- name: bench\n  interval: 100ms\n  rules:\n");
    for number in 0..RULES {
        let expression = expressions[number % expressions.len()];
        let expression = expression.replace("{n}", &number.to_string());
        text += &format!("  - alert: Rule{number}\n    expr: '{expression}'\n    for: 1s\n");
    }
    text
}

/// The policy alone, on the real readings of this machine, 100 ms apart on a clock of its own.
pub fn measure() {
    measure_step("200 rules", &[SourceText::new("bench.yaml", rule_file())]);
    measure_step("shipped rules", &shipped_rules());
}

fn measure_step(what: &str, files: &[SourceText]) {
    let rules = parse_rules(files, INTERVAL).unwrap();
    let mut memory = MemorySource::open(Path::new("/proc"), Path::new("/sys"));
    let began = Instant::now();
    let clock = move || began.elapsed();
    let mut at = Moment { uptime: Duration::from_secs(1000), utc: Timestamp::UNIX_EPOCH };
    let mut policy = Policy::new(at, Mode::Observe, &rules, DecisionId(1));
    let mut milliseconds = Vec::new();
    for step in 0..STEPS {
        let mut seen: Vec<Observation> = Vec::new();
        memory.read(&clock, &mut seen);
        at.uptime += INTERVAL;
        let began = processor_time();
        policy.step(at, &seen);
        // The first minute fills the windows.
        if step > 600 {
            milliseconds.push((processor_time() - began).as_secs_f64() * 1000.0);
        }
    }
    row(&format!("{what}, one step, processor time"), "ms", milliseconds);
}
