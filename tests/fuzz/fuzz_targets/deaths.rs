//! Output of engines, responses of Docker and unit files, as the explainer of deaths and the doctor
//! read them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::doctor::{AdviceTable, ContainerFacts, unit};
use umawarden::engines::last_words;
use umawarden::parse::process::exit_status;

fuzz_target!(|bytes: &[u8]| {
    let _ = exit_status(bytes);
    let text = String::from_utf8_lossy(bytes).into_owned();
    for line in text.lines() {
        let _ = last_words(line);
    }
    if let Ok(end) = serde_json::from_slice::<serde_json::Value>(bytes)
        && let Some(facts) = ContainerFacts::read(&end)
    {
        assert!(!facts.name.chars().any(char::is_control));
    }
    let mut missing = |_: &std::path::Path| Err(std::io::ErrorKind::NotFound.into());
    if let Some(unit) = unit("engine.service", &[text], &AdviceTable::default(), &mut missing) {
        assert!(unit.engine.is_some() || !unit.unseen.is_empty());
    }
});
