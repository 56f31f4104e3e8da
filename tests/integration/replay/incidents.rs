//! Recordings of real kernels, each with the events and decisions that it must and must not give.
//! `tests/incidents/record` makes them. `UPDATE_GOLDEN=1 cargo test incidents` writes the events
//! and decisions into each `expected.json`; the rules that must act stay as the author of the
//! incident wrote them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use umawarden::cli::replay::Replayer;
use umawarden::config::mistake::SourceText;
use umawarden::config::shipped::shipped_rules;
use umawarden::model::{Action, AlertState, Decision, DecisionRecord, Moment};
use umawarden::policy::Step;
use umawarden::recording::{RecordingEntry, SegmentReader, StepResult, segment_files};

/// `tests/incidents/NAME/expected.json`.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    /// Description of the incident.
    what: String,
    /// Rules that must act, or would in enforce mode.
    must_act: Vec<String>,
    /// Rules that may act too; no others may.
    may_act: Vec<String>,
    /// Expressions that must hold at some time: they identify the incident.
    shows: Vec<String>,
    /// Number of events of each kind.
    events: BTreeMap<String, usize>,
    /// Every decision.
    decisions: Vec<String>,
}

/// Results of a replay.
struct Seen {
    acted: BTreeSet<String>,
    events: BTreeMap<String, usize>,
    decisions: Vec<String>,
}

/// `+12.345s memory/PageCacheEatsReserve observe act drop_caches pagecache`, from the first step.
fn line(first: Moment, decision: &DecisionRecord) -> String {
    let since = decision.at.uptime.saturating_sub(first.uptime).as_millis();
    let decided = match decision.decision {
        Decision::Act => "act".to_owned(),
        Decision::Hold(reason) => format!("hold:{}", reason.name()),
    };
    let action = match &decision.action {
        Action::Notify { .. } => "notify".to_owned(),
        action => action.to_string(),
    };
    let DecisionRecord { rule, mode, step, .. } = decision;
    let (seconds, millis) = (since / 1000, since % 1000);
    format!("+{seconds}.{millis:03}s {rule} {} step {step} {decided} {action}", mode.name())
}

/// Replays the recordings of a folder in order; each step comes with the decisions that were
/// recorded for it.
fn each_step(
    folder: &Path,
    mut replayer: Replayer,
    mut take: impl FnMut(Moment, Step, StepResult),
) {
    let files = segment_files(folder);
    assert!(!files.is_empty(), "{} holds no recording", folder.display());
    for path in files {
        let mut reader = SegmentReader::open(BufReader::new(File::open(&path).unwrap())).unwrap();
        while let Some(entry) = reader.next_entry().unwrap() {
            let stepped = replayer.take(&entry).unwrap();
            let RecordingEntry::Step(recorded) = entry else { continue };
            assert!(replayer.is_whole(), "{} does not begin at a start", path.display());
            take(recorded.at, stepped.step, recorded.said);
        }
        assert!(reader.torn().is_none(), "{} is torn", path.display());
    }
}

/// Decisions with their evidence in order of names, the format of the first recordings.
fn in_order(mut decisions: Vec<DecisionRecord>) -> Vec<DecisionRecord> {
    for decision in &mut decisions {
        decision.because.sort_by(|one, other| one.series.cmp(&other.series));
    }
    decisions
}

/// Results must equal the recorded ones, to the last value. Where a later version names other
/// values for a decision, the incident is recorded again.
fn replay(folder: &Path) -> Seen {
    let mut steps: Vec<(Moment, Step)> = Vec::new();
    each_step(folder, Replayer::under_recorded_rules(), |at, step, recorded| {
        let (came, comes) = (in_order(recorded.decisions), in_order(step.decisions.clone()));
        assert_eq!(comes, came, "{}", folder.display());
        assert_eq!(step.events, recorded.events, "{}", folder.display());
        steps.push((at, step));
    });
    let first = steps.first().unwrap().0;
    let decisions: Vec<&DecisionRecord> =
        steps.iter().flat_map(|(_, step)| &step.decisions).collect();
    let mut events = BTreeMap::new();
    for event in steps.iter().flat_map(|(_, step)| &step.events) {
        *events.entry(event.kind.kind().to_owned()).or_insert(0) += 1;
    }
    let acts = decisions.iter().filter(|decision| decision.is_act());
    Seen {
        acted: acts.map(|decision| decision.rule.to_string()).collect(),
        events,
        decisions: decisions.iter().map(|decision| line(first, decision)).collect(),
    }
}

/// Differences between results and expectations.
fn differences(expected: &Expected, seen: &Seen) -> Vec<String> {
    let mut differences = Vec::new();
    let set = |rules: &[String]| rules.iter().cloned().collect::<BTreeSet<_>>();
    let (must, may) = (set(&expected.must_act), set(&expected.may_act));
    differences.extend(must.difference(&seen.acted).map(|rule| format!("{rule} does not act")));
    let allowed = must.union(&may).cloned().collect();
    differences.extend(seen.acted.difference(&allowed).map(|rule| format!("{rule} acts")));
    if expected.events != seen.events {
        differences.push(format!("events: {:?}, not {:?}", seen.events, expected.events));
    }
    if expected.decisions != seen.decisions {
        let (seen, expected) = (seen.decisions.join("\n"), expected.decisions.join("\n"));
        differences.push(format!("decisions:\n{seen}\nnot:\n{expected}"));
    }
    differences
}

fn incidents() -> Vec<(PathBuf, Expected)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/incidents");
    let mut incidents: Vec<(PathBuf, Expected)> = fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .map(|folder| {
            let text = fs::read_to_string(folder.join("expected.json")).unwrap();
            let expected = serde_json::from_str(&text);
            let expected = expected.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            (folder, expected)
        })
        .collect();
    incidents.sort_by(|a, b| a.0.cmp(&b.0));
    let acting = incidents.iter().filter(|(_, expected)| !expected.must_act.is_empty()).count();
    assert!(acting >= 12 && incidents.len() - acting >= 5, "incidents are gone");
    incidents
}

#[test]
fn recorded_incidents_are_decided_as_expected() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    for (folder, mut expected) in incidents() {
        let seen = replay(&folder);
        if update {
            expected.events.clone_from(&seen.events);
            expected.decisions.clone_from(&seen.decisions);
            let text = serde_json::to_string_pretty(&expected).unwrap();
            fs::write(folder.join("expected.json"), format!("{text}\n")).unwrap();
        }
        for difference in differences(&expected, &seen) {
            wrong.push(format!("{} ({}): {difference}", folder.display(), expected.what));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn recordings_show_the_incident_that_they_describe() {
    let mut wrong = Vec::new();
    for (folder, expected) in incidents() {
        assert!(!expected.shows.is_empty(), "{} shows nothing", folder.display());
        let mut rules = "groups:\n- name: shown\n  interval: 100ms\n  rules:\n".to_owned();
        for (number, expr) in expected.shows.iter().enumerate() {
            rules += &format!("  - alert: '{number}'\n    expr: '{expr}'\n");
        }
        let replayer = Replayer::under(vec![SourceText::new("shows", rules)]);
        let mut shown = BTreeSet::new();
        each_step(&folder, replayer, |_, step, _| {
            let fires = step.alerts.iter().filter(|change| change.to == AlertState::Firing);
            shown.extend(fires.map(|change| change.rule.alert.to_string()));
        });
        for (number, expr) in expected.shows.iter().enumerate() {
            if !shown.contains(&number.to_string()) {
                wrong.push(format!("{}: never {expr}", folder.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Incidents in which memory really ran out, so that stopping an engine would have been right.
const COLLAPSES: [&str; 1] = ["memory-runs-out"];

/// Today's brake must stay off, whatever rules were shipped at the time of the recording.
#[test]
fn the_brake_stays_off_in_incidents_with_memory_available() {
    let mut pulled = BTreeSet::new();
    for (folder, _) in incidents() {
        each_step(&folder, Replayer::under(shipped_rules()), |_, step, _| {
            let fires = step.alerts.iter().filter(|change| change.to == AlertState::Firing);
            if fires.clone().any(|change| &*change.rule.alert == "MemoryCollapse") {
                pulled.insert(folder.file_name().unwrap().to_string_lossy().into_owned());
            }
        });
    }
    assert_eq!(pulled.iter().map(String::as_str).collect::<Vec<_>>(), COLLAPSES);
}

/// The expectation, spoilt in many ways.
fn spoilt(expected: &Expected) -> Vec<Expected> {
    let change = |spoil: &dyn Fn(&mut Expected)| {
        let mut spoilt = expected.clone();
        spoil(&mut spoilt);
        spoilt
    };
    let mut all = vec![
        change(&|expected| expected.must_act.push("memory/Another".to_owned())),
        change(&|expected| expected.decisions.push("+1.000s memory/Another".to_owned())),
        change(&|expected| *expected.events.entry("xid".to_owned()).or_insert(0) += 1),
    ];
    for at in 0..expected.must_act.len() {
        all.push(change(&|expected| drop(expected.must_act.remove(at))));
    }
    for kind in expected.events.keys() {
        all.push(change(&|expected| {
            expected.events.remove(kind);
        }));
    }
    for at in 0..expected.decisions.len() {
        all.push(change(&|expected| drop(expected.decisions.remove(at))));
        all.push(change(&|expected| {
            let twice = expected.decisions[at].clone();
            expected.decisions.insert(at, twice);
        }));
        let line = &expected.decisions[at];
        let words: Vec<&str> = line.split(' ').collect();
        for word in 0..words.len() {
            let mut words = words.clone();
            words[word] = "another";
            all.push(change(&|expected| expected.decisions[at] = words.join(" ")));
        }
    }
    all
}

#[test]
fn a_changed_expectation_is_detected_anywhere() {
    for (folder, expected) in incidents() {
        let seen = replay(&folder);
        for (number, spoilt) in spoilt(&expected).iter().enumerate() {
            assert!(!differences(spoilt, &seen).is_empty(), "{}: {number}", folder.display());
        }
    }
}
