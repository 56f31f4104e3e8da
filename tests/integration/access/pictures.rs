//! `top` and `status` of another node, over TLS and with a token.

use std::process::{Command, Output};

use umawarden::model::Role;

use super::{Files, HASH, TLS, program, token};
use crate::daemon::{binary, write_secret};
use crate::run::Node;

#[test]
fn top_and_status_show_a_node_behind_tls_by_the_access_of_the_cluster() {
    let node = Node::new("gb10-4k");
    let reader = token("reader", Role::Read);
    let web = format!("{TLS}basic_auth_users: {{alice: {HASH}}}\n");
    let files = Files::new(&web, &reader.entry());
    let daemon = program::start_with(&node, &files, |_| {});
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("umawarden.yaml");
    write_secret(folder.path().join("reader.token"), &reader.token);
    write_secret(folder.path().join("wrong.token"), &token("other", Role::Read).token);
    let authority = files.path("authority.pem");
    let show = |command: &[&str], access: &str| -> Output {
        std::fs::write(&config, format!("cluster: {{peers: [spark-2], {access}}}\n")).unwrap();
        let mut shown = Command::new(binary());
        shown.args(command).args(["--node", daemon.address(), "--config.file"]);
        shown.arg(&config).arg("--storage.path").arg(folder.path()).output().unwrap()
    };
    let trusted = format!("tls: {{ca_file: {}}}", authority.display());
    let with = |file: &str| format!("{trusted}, bearer_token_file: {file}");
    for command in [&["top", "--once"][..], &["top", "--json"], &["status"], &["status", "--json"]]
    {
        let shown = |access: &str| {
            let output = show(command, access);
            let both = [output.stdout, output.stderr].concat();
            (output.status.code(), String::from_utf8(both).unwrap())
        };
        let (code, text) = shown(&with("reader.token"));
        // What `status` says of the node is its exit code.
        assert!(code != Some(2) && text.contains("memory"), "{command:?}: {code:?} {text}");
        for (access, why) in [
            ("tls: {}".to_owned(), "certificate"),
            (trusted.clone(), "401"),
            (with("wrong.token"), "401"),
            (with("none.token"), "none.token"),
            ("name: rack".to_owned(), "TLS"),
        ] {
            let (code, text) = shown(&access);
            assert_eq!(code, Some(2), "{command:?} {access}: {text}");
            assert!(text.contains(why), "{command:?} {access}: {text}");
            assert!(text.contains(&format!("umawarden: {}: ", daemon.address())), "{text}");
        }
    }
}
