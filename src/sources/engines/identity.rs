//! The proof of what a process claims by its control group.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::clients::cgroups::are_paths_whole;
use crate::model::{ProcessId, Proof};
use crate::parse::container::{Container, NodeContainers, Runtime};
use crate::parse::process::{
    NamespaceRoot, is_of_users, is_within, namespace_user, stat, system_unit,
};
use kernel_faults::container_id;

/// The facts that are confirmed at the time of a scan.
#[derive(Debug, Default)]
pub(super) struct Confirmed {
    /// The control groups of containers that a system's runtime reports as running, with the proof.
    containers: BTreeMap<Arc<str>, (String, Proof)>,
    /// Those of users' own runtimes.
    of_users: BTreeMap<u32, UserContainers>,
    /// Whether control group paths start at the root of the machine.
    are_paths_whole: bool,
}

/// The confirmed containers of a user.
#[derive(Debug, Default)]
struct UserContainers {
    /// Their control groups, where these name the container.
    groups: BTreeMap<Arc<str>, String>,
    /// The containers by their PID namespaces: without cgroup v2, Podman gives rootless containers
    /// no control group of their own (podman-run(1), `--cgroups`).
    namespaces: BTreeMap<String, Arc<str>>,
}

/// What a process shows of its container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ContainerHints<'a> {
    /// Its control group.
    pub(super) path: Option<&'a str>,
    /// The user whose user namespace it is in.
    pub(super) user: Option<u32>,
    /// Its PID namespace, if it is in a user's namespace.
    pub(super) pid_namespace: Option<String>,
}

/// The control group of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) path: Option<Arc<str>>,
    /// The container that the path names, or that a user's runtime confirms without it.
    pub(super) container: Option<Arc<str>>,
    /// The user whose user namespace it is in.
    pub(super) user: Option<u32>,
    /// The proof that it is in the container.
    pub(super) proof: Option<Proof>,
}

impl Membership {
    /// Whether a runtime confirms that the process is in the container.
    pub(super) fn is_confirmed(&self) -> bool {
        self.proof.is_some()
    }

    /// Its container, if a runtime confirms that.
    pub(super) fn confirmed<'c>(
        &self,
        containers: &'c NodeContainers,
    ) -> Option<(&Arc<str>, &'c Container)> {
        let id = self.container.as_ref().filter(|_| self.is_confirmed())?;
        Some((id, containers.get(self.runtime_user(), id)?))
    }

    /// The user whose own runtime confirms the membership.
    pub(super) fn runtime_user(&self) -> Option<u32> {
        self.user.filter(|_| self.proof == Some(Proof::UserContainer))
    }

    /// Whether a user has named the control group.
    pub(super) fn is_of_user(&self) -> bool {
        self.path.as_ref().is_some_and(|path| path.starts_with("/user.slice/"))
    }
}

impl Confirmed {
    /// Combines the reports of runtimes with the present first processes in `/proc`.
    pub(super) fn read(procfs: &Path, root: &NamespaceRoot, containers: &NodeContainers) -> Self {
        let are_paths_whole = are_paths_whole(procfs);
        let groups = containers.system.iter().filter_map(|(id, container)| {
            let text = init_group(procfs, container.init?)?;
            // Users name the groups below `user.slice`: a reused process id would impersonate an
            // ended container.
            let path = root.cgroup(&text).filter(|path| !path.starts_with("/user.slice/"))?;
            let proof = match container.runtime {
                Runtime::Docker => Proof::Container,
                Runtime::Cri => Proof::PodContainer,
            };
            Some((Arc::clone(id), (container_group(&path, id)?, proof)))
        });
        let of_users = containers.of_users.iter();
        let of_users =
            of_users.map(|(user, all)| (*user, UserContainers::read(procfs, root, *user, all)));
        Self { containers: groups.collect(), of_users: of_users.collect(), are_paths_whole }
    }

    /// The membership of a process.
    pub(super) fn membership(&self, shown: &ContainerHints<'_>) -> Membership {
        let ContainerHints { path, user, pid_namespace } = shown;
        let id: Option<Arc<str>> = path.and_then(container_id).map(Arc::from);
        let mut member = Membership {
            path: path.map(Arc::from),
            container: id.clone(),
            user: *user,
            proof: None,
        };
        let is_inside = |group: &str| path.is_some_and(|path| is_within(path, group));
        let known = id.as_deref().and_then(|id| self.containers.get(id));
        if let Some((_, proof)) = known.filter(|(group, _)| is_inside(group)) {
            member.proof = Some(*proof);
            return member;
        }
        let Some(of_user) = user.and_then(|user| self.of_users.get(&user)) else { return member };
        let by_group = id.filter(|id| of_user.groups.get(id).is_some_and(|group| is_inside(group)));
        let by_namespace = || of_user.namespaces.get(pid_namespace.as_deref()?).cloned();
        if let Some(id) = by_group.or_else(by_namespace) {
            (member.container, member.proof) = (Some(id), Some(Proof::UserContainer));
        }
        member
    }

    /// The proof of a membership. A service that runs commands of users is a proof only where the
    /// configuration names it.
    pub(super) fn proof(&self, member: &Membership, is_unit_named: bool) -> Proof {
        let service = || {
            let unit = system_unit(member.path.as_deref()?)?;
            (unit.ends_with(".service") && (is_unit_named || !is_of_users(unit))).then_some(unit)
        };
        match &member.container {
            Some(_) => member.proof.unwrap_or_default(),
            None if self.are_paths_whole && service().is_some() => Proof::Unit,
            None => Proof::Claimed,
        }
    }
}

impl UserContainers {
    /// Only processes in a namespace of that user count, whatever the user's runtime reports.
    fn read(
        procfs: &Path,
        root: &NamespaceRoot,
        user: u32,
        containers: &BTreeMap<Arc<str>, Container>,
    ) -> Self {
        let mut all = Self::default();
        let own = pid_namespace(procfs, "self");
        for (id, container) in containers {
            let Some(init) = container.init else { continue };
            let Some(text) = init_group(procfs, init) else { continue };
            let pid = init.pid.to_string();
            if user_of(procfs, &pid) != Some(user) {
                continue;
            }
            let group = root.cgroup(&text).and_then(|path| container_group(&path, id));
            all.groups.extend(group.map(|group| (Arc::clone(id), group)));
            let namespace = pid_namespace(procfs, &pid).filter(|its| Some(its) != own.as_ref());
            all.namespaces.extend(namespace.map(|namespace| (namespace, Arc::clone(id))));
        }
        all
    }
}

/// The user whose user namespace a process is in.
pub(super) fn user_of(procfs: &Path, process: &str) -> Option<u32> {
    namespace_user(&fs::read(procfs.join(process).join("uid_map")).ok()?)
}

/// The PID namespace of a process, if it may be read.
pub(super) fn pid_namespace(procfs: &Path, process: &str) -> Option<String> {
    let link = fs::read_link(procfs.join(process).join("ns/pid")).ok()?;
    link.into_os_string().into_string().ok()
}

/// `/proc/PID/cgroup` of the first process of a container, if it is still that one.
fn init_group(procfs: &Path, init: ProcessId) -> Option<String> {
    let folder = procfs.join(init.pid.to_string());
    let text = fs::read(folder.join("cgroup")).ok()?;
    let known = stat(&fs::read(folder.join("stat")).ok()?)?;
    let is_same = known.start_ticks == init.start_ticks;
    is_same.then(|| String::from_utf8_lossy(&text).into_owned())
}

/// The prefix of a path that ends with the container's id.
fn container_group(path: &str, id: &str) -> Option<String> {
    let at = path.find(id)?;
    let end = path[at..].find('/').map_or(path.len(), |length| at + length);
    Some(path[..end].to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::parse::container::Containers;

    const ID: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn put(procfs: &Path, pid: u32, start: u64, group: &str) {
        let folder = procfs.join(pid.to_string());
        fs::create_dir_all(&folder).unwrap();
        let stat = format!("{pid} (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 1 2 3\n");
        fs::write(folder.join("stat"), stat).unwrap();
        fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
    }

    fn listed(init: Option<ProcessId>) -> Containers {
        [(Arc::from(ID), Container { init, ..Container::default() })].into()
    }

    fn reported(init: Option<ProcessId>) -> NodeContainers {
        NodeContainers { system: Arc::new(listed(init)), ..NodeContainers::default() }
    }

    fn at(path: &str) -> ContainerHints<'_> {
        ContainerHints { path: Some(path), ..ContainerHints::default() }
    }

    #[test]
    fn a_container_is_confirmed_only_inside_the_cgroup_of_its_first_process() {
        let folder = tempfile::tempdir().unwrap();
        let own = format!("/system.slice/docker-{ID}.scope");
        put(folder.path(), 7, 70, &format!("{own}/init.scope"));
        let init = ProcessId { pid: 7, start_ticks: 70 };
        let confirmed =
            Confirmed::read(folder.path(), &NamespaceRoot::default(), &reported(Some(init)));
        let proof = |path: &str| {
            let member = confirmed.membership(&at(path));
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
        let confirmed =
            Confirmed::read(folder.path(), &NamespaceRoot::default(), &reported(Some(init)));
        assert!(!confirmed.membership(&at(&of_user)).is_confirmed());
        // Docker does not say which process, or that one is another by now.
        for init in [None, Some(ProcessId { pid: 7, start_ticks: 71 })] {
            let confirmed =
                Confirmed::read(folder.path(), &NamespaceRoot::default(), &reported(init));
            assert!(!confirmed.membership(&at(&own)).is_confirmed());
        }
    }

    #[test]
    fn in_a_namespace_of_groups_a_container_is_confirmed_by_the_end_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let scope = format!("kubepods-burstable-podB.slice/cri-containerd-{ID}.scope");
        put(folder.path(), 7, 70, &format!("/../../{scope}"));
        let init = ProcessId { pid: 7, start_ticks: 70 };
        let above = "/kubepods.slice/kubepods-burstable.slice";
        let known = NamespaceRoot::new(&format!("{above}/kubepods-burstable-podA.slice/own"));
        for (root, path) in
            [(NamespaceRoot::default(), format!("/{scope}")), (known, format!("{above}/{scope}"))]
        {
            let confirmed = Confirmed::read(folder.path(), &root, &reported(Some(init)));
            let text = format!("0::/../../{scope}/sub\n");
            let seen = root.cgroup(&text);
            assert_eq!(seen.as_deref(), Some(&*format!("{path}/sub")));
            let member = confirmed.membership(&at(seen.as_deref().unwrap()));
            assert_eq!(member.container.as_deref(), Some(ID));
            assert!(member.is_confirmed(), "{path}");
        }
    }

    #[test]
    fn only_a_system_service_proves_an_identity() {
        let folder = tempfile::tempdir().unwrap();
        let confirmed_now = || {
            Confirmed::read(folder.path(), &NamespaceRoot::default(), &NodeContainers::default())
        };
        let proof = |path: &str, is_named: bool| {
            let confirmed = confirmed_now();
            confirmed.proof(&confirmed.membership(&at(path)), is_named)
        };
        let vllm = "/system.slice/vllm.service/sub";
        assert_eq!(proof(vllm, true), Proof::Claimed, "where the paths begin is not known");
        fs::create_dir_all(folder.path().join("self/ns")).unwrap();
        symlink("cgroup:[4026531835]", folder.path().join("self/ns/cgroup")).unwrap();
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

    /// What `/proc/PID/uid_map` shows of a container of rootless Podman 4.3.1 of user 1001.
    const ROOTLESS: &str = "         0       1001          1\n         1     100000      65536\n";

    fn put_of_user(
        procfs: &Path,
        (pid, start): (u32, u64),
        group: &str,
        map: &str,
        namespace: &str,
    ) {
        put(procfs, pid, start, group);
        let folder = procfs.join(pid.to_string());
        fs::write(folder.join("uid_map"), map).unwrap();
        fs::create_dir_all(folder.join("ns")).unwrap();
        symlink(namespace, folder.join("ns/pid")).unwrap();
    }

    fn of_user(user: u32, init: ProcessId) -> NodeContainers {
        let of_users = Arc::new([(user, listed(Some(init)))].into());
        NodeContainers { of_users, ..NodeContainers::default() }
    }

    #[test]
    fn a_users_runtime_confirms_processes_in_namespaces_of_that_user_alone() {
        let folder = tempfile::tempdir().unwrap();
        let own =
            format!("/user.slice/user-1001.slice/user@1001.service/user.slice/libpod-{ID}.scope");
        let inner = format!("{own}/container");
        put_of_user(folder.path(), (7, 70), &inner, ROOTLESS, "pid:[9]");
        let init = ProcessId { pid: 7, start_ticks: 70 };
        let member = |containers: &NodeContainers, path: &str, user| {
            let confirmed = Confirmed::read(folder.path(), &NamespaceRoot::default(), containers);
            let shown = ContainerHints {
                path: Some(path),
                user,
                pid_namespace: Some("pid:[8]".to_owned()),
            };
            let member = confirmed.membership(&shown);
            assert_eq!(member.is_confirmed(), member.runtime_user().is_some(), "{member:?}");
            (confirmed.proof(&member, true), member.runtime_user())
        };
        let its = of_user(1001, init);
        let proven = (Proof::UserContainer, Some(1001));
        assert_eq!(member(&its, &inner, Some(1001)), proven);
        assert_eq!(member(&its, &own, Some(1001)), proven);
        let claimed = (Proof::Claimed, None);
        assert_eq!(member(&its, &inner, None), claimed, "root's process in the user's group");
        assert_eq!(member(&its, &inner, Some(1002)), claimed, "another user's process");
        let elsewhere = format!("/user.slice/libpod-{ID}.scope");
        assert_eq!(member(&its, &elsewhere, Some(1001)), claimed);
        let reused = of_user(1001, ProcessId { pid: 7, start_ticks: 71 });
        assert_eq!(member(&reused, &inner, Some(1001)), claimed, "the number was given again");
        // User 1002 reports the container of user 1001 as an own one, or one of the system's.
        let invented = of_user(1002, init);
        assert_eq!(member(&invented, &inner, Some(1002)), claimed);
        assert_eq!(member(&invented, &inner, Some(1001)), claimed);
        let system = format!("/system.slice/docker-{ID}.scope");
        put(folder.path(), 8, 80, &system);
        let invented = of_user(1002, ProcessId { pid: 8, start_ticks: 80 });
        assert_eq!(member(&invented, &system, None), claimed);
    }

    #[test]
    fn without_an_own_cgroup_a_users_container_is_known_by_its_pid_namespace() {
        let folder = tempfile::tempdir().unwrap();
        put_of_user(folder.path(), (7, 70), "/user.slice", ROOTLESS, "pid:[9]");
        fs::create_dir_all(folder.path().join("self/ns")).unwrap();
        symlink("pid:[1]", folder.path().join("self/ns/pid")).unwrap();
        let its = of_user(1001, ProcessId { pid: 7, start_ticks: 70 });
        let container = |user, namespace: &str| {
            let confirmed = Confirmed::read(folder.path(), &NamespaceRoot::default(), &its);
            let pid_namespace = Some(namespace.to_owned());
            let shown = ContainerHints { path: Some("/user.slice"), user, pid_namespace };
            confirmed.membership(&shown).container
        };
        assert_eq!(container(Some(1001), "pid:[9]").as_deref(), Some(ID));
        for (user, namespace) in
            [(Some(1002), "pid:[9]"), (None, "pid:[9]"), (Some(1001), "pid:[1]")]
        {
            assert_eq!(container(user, namespace), None, "{user:?} {namespace}");
        }
        // A container in the PID namespace of the node has none of its own.
        put_of_user(folder.path(), (6, 60), "/user.slice", ROOTLESS, "pid:[1]");
        let hosts = of_user(1001, ProcessId { pid: 6, start_ticks: 60 });
        let confirmed = Confirmed::read(folder.path(), &NamespaceRoot::default(), &hosts);
        assert!(confirmed.of_users[&1001].namespaces.is_empty());
    }
}
