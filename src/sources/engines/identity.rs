//! The proof of what a process claims by its control group.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::model::{ProcessId, Proof};
use crate::parse::container::{Containers, Runtime};
use crate::parse::process::{cgroup, is_of_users, is_within, stat, system_unit};
use kernel_faults::container_id;

/// The control group namespace whose paths start at the root of the machine (PROC_CGROUP_INIT_INO).
/// In other namespaces they start anywhere.
const ALL_GROUPS: &str = "cgroup:[4026531835]";

/// The facts that are confirmed at the time of a scan.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    /// The control groups of containers that a runtime reports as running, with the runtime.
    containers: BTreeMap<Arc<str>, (String, Runtime)>,
    /// Whether control group paths start at the root of the machine.
    are_paths_whole: bool,
}

/// The control group of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) path: Option<Arc<str>>,
    /// The container that the path names.
    pub(super) container: Option<Arc<str>>,
    /// The runtime that confirms the membership.
    pub(super) confirmed_by: Option<Runtime>,
}

impl Membership {
    /// Whether a runtime confirms that the process is in the container.
    pub(super) fn is_confirmed(&self) -> bool {
        self.confirmed_by.is_some()
    }

    /// Whether a user has named the control group.
    pub(super) fn is_of_user(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.starts_with("/user.slice/"))
    }
}

impl Confirmed {
    /// Combines the reports of runtimes with the present first processes in `/proc`.
    pub(super) fn read(procfs: &Path, containers: &Containers) -> Self {
        let own = fs::read_link(procfs.join("self/ns/cgroup")).ok();
        let are_paths_whole = own.is_some_and(|own| own.to_str() == Some(ALL_GROUPS));
        let of_init = |id: &str, init: ProcessId| {
            let folder = procfs.join(init.pid.to_string());
            let known = stat(&fs::read(folder.join("stat")).ok()?)?;
            let text = fs::read(folder.join("cgroup")).ok()?;
            let text = String::from_utf8_lossy(&text).into_owned();
            let is_same = known.start_ticks == init.start_ticks;
            is_same.then(|| container_group(cgroup(&text)?, id))?
        };
        let groups = containers.iter().filter_map(|(id, container)| {
            let group = of_init(id, container.init?)?;
            Some((Arc::clone(id), (group, container.runtime)))
        });
        Self { containers: groups.collect(), are_paths_whole }
    }

    /// The membership of a process with this control group.
    pub(super) fn membership(&self, path: Option<&str>) -> Membership {
        let id = path.and_then(container_id);
        let known = id.as_deref().and_then(|id| self.containers.get(id)).zip(path);
        let confirming = known.filter(|((group, _), path)| is_within(path, group.as_str()));
        Membership {
            path: path.map(Arc::from),
            container: id.map(Arc::from),
            confirmed_by: confirming.map(|((_, runtime), _)| *runtime),
        }
    }

    /// The proof of a membership. A service that runs commands of users is a proof only where the
    /// configuration names it.
    pub(super) fn proof(&self, member: &Membership, is_unit_named: bool) -> Proof {
        let service = || {
            let unit = system_unit(member.path.as_deref()?)?;
            (unit.ends_with(".service") && (is_unit_named || !is_of_users(unit))).then_some(unit)
        };
        match &member.container {
            Some(_) => match member.confirmed_by {
                Some(Runtime::Docker) => Proof::Container,
                Some(Runtime::Cri) => Proof::PodContainer,
                None => Proof::Claimed,
            },
            None if self.are_paths_whole && service().is_some() => Proof::Unit,
            None => Proof::Claimed,
        }
    }
}

/// The prefix of a path that ends with the container's id. Paths below `user.slice` are excluded,
/// since users name those groups: a reused process id would impersonate an ended container.
fn container_group(path: &str, id: &str) -> Option<String> {
    let at = path.find(id).filter(|_| !path.starts_with("/user.slice/"))?;
    let end = path[at..].find('/').map_or(path.len(), |length| at + length);
    Some(path[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::parse::container::Container;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn put(procfs: &Path, pid: u32, start: u64, group: &str) {
        let folder = procfs.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let stat = format!("{pid} (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1 2 3\n");
        fs::write(folder.join("stat"), stat).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
    }

    fn reported(init: Option<ProcessId>) -> Containers {
        [(Arc::from(ID), Container { init, ..Container::default() })].into()
    }

    #[test]
    fn a_container_is_confirmed_only_inside_the_cgroup_of_its_first_process() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("/system.slice/docker-{ID}.scope");
        put(folder.path(), 7, 70, &format!("{own}/init.scope"));
        let init = ProcessId { pid: 7, start_ticks: 70 };
        let confirmed = Confirmed::read(folder.path(), &reported(Some(init)));
        let proof = |path: &str| {
            let member = confirmed.membership(Some(path));
            assert_eq!(member.container.as_deref(), Some(ID), "{path}");
            confirmed.proof(&member, true)
        };
        assert_eq!(proof(&own), Proof::Container);
        assert_eq!(proof(&format!("{own}/system.slice/vllm.service")), Proof::Container);
        for other in [
            format!("/docker-{ID}.scope"),
            format!("/system.slice/other/docker-{ID}.scope"),
            format!("/user.slice/user-7.slice/user@7.service/app.slice/docker-{ID}.scope"),
        ] {
            assert_eq!(proof(&other), Proof::Claimed, "{other}");
        }
        // Its process has ended, and the number is a user's by now.
        let of_user = format!("/user.slice/docker-{ID}.scope");
        put(folder.path(), 8, 80, &of_user);
        let init = ProcessId { pid: 8, start_ticks: 80 };
        let confirmed = Confirmed::read(folder.path(), &reported(Some(init)));
        assert!(!confirmed.membership(Some(&of_user)).is_confirmed());
        // Docker does not say which process, or that one is another by now.
        for init in [None, Some(ProcessId { pid: 7, start_ticks: 71 })] {
            let confirmed = Confirmed::read(folder.path(), &reported(init));
            assert!(!confirmed.membership(Some(&own)).is_confirmed());
        }
    }

    #[test]
    fn only_a_system_service_proves_an_identity() {
        let folder = tempfile::tempdir().unwrap();
        let confirmed_now = || Confirmed::read(folder.path(), &Containers::new());
        let proof = |path: &str, is_named: bool| {
            let confirmed = confirmed_now();
            confirmed.proof(&confirmed.membership(Some(path)), is_named)
        };
        let vllm = "/system.slice/vllm.service/sub";
        assert_eq!(proof(vllm, true), Proof::Claimed, "where the paths begin is not known");
        fs::create_dir_all(folder.path().join("self/ns")).unwrap();
        symlink(ALL_GROUPS, folder.path().join("self/ns/cgroup")).unwrap();
        assert_eq!(proof(vllm, false), Proof::Unit);
        assert_eq!(proof("/engines.slice/vllm.service", false), Proof::Unit);
        for path in [
            "/",
            "/vllm.service",
            "/user.slice/vllm.service",
            "/user.slice/user-7.slice/user@7.service/app.slice/vllm.service",
            "/user.slice/user-7.slice/session-1.scope",
            "/system.slice/run-1.scope",
            "/docker/abc/system.slice/vllm.service",
            &format!("/system.slice/containerd.service/kubepods-1.slice:cri-containerd:{ID}"),
        ] {
            assert_eq!(proof(path, true), Proof::Claimed, "{path}");
        }
        assert_eq!(proof("/system.slice/cron.service", false), Proof::Claimed);
        assert_eq!(proof("/system.slice/cron.service", true), Proof::Unit, "it is named");
    }
}
