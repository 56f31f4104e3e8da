//! Messages of users' systemds, whose senders are renamed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use umawarden::supervisors::user_systemd::passed_on;

fuzz_target!(|sent: &[u8]| {
    let mut passed = sent.to_vec();
    let size = passed_on(&mut passed);
    // Without a head there is no size, and with one it includes the head.
    assert_eq!(size.is_some(), sent.len() >= 16);
    assert!(size.is_none_or(|size| size >= 16));
    // Only a name is written over, and never twice.
    assert_eq!(passed.len(), sent.len());
    let head = sent.len().min(16);
    assert_eq!(passed[..head], sent[..head]);
    let mut changed = passed.iter().zip(sent).filter(|(new, old)| new != old);
    assert!(changed.all(|(new, _)| b":1.0".contains(new)));
    let once = passed.clone();
    assert_eq!(passed_on(&mut passed), size);
    assert_eq!(passed, once);
});
