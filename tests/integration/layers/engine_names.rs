//! Only its own file knows an engine.

use std::collections::BTreeSet;
use std::path::Path;

use umawarden::engines::ENGINES;
use umawarden::model::EngineKind;

use super::{all, is_of, without_tests};

/// The facts of engines.
const ENGINE_FILES: &str = "crates/policy/src/engines/";

/// Lines elsewhere that may name an engine: their files, a part of each line, and the reason.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("crates/policy/src/model/engine.rs", " = \"", "the list of kinds"),
    ("crates/policy/src/model/series/engine.rs", "", "help says of which series a value is"),
    ("crates/policy/src/config/restarts.rs", "vllm-*", "an example in a hint"),
    ("crates/policy/src/config/restarts.rs", "vllm.service", "an example in a hint"),
    ("crates/policy/src/config/engines.rs", "VLLM::*", "an example in a hint"),
    ("crates/policy/src/config/engines.rs", "user: vllm", "an example in a hint"),
    ("crates/policy/src/config/engines.rs", "/sglang.key", "an example in a hint"),
    ("crates/policy/src/config/engines.rs", ": SGLANG_API_KEY", "an example in a hint"),
    ("crates/policy/src/config/rules/empty.rs", "pauses SGLang", "says what a permission does"),
    ("src/cli/adopt.rs", "umawarden adopt vllm", "an example in help"),
    ("src/cli/fit/command.rs", "such as vllm serve", "an example in an error"),
    ("src/cli/fit/command.rs", "sglang.launch_server, llama-server", "an example in an error"),
    ("src/cli/fit/mod.rs", "--gpu-memory-utilization (vLLM)", "help says whose option it is"),
    ("src/cli/fit/mod.rs", "(SGLang)", "help says whose option it is"),
    ("src/cli/tune.rs", "and vLLM refuses to start", "help says whose option it is"),
    ("src/cli/", " -- vllm serve ", "an example in help"),
];

/// Whether a line names a kind of engine. A declared engine is of no kind that is known.
fn names_a_kind(line: &str) -> bool {
    line.match_indices("EngineKind::").any(|(at, found)| {
        let rest = &line[at + found.len()..];
        let is_variant = rest.starts_with(|next: char| next.is_uppercase())
            && rest[1..].starts_with(|next: char| next.is_lowercase());
        rest.starts_with('{') || (is_variant && !is_of(rest, "Declared"))
    })
}

/// The names of all engines in lower case, in all spellings.
fn engine_names() -> BTreeSet<String> {
    // The family of llama-server.
    let mut names = BTreeSet::from(["llama".to_owned()]);
    for facts in ENGINES.iter().filter(|facts| facts.kind != EngineKind::Declared) {
        let name = facts.kind.name();
        names.extend(["_", "-", " ", ""].map(|between| name.replace('_', between)));
        names.insert(facts.display_name().to_lowercase());
    }
    names
}

/// Whether a line has one of these names as a word, or as a word of an identifier or a literal.
fn names_an_engine(line: &str, names: &BTreeSet<String>) -> bool {
    let lower = line.to_ascii_lowercase();
    let is_whole = |(at, found): (usize, &str)| {
        let (before, rest) = line.split_at(at);
        let is_capital = rest.starts_with(|first: char| first.is_uppercase());
        let begins = before
            .chars()
            .next_back()
            .is_none_or(|last| !last.is_alphabetic() || (is_capital && last.is_lowercase()));
        begins && !rest[found.len()..].starts_with(|next: char| next.is_lowercase())
    };
    names.iter().any(|name| lower.match_indices(name.as_str()).any(is_whole))
}

#[test]
fn only_its_own_file_knows_an_engine() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = engine_names();
    let (mut wrong, mut used) = (Vec::new(), BTreeSet::new());
    for (path, number, line) in without_tests(all()) {
        let relative = path.strip_prefix(root).unwrap().display().to_string();
        let is_named = names_a_kind(&line) || names_an_engine(&line, &names);
        if relative.starts_with(ENGINE_FILES) || !is_named {
            continue;
        }
        let is_allowed = |(file, part, _): &(&str, &str, &str)| {
            relative.starts_with(file) && line.contains(part)
        };
        match EXCEPTIONS.iter().position(is_allowed) {
            Some(exception) => {
                used.insert(exception);
            }
            None => wrong.push(format!("{relative}:{number}: use engines::facts: {line}")),
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let exceptions = EXCEPTIONS.iter().enumerate();
    let unused: Vec<_> = exceptions.filter(|(exception, _)| !used.contains(exception)).collect();
    assert!(unused.is_empty(), "no line is left for {unused:?}");
}

#[test]
fn every_form_of_an_engine_s_name_is_found() {
    let named = ["kind == EngineKind::Vllm", "use crate::model::EngineKind::{Vllm};"];
    assert!(named.iter().all(|line| names_a_kind(line)));
    let unnamed = ["EngineKind::ALL", "EngineKind::named(name)", "EngineKind::Declared, id"];
    assert!(!unnamed.iter().any(|line| names_a_kind(line)));
    let names = engine_names();
    let is_named = |line: &str| names_an_engine(line, &names);
    for line in [
        "pub fn wanted_by_vllm(&self) -> u64 {",
        "pub sglang_fraction: f64,",
        "static LLAMA_DIRECT: Loader = COPIES;",
        "struct VllmLoader;",
        "struct IsComfyUi;",
        "if name == \"ollama\" {",
        "text.contains(\"llama.cpp\")",
        "use crate::engines::tensorrt_llm;",
        "\"LM Studio\"",
        "\"mistral.rs\"",
    ] {
        assert!(is_named(line), "{line}");
    }
    for line in ["an exotic name", "let declared = 1;", "\"mistral\"", "dynamometer", "llamas"] {
        assert!(!is_named(line), "{line}");
    }
}
