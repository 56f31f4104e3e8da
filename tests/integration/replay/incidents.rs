//! Recordings of real kernels, each with what must be seen and decided, and what must not.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use umawarden::model::Verdict;
use umawarden::policy::Step;

use super::replayed;

/// `tests/incidents/NAME/expected.json`.
#[derive(Deserialize)]
struct Expected {
    what: String,
    events: Vec<String>,
    decisions: Vec<String>,
}

fn decisions(steps: &[Step]) -> Vec<String> {
    let decisions = steps.iter().flat_map(|step| &step.decisions);
    decisions
        .map(|decision| {
            let verdict = match decision.verdict {
                Verdict::Act => "act".to_owned(),
                Verdict::Hold(reason) => format!("hold:{}", reason.name()),
            };
            format!("{} {verdict} {}", decision.rule, decision.action.name())
        })
        .collect()
}

fn events(steps: &[Step]) -> Vec<&str> {
    steps.iter().flat_map(|step| &step.events).map(|event| event.kind.kind()).collect()
}

#[test]
fn recorded_incidents_are_decided_as_expected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/incidents");
    let mut count = 0;
    for entry in fs::read_dir(root).unwrap() {
        let folder = entry.unwrap().path();
        let text = fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: Expected = serde_json::from_str(&text).unwrap();
        let bytes = fs::read(folder.join("recording.umarec")).unwrap();
        let (steps, said, torn) = replayed(&bytes);
        let what = format!("{}: {}", folder.display(), expected.what);
        assert!(!torn, "{what}");
        assert_eq!(events(&steps), expected.events, "{what}");
        assert_eq!(decisions(&steps), expected.decisions, "{what}");
        let recorded: Vec<_> = said.iter().flat_map(|said| &said.decisions).collect();
        let again: Vec<_> = steps.iter().flat_map(|step| &step.decisions).collect();
        assert_eq!(again, recorded, "{what}");
        count += 1;
    }
    assert!(count >= 2, "the incidents are gone");
}
