//! The console examples of README and book print what the program prints.
//!
//! A `console` block has commands behind `$ `, each followed by its output. `…` in the output
//! matches any text, and any lines if it is alone on a line. A command without output must succeed.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::book::{documents, example};
use crate::daemon::{Daemon, binary};
use crate::run::Node;

/// Matches any lines if it is alone on a line, else any text.
const ANYTHING: &str = "…";

/// Commands that are not run, and why.
const NOT_RUN: [(&str, &str); 6] = [
    ("sudo umawarden doctor", "its findings are about this node"),
    ("sudo umawarden launch --need 90GiB --name chat -- vllm serve MODEL", "it starts an engine"),
    ("sudo umawarden run --rules my.yaml --config.file umawarden.yaml", "it does not end"),
    ("umawarden gate --need 90GiB --timeout 0", "it needs a GPU with memory of its own"),
    ("umawarden launch --need 12GiB --name two -- ./two.sh", "it waits for another start"),
    ("umawarden leases", "it needs two starts at the same time"),
];

/// Files in examples, and the fixtures that stand in for them.
const FIXTURES: [(&str, &str); 1] = [("kernel.log", "tests/fixtures/kernel/oom-global-driver.log")];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README and the pages of the book.
fn pages() -> impl Iterator<Item = (PathBuf, String)> {
    let shown = |page: &PathBuf| page.starts_with("docs/src") || page == Path::new("README.md");
    documents().into_iter().filter(shown).map(|page| {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        (page, text)
    })
}

/// A command with the output that a document shows.
#[derive(Debug)]
struct Shown {
    /// Page and line.
    location: String,
    command: String,
    /// Empty where no output is shown.
    lines: Vec<String>,
}

/// All commands in `console` blocks, and the places of prompts in blocks of other kinds.
fn shown() -> (Vec<Shown>, Vec<String>) {
    let (mut found, mut misplaced) = (Vec::new(), Vec::new());
    for (page, text) in pages() {
        let mut kind: Option<&str> = None;
        for (number, line) in (1..).zip(text.lines()) {
            let location = format!("{}:{number}", page.display());
            let fence = line.trim_start().strip_prefix("```");
            match (kind, fence, line.trim_start().strip_prefix("$ ")) {
                (None, Some(opened), _) => kind = Some(opened),
                (Some(_), Some(_), _) => kind = None,
                (Some("console"), None, Some(command)) => {
                    let command = command.to_owned();
                    found.push(Shown { location, command, lines: Vec::new() });
                }
                (Some("console"), None, None) => {
                    let last = found.last_mut().unwrap_or_else(|| panic!("{location}: no command"));
                    last.lines.push(line.trim_end().to_owned());
                }
                (Some(_), None, Some(_)) => misplaced.push(location),
                _ => {}
            }
        }
    }
    (found, misplaced)
}

fn line_matches(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

fn lines_match(shown: &[&str], printed: &[&str]) -> bool {
    match (shown, printed) {
        ([], []) => true,
        ([ANYTHING, more @ ..], _) => {
            (0..=printed.len()).any(|skipped| lines_match(more, &printed[skipped..]))
        }
        ([first, more @ ..], [line, following @ ..]) => {
            line_matches(first, line) && lines_match(more, following)
        }
        _ => false,
    }
}

/// A node on which the examples are run: a daemon, and the files that they name.
struct Place {
    /// Before the node, whose files it uses to its end.
    _daemon: Daemon,
    node: Node,
}

impl Place {
    /// All memory is in counters of the kernel, and 96 GiB of it are free.
    fn new() -> Self {
        let node = Node::new("gb10-4k");
        for (field, gib) in [("MemFree", 96), ("MemAvailable", 96), ("AnonPages", 23)] {
            node.set_meminfo(field, gib << 20);
        }
        for field in ["Buffers", "Cached", "Shmem", "Active(file)", "Inactive(file)"] {
            node.set_meminfo(field, 0);
        }
        fs::create_dir(node.path("bin")).unwrap();
        symlink(binary(), node.path("bin/umawarden")).unwrap();
        let files = [
            ("umawarden.yaml", example("decide/guard-rails.md", "config")),
            ("wrong.yaml", "web: {listen_adress: \":9942\"}\n".to_owned()),
            ("my.yaml", example("tasks/rules.md", "rules")),
            ("my_test.yaml", example("tasks/rules.md", "rules-test")),
        ];
        for (name, text) in files {
            fs::write(node.path(name), text).unwrap();
        }
        let arguments = node.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let daemon = Daemon::start(&node.storage(), &arguments);
        daemon.wait_until("clean", |daemon| {
            daemon.get("/api/v1/verdict").1.contains("\"verdict\":\"clean\"")
        });
        Self { _daemon: daemon, node }
    }

    fn run(&self, command: &str) -> Output {
        let own = command.trim_start_matches("sudo ");
        let line = FIXTURES.iter().fold(own.to_owned(), |line, (name, fixture)| {
            line.replace(name, root().join(fixture).to_str().unwrap())
        });
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell
            .args(["-c", &line])
            .current_dir(self.node.path(""))
            .env("PATH", format!("{}:{path}", self.node.path("bin").display()))
            .env("UMAWARDEN_STORAGE_PATH", self.node.storage())
            .env("UMAWARDEN_PATH_PROCFS", self.node.path("proc"))
            .env("UMAWARDEN_PATH_SYSFS", self.node.path("sys"))
            .env("NO_COLOR", "1")
            .env("TZ", "UTC0");
        shell.output().unwrap()
    }

    /// The difference between an example and what the program prints, if there is one.
    fn fault(&self, example: &Shown) -> Option<String> {
        let output = self.run(&example.command);
        let printed = String::from_utf8(output.stdout).unwrap();
        let printed = printed + &String::from_utf8(output.stderr).unwrap();
        let is_fine = if example.lines.is_empty() {
            output.status.success()
        } else {
            let shown: Vec<&str> = example.lines.iter().map(String::as_str).collect();
            let printed: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
            lines_match(&shown, &printed)
        };
        let Shown { location, command, lines } = example;
        let status = output.status;
        (!is_fine).then(|| {
            let shown = lines.join("\n");
            format!("{location}: $ {command}\nshown:\n{shown}\nprinted ({status}):\n{printed}")
        })
    }
}

#[test]
fn console_examples_print_what_the_documents_show() {
    let (examples, misplaced) = shown();
    assert!(misplaced.is_empty(), "a prompt belongs in a console block: {misplaced:?}");
    let commands: BTreeSet<&str> = examples.iter().map(|one| one.command.as_str()).collect();
    let stale: Vec<_> = NOT_RUN.iter().filter(|(command, _)| !commands.contains(command)).collect();
    assert!(stale.is_empty(), "no document has them any more: {stale:?}");
    let is_run = |one: &&Shown| NOT_RUN.iter().all(|(command, _)| *command != one.command);
    let examples: Vec<&Shown> = examples.iter().filter(is_run).collect();
    let compared = examples.iter().filter(|one| !one.lines.is_empty()).count();
    assert!(compared >= 8, "{compared} examples of {} show an output", examples.len());
    let place = Place::new();
    let faults: Vec<String> = examples.iter().filter_map(|one| place.fault(one)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

#[test]
fn dots_stand_for_any_text_and_alone_for_any_lines() {
    let fits = |shown: &str, printed: &str| {
        let shown: Vec<&str> = shown.lines().collect();
        lines_match(&shown, &printed.lines().collect::<Vec<_>>())
    };
    assert!(fits("a\n…\nd", "a\nb\nc\nd") && fits("a\n…\nd", "a\nd") && fits("a\n…", "a"));
    assert!(fits("open after …: 3 GiB", "open after 0.5s: 3 GiB"));
    assert!(fits("since …, … left", "since 12:00, 3 GiB left") && fits("a …", "a b"));
    for (shown, printed) in [("a", "a\nb"), ("a\nb", "a"), ("a", "ab"), ("b", "ab"), ("", "a")] {
        assert!(!fits(shown, printed), "{shown:?} {printed:?}");
    }
    assert!(!fits("since … left", "since 12:00, 3 GiB right") && !fits("a…b…c", "a c"));
}
