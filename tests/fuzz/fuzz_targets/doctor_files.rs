//! Scripts and Compose files of units, and files of advice, as the doctor reads them.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use umawarden::config::mistake::SourceText;
use umawarden::doctor::advice::AdviceEntry;
use umawarden::doctor::{AdviceTable, unit};

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes).into_owned();
    if let Ok(advice) = AdviceTable::parse(&SourceText::new("f", text), &["dgx-spark"]) {
        let is_whole = |entry: &AdviceEntry| !entry.id.is_empty() && !entry.cause.is_empty();
        assert!(advice.entries.iter().all(is_whole));
    }
    for command in ["/bin/sh /x/s.sh a", "/x/s.sh", "docker compose -f /x/c.yaml up"] {
        let file = format!("[Service]\nExecStart={command}\nExecStart=/bin/vllm serve m\n");
        let mut opened = 0;
        let mut open = |_: &Path| {
            opened += 1;
            Ok(bytes.to_vec())
        };
        let unit = unit("x.service", &[file], &AdviceTable::default(), &mut open).unwrap();
        assert!(opened <= 32 && unit.engine.is_some());
        assert!(unit.unseen.iter().all(|text| !text.chars().any(char::is_control)));
    }
});
