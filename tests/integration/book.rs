//! The README and the book in `docs/`: every example is valid, every link has a target, and the
//! short documents stay short.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use umawarden::config::flags::LoadFlags;
use umawarden::config::settings::Environment;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All documents, relative to the root of the repository.
pub(super) fn documents() -> Vec<PathBuf> {
    let book = root().join("docs/src/**/*.md");
    let book = glob::glob(book.to_str().unwrap()).unwrap().map(Result::unwrap);
    let book = book.map(|page| page.strip_prefix(root()).unwrap().to_owned());
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
    let beside = ["alerts/RUNBOOK.md", "packaging/kubernetes/chart/umawarden/README.md"];
    let others = others.into_iter().chain(beside).map(PathBuf::from);
    book.chain(others).collect()
}

fn read(document: &Path) -> String {
    fs::read_to_string(root().join(document)).unwrap()
}

/// A YAML block of a document.
struct Example {
    /// Page and line.
    location: String,
    /// The kind in the info string, as `config` in ```` ```yaml,config ````.
    kind: String,
    text: String,
}

fn examples() -> Vec<Example> {
    let mut examples = Vec::new();
    for page in documents() {
        let mut open: Option<Example> = None;
        for (number, line) in (1..).zip(read(&page).lines()) {
            match (&mut open, line.trim_start().strip_prefix("```yaml")) {
                (None, Some(kind)) => {
                    let location = format!("{}:{number}", page.display());
                    let kind = kind.trim_start_matches(',').to_owned();
                    open = Some(Example { location, kind, text: String::new() });
                }
                (Some(_), _) if line.trim_start() == "```" => examples.extend(open.take()),
                (Some(example), _) => example.text += &format!("{line}\n"),
                (None, None) => {}
            }
        }
    }
    examples
}

/// The first YAML block of that kind on the pages whose path contains `page`.
pub(super) fn example(page: &str, kind: &str) -> String {
    let mut all = examples().into_iter();
    all.find(|one| one.location.contains(page) && one.kind == kind).unwrap().text
}

/// A rule file with `part` as its remedy.
fn in_a_rule(part: &str) -> String {
    let rule = "groups:\n- name: part\n  rules:\n  - alert: Part\n    expr: \
                uma_memory_free_bytes < 1e9\n    remedy:\n";
    part.lines().fold(rule.to_owned(), |text, line| format!("{text}      {line}\n"))
}

/// A folder with the files that the examples name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("my.yaml"), example("tasks/rules.md", "rules")).unwrap();
    let hash = "$2y$04$abcdefghijklmnopqrstuujydOTSfIH/d5oUHpsygqV5X9xJLQc6e";
    fs::write(path("web.yml"), format!("basic_auth_users: {{alice: {hash}}}\n")).unwrap();
    let pem = [
        ("server.pem", "node.pem"),
        ("server.key", "node.key"),
        ("authority.pem", "authority.pem"),
    ];
    for (from, to) in pem {
        fs::copy(crate::access::fixture(from), path(to)).unwrap();
    }
    fs::write(path("alertmanager.token"), "umawarden_0123456789abcdef\n").unwrap();
    for private in ["node.key", "alertmanager.token", "web.yml"] {
        fs::set_permissions(path(private), PermissionsExt::from_mode(0o600)).unwrap();
    }
    folder
}

/// The mistake in an example, if there is one.
fn fault(example: &Example, folder: &Path) -> Option<String> {
    let (file, command): (_, &[&str]) = match example.kind.as_str() {
        "config" => ("umawarden.yaml", &["rules", "check", "--config.file", "umawarden.yaml"]),
        "rules" => ("other.yaml", &["rules", "check", "other.yaml"]),
        "remedy" => ("part.yaml", &["rules", "check", "part.yaml"]),
        "rules-test" => ("my_test.yaml", &["rules", "test", "my_test.yaml"]),
        "web" => ("own.yml", &["config", "check", "--web.config.file", "own.yml"]),
        "tokens" => {
            let tokens = ["--web.config.file", "web.yml", "--web.tokens.file", "tokens.yml"];
            ("tokens.yml", &[["config", "check"].as_slice(), &tokens].concat())
        }
        "prometheus" => return prometheus_fault(&example.text, folder),
        "helm" => return crate::chart::fault(&example.text),
        // gate.rs runs the init container with a daemon; the reference has tests below.
        "kubernetes" | "reference" => return None,
        other => return Some(format!("unknown kind {other:?}")),
    };
    let text = if file == "part.yaml" { in_a_rule(&example.text) } else { example.text.clone() };
    fs::write(folder.join(file), text).unwrap();
    fs::set_permissions(folder.join(file), PermissionsExt::from_mode(0o600)).unwrap();
    let mut program = assert_cmd::Command::cargo_bin("umawarden").unwrap();
    let output = program.current_dir(folder).args(command).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let is_remarked_on = example.kind == "rules-test" && printed.contains("remark");
    let is_fine = output.status.code() == Some(0) && !is_remarked_on;
    (!is_fine).then(|| printed.into_owned())
}

fn prometheus_fault(text: &str, folder: &Path) -> Option<String> {
    let file = folder.join("prometheus.yml");
    fs::write(&file, text).unwrap();
    let promtool = std::env::var_os("UMAWARDEN_PROMTOOL").unwrap_or_else(|| "promtool".into());
    let mut command = Command::new(promtool);
    match command.args(["check", "config", "--syntax-only"]).arg(&file).output() {
        Err(error) => {
            eprintln!("not checked, there is no promtool: {error}");
            None
        }
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn every_example_of_the_documents_is_valid() {
    let examples = examples();
    let folder = folder();
    let faults = examples.iter().filter_map(|example| {
        let fault = fault(example, folder.path())?;
        Some(format!("{}: {fault}", example.location))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let kinds: BTreeSet<&str> = examples.iter().map(|example| &*example.kind).collect();
    let all = ["config", "rules", "remedy", "rules-test", "web", "tokens", "prometheus", "helm"];
    assert!(all.iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}

/// Readers of README go on with the book: its `my.yaml` begins with the rule of README, and its test
/// passes with either file. A full page cache alone must not fire.
#[test]
fn the_rule_of_readme_is_tested_in_the_book() {
    let (short, long) = (example("README.md", "rules"), example("tasks/rules.md", "rules"));
    assert!(long.starts_with(&short), "{short}\n{long}");
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("my_test.yaml"), example("tasks/rules.md", "rules-test")).unwrap();
    for rules in [&short, &long] {
        fs::write(folder.path().join("my.yaml"), rules).unwrap();
        let mut program = assert_cmd::Command::cargo_bin("umawarden").unwrap();
        let tested = program.current_dir(&folder).args(["rules", "test", "my_test.yaml"]);
        tested.assert().success();
    }
}

/// Covers the sections of a configuration that `rules check` does not read.
#[test]
fn every_configuration_example_loads_without_remarks() {
    let examples = examples();
    let folder = folder();
    for example in examples.iter().filter(|example| example.kind == "config") {
        let file = folder.path().join("umawarden.yaml");
        fs::write(&file, &example.text).unwrap();
        let flags = LoadFlags { config_file: Some(file), ..LoadFlags::default() }.into();
        let loaded = umawarden::config::reader::load(&flags, &Environment::default());
        let loaded = loaded.unwrap_or_else(|error| panic!("{}: {error}", example.location));
        assert!(loaded.remarks.is_empty(), "{}: {:?}", example.location, loaded.remarks);
    }
}

/// The text without code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

fn links(text: &str) -> Vec<String> {
    let ends = prose(text);
    let targets = ends.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(|target| target.split_whitespace().next().unwrap_or_default().to_owned()).collect()
}

/// The anchors of a page's headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text);
    let headings = headings.lines().filter(|line| line.starts_with('#'));
    let names = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    });
    names.collect()
}

#[test]
fn every_link_has_a_target() {
    let mut faults = Vec::new();
    for page in documents() {
        let text = read(&page);
        for link in links(&text).iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => page.clone(),
                file => page.parent().unwrap().join(file),
            };
            let path = root().join(&target);
            let leaves_the_book = page.starts_with("docs/src")
                && !path.canonicalize().is_ok_and(|to| to.starts_with(root().join("docs/src")));
            let is_there = path.exists()
                && (anchor.is_empty()
                    || anchors(&fs::read_to_string(&path).unwrap()).contains(anchor));
            if !is_there || leaves_the_book {
                faults.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn the_summary_lists_every_page() {
    let listed = links(&read(Path::new("docs/src/SUMMARY.md")));
    let listed: BTreeSet<PathBuf> = listed.iter().map(PathBuf::from).collect();
    let pages = documents().into_iter().filter_map(|page| {
        let page = page.strip_prefix("docs/src").ok()?;
        (page != Path::new("SUMMARY.md")).then(|| page.to_owned())
    });
    assert_eq!(listed, pages.collect::<BTreeSet<PathBuf>>());
}

#[test]
fn readme_and_architecture_stay_within_their_length() {
    let words = |name: &str| read(Path::new(name)).split_whitespace().count();
    assert!(words("README.md") <= 1_500, "{}", words("README.md"));
    assert!(words("ARCHITECTURE.md") <= 1_100, "{}", words("ARCHITECTURE.md"));
    assert!(read(Path::new("README.md")).lines().count() <= 200);
}

fn check_config(file: &Path) -> (bool, String) {
    let mut program = assert_cmd::Command::cargo_bin("umawarden").unwrap();
    let output = program.args(["config", "check", "--config.file"]).arg(file).output().unwrap();
    (output.status.success(), String::from_utf8(output.stderr).unwrap())
}

/// The JSON pointers of all mappings in a document.
fn mappings(value: &Value, pointer: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(entries) => {
            found.push(pointer.to_owned());
            entries.iter().for_each(|(key, one)| {
                let key = key.replace('~', "~0").replace('/', "~1");
                mappings(one, &format!("{pointer}/{key}"), found);
            });
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(at, one)| mappings(one, &format!("{pointer}/{at}"), found));
        }
        _ => {}
    }
}

/// The commented configuration with its comments in force: every key, with its default.
fn every_key() -> Value {
    let text = fs::read_to_string(root().join("packaging/umawarden.yaml")).unwrap();
    let settings = text.lines().filter(|line| !line.starts_with("##"));
    let settings = settings.map(|line| line.strip_prefix('#').unwrap_or(line));
    serde_saphyr::from_str(&settings.collect::<Vec<_>>().join("\n")).unwrap()
}

#[test]
fn the_book_says_of_every_section_when_a_change_applies() {
    let page = fs::read_to_string(root().join("docs/src/reference/configuration.md")).unwrap();
    let table = page.split("| key | a change applies |").nth(1).unwrap();
    let table = table.split("\n\n").next().unwrap();
    for section in every_key().as_object().unwrap().keys() {
        let names = [format!("`{section}`"), format!("`{section}.")];
        assert!(names.iter().any(|name| table.contains(name)), "{section}");
    }
}

/// Each mapping gets an unknown key, and the error lists the known ones.
#[test]
fn the_commented_configuration_has_only_defaults_and_every_key() {
    let file = root().join("packaging/umawarden.yaml");
    let (is_fine, printed) = check_config(&file);
    assert!(is_fine, "{printed}");
    let all = every_key();
    let mut pointers = Vec::new();
    mappings(&all, "", &mut pointers);
    let folder = tempfile::tempdir().unwrap();
    let spoilt = folder.path().join("spoilt.yaml");
    let mut open = Vec::new();
    for pointer in pointers {
        let mut document = all.clone();
        let mapping = document.pointer_mut(&pointer).unwrap().as_object_mut().unwrap();
        let written: BTreeSet<String> = mapping.keys().cloned().collect();
        mapping.insert("zzz".to_owned(), 1.into());
        fs::write(&spoilt, document.to_string()).unwrap();
        let (_, printed) = check_config(&spoilt);
        let known = printed.split("unknown key \"zzz\"").nth(1);
        let known = known.and_then(|rest| rest.split("known keys: ").nth(1)?.lines().next());
        match known {
            None => open.push(pointer),
            Some(known) => {
                let known = known.split(", ").map(str::to_owned).collect::<BTreeSet<_>>();
                assert_eq!(written, known, "{pointer}");
            }
        }
    }
    let free = [
        "/rules",
        "/guard_rails/protect/labels",
        "/guard_rails/protect/pod_labels",
        "/alertmanager/labels",
        "/otlp/resource",
    ];
    assert!(open.iter().all(|pointer| free.contains(&pointer.as_str())), "{open:?}");
}
