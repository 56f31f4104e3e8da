//! The series that describes an engine, through the whole policy.

use std::sync::Arc;
use std::time::Duration;

use super::release::{ReleaseWorld, engine};
use crate::model::{EngineSeen, Pod, Reading};

/// The series of that name with a value, in the order of the store.
fn infos(node: &ReleaseWorld) -> Vec<String> {
    let store = &node.policy.store;
    let (ids, is_cut) = store.named("uma_engine_info");
    assert!(!is_cut);
    let shown = ids.iter().filter(|id| store.latest(**id) == Reading::Value(1.0));
    shown.map(|id| store.key(*id).unwrap().to_string()).collect()
}

/// How many series of that name the store holds, with a value or without.
fn places(node: &ReleaseWorld) -> usize {
    node.policy.store.named("uma_engine_info").0.len()
}

fn vllm(name: &str, pid: u32) -> EngineSeen {
    EngineSeen {
        model: Some("/models/q".into()),
        arguments: Some("vllm\nserve\n/models/q\n--served-model-name\nqwen".into()),
        ..engine(name, pid, Duration::ZERO)
    }
}

#[test]
fn one_series_describes_an_engine_until_ten_minutes_after_its_end() {
    let mut node = ReleaseWorld::new();
    node.engines.push(vllm("big", 10));
    node.wait(2);
    assert_eq!(infos(&node), [r#"uma_engine_info{engine="big",kind="vllm",model="qwen"}"#]);
    // Its runtime reports the container a little later.
    node.engines[0].claimed_container = Some("0123".into());
    node.engines[0].container_name = Some("not-proven".into());
    node.wait(2);
    assert!(!infos(&node)[0].contains("not-proven"), "{:?}", infos(&node));
    node.engines[0].container = Some("0123456789abcdef".into());
    node.engines[0].container_name = Some("serving".into());
    node.engines[0].image = Some("vllm/vllm-openai:v0.29.0@1f2e3d4c5b6a".into());
    node.engines[0].unit = Some("docker.service".into());
    node.wait(2);
    let complete = r#"uma_engine_info{container="serving",engine="big",image="vllm/vllm-openai:v0.29.0@1f2e3d4c5b6a",kind="vllm",model="qwen",unit="docker.service",version="0.29.0"}"#;
    assert_eq!(infos(&node), [complete]);
    assert_eq!(places(&node), 1, "it has replaced the first one");
    let pod = Pod {
        namespace: "llm".into(),
        name: "vllm-0".into(),
        uid: "6f1c".into(),
        container: "serving".into(),
        labels: None,
    };
    node.engines[0].pod = Some(Arc::new(pod));
    node.wait(2);
    let (front, back) = complete.split_once("unit=").unwrap();
    let complete = &*format!(r#"{front}namespace="llm",pod="vllm-0",unit={back}"#);
    assert_eq!(infos(&node), [complete]);
    node.engines.clear();
    node.wait(60);
    assert_eq!(infos(&node), [complete], "alerts about its death have its labels");
    node.wait(600);
    assert!(infos(&node).is_empty());
}

#[test]
fn texts_of_other_users_are_bounded_in_length_and_number() {
    let mut node = ReleaseWorld::new();
    let hostile = format!("a\"b\\\u{202e}\n{}", "x".repeat(5_000));
    node.engines.push(EngineSeen {
        model: Some(hostile.as_str().into()),
        arguments: None,
        ..vllm("big", 10)
    });
    node.wait(2);
    let shown = infos(&node);
    assert!(shown[0].len() < 300 && !shown[0].contains('\u{202e}'), "{shown:?}");
    // A process that rewrites its arguments all the time.
    for round in 0..100 {
        node.engines[0].model = Some(format!("model-{round}").into());
        node.wait(1);
        assert_eq!(infos(&node).len(), 1);
    }
    assert_eq!(infos(&node), [r#"uma_engine_info{engine="big",kind="vllm",model="model-7"}"#]);
    assert_eq!(places(&node), 1);
    // An engine that is started again and again, each time as another one.
    for round in 0..100_u32 {
        let name = format!("big-{round}");
        node.engines = vec![EngineSeen {
            model: Some(Arc::from(format!("other-{round}"))),
            ..vllm("big", 100 + round)
        }];
        node.engines[0].arguments = None;
        node.engines[0].container = Some(Arc::from(name.clone()));
        node.engines[0].container_name = Some(name.into());
        node.wait(1);
        assert_eq!(infos(&node).len(), 1);
    }
    assert!(places(&node) <= 2, "{}", places(&node));
}
