//! `restarts`: containers and units that are restarted when there is memory for them. Containers
//! can request the same by a label.

use std::sync::Arc;
use std::time::Duration;

use glob::Pattern;

use super::decode::{self, Advice, Findings, Table, each, list, value};
use super::engines;
use super::guard_rails::at_most;
use super::measure::size_bytes;
use super::yaml::YamlNode;
use crate::model::{DeclaredRestart, Mode, RestartLimits, RestartMatch, StartNeed, pool_names};
use crate::policy::guard::AtMost;

const KEYS: [&str; 14] = [
    "container",
    "label",
    "unit",
    "user",
    "need",
    "contiguous",
    "host_need",
    "pool",
    "mode",
    "back_off",
    "at_most",
    "give_up_after",
    "healthy_after",
    "ready_within",
];

const ADVICE: [Advice; 4] = [
    (&["name"], "write container: NAME, or unit: NAME.service"),
    (&["backoff"], "it is called back_off: {first: 10s, most: 5m}"),
    (&["max_restarts", "retries"], "write at_most: {times: 10, per: 1h}"),
    (&["memory"], "it is called need: 90GiB"),
];

const MOST_ENTRIES: usize = 64;
const LONGEST: usize = 256;

const SHORTEST_BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_TIME: Duration = Duration::from_secs(86_400);
const LEAST_NEED: u64 = 1 << 20;
const MOST_DEATHS: u32 = 1_000;

/// Reads the list; `None` where it has mistakes.
pub(super) fn read(node: &YamlNode, findings: &mut Findings<'_>) -> Option<Vec<DeclaredRestart>> {
    let entries = list(node, "restarts", findings)?;
    if entries.len() > MOST_ENTRIES {
        findings.add(node.span.clone(), format!("more than {MOST_ENTRIES} entries of restarts"));
        return None;
    }
    let found = each(entries, findings, entry)?;
    for (index, (one, node)) in found.iter().zip(entries).enumerate() {
        let earlier = &found[..index];
        let unit = one.matches.unit();
        if earlier.iter().any(|earlier| earlier.matches == one.matches) {
            findings
                .add(node.span.clone(), "an entry before this one means the same")
                .hint("the first one decides: remove one of the two");
        } else if unit.is_some() && earlier.iter().any(|earlier| earlier.matches.unit() == unit) {
            findings
                .add(node.span.clone(), "an entry before this one has a unit of the same name")
                .hint("each deferred restart has a name of its own: rename one of the two units");
        }
    }
    Some(found)
}

fn entry(node: &YamlNode, findings: &mut Findings<'_>) -> Option<DeclaredRestart> {
    let what = "an entry of restarts";
    let table = Table::read_advised(node, what, &KEYS, &ADVICE, findings)?;
    let matches = matches(&table, findings);
    let need = start_need(&table, findings);
    let mode = table.choice_optional("mode", &Mode::CHOICES, findings);
    let limits = limits(&table, findings);
    Some(DeclaredRestart { matches: matches?, need: need?, limits: limits?, mode: mode? })
}

fn start_need(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<StartNeed> {
    let size = |key: &str, findings: &mut Findings<'_>| table.value_optional(key, need, findings);
    let (need_bytes, contiguous_bytes) = (size("need", findings), size("contiguous", findings));
    let host_need_bytes = size("host_need", findings);
    let pools = table.value_optional("pool", pool_names, findings);
    Some(StartNeed {
        need_bytes: need_bytes?,
        contiguous_bytes: contiguous_bytes?,
        host_need_bytes: host_need_bytes?,
        pools: pools?.unwrap_or_default(),
    })
}

fn matches(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<RestartMatch> {
    let which = ["container", "label", "unit"];
    let mut written = which.iter().filter_map(|key| Some((*key, table.get(key)?)));
    let Some((key, node)) = written.next() else {
        findings
            .add(table.span(), "an entry of restarts does not say what is started again")
            .hint("write container: vllm-*, label: app=llm, or unit: vllm.service");
        return None;
    };
    if let Some((other, node)) = written.next() {
        findings
            .add(node.span.clone(), format!("an entry of restarts says both {key} and {other}"))
            .hint("write an entry for each");
        return None;
    }
    let user = table.value_optional("user", engines::user, findings)?;
    if let (Some(node), false) = (table.get("user"), key == "unit") {
        findings
            .add(
                node.span.clone(),
                format!("user says whose systemd has the unit, and this entry has a {key}"),
            )
            .hint("remove user, or write unit: vllm.service");
        return None;
    }
    match key {
        "container" => value(node, key, glob, findings).map(RestartMatch::Container),
        "unit" => value(node, key, unit, findings).map(|name| match user {
            Some(user) => RestartMatch::UnitOfUser(user, name),
            None => RestartMatch::Unit(name),
        }),
        _ => value(node, key, label, findings).map(|(key, glob)| RestartMatch::Label(key, glob)),
    }
}

fn limits(table: &Table<'_>, findings: &mut Findings<'_>) -> Option<RestartLimits> {
    let usual = RestartLimits::default();
    let back_off = table.read_or(
        "back_off",
        (usual.back_off, usual.back_off_at_most),
        |node, findings| back_off(node, &usual, findings),
        findings,
    );
    let example = "at_most: {times: 10, per: 1h}";
    let bound = table.read_or(
        "at_most",
        AtMost { times: usual.times, per: usual.per },
        |node, findings| at_most(node, "at_most", example, findings),
        findings,
    );
    let give_up_after = table.value_or("give_up_after", usual.give_up_after, deaths, findings);
    let mut time = |key: &str, usual: Duration| {
        table.duration_or(key, usual, Duration::from_secs(1)..=LONGEST_TIME, findings)
    };
    let healthy_after = time("healthy_after", usual.healthy_after);
    let ready_within = time("ready_within", usual.ready_within);
    let ((back_off, back_off_at_most), bound) = (back_off?, bound?);
    Some(RestartLimits {
        back_off,
        back_off_at_most,
        times: bound.times,
        per: bound.per,
        give_up_after: give_up_after?,
        healthy_after: healthy_after?,
        ready_within: ready_within?,
    })
}

fn back_off(
    node: &YamlNode,
    usual: &RestartLimits,
    findings: &mut Findings<'_>,
) -> Option<(Duration, Duration)> {
    let example = "write back_off: {first: 10s, most: 5m}";
    if node.text().is_some() {
        decode::wrong_kind(node, "back_off", decode::MAPPING, findings).hint(example);
        return None;
    }
    let table = Table::read(node, "back_off", &["first", "most"], findings)?;
    let bounds = SHORTEST_BACK_OFF..=LONGEST_TIME;
    let first = table.duration_or("first", usual.back_off, bounds.clone(), findings);
    let usual_most = usual.back_off_at_most.max(first.unwrap_or_default());
    let most = table.duration_or("most", usual_most, bounds, findings);
    let (first, most) = (first?, most?);
    if most < first {
        findings.add(table.span(), "back_off ends before it begins").hint(example);
        return None;
    }
    Some((first, most))
}

fn deaths(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(found) if (1..=MOST_DEATHS).contains(&found) => Ok(found),
        _ => Err(format!("\"{text}\" is no number from 1 to {MOST_DEATHS}")),
    }
}

fn need(text: &str) -> Result<u64, String> {
    match size_bytes(text)? {
        bytes if bytes < LEAST_NEED => Err(format!("{text} is less than 1MiB")),
        bytes => Ok(bytes),
    }
}

fn glob(text: &str) -> Result<Arc<str>, String> {
    if text.is_empty() || text.len() > LONGEST {
        return Err(format!("a glob has 1 to {LONGEST} characters"));
    }
    Pattern::new(text).map_err(|error| format!("\"{text}\" is no glob: {error}"))?;
    Ok(text.into())
}

fn label(text: &str) -> Result<(Arc<str>, Arc<str>), String> {
    let (key, value) = text.split_once('=').unwrap_or((text, "*"));
    let is_plain = key.chars().all(|c| c.is_ascii_graphic());
    if key.is_empty() || key.len() > LONGEST || !is_plain {
        return Err(format!("\"{key}\" is no label's name; write it as in app=llm"));
    }
    let value = if value.is_empty() { Arc::from(value) } else { glob(value)? };
    Ok((key.into(), value))
}

/// Only whole names: what a glob means changes with the units that are loaded.
fn unit(text: &str) -> Result<Arc<str>, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    if !text.ends_with(".service") || text.len() > LONGEST || !text.chars().all(allowed) {
        return Err(format!("\"{text}\" is no service; write its whole name, as vllm.service"));
    }
    Ok(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::mistake::SourceText;
    use crate::config::settings::parse_settings;
    use crate::model::EngineUser;

    fn read(text: &str) -> Vec<DeclaredRestart> {
        parse_settings(&SourceText::new("f", text)).unwrap().restarts.unwrap()
    }

    #[test]
    fn restarts_are_declared_as_in_the_readme() {
        let all = read(
            "restarts:\n- {container: vllm-*, need: 90GiB, contiguous: 6GiB}\n- unit: \
             vllm.service\n  mode: enforce\n  back_off: {first: 1s, most: 2m}\n  at_most: {times: \
             3, per: 30m}\n  give_up_after: 2\n  healthy_after: 1m\n  ready_within: 5m\n- {label: \
             app=llm*}\n- {unit: llm.service, user: amal}\n- {unit: other.service, user: 1000}\n",
        );
        assert_eq!(all[0].matches, RestartMatch::Container("vllm-*".into()));
        assert_eq!(
            (all[0].need.need_bytes, all[0].need.contiguous_bytes),
            (Some(90 << 30), Some(6 << 30))
        );
        assert_eq!((&all[0].limits, all[0].mode), (&RestartLimits::default(), None));
        assert_eq!(all[1].matches, RestartMatch::Unit("vllm.service".into()));
        assert_eq!(all[1].mode, Some(Mode::Enforce));
        let limits = RestartLimits {
            back_off: Duration::from_secs(1),
            back_off_at_most: Duration::from_secs(120),
            times: 3,
            per: Duration::from_secs(1_800),
            give_up_after: 2,
            healthy_after: Duration::from_secs(60),
            ready_within: Duration::from_secs(300),
        };
        assert_eq!(all[1].limits, limits);
        assert_eq!(all[2].matches, RestartMatch::Label("app".into(), "llm*".into()));
        let amals = RestartMatch::UnitOfUser(EngineUser::Name("amal".into()), "llm.service".into());
        assert_eq!(all[3].matches, amals);
        let of_number = RestartMatch::UnitOfUser(EngineUser::Id(1000), "other.service".into());
        assert_eq!(all[4].matches, of_number);
    }

    #[test]
    fn mistakes_are_reported_at_their_place_with_a_correction() {
        for (text, expected) in [
            ("restarts: [{need: 1GiB}]", "1:13 an entry of restarts does not say what is started"),
            ("restarts: [{container: a, unit: b.service}]", "1:33 an entry of restarts says both"),
            ("restarts: [{name: a}]", "[write container: NAME, or unit: NAME.service]"),
            ("restarts: [{unti: a}]", "unknown key \"unti\" in an entry of restarts [did you mean"),
            ("restarts: [{unit: vllm}]", "1:19 unit: \"vllm\" is no service"),
            ("restarts: [{unit: 'vllm*.service'}]", "write its whole name"),
            ("restarts: [{container: 'a[b'}]", "is no glob"),
            ("restarts: [{label: =x}]", "is no label's name"),
            ("restarts: [{container: a, need: much}]", "1:33 need: \"much\" is not a size"),
            ("restarts: [{container: a, need: 12}]", "12 is less than 1MiB"),
            (
                "restarts: [{container: a, back_off: 5s}]",
                "[write back_off: {first: 10s, most: 5m}]",
            ),
            (
                "restarts: [{container: a, back_off: {first: 9s, most: 2s}}]",
                "ends before it begins",
            ),
            ("restarts: [{container: a, back_off: {fist: 9s}}]", "did you mean \"first\"?"),
            ("restarts: [{container: a, at_most: {times: 3}}]", "at_most needs per"),
            ("restarts: [{container: a, give_up_after: 0}]", "is no number from 1 to 1000"),
            ("restarts: [{container: a, healthy_after: 1ms}]", "from 1s to 1d"),
            ("restarts: [{container: a, mode: on}]", "mode cannot be \"on\""),
            ("restarts: [{container: a}, {container: a}]", "an entry before this one means the"),
            ("restarts: {container: a}", "restarts must be a list"),
            ("restarts: [{container: a, user: b}]", "1:33 user says whose systemd has the unit"),
            ("restarts: [{unit: a.service, user: 'a b'}]", "1:36 user: \"a b\" is no user"),
            ("restarts: [{user: amal}]", "1:13 an entry of restarts does not say what is started"),
            (
                "restarts: [{unit: a.service}, {unit: a.service, user: b}]",
                "an entry before this one has a unit of the same name",
            ),
        ] {
            let error = parse_settings(&SourceText::new("f", text)).expect_err(text);
            let mistakes = error.0.iter().map(|mistake| {
                let hint = mistake.hint.as_deref().unwrap_or_default();
                format!("{}:{} {} [{hint}]", mistake.line, mistake.column, mistake.message)
            });
            let mistakes: Vec<String> = mistakes.collect();
            assert!(mistakes.iter().any(|one| one.contains(expected)), "{text}\n{mistakes:#?}");
        }
    }
}
