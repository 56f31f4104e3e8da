use std::fs::{create_dir, write};
use std::os::unix::fs::symlink;

use super::*;
use crate::config::flags::LoadFlags;

const GOOD: &str = "groups: [{name: g, rules: [{alert: A, expr: uma_memory_free_bytes < 1}]}]";

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn find(paths: &[PathBuf]) -> RuleFiles {
    find_rule_files(&RuleSource::written(paths, Path::new("")))
}

fn why(path: &Path) -> String {
    read_text(path).expect_err("refused").to_string()
}

#[test]
fn invalid_settings_files_are_refused_with_a_reason() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    assert!(why(&path("none")).ends_with("there is no such file"));
    assert!(why(folder.path()).contains("it is a folder"));
    write(path("big"), vec![b'#'; (1 << 20) + 1]).expect("written");
    assert!(why(&path("big")).contains("larger than 1 MiB"));
    write(path("latin1"), b"a: 1\nb: \xe9t\xe9\n").expect("written");
    assert!(why(&path("latin1")).contains("line 2 is not UTF-8"));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a pipe");
    assert!(why(&path("fifo")).contains("a pipe"));
    assert!(why(Path::new("/dev/zero")).contains("it is a device"));
}

#[test]
fn a_file_of_exactly_one_mebibyte_is_read() {
    let folder = folder();
    let path = folder.path().join("full");
    write(&path, vec![b'#'; 1 << 20]).expect("written");
    assert_eq!(read_text(&path).expect("read").text.len(), 1 << 20);
    assert_eq!(read_text(Path::new("/dev/null")).expect("read").text, "");
}

#[test]
fn files_folders_and_globs_are_looked_up_once_each_and_in_order() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for name in ["b.yaml", "a.yml", ".hidden.yaml", "note.txt", "c.yaml~"] {
        write(path(name), "").expect("written");
    }
    create_dir(path("sub.yaml")).expect("a folder");
    symlink(path("b.yaml"), path("z.yaml")).expect("a link");
    let found = find(&[folder.path().into(), path("b.yaml"), path("*.txt")]);
    let names = ["a.yml", "b.yaml", "z.yaml", "note.txt"].map(path);
    assert_eq!(found.files, names.map(RuleEntry::Path));
    assert!(found.unreadable.is_empty() && found.empty.is_empty(), "{found:?}");
}

#[test]
fn a_missing_file_is_an_error_and_an_empty_glob_a_remark() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let found = find(&[path("none.yaml"), path("none-*.yaml"), path("[")]);
    assert_eq!(found.empty, [path("none-*.yaml")]);
    let whys: Vec<String> = found.unreadable.iter().map(ToString::to_string).collect();
    assert!(whys[0].ends_with("there is no such file"), "{whys:?}");
    assert!(whys[1].contains("not a glob"), "{whys:?}");
}

#[test]
fn rule_files_of_a_test_are_found_as_promtool_finds_them() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    for name in ["a.yaml", ".b.yaml", "c_test.yaml"] {
        write(path(name), "").expect("written");
    }
    symlink(path("nowhere"), path("link")).expect("a link");
    let found = |name: &str| find_as_promtool(&path(name));
    assert_eq!(found("*.yaml"), Ok([".b.yaml", "a.yaml", "c_test.yaml"].map(path).to_vec()));
    assert_eq!(found("[^.c]**"), Ok(["a.yaml", "link"].map(path).to_vec()));
    assert_eq!(found("none.yaml"), Ok(Vec::new()));
    assert_eq!(found("link"), Ok(vec![path("link")]), "it is there, and cannot be read");
    assert_eq!(found(""), Ok(vec![path("")]), "a folder is there too");
    assert!(found("[").is_err());
}

#[test]
fn a_file_whose_name_looks_like_a_glob_is_that_file() {
    let folder = folder();
    let path = folder.path().join("[a].yaml");
    write(&path, "").expect("written");
    assert_eq!(find(std::slice::from_ref(&path)).files, [RuleEntry::Path(path)]);
}

#[test]
fn settings_and_rules_are_loaded_together() {
    let folder = folder();
    write(folder.path().join("r.yaml"), GOOD).expect("written");
    let config = folder.path().join("umawarden.yaml");
    write(&config, "mode: enforce\nrule_files: ['*r.yaml', 'none*']\n").expect("written");
    let flags = LoadFlags { config_file: Some(config), ..LoadFlags::default() }.into();
    let loaded = load(&flags, &Environment::default()).expect("loaded");
    assert_eq!(loaded.settings.mode, crate::model::Mode::Enforce);
    assert_eq!(loaded.rules.groups[0].file, folder.path().join("r.yaml"));
    assert_eq!(loaded.remarks.len(), 1);
}

#[test]
fn mistakes_and_unreadable_files_are_distinguished() {
    let folder = folder();
    let bad = folder.path().join("bad.yaml");
    write(&bad, "groups: [{nmae: g}]").expect("written");
    let rules = |paths: &[PathBuf]| -> RunFlags {
        LoadFlags { rules: paths.to_vec(), ..LoadFlags::default() }.into()
    };
    let environment = Environment::default();
    let error = load(&rules(std::slice::from_ref(&bad)), &environment).expect_err("mistakes");
    assert!(matches!(&error, LoadError::Rules(mistakes) if mistakes.0.len() == 2), "{error}");
    let error = load(&rules(&["/none".into(), bad]), &environment).expect_err("unreadable");
    assert!(matches!(error, LoadError::Unreadable(_)), "{error}");
}

#[test]
fn a_configuration_without_rules_has_a_remark() {
    let none = RuleSource(Vec::new());
    let (rules, remarks) = load_rules(&none, Duration::from_millis(100)).expect("loaded");
    assert!(rules.groups.is_empty());
    assert_eq!(remarks, ["no rules are loaded: nothing will be decided"]);
}

/// Loads a configuration with these `rule_files`, beside a file of rules and one called `shipped`.
fn with_rule_files(entries: &str, rules: &str) -> Result<LoadedConfig, LoadError> {
    let folder = folder();
    write(folder.path().join("my.yaml"), rules).expect("written");
    write(folder.path().join("shipped"), GOOD.replace("name: g", "name: file")).expect("written");
    let config = folder.path().join("umawarden.yaml");
    write(&config, format!("rule_files: {entries}\n")).expect("written");
    let flags = LoadFlags { config_file: Some(config), ..LoadFlags::default() }.into();
    load(&flags, &Environment::default())
}

#[test]
fn the_shipped_rules_are_an_entry_of_rule_files() {
    let names = |loaded: &LoadedConfig| -> Vec<String> {
        loaded.rules.groups.iter().map(|group| group.name.to_string()).collect()
    };
    let shipped = load(&RunFlags::default(), &Environment::default()).expect("loaded");
    let all = names(&shipped);
    let loaded = with_rule_files("[my.yaml, shipped, shipped]", GOOD).expect("loaded");
    assert_eq!(names(&loaded), [vec!["g".to_owned()], all].concat());
    assert!(loaded.rules.shipped_off.is_empty() && shipped.rules.shipped_off.is_empty());
    let loaded = with_rule_files("[./shipped]", GOOD).expect("loaded");
    assert_eq!(names(&loaded), ["file"]);
    assert!(loaded.rules.shipped_off.iter().any(|rule| rule.part.is_some()));
}

#[test]
fn shipped_rules_that_are_not_loaded_are_named() {
    let own = "groups: [{name: brake, rules: [{alert: MemoryCollapse, expr: \
               uma_memory_free_bytes < 1}]}]";
    let off = |rules| {
        let loaded = with_rule_files("[my.yaml]", rules).expect("loaded");
        let off = loaded.rules.shipped_off.iter().map(|rule| (rule.id.to_string(), rule.part));
        off.filter(|(_, part)| part.is_some()).collect::<Vec<_>>()
    };
    let guard = ("load/CheckpointLoads".to_owned(), Some(crate::model::ShippedPart::LoadGuard));
    let brake = ("brake/MemoryCollapse".to_owned(), Some(crate::model::ShippedPart::Brake));
    assert_eq!(off(GOOD), [brake, guard.clone()]);
    assert_eq!(off(own), [guard], "a rule of that name replaces the shipped one");
}

#[test]
fn a_file_cannot_define_a_shipped_group_again() {
    let own = "groups:\n- name: brake\n  rules: []\n";
    for entries in ["[shipped, my.yaml]", "[my.yaml, shipped]"] {
        let error = with_rule_files(entries, own).expect_err("twice").to_string();
        assert!(error.contains("my.yaml:2:9"), "{error}");
        assert!(error.contains("shipped:memory.yaml:"), "{error}");
        assert!(error.contains("rules: {GROUP/ALERT: {mode: observe}}"), "{error}");
    }
}
