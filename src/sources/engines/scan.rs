//! A scan of all processes for engines.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::claims::AllClaims;
use super::clients::{DOCKER, DockerClients};
use super::details::{Details, EngineQuery};
use super::groups::{ProcessKinship, heads};
use super::identity::{Confirmed, Membership};
use super::matching::{Matcher, ProcessTraits};
use super::ray::{RAYLET, RayJobs};
use super::selection::{Candidate, MAX_ENGINES, UnreportedEngines, ranked};
use crate::engines::{ProcessRole, ServingArguments, facts, recognise, serving_with};
use crate::model::{
    DeclaredEngine, EngineKind, EngineReadings, EngineSeen, LaunchedEngine, ProcessId,
};
use crate::parse::container::NodeContainers;
use crate::parse::process::{Stat, arguments, stat, system_unit, variable};
use crate::sys::descriptors::with_reserve;
/// A scan without free descriptors must not report any end.
const TOO_MANY_OPEN: &str =
    "too many open files: processes below /proc cannot be read; raise LimitNOFILE=";

/// The most processes that are examined.
const MAX_PROCESSES: usize = 32_768;
/// The most processes of one engine that are reported.
const MAX_OF_ENGINE: usize = 256;

/// After this many scans an unrelated process is examined less often. Engines set their process
/// titles within the first minute.
const SETTLED_AFTER: u64 = 60;
const SETTLED_EVERY: u64 = 8;

/// After this time an engine in an unknown container is reported without the container's name and
/// labels.
const DOCKER_TELLS: Duration = Duration::from_secs(5);

/// Names of the first process of a machine or of a container.
const INITS: [&str; 5] = ["systemd", "init", "tini", "docker-init", "dumb-init"];

/// One process at the last scan.
#[derive(Debug)]
struct KnownProcess {
    kin: ProcessKinship,
    stat: Stat,
    /// The number of the first scan with this process.
    first: u64,
    member: Membership,
    /// How it was recognised.
    found_by: String,
    serving: Option<ServingArguments>,
}

/// The name of an engine, and the declared engine, if any.
#[derive(Debug)]
struct Named {
    name: Arc<str>,
    declared: Option<usize>,
}

/// Scans for engines.
#[derive(Debug)]
pub struct Scanner {
    procfs: PathBuf,
    matchers: Vec<Matcher>,
    known: BTreeMap<u32, KnownProcess>,
    members: BTreeMap<ProcessId, ProcessId>,
    names: BTreeMap<ProcessId, Named>,
    launched: Vec<LaunchedEngine>,
    /// The containers that runtimes have reported.
    containers: NodeContainers,
    confirmed: Confirmed,
    jobs: RayJobs,
    clients: DockerClients,
    may_docker_report: bool,
    /// The containers have changed: every process is compared again.
    has_new_containers: bool,
    /// Since when an engine waits for its container.
    waiting: BTreeMap<ProcessId, Duration>,
    details: Details,
    engines: Vec<EngineSeen>,
    /// Their servers, even if the declarations change.
    servers: Vec<ProcessId>,
    is_cut: bool,
    left_out: UnreportedEngines,
    /// The user of each head, while there are more engines than are reported.
    users: BTreeMap<ProcessId, Option<u32>>,
    /// Whether an unreported engine waits for its name.
    is_any_unreported: bool,
    scan_number: u64,
}

impl Scanner {
    /// A scanner of this procfs with these declared engines.
    pub fn new(procfs: PathBuf, declared: Vec<DeclaredEngine>) -> Self {
        Self {
            details: Details::new(procfs.clone()),
            procfs,
            matchers: declared.into_iter().map(Matcher::new).collect(),
            known: BTreeMap::new(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            launched: Vec::new(),
            containers: NodeContainers::default(),
            confirmed: Confirmed::default(),
            jobs: RayJobs::default(),
            clients: DockerClients::default(),
            may_docker_report: false,
            has_new_containers: false,
            waiting: BTreeMap::new(),
            engines: Vec::new(),
            servers: Vec::new(),
            is_cut: false,
            left_out: UnreportedEngines::default(),
            users: BTreeMap::new(),
            is_any_unreported: false,
            scan_number: 0,
        }
    }

    /// Replaces the declared engines; names are assigned afresh.
    pub fn declare(&mut self, declared: Vec<DeclaredEngine>) {
        let same = self.matchers.iter().map(|matcher| &matcher.declared).eq(&declared);
        if !same {
            let (containers, may_docker_report) = (self.containers.clone(), self.may_docker_report);
            let launched = std::mem::take(&mut self.launched);
            let servers = std::mem::take(&mut self.servers);
            *self = Self::new(std::mem::take(&mut self.procfs), declared);
            (self.launched, self.servers) = (launched, servers);
            self.know(containers, may_docker_report);
        }
    }

    /// Adds a launched engine: the process with all processes below it. Returns whether it is new.
    pub fn launched(&mut self, engine: LaunchedEngine) -> bool {
        if self.launched.contains(&engine) {
            return false;
        }
        self.launched.retain(|other| other.head != engine.head);
        if self.launched.len() >= MAX_ENGINES {
            self.launched.remove(0);
        }
        // The earlier classification no longer applies.
        self.known.remove(&engine.head.pid);
        self.names.remove(&engine.head);
        self.launched.push(engine);
        true
    }

    /// Updates the containers. `may_docker_report`: Docker may report more.
    pub fn know(&mut self, containers: NodeContainers, may_docker_report: bool) {
        self.has_new_containers |= self.containers != containers;
        self.containers = containers;
        self.may_docker_report = may_docker_report;
    }

    /// Whether a declaration needs Docker.
    pub fn needs_docker(&self) -> bool {
        self.matchers.iter().any(Matcher::needs_docker)
    }

    /// The containers that possible engine processes claim, and those of them that no runtime has
    /// confirmed.
    pub fn claimed_containers(&self) -> AllClaims {
        AllClaims::of(self.known.values().map(|known| &known.member))
    }

    /// The number of processes without kernel threads.
    pub fn processes(&self) -> usize {
        self.known.values().filter(|known| !known.stat.is_kernel).count()
    }

    /// Processes that block their readers.
    pub fn silent(&self) -> usize {
        self.details.silent()
    }

    /// Scans all processes.
    ///
    /// # Errors
    /// The folder is no procfs.
    pub fn scan(&mut self, now: Duration, is_loading: bool) -> Result<EngineReadings, String> {
        self.scan_number += 1;
        self.details.begin_pass(now);
        let pids = self.list()?;
        self.known.retain(|pid, _| pids.contains(pid));
        self.confirmed = Confirmed::read(&self.procfs, &self.details.root, &self.containers);
        for pid in pids {
            self.examine(pid)?;
        }
        self.has_new_containers = false;
        let kin = self.known.iter().filter(|(_, known)| !known.stat.is_kernel);
        let kin: BTreeMap<u32, ProcessKinship> =
            kin.map(|(pid, known)| (*pid, known.kin.clone())).collect();
        self.jobs.find(&kin, &self.details);
        let clients = self.known.iter().filter(|(_, known)| known.stat.comm == DOCKER);
        let id = |(pid, known): (&u32, &KnownProcess)| ProcessId {
            pid: *pid,
            start_ticks: known.stat.start_ticks,
        };
        self.clients.find(clients.map(id), &self.details);
        self.members = heads(&kin, &self.members, |id| self.jobs.job(id));
        // A process that ended without descendants is removed.
        let members = &self.members;
        let is_there = |id: &ProcessId| members.values().any(|head| head == id);
        self.launched.retain(|engine| is_there(&engine.head));
        self.group(now, is_loading);
        let before = self.servers.iter().copied();
        let turned = before.filter(|server| self.has_turned(*server)).collect();
        if self.details.take_starved() {
            return Err(TOO_MANY_OPEN.to_owned());
        }
        self.servers = self.engines.iter().map(|engine| engine.server).collect();
        let is_partial = self.is_any_unreported || self.known.len() >= MAX_PROCESSES;
        Ok(EngineReadings { turned, is_partial, ..self.readings(now) })
    }

    /// Whether a process lives and no longer belongs to an engine. It is read once more: one that
    /// has ended since the scan is missing from the engines, too.
    pub(super) fn has_turned(&self, server: ProcessId) -> bool {
        let mut all = self.engines.iter().flat_map(|engine| &engine.processes);
        if all.any(|process| process.id == server) {
            return false;
        }
        let now = self.details.read(server.pid, "stat").and_then(|text| stat(&text));
        now.is_some_and(|now| {
            now.start_ticks == server.start_ticks && !matches!(now.state, 'Z' | 'X')
        })
    }

    /// Samples the known engines again.
    pub fn rescan(&mut self, now: Duration) -> EngineReadings {
        self.details.begin_pass(now);
        let mut engines = std::mem::take(&mut self.engines);
        for engine in &mut engines {
            let before = engine.clone();
            self.details.refresh(engine);
            if self.details.take_starved() {
                *engine = before;
            }
        }
        engines.retain(|engine| !engine.processes.is_empty());
        self.engines = engines;
        self.readings(now)
    }

    fn readings(&self, now: Duration) -> EngineReadings {
        EngineReadings {
            read_at: now,
            engines: self.engines.clone(),
            is_cut: self.is_cut,
            is_partial: true,
            turned: Vec::new(),
            ended: Vec::new(),
            outputs: Vec::new(),
            ray_kills: Vec::new(),
        }
    }

    fn list(&self) -> Result<BTreeSet<u32>, String> {
        let failed = |error| format!("{} cannot be listed: {error}", self.procfs.display());
        let entries = with_reserve(|| fs::read_dir(&self.procfs)).map_err(failed)?;
        let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        Ok(pids.take(MAX_PROCESSES).collect())
    }

    /// Examines one process; one that has ended meanwhile is removed.
    fn examine(&mut self, pid: u32) -> Result<(), String> {
        if let Some(known) = self.known.get(&pid)
            && !self.has_new_containers
            && (known.is_unrecognised() || self.left_out.has(pid))
            && self.scan_number.saturating_sub(known.first) >= SETTLED_AFTER
            && !(self.scan_number + u64::from(pid)).is_multiple_of(SETTLED_EVERY)
        {
            return Ok(());
        }
        let Some(stat) = self.details.read(pid, "stat").and_then(|text| stat(&text)) else {
            if self.details.take_starved() {
                return Err(TOO_MANY_OPEN.to_owned());
            }
            self.known.remove(&pid);
            return Ok(());
        };
        let is_same = |known: &&KnownProcess| known.kin.start_ticks == stat.start_ticks;
        let before = self.known.get(&pid).filter(is_same);
        let first = before.map_or(self.scan_number, |known| known.first);
        // A worker keeps its title. Any other process may change by exec at any time.
        let is_worker =
            |known: &&KnownProcess| matches!(known.kin.recognised, Some((_, ProcessRole::Worker)));
        let is_settled = before
            .filter(is_worker)
            .is_some_and(|known| known.stat.comm == stat.comm && !self.has_new_containers);
        let id = ProcessId { pid, start_ticks: stat.start_ticks };
        let line = if is_settled || stat.is_kernel {
            Some(Vec::new())
        } else if matches!(stat.state, 'Z' | 'X') {
            // It has none any more.
            None
        } else {
            self.details.command_line(id)
        };
        // The earlier classification stays while the process cannot be read.
        if is_settled || line.is_none() && before.is_some_and(|known| !known.is_unrecognised()) {
            if let Some(known) = self.known.get_mut(&pid) {
                known.kin.parent = stat.parent;
                known.stat = stat;
            }
            return Ok(());
        }
        let known = self.classify(id, stat, first, &line.unwrap_or_default());
        if self.details.take_starved() {
            return Err(TOO_MANY_OPEN.to_owned());
        }
        self.known.insert(pid, known);
        Ok(())
    }

    fn classify(&self, id: ProcessId, stat: Stat, first: u64, line: &[u8]) -> KnownProcess {
        let pid = id.pid;
        let (start_ticks, parent) = (stat.start_ticks, stat.parent);
        let is_raylet = stat.comm == RAYLET;
        let kin = ProcessKinship { start_ticks, parent, is_raylet, ..ProcessKinship::default() };
        let (found_by, member, serving) = (String::new(), Membership::default(), None);
        let mut known = KnownProcess { kin, stat, first, member, found_by, serving };
        if known.stat.is_kernel {
            return known;
        }
        let arguments = arguments(line);
        let folder = || self.details.link(pid, "cwd");
        let is_script =
            |part: &String| matches!(part.trim_start_matches("./"), "main.py" | "start.py");
        let folder = arguments.iter().any(is_script).then(folder).flatten();
        let folder = folder.as_deref().and_then(|path| path.rsplit('/').next());
        let comm = known.stat.comm.clone();
        known.kin.recognised = recognise(&comm, &arguments, folder);
        if let Some((kind, role)) = known.kin.recognised {
            known.found_by = match role {
                ProcessRole::Server => format!("the command line of pid {pid}"),
                ProcessRole::Worker => format!("the title {comm} of pid {pid}"),
            };
            if role == ProcessRole::Server {
                known.serving = Some(self.serving(id, kind, &arguments));
            }
        }
        self.compare(id, &arguments, &mut known);
        if self.launched_as(id).is_some() {
            known.kin.is_launched = true;
            known.found_by = format!("umawarden launch of pid {pid}");
            if known.serving.is_none() {
                known.serving = Some(self.serving(id, EngineKind::Declared, &arguments));
            }
        }
        // Runtimes are queried about the containers of engines, however these were found.
        if !known.is_unrecognised() && known.member.path.is_none() {
            known.member = self.details.membership(pid, &self.confirmed);
        }
        known
    }

    /// Only the variables in the list are kept: the environment also has keys.
    fn serving(&self, id: ProcessId, kind: EngineKind, arguments: &[String]) -> ServingArguments {
        let has_some = !facts(kind).variables.is_empty();
        let environment = has_some.then(|| self.details.environment(id)).flatten();
        let environment = environment.unwrap_or_default();
        serving_with(kind, arguments, |name| variable(&environment, name))
    }

    /// Compares a process with the declared engines.
    fn compare(&self, id: ProcessId, arguments: &[String], known: &mut KnownProcess) {
        let is_asked = self.matchers.iter().any(Matcher::needs_cgroup);
        if is_asked || known.kin.recognised.is_some() {
            known.member = self.details.membership(id.pid, &self.confirmed);
        }
        let confirmed = known.member.confirmed(&self.containers);
        let traits = ProcessTraits {
            comm: &known.stat.comm,
            arguments,
            unit: known.member.path.as_deref().and_then(system_unit),
            container: confirmed.map(|(id, _)| &**id),
            reported: confirmed.map(|(_, reported)| reported),
        };
        let found = self.matchers.iter().enumerate().find_map(|(index, matcher)| {
            Some((index, &matcher.declared.name, matcher.matches(traits)?))
        });
        let Some((index, name, by)) = found else { return };
        known.kin.declared = Some(index);
        known.found_by = format!("{by} of pid {}, as the configuration declares {name}", id.pid);
        if known.serving.is_none() && !arguments.is_empty() {
            known.serving = Some(self.serving(id, EngineKind::Declared, arguments));
        }
    }

    /// The name under which a process was launched.
    fn launched_as(&self, id: ProcessId) -> Option<&Arc<str>> {
        self.launched.iter().find(|engine| engine.head == id).map(|engine| &engine.name)
    }

    /// Groups processes into engines.
    fn group(&mut self, now: Duration, is_loading: bool) {
        let mut groups: BTreeMap<ProcessId, Vec<ProcessId>> = BTreeMap::new();
        for (id, head) in &self.members {
            groups.entry(*head).or_default().push(*id);
        }
        self.names.retain(|head, _| groups.contains_key(head));
        self.waiting.retain(|head, _| groups.contains_key(head));
        let groups = self.select(now, groups);
        self.details.begin(now, is_loading);
        let mut engines = Vec::new();
        self.is_any_unreported = false;
        for (head, mut members) in groups {
            members.sort_by_key(|id| (*id != head, id.pid));
            members.truncate(MAX_OF_ENGINE);
            if self.waits_for_docker(now, head, &members) {
                self.is_any_unreported = true;
            } else {
                engines.extend(self.engine(head, &members));
            }
        }
        engines.sort_by(|one, other| one.name.cmp(&other.name));
        self.details.end();
        self.engines = engines;
    }

    /// Selects the reported engines and sorts them oldest first, which is the order of naming.
    /// Above the limit, trusted engines come first, and one user's many engines displace no others.
    fn select(
        &mut self,
        now: Duration,
        mut groups: BTreeMap<ProcessId, Vec<ProcessId>>,
    ) -> Vec<(ProcessId, Vec<ProcessId>)> {
        let mut selected: Vec<ProcessId> = groups.keys().copied().collect();
        if selected.len() > MAX_ENGINES {
            self.users.retain(|head, _| groups.contains_key(head));
            for head in groups.keys() {
                let details = &self.details;
                self.users.entry(*head).or_insert_with(|| details.user(head.pid));
            }
            selected =
                ranked(groups.iter().map(|(head, all)| self.candidate(*head, all)).collect());
            selected.truncate(MAX_ENGINES);
        } else {
            self.users.clear();
        }
        // The first of several matches gets the declared name.
        selected.sort_by_cached_key(|head| {
            let is_vouched = groups.get(head).is_some_and(|all| self.is_vouched_for(all));
            (!is_vouched, head.start_ticks, head.pid)
        });
        let selected: Vec<_> =
            selected.into_iter().filter_map(|head| groups.remove_entry(&head)).collect();
        let known = &self.known;
        let left = groups.values().flatten();
        let left = left.filter_map(|id| Some((*id, &known.get(&id.pid)?.stat)));
        let details = &self.details;
        self.is_cut = self.left_out.update(now, left, |pid, most| details.devices(pid, most));
        selected
    }

    fn candidate(&self, head: ProcessId, members: &[ProcessId]) -> Candidate {
        let known = || members.iter().filter_map(|id| self.known.get(&id.pid));
        let user = self.users.get(&head).copied().flatten();
        let is_launched = self.launched_as(head).is_some();
        Candidate {
            head,
            is_trusted: is_launched || user == Some(0) || self.is_vouched_for(members),
            user,
            was_reported: self.servers.contains(&head),
            is_declared: known().any(|known| known.kin.declared.is_some()),
            pages: known().map(|known| known.stat.resident_pages).fold(0, u64::saturating_add),
        }
    }

    /// Whether a system service or a confirmed container has one of these processes.
    fn is_vouched_for(&self, members: &[ProcessId]) -> bool {
        members.iter().filter_map(|id| self.known.get(&id.pid)).any(|known| {
            let index = known.kin.declared.and_then(|index| self.matchers.get(index));
            let is_named = index.is_some_and(|matcher| matcher.declared.matches.unit.is_some());
            self.confirmed.proof(&known.member, is_named).is_of_system()
        })
    }

    /// Whether its name may depend on a pending Docker response. Other engines do not wait.
    fn waits_for_docker(&mut self, now: Duration, head: ProcessId, members: &[ProcessId]) -> bool {
        if self.names.contains_key(&head) || !self.may_docker_report || !self.needs_docker() {
            return false;
        }
        let mut known = members.iter().filter_map(|id| self.known.get(&id.pid));
        let is_unreported = |known: &KnownProcess| {
            let is_open = known.member.container.is_some()
                && !known.member.is_confirmed()
                && !known.member.is_of_user();
            is_open && known.kin.declared.is_none()
        };
        if !known.any(is_unreported) {
            return false;
        }
        let since = *self.waiting.entry(head).or_insert(now);
        now.saturating_sub(since) < DOCKER_TELLS
    }

    fn engine(&mut self, head: ProcessId, members: &[ProcessId]) -> Option<EngineSeen> {
        let known: Vec<&KnownProcess> =
            members.iter().filter_map(|id| self.known.get(&id.pid)).collect();
        let kind = known.iter().find_map(|known| known.kin.recognised).map(|(kind, _)| kind);
        let kind = kind.unwrap_or(EngineKind::Declared);
        let declared = known.iter().filter_map(|known| known.kin.declared).min();
        let matcher = declared.and_then(|index| self.matchers.get(index));
        let serving = known.iter().find_map(|known| known.serving.clone()).unwrap_or_default();
        let found_by = known
            .iter()
            .find(|known| matcher.is_none() || known.kin.declared.is_some())
            .or_else(|| known.first())
            .map(|known| known.found_by.clone())
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| format!("what pid {head} has left"));
        let launched_as = self.launched_as(head).map(ToString::to_string);
        let is_launched = launched_as.is_some();
        let base = match (launched_as, matcher) {
            (Some(name), _) => name,
            (None, Some(matcher)) => matcher.declared.name.to_string(),
            (None, None) if serving.part.name.is_some() => {
                serving.part.name.unwrap_or_default().to_owned()
            }
            (None, None) => {
                let kind = kind.name().replace('_', "-");
                serving.port.map_or(kind.clone(), |port| format!("{kind}-{port}"))
            }
        };
        let is_left_behind = self.is_left_behind(head);
        let (containers, confirmed) = (&self.containers, &self.confirmed);
        let query = EngineQuery {
            head,
            members,
            kind,
            serving,
            matcher,
            found_by,
            is_left_behind,
            job: members.iter().find_map(|id| self.jobs.job(*id)).map(|job| &job.name),
            containers,
            confirmed,
        };
        let mut seen = self.details.engine(query)?;
        seen.is_launched = is_launched;
        seen.client_unit = self.clients.unit_of(&seen);
        let error = |known: &&KnownProcess| self.containers.user_errors.get(&known.member.user?);
        let error = known.iter().find_map(error).filter(|_| seen.container.is_none());
        seen.runtime_error = error.cloned();
        // A late Docker response may show that it is a declared engine.
        let before = self
            .names
            .remove(&head)
            .filter(|named| declared.is_none() || named.declared == declared);
        let named = before.unwrap_or_else(|| Named { name: self.free_name(&base), declared });
        seen.name = Arc::clone(&named.name);
        self.names.insert(head, named);
        Some(seen)
    }

    /// Whether this is a worker whose server has ended. The parent of a worker runs the same
    /// interpreter; a process that adopts orphans (systemd, tini, a shell) does not.
    fn is_left_behind(&self, head: ProcessId) -> bool {
        let Some(known) = self.known.get(&head.pid) else { return false };
        if !matches!(known.kin.recognised, Some((_, ProcessRole::Worker))) {
            return false;
        }
        let parent = known.kin.parent;
        let has_raylet = self.known.get(&parent).is_some_and(|parent| parent.kin.is_raylet);
        // Its parent is no server, and may end before it.
        if has_raylet || self.jobs.is_worker(head) {
            return false;
        }
        let program = |pid| self.details.link(pid, "exe");
        match (program(head.pid), program(parent)) {
            (Some(own), Some(above)) => own != above,
            // Without root the parent's command is unreadable, but its name is enough.
            _ => self.known.get(&parent).is_some_and(|parent| INITS.contains(&&*parent.stat.comm)),
        }
    }

    fn free_name(&self, base: &str) -> Arc<str> {
        let is_free = |name: &String| !self.names.values().any(|taken| *taken.name == **name);
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let name = std::iter::once(base.to_owned()).chain(numbered).find(is_free);
        name.unwrap_or_default().into()
    }
}

impl KnownProcess {
    fn is_unrecognised(&self) -> bool {
        !self.kin.is_launched && self.kin.recognised.is_none() && self.kin.declared.is_none()
    }
}
