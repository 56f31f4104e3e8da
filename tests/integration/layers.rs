//! Allowed imports of modules, and names that pure modules may not use, as data.

mod engine_names;
mod log_lines;
mod type_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module, the modules and crates of ours that it may import, and whether it is pure.
const LAYERS: &[(&str, &[&str], bool)] = &[
    ("model", &["kernel_faults", "promql_rules"], true),
    ("parse", &["model"], true),
    ("engines", &["model", "parse"], true),
    ("policy", &["kernel_faults", "promql_rules", "model", "parse", "engines"], true),
    ("config", &["promql_rules", "model", "engines", "policy"], false),
    (
        "scenario",
        &[
            "promql_rules",
            "model",
            "policy",
            "config::catalogue",
            "config::decode",
            "config::guard_rails",
            "config::measure",
            "config::mistake",
            "config::rules",
            "config::yaml",
        ],
        true,
    ),
    ("journal", &["model", "files"], false),
    ("recording", &["model", "files"], false),
    ("pause", &["model"], false),
    ("leases", &["model", "parse::process", "policy::leases", "files"], false),
    ("sys", &[], false),
    ("files", &[], false),
    ("nvml", &["model", "parse::gpu", "sys::nvml"], false),
    ("tune", &["model"], true),
    ("fit", &["model", "engines"], true),
    (
        "doctor",
        &["model", "parse", "engines", "config::decode", "config::mistake", "config::yaml"],
        true,
    ),
    (
        "access",
        &[
            "promql_rules::did_you_mean",
            "model",
            "config::decode",
            "config::mistake",
            "config::yaml",
        ],
        false,
    ),
    ("samples", &["promql_rules", "model", "policy::status", "recording::Frames"], true),
    ("replayer", &["model", "policy", "config", "files", "recording"], false),
    (
        "exports",
        &[
            "promql_rules::did_you_mean",
            "model",
            "access",
            "samples",
            "parse::alertmanager",
            "policy::gate",
            "policy::happened",
            "policy::memory_ring",
            "policy::overview",
            "policy::status",
        ],
        false,
    ),
    ("supervisors", &["model", "parse"], false),
    ("clients", &["kernel_faults::container_id", "model", "parse", "engines"], false),
    (
        "sources",
        &[
            "kernel_faults",
            "model",
            "parse",
            "engines",
            "clients",
            "supervisors",
            "files",
            "sys::descriptors",
            "sys::process_end",
            "sys::socket_queue",
        ],
        false,
    ),
    (
        "actions",
        &[
            "model",
            "parse",
            "engines",
            "clients",
            "supervisors",
            "sources::output_files",
            "sys",
            "files",
        ],
        false,
    ),
    ("traces", &["model"], true),
    ("otlp", &["model", "policy::status", "clients::collector", "clients::http", "traces"], false),
    (
        "kubernetes",
        &["model", "policy::memory_parts", "policy::status", "clients::kubernetes"],
        false,
    ),
    (
        "daemon",
        &[
            "promql_rules::did_you_mean",
            "promql_rules::is_label_name",
            "model",
            "policy",
            "config",
            "journal",
            "recording",
            "pause",
            "leases",
            "sys",
            "supervisors",
            "clients",
            "sources",
            "actions",
            "access",
            "exports",
            "samples",
            "replayer",
            "traces",
            "otlp",
            "kubernetes",
        ],
        false,
    ),
    (
        "cli",
        &[
            "kernel_faults",
            "promql_rules",
            "model",
            "parse",
            "engines",
            "policy",
            "config",
            "clients",
            "journal",
            "recording",
            "pause",
            "leases",
            "supervisors",
            "sys",
            "files",
            "nvml",
            "sources",
            "actions",
            "access",
            "exports",
            "samples",
            "replayer",
            "daemon",
            "scenario",
            "tune",
            "fit",
            "doctor",
        ],
        false,
    ),
];

/// Folders of modules: those of a crate are modules of the program as well, by re-export.
const ROOTS: &[&str] = &["src", "crates/policy/src", "crates/records/src"];

/// Folders of modules of which no two import each other.
const SIBLINGS: &[&str] = &["crates/policy/src/policy", "src/cli"];

/// Crates of our own, which are pure as well; the compiler restricts their imports.
const CRATES: &[&str] = &["crates/kernel-faults/src", "crates/promql-rules/src"];

/// Names of those crates in imports.
const CRATE_NAMES: &[&str] = &["kernel_faults", "promql_rules"];

/// Names that a pure module must not use.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "tokio::",
    "tracing::",
    "rustix::",
    "SystemTime",
    "Instant",
    "Timestamp::now",
    "println!",
    "eprintln!",
    " rand::",
];

/// Only the daemon reads the clock.
const CLOCKS: &[&str] = &["Instant::now", "SystemTime::now", "Timestamp::now", "clock_gettime"];

/// Names that only the common output code of commands uses, and the exceptions with their reasons.
const WAYS_OUT: &[&str] = &["io::stdout()", "io::stderr()", "stdio::stdout()", "stdio::stderr()"];
const PRINTERS: &[(&str, &str)] = &[
    ("src/cli/output.rs", "the one way out"),
    ("src/cli/log.rs", "the daemon's log, which loses lines rather than to wait"),
    ("src/cli/nvml_child.rs", "answers by a descriptor of its own"),
];

/// Files that may still name a clock, each with the reason.
const CLOCK_READERS: &[(&str, &str)] = &[
    ("src/daemon/", "the loop's own clock"),
    ("src/cli/", "a command is an edge of its own"),
    ("src/leases.rs", "how long another process has the lock"),
    ("src/sources/bounded.rs", "how long one read takes, which no clock of the loop's measures"),
];

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let entries = fs::read_dir(folder).unwrap();
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn is_test(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("tests.rs"))
}

/// Every line of code outside tests, comments left out, as (file, line number, text).
fn code(module: &str) -> Vec<(PathBuf, usize, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots = if CRATES.contains(&module) { &[""] } else { ROOTS };
    let mut files = Vec::new();
    for root in roots.iter().map(|part| root.join(part)) {
        let file = root.join(format!("{module}.rs"));
        let folder = root.join(module);
        if folder.is_dir() {
            files.extend(rust_files(&folder));
        }
        if file.is_file() {
            files.push(file);
        }
    }
    assert!(!files.is_empty(), "module {module} has no files: the table is out of date");
    let mut lines = Vec::new();
    for path in files.into_iter().filter(|path| !is_test(path)) {
        for (number, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            if !line.trim_start().starts_with("//") {
                lines.push((path.clone(), number + 1, line.to_owned()));
            }
        }
    }
    lines
}

/// All code, by module or crate.
fn all() -> impl Iterator<Item = (PathBuf, usize, String)> {
    LAYERS.iter().map(|(module, ..)| *module).chain(CRATES.iter().copied()).flat_map(code)
}

/// Those lines without the test module at the end of a file.
fn without_tests(
    lines: impl Iterator<Item = (PathBuf, usize, String)>,
) -> impl Iterator<Item = (PathBuf, usize, String)> {
    let mut tested = None;
    lines.filter(move |(path, _, line)| {
        if line == "mod tests {" {
            tested = Some(path.clone());
        }
        tested.as_ref() != Some(path)
    })
}

/// Whether an import is of that module.
fn is_of(import: &str, module: &str) -> bool {
    let rest = import.strip_prefix(module);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
}

/// The modules that a line names, without `crate::`, and the crates of our own.
fn imports_of(line: &str) -> impl Iterator<Item = &str> {
    let of_modules = ["crate::", "umawarden_policy::", "umawarden_records::"].into_iter().flat_map(
        move |name| line.match_indices(name).map(|(at, found)| &line[at + found.len()..]),
    );
    let of_crates = CRATE_NAMES.iter().flat_map(move |name| {
        line.match_indices(name).map(|(at, _)| &line[at..]).filter(|rest| is_of(rest, name))
    });
    of_modules.chain(of_crates)
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for (module, allowed, _) in LAYERS {
        for (path, number, line) in code(module) {
            for import in imports_of(&line) {
                if !is_of(import, module) && !allowed.iter().any(|other| is_of(import, other)) {
                    wrong.push(format!("{}:{number}: {module} imports {import}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// The beginning of that text up to the end of its first name.
fn first_name(text: &str) -> &str {
    let end = text.find(|next: char| !next.is_alphanumeric() && next != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The first name of each path of an import: of all paths in braces, or of the only one.
fn first_names(paths: &str) -> Vec<&str> {
    let Some(list) = paths.strip_prefix('{') else { return vec![first_name(paths)] };
    let (mut names, mut depth, mut begins) = (Vec::new(), 0, true);
    for (at, next) in list.char_indices() {
        match next {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            next if begins && !next.is_whitespace() => {
                names.push(first_name(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

/// The names, with their lines, that code takes of the module `parent`, to which it is `depth`
/// levels below.
fn names_of_parent<'t>(text: &'t str, parent: &str, depth: usize) -> Vec<(usize, &'t str)> {
    let ways = ["super::".repeat(depth), format!("crate::{parent}::")];
    let mut found = Vec::new();
    for way in &ways {
        for (at, _) in text.match_indices(way).filter(|(at, _)| !text[..*at].ends_with("super::")) {
            let line = text[..at].matches('\n').count() + 1;
            found.extend(first_names(&text[at + way.len()..]).into_iter().map(|name| (line, name)));
        }
    }
    found
}

/// The modules in a folder that a module beside them imports, each with a place.
fn imports_in(folder: &Path) -> BTreeMap<(String, String), String> {
    let parent = folder.file_name().unwrap().to_string_lossy();
    let mut files = Vec::new();
    for path in rust_files(folder).into_iter().filter(|path| !is_test(path)) {
        let relative = path.strip_prefix(folder).unwrap().with_extension("");
        let parts = relative.iter().map(|part| part.to_string_lossy().into_owned());
        let parts: Vec<String> = parts.filter(|part| part != "mod").collect();
        let text = fs::read_to_string(&path).unwrap();
        let code = text.lines().take_while(|line| *line != "mod tests {");
        let is_comment = |line: &str| line.trim_start().starts_with("//");
        let code: Vec<&str> = code.map(|line| if is_comment(line) { "" } else { line }).collect();
        if let Some(module) = parts.first() {
            files.push((module.clone(), parts.len(), path, code.join("\n")));
        }
    }
    let modules: BTreeSet<String> = files.iter().map(|(module, ..)| module.clone()).collect();
    let mut imports = BTreeMap::new();
    for (module, depth, path, code) in &files {
        for (line, name) in names_of_parent(code, &parent, *depth) {
            if name != module && modules.contains(name) {
                let place = format!("{}:{line}", path.display());
                imports.entry((module.clone(), name.to_owned())).or_insert(place);
            }
        }
    }
    imports
}

#[test]
fn no_two_modules_beside_each_other_import_each_other() {
    let mut wrong = Vec::new();
    for folder in SIBLINGS {
        let imports = imports_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder));
        assert!(imports.len() > 50, "{folder}: {imports:?}");
        for ((one, other), place) in imports.iter().filter(|((one, other), _)| one < other) {
            if let Some(back) = imports.get(&(other.clone(), one.clone())) {
                wrong.push(format!("{one} and {other} import each other: {place}, {back}"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_form_of_an_import_is_found() {
    let text = "use super::{\n    Exit, style::{Row, Tone},\n    wrap,\n};\nuse super::super::a;\n\
                let b = crate::cli::output::width();\nuse crate::cli::{c, d::e};\nuse super::f::g;";
    let names = |depth| {
        let names = names_of_parent(text, "cli", depth).into_iter().map(|(_, name)| name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(1), ["Exit", "style", "wrap", "super", "f", "output", "c", "d"]);
    assert_eq!(names(2), ["a", "output", "c", "d"]);
    assert_eq!(names_of_parent(text, "cli", 2)[0], (5, "a"));
}

#[test]
fn pure_modules_touch_nothing() {
    let mut wrong = Vec::new();
    let modules = LAYERS.iter().filter(|(_, _, pure)| *pure).map(|(module, ..)| module);
    for module in modules.chain(CRATES) {
        for (path, number, line) in code(module) {
            for name in IMPURE.iter().filter(|name| line.contains(**name)) {
                wrong.push(format!("{}:{number}: {module} names {name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn only_the_daemon_reads_the_clock() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (path, number, line) in all() {
        let relative = path.strip_prefix(root).unwrap().display().to_string();
        if CLOCK_READERS.iter().any(|(allowed, _)| relative.starts_with(allowed)) {
            continue;
        }
        for name in CLOCKS.iter().filter(|name| line.contains(**name)) {
            wrong.push(format!("{relative}:{number}: {name}"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn commands_print_in_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for (path, number, line) in all() {
        let relative = path.strip_prefix(root).unwrap().display().to_string();
        let may = PRINTERS.iter().any(|(allowed, _)| relative == *allowed);
        if !may && WAYS_OUT.iter().any(|name| line.contains(name)) {
            wrong.push(format!("{relative}:{number}: use cli::output"));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn every_module_is_in_the_table() {
    for root in ROOTS {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(root).join("lib.rs");
        let text = fs::read_to_string(file).unwrap();
        let modules = text.lines().filter_map(|line| line.trim().strip_prefix("pub mod "));
        for module in modules.map(|rest| rest.trim_end_matches(';')) {
            assert!(LAYERS.iter().any(|(name, _, _)| *name == module), "{module} is not in LAYERS");
        }
    }
}

#[test]
fn files_and_lines_are_short() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    let folders = ["src", "tests", "crates"];
    for path in folders.into_iter().flat_map(|folder| rust_files(&root.join(folder))) {
        if path.components().any(|part| part.as_os_str() == "target") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        if text.lines().count() > 600 {
            wrong.push(format!("{}: more than 600 lines", path.display()));
        }
        // Recorded text in tests stays as it was.
        for (number, line) in text.lines().enumerate().filter(|_| !is_test(&path)) {
            if line.chars().count() > 100 {
                wrong.push(format!("{}:{}: more than 100 columns", path.display(), number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn the_top_level_has_no_other_entry() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let allowed = [
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "alerts",
        "build.rs",
        "crates",
        "dashboards",
        "docs",
        "packaging",
        "rules",
        "src",
        "tests",
        // What git ignores.
        "data",
        "target",
    ];
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name());
    let other: Vec<_> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| !name.starts_with('.') && !name.ends_with(".md"))
        .filter(|name| !allowed.contains(&name.as_str()))
        .collect();
    assert!(other.is_empty(), "not for the top level: {other:?}");
}
