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

/// One message of the kernel in every form.
const FORMS: &[&str] = &[
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
    "kern  :warning: [   12.345678] text: x",
    "kern:     err: [2026-11-21T02:31:07.123456789Z]: text: x",
    " kern: warning: [2026-11-21T02:31:07Z]: text: x",
    "[mer. ao\\xfbt 25 09:00:00 2026] text: x",
    "[mer. 25 nov. 2026 09:00:00] text: x",
    "[बुध नवम्बर 25 09:00:00 2026] text: x",
    "Sat Nov 21 02:31:07 2026 kern.err kernel: [   12.345678] text: x",
    "Nov 21 2026 02:31:07 host kernel: text: x",
    "2026-11-21 02:31:07 host kernel: [   12.345678] text: x",
    "2026-11-21 02:31:07.123456 kernel: text: x",
    "2026-11-21 02:31:07 +0100 host kernel: text: x",
    "2026-11-21T02:31:07Z\tNov 21 02:31:07 host kernel: text: x",
    "2026-11-21T02:31:07Z {job=\"kern\"} Nov 21 02:31:07 host kernel: text: x",
    "6.17.0-1032-nvidia,3,1234,12345678,-;text: x",
    " kernel:[   12.345678] text: x",
    "kernel: [   12.345678] text: x",
    "- `[   12.345678] text: x",
    "  • [   12.345678] text: x",
    "- \"[   12.345678] text: x\"",
    "[   12.345678] text: x\r\r",
    "[Thứ 4 Tháng 11 25 09:00:00 2026] text: x",
    "Nov 21 02:31:07 host kernel:[   12.345678] text: x",
    "Nov 21 02:31:07 kernel:[   12.345678] text: x",
    "node17 -> [   12.345678] text: x",
    "[node17] out: [   12.345678] text: x",
    "[node17] [   12.345678] text: x",
    "node17 [   12.345678] text: x",
    "(standard input):12:[   12.345678] text: x",
    "1790506800000000000\t2026-11-21T02:31:07Z\tNov 21 02:31:07 host kernel: text: x",
    "[09:00:00] [   12.345678] text: x",
    "        \"[   12.345678] text: x\",",
    "node17: [   12.345678] text: x",
    "10.0.0.1: kern:     err: [2026-11-21T02:31:07Z]: text: x",
    "node17: Nov 21 02:31:07 node17 kernel: text: x",
    "node17: 6,339,5140900,-;text: x",
    "mon-1  | [   12.345678] text: x",
    "[pod/kmsg-abc/kmsg] [   12.345678] text: x",
    "kmsg-abc kmsg [   12.345678] text: x",
    "/var/log/kern.log:Nov 21 02:31:07 host kernel: text: x",
    "kern.log:123:[   12.345678] text: x",
    "123:[   12.345678] text: x",
    "123-[   12.345678] text: x",
    "   123\t[   12.345678] text: x",
    "    123 [   12.345678] text: x",
    "[2026-11-21 02:31:07] [   12.345678] text: x",
    "02:31:07.123 [   12.345678] text: x",
    "<4>1 2026-11-21T02:31:07+00:00 host kernel - - [a@1 b=\"]\"][c@2] [   12.345678] text: x",
    "1 2026-11-21T02:31:07+00:00 host kernel - - - \u{feff}text: x",
    "212 <4>1 2026-11-21T02:31:07Z host kernel - - - text: x",
    "2026-11-21T02:31:07Z 6,339,5140900,-;text: x",
    "2026-11-21T02:31:07Z stdout F Nov 21 02:31:07 host kernel: text: x",
    "2026-11-21T02:31:07Z {transport=\"kernel\", unit=\"\"} text: x",
    r#"2026-11-21T02:31:07Z {"_TRANSPORT":"kernel","MESSAGE":"text: x"}"#,
    r#"{"facility":"kern","msg":"text: x","seq":7,"talos-time":"2026-11-21T02:31:07Z"}"#,
    r#"{"jsonPayload":{"MESSAGE":"text: x","SYSLOG_IDENTIFIER":"kernel"}}"#,
    r#"["[   12.345678] text: x"]"#,
    "2026-11-21T02:31:07+00:00\tsystem.kern\t{\"message\":\"text: x\",\"ident\":\"kernel\"}",
    "kmsg-abc kmsg [Sat Nov 21 02:31:07 2026] text: x",
    "node17 Nov 21 02:31:07 host kernel: text: x",
    "node17\t[   12.345678] text: x",
    " 3: [   12.345678] text: x",
    "[1,0]<stdout>:[   12.345678] text: x",
    "[   12.345678]\ttext: x",
    "[\u{a0}\u{a0}\u{a0}12.345678]\u{a0}text: x",
    "\u{200b}[   12.345678] text: x",
    "\0\u{7}\r[   12.345678] text: x",
    "\u{1b}]0;title\u{7}\u{1b}[?25l\u{1b}[2K[   12.345678] text: x\u{1b}(B\u{1b}[m",
    "\u{1b}[   12.345678] text: x",
    "^[[32m[   12.345678] ^[[0mtext: x",
    "Nov 21 02:31:07 host kernel: #033[1;31mtext: x#033[0m",
    "   12   │ [   12.345678] text: x",
    "  12 | [   12.345678] text: x",
    "mon-1 |[   12.345678] text: x",
    "kmsg-abc kmsg 2026-11-21T02:31:07.123456789Z [   12.345678] text: x",
    "Nov 21 02:31:07 host kernel: <3>[   12.345678] text: x",
    "Nov 21 02:31:07 host kernel: <3>text: x",
    r#"{"content":{"message":"text: x","attributes":{"_TRANSPORT":"kernel"}}}"#,
    r#"{"attributes":{"message":"text: x","service":"kernel"}}"#,
    r#"{"message":"{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":\"text: x\"}"}"#,
    r#"{"message":"{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":\"text: x\"}","service":"kernel"}"#,
    "2026-11-21 02:31:07.000000000 +0000 kern.log: {\"message\":\"[   12.345678] text: x\"}",
    "2026-11-21 02:31:07.000000000 +0000 a.b: {\"message\":\"text: x\",\"ident\":\"kernel\"}",
    "2026-11-21T02:31:07.123000+00:00 i-0123 Nov 21 02:31:07 host kernel: text: x",
    "2026-11-21T02:31:07.123000+00:00 a/b [   12.345678] text: x",
    "2026-11-21T02:31:07.123456Z 00O [   12.345678] text: x",
    "2026-11-21T02:31:07.123456Z 01E Nov 21 02:31:07 host kernel: text: x",
    "02:31:07 kernel: text: x",
    " 2:31:07 PM kernel: text: x",
    "Nov 21  2:31:07 AM kernel: text: x",
    "Nov 21 2026 02:31:07 PM kernel: text: x",
    " 7) [   12.345678] text: x",
    "123. [   12.345678] text: x",
    "text: x",
];

#[test]
fn every_kind_of_stamp_is_removed() {
    for line in FORMS {
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
fn the_kernels_words_behind_a_stamp_are_its_own_if_no_program_is_named() {
    let kill = "Out of memory: Killed process 4242 (x) total-vm:1kB, anon-rss:1kB, file-rss:1kB";
    let stamp = "2026-11-21T02:31:07Z";
    for (log, expected) in [
        (format!("{stamp} {kill}"), Some(None)),
        (format!("{stamp} x\n{stamp} {kill}"), Some(None)),
        (format!("Nov 21 02:31:07 {kill}"), Some(None)),
        (format!("Nov 21 02:31:07 h {kill}"), Some(Some("h"))),
        (format!("Nov 21 02:31:07 h app[7]: x\nNov 21 02:31:07 h {kill}"), None),
        (format!("Nov 21 02:31:07 h kernel: x\nNov 21 02:31:07 {kill}"), None),
        (format!("{stamp} ERROR {kill}"), None),
        (format!("{stamp} app: {kill}"), None),
        (format!("{stamp} h it says {kill}"), None),
    ] {
        let found = messages(log.as_bytes());
        let found = found.iter().find(|message| message.from_kernel && message.text == kill);
        assert_eq!(found.map(|message| message.host.as_deref()), expected, "{log}");
    }
}

#[test]
fn the_object_around_a_text_has_its_time() {
    let found = only(
        r#"{"content":{"timestamp":"2026-11-21T02:31:07Z","message":"x","service":"kernel"}}"#,
    );
    assert_eq!(found.utc.map(|utc| utc.to_string()).as_deref(), Some("2026-11-21T02:31:07Z"));
}

#[test]
fn a_number_may_be_the_time_of_an_object() {
    let utc = |time: &str| {
        let entry = format!("{{\"message\":\"x\",\"service\":\"kernel\",\"timestamp\":{time}}}");
        only(&entry).utc.map(|utc| utc.to_string())
    };
    let known = Some("2026-11-21T02:31:07Z");
    for time in ["1795228267", "1795228267000", "1795228267000000", "\"1795228267\""] {
        assert_eq!(utc(time).as_deref(), known, "{time}");
    }
    assert_eq!(utc("12.345678"), None);
}

#[test]
fn a_clock_of_twelve_hours_has_halves() {
    let at = |time: &str| only(&format!("{time} kernel: x")).position;
    assert_eq!(at("12:31:07 AM"), at("00:31:07"));
    assert_eq!(at(" 2:31:07 PM"), at("14:31:07"));
    assert_eq!(at("Nov 21 2026 12:31:07 PM"), at("Nov 21 2026 12:31:07"));
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
        stamped in "(2026-11-21T02:31:07Z (stdout [PF] |<3>1 |\\{)?[\\[\"{0-9a-z ,=@\\]}]{0,20}\n){0,5}",
        pretty in "(\\{|\\}|\"a\": [\\[{]|\"a\": 1,|\\]|\n){0,20}",
    ) {
        messages(&bytes);
        messages(text.as_bytes());
        messages(stamped.as_bytes());
        let lines = pretty.split('\n').count() as u64;
        prop_assert!(messages(pretty.as_bytes()).iter().all(|message| message.line <= lines));
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
fn a_truncated_document_loses_no_message() {
    let record = "{\n  \"dmesg\": [\n    {\n      \"pri\": 3,\n      \"msg\": \"a\"";
    for end in ["", "\n[   12.345678] b", "\n    },{\n      \"msg\": \"b\""] {
        let found = messages(format!("{record}{end}").as_bytes());
        let texts: Vec<&str> = found.iter().map(|message| &*message.text).collect();
        let expected = if end.is_empty() { &["a"][..] } else { &["a", "b"] };
        assert_eq!(texts, expected, "{end}");
        assert!(found.iter().all(|message| message.from_kernel), "{found:?}");
    }
}

#[test]
fn an_unknown_object_over_several_lines_is_one_message() {
    let object = "{\n  \"text\": \"a\",\n  \"tags\": [\n    {\n      \"x\": 1\n    }\n  ]\n}";
    let found = messages(format!("{object}\n{object}\n[   12.345678] b").as_bytes());
    let read = |words: &str| -> Vec<(u64, bool)> {
        let with = found.iter().filter(|message| message.text.contains(words));
        with.map(|message| (message.line, message.from_kernel)).collect()
    };
    assert_eq!(read("\"a\""), [(1, false), (9, false)]);
    assert_eq!(read("b"), [(17, true)]);
}

#[test]
fn exact_times_are_distinguished_from_coarse_ones() {
    assert!(only("[   12.345678] x").exact);
    assert!(only("Nov 21 02:31:07 host kernel: [   12.345678] x").exact);
    assert!(!only("Nov 21 02:31:07 host kernel: x").exact);
    assert!(!only("[    1.0] x").exact);
    assert!(!only("[  +0.000012] x").exact);
}

#[test]
fn the_name_in_a_prefix_is_the_origin() {
    let origin = |line: &str| only(line).origin;
    for (line, name) in [
        ("node17: [   12.345678] x", Some("node17")),
        ("mon-1  | [   12.345678] x", Some("mon-1")),
        ("[pod/kmsg-abc/kmsg] [   12.345678] x", Some("kmsg-abc/kmsg")),
        ("kmsg-abc kmsg [   12.345678] x", Some("kmsg-abc kmsg")),
        ("kern.log:12:[   12.345678] x", Some("kern.log")),
        ("node17 -> [   12.345678] x", Some("node17")),
        ("[node17] [   12.345678] x", Some("node17")),
        ("[09:00:00] [   12.345678] x", None),
        ("12:[   12.345678] x", None),
        ("[   12.345678] x", None),
        ("kernel: [   12.345678] x", None),
    ] {
        assert_eq!(origin(line).as_deref(), name, "{line}");
    }
    assert_eq!(only("Nov 21 02:31:07 node17 kernel: x").host.as_deref(), Some("node17"));
    assert_eq!(only("Nov 21 02:31:07 kernel: x").host, None);
    assert_eq!(only("Nov 21 2026 02:31:07 node17 kernel: x").host.as_deref(), Some("node17"));
}

#[test]
fn lines_around_a_match_of_grep_are_of_its_file() {
    let found =
        messages(b"a-b.log:2:[   12.1] a\na-b.log-3-[   12.2] b\n--\na-b.log-9-[ 12.3] c\n");
    let read: Vec<_> = found
        .iter()
        .filter(|message| message.from_kernel)
        .map(|message| (message.origin.as_deref(), &*message.text))
        .collect();
    assert_eq!(read, [(Some("a-b.log"), "a"), (Some("a-b.log"), "b"), (Some("a-b.log"), "c")]);
}

#[test]
fn the_first_stamp_shows_whether_lines_have_a_prefix() {
    let texts = |text: &str| -> Vec<(bool, String)> {
        let found = messages(text.as_bytes()).into_iter();
        found.map(|message| (message.from_kernel, message.text)).collect()
    };
    let later = "[   12.345678] a\nnode17: [   12.4] b\n";
    assert_eq!(texts(later), [(true, "a".into()), (true, "node17: [   12.4] b".into())]);
    let program = "Nov 21 02:31:07 h app[1]: a\n    node17: [   12.4] b\nnode17: [   12.5] c\n";
    assert_eq!(
        texts(program),
        [(false, "a\\x0anode17: [   12.4] b\\x0anode17: [   12.5] c".into())]
    );
    // A line that begins with its own stamp is of no other log.
    let both = "node17: [   12.1] a\nNov 21 02:31:07 h app[1]: b\nNov 21 02:31:07 h kernel: c\nd\n";
    let expected = [(true, "a"), (false, "b"), (true, "c"), (true, "d")];
    let mut found = texts(both);
    found.sort_by(|a, b| a.1.cmp(&b.1));
    assert_eq!(found, expected.map(|(kernel, text)| (kernel, text.to_owned())));
}

#[test]
fn the_rest_of_a_message_shows_no_prefix_for_the_whole_log() {
    let kill = "Out of memory: Killed process 4242 (x) total-vm:1kB";
    for rest in [
        format!("    7 [   12.3] {kill}"),
        format!("    kernel:[   12.3] {kill}"),
        format!("    \"[   12.3] {kill}\""),
        format!("    [   12.3] {kill}"),
        format!("    {{\"_TRANSPORT\": \"kernel\", \"MESSAGE\": \"{kill}\"}}"),
        format!(
            "    {{\n    \"SYSLOG_IDENTIFIER\": \"kernel\",\n    \"MESSAGE\": \"{kill}\"\n    }}"
        ),
    ] {
        let program = "Nov 21 02:31:07 h app[1]: a";
        let log = format!("{program}\n{rest}\n{rest}\nNov 21 02:31:08 h kernel: b\n");
        let cut = format!("{rest}\n{log}");
        let kills = |log: &str| {
            let found = messages(log.as_bytes()).into_iter();
            found.filter(|message| message.from_kernel && message.text.contains("Killed")).count()
        };
        assert_eq!(kills(&log), 0, "{log}");
        assert!(kills(&cut) <= 1, "{cut}");
        assert!(messages(cut.as_bytes()).iter().any(|message| message.text == "b"), "{cut}");
    }
}

#[test]
fn many_names_need_bounded_memory() {
    let mut log = LogText::new();
    for number in 0..3 * MOST_ORIGINS {
        log.feed(format!("node{number}: [   12.345678] x").as_bytes());
    }
    assert_eq!(log.origins.len(), MOST_ORIGINS);
    assert_eq!(log.finish().len(), MOST_ORIGINS + 1);
}

#[test]
fn many_stamps_in_a_line_need_bounded_time() {
    let line = "2026-11-21T02:31:07Z ".repeat(3000);
    assert_eq!(messages(line.as_bytes()).len(), 1);
    let line = format!("2026-11-21T02:31:07Z {{{}", "a=\"b\", ".repeat(10_000));
    assert_eq!(messages(line.as_bytes()).len(), 1);
    let line = format!("1 2026-11-21T02:31:07Z h kernel - - {}", "[a b=\"\"]".repeat(7000));
    assert_eq!(messages(line.as_bytes()).len(), 1);
    let parts = "2026-11-21T02:31:07Z stdout P x\n".repeat(20_000);
    assert!(messages(parts.as_bytes()).len() <= 3);
}

/// What tools put before each line.
const PREFIXES: [&str; 15] = [
    "",
    "node17 -> ",
    "[node17] ",
    "(standard input):",
    "node17: ",
    "10.0.0.1: ",
    "mon-1  | ",
    "[pod/kmsg-abc/kmsg] ",
    "/var/log/kern.log:",
    "kern.log:123:",
    "123:",
    "   123\t",
    "    123 ",
    "> ",
    "- `",
];

/// What says that user space wrote a line.
fn of_user_space() -> impl Strategy<Value = String> {
    prop_oneof![
        (1..24_u16, 0..8_u16).prop_map(|(facility, level)| {
            format!("<{}>[   12.345678] ", facility << 3 | level)
        }),
        (1..24_u16).prop_map(|facility| format!("{},1,12345678,-;", facility << 3)),
        (1..24_u16).prop_map(|facility| format!("6.17.0,{},1,12345678,-;", facility << 3)),
        (1..24_u16).prop_map(|facility| {
            format!("<{}>1 2026-11-21T02:31:07Z host kernel - - - ", facility << 3)
        }),
        Just("<3>1 2026-11-21T02:31:07Z host kernel 7 - - ".to_owned()),
        Just("<3>1 2026-11-21T02:31:07Z host app - - [a b=\"c\"] kernel: ".to_owned()),
        Just("2026-11-21T02:31:07Z stdout F Nov 21 02:31:07 host app[7]: ".to_owned()),
        Just("2026-11-21T02:31:07Z stdout F 14,1,12345678,-;".to_owned()),
        Just("2026-11-21T02:31:07Z host app[7]: stdout F ".to_owned()),
        Just(
            "2026-11-21T02:31:07Z host app[7]: a\t{\"_TRANSPORT\":\"kernel\",\"MESSAGE\":\""
                .to_owned()
        ),
        (1..24_u16)
            .prop_map(|facility| format!("<{}>Nov 21 02:31:07 host kernel: ", facility << 3)),
        (1..24_u16).prop_map(|facility| {
            format!("<{}>2026-11-21T02:31:07Z [   12.345678] ", facility << 3)
        }),
        Just("user  :notice: [   12.345678] ".to_owned()),
        Just("Nov 21 02:31:07 host kernel: <12>".to_owned()),
        Just("user: warning: [2026-11-21T02:31:07Z]: ".to_owned()),
        Just("daemon: warning: [2026-11-21T02:31:07Z]: kern: err: [2026-11-21T02:31:07Z]: ".into()),
        Just("Nov 21 02:31:07 host user.notice kernel: [   12.345678] ".to_owned()),
        Just("Sat Nov 21 02:31:07 2026 user.notice kernel: [   12.345678] ".to_owned()),
        "[a-z]{1,12}".prop_filter("the kernel", |name| name != "kernel").prop_flat_map(|name| {
            prop::sample::select(vec![
                format!("Nov 21 02:31:07 host {name}: "),
                format!("Nov 21 02:31:07 host {name}[7]: [   12.345678] "),
                format!("2026-11-21 02:31:07 host {name}[7]: kernel: [   12.345678] "),
                format!("2026-11-21T02:31:07+0000 host {name}: node17: [   12.345678] "),
                format!("Nov 21 02:31:07 host kernel[{}]: [   12.345678] ", name.len()),
                format!("2026-11-21T02:31:07Z {{syslog_identifier=\"{name}\"}} [   12.345678] "),
                format!("2026-11-21T02:31:07Z {{transport=\"kernel\", unit=\"{name}\"}} "),
            ])
        }),
    ]
}

proptest! {
    #[test]
    fn no_prefix_makes_a_line_of_user_space_the_kernels(
        prefix in prop::sample::select(PREFIXES.to_vec()),
        sender in of_user_space(),
        inner in prop::sample::select(vec!["", "node17: [   12.3] ", "[   12.3] ", "kernel: ", "123:"]),
        before in prop::sample::select(vec!["", "[   12.1] x", "Nov 21 02:31:07 h kernel: x"]),
    ) {
        let text = "Out of memory: Killed process 4242 (x) total-vm:1kB, anon-rss:1kB, file-rss:1kB";
        let line = format!("{prefix}{sender}{inner}{text}");
        let log = if before.is_empty() { line } else { format!("{prefix}{before}\n{line}") };
        let kills = messages(log.as_bytes()).into_iter().filter(|message| {
            message.from_kernel && message.text.starts_with("Out of memory: ")
        });
        prop_assert_eq!(kills.count(), 0, "{}", log);
    }

    #[test]
    fn a_prefix_changes_nothing_of_a_line(
        prefix in prop::sample::select(PREFIXES.to_vec()),
        stamps in prop::collection::vec(
            prop::sample::select(vec![
                "[   12.345678] ",
                "<3>[   12.345678] ",
                "kern  :err   : [   12.345678] ",
                "kern:     err: [2026-11-21T02:31:07.5Z]: ",
                "Nov 21 02:31:07 host kernel: ",
                "2026-11-21T02:31:07Z host kernel: ",
                "[Sat Nov 21 02:31:07 2026] ",
            ]),
            1..6,
        ),
    ) {
        let log = |prefix: &str| {
            let lines = stamps.iter().map(|stamp| format!("{prefix}{stamp}text: x"));
            let log = lines.collect::<Vec<String>>().join("\n");
            let read = messages(log.as_bytes()).into_iter();
            read.map(|message| Message { origin: None, ..message }).collect::<Vec<_>>()
        };
        prop_assert_eq!(log(prefix), log(""));
    }

    #[test]
    fn no_text_before_a_stamp_panics(
        text in "([a-z0-9:|\\[\\]/ \t\"{}<>=,.-]{0,20}(\\[ 12\\.345\\] |Nov 21 02:31:07 |<3>)?[a-z: ]{0,9}\n){0,6}",
    ) {
        let lines = text.split('\n').count() as u64;
        prop_assert!(messages(text.as_bytes()).iter().all(|message| message.line <= lines));
    }
}
