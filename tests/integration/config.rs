//! Configuration files, and their error messages.

use std::fs;
use std::path::{Path, PathBuf};

use umawarden::config::flags::{LoadFlags, RunFlags};
use umawarden::config::reader::{LoadError, load};
use umawarden::config::settings::{Environment, RuleSource};

use crate::rules_check::assert_golden;

fn load_file(
    path: impl Into<PathBuf>,
) -> Result<umawarden::config::reader::LoadedConfig, LoadError> {
    let flags = LoadFlags { config_file: Some(path.into()), ..LoadFlags::default() }.into();
    load(&flags, &Environment::default())
}

#[test]
fn every_broken_configuration_is_rejected_with_line_caret_and_advice() {
    for name in ["keys", "unclosed"] {
        let path = Path::new("tests/fixtures/config").join(name).with_extension("yaml");
        let error = load_file(&path).expect_err("mistakes");
        assert!(matches!(error, LoadError::Settings(_)), "{error}");
        assert_golden(&path.with_extension("txt"), &error.to_string());
    }
}

#[test]
fn the_shipped_rules_are_loaded_without_a_configuration() {
    let loaded = load(&RunFlags::default(), &Environment::default()).expect("loaded");
    assert_eq!(loaded.settings.rules, RuleSource::shipped());
    assert!(loaded.rules.groups.iter().any(|group| &*group.name == "memory"));
    assert!(loaded.remarks.is_empty());
}

#[test]
fn rule_files_are_relative_to_the_configuration_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = include_str!("../fixtures/rules/good/page-cache.yaml");
    fs::create_dir(folder.path().join("rules")).expect("a folder");
    fs::write(folder.path().join("rules/one.yaml"), rules).expect("written");
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, "rule_files: [rules/*.yaml]\n").expect("written");
    let loaded = load_file(&config).expect("loaded");
    assert_eq!(loaded.rules.groups[0].file, folder.path().join("rules/one.yaml"));

    fs::write(folder.path().join("rules/one.yaml"), "groups: [{nmae: x}]").expect("written");
    let error = load_file(&config).expect_err("mistakes").to_string();
    assert!(error.contains("rules/one.yaml:1:11: unknown key \"nmae\""), "{error}");
}

#[test]
fn a_missing_configuration_file_is_named() {
    let error = load_file("/nowhere/umawarden.yaml").expect_err("unreadable").to_string();
    assert_eq!(error, "cannot read /nowhere/umawarden.yaml: there is no such file");
}

#[test]
fn a_user_under_restarts_who_is_unknown_or_has_no_systemd_is_a_remark() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("umawarden.yaml");
    let restarts = "[{unit: a.service, user: no-such-user}, {unit: b.service, user: 4000000}]";
    fs::write(&file, format!("restarts: {restarts}\n")).expect("written");
    let mut program = assert_cmd::Command::cargo_bin("umawarden").unwrap();
    let output = program.args(["config", "check", "--config.file"]).arg(&file).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains(&format!("\nread {}\n", file.display())), "{printed}");
    for remark in [
        "mind: restarts: unit a.service of no-such-user: there is no user no-such-user here\n",
        "mind: restarts: unit b.service of 4000000: user 4000000 has no systemd now: log in as \
         that user, or keep it without a login (`loginctl enable-linger 4000000`)\n",
    ] {
        assert!(printed.contains(remark), "{printed}");
    }
}
