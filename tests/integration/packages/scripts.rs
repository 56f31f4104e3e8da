//! What the packages' scripts do, with a systemctl that only notes its arguments.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Begins each script: systemctl notes its arguments, and ends as `$STATUS` says.
const SYSTEMCTL: &str = r#"systemctl() { echo "$*" >>"$NOTED"; return "$STATUS"; }"#;

/// What a script calls systemctl with, one call a line. `booted`: systemd runs.
fn calls(script: &str, arguments: &str, booted: bool, status: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/scripts").join(script);
    let text = fs::read_to_string(source).unwrap();
    let text = text
        .replace("/run/systemd/system", &path(if booted { "" } else { "absent" }))
        .replace("/var/lib/umawarden", &path("state"));
    let done = Command::new("sh")
        .args(["-c", &format!("{SYSTEMCTL}\n{text}"), script])
        .args(arguments.split(' '))
        .env("NOTED", path("noted"))
        .env("STATUS", status)
        .output()
        .unwrap();
    assert!(done.status.success(), "{script} {arguments}: {done:?}");
    fs::read_to_string(path("noted")).unwrap_or_default()
}

/// The order is that of rpm: the new package's script after its installation comes first, and those
/// of the removal are the old package's.
#[test]
fn rpm_starts_nothing_and_an_upgrade_restarts_what_ran() {
    for (script, left, wanted) in [
        ("postinstall", "1", "daemon-reload\n--quiet preset umawarden.service\n"),
        ("postinstall", "2", "daemon-reload\n"),
        ("preremove", "1", ""),
        ("postremove", "1", "daemon-reload\ntry-restart umawarden.service\n"),
        (
            "preremove",
            "0",
            "stop umawarden.socket umawarden.service\n\
             --quiet disable umawarden.socket umawarden.service\n",
        ),
        ("postremove", "0", "daemon-reload\n"),
    ] {
        assert_eq!(calls(script, left, true, "0"), wanted, "{script} {left}");
        // A script that fails would make the transaction fail, or leave the package installed.
        calls(script, left, true, "1");
    }
    // In an image that is built, nothing runs.
    assert_eq!(calls("postinstall", "1", false, "0"), "--quiet preset umawarden.service\n");
    assert_eq!(calls("postremove", "1", false, "0"), "");
}

#[test]
fn dpkg_starts_the_service_and_an_upgrade_restarts_it_if_it_is_enabled() {
    for (script, arguments, wanted) in [
        (
            "postinstall",
            "configure",
            "daemon-reload\n--quiet enable umawarden.service\nstart umawarden.service\n",
        ),
        ("preremove", "upgrade 0.2.0-1", ""),
        ("postremove", "upgrade 0.2.0-1", "daemon-reload\n"),
        (
            "postinstall",
            "configure 0.1.0-1",
            "daemon-reload\n--quiet is-enabled umawarden.service\nrestart umawarden.service\n",
        ),
        ("preremove", "remove", "stop umawarden.socket umawarden.service\n"),
        ("postremove", "remove", "daemon-reload\n"),
    ] {
        assert_eq!(calls(script, arguments, true, "0"), wanted, "{script} {arguments}");
        calls(script, arguments, true, "1");
    }
}
