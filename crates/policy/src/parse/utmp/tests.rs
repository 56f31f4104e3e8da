//! No input causes a panic or an invented user.

use proptest::prelude::*;

use super::*;

/// A record as login(1) and sshd write it.
fn record(
    layout: UtmpLayout,
    kind: i16,
    pid: i32,
    line: &str,
    user: &str,
    seconds: u32,
) -> Vec<u8> {
    let mut bytes = vec![0; layout.record_bytes()];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(KIND, &kind.to_ne_bytes());
    put(PID, &pid.to_ne_bytes());
    put(LINE, line.as_bytes());
    put(USER, user.as_bytes());
    put(HOST, b"192.0.2.7");
    match layout {
        UtmpLayout::Narrow => put(340, &seconds.to_ne_bytes()),
        UtmpLayout::Wide => put(344, &i64::from(seconds).to_ne_bytes()),
    }
    bytes
}

#[test]
fn records_are_as_long_as_the_c_library_has_them() {
    assert_eq!(UtmpLayout::NATIVE.record_bytes(), size_of::<libc::utmpx>());
    assert_eq!(std::mem::offset_of!(libc::utmpx, ut_pid), PID);
    assert_eq!(std::mem::offset_of!(libc::utmpx, ut_line), LINE);
    assert_eq!(std::mem::offset_of!(libc::utmpx, ut_user), USER);
    assert_eq!(std::mem::offset_of!(libc::utmpx, ut_host), HOST);
    let time = match UtmpLayout::NATIVE {
        UtmpLayout::Narrow => 340,
        UtmpLayout::Wide => 344,
    };
    assert_eq!(std::mem::offset_of!(libc::utmpx, ut_tv), time);
}

#[test]
fn only_logged_in_users_are_listed() {
    for layout in [UtmpLayout::Narrow, UtmpLayout::Wide] {
        let file = [
            record(layout, 2, 0, "~", "reboot", 1_795_000_000),
            record(layout, 6, 812, "tty1", "LOGIN", 1_795_000_001),
            record(layout, 7, 4711, "pts/0", "anna", 1_795_000_002),
            // A name that fills its field has no 0 at its end.
            record(layout, 7, 4712, "tty2", &"b".repeat(32), 0),
            record(layout, 7, 4713, "pts/1", "e\x1b[2Jvil", 4_000_000_000),
            // They have logged out; nobody; no process.
            record(layout, 8, 4714, "pts/2", "carl", 1_795_000_003),
            record(layout, 7, 4715, "pts/3", "", 1_795_000_003),
            record(layout, 7, -1, "pts/4", "dora", 1_795_000_003),
            record(layout, 7, 0, "pts/5", "dora", 1_795_000_003),
        ];
        let logins = logins(&file.concat(), layout).unwrap();
        let found: Vec<_> = logins.iter().map(|it| (&*it.user, &*it.terminal, it.pid)).collect();
        let long = "b".repeat(32);
        let expected =
            [("anna", "pts/0", 4711), (&*long, "tty2", 4712), ("e\\x1b[2Jvil", "pts/1", 4713)];
        assert_eq!(found, expected);
        assert_eq!(logins[0].host, "192.0.2.7");
        assert_eq!(logins[0].since, Timestamp::from_second(1_795_000_002).ok());
        assert_eq!(logins[1].since, None);
        // Past 2038 the narrow time goes on.
        assert_eq!(logins[2].since, Timestamp::from_second(4_000_000_000).ok());
    }
}

#[test]
fn foreign_layouts_and_truncated_files_are_refused() {
    assert_eq!(logins(b"", UtmpLayout::NATIVE), Ok(Vec::new()));
    let narrow = record(UtmpLayout::Narrow, 7, 1, "pts/0", "anna", 1);
    let found = logins(&narrow, UtmpLayout::Wide).unwrap_err().to_string();
    assert!(found.starts_with("it has 384 bytes, and each record 400"), "{found}");
    assert!(logins(&narrow[1..], UtmpLayout::Narrow).is_err());
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_read_or_refused(
        bytes in proptest::collection::vec(any::<u8>(), 0..1200),
        records in proptest::collection::vec(
            (0_i16..10, any::<i32>(), "\\PC{0,8}", "\\PC{0,8}", any::<u32>()), 0..6),
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..40),
    ) {
        for layout in [UtmpLayout::Narrow, UtmpLayout::Wide] {
            let _ = logins(&bytes, layout);
            let mut file: Vec<u8> = records
                .iter()
                .flat_map(|(kind, pid, line, user, at)| record(layout, *kind, *pid, line, user, *at))
                .collect();
            for (index, byte) in &flips {
                if !file.is_empty() {
                    let index = index.index(file.len());
                    file[index] = *byte;
                }
            }
            for login in logins(&file, layout).unwrap() {
                prop_assert!(login.pid > 0 && !login.user.is_empty());
                let shown = [&login.user, &login.terminal, &login.host];
                prop_assert!(shown.iter().all(|text| !text.chars().any(char::is_control)));
            }
        }
    }
}
