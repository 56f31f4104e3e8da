//! Commands in the documents exist, with the flags that they use.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use assert_cmd::Command;

use crate::book::documents;

/// The code of a document: lines of blocks, and inline code.
fn code(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, part) in text.split("```").enumerate() {
        if index % 2 == 1 {
            let whole = part.replace("\\\n", " ");
            found.extend(whole.lines().map(str::to_owned));
        } else {
            let quoted = part.split('`').skip(1).step_by(2);
            found.extend(quoted.map(|code| code.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    }
    found
}

/// The words of an umawarden command, up to the first shell operator.
fn words(code: &str) -> Option<Vec<&str>> {
    let code = code.trim_start().trim_start_matches("$ ").trim_start_matches("sudo ");
    let ends = ["#", "|", ";", "&&", "&", ">", "2>", "<"];
    let words = code.strip_prefix("umawarden ")?.split_whitespace();
    Some(words.take_while(|word| !ends.contains(word)).collect())
}

#[derive(Default)]
struct Helps(HashMap<Vec<String>, String>);

impl Helps {
    fn of(&mut self, path: &[&str]) -> &str {
        let key: Vec<String> = path.iter().map(ToString::to_string).collect();
        self.0.entry(key).or_insert_with(|| {
            let mut command = Command::cargo_bin("umawarden").unwrap();
            let output = command.args(path).arg("--help").assert().code(0).get_output().clone();
            String::from_utf8(output.stdout).unwrap()
        })
    }

    /// The reason why a command does not exist, if it does not.
    fn fault(&mut self, words: &[&str]) -> Option<String> {
        let (mut path, mut rest) = (Vec::new(), words);
        while let Some(commands) = listed(self.of(&path)) {
            match rest.split_first() {
                Some((word, more)) if commands.iter().any(|known| known == word) => {
                    (path, rest) = ([&path[..], &[*word]].concat(), more);
                }
                // Internal commands are in no help text.
                Some((&"nvml-child", _)) => return None,
                // A flag of the program itself, before any command.
                Some((word, _)) if path.is_empty() && word.starts_with("--") => break,
                _ if is_one_itself(self.of(&path)) => break,
                word => return Some(format!("{word:?} does not begin with any of {commands:?}")),
            }
        }
        let help = self.of(&path);
        // What is behind is another program's.
        let own = rest.iter().take_while(|word| **word != "--");
        let flags = own.filter_map(|word| word.trim_matches(['[', ']']).strip_prefix("--"));
        let mut names = flags.filter_map(|flag| flag.split('=').next());
        let is_of_a_flag = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
        let known: HashSet<&str> = help.split(|letter| !is_of_a_flag(letter)).collect();
        let unknown = names.find(|name| !known.contains(&*format!("--{name}")))?;
        Some(format!("it takes no --{unknown}"))
    }
}

/// Whether a command with subcommands works without one.
fn is_one_itself(help: &str) -> bool {
    let usage = help.lines().find_map(|line| line.strip_prefix("Usage: "));
    usage.is_some_and(|usage| !usage.ends_with("<COMMAND>"))
}

/// The subcommands in a help text, if it has any.
pub fn listed(help: &str) -> Option<Vec<String>> {
    // Those of the program itself are in groups.
    let (_, list) = match help.split_once("\nSee what happens:\n") {
        Some((before, list)) => (before, list.split_once("\nOptions:\n")?.0),
        None => {
            let (before, list) = help.split_once("\nCommands:\n")?;
            (before, list.split_once("\n\n").map_or(list, |(list, _)| list))
        }
    };
    let lines = list.lines();
    let named = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    Some(named.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}

fn read(document: &Path) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(document)).unwrap()
}

#[test]
fn every_command_of_the_documents_exists_with_its_flags() {
    let (mut helps, mut faults, mut count) = (Helps::default(), Vec::new(), 0);
    for name in documents() {
        for code in code(&read(&name)) {
            let Some(words) = words(&code) else { continue };
            count += 1;
            if let Some(fault) = helps.fault(&words) {
                faults.push(format!("{}: `{code}`: {fault}", name.display()));
            }
        }
    }
    assert!(count > 100, "{count}");
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Placeholders, all in capitals, are skipped.
#[test]
fn rules_named_by_documented_commands_are_shipped() {
    let rules = read(Path::new("docs/src/reference/rules.md"));
    let shipped: HashSet<&str> = rules.split(|c: char| !c.is_alphanumeric()).collect();
    let mut named = 0;
    for code in documents().into_iter().flat_map(|name| code(&read(&name))) {
        let Some(&["explain" | "silence", rule, ..]) = words(&code).as_deref() else { continue };
        if rule.starts_with(char::is_uppercase) && rule.contains(char::is_lowercase) {
            assert!(shipped.contains(rule), "{code}");
            named += 1;
        }
    }
    assert!(named >= 2, "no document shows such a command");
}
