//! Where the control-group namespace of this process begins in the host's hierarchy.

use std::fs;
use std::path::{Path, PathBuf};

use crate::parse::process::{NamespaceRoot, cgroup, outer_mount};

/// The control group namespace whose paths start at the root of the machine (PROC_CGROUP_INIT_INO).
const ALL_GROUPS: &str = "cgroup:[4026531835]";

/// The most groups that are examined: a node has at most a few hundred containers.
const MOST_GROUPS: usize = 8192;

/// Whether the paths of control groups start at the root of the machine.
pub fn are_paths_whole(procfs: &Path) -> bool {
    let own = fs::read_link(procfs.join("self/ns/cgroup"));
    own.is_ok_and(|own| own.to_str() == Some(ALL_GROUPS))
}

/// The root of this process's control-group namespace. It is found where the host's hierarchy is
/// mounted, as with a volume of the host's `/sys`, and unknown otherwise.
pub fn namespace_root(procfs: &Path) -> NamespaceRoot {
    if are_paths_whole(procfs) {
        return NamespaceRoot::default();
    }
    find(procfs).unwrap_or_default()
}

fn find(procfs: &Path) -> Option<NamespaceRoot> {
    let mounts = fs::read_to_string(procfs.join("self/mountinfo")).ok()?;
    let (mount, depth) = outer_mount(&mounts)?;
    let mount = Path::new(mount);
    // Only the root of the hierarchy has none. The mount of a part shows no whole paths.
    if mount.join("cgroup.events").exists() {
        return None;
    }
    let text = fs::read_to_string(procfs.join("self/cgroup")).ok()?;
    let below = cgroup(&text)?.trim_start_matches('/');
    let own = fs::read_link(procfs.join("self")).ok()?;
    let own = own.to_str()?;
    let has_own = |group: &Path| {
        let processes = fs::read_to_string(group.join(below).join("cgroup.procs"));
        processes.is_ok_and(|processes| processes.lines().any(|pid| pid == own))
    };
    let mut left = MOST_GROUPS;
    let group = descend(mount, depth, &has_own, &mut left)?;
    let path = group.strip_prefix(mount).ok()?.to_str()?;
    Some(NamespaceRoot::new(&format!("/{path}")))
}

/// The group so far below a folder that is the wanted one.
fn descend(
    folder: &Path,
    depth: usize,
    is_wanted: &dyn Fn(&Path) -> bool,
    left: &mut usize,
) -> Option<PathBuf> {
    if depth == 0 {
        return is_wanted(folder).then(|| folder.to_owned());
    }
    for entry in fs::read_dir(folder).ok()?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            *left = left.checked_sub(1)?;
            if let Some(found) = descend(&entry.path(), depth - 1, is_wanted, left) {
                return Some(found);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_own_place_is_found_in_the_hosts_hierarchy() {
        let folder = tempfile::tempdir().unwrap();
        let (procfs, mount) = (folder.path().join("proc"), folder.path().join("cgroup"));
        let own = "kubepods.slice/kubepods-podA.slice/own.scope";
        for (group, pids) in [(own, "41\n42\n"), ("kubepods.slice/kubepods-podB.slice/b", "9\n")] {
            fs::create_dir_all(mount.join(group)).unwrap();
            fs::write(mount.join(group).join("cgroup.procs"), pids).unwrap();
        }
        fs::create_dir_all(procfs.join("42")).unwrap();
        symlink("42", procfs.join("self")).unwrap();
        fs::write(procfs.join("42/cgroup"), "0::/\n").unwrap();
        assert_eq!(namespace_root(&procfs), NamespaceRoot::default(), "no mounts are known");
        let mounts = format!("9 8 0:27 /../../.. {} ro - cgroup2 a rw\n", mount.display());
        fs::write(procfs.join("42/mountinfo"), &mounts).unwrap();
        let root = namespace_root(&procfs);
        assert_eq!(root, NamespaceRoot::new(&format!("/{own}")));
        let its = root.cgroup("0::/../../kubepods-podB.slice/b\n");
        assert_eq!(its.as_deref(), Some("/kubepods.slice/kubepods-podB.slice/b"));
        // A part of the hierarchy.
        fs::write(mount.join("cgroup.events"), "populated 1\n").unwrap();
        assert_eq!(namespace_root(&procfs), NamespaceRoot::default());
    }
}
