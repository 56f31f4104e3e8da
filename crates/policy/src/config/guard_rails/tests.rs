use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::config::mistake::{Mistakes, SourceText};
use crate::config::settings::parse_settings;

fn read(yaml: &str) -> Result<GuardRails, String> {
    let source = SourceText::new("umawarden.yaml", format!("guard_rails:\n{yaml}"));
    match parse_settings(&source) {
        Ok(file) => Ok(file.guard_rails.unwrap_or_else(default_guard_rails)),
        Err(Mistakes(mistakes)) => Err(mistakes.iter().map(ToString::to_string).collect()),
    }
}

#[test]
fn everything_can_be_written() {
    let rails = read(
        "  budget: {times: 10, per: 2h}
  breaker: {misses: 5, reset_after: 0s}
  protect:
    processes: [sshd]
    units: ['*.slice']
    containers: [prod-*]
    namespaces: [kube-*, prod]
    pod_labels: {app: db}
    labels: {tenant: gold}
  maintenance_windows:
  - {name: nights, days: [fri-mon, wednesday], from: '22:00', to: '6:30', time_zone: Asia/Tokyo}
  - {name: always}
  never_in: nights
  inhibited_by: [Backup]
",
    )
    .unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(rails.budget, Some(AtMost { times: 10, per: Duration::from_secs(7200) }));
    assert_eq!(rails.breaker, Some(BreakerLimit { misses: 5, reset_after: None }));
    let nights = WrittenWindow::from(rails.maintenance_windows[0].clone());
    assert_eq!(nights.days, BTreeSet::from([1, 3, 5, 6, 7]));
    assert_eq!((nights.from, nights.to), (22 * 60, 6 * 60 + 30));
    let always = WrittenWindow::from(rails.maintenance_windows[1].clone());
    assert_eq!((always.from, always.to, &*always.time_zone), (0, DAY_MINUTES, "UTC"));
    assert_eq!(rails.never_in, [Arc::from("nights")]);
    assert_eq!(rails.inhibited_by, [Arc::from("Backup")]);
    assert_eq!(rails.protect.units.len(), 1);
    assert_eq!((rails.protect.namespaces.len(), rails.protect.pod_labels.len()), (2, 1));
    let json = serde_json::to_value(&rails).unwrap();
    assert_eq!(serde_json::from_value::<GuardRails>(json).unwrap(), rails, "recorded and back");
}

#[test]
fn absent_parts_have_their_defaults() {
    let rails = read("  never_in: []\n").unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(rails, default_guard_rails());
    let rails = read("  protect: {units: [a]}\n").unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(rails.protect.namespaces, default_guard_rails().protect.namespaces);
    let none =
        read("  protect: {namespaces: []}\n").unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(none.protect, Protected::default());
}

#[test]
fn mistakes_are_reported_with_what_was_meant() {
    for (yaml, found, hint) in [
        ("  budgets: {}", "unknown key \"budgets\"", "did you mean \"budget\"?"),
        ("  budget: 60", "budget must be a mapping", "budget: {times: 60, per: 1h}"),
        ("  budget: {times: 0, per: 1h}", "0 would never act", ""),
        ("  budget: {times: 5}", "budget needs per", "budget: {times: 60, per: 1h}"),
        ("  breaker: {misses: -1}", "\"-1\" is not a whole number from 0", ""),
        ("  breaker: 3", "breaker must be a mapping", "misses: 0 never stops it"),
        ("  protect: {units: ['[']}", "\"[\" is no pattern", ""),
        ("  protect: {unit: [a]}", "unknown key \"unit\"", "did you mean \"units\"?"),
        ("  protect: {labels: {a: ''}}", "protects nothing", ""),
        ("  protect: {pod_labels: {a: '['}}", "\"[\" is no pattern", ""),
        ("  protect: {namespace: [a]}", "unknown key \"namespace\"", "\"namespaces\"?"),
        ("  maintenance_windows: [{from: '1:00'}]", "needs a name", "add name"),
        ("  maintenance_windows: [{name: a, from: '25:00'}]", "no time of day", ""),
        ("  maintenance_windows: [{name: a, from: '24:01'}]", "no time of day", ""),
        ("  maintenance_windows: [{name: a, from: '1:0'}]", "no time of day", ""),
        ("  maintenance_windows: [{name: a, from: '24:00', to: '1:00'}]", "never opens", ""),
        ("  maintenance_windows: [{name: a, from: '2:00', to: '2:00'}]", "never opens", "22:00"),
        ("  maintenance_windows: [{name: a, days: [m]}]", "no day of the week", "mon-fri"),
        ("  maintenance_windows: [{name: a, days: [mon-]}]", "no day of the week", "mon-fri"),
        ("  maintenance_windows: [{name: a, days: []}]", "days is empty", "every day"),
        ("  maintenance_windows: [{name: a}, {name: a}]", "window \"a\" already", "another"),
        ("  maintenance_windows: [{name: a, time_zone: CEST}]", "no IANA time zone", ""),
        (
            "  never_in: [nigts]\n  maintenance_windows: [{name: nights}]",
            "no maintenance window",
            "did you mean \"nights\"?",
        ),
    ] {
        let mistakes = read(yaml).expect_err(yaml);
        assert!(mistakes.contains(found) && mistakes.contains(hint), "{yaml}\n{mistakes}");
    }
}

proptest! {
    #[test]
    fn arbitrary_text_is_read_or_refused(
        key in prop::sample::select(KEYS.to_vec()),
        text in "[-\\[\\]{}:,a-z0-9*'\" \n]{0,60}",
    ) {
        // What matters is that it ends, and without a panic.
        drop(read(&format!("  {key}: {text}\n")));
    }

    #[test]
    fn arbitrary_windows_are_read_or_refused(
        from in "[0-9:]{0,6}",
        to in "[0-9:]{0,6}",
        day in "[a-z-]{0,9}",
        zone in "[A-Za-z/_]{0,20}",
    ) {
        let yaml = format!(
            "  maintenance_windows:\n  - {{name: a, days: ['{day}'], from: '{from}', to: '{to}', \
             time_zone: '{zone}'}}\n"
        );
        drop(read(&yaml));
    }
}

#[test]
fn misplaced_guard_rail_keys_are_reported_with_their_section() {
    let source = SourceText::new("umawarden.yaml", "budget: {times: 60, per: 1h}\n");
    let Err(mistakes) = parse_settings(&source) else { panic!("it was taken") };
    assert!(mistakes.to_string().contains("it belongs to guard_rails"), "{mistakes}");
}

#[test]
fn unknown_alert_names_are_reported_at_their_line() {
    let text = "guard_rails:\n  inhibited_by: [Bakup]\n";
    let file = parse_settings(&SourceText::new("umawarden.yaml", text)).unwrap();
    let [named] = file.named_alerts.as_slice() else { panic!("{file:?}") };
    assert_eq!(named.check(["Bakup"].into_iter()), None);
    let mistake = named.check(["Low", "Backup"].into_iter()).unwrap().to_string();
    assert!(mistake.contains("umawarden.yaml:2:18"), "{mistake}");
    assert!(mistake.contains("did you mean \"Backup\"?"), "{mistake}");
}
