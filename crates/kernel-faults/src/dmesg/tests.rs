use proptest::prelude::*;

use super::*;

fn messages(text: &[u8]) -> Vec<Message> {
    let mut log = LogText::new();
    let mut found: Vec<Message> =
        text.split(|byte| *byte == b'\n').filter_map(|line| log.feed(line)).collect();
    found.extend(log.finish());
    found
}

fn only(text: &str) -> Message {
    let mut found = messages(text.as_bytes());
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

#[test]
fn every_kind_of_stamp_is_removed() {
    for line in [
        "[   12.345678] text: x",
        "[   12.345678][ T123] text: x",
        "[   12.345678] [   C1] text: x",
        "[   12.345678 <    0.000012>] text: x",
        "[<    0.000012>] text: x",
        "[  +0.000012] text: x",
        "[Nov21 02:31] text: x",
        "[Sat Nov 21 02:31:07 2026] text: x",
        "[Sat Nov  1 02:31:07 2025] text: x",
        "2026-11-21T02:31:07,123456+00:00 text: x",
        "<6>[   12.345678] text: x",
        "kern  :info  : [   12.345678] text: x",
        "kern  :warn  : [Sat Nov 21 02:31:07 2026] text: x",
        "Nov 21 02:31:07 host kernel: text: x",
        "Nov  1 02:31:07.123456 host kernel: text: x",
        "Nov 21 02:31:07 host kernel: [   12.345678] text: x",
        "2026-11-21T02:31:07+0000 host kernel: text: x",
        "2026-11-21T02:31:07.123456+01:00 host kernel: text: x",
        "Sat 2026-11-21 02:31:07 UTC host kernel: text: x",
        "1795228267.123456 host kernel: text: x",
        "[   12.345678] host kernel: text: x",
        "[Пн сен 14 23:16:52 2026] text: x",
        "[月  9月 14 23:16:52 2026] text: x",
        "[сен14 23:16] text: x",
        "8月 12 06:12:41 host kernel: text: x",
        "avril 16 21:08:50 kernel: text: x",
        "пн 2026-11-21 02:31:07 UTC host kernel: text: x",
        "Nov 21 02:31:07 host kern.warn kernel: [   12.345678] text: x",
        "<4>1 2026-11-21T02:31:07.123456+00:00 host kernel - - - text: x",
        "2026-11-21T02:31:07.123456789Z [   12.345678] text: x",
        "2026-11-21T02:31:07.123456789Z stdout F [   12.345678] text: x",
        r#"{"log":"[   12.345678] text: x\n","stream":"stdout","time":"2026-11-21T02:31:07Z"}"#,
        "    [   12.345678] text: x",
        "> 6,339,5140900,-;text: x",
        "kernel: text: x",
        "6,339,5140900,-,caller=T1;text: x",
        "\u{1b}[32m[   12.345678] \u{1b}[0mtext: x",
        "text: x",
    ] {
        let message = only(line);
        assert_eq!((&*message.text, message.from_kernel), ("text: x", true), "{line}");
    }
}

#[test]
fn times_in_json_may_be_texts() {
    let time = |time: &str| {
        let message = only(&format!("{{\"pri\":6,\"time\":{time},\"msg\":\"x\"}}"));
        assert_eq!(&*message.text, "x", "{time}");
        (message.boot_clock, message.utc.is_some(), message.local.is_some())
    };
    let since = Some(Duration::from_micros(12_345_678));
    assert_eq!(time("12.345678"), (since, false, false));
    assert_eq!(time("\"[   12.345678]\""), (since, false, false));
    assert_eq!(time("\"Sat Nov 21 02:31:07 2026\""), (None, false, true));
    assert_eq!(time("\"2026-11-21T02:31:07,123456+00:00\""), (None, true, false));
    assert_eq!(time("\"soon\""), (None, false, false));
    assert_eq!(time("null"), (None, false, false));
}

#[test]
fn callers_are_read() {
    assert_eq!(only("[   12.345678][ T123] x").caller.as_deref(), Some("T123"));
    assert_eq!(only("6,339,5140900,-,caller=C1;x").caller.as_deref(), Some("C1"));
    assert_eq!(only("[   12.345678] [12] x").text, "[12] x");
}

#[test]
fn programs_are_distinguished_from_the_kernel() {
    let message = only("Nov 21 02:31:07 host systemd-oomd[512]: Killed /x");
    assert_eq!(message.identifier.as_deref(), Some("systemd-oomd"));
    assert_eq!((message.from_kernel, &*message.text), (false, "Killed /x"));
    assert!(!only("Nov 21 02:31:07 host kernel[1]: x").from_kernel);
    assert!(!only("<30>Nov 21 02:31:07 host kernel: x").from_kernel);
    assert!(!only("14,1,2,-;x").from_kernel);
    assert!(!only("user  :notice: [   12.345678] x").from_kernel);
}

#[test]
fn a_message_with_a_newline_stays_one_message() {
    let kernel =
        messages(b"[   12.345678] Killed process 1 (ta\n               il) total\n[ 13.0] b");
    assert_eq!(kernel[0].text, "Killed process 1 (ta\\x0ail) total");
    assert_eq!(kernel[1].text, "b");
    let user =
        messages(b"Nov 21 02:31:07 host app[1]: a\n    b\nc\nNov 21 02:31:08 host kernel: d");
    assert_eq!(user.len(), 2);
    assert_eq!((user[0].from_kernel, &*user[0].text), (false, "a\\x0ab\\x0ac"));
}

#[test]
fn wall_time_is_known_only_with_its_zone() {
    let utc = |line: &str| only(line).utc.map(|utc| utc.to_string());
    assert_eq!(utc("2026-11-21T02:31:07,5+01:00 x").as_deref(), Some("2026-11-21T01:31:07.5Z"));
    assert_eq!(utc("[Sat Nov 21 02:31:07 2026] x"), None);
    assert_eq!(utc("Nov 21 02:31:07 host kernel: x"), None);
    assert_eq!(utc("Sat 2026-11-21 02:31:07 CET host kernel: x"), None);
}

/// A log of JSON, as dmesg or journalctl writes it, with a few characters replaced and one line
/// left out.
fn damaged_json() -> impl Strategy<Value = String> {
    let forms = [
        include_str!("../../../../tests/fixtures/kernel/real-6.18-memcg-json.log"),
        "{\"__REALTIME_TIMESTAMP\":\"1795312800250000\",\"_TRANSPORT\":\"kernel\",\"PRIORITY\":\"3\",\
         \"SYSLOG_IDENTIFIER\":\"kernel\",\"MESSAGE\":[79,79,77]}\n\
         {\"MESSAGE\":\"x\",\"SYSLOG_FACILITY\":\"0\",\"__MONOTONIC_TIMESTAMP\":\"12\"}\n",
    ];
    let first = forms.map(|text| text.lines().take(40).collect::<Vec<_>>());
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..6);
    (prop::sample::select(first.to_vec()), edits, any::<prop::sample::Index>()).prop_map(
        |(mut lines, edits, left_out)| {
            lines.remove(left_out.index(lines.len()));
            let mut text: Vec<char> = lines.join("\n").chars().collect();
            for (at, character) in edits {
                let at = at.index(text.len());
                text[at] = character;
            }
            text.into_iter().collect()
        },
    )
}

proptest! {
    #[test]
    fn damaged_json_does_not_panic(text in damaged_json()) {
        let lines = text.split('\n').count() as u64;
        prop_assert!(messages(text.as_bytes()).iter().all(|message| message.line <= lines));
    }

    #[test]
    fn no_bytes_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        text in "([\\[<{0-9A-Za-z ,:;\\-\\]>.+]{0,40}\n){0,5}",
    ) {
        messages(&bytes);
        messages(text.as_bytes());
    }

    #[test]
    fn no_line_without_a_stamp_is_lost(lines in proptest::collection::vec("[a-z]{1,20}", 1..20)) {
        let found = messages(lines.join("\n").as_bytes());
        let texts: Vec<String> = found.into_iter().map(|message| message.text).collect();
        prop_assert_eq!(texts, lines);
    }
}

#[test]
fn the_margin_of_a_quoted_log_is_set_by_its_first_stamp_only() {
    let found = messages(b"> [   12.345678] a\n>  [   12.4] b\n[   12.5] c\n  [   12.6] d\n");
    let texts: Vec<&str> = found.iter().map(|message| &*message.text).collect();
    assert_eq!(texts, ["a\\x0a[   12.4] b", "c\\x0a[   12.6] d"]);
}

#[test]
fn a_brace_without_an_entry_swallows_no_line() {
    let texts: Vec<String> =
        messages(b"{\n[   12.345678] a\n{\n\"x\": 1,\n[   12.345679] b\n}\n[   12.4] c\n")
            .into_iter()
            .map(|message| message.text)
            .collect();
    assert!(["a", "b", "c"].iter().all(|text| texts.iter().any(|found| found.starts_with(text))));
}

#[test]
fn exact_times_are_distinguished_from_coarse_ones() {
    assert!(only("[   12.345678] x").exact);
    assert!(only("Nov 21 02:31:07 host kernel: [   12.345678] x").exact);
    assert!(!only("Nov 21 02:31:07 host kernel: x").exact);
    assert!(!only("[    1.0] x").exact);
    assert!(!only("[  +0.000012] x").exact);
}
