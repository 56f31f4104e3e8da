use super::*;
use crate::config::flags::RunFlags;
use crate::config::mistake::SourceText;
use crate::config::rules::parse_rules;
use crate::config::settings::limits::DEFAULT_INTERVAL;
use crate::config::settings::{Environment, parse_settings};

fn rules(steps: &str, mode: &str) -> RuleSet {
    let text = format!(
        "groups:\n- name: g\n  rules:\n  - alert: A\n    expr: uma_engine_growth_bytes > 1\n    \
         mode: {mode}\n    remedy:\n      aim: uma_memory_free_bytes > 1\n      \
         steps: [{steps}]\n      cooldown: 1m\n"
    );
    parse_rules(&[SourceText::new("f", &text)], DEFAULT_INTERVAL).unwrap()
}

fn settings(text: &str) -> Settings {
    let file = parse_settings(&SourceText::new("f", text)).unwrap();
    Settings::merge(&RunFlags::default(), file, Path::new("/etc"), &Environment::default())
}

fn all() -> Abilities {
    Abilities {
        capabilities: CapabilitySet::all(),
        is_in_user_namespace: false,
        numbers: Numbers::Ours,
        has_cachestat: true,
        reclaims: Reclaims::Exactly,
        docker: DockerAccess::Open,
    }
}

fn missing_with(rules: &RuleSet, able: &Abilities) -> Vec<String> {
    let settings = settings("mode: observe");
    unable(&settings, rules, able).into_iter().map(|missing| missing.what).collect()
}

#[test]
fn missing_abilities_are_reported_only_for_rules_and_with_their_urgency() {
    let able = Abilities { capabilities: CapabilitySet::empty(), ..all() };
    let notice = rules("notify: {message: low}", "enforce");
    assert_eq!(missing_with(&notice, &able), Vec::<String>::new());
    let settings = settings("mode: observe");
    for (mode, is_now) in [("observe", false), ("enforce", true)] {
        let rules = rules("stop_engine: {grace: 1s}", mode);
        let missing = unable(&settings, &rules, &able);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(missing[0].wanted_now, is_now);
        let wanted =
            "action stop_engine: without CAP_KILL only engines of this user can be stopped";
        assert_eq!(missing[0].what, wanted);
    }
    assert_eq!(
        missing_with(&rules("stop_engine: {grace: 1s}", "enforce"), &all()),
        Vec::<String>::new()
    );
}

#[test]
fn each_missing_ability_is_reported_for_its_actions() {
    let evict = rules("evict_checkpoint: {engine: a}", "enforce");
    let stop = rules("stop_engine: {grace: 1s}", "enforce");
    let reclaim = rules("reclaim: {cgroup: /a, bytes: 1GiB}", "enforce");
    let boxed = Abilities { numbers: Numbers::Others, ..all() };
    let part = Abilities { numbers: Numbers::OfAPart, ..all() };
    let lost = Abilities { numbers: Numbers::Unknown, ..all() };
    let old = Abilities { has_cachestat: false, ..all() };
    let half = CapabilitySet::all() - CapabilitySet::SYS_NICE - CapabilitySet::FOWNER;
    let half = Abilities { capabilities: half, ..all() };
    let rootless = Abilities { is_in_user_namespace: true, ..all() };
    let closed = Abilities { docker: DockerAccess::Closed(Errno::ACCESS), ..all() };
    let first = Abilities { reclaims: Reclaims::Everything, ..all() };
    let none = Abilities { reclaims: Reclaims::NoController, ..all() };
    for (rules, able, wanted) in [
        (&evict, &boxed, "numbers of another PID namespace"),
        (&stop, &boxed, "numbers of another PID namespace"),
        (&evict, &part, "in a PID namespace of its own"),
        (&stop, &lost, "this program is not below path.procfs"),
        (&evict, &old, "no cachestat(2)"),
        (&evict, &half, "without CAP_SYS_NICE, CAP_FOWNER, cached"),
        (&stop, &rootless, "without CAP_KILL outside of its user namespace"),
        (&stop, &closed, "/run/docker.sock cannot be used: Permission denied"),
        (&reclaim, &first, "takes back all that it can"),
        (&reclaim, &none, "no memory controller"),
    ] {
        let missing = missing_with(rules, able);
        assert!(missing.len() == 1 && missing[0].contains(wanted), "{wanted}: {missing:?}");
    }
    for (rules, able) in [(&reclaim, &boxed), (&reclaim, &half), (&stop, &old), (&evict, &first)] {
        assert_eq!(missing_with(rules, able), Vec::<String>::new());
    }
}

#[test]
fn one_lack_of_several_actions_is_reported_once() {
    let both = rules("evict_checkpoint: {engine: a}, stop_engine: {grace: 1s}", "enforce");
    let both = RuleSet { groups: both.groups, ..RuleSet::default() };
    let boxed = Abilities { numbers: Numbers::Others, ..all() };
    let missing = missing_with(&both, &boxed);
    assert!(
        missing.len() == 1 && missing[0].starts_with("actions evict_checkpoint, stop_engine: "),
        "{missing:?}"
    );
    let write = rules("drop_caches: {what: all}, compact_memory: {}", "enforce");
    let settings = settings("path: {procfs: /nonexistent}");
    let missing: Vec<String> =
        unwritable(&settings, &write).into_iter().map(|missing| missing.what).collect();
    assert_eq!(
        missing,
        ["actions drop_caches, compact_memory: /nonexistent/sys/vm/drop_caches, \
        /nonexistent/sys/vm/compact_memory cannot be written: No such file or directory (os error 2)"]
    );
}

#[test]
fn an_absent_docker_is_reported_only_if_containers_are_declared() {
    let stop = rules("stop_engine: {grace: 1s}", "enforce");
    let able = Abilities { docker: DockerAccess::Absent, ..all() };
    assert_eq!(missing_with(&stop, &able), Vec::<String>::new());
    let settings = settings("engines: [{name: a, match: {label: app=llm}}]");
    let missing = unable(&settings, &stop, &able);
    assert!(missing[0].what.contains("there is no /run/docker.sock"), "{missing:?}");
}

#[test]
fn missing_keys_and_inaccessible_engine_networks_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("key");
    std::fs::write(&there, "sk-1").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&there, mode(0o600)).unwrap();
    let text = format!(
        "engines:\n- {{name: a, match: {{comm: a}}, api_key_file: {}}}\n\
         - {{name: b, match: {{comm: b}}, api_key_file: /nonexistent/key, admin_key_env: NO_KEY}}\n",
        there.display()
    );
    let lacking: Vec<String> = keyless(&settings(&text)).into_iter().map(|one| one.what).collect();
    assert_eq!(lacking.len(), 2, "{lacking:?}");
    assert!(
        lacking[0].starts_with("the key of engine b: /nonexistent/key: No such"),
        "{lacking:?}"
    );
    assert_eq!(lacking[1], "the key of engine b: the variable NO_KEY: it is not set");
    std::fs::set_permissions(&there, mode(0o604)).unwrap();
    let open = keyless(&settings(&text)).remove(0).what;
    assert!(open.contains("everybody on this machine may read it (mode 0604)"), "{open}");
    let able = Abilities { capabilities: CapabilitySet::empty(), ..all() };
    let empty = rules("empty_cache: {engine: a}", "enforce");
    assert!(
        missing_with(&empty, &able)[0].contains("without CAP_SYS_ADMIN, an engine in a container")
    );
    assert_eq!(missing_with(&empty, &all()), Vec::<String>::new());
}

#[test]
fn an_unusable_way_to_reboot_is_reported() {
    use std::ffi::OsStr;
    use std::os::unix::fs::PermissionsExt;

    use crate::model::RebootWay;
    use crate::supervisors::logind::Bus;
    use rebooting::of_way;

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (bus, search) = (Bus::Peer(path("bus")), folder.path().as_os_str());
    let lacking = |way: RebootWay, search: &OsStr| {
        of_way(&way, &bus, search).map(|(what, _)| what).unwrap_or_default()
    };
    let command = |program: &str| RebootWay::Command { line: vec![program.to_owned()] };
    let absolute = command(path("tool").to_str().unwrap());
    let sentinel = |name: &str| RebootWay::Sentinel { file: path(name) };
    assert!(lacking(RebootWay::Logind, search).contains("bus cannot be used: No such file"));
    assert!(lacking(sentinel("none/file"), search).contains("none: No such file"));
    assert!(lacking(absolute.clone(), search).contains("tool of reboot.command cannot be run"));
    assert_eq!(lacking(command("tool"), search), "tool of reboot.command is nowhere on PATH");
    std::fs::write(path("tool"), "").unwrap();
    assert!(
        lacking(absolute.clone(), search).contains("Permission denied"),
        "it is not executable"
    );
    std::fs::set_permissions(path("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(path("bus"), "").unwrap();
    for way in [RebootWay::Logind, sentinel("file"), absolute, command("tool")] {
        assert_eq!(lacking(way, search), "");
    }
    assert_eq!(
        lacking(command("tool"), OsStr::new("")),
        "tool of reboot.command is nowhere on PATH"
    );
    assert!(lacking(command(folder.path().to_str().unwrap()), search).contains("Is a directory"));
}

#[test]
fn the_reboot_way_is_checked_for_reboot_rules_and_sysrq_where_allowed() {
    let settings = settings("path: {procfs: /nowhere}");
    let with = |steps: &str, sysrq_after| {
        let mut rules = rules(steps, "enforce");
        rules.guard_rails.reboot.way = crate::model::RebootWay::Sentinel { file: "/x/y".into() };
        rules.guard_rails.reboot.sysrq_after = sysrq_after;
        let missing = rebooting::missing(&settings, &rules);
        assert!(missing.iter().all(|one| one.wanted_now));
        missing.into_iter().map(|one| one.what).collect::<Vec<String>>()
    };
    let hour = Some(std::time::Duration::from_secs(3_600));
    assert_eq!(with("compact_memory: {}", hour), Vec::<String>::new());
    let reboots = "reboot: {why: a}";
    let expected = "action reboot: /x/y cannot be made: /x: No such file or directory (os error 2)";
    assert_eq!(with(reboots, None), [expected]);
    assert!(with(reboots, hour)[1].contains("/nowhere/sysrq-trigger cannot be written"));
}
