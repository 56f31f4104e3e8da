//! The program with access control: refused requests have no effect, orders name their caller.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use umawarden::model::Role;

use super::{ALICE, Files, HASH, TLS, bearer, fixture, request_tls, token};
use crate::daemon::{Daemon, binary, history, of_kind, once_journalled};
use crate::run::Node;

fn start(node: &Node, files: &Files) -> Daemon {
    start_with(node, files, |_| {})
}

/// A daemon with these files; `more` may change the command.
pub fn start_with(node: &Node, files: &Files, more: impl FnOnce(&mut Command)) -> Daemon {
    let mut command = run_behind(node, &files.path("web.yml"));
    command.arg("--web.tokens.file").arg(files.path("tokens.yml"));
    more(&mut command);
    Daemon::from_command(&mut command)
}

/// The command of a daemon with that web configuration.
pub fn run_behind(node: &Node, web_config: &Path) -> Command {
    let mut command = Command::new(binary());
    command
        .args(["run", "--web.listen-address", "127.0.0.1:0", "--storage.path"])
        .arg(node.storage())
        .args(node.arguments())
        .arg("--web.config.file")
        .arg(web_config);
    command
}

fn run(arguments: &[&str]) -> Output {
    Command::new(binary()).args(arguments).output().unwrap()
}

#[test]
fn refused_orders_leave_no_note_and_accepted_ones_name_their_caller() {
    let node = Node::new("gb10-4k");
    let (ops, reader) = (token("ops", Role::Operate), token("reader", Role::Read));
    let entries = format!(
        "{}{}- {{certificate: spark-2.example, role: remedy}}\n",
        ops.entry(),
        reader.entry()
    );
    let web = format!(
        "{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: authority.pem\n\
         basic_auth_users: {{alice: {HASH}}}\n"
    );
    let files = Files::new(&web, &entries);
    let daemon = start(&node, &files);
    let address = daemon.address().parse().unwrap();
    let post = |certificate, path: &str, header: &str| {
        request_tls(address, certificate, "POST", path, &[header]).map(|response| response.status)
    };
    let none = "X-Nothing: x";
    let wrong = "Authorization: Bearer umawarden_123";
    // The note of the start is in the journal by its next write.
    once_journalled(&node.storage(), "note");
    let before = history(&node.storage());
    for (header, status) in [(none, 401), (wrong, 401), (ALICE, 403), (&bearer(&reader), 403)] {
        for path in ["/api/v1/pause", "/-/reload", "/api/v1/reboot", "/api/v1/notes"] {
            assert_eq!(post(None, path, header), Some(status), "{path} {header}");
        }
    }
    assert_eq!(post(Some("forged"), "/api/v1/pause", none), None);
    let notes = |history: &[Value]| {
        let notes = of_kind(history, "note").map(|note| note["text"].to_string());
        notes.collect::<Vec<String>>()
    };
    assert_eq!(notes(&before), notes(&history(&node.storage())), "refused requests leave no note");

    assert_eq!(post(None, "/-/reload", &bearer(&ops)), Some(200));
    assert_eq!(post(Some("client"), "/api/v1/pause", none), Some(200));
    let metrics = request_tls(address, None, "GET", "/metrics", &[&bearer(&reader)]).unwrap();
    let metrics = metrics.text();
    for line in [
        "uma_web_refused_requests_total{reason=\"no_credential\"} ",
        "uma_web_refused_requests_total{reason=\"role\"} ",
        "uma_web_certificate_expiry_timestamp_seconds 4733510400",
        "uma_web_config_last_reload_successful 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    let (_, log) = daemon.terminate();
    assert!(log.contains("listening on https://"), "{log}");
    assert!(log.contains("refused POST /api/v1/pause"), "{log}");
    assert!(!log.contains("umawarden_123") && !log.contains(&ops.token), "{log}");
    let notes = notes(&history(&node.storage())).join("\n");
    assert!(notes.contains("reloaded by token ops (127.0.0.1)"), "{notes}");
    assert!(notes.contains("paused by certificate spark-2.example (127.0.0.1)"), "{notes}");
}

#[test]
fn a_broken_web_configuration_prevents_the_start() {
    let node = Node::new("gb10-4k");
    let files = Files::new("basic_auth_users: {alice: hunter2}\n", "[]\n");
    let output = run_behind(&node, &files.path("web.yml")).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{printed}");
    assert!(printed.contains("web.yml:1:27: the password must be hashed with bcrypt"), "{printed}");
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn config_check_reads_the_access_files_like_the_daemon() {
    let files = Files::new(TLS, "- {user: bob, role: read}\n");
    let (web, tokens) = (files.path("web.yml"), files.path("tokens.yml"));
    let check = |more: &[&str]| {
        let mut arguments = vec!["config", "check", "--web.config.file", web.to_str().unwrap()];
        arguments.extend(["--web.tokens.file", tokens.to_str().unwrap()]);
        arguments.extend(more);
        run(&arguments)
    };
    let output = check(&[]);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("tokens.yml:1:10: there is no user bob"), "{printed}");
    let report: Value = serde_json::from_slice(&check(&["--json"]).stdout).unwrap();
    assert_eq!((&report["fine"], &report["mistakes"][0]["line"]), (&json!(false), &json!(1)));
    files.write("tokens.yml", "[]\n");
    let output = check(&[]);
    assert_eq!(output.status.code(), Some(0));
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("good until 2120-01-01"), "{printed}");
    let report: Value = serde_json::from_slice(&check(&["--json"]).stdout).unwrap();
    assert_eq!((&report["fine"], &report["tls"]), (&json!(true), &json!(true)));
    std::fs::remove_file(&tokens).unwrap();
    assert_eq!(check(&[]).status.code(), Some(2));
}

#[test]
fn unreadable_keys_and_certificates_of_other_services_are_remarks() {
    let files = Files::new("{}\n", "[]\n");
    let text = "
cluster: {name: a, peers: [b], tls: {ca_file: /none/ca.pem}, bearer_token_file: /none/token}
alertmanager: {send: [{url: https://am:9093, username: u, password_file: /none/password}]}
otlp: {endpoint: https://c:4318, headers_file: /none/headers, ca_file: /none/otlp.pem}
reboot: {lock: {url: https://lock, group: g, ca_file: /none/lock.pem}}
engines: [{name: e, match: {comm: e}, api_key_file: /none/api}]
";
    files.write("umawarden.yml", text);
    let config = files.path("umawarden.yml");
    let output = run(&["config", "check", "--json", "--config.file", config.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["fine"]), (Some(0), &json!(true)), "{report}");
    let remarks: Vec<&str> =
        report["remarks"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for wanted in [
        "cluster: ca_file /none/ca.pem: No such file",
        "cluster: the key in /none/token cannot be read",
        "alertmanager.send https://am:9093: the key in /none/password cannot be read",
        "otlp: ca_file /none/otlp.pem: No such file",
        "otlp: headers_file /none/headers: No such file",
        "reboot.lock: ca_file /none/lock.pem: No such file",
        "engine e: the key in /none/api cannot be read",
    ] {
        assert_eq!(
            remarks.iter().filter(|remark| remark.starts_with(wanted)).count(),
            1,
            "{remarks:#?}"
        );
    }
}

#[test]
fn the_example_access_files_are_valid() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.yml");
    std::fs::copy(fixture("tokens.yml"), &tokens).unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&tokens, private).unwrap();
    let web = fixture("web-config.yml");
    let output = run(&[
        "config",
        "check",
        "--web.config.file",
        web.to_str().unwrap(),
        "--web.tokens.file",
        tokens.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn token_create_prints_the_token_and_its_entry() {
    let output = run(&["token", "create", "--name", "ops", "--role", "operate", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["token"].as_str().unwrap().starts_with("umawarden_"));
    assert_eq!(report["sha256"].as_str().unwrap().len(), 64);
    let output = run(&["token", "create", "--name", "ops", "--role", "operate"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("- name: \"ops\"\n  role: operate\n  sha256: "), "{text}");
    let refused = run(&["token", "create", "--name", "o p s", "--role", "operate"]);
    assert_eq!(refused.status.code(), Some(2));
    let help = String::from_utf8(run(&["token", "create", "--help"]).stdout).unwrap();
    assert!(help.contains("remedy   POST /api/v1/reboot"), "{help}");
}
