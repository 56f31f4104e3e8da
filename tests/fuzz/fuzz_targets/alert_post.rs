//! Posts of an Alertmanager: within bounds or refused, and unchanged by printing and parsing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::model::ReceivedAlerts;
use umawarden::parse::alertmanager::{
    MOST_ALERTS, MOST_LABEL_BYTES, MOST_LABELS, MOST_NAME_BYTES, MOST_VALUE_BYTES, post,
};

fuzz_target!(|bytes: &[u8]| {
    let read = match post(bytes) {
        Ok(read) => read,
        Err(error) => {
            assert!(error.to_string().len() < 2_000, "{error}");
            return;
        }
    };
    assert!(read.alerts.len() <= MOST_ALERTS);
    for alert in &read.alerts {
        assert!(!alert.fingerprint.is_empty() && alert.fingerprint.len() <= 64);
        assert!(alert.labels.len() <= MOST_LABELS);
        let bytes: usize = alert.labels.iter().map(|(name, text)| name.len() + text.len()).sum();
        assert!(bytes <= MOST_LABEL_BYTES);
        for (name, text) in &alert.labels {
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'));
            assert!(name.len() <= MOST_NAME_BYTES && !name.starts_with("__"));
            assert!(!text.is_empty() && text.len() <= MOST_VALUE_BYTES);
        }
        let shown = alert.to_string();
        assert!(!shown.contains(char::is_control), "{shown:?}");
    }
    let text = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<ReceivedAlerts>(&text).unwrap(), read);
});
