use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::frame::{FrameSize, FrameView, lines};
use crate::cli::style::Screen;
use crate::model::{MemoryHistory, Picture, SilencePicture};

const GIB: u64 = 1 << 30;

/// A picture with something in each list.
fn picture() -> Picture {
    let at: Timestamp = "2026-11-27T10:00:00Z".parse().unwrap();
    let ago = |seconds: i64| (at - SignedDuration::from_secs(seconds)).to_string();
    let ahead = |seconds: i64| (at + SignedDuration::from_secs(seconds)).to_string();
    serde_json::from_value(json!({
        "node": "spark-1", "version": "0.1.0", "mode": "observe", "mode_text": "observe",
        "at": at, "uptime_seconds": 12_345.0,
        "well": {"level": "warning", "reasons": ["MemoryRunsOutSoon fires", "b", "c", "d", "e"]},
        "machine": {"model": "NVIDIA DGX Spark", "memory_bytes": 120 * GIB, "gpu": "NVIDIA GB10"},
        "memory": {
            "total_bytes": 120 * GIB, "available_bytes": 30 * GIB, "reserve_bytes": 3 * GIB,
            "parts": [
                {"name": "qwen", "kind": "engine", "bytes": 60 * GIB},
                {"name": "llama", "kind": "engine", "bytes": 10 * GIB},
                {"name": "processes and shared memory", "kind": "processes", "bytes": 8 * GIB},
                {"name": "page cache", "kind": "cache", "state": "clean", "bytes": 20 * GIB},
                {"name": "unaccounted (driver and others)", "kind": "driver", "bytes": 4 * GIB},
                {"name": "kernel", "kind": "other", "bytes": 6 * GIB},
                {"name": "free", "kind": "free", "bytes": 12 * GIB},
            ],
        },
        "engines": [
            {"name": "llama", "kind": "llama_server", "phase": "serving", "since": ago(7_200),
             "memory_bytes": 10 * GIB, "queue": {"running": 3, "waiting": 1},
             "kv_cache_used": 0.41},
            {"name": "qwen", "kind": "vllm", "phase": "loading", "since": ago(60),
             "memory_bytes": 60 * GIB, "progress": 0.8, "seconds_left": 42.0,
             "note": "it maps its weights"},
        ],
        "happened": (0..20).map(|index| json!({
            "at": ago(index * 100), "kind": "decision", "level": "warning", "id": index,
            "text": "would drop the page cache", "times": index + 1,
        })).collect::<Vec<_>>(),
        "waiting": [{"who": "deepseek", "needs_bytes": 90 * GIB, "behind": ["qwen"],
                     "since": ago(130), "kind": "restart", "reason": "memory"}],
        "nodes": [{"name": "spark-2", "state": "unknown", "weakest": false, "note": "silent"},
                  {"name": "spark-1", "state": "self", "weakest": true, "level": "warning",
                   "available_bytes": 30 * GIB, "total_bytes": 120 * GIB}],
        "approvals": [{"decision": 12, "rule": "memory/Low", "what": "stop engine qwen",
                       "why": "memory is low", "lapses": ahead(180)}],
    }))
    .unwrap()
}

fn past() -> MemoryHistory {
    let points = 720;
    let at: Vec<i64> = (0..points).map(|point| 1_795_000_000 + point * 5).collect();
    let of = |gib: u64| vec![Some(gib * GIB); at.len()];
    // A collapse of one point, and a time without values.
    let mut free = of(50);
    free[300] = Some(0);
    let mut engine = of(70);
    engine[300] = Some(120 * GIB);
    (0..100).for_each(|point| (free[point], engine[point]) = (None, None));
    serde_json::from_value(json!({
        "step_seconds": 5, "at": at, "reserve_bytes": of(3),
        "parts": [{"name": "qwen", "kind": "engine", "bytes": engine},
                  {"name": "free", "kind": "free", "bytes": free}],
    }))
    .unwrap()
}

const PLAIN: Screen = Screen { width: None, has_colours: false };

fn text(view: &FrameView<'_>, width: usize, height: Option<usize>, is_utf8: bool) -> Vec<String> {
    let frame = FrameSize { width, height, is_utf8, scroll: 0 };
    lines(view, frame).iter().map(|line| line.shown(PLAIN).trim_end().to_owned()).collect()
}

fn fits(all: &[String], width: usize, height: usize) -> bool {
    use unicode_width::UnicodeWidthStr as _;
    all.len() <= height && all.iter().all(|line| line.width() <= width)
}

#[test]
fn a_small_terminal_shows_something_of_everything() {
    let picture = picture();
    let all = text(&FrameView::of(&picture), 80, Some(23), true);
    assert!(fits(&all, 80, 23), "{all:#?}");
    let whole = all.join("\n");
    for part in [
        "spark-1: warning, mode observe, up 3h25m",
        "NVIDIA DGX Spark, 120.0 GiB of memory, GPU NVIDIA GB10",
        "  MemoryRunsOutSoon fires",
        "  and 2 more",
        "memory: 30.0 GiB available of 120.0 GiB, the kernel's reserve is 3.0 GiB",
        "█ qwen",
        "page cache clean",
        "▓ processes                 8.0 GiB",
        "▒ unaccounted               4.0 GiB",
        "KV cache 41 %",
        "[########--] 80 %, about 42s left",
        "  umawarden approve 12  lapses in 3m: stop engine qwen; memory/Low: memory is l…",
        "deepseek             restart  needs  90.0 GiB [###-------] for 2m, behind ",
        "spark-2              unknown: silent",
        "would drop the page cache",
    ] {
        assert!(whole.contains(part), "{part:?} is not in\n{whole}");
    }
}

#[test]
fn what_a_person_can_do_is_never_cut_off_and_a_pipe_has_all() {
    let mut picture = picture();
    picture.approvals[0].rule = "memory_of_this_node/CompactionIsNotEnough".to_owned();
    picture.approvals.push({
        let due = Some(picture.at + SignedDuration::from_secs(90));
        crate::model::ApprovalPicture {
            decision: 13,
            goes_ahead: due,
            ..picture.approvals[0].clone()
        }
    });
    let view = FrameView::of(&picture);
    for (width, height) in [(80, 23), (60, 19), (40, 15)] {
        let all = text(&view, width, Some(height), true);
        assert!(fits(&all, width, height), "{all:#?}");
        let all = all.join("\n");
        assert!(all.contains("  umawarden approve 12  lapses in 3m"), "{width}: {all}");
        assert!(!all.contains("the first 0 of"), "{width}: {all}");
    }
    let whole = text(&view, 80, None, true).join("\n");
    for part in [
        "  umawarden deny 13  goes ahead in 1m: stop engine qwen; \
         memory_of_this_node/CompactionIsNotEnough: memory is low",
        "\n  MemoryRunsOutSoon fires\n  b\n  c\n  d\n  e\n",
        "\n  spark-1              warning    30.0 GiB of 120.0 GiB available, the weakest",
    ] {
        assert!(whole.contains(part), "{part:?} is not in\n{whole}");
    }
}

#[test]
fn an_idle_node_says_that_nothing_runs_and_notes_are_no_warnings() {
    let mut picture = picture();
    (picture.engines, picture.happened) = (Vec::new(), Vec::new());
    picture.well.level = crate::model::NodeHealthLevel::Well;
    picture.well.reasons.clear();
    picture.well.notes =
        vec!["no fault: 1 rule reads what this machine lacks (GpuHangs)".to_owned()];
    let frame = FrameSize { width: 80, height: Some(23), is_utf8: true, scroll: 0 };
    let lines = lines(&FrameView::of(&picture), frame);
    let note = lines.iter().flat_map(|line| &line.0).find(|piece| piece.text.contains("GpuHangs"));
    assert_eq!(note.unwrap().tone, crate::cli::style::Tone::Faint);
    let all = text(&FrameView::of(&picture), 80, Some(23), true).join("\n");
    assert!(all.contains("\nengines: no engine is found\n"), "{all}");
    assert!(all.contains("\nhappened: nothing has happened"), "{all}");
}

#[test]
fn silences_are_listed_if_there_are_some() {
    let mut picture = picture();
    let all = text(&FrameView::of(&picture), 80, None, true).join("\n");
    assert!(!all.contains("silences"), "{all}");
    let silence = |id, rules: &str, seconds, why: &str| SilencePicture {
        id,
        rules: rules.to_owned(),
        until: picture.at + SignedDuration::from_secs(seconds),
        by: "anna".to_owned(),
        why: why.to_owned(),
    };
    picture.silences =
        vec![silence(3, "memory/Low", 5_400, "loading by hand"), silence(4, "all", 90, "")];
    let all = text(&FrameView::of(&picture), 80, None, true).join("\n");
    let expected = "\nsilences\n  \
                    memory/Low           #3 ends in 1h, by anna: loading by hand\n  \
                    all                  #4 ends in 1m, by anna\n";
    assert!(all.contains(expected), "{all}");
    let small = text(&FrameView::of(&picture), 80, Some(40), true);
    assert!(fits(&small, 80, 40) && small.join("\n").contains("memory/Low           #3"));
}

#[test]
fn the_bar_marks_any_reserve_and_the_states_of_page_cache() {
    let mut picture = picture();
    let of_cache =
        |state| json!({"name": "cache", "kind": "cache", "state": state, "bytes": 30 * GIB});
    picture.memory.parts = ["clean", "mapped", "dirty"]
        .map(of_cache)
        .into_iter()
        .chain([json!({"name": "free", "kind": "free", "bytes": 30 * GIB})])
        .map(|part| serde_json::from_value(part).unwrap())
        .collect();
    let bar = |picture: &Picture| {
        let all = text(&FrameView::of(picture), 42, None, false);
        all.into_iter().find(|line| line.starts_with('[')).unwrap()
    };
    for reserve in [1, 10 << 20] {
        picture.memory.reserve_bytes = Some(reserve);
        assert_eq!(bar(&picture), "[ccccccccccmmmmmmmmmmwwwwwwwwww.........|]");
    }
    // Less than the reserve is free: then it matters most.
    picture.memory.reserve_bytes = Some(45 * GIB);
    assert_eq!(bar(&picture), "[ccccccccccmmmmmmmmmmwwwww|wwww..........]");
}

#[test]
fn a_large_terminal_shows_the_load_and_the_past_hour() {
    let (picture, past) = (picture(), past());
    let view = FrameView { memory: Some(&past), ..FrameView::of(&picture) };
    let all = text(&view, 140, Some(50), true);
    assert!(fits(&all, 140, 50), "{all:#?}");
    let whole = all.join("\n");
    assert!(whole.contains("[########--] 80 %, about 42s left  it maps its weights"));
    assert!(whole.contains("59m ago") && whole.contains("120.0 GiB |"), "{whole}");
    // The collapse of five seconds fills its column to the top; unknown time is empty.
    let top = all.iter().find(|line| line.starts_with("120.0 GiB |")).unwrap();
    assert_eq!(top.matches('█').count(), 1, "{top}");
    let columns: Vec<char> =
        all[all.iter().position(|line| line == top).unwrap() + 6].chars().collect();
    assert_eq!(columns[11..20], [' '; 9], "{columns:?}");
}

#[test]
fn a_small_terminal_has_a_plot_unless_it_hides_something() {
    let (mut picture, past) = (picture(), past());
    let shown = |picture: &Picture| {
        text(&FrameView { memory: Some(&past), ..FrameView::of(picture) }, 80, Some(23), true)
    };
    let rows = |all: &[String]| all.iter().filter(|line| line.get(9..11) == Some(" |")).count();
    // Each list of this one needs its lines.
    assert_eq!(shown(&picture), text(&FrameView::of(&picture), 80, Some(23), true));

    (picture.waiting, picture.nodes) = (Vec::new(), Vec::new());
    picture.well.reasons.truncate(1);
    let all = shown(&picture);
    assert!(fits(&all, 80, 23), "{all:#?}");
    assert_eq!(rows(&all), 5, "{all:#?}");
    let whole = all.join("\n");
    for part in [
        "\n120.0 GiB |",
        "\n 60.0 GiB |",
        "59m ago",
        "  MemoryRunsOutSoon fires",
        "umawarden approve 12",
        "  llama ",
        "  qwen ",
        "80 %, about 42s left",
    ] {
        assert!(whole.contains(part), "{part:?} is not in\n{whole}");
    }
    assert_eq!(whole.matches("would drop the page cache").count(), 2, "{whole}");
    picture.approvals.clear();
    let all = shown(&picture);
    assert_eq!((rows(&all), all.len()), (7, 23), "{all:#?}");
}

#[test]
fn only_ascii_is_written_where_the_locale_has_no_more() {
    let (picture, past) = (picture(), past());
    let view = FrameView { memory: Some(&past), ..FrameView::of(&picture) };
    let all = text(&view, 80, None, false).join("\n");
    assert!(all.is_ascii(), "{all}");
    assert!(all.contains("# qwen") && all.contains("."), "{all}");
}

#[test]
fn what_is_unknown_is_said_and_not_invented() {
    let mut picture = picture();
    picture.machine = Default::default();
    picture.memory = Default::default();
    picture.memory.remarks = vec!["meminfo was not read".to_owned()];
    picture.engines[0].memory_bytes = None;
    let all = text(&FrameView::of(&picture), 80, None, true).join("\n");
    assert!(all.contains("machine unknown, memory unknown, no GPU known"), "{all}");
    assert!(all.contains("unknown available of unknown") && all.contains("meminfo was not read"));
    assert!(all.contains("serving           ?"), "{all}");
}

#[test]
fn names_cannot_drive_the_terminal() {
    let mut picture = picture();
    picture.node = "\x1b[2Jspark".to_owned();
    picture.engines[0].name = "\x1b]0;x\x07\u{202e}".to_owned();
    picture.happened[0].text = "a\nb\x1b[31m".to_owned();
    picture.memory.parts[0].name = "\r\x1b[H".to_owned();
    let all = text(&FrameView::of(&picture), 80, None, true).join("\n");
    let odd = |letter: char| letter != '\n' && (letter.is_control() || letter == '\u{202e}');
    assert!(!all.contains(odd), "{all:?}");
}

#[test]
fn a_picture_that_is_not_of_now_says_so() {
    let picture = picture();
    let away = Some("no answer for 7s: connection refused".to_owned());
    let view = FrameView { away, which: Some("2 of 3".to_owned()), ..FrameView::of(&picture) };
    let all = text(&view, 80, Some(23), true).join("\n");
    assert!(all.contains("spark-1: unknown, was warning, mode observe"), "{all}");
    assert!(all.contains("not of now: no answer for 7s: connection refused"), "{all}");
    assert!(all.contains("2 of 3  10:00:00Z  0.1.0"), "{all}");
}

proptest! {
    #[test]
    fn it_fits_any_terminal(
        width in 1_usize..300,
        height in 1_usize..100,
        is_utf8: bool,
        total in prop_oneof![Just(0), Just(u64::MAX), 0..200 * GIB],
        bytes in proptest::collection::vec(prop_oneof![Just(u64::MAX), 0..200 * GIB], 7),
        reserve in prop_oneof![Just(u64::MAX), 0..200 * GIB],
    ) {
        let (mut picture, past) = (picture(), past());
        picture.memory.total_bytes = Some(total);
        picture.memory.reserve_bytes = Some(reserve);
        for (part, bytes) in picture.memory.parts.iter_mut().zip(bytes) {
            part.bytes = bytes;
        }
        let view = FrameView { memory: Some(&past), ..FrameView::of(&picture) };
        let all = text(&view, width, Some(height), is_utf8);
        prop_assert!(fits(&all, width, height), "{:#?}", all);
    }
}
