//! Details of the processes of an engine.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::health_address::{HealthAddresses, HealthTarget};
use super::identity::{Confirmed, ContainerHints, Membership, pid_namespace, user_of};
use super::matching::Matcher;
use crate::clients::cgroups::namespace_root;
use crate::engines::ServingArguments;
use crate::files::{is_log_of, open_regular};
use crate::model::{
    ContainerRuntime, EngineKind, EngineProcess, EngineRank, EngineSeen, Pod, ProcessId, Reading,
    UserUnit,
};
use crate::parse::container::{Container, NodeContainers, pod_uid};
use crate::parse::model_files::{Files, is_model_file};
use crate::parse::process::{
    NamespaceRoot, listening, mapped_files, read_amounts, resident, stat, system_unit, user_id,
    user_unit,
};
use crate::sources::bounded::{BoundedReads, read_file};
use crate::sys::descriptors::{is_out_of_descriptors, with_reserve};

/// The mode bits by which the group and others may write a file.
const OF_OTHERS_WRITE: u32 = 0o022;

/// Longer files are cut: the mappings of a process with a hundred thousand of them.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// The size limit of a command line.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Listening sockets come first in the file.
const MAX_SOCKET_BYTES: u64 = 256 << 10;
/// The most open files that are examined.
const MAX_OPEN: usize = 4096;

/// Interval between two reads of mappings and open files, while an engine loads and otherwise.
const READ_LOADING: Duration = Duration::from_secs(1);
const READ_CALM: Duration = Duration::from_secs(10);

/// A loading engine without progress for this time is stuck, unless configured otherwise.
/// Compilation and capture take minutes, but meanwhile processes start and exit and memory moves. A
/// guess.
const STUCK_AFTER: Duration = Duration::from_secs(300);

/// The path prefix of the NVIDIA driver's files.
const DEVICES: &str = "/dev/nvidia";

/// Clock ticks per second in `/proc`, on every architecture.
const TICKS: u64 = 100;

/// Counts of open files of a process.
#[derive(Clone, Copy, Debug, Default)]
struct OpenFileCounts {
    files: u32,
    /// Device files of the driver.
    devices: u32,
}

/// The model files that a process maps or has open.
#[derive(Clone, Debug)]
struct OpenResources {
    at: Duration,
    mapped_files: Reading<u32>,
    mapped_bytes: Reading<u64>,
    open_files: Reading<u32>,
    open_devices: Reading<u32>,
    files: Files,
    is_current: bool,
}

/// Reads details below procfs.
#[derive(Debug)]
pub(super) struct Details {
    procfs: PathBuf,
    /// The paths of control groups begin there.
    pub(super) root: NamespaceRoot,
    addresses: HealthAddresses,
    /// For files whose read another process can block.
    bounded: RefCell<BoundedReads>,
    resources: BTreeMap<ProcessId, OpenResources>,
    now: Duration,
    every: Duration,
    /// Whether a file could not be opened for lack of descriptors since [`Details::begin`].
    is_starved: Cell<bool>,
}

/// Whether a process listens on the port of an engine, and on which address.
#[derive(Clone, Copy, Debug)]
struct PortListening {
    is_listening: Reading<bool>,
    at: Option<IpAddr>,
}

impl Default for PortListening {
    fn default() -> Self {
        Self { is_listening: Reading::Unsupported, at: None }
    }
}

/// The engine to read.
pub(super) struct EngineQuery<'a> {
    pub(super) head: ProcessId,
    pub(super) members: &'a [ProcessId],
    pub(super) kind: EngineKind,
    pub(super) serving: ServingArguments,
    pub(super) matcher: Option<&'a Matcher>,
    pub(super) found_by: String,
    pub(super) is_left_behind: bool,
    /// Its job in a Ray cluster.
    pub(super) job: Option<&'a Arc<str>>,
    pub(super) containers: &'a NodeContainers,
    pub(super) confirmed: &'a Confirmed,
}

impl Details {
    pub(super) fn new(procfs: PathBuf) -> Self {
        let addresses = HealthAddresses::new(procfs.clone());
        let bounded = RefCell::new(BoundedReads::new(procfs.clone()));
        let (resources, now, every) = (BTreeMap::new(), Duration::ZERO, READ_CALM);
        let (root, is_starved) = (namespace_root(&procfs), Cell::new(false));
        Self { procfs, root, addresses, bounded, resources, now, every, is_starved }
    }

    /// Whether a read failed for lack of descriptors since the last call. What was not read then
    /// still counts as present.
    pub(super) fn take_starved(&self) -> bool {
        self.is_starved.take()
    }

    pub(super) fn begin_pass(&mut self, now: Duration) {
        self.bounded.get_mut().begin(now);
    }

    /// Processes that block their readers.
    pub(super) fn silent(&self) -> usize {
        self.bounded.borrow().silent()
    }

    /// Begins a pass over all engines.
    pub(super) fn begin(&mut self, now: Duration, is_loading: bool) {
        self.now = now;
        self.every = if is_loading { READ_LOADING } else { READ_CALM };
        for found in self.resources.values_mut() {
            found.is_current = false;
        }
    }

    /// Ends the pass: what was not read is removed.
    pub(super) fn end(&mut self) {
        self.resources.retain(|_, found| found.is_current);
    }

    /// Reads a file of a process.
    pub(super) fn read(&self, pid: u32, name: &str) -> Option<Vec<u8>> {
        self.read_up_to(pid, name, MAX_FILE_BYTES).ok()
    }

    fn read_up_to(&self, pid: u32, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let read = read_file(&self.procfs.join(pid.to_string()).join(name), most);
        read.inspect_err(|error| self.notice(error))
    }

    fn notice(&self, error: &io::Error) {
        if is_out_of_descriptors(error) {
            self.is_starved.set(true);
        }
    }

    /// Reads a file that shows the memory of the process. `TimedOut`: the process blocks its
    /// readers.
    fn read_memory(&self, id: ProcessId, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let path = self.procfs.join(id.pid.to_string()).join(name);
        let read = self.bounded.borrow_mut().read(id, move || read_file(&path, most));
        let read = read.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()));
        read.inspect_err(|error| self.notice(error))
    }

    /// The beginning of the command line of a process, which may have any length. `None` if the
    /// process blocks its readers.
    pub(super) fn command_line(&self, id: ProcessId) -> Option<Vec<u8>> {
        match self.read_memory(id, "cmdline", MAX_LINE_BYTES) {
            Err(error) if error.kind() == ErrorKind::TimedOut => None,
            read => Some(read.unwrap_or_default()),
        }
    }

    pub(super) fn environment(&self, id: ProcessId) -> Option<Vec<u8>> {
        self.read_memory(id, "environ", MAX_FILE_BYTES).ok()
    }

    /// A small file of root that only root can change, by its path as the process sees it.
    pub(super) fn file_of_root(&self, id: ProcessId, path: &str, most: u64) -> io::Result<Vec<u8>> {
        let folder = self.procfs.join(id.pid.to_string());
        let path = match path.strip_prefix('/') {
            Some(below) => folder.join("root").join(below.trim_start_matches('/')),
            None => folder.join("cwd").join(path),
        };
        let read = move || -> io::Result<Vec<u8>> {
            let file = with_reserve(|| open_regular(&path))?;
            let about = file.metadata()?;
            if about.uid() != 0 || about.mode() & OF_OTHERS_WRITE != 0 {
                return Err(ErrorKind::PermissionDenied.into());
            }
            let mut text = Vec::new();
            file.take(most).read_to_end(&mut text)?;
            Ok(text)
        };
        let read = self.bounded.borrow_mut().read(id, read);
        let read = read.unwrap_or_else(|| Err(ErrorKind::TimedOut.into()));
        read.inspect_err(|error| self.notice(error))
    }

    /// The target of a link of a process.
    pub(super) fn link(&self, pid: u32, name: &str) -> Option<String> {
        let path = self.procfs.join(pid.to_string()).join(name);
        fs::read_link(path).ok()?.into_os_string().into_string().ok()
    }

    /// The engine as it is now, without a name; `None` if none of its processes is there.
    pub(super) fn engine(&mut self, query: EngineQuery<'_>) -> Option<EngineSeen> {
        let EngineQuery { head, members, kind, serving, matcher, found_by, containers, .. } = query;
        let mut files = Files::default();
        let mut processes = Vec::new();
        for id in members {
            let Some(mut process) = self.process(*id) else { continue };
            let found = self.resources_of(*id, matcher);
            process.mapped_files = found.mapped_files;
            process.mapped_bytes = found.mapped_bytes;
            process.open_files = found.open_files;
            process.open_devices = found.open_devices;
            files.join(&found.files);
            processes.push(process);
        }
        let first = processes.first()?.id.pid;
        let member = self.membership(first, query.confirmed);
        let (container, claimed_container) = match member.is_confirmed() {
            true => (member.container.clone(), None),
            false => (None, member.container.clone()),
        };
        let reported = member.confirmed(containers).map(|(_, reported)| reported);
        let runtime = reported.and_then(|reported| runtime(reported, member.runtime_user()));
        let is_unit_named = matcher.is_some_and(|matcher| matcher.declared.matches.unit.is_some());
        let proof = query.confirmed.proof(&member, is_unit_named);
        let declared = matcher.map(|matcher| &matcher.declared);
        let mut model_files = declared.map(|one| one.model_files.clone()).unwrap_or_default();
        if model_files.is_empty() {
            model_files = files.patterns().into_iter().map(Arc::from).collect();
        }
        let listening = self.listening(first, serving.port);
        let target = HealthTarget { kind, serving: &serving, at: listening.at, reported };
        let (health_url, health_network) = match declared.and_then(|one| one.health.clone()) {
            Some(url) => (Some(url), None),
            None => self
                .addresses
                .health(first, &target)
                .map_or((None, None), |address| (Some(address.url), address.network)),
        };
        Some(EngineSeen {
            name: Arc::from(""),
            kind,
            server: head,
            found_by: found_by.into(),
            is_listening: listening.is_listening,
            log_bytes: self.log_bytes(processes.first()?.id, runtime.as_ref()),
            runtime,
            runtime_error: None,
            pod: reported.and_then(|reported| pod(reported, member.path.as_deref())),
            unit: member.path.as_deref().and_then(system_unit).map(Arc::from),
            user_unit: unit_of_user(&member),
            client_unit: None,
            cgroup: member.path,
            container,
            claimed_container,
            container_name: reported.and_then(name_of),
            model: serving.model.map(Arc::from),
            arguments: serving.arguments.map(Arc::from),
            image: reported.and_then(|reported| reported.image.clone()),
            model_files,
            port: serving.port,
            health_url,
            health_network,
            stuck_after: declared.and_then(|one| one.stuck_after).unwrap_or(STUCK_AFTER),
            is_launched: false,
            is_left_behind: query.is_left_behind,
            keys: declared.map(|one| one.keys.clone()).unwrap_or_default(),
            rank: serving.part.rank.or_else(|| query.job.map(of_job)),
            uid: self.user(first),
            proof,
            processes,
        })
    }

    /// The control group of a process.
    pub(super) fn membership(&self, pid: u32, confirmed: &Confirmed) -> Membership {
        let text = self.read(pid, "cgroup").unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let process = pid.to_string();
        let user = user_of(&self.procfs, &process);
        let pid_namespace = user.and_then(|_| pid_namespace(&self.procfs, &process));
        let path = self.root.cgroup(&text);
        confirmed.membership(&ContainerHints { path: path.as_deref(), user, pid_namespace })
    }

    /// The user of a process.
    pub(super) fn user(&self, pid: u32) -> Option<u32> {
        user_id(&self.read(pid, "status")?)
    }

    /// Reads only what changes while an engine loads.
    pub(super) fn refresh(&self, engine: &mut EngineSeen) {
        engine.processes.retain_mut(|known| {
            let Some(now) = self.process(known.id) else { return false };
            *known = EngineProcess {
                mapped_files: known.mapped_files,
                mapped_bytes: known.mapped_bytes,
                open_files: known.open_files,
                open_devices: known.open_devices,
                ..now
            };
            true
        });
        if let Some(first) = engine.processes.first() {
            engine.log_bytes = self.log_bytes(first.id, engine.runtime.as_ref());
            let now = self.listening(first.id.pid, engine.port).is_listening;
            // A health address that is unknown now may be found in the next full scan.
            if engine.health_url.is_some() || now != Reading::Value(true) {
                engine.is_listening = now;
            }
        }
    }

    /// One process, if it is still the same one.
    fn process(&self, id: ProcessId) -> Option<EngineProcess> {
        let stat = stat(&self.read(id.pid, "stat")?)?;
        if stat.start_ticks != id.start_ticks {
            return None;
        }
        let memory = self.read_up_to(id.pid, "status", MAX_FILE_BYTES);
        let memory_of = |value: Option<u64>| match &memory {
            Ok(_) => value.into(),
            Err(_) => Reading::Failed,
        };
        let resident = resident(memory.as_deref().unwrap_or_default());
        let io = self.read_up_to(id.pid, "io", MAX_FILE_BYTES);
        let (read_bytes, read_chars) = match &io {
            Ok(text) => {
                let (bytes, chars) = read_amounts(text);
                (bytes.into(), chars.into())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                (Reading::Unsupported, Reading::Unsupported)
            }
            Err(_) => (Reading::Failed, Reading::Failed),
        };
        Some(EngineProcess {
            id,
            parent: stat.parent,
            comm: stat.comm.into(),
            state: stat.state,
            is_exiting: stat.is_exiting,
            cpu_ms: stat.cpu_ticks.saturating_mul(1000 / TICKS),
            anon_bytes: memory_of(resident.anon),
            file_bytes: memory_of(resident.file),
            shmem_bytes: memory_of(resident.shmem),
            hugetlb_bytes: memory_of(resident.hugetlb),
            read_bytes,
            read_chars,
            mapped_files: Reading::Failed,
            mapped_bytes: Reading::Failed,
            open_files: Reading::Failed,
            open_devices: Reading::Failed,
        })
    }

    fn resources_of(&mut self, id: ProcessId, matcher: Option<&Matcher>) -> OpenResources {
        let now = self.now;
        if let Some(found) = self.resources.get_mut(&id)
            && now.saturating_sub(found.at) < self.every
        {
            found.is_current = true;
            return found.clone();
        }
        let is_one = |path: &str| {
            let declared = matcher.and_then(|matcher| matcher.is_model_file(path));
            declared.unwrap_or_else(|| is_model_file(path))
        };
        let mut files = Files::default();
        let (mut mapped, mut bytes) = (std::collections::BTreeSet::new(), 0_u64);
        let maps = self.read_memory(id, "maps", MAX_FILE_BYTES).ok();
        for (length, path) in mapped_files(maps.as_deref().unwrap_or_default()) {
            if is_one(path) {
                bytes = bytes.saturating_add(length);
                if mapped.insert(path) {
                    files.add(path);
                }
            }
        }
        let is_there = maps.is_some();
        let count = u32::try_from(mapped.len()).unwrap_or(u32::MAX);
        let value = |is_there: bool, count| match is_there {
            true => Reading::Value(count),
            false => Reading::Failed,
        };
        let open = self.open_files(id.pid, &is_one, &mut files);
        let found = OpenResources {
            at: now,
            mapped_files: value(is_there, count),
            mapped_bytes: if is_there { Reading::Value(bytes) } else { Reading::Failed },
            open_files: value(open.is_some(), open.unwrap_or_default().files),
            open_devices: value(open.is_some(), open.unwrap_or_default().devices),
            files,
            is_current: true,
        };
        self.resources.insert(id, found.clone());
        found
    }

    /// Calls that for the path of each open file of a process. `None`: they cannot be listed.
    pub(super) fn each_open(&self, pid: u32, call: &mut dyn FnMut(&str)) -> Option<()> {
        let folder = with_reserve(|| fs::read_dir(self.procfs.join(pid.to_string()).join("fd")));
        let folder = folder.inspect_err(|error| self.notice(error)).ok()?;
        for entry in folder.flatten().take(MAX_OPEN) {
            if let Ok(target) = fs::read_link(entry.path())
                && let Some(path) = target.to_str()
            {
                call(path);
            }
        }
        Some(())
    }

    /// The beginning of what a process has written to its standard output, if that is a file.
    pub(super) fn output(&self, id: ProcessId, most: u64) -> Option<Vec<u8>> {
        let path = self.procfs.join(id.pid.to_string()).join("fd/1");
        // Its file system may hang.
        let read = move || {
            let mut text = Vec::new();
            open_regular(&path).ok()?.take(most).read_to_end(&mut text).ok()?;
            Some(text)
        };
        self.bounded.borrow_mut().read(id, read).flatten()
    }

    fn open_files(
        &self,
        pid: u32,
        is_one: &dyn Fn(&str) -> bool,
        files: &mut Files,
    ) -> Option<OpenFileCounts> {
        let mut open = OpenFileCounts::default();
        self.each_open(pid, &mut |path| {
            if path.starts_with(DEVICES) {
                open.devices += 1;
            } else if is_one(path) {
                files.add(path);
                open.files += 1;
            }
        })?;
        Some(open)
    }

    /// The number of examined open files of a process, up to `most`, and whether one belongs to the
    /// driver.
    pub(super) fn devices(&self, pid: u32, most: usize) -> (usize, bool) {
        let Ok(folder) = fs::read_dir(self.procfs.join(pid.to_string()).join("fd")) else {
            return (1, false);
        };
        let mut examined = 0;
        for entry in folder.flatten().take(most) {
            examined += 1;
            let target = fs::read_link(entry.path()).ok();
            if target.is_some_and(|target| target.to_str().is_some_and(|t| t.starts_with(DEVICES)))
            {
                return (examined, true);
            }
        }
        (examined, false)
    }

    fn listening(&self, pid: u32, port: Option<u16>) -> PortListening {
        let Some(port) = port else { return PortListening::default() };
        let read = |name| self.read_up_to(pid, name, MAX_SOCKET_BYTES).ok();
        let files = [read("net/tcp"), read("net/tcp6")];
        if files.iter().all(Option::is_none) {
            return PortListening { is_listening: Reading::Failed, at: None };
        }
        let all = files.iter().flatten().flat_map(|text| listening(text, port));
        // The address 0.0.0.0 includes the loopback.
        let is_far = |at: &IpAddr| !at.is_loopback() && !at.is_unspecified();
        let at = all.min_by_key(|at| (is_far(at), at.is_ipv6()));
        PortListening { is_listening: Reading::Value(at.is_some()), at }
    }

    /// The size of its log file, if it writes to a file.
    fn log_bytes(&self, id: ProcessId, runtime: Option<&ContainerRuntime>) -> Reading<u64> {
        let user = runtime.and_then(|runtime| runtime.user);
        let of_container = runtime.and_then(|runtime| runtime.log.as_deref()).map(PathBuf::from);
        let folder = self.procfs.join(id.pid.to_string()).join("fd");
        let files = [(folder.join("2"), None), (folder.join("1"), None)];
        let files = files.into_iter().chain(of_container.map(|path| (path, user)));
        // The file system of the log may hang.
        let length = move || {
            let mut found = files.filter_map(|(path, user)| Some((fs::metadata(path).ok()?, user)));
            found.find_map(|(found, user)| is_log_of(&found, user).then_some(found.len()))
        };
        self.bounded.borrow_mut().read(id, length).map_or(Reading::Failed, Reading::from)
    }
}

/// The service of a user's own systemd. A container of the user's runtime is in a unit of that.
fn unit_of_user(member: &Membership) -> Option<UserUnit> {
    let path = member.path.as_deref().filter(|_| member.container.is_none())?;
    user_unit(path).map(|(user, name)| UserUnit { user, name: name.into() })
}

/// The name of a confirmed container.
fn name_of(reported: &Container) -> Option<Arc<str>> {
    (!reported.name.is_empty()).then(|| Arc::clone(&reported.name))
}

/// The runtime of a confirmed container.
fn runtime(reported: &Container, user: Option<u32>) -> Option<ContainerRuntime> {
    let log = reported.log.as_ref().and_then(|log| log.to_str()).map(Arc::from);
    let (socket, is_podman) = (Arc::clone(reported.socket.as_ref()?), reported.is_podman);
    Some(ContainerRuntime { socket, user, is_podman, log })
}

/// The pod of a confirmed container, unless its control group is another pod's.
fn pod(reported: &Container, path: Option<&str>) -> Option<Arc<Pod>> {
    let pod = reported.pod.as_ref()?;
    let is_its = path.and_then(pod_uid).is_none_or(|claimed| *claimed == *pod.uid);
    is_its.then(|| Arc::clone(pod))
}

/// A part that Ray has started. Ray numbers no nodes.
fn of_job(job: &Arc<str>) -> EngineRank {
    EngineRank { gang: Arc::clone(job), rank: None, ranks: None }
}
