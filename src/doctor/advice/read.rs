//! Reads a file of advice; each mistake has its position.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    AdviceCertainty, AdviceEntry, AdviceTable, EntryConditions, PresentNames, VersionRange,
    numbers, package_name,
};
use crate::config::decode::{Findings, Table, choice, each, list, pairs, text, value};
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::yaml::{self, YamlNode};
use crate::doctor::Severity;
use crate::doctor::version::PackageVersion;
use crate::engines::ENGINES;
use crate::model::EngineKind;

const TOP: [&str; 2] = ["advice", "images"];
const ENTRY: [&str; 7] = ["id", "when", "severity", "cause", "cure", "source", "certainty"];
const WHEN: [&str; 12] = [
    "engines",
    "loaders",
    "options",
    "variables",
    "packages",
    "machines",
    "page_kib",
    "driver",
    "modules",
    "kernel",
    "dgx_os",
    "hidden_cma_gib",
];

/// Names and texts have at most so many bytes.
const LONGEST_NAME: usize = 64;
const LONGEST_TEXT: usize = 1024;

pub(super) fn parse(source: &SourceText, machines: &[&str]) -> Result<AdviceTable, Mistakes> {
    let root = yaml::parse(source).map_err(|mistake| Mistakes(vec![mistake]))?;
    let mut findings = Findings::new(source);
    let advice = file(&root, machines, &mut findings);
    match (advice, findings.into_mistakes()) {
        (Some(advice), mistakes) if mistakes.is_empty() => Ok(advice),
        (_, mistakes) => Err(Mistakes(mistakes)),
    }
}

fn file(node: &YamlNode, machines: &[&str], findings: &mut Findings<'_>) -> Option<AdviceTable> {
    let table = Table::read(node, "the file", &TOP, findings)?;
    let Some(node) = table.get("advice") else {
        findings.add(table.span(), "advice is missing").hint("write a list of entries: advice:");
        return None;
    };
    let entries = list(node, "advice", findings)?;
    let mut ids = BTreeSet::new();
    let entries = each(entries, findings, |node, findings| {
        let entry = entry(node, machines, findings)?;
        if !ids.insert(entry.id.clone()) {
            let message = format!("there are two entries with the id \"{}\"", entry.id);
            findings.add(node.span.clone(), message);
        }
        Some(entry)
    });
    let images = table.read_or("images", BTreeMap::new(), images, findings);
    Some(AdviceTable { entries: entries?, images: images? })
}

fn images(node: &YamlNode, findings: &mut Findings<'_>) -> Option<BTreeMap<String, String>> {
    let mut images = BTreeMap::new();
    for (repository, _, package) in pairs(node, "images", findings)? {
        let package = value(package, "a package", name, findings)?;
        images.insert(repository.to_owned(), package_name(&package));
    }
    Some(images)
}

fn name(text: &str) -> Result<String, String> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name = !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(is_of_name);
    is_name.then(|| text.to_owned()).ok_or_else(|| {
        format!("\"{text}\" is no name: 1 to {LONGEST_NAME} letters, digits, \"-\", \"_\" or \".\"")
    })
}

fn sentence(text: &str) -> Result<String, String> {
    let is_text = !text.trim().is_empty() && text.len() <= LONGEST_TEXT;
    let is_text = is_text && !text.chars().any(char::is_control);
    let wanted = || format!("a text of one line, of at most {LONGEST_TEXT} bytes, is needed");
    is_text.then(|| text.trim().to_owned()).ok_or_else(wanted)
}

fn entry(node: &YamlNode, machines: &[&str], findings: &mut Findings<'_>) -> Option<AdviceEntry> {
    let table = Table::read(node, "an entry", &ENTRY, findings)?;
    for key in ENTRY {
        if table.get(key).is_none() {
            findings.add(table.span(), format!("an entry lacks {key}"));
        }
    }
    let severities = [("warning", Severity::Warning), ("problem", Severity::Problem)];
    let id = table.value_or("id", String::new(), name, findings);
    let when = table.read_or(
        "when",
        EntryConditions::default(),
        |node, findings| when(node, machines, findings),
        findings,
    );
    let severity = table.choice_or("severity", Severity::Warning, &severities, findings);
    let cause = table.value_or("cause", String::new(), sentence, findings);
    let cure = table.value_or("cure", String::new(), sentence, findings);
    let source = table.value_or("source", String::new(), sentence, findings);
    let certainty =
        table.choice_or("certainty", AdviceCertainty::OneReport, &AdviceCertainty::NAMES, findings);
    Some(AdviceEntry {
        id: id?,
        when: when?,
        severity: severity?,
        cause: cause?,
        cure: cure?,
        source: source?,
        certainty: certainty?,
    })
}

fn when(
    node: &YamlNode,
    machines: &[&str],
    findings: &mut Findings<'_>,
) -> Option<EntryConditions> {
    let table = Table::read(node, "when", &WHEN, findings)?;
    let kinds: Vec<(&str, EngineKind)> = ENGINES
        .iter()
        .filter(|facts| facts.known_as.is_some())
        .map(|facts| (facts.kind.name(), facts.kind))
        .collect();
    let machines: Vec<(&str, &str)> = machines.iter().map(|name| (*name, *name)).collect();
    let engines = choices(&table, "engines", &kinds, findings);
    let machines = choices(&table, "machines", &machines, findings);
    let loaders = table.read_or("loaders", Vec::new(), texts, findings);
    let options = table.read_or("options", PresentNames::default(), options, findings);
    let variables = table.read_or("variables", PresentNames::default(), variables, findings);
    let packages = table.read_or("packages", Vec::new(), packages, findings);
    let page_kib = table.value_optional("page_kib", number, findings);
    let driver = table.read_optional("driver", numeric_range, findings);
    let modules = table.choice_optional("modules", &[("proprietary", ())], findings);
    let kernel = table.read_optional("kernel", kernel, findings);
    let dgx_os = table.read_optional("dgx_os", version_range, findings);
    let hidden_cma_gib = table.value_optional("hidden_cma_gib", number, findings);
    let when = EntryConditions {
        engines: engines?,
        loaders: loaders?,
        options: options?,
        variables: variables?,
        packages: packages?,
        machines: machines?.into_iter().map(str::to_owned).collect(),
        page_kib: page_kib?,
        driver: driver?,
        is_proprietary: modules?.is_some(),
        kernel: kernel?,
        dgx_os: dgx_os?,
        hidden_cma_gib: hidden_cma_gib?,
    };
    let about_engines = ["loaders", "options", "variables", "packages"];
    if when.engines.is_empty()
        && let Some(key) = about_engines.into_iter().find(|key| table.get(key).is_some())
    {
        let message = format!("{key} needs engines: it is about what engines run");
        findings.add(table.key(key).map_or(table.span(), |node| node.span.clone()), message);
        return None;
    }
    if WHEN.iter().all(|key| table.get(key).is_none()) {
        findings.add(node.span.clone(), "when has no condition: what holds for all is no advice");
        return None;
    }
    Some(when)
}

fn number(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| (1..=1 << 20).contains(number));
    number.ok_or_else(|| format!("\"{text}\" is no number from 1 to {}", 1 << 20))
}

fn choices<T: Copy>(
    table: &Table<'_>,
    key: &str,
    known: &[(&str, T)],
    findings: &mut Findings<'_>,
) -> Option<Vec<T>> {
    let read = |node: &YamlNode, findings: &mut Findings<'_>| {
        let entries = list(node, key, findings)?;
        each(entries, findings, |node, findings| choice(node, key, known, findings))
    };
    table.read_or(key, Vec::new(), read, findings)
}

fn texts(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<String>> {
    let entries = list(node, "it", findings)?;
    each(entries, findings, |node, findings| text(node, "a name", findings).map(str::to_owned))
}

fn named(
    node: &YamlNode,
    what: &str,
    one: fn(&str) -> Result<String, String>,
    findings: &mut Findings<'_>,
) -> Option<PresentNames> {
    let table = Table::read(node, what, &["present", "absent"], findings)?;
    let read = |node: &YamlNode, findings: &mut Findings<'_>| {
        let entries = list(node, what, findings)?;
        each(entries, findings, |node, findings| value(node, what, one, findings))
    };
    let present = table.read_or("present", Vec::new(), read, findings);
    let absent = table.read_or("absent", Vec::new(), read, findings);
    Some(PresentNames { present: present?, absent: absent? })
}

fn options(node: &YamlNode, findings: &mut Findings<'_>) -> Option<PresentNames> {
    let option = |text: &str| match name(text) {
        Ok(text) if text.starts_with('-') => Ok(text.replace('_', "-")),
        _ => Err(format!("\"{text}\" is no option; write it as --name")),
    };
    named(node, "options", option, findings)
}

fn variables(node: &YamlNode, findings: &mut Findings<'_>) -> Option<PresentNames> {
    named(node, "variables", name, findings)
}

fn packages(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<Vec<(String, VersionRange<PackageVersion>)>> {
    let mut packages = Vec::new();
    for (package, at, range) in pairs(node, "packages", findings)? {
        if let Err(message) = name(package) {
            findings.add(at.span.clone(), message);
            return None;
        }
        packages.push((package_name(package), version_range(range, findings)?));
    }
    Some(packages)
}

fn kernel(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<(String, VersionRange<Vec<u32>>)> {
    let table = Table::read(node, "kernel", &["flavour", "from", "before"], findings)?;
    let flavour = table.value_or("flavour", String::new(), name, findings);
    Some((flavour?, range(&table, bound, findings)?))
}

fn bound(text: &str) -> Result<Vec<u32>, String> {
    let wanted = || format!("\"{text}\" is no version of numbers, such as 590 or 6.17.0-1008");
    numbers::bound(text).ok_or_else(wanted)
}

fn numeric_range(node: &YamlNode, findings: &mut Findings<'_>) -> Option<VersionRange<Vec<u32>>> {
    let table = Table::read(node, "a range", &["from", "before"], findings)?;
    range(&table, bound, findings)
}

fn version_range(
    node: &YamlNode,
    findings: &mut Findings<'_>,
) -> Option<VersionRange<PackageVersion>> {
    let table = Table::read(node, "a range", &["from", "before"], findings)?;
    let version = |text: &str| {
        PackageVersion::parse(text)
            .ok_or_else(|| format!("\"{text}\" is no version, such as 0.24.0rc1"))
    };
    range(&table, version, findings)
}

fn range<V: Ord>(
    table: &Table<'_>,
    read: impl Fn(&str) -> Result<V, String>,
    findings: &mut Findings<'_>,
) -> Option<VersionRange<V>> {
    let from = table.value_optional("from", &read, findings);
    let before = table.value_optional("before", &read, findings);
    let range = VersionRange { from: from?, before: before? };
    if let (Some(from), Some(before)) = (&range.from, &range.before)
        && from >= before
    {
        let message = "the range is empty: from is not lower than before";
        findings.add(table.span(), message);
        return None;
    }
    Some(range)
}
