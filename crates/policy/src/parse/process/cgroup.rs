//! `/proc/PID/cgroup`, and where the paths in it begin.

use std::borrow::Cow;

use super::MAX_TEXT;

/// Where the control-group namespace of this process begins in the unified hierarchy. The kernel
/// writes the groups of others relative to that: `/../../kubepods-podUID.slice/…`
/// (cgroup_namespaces(7)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceRoot(Option<String>);

impl NamespaceRoot {
    /// The namespace that begins at a group, as a path from the root of the hierarchy. The default
    /// is a namespace of unknown place, or the whole hierarchy.
    pub fn new(path: &str) -> Self {
        Self((path != "/" && is_plain(path)).then(|| path.trim_end_matches('/').to_owned()))
    }

    /// The same as [`cgroup`], from the root of the hierarchy. Where the namespace begins at an
    /// unknown group, it is the part behind the `..`, if that names a container: it ends like the
    /// whole path, and has no `..` either.
    pub fn cgroup<'t>(&self, text: &'t str) -> Option<Cow<'t, str>> {
        let unified = unified(text);
        let resolved = unified.and_then(|path| self.resolve(path));
        // The namespace of another hierarchy begins elsewhere.
        let memory = || of_memory(text).and_then(|path| Self::default().resolve(path));
        if unified == Some("/") { memory().or(resolved) } else { resolved.or_else(memory) }
    }

    /// The group of each hierarchy, in the same form.
    pub fn all<'t>(&self, text: &'t str) -> impl Iterator<Item = Cow<'t, str>> {
        text.lines().filter_map(move |line| match group(line, str::is_empty) {
            Some(path) => self.resolve(path),
            None => group(line, |_| true).and_then(|path| Self::default().resolve(path)),
        })
    }

    fn resolve<'t>(&self, path: &'t str) -> Option<Cow<'t, str>> {
        let (ups, below) = ascent(path);
        let is_path = path.starts_with('/') && path.len() <= MAX_TEXT;
        if !is_path || !(below.is_empty() || is_plain(below)) {
            return None;
        }
        let Some(own) = &self.0 else {
            let is_enough = ups == 0 || names_container(below);
            return is_enough.then_some(Cow::Borrowed(below));
        };
        let mut above = own.as_str();
        for _ in 0..ups {
            above = above.rsplit_once('/')?.0;
        }
        let whole = format!("{above}{}", below.trim_end_matches('/'));
        let whole = if whole.is_empty() { "/".to_owned() } else { whole };
        (whole.len() <= MAX_TEXT).then_some(Cow::Owned(whole))
    }
}

/// The control group in `/proc/PID/cgroup`: that of the unified hierarchy, else the memory
/// controller's. `None` where it is outside of this cgroup namespace: see [`NamespaceRoot`].
pub fn cgroup(text: &str) -> Option<&str> {
    let unified = unified(text).filter(|path| is_plain(path));
    let memory = || of_memory(text).filter(|path| is_plain(path));
    unified.filter(|path| *path != "/").or_else(memory).or(unified)
}

/// The mount of the unified hierarchy in `/proc/self/mountinfo` that begins furthest above the
/// control-group namespace of this process, as the host's that is bound into a container: its mount
/// point, and how many groups the namespace begins below it. `None`: none begins above it.
pub fn outer_mount(mountinfo: &str) -> Option<(&str, usize)> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, about) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // Odd bytes of a path are escaped (proc(5)).
        let is_readable = about.starts_with("cgroup2 ") && !point.contains('\\');
        let (ups, below) = ascent(root);
        (is_readable && ups > 0 && below.is_empty()).then_some((point, ups))
    });
    mounts.max_by_key(|(_, ups)| *ups)
}

/// How often a path ascends at its beginning, and what follows.
fn ascent(path: &str) -> (usize, &str) {
    let (mut ups, mut below) = (0, path);
    while let Some(rest) = below.strip_prefix("/..")
        && (rest.is_empty() || rest.starts_with('/'))
    {
        (ups, below) = (ups + 1, rest);
    }
    (ups, below)
}

/// Whether a part of the path has an id of a container, of 64 hexadecimal digits.
fn names_container(path: &str) -> bool {
    path.split(|letter: char| !letter.is_ascii_hexdigit()).any(|digits| digits.len() == 64)
}

fn is_plain(path: &str) -> bool {
    path.starts_with('/')
        && path.len() <= MAX_TEXT
        && !path.split('/').any(|part| part == "..")
        && !path.chars().any(char::is_control)
}

fn unified(text: &str) -> Option<&str> {
    text.lines().find_map(|line| group(line, str::is_empty))
}

fn of_memory(text: &str) -> Option<&str> {
    let has_memory = |controllers: &str| controllers.split(',').any(|name| name == "memory");
    text.lines().find_map(|line| group(line, has_memory))
}

fn group(line: &str, wanted: impl Fn(&str) -> bool) -> Option<&str> {
    let (id, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let is_line = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit());
    (is_line && wanted(controllers)).then_some(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "4f1c0ddc6a0b1c2d3e4f5061728394a5b6c7d8e9fa0b1c2d3e4f506172839401";
    const OWN: &str = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podA.slice/own";

    #[test]
    fn paths_of_other_groups_are_those_of_the_host_where_the_own_place_is_known() {
        let own = NamespaceRoot::new(OWN);
        let scope = format!("kubepods-burstable-podB.slice/cri-containerd-{ID}.scope");
        for (seen, whole) in [
            ("/".to_owned(), OWN.to_owned()),
            ("/sub".to_owned(), format!("{OWN}/sub")),
            (
                format!("/../../{scope}"),
                format!("/kubepods.slice/kubepods-burstable.slice/{scope}"),
            ),
            (
                "/../../../../system.slice/a.service".to_owned(),
                "/system.slice/a.service".to_owned(),
            ),
            ("/../../../..".to_owned(), "/".to_owned()),
        ] {
            assert_eq!(own.cgroup(&format!("0::{seen}\n")).as_deref(), Some(&*whole), "{seen}");
        }
        for outside in ["/../../../../..", "/../a/../b", "/..a/../b", ""] {
            assert_eq!(own.cgroup(&format!("0::{outside}\n")), None, "{outside:?}");
        }
    }

    #[test]
    fn where_the_own_place_is_unknown_the_end_of_the_path_names_a_container() {
        let unknown = NamespaceRoot::default();
        let scope = format!("/kubepods-burstable-podB.slice/cri-containerd-{ID}.scope");
        let text = format!("0::/../..{scope}\n");
        assert_eq!(unknown.cgroup(&text).as_deref(), Some(&*scope));
        assert_eq!(unknown.all(&text).collect::<Vec<_>>(), [&*scope]);
        for named_by_no_runtime in ["/../../../../system.slice/a.service", "/..", "/../a/../b"] {
            let text = format!("0::{named_by_no_runtime}\n");
            assert_eq!(unknown.cgroup(&text), None, "{text}");
        }
        let hybrid = "4:memory:/docker/ab\n0::/\n";
        assert_eq!(unknown.cgroup(hybrid).as_deref(), cgroup(hybrid));
        assert_eq!(unknown.cgroup("0::/\n").as_deref(), Some("/"));
    }

    /// The two mounts that a pod has with the host's `/sys` at `/host/sys`.
    #[test]
    fn the_mount_of_the_host_begins_above_the_namespace() {
        let pod = "812 811 0:27 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n\
                   820 819 0:27 /../../../.. /host/sys/fs/cgroup ro master:9 - cgroup2 cgroup2 rw\n\
                   821 819 0:27 /.. /mnt rw - cgroup2 cgroup2 rw\n";
        assert_eq!(outer_mount(pod), Some(("/host/sys/fs/cgroup", 4)));
        let alone = "812 811 0:27 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n";
        assert_eq!(outer_mount(alone), None);
        assert_eq!(outer_mount("1 2 0:1 /.. /a rw - tmpfs a rw\nx - cgroup2 \n"), None);
    }

    proptest! {
        #[test]
        fn no_path_leads_out_of_the_hierarchy(
            path in "(/\\.\\.){0,6}(/[a-z.]{0,4}){0,5}",
            is_known in any::<bool>(),
        ) {
            let root = if is_known { NamespaceRoot::new(OWN) } else { NamespaceRoot::default() };
            if let Some(found) = root.cgroup(&format!("0::{path}\n")) {
                prop_assert!(found.starts_with('/') && found.split('/').all(|part| part != ".."));
            }
            let _ = outer_mount(&format!("1 2 0:1 {path} {path} rw - cgroup2 a\n"));
        }
    }
}
