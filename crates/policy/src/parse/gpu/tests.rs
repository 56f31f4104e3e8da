use proptest::prelude::*;

use super::*;

/// A device as the child writes it.
fn device(more: &str) -> String {
    let health = r#"{"uncorrected_errors":"Unsupported","is_repair_pending":"Unsupported",
        "has_repair_failed":"Unsupported","recovery":"Unsupported"}"#;
    let mut fields = BTreeMap::from([
        ("index", "0"),
        ("utilization", r#"{"Value":0.5}"#),
        ("memory_utilization", r#"{"Value":0.25}"#),
        ("temperature_celsius", r#"{"Value":40.0}"#),
        ("power_watts", r#"{"Value":10.5}"#),
        ("processes", r#"{"Value":[]}"#),
        ("is_mig", r#"{"Value":false}"#),
        ("health", health),
        (
            "memory",
            r#"{"total_bytes":{"Value":100},"used_bytes":{"Value":30},"free_bytes":{"Value":60}}"#,
        ),
    ]);
    let (name, value) = more.split_once('=').unwrap_or(("index", "0"));
    fields.insert(name, value);
    let fields: Vec<String> =
        fields.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    format!("{{{}}}", fields.join(","))
}

fn line(devices: &[String]) -> String {
    let devices = devices.join(",");
    format!(r#"{{"version":1,"number":7,"result":{{"picture":{{"devices":[{devices}]}}}}}}"#)
}

fn picture(devices: &[String]) -> GpuPicture {
    match response(line(devices).as_bytes()).unwrap().result {
        QueryResult::Picture(picture) => picture,
        QueryResult::Unavailable(nothing) => panic!("{nothing:?}"),
    }
}

fn one(more: &str) -> GpuDevice {
    let mut picture = picture(&[device(more)]);
    picture.devices.pop().unwrap()
}

#[test]
fn gpu_responses_are_read_unchanged() {
    let found = one(r#"name="NVIDIA H200""#);
    assert_eq!(found.name.as_deref(), Some("NVIDIA H200"));
    assert_eq!(found.memory.total_bytes, Reading::Value(100));
    assert_eq!(found.memory.used_bytes, Reading::Value(30));
    assert_eq!(found.memory_utilization, Reading::Value(0.25));
    assert_eq!((found.power_watts, found.is_unified()), (Reading::Value(10.5), Some(false)));
}

#[test]
fn output_of_the_gpu_process_is_a_response() {
    let lines = include_str!("../../../../../tests/fixtures/gpu/answers.jsonl");
    let found: Vec<QueryResult> =
        lines.lines().map(|line| response(line.as_bytes()).unwrap().result).collect();
    let devices = found.iter().map(|found| match found {
        QueryResult::Picture(picture) => picture.devices.len(),
        QueryResult::Unavailable(nothing) => panic!("{nothing:?}"),
    });
    assert_eq!(devices.take(4).collect::<Vec<_>>(), [1, 2, 1, 0]);
    assert!(
        matches!(&found[4], QueryResult::Unavailable(nothing) if nothing.kind == MissingGpuPart::Driver)
    );
}

/// Two CUDA processes had taken 4 GiB and six times 1 GiB each on an H200.
#[test]
fn figures_of_a_real_driver_are_those_of_its_processes() {
    let line = include_str!("../../../../../tests/fixtures/gpu/h200-580.159.04.jsonl");
    let QueryResult::Picture(picture) = response(line.trim_end().as_bytes()).unwrap().result else {
        panic!()
    };
    let [device] = &picture.devices[..] else { panic!("{picture:?}") };
    assert_eq!(device.is_unified(), Some(false));
    let own: Vec<_> = device.processes().iter().map(|own| (own.pid, own.used_bytes)).collect();
    let used = Reading::Value(11_280_580_608);
    assert_eq!(own, [(570, used), (571, used)]);
    // The driver itself keeps 15 MB besides the processes' memory, and 645 MB are not offered.
    let (total, free) = (device.memory.total_bytes.value(), device.memory.free_bytes.value());
    assert_eq!(device.memory.used_bytes, Reading::Value(2 * 11_280_580_608 + 15_138_816));
    assert_eq!(total.zip(free).map(|(total, free)| total - free), Some(23_221_239_808));
}

#[test]
fn memory_that_a_gpu_does_not_have_is_never_zero() {
    let zeros =
        r#"memory={"total_bytes":{"Value":0},"used_bytes":{"Value":0},"free_bytes":{"Value":0}}"#;
    let unsupported =
        r#"memory={"total_bytes":"Unsupported","used_bytes":{"Value":0},"free_bytes":"Failed"}"#;
    for said in [zeros, unsupported] {
        let found = one(said);
        assert_eq!(found.memory, GpuMemory::UNSUPPORTED);
        assert_eq!(found.memory_utilization, Reading::Unsupported);
        assert_eq!(found.is_unified(), Some(true));
    }
}

#[test]
fn impossible_gpu_values_are_failures() {
    let found = one(
        r#"memory={"total_bytes":{"Value":100},"used_bytes":{"Value":101},"free_bytes":{"Value":3}}"#,
    );
    assert_eq!(found.memory.used_bytes, Reading::Failed);
    assert_eq!(found.memory.free_bytes, Reading::Value(3));
    assert_eq!(one(r#"utilization={"Value":1.01}"#).utilization, Reading::Failed);
    assert_eq!(one(r#"power_watts={"Value":-1.0}"#).power_watts, Reading::Failed);
    let hot = one(r#"temperature_celsius={"Value":4294967295.0}"#);
    assert_eq!(hot.temperature_celsius, Reading::Failed);
    let whole = one(
        r#"memory={"total_bytes":{"Value":18446744073709551615},"used_bytes":{"Value":1},"free_bytes":{"Value":1}}"#,
    );
    assert_eq!(whole.memory, GpuMemory::FAILED);
}

#[test]
fn a_process_is_listed_once_with_all_its_figures() {
    let found = one(concat!(
        r#"processes={"Value":["#,
        r#"{"pid":9,"used_bytes":"Unsupported","is_compute":true,"is_graphics":false},"#,
        r#"{"pid":5,"used_bytes":{"Value":7},"is_compute":true,"is_graphics":false,"gpu_instance":1},"#,
        r#"{"pid":5,"used_bytes":{"Value":6},"is_compute":true,"is_graphics":false,"gpu_instance":2},"#,
        r#"{"pid":9,"used_bytes":{"Value":8},"is_compute":false,"is_graphics":true}]}"#,
    ));
    let found: Vec<_> = found.processes().iter().map(|own| (own.pid, own.used_bytes)).collect();
    let value = Reading::Value;
    assert_eq!(found, [(5, value(7)), (5, value(6)), (9, value(8))]);
}

#[test]
fn entries_over_the_limit_are_cut_and_the_cut_is_reported() {
    let processes = |pids: &mut dyn Iterator<Item = u32>| {
        let one = |pid| {
            format!(
                r#"{{"pid":{pid},"used_bytes":{{"Value":1}},"is_compute":true,"is_graphics":false}}"#
            )
        };
        format!("processes={{\"Value\":[{}]}}", pids.map(one).collect::<Vec<_>>().join(","))
    };
    let found = picture(&[device(&processes(&mut (1..=1024)))]);
    assert!(!found.is_cut && found.pids().is_some_and(|pids| pids.len() == 1024));
    let found = picture(&[device(&processes(&mut (1..=1025)))]);
    assert!(found.is_cut && found.devices[0].processes().len() == 1024 && found.pids().is_none());
    let found = picture(&[device(&processes(&mut [0, 1 << 23].into_iter()))]);
    assert!(found.is_cut && found.devices[0].processes().is_empty());
    let full = device(&processes(&mut (1..=1024)));
    let full: Vec<String> =
        (0..5).map(|index| full.replace("\"index\":0", &format!("\"index\":{index}"))).collect();
    let found = picture(&full);
    let counts: Vec<usize> = found.devices.iter().map(|gpu| gpu.processes().len()).collect();
    assert_eq!((found.is_cut, &*counts), (true, &[1024, 1024, 1024, 1024, 0][..]));
    let many: Vec<String> = (0..40).map(|index| device(&format!("index={index}"))).collect();
    let found = picture(&many);
    assert!(found.is_cut && found.devices.len() == MAX_DEVICES);
    let found = picture(&[device("index=3"), device("index=3")]);
    assert!(found.is_cut && found.devices.len() == 1);
}

#[test]
fn responses_of_another_version_are_refused() {
    let refused = |text: &str| response(text.as_bytes()).unwrap_err();
    assert_eq!(refused(r#"{"version":2,"anything":1}"#), "an answer of version 2, and not 1");
    assert!(refused("").starts_with("no answer: "));
    assert!(refused(r#"{"version":1,"number":1,"result":"maybe"}"#).starts_with("no answer: "));
    assert_eq!(refused(&" ".repeat(MAX_RESPONSE_BYTES + 1)), "an answer is longer than 2 MiB");
    assert!(refused(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000))).len() < 200);
}

#[test]
fn written_responses_are_read_back_with_printable_texts() {
    let why = format!("\u{1b}[31m{}", "x".repeat(500));
    let found =
        QueryResult::Unavailable(Unavailable { kind: MissingGpuPart::Library, why: why.into() });
    let written =
        serde_json::to_vec(&Response { version: VERSION, number: 3, result: found }).unwrap();
    let read = response(&written).unwrap();
    let QueryResult::Unavailable(nothing) = read.result else { panic!("{read:?}") };
    assert_eq!((read.number, nothing.kind), (3, MissingGpuPart::Library));
    assert!(nothing.why.starts_with("\\x1b[31mxxx") && nothing.why.len() == MAX_REASON_BYTES);
}

proptest! {
    #[test]
    fn hostile_lines_neither_panic_nor_give_impossible_values(
        total in any::<u64>(), used in any::<u64>(), share in any::<f64>(), pid in any::<u32>(),
        name in ".{0,300}", cut in 0..400_usize,
    ) {
        let share = if share.is_finite() { share } else { 2.0 };
        let memory = format!(
            r#"memory={{"total_bytes":{{"Value":{total}}},"used_bytes":{{"Value":{used}}},"free_bytes":"Failed"}}"#
        );
        let process = format!(
            r#"processes={{"Value":[{{"pid":{pid},"used_bytes":{{"Value":{used}}},"is_compute":true,"is_graphics":true}}]}}"#
        );
        let named = format!("name={}", serde_json::to_string(&name).unwrap());
        let devices = [
            device(&memory),
            device(&process).replace("\"index\":0", "\"index\":1"),
            device(&named).replace("\"index\":0", "\"index\":2"),
            device(&format!("utilization={{\"Value\":{share:e}}}")).replace("\"index\":0", "\"index\":3"),
        ];
        let whole = line(&devices);
        let found = response(whole.as_bytes()).unwrap();
        check(&found);
        // Cut anywhere, it is no answer, or one that holds the same bounds.
        let end = whole.len().saturating_sub(cut + 1);
        if let Some(Ok(found)) = whole.get(..end).map(|part| response(part.as_bytes())) {
            check(&found);
        }
    }

    #[test]
    fn arbitrary_bytes_are_bounded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(found) = response(&bytes) {
            check(&found);
        }
    }
}

/// What must hold of every answer.
fn check(response: &Response) {
    let QueryResult::Picture(picture) = &response.result else { return };
    assert!(picture.devices.len() <= MAX_DEVICES);
    for device in &picture.devices {
        let memory = device.memory;
        if let (Reading::Value(total), Reading::Value(used)) =
            (memory.total_bytes, memory.used_bytes)
        {
            assert!(total > 0 && used <= total && total <= MAX_MEMORY_BYTES);
        }
        if let Reading::Value(share) = device.utilization {
            assert!((0.0..=1.0).contains(&share));
        }
        if let Some(name) = &device.name {
            assert!(name.len() <= MAX_TEXT_BYTES && !name.chars().any(char::is_control));
        }
        assert!(device.processes().iter().all(|process| (1..=MAX_PID).contains(&process.pid)));
    }
}
