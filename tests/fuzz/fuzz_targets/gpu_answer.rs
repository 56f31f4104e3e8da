//! Responses of the process that queries the NVIDIA driver.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::model::Reading;
use umawarden::parse::gpu::{MAX_DEVICES, MAX_INSTANCES, MAX_PROCESSES, QueryResult, response};

fuzz_target!(|line: &[u8]| {
    let Ok(response) = response(line) else { return };
    let QueryResult::Picture(picture) = response.result else { return };
    assert!(picture.devices.len() <= MAX_DEVICES);
    for device in &picture.devices {
        assert!(device.processes().len() <= MAX_PROCESSES);
        assert!(device.instances.len() <= MAX_INSTANCES);
        assert!(device.name.iter().all(|name| !name.chars().any(char::is_control)));
        let memory = device.memory;
        if let (Reading::Value(total), Reading::Value(used)) =
            (memory.total_bytes, memory.used_bytes)
        {
            assert!(total > 0 && used <= total);
        }
        if let Reading::Value(share) = device.utilization {
            assert!((0.0..=1.0).contains(&share));
        }
    }
});
