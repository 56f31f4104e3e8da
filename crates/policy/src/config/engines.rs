//! `engines`: those that are found by more than their names, or whose model files are to be known.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use glob::Pattern;

use super::decode::{self, Findings, Table, each, list, pairs, value};
use super::measure::duration_within;
use super::yaml::{Content, YamlNode};
use crate::model::{DeclaredEngine, EngineKeys, EngineMatch, EngineUser, SecretSource};

const KEYS: [&str; 10] = [
    "name",
    "match",
    "model_files",
    "health",
    "stuck_after",
    "api_key_file",
    "api_key_env",
    "admin_key_file",
    "admin_key_env",
    "user",
];

/// The configuration holds no secrets, since it may be readable for all.
const NO_SECRETS: decode::Advice = (
    &["api_key", "admin_key", "key", "token", "password"],
    "name a file or a variable that holds it: api_key_file, api_key_env, admin_key_file, \
     admin_key_env",
);
const MATCH_KEYS: [&str; 6] = ["comm", "cmdline", "unit", "container", "label", "namespace"];

const MOST_ENGINES: usize = 32;
const MOST_FILES: usize = 64;
const MOST_LABELS: usize = 16;
const LONGEST_NAME: usize = 64;
const LONGEST_GLOB: usize = 1024;

/// What the kernel keeps of a process' name.
const LONGEST_COMM: usize = 15;

/// Shorter, and an engine that compiles for a while is taken for stuck.
const SHORTEST_STUCK: Duration = Duration::from_secs(10);
const LONGEST_STUCK: Duration = Duration::from_secs(86_400);

/// Reads the list; `None` where it has mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<DeclaredEngine>> {
    let entries = list(node, "engines", findings)?;
    if entries.len() > MOST_ENGINES {
        findings.add(node.span.clone(), format!("more than {MOST_ENGINES} engines"));
        return None;
    }
    let engines = each(entries, findings, engine)?;
    let mut names = BTreeSet::new();
    for (engine, node) in engines.iter().zip(entries) {
        if !names.insert(Arc::clone(&engine.name)) {
            let message = format!("two engines have the name \"{}\"", engine.name);
            findings.add(node.span.clone(), message).hint("give each a name of its own");
        }
    }
    Some(engines)
}

fn engine(node: &YamlNode, findings: &mut Findings<'_>) -> Option<DeclaredEngine> {
    let what = "an entry of engines";
    let advice: &[decode::Advice] = &[(&MATCH_KEYS, "it belongs to match"), NO_SECRETS];
    let table = Table::read_advised(node, what, &KEYS, advice, findings)?;
    let name = match table.get("name") {
        Some(node) => value(node, "name", name, findings),
        None => {
            findings.add(table.span(), format!("{what} has no name")).hint("name: deepseek");
            None
        }
    };
    let matches = match table.get("match") {
        Some(node) => matches(node, findings),
        None => {
            findings
                .add(table.span(), format!("{what} does not say which processes are its"))
                .hint("match: {comm: \"VLLM::*\"}");
            None
        }
    };
    let model_files = table.read_or("model_files", Vec::new(), model_files, findings);
    let health = table.value_optional("health", health, findings);
    let stuck_after = table.value_optional("stuck_after", stuck_after, findings);
    let api = secret(&table, ["api_key_file", "api_key_env"], findings);
    let admin = secret(&table, ["admin_key_file", "admin_key_env"], findings);
    Some(DeclaredEngine {
        name: name?,
        matches: matches?,
        model_files: model_files?,
        health: health?,
        stuck_after: stuck_after?,
        keys: keys(&table, api?, admin?, findings)?,
    })
}

/// The keys, and whose processes get them.
fn keys(
    table: &Table<'_>,
    api: Option<SecretSource>,
    admin: Option<SecretSource>,
    findings: &mut Findings<'_>,
) -> Option<EngineKeys> {
    let Some(node) = table.get("user") else { return Some(EngineKeys { api, admin, user: None }) };
    let user = value(node, "user", user, findings)?;
    if api.is_none() && admin.is_none() {
        findings
            .add(node.span.clone(), "user says whose processes get the keys, and there is no key")
            .hint("name a key (api_key_file), or remove user");
        return None;
    }
    Some(EngineKeys { api, admin, user: Some(user) })
}

/// A number, or a name as in `/etc/passwd`.
pub(super) fn user(text: &str) -> Result<EngineUser, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    // The last number means that nothing is to be changed.
    let id = text.parse().ok().filter(|id| *id < u32::MAX);
    let is_plain = |c: char| c.is_ascii_graphic() && !":/,".contains(c);
    let is_name = !text.starts_with('-') && text.chars().all(is_plain);
    match (is_number, id) {
        (true, Some(id)) => Ok(EngineUser::Id(id)),
        (false, _) if is_name && !text.is_empty() && text.len() <= LONGEST_NAME => {
            Ok(EngineUser::Name(text.into()))
        }
        _ => Err(format!("\"{text}\" is no user: write a name or a number, as in user: vllm")),
    }
}

/// Where a key is: in a file, or in a variable of the environment.
fn secret(
    table: &Table<'_>,
    [file, environment]: [&str; 2],
    findings: &mut Findings<'_>,
) -> Option<Option<SecretSource>> {
    match (table.get(file), table.get(environment)) {
        (None, None) => Some(None),
        (Some(node), None) => value(node, file, key_file, findings).map(Some),
        (None, Some(node)) => value(node, environment, variable, findings).map(Some),
        (Some(_), Some(node)) => {
            findings
                .add(node.span.clone(), format!("{file} and {environment} name the same key"))
                .hint("remove one of them");
            None
        }
    }
}

pub(super) fn key_file(text: &str) -> Result<SecretSource, String> {
    let is_path = text.starts_with('/')
        && !text.ends_with('/')
        && text.len() <= LONGEST_GLOB
        && !text.chars().any(char::is_control);
    is_path.then(|| SecretSource::File(text.into())).ok_or_else(|| {
        "write the path of a file from the root, and not the key: /etc/umawarden/sglang.key"
            .to_owned()
    })
}

fn variable(text: &str) -> Result<SecretSource, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = !text.is_empty()
        && text.len() <= LONGEST_NAME
        && text.chars().all(is_plain)
        && !text.starts_with(|c: char| c.is_ascii_digit());
    is_name
        .then(|| SecretSource::Environment(text.into()))
        .ok_or_else(|| "write the name of a variable, and not the key: SGLANG_API_KEY".to_owned())
}

fn matches(node: &YamlNode, findings: &mut Findings<'_>) -> Option<EngineMatch> {
    let table = Table::read(node, "match", &MATCH_KEYS, findings)?;
    let labels = table.read_or("label", Vec::new(), labels, findings);
    let mut read = |key: &str, read: fn(&str) -> Result<Arc<str>, String>| {
        table.value_optional(key, read, findings)
    };
    let comm = read("comm", comm);
    let cmdline = read("cmdline", glob);
    let unit = read("unit", glob);
    let container = read("container", glob);
    let namespace = read("namespace", glob);
    let matches = EngineMatch {
        comm: comm?,
        cmdline: cmdline?,
        unit: unit?,
        container: container?,
        namespace: namespace?,
        labels: labels?,
    };
    if matches == EngineMatch::default() {
        findings
            .add(node.span.clone(), "match says nothing: it would be every process")
            .hint(format!("write at least one of: {}", MATCH_KEYS.join(", ")));
        return None;
    }
    Some(matches)
}

/// `key=value` as Docker writes it, or several as `{key: value}`; a key alone is any value.
fn labels(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<(Arc<str>, Arc<str>)>> {
    if let Content::Map(_) = node.content {
        let entries = pairs(node, "label", findings)?;
        if entries.len() > MOST_LABELS {
            findings.add(node.span.clone(), format!("more than {MOST_LABELS} labels"));
            return None;
        }
        let mut labels = Some(Vec::new());
        for (key, at, node) in entries {
            let key = value(at, "label", |_| label_key(key), findings);
            let glob = value(node, "label", label_value, findings);
            match (key, glob, &mut labels) {
                (Some(key), Some(glob), Some(labels)) => labels.push((key, glob)),
                _ => labels = None,
            }
        }
        return labels;
    }
    let one = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, "*"));
        Ok((label_key(key)?, label_value(value)?))
    };
    value(node, "label", one, findings).map(|label| vec![label])
}

/// A label may be there and say nothing.
fn label_value(text: &str) -> Result<Arc<str>, String> {
    if text.is_empty() { Ok(text.into()) } else { glob(text) }
}

fn label_key(text: &str) -> Result<Arc<str>, String> {
    let is_plain = text.chars().all(|c| c.is_ascii_graphic());
    if text.is_empty() || text.len() > LONGEST_GLOB || !is_plain {
        return Err(format!("\"{text}\" is no label's name; write it as in app=llm"));
    }
    Ok(text.into())
}

fn name(text: &str) -> Result<Arc<str>, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.len() > LONGEST_NAME || !text.chars().all(is_plain) {
        return Err(format!(
            "\"{text}\" is no name; write 1 to {LONGEST_NAME} letters, digits, dots, dashes and \
             underscores"
        ));
    }
    Ok(text.into())
}

fn glob(text: &str) -> Result<Arc<str>, String> {
    if text.is_empty() || text.len() > LONGEST_GLOB {
        return Err(format!("a glob has 1 to {LONGEST_GLOB} characters"));
    }
    Pattern::new(text).map_err(|error| format!("\"{text}\" is no glob: {error}"))?;
    Ok(text.into())
}

fn comm(text: &str) -> Result<Arc<str>, String> {
    let is_plain = !text.contains(['*', '?', '[']);
    if is_plain && text.len() > LONGEST_COMM {
        let start: String = text.chars().take(LONGEST_COMM).collect();
        return Err(format!(
            "\"{text}\" is never a process' name: the kernel keeps {LONGEST_COMM} bytes; write \
             \"{start}\" or cmdline"
        ));
    }
    glob(text)
}

fn model_files(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<Arc<str>>> {
    let read = |text: &str| {
        if !text.starts_with('/') {
            return Err(format!("\"{text}\" does not begin with /"));
        }
        if text.split('/').any(|part| part == "..") {
            return Err(format!("\"{text}\" leads back out of its folder (..)"));
        }
        let fixed = text.split('/').take_while(|part| !part.contains(['*', '?', '[']));
        if fixed.filter(|part| !part.is_empty()).count() == 0 {
            return Err(format!("\"{text}\" may be any file; begin with a folder"));
        }
        glob(text)
    };
    let what = "an entry of model_files";
    if node.text().is_some() {
        return value(node, "model_files", read, findings).map(|one| vec![one]);
    }
    let entries = list(node, "model_files", findings)?;
    if entries.len() > MOST_FILES {
        findings.add(node.span.clone(), format!("more than {MOST_FILES} model_files"));
        return None;
    }
    each(entries, findings, |entry, findings| value(entry, what, read, findings))
}

fn health(text: &str) -> Result<Arc<str>, String> {
    let Some(rest) = text.strip_prefix("http://") else {
        return Err(format!("\"{text}\" does not begin with http://"));
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_graphic();
    if authority.is_empty() || authority.contains('@') || !text.chars().all(is_plain) {
        return Err(format!("\"{text}\" is no address as in http://127.0.0.1:8000/health"));
    }
    text.parse::<http::Uri>().map_err(|error| format!("\"{text}\" is no address: {error}"))?;
    Ok(text.into())
}

fn stuck_after(text: &str) -> Result<Duration, String> {
    duration_within(text, SHORTEST_STUCK, LONGEST_STUCK)
}

#[cfg(test)]
mod tests {
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;
    use crate::model::{EngineUser, SecretSource};

    fn mistakes(text: &str) -> Vec<String> {
        let error = parse_settings(&SourceText::new("f", text)).expect_err(text);
        let expected = error.0.iter().map(|mistake| {
            let hint = mistake.hint.as_deref().unwrap_or_default();
            format!("{}:{} {} [{hint}]", mistake.line, mistake.column, mistake.message)
        });
        expected.collect()
    }

    #[test]
    fn an_engine_is_declared_as_in_the_readme() {
        let text = "engines:\n- name: deepseek\n  \
                    match: {comm: \"VLLM::*\", unit: vllm.service}\n  \
                    model_files: [\"/models/deepseek/**/*.safetensors\"]\n  \
                    health: http://127.0.0.1:8000/health\n  stuck_after: 10m\n";
        let engines = parse_settings(&SourceText::new("f", text)).unwrap().engines.unwrap();
        let engine = &engines[0];
        assert_eq!(&*engine.name, "deepseek");
        assert_eq!(engine.matches.comm.as_deref(), Some("VLLM::*"));
        assert_eq!(engine.matches.unit.as_deref(), Some("vllm.service"));
        assert_eq!(&*engine.model_files[0], "/models/deepseek/**/*.safetensors");
        assert_eq!(engine.health.as_deref(), Some("http://127.0.0.1:8000/health"));
        assert_eq!(engine.stuck_after, Some(std::time::Duration::from_secs(600)));
    }

    #[test]
    fn key_sources_are_read_and_mistaken_keys_are_not_shown() {
        let text = "engines: [{name: a, match: {comm: b}, api_key_env: SGLANG_KEY, \
                    admin_key_file: /run/keys/sglang}]";
        let engines = parse_settings(&SourceText::new("f", text)).unwrap().engines.unwrap();
        let keys = engines[0].keys.clone();
        assert_eq!(keys.api, Some(SecretSource::Environment("SGLANG_KEY".into())));
        assert_eq!(keys.admin, Some(SecretSource::File("/run/keys/sglang".into())));
        assert_eq!(keys.user, None, "the owner of the file");
        for (user, read) in
            [("vllm", EngineUser::Name("vllm".into())), ("998", EngineUser::Id(998))]
        {
            let text =
                format!("engines: [{{name: a, match: {{comm: b}}, api_key_env: K, user: {user}}}]");
            let engines = parse_settings(&SourceText::new("f", &text)).unwrap().engines.unwrap();
            assert_eq!(engines[0].keys.user, Some(read));
        }
        for key in ["api_key_file", "api_key_env", "admin_key_file", "admin_key_env"] {
            let expected =
                mistakes(&format!("engines: [{{name: a, match: {{comm: b}}, {key}: s-1}}]"));
            assert!(expected.iter().all(|expected| !expected.contains("s-1")), "{expected:?}");
        }
    }

    #[test]
    fn labels_are_written_as_docker_writes_them_or_as_a_mapping() {
        for (text, wanted) in [
            ("app=llm*", &[("app", "llm*")][..]),
            ("app", &[("app", "*")]),
            ("a=b=c", &[("a", "b=c")]),
            ("app=", &[("app", "")]),
            ("{app: llm, tier: '*'}", &[("app", "llm"), ("tier", "*")]),
        ] {
            let text = format!("engines: [{{name: a, match: {{label: {text}}}}}]");
            let engines = parse_settings(&SourceText::new("f", &text)).unwrap().engines.unwrap();
            let labels = engines[0].matches.labels.iter().map(|(key, value)| (&**key, &**value));
            assert_eq!(labels.collect::<Vec<_>>(), wanted, "{text}");
        }
    }

    #[test]
    fn mistakes_are_reported_at_their_place_with_a_correction() {
        for (text, expected) in [
            ("engines: [{match: {comm: a}}]", "1:12 an entry of engines has no name [name: deep"),
            ("engines: [{name: a}]", "1:12 an entry of engines does not say which processes"),
            ("engines: [{name: a b, match: {comm: a}}]", "1:18 name: \"a b\" is no name"),
            ("engines: [{nam: a, match: {comm: a}}]", "1:12 unknown key \"nam\" in an entry"),
            ("engines: [{name: a, comm: b}]", "[it belongs to match]"),
            ("engines: [{name: a, match: {}}]", "match says nothing"),
            ("engines: [{name: a, match: {com: b}}]", "unknown key \"com\" in match [did you mean"),
            ("engines: [{name: a, match: {comm: 'a[b'}}]", "is no glob"),
            ("engines: [{name: a, match: {comm: VLLM::EngineCore}}]", "write \"VLLM::EngineCor\""),
            ("engines: [{name: a, match: {label: =y}}]", "\"\" is no label's name"),
            ("engines: [{name: a, match: {label: {a b: y}}}]", "\"a b\" is no label's name"),
            ("engines: [{name: a, match: {label: {a: '[x'}}}]", "is no glob"),
            ("engines: [{name: a, match: {label: [a]}}]", "label must be text"),
            ("engines: [{name: a, match: {label: {}}}]", "match says nothing"),
            ("engines: [{name: a, match: {comm: b}, model_files: m/*}]", "does not begin with /"),
            ("engines: [{name: a, match: {comm: b}, model_files: [/**]}]", "may be any file"),
            ("engines: [{name: a, match: {comm: b}, model_files: [/a/../etc/*]}]", "leads back"),
            ("engines: [{name: a, match: {comm: b}, health: 'https://a/'}]", "begin with http://"),
            ("engines: [{name: a, match: {comm: b}, health: 'http://u:p@a/'}]", "is no address"),
            ("engines: [{name: a, match: {comm: b}, stuck_after: 1s}]", "from 10s to 1d"),
            ("engines: [{name: a, match: {comm: b}, api_key: sk-1}]", "name a file or a variable"),
            ("engines: [{name: a, match: {comm: b}, api_key_file: sk-1}]", "and not the key: /etc"),
            ("engines: [{name: a, match: {comm: b}, admin_key_file: /etc/}]", "path of a file"),
            ("engines: [{name: a, match: {comm: b}, api_key_env: sk-1}]", "and not the key: SGL"),
            ("engines: [{name: a, match: {comm: b}, admin_key_env: 1A}]", "name of a variable"),
            ("engines: [{name: a, match: {comm: b}, api_key_env: K, user: a b}]", "is no user"),
            ("engines: [{name: a, match: {comm: b}, api_key_env: K, user: -1}]", "is no user"),
            ("engines: [{name: a, match: {comm: b}, api_key_env: K, user: 4294967295}]", "is no"),
            ("engines: [{name: a, match: {comm: b}, user: vllm}]", "there is no key [name a key"),
            (
                "engines: [{name: a, match: {comm: b}, api_key_file: /k, api_key_env: K}]",
                "api_key_file and api_key_env name the same key [remove one of them]",
            ),
            ("engines: {name: a}", "engines must be a list"),
        ] {
            let found = mistakes(text);
            assert!(found.iter().any(|one| one.contains(expected)), "{text}\n{found:#?}");
        }
        let two = "engines:\n- {name: a, match: {comm: b}}\n- {name: a, match: {comm: c}}\n";
        assert!(mistakes(two)[0].starts_with("3:3 two engines have the name \"a\""));
    }
}
