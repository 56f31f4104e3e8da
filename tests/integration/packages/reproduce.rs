//! `packaging/reproduce`, with a build that takes no time; and what a build says of itself.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::{output, packages};

/// A command whose git is that of its folder, whatever a hook of git has set.
fn command(program: &str, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).env_remove("TZ");
    for name in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(name);
    }
    command
}

/// Builds a repository whose packages are the output of a command, and builds them again.
fn reproduce(content: &str, change: Option<&str>) -> (Output, usize) {
    let folder = tempfile::tempdir().unwrap();
    let (root, spare) = (folder.path().join("root"), folder.path().join("spare"));
    fs::create_dir_all(root.join("packaging")).unwrap();
    fs::create_dir(&spare).unwrap();
    let build = root.join("packaging/build");
    let script = format!(
        "#!/bin/sh\nset -e\ncd \"$(dirname \"$0\")/..\"\nmkdir -p target/dist\ncd target/dist\n\
         {content} >package\nsha256sum package >SHA256SUMS\n"
    );
    fs::write(&build, script).unwrap();
    fs::set_permissions(&build, fs::Permissions::from_mode(0o755)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/reproduce");
    fs::copy(source, root.join("packaging/reproduce")).unwrap();
    fs::write(root.join(".gitignore"), "/target/\n").unwrap();
    let identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"];
    for arguments in [&["init", "--quiet"][..], &["add", "."], &["commit", "--quiet", "-m", "x"]] {
        let done = command("git", &root).args(identity).args(arguments).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
    }
    if let Some(text) = change {
        fs::write(root.join(".gitignore"), text).unwrap();
    }
    let built = command("sh", &root).arg("packaging/build").output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let again = command("bash", &root).arg("packaging/reproduce").env("TMPDIR", &spare).output();
    (again.unwrap(), fs::read_dir(spare).unwrap().count())
}

#[test]
fn a_second_build_is_compared_and_kept_if_it_differs() {
    let (same, kept) = reproduce("echo same", None);
    assert!(same.status.success() && kept == 0, "{same:?}");
    assert!(String::from_utf8_lossy(&same.stdout).contains("the same bytes"), "{same:?}");
    // What depends on the time zone, the language or the umask of the user.
    for content in ["echo \"$TZ\"", "umask"] {
        let (other, kept) = reproduce(content, None);
        assert_eq!((other.status.code(), kept), (Some(1), 1), "{content}: {other:?}");
    }
    let (refused, _) = reproduce("echo same", Some("/target/\n/more/\n"));
    assert_eq!(refused.status.code(), Some(2), "a clone has no change that is not committed");
}

#[test]
fn checksums_cover_all_files_and_the_tools_are_named() {
    for sums in packages("SHA256SUMS").unwrap_or_default() {
        let text = fs::read_to_string(&sums).unwrap();
        let listed: Vec<&str> = text.lines().filter_map(|line| line.get(66..)).collect();
        let folder = Path::new(&sums).parent().unwrap();
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let files: BTreeSet<String> = files.map(|name| name.display().to_string()).collect();
        let unlisted: Vec<&String> = files
            .iter()
            .filter(|name| *name != "SHA256SUMS" && !listed.contains(&name.as_str()))
            .collect();
        assert!(unlisted.is_empty(), "{unlisted:?}");
        assert!(listed.is_sorted(), "{text}");
        let build = fs::read_to_string(folder.join("BUILDINFO")).unwrap();
        for key in ["revision", "rust-release", "rust-src", "python", "gzip", "tar", "tools"] {
            assert!(build.lines().any(|line| line.starts_with(&format!("{key}: "))), "{build}");
        }
        assert!(build.contains("libc6_"), "{build}");
        let checked = format!("cd {} && sha256sum --check --quiet SHA256SUMS", folder.display());
        output("sh", &["-c", &checked]);
    }
}
