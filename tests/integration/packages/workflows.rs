//! The workflows of `.github`: what they run is fixed, and each job has no right that it does not need.

use std::fs;
use std::path::Path;

/// Names and texts of all workflows.
fn workflows() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/workflows");
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found: Vec<_> =
        paths.map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect();
    assert!(found.len() >= 2, "{found:?}");
    found
}

#[test]
fn actions_are_pinned_by_their_commit() {
    let is_commit =
        |text: &str| text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    for (name, text) in workflows() {
        for line in text.lines() {
            let Some((_, action)) = line.split_once("uses: ") else { continue };
            let is_local = action.starts_with("./");
            let pinned = action.split_once('@').and_then(|(_, rest)| rest.split_once(" # "));
            let is_pinned = pinned.is_some_and(|(commit, of)| is_commit(commit) && !of.is_empty());
            assert!(is_local || is_pinned, "{name}: {line}");
        }
        // A checkout leaves no token behind for what is built later.
        let checkouts = text.matches("uses: actions/checkout@").count();
        assert_eq!(text.matches("persist-credentials: false").count(), checkouts, "{name}");
    }
}

#[test]
fn only_the_job_that_publishes_may_write() {
    for (name, text) in workflows() {
        assert!(text.contains("\npermissions: {contents: read}\n"), "{name}");
        let Some((before, publish)) = text.split_once("\n  publish:\n") else {
            assert!(!text.contains(": write"), "{name}");
            continue;
        };
        assert!(!before.contains(": write"), "{name}");
        // It builds nothing, and so runs no code of others.
        for builds in ["actions/checkout", "packaging/", "cargo ", "tests/"] {
            assert!(!publish.contains(builds), "{name}: {builds}");
        }
        assert!(publish.contains("attest-build-provenance") && publish.contains("SHA256SUMS"));
    }
}

/// A command in `${{ }}` would become part of the shell's text.
#[test]
fn no_expression_is_part_of_a_script() {
    for (name, text) in workflows() {
        for line in text.lines().filter(|line| line.contains("${{")) {
            let is_value = ["env: {", "with: {", "key: "].iter().any(|key| line.contains(key));
            assert!(is_value, "{name}: {line}");
        }
    }
}
