//! Packages of `packaging/build`, if `UMAWARDEN_PACKAGES` names their folder, and the unit in them.

mod image;
mod reproduce;
mod scripts;
mod workflows;
mod writable;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::daemon::binary;

/// What both packages install.
const FILES: [&str; 28] = [
    "/etc/umawarden/umawarden.yaml",
    "/usr/bin/umawarden",
    "/usr/lib/systemd/system/umawarden.service",
    "/usr/lib/systemd/system/umawarden.socket",
    "/usr/share/bash-completion/completions/umawarden",
    "/usr/share/doc/umawarden/CHANGELOG.md",
    "/usr/share/doc/umawarden/examples/60-umawarden.conf",
    "/usr/share/doc/umawarden/examples/one-spark.yaml",
    "/usr/share/doc/umawarden/examples/two-sparks.yaml",
    "/usr/share/doc/umawarden/examples/umawarden.yaml",
    "/usr/share/fish/vendor_completions.d/umawarden.fish",
    "/usr/share/man/man1/umawarden.1.gz",
    "/usr/share/man/man1/umawarden-rules-check.1.gz",
    "/usr/share/umawarden/alerts/umawarden.yaml",
    "/usr/share/umawarden/dashboards/kubernetes.yaml",
    "/usr/share/umawarden/dashboards/node.json",
    "/usr/share/umawarden/dashboards/provisioning/node.json",
    "/usr/share/umawarden/dashboards/provisioning/umawarden.yaml",
    "/usr/share/umawarden/drop-ins/engines.conf",
    "/usr/share/umawarden/drop-ins/evict.conf",
    "/usr/share/umawarden/drop-ins/memory.conf",
    "/usr/share/umawarden/drop-ins/reboot.conf",
    "/usr/share/umawarden/drop-ins/rootless.conf",
    "/usr/share/umawarden/drop-ins/stop.conf",
    "/usr/share/umawarden/kubernetes/base/kustomization.yaml",
    "/usr/share/umawarden/kubernetes/chart/umawarden/Chart.yaml",
    "/usr/share/umawarden/kubernetes/chart/umawarden/README.md",
    "/usr/share/umawarden/kubernetes/chart/umawarden/files/alerts-umawarden.yaml",
];

/// Of the rpm. They are installed even where documents are left out.
const LICENCES: [&str; 2] =
    ["/usr/share/licenses/umawarden/LICENSE", "/usr/share/licenses/umawarden/NOTICE"];

/// The output of a program that succeeds.
fn output(program: impl AsRef<Path>, arguments: &[&str]) -> String {
    let program = program.as_ref();
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(output.status.success(), "{} {arguments:?}: {output:?}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

/// The packages with this ending. `None`: none are to be tested.
fn packages(ending: &str) -> Option<Vec<String>> {
    let folder = std::env::var_os("UMAWARDEN_PACKAGES").filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(PathBuf::from) else {
        eprintln!("skipped: UMAWARDEN_PACKAGES names no folder");
        return None;
    };
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.map(|path| path.display().to_string());
    let found: Vec<String> = paths.filter(|path| path.ends_with(ending)).collect();
    assert!(!found.is_empty(), "no {ending}");
    Some(found)
}

/// Both packages have all files, and all of `rules/`. Others are where the distribution wants them.
fn assert_has_all(installed: &BTreeSet<&str>, package: &str, own: [&'static str; 3]) {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("rules");
    let rules = fs::read_dir(rules).unwrap().map(|entry| entry.unwrap().file_name());
    let rules = rules.map(|name| format!("/usr/share/umawarden/rules/{}", name.display()));
    let wanted = FILES.into_iter().chain(own).map(str::to_owned).chain(rules);
    let lacking: Vec<_> = wanted.filter(|file| !installed.contains(file.as_str())).collect();
    assert!(lacking.is_empty(), "{package} lacks {lacking:?}");
}

#[test]
fn the_deb_has_all_files_with_modes_that_let_nobody_else_write() {
    for package in packages(".deb").unwrap_or_default() {
        let listed = output("dpkg-deb", &["--contents", &package]);
        let mut installed = BTreeSet::new();
        for line in listed.lines().filter(|line| !line.starts_with('d')) {
            let mut words = line.split_ascii_whitespace();
            let (mode, owner) = (words.next().unwrap(), words.next().unwrap());
            let file = words.next_back().unwrap().trim_start_matches('.');
            installed.insert(file);
            let wanted = if file.starts_with("/usr/bin/") { "-rwxr-xr-x" } else { "-rw-r--r--" };
            assert_eq!((mode, owner), (wanted, "root/root"), "{file}");
        }
        let own = [
            "/usr/share/doc/umawarden/NOTICE",
            "/usr/share/doc/umawarden/copyright",
            "/usr/share/zsh/vendor-completions/_umawarden",
        ];
        assert_has_all(&installed, &package, own);
        let control = output("dpkg-deb", &["--info", &package]);
        for part in ["conffiles", "postinst", "prerm", "postrm", "libc6 (>= 2.28)"] {
            assert!(control.contains(part), "{part} is not in {control}");
        }
    }
}

#[test]
fn the_rpm_has_all_files_and_keeps_a_changed_configuration() {
    for package in packages(".rpm").unwrap_or_default() {
        let listed = output("rpm", &["--query", "--list", "--package", &package]);
        let installed: BTreeSet<&str> = listed.lines().collect();
        let [license, notice] = LICENCES;
        let own = [license, notice, "/usr/share/zsh/site-functions/_umawarden"];
        assert_has_all(&installed, &package, own);
        let kept = output("rpm", &["--query", "--configfiles", "--package", &package]);
        assert_eq!(kept.trim(), "/etc/umawarden/umawarden.yaml");
        let licences = output("rpm", &["--query", "--licensefiles", "--package", &package]);
        assert_eq!(licences.lines().collect::<Vec<_>>(), LICENCES);
        let needs = output("rpm", &["--query", "--requires", "--package", &package]);
        assert!(needs.contains("glibc >= 2.28") && needs.contains("/bin/sh"), "{needs}");
        // The restart is a step of the version before: its files no longer exist then.
        for (tag, step) in [
            ("POSTIN", "preset umawarden.service"),
            ("PREUN", "disable umawarden.socket umawarden.service"),
            ("POSTUN", "try-restart umawarden.service"),
        ] {
            let format = format!("%{{{tag}}}");
            let script =
                output("rpm", &["--query", "--queryformat", &format, "--package", &package]);
            assert!(script.contains(step), "{tag}: {script}");
        }
    }
}

/// What rpm does not own stays when the package is removed.
#[test]
fn the_rpm_owns_its_folders() {
    for package in packages(".rpm").unwrap_or_default() {
        let listed = output("rpm", &["--query", "--list", "--package", &package]);
        let installed: BTreeSet<&Path> = listed.lines().map(Path::new).collect();
        let folders = installed.iter().flat_map(|file| file.ancestors().skip(1));
        let is_own = |folder: &&Path| folder.iter().any(|part| part == "umawarden");
        let unowned: BTreeSet<&Path> =
            folders.filter(is_own).filter(|folder| !installed.contains(folder)).collect();
        assert!(unowned.is_empty(), "{unowned:?}");
    }
}

#[test]
fn the_packaged_program_needs_no_glibc_after_2_28() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/symbols");
    let script = script.display().to_string();
    if std::env::var_os("UMAWARDEN_PACKAGES_OF_DEBUG_BUILD").is_some() {
        eprintln!("skipped: the linker of releases has not made it");
        return;
    }
    for package in packages(".deb").unwrap_or_default() {
        let folder = tempfile::tempdir().unwrap();
        let into = folder.path().display().to_string();
        output("dpkg-deb", &["--extract", &package, &into]);
        let program = format!("{into}/usr/bin/umawarden");
        let found = output(&script, &["2.28", &program]);
        assert!(found.contains("needs glibc 2."), "{found}");
        // It does find newer ones.
        let refused = Command::new(&script).args(["2.2", &program]).output().unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        if package.contains(if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }) {
            let version = output(&program, &["--version"]);
            let begin = concat!("umawarden ", env!("CARGO_PKG_VERSION"), " (revision ");
            assert!(version.starts_with(begin), "{version}");
        }
    }
}

/// Symbols with a version after 2.28 that 2.28 has under an older version: the linker of
/// `packaging/build` chooses that. And three for which the standard library has a substitute.
const OLD: [&str; 34] = [
    "__libc_start_main",
    "dladdr",
    "dlclose",
    "dlerror",
    "dlopen",
    "dlsym",
    "exp",
    "fstat",
    "fstat64",
    "fstatat",
    "fstatat64",
    "gettid",
    "log",
    "log2",
    "lstat",
    "lstat64",
    "pidfd_getpid",
    "pidfd_spawnp",
    "posix_spawn_file_actions_addchdir_np",
    "pow",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
    "stat",
    "stat64",
];

#[test]
fn the_program_calls_nothing_that_came_after_glibc_2_28() {
    let symbols = output("readelf", &["--wide", "--dyn-syms", &binary().display().to_string()]);
    let versions = symbols.split_ascii_whitespace().filter_map(|word| word.split_once("@GLIBC_"));
    let (mut seen, mut newer) = (0, BTreeSet::new());
    for (name, version) in versions {
        seen += 1;
        let (major, minor) = version.split_once('.').unwrap();
        let minor: u32 = minor.split('.').next().unwrap().parse().unwrap();
        if (major, minor) > ("2", 28) && !OLD.contains(&name) && !name.starts_with("pthread_mutex")
        {
            newer.insert(format!("{name}@{version}"));
        }
    }
    assert!(seen > 50 && newer.is_empty(), "{seen} seen, newer: {newer:?}");
}

/// The exposure of a unit by `systemd-analyze security`.
fn exposure(unit: &str) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("umawarden.service");
    fs::write(&file, unit).unwrap();
    let file = file.display().to_string();
    let table = output("systemd-analyze", &["security", "--offline=yes", "--no-pager", &file]);
    let (_, rest) = table.split_once("Overall exposure level for umawarden.service: ").unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn the_unit_is_exposed_as_the_book_says() {
    // Older ones cannot analyze a file, and newer ones rate other things, too.
    let version = Command::new("systemd-analyze").arg("--version").output();
    if !version.is_ok_and(|output| output.stdout.starts_with(b"systemd 252 ")) {
        eprintln!("skipped: systemd 252 is not installed");
        return;
    }
    let unit = output(binary(), &["print", "unit"]);
    assert!(exposure(&unit) <= 3.0, "{}", exposure(&unit));
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/src/reference/permissions.md");
    let book = fs::read_to_string(book).unwrap();
    for group in ["memory", "evict", "engines", "stop", "rootless", "reboot"] {
        let drop_in = output(binary(), &["print", "drop-in", group]);
        let score = exposure(&format!("{unit}\n{drop_in}"));
        let (begin, end) = (format!("| `{group}` |"), format!("| {score:.1} |"));
        let mut rows = book.lines().filter(|line| line.starts_with(&begin));
        assert!(rows.any(|row| row.ends_with(&end)), "{group}: {score}");
    }
    let all = exposure(&format!("{unit}\n{}", output(binary(), &["print", "drop-in"])));
    assert!(book.contains(&format!("and {all:.1} with all drop-ins")), "{all}");
}

#[test]
fn texts_for_shells_and_manuals_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let text = output(binary(), &["print", "completions", shell]);
        assert!(text.contains("launch") && text.contains("web.listen-address"), "{shell}");
    }
    let page = output(binary(), &["print", "man"]);
    assert!(page.contains("umawarden\\-doctor(1)") && page.starts_with(".ie"), "{page}");
    let page = output(binary(), &["print", "man", "rules", "check"]);
    assert!(page.contains("config.file"), "{page}");
    let folder = tempfile::tempdir().unwrap();
    output(binary(), &["print", "man", "--output", &folder.path().display().to_string()]);
    assert!(folder.path().join("umawarden-rules-check.1").exists());
    assert!(!folder.path().join("umawarden-nvml-child.1").exists(), "it is hidden");
    let wrong = Command::new(binary()).args(["print", "man", "rule"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn the_documents_install_the_packages_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for document in ["README.md", "docs/src/start/one-spark.md"] {
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join(document);
        let text = fs::read_to_string(text).unwrap();
        for name in [
            format!("umawarden_{version}-1_arm64.deb"),
            format!("umawarden_{version}-1_amd64.deb"),
            format!("umawarden-{version}-1.aarch64.rpm"),
            format!("umawarden-{version}-1.x86_64.rpm"),
        ] {
            assert!(text.contains(&name), "{name} is not in {document}");
        }
        // The rpm does not start the service.
        assert!(text.contains("sudo systemctl enable --now umawarden"), "{document}");
    }
}

#[test]
fn the_notice_has_the_licences_of_what_is_linked() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/notice");
    let notice = output(script, &[]);
    let (crates, texts) = notice.split_once("\n\n---").unwrap();
    for linked in ["\naxum ", "\nlibsqlite3-sys ", "\nrustls "] {
        assert!(crates.contains(linked), "{linked}");
    }
    // Tests alone need it, and the program is not a crate of others.
    assert!(!crates.contains("\nproptest ") && !crates.contains("\numawarden "));
    assert!(texts.contains("Permission is hereby granted") && texts.contains("Apache License"));
}

#[test]
fn two_sparks_mount_a_configuration_that_is_there_and_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/compose");
    let compose = fs::read_to_string(folder.join("two-sparks.yaml")).unwrap();
    let compose: serde_json::Value = serde_saphyr::from_str(&compose).unwrap();
    let mount = &compose["services"]["umawarden"]["volumes"][0];
    // Docker would make a folder of that name.
    assert_eq!(mount["bind"]["create_host_path"], false, "{mount}");
    let file = folder.join(mount["source"].as_str().unwrap()).display().to_string();
    output(binary(), &["config", "check", "--config.file", &file]);
}

/// `packaging/changes`, beside a changelog.
fn changes(changelog: &str, version: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("packaging")).unwrap();
    fs::write(folder.path().join("CHANGELOG.md"), changelog).unwrap();
    let script = folder.path().join("packaging/changes");
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/changes"), &script).unwrap();
    // Not by itself: a file that has just been written may still count as open for writing.
    Command::new("bash").arg(&script).arg(version).output().unwrap()
}

#[test]
fn the_notes_of_a_release_are_all_of_its_changes() {
    let changelog = "# Changelog\n\n## 0.2.0 - 2027\n\n- new\n\n## 0.1.0 - 2026\n\n- old\n";
    let printed = changes(changelog, "0.2.0");
    assert!(printed.status.success(), "{printed:?}");
    assert_eq!(String::from_utf8_lossy(&printed.stdout).trim(), "- new");
    assert_eq!(changes(changelog, "0.2").status.code(), Some(1), "there is no 0.2");
    let open = changelog.replacen("\n## ", "\n## Unreleased\n\n- not noted\n\n## ", 1);
    let refused = changes(&open, "0.2.0");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Unreleased"), "{refused:?}");
    // The program's own changelog may have such changes, but never lacks its version.
    let own = include_str!("../../CHANGELOG.md");
    assert!(own.contains(concat!("\n## ", env!("CARGO_PKG_VERSION"), " - ")));
}

/// The example is what `tune` would set on a DGX Spark.
#[test]
fn the_example_of_sysctls_has_the_profiles_values() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let example = fs::read_to_string(root.join("packaging/sysctl/60-umawarden.conf")).unwrap();
    let values = example.lines().filter_map(|line| line.strip_prefix("#vm.")?.split_once(" = "));
    let profile = output(binary(), &["tune", "--profile", "dgx-spark", "--json"]);
    let profile: serde_json::Value = serde_json::from_str(&profile).unwrap();
    let settings = profile["settings"].as_array().unwrap();
    let mut compared = 0;
    for (name, value) in values {
        let name = format!("vm.{name}");
        let setting = settings.iter().find(|setting| setting["name"] == *name).unwrap();
        assert_eq!(setting["profile"].to_string(), value, "{name}: {setting}");
        compared += 1;
    }
    assert!(compared >= 2);
}
