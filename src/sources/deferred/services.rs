//! The ends of services of engines without a deferred restart. systemd may restart one within 100
//! ms and then forgets its end, but signals every change.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Reporter;
use super::systemd::end;
use crate::engines::last_words;
use crate::model::{EndedWorkload, OnRequest, Supervisor, Workload, WorkloadEnd, WorkloadLog};
use crate::supervisors::journal::{ServiceRun, last_output};
use crate::supervisors::systemd::{
    Changes, Properties, Sequence, ServiceChange, Systemd, number, text,
};

/// The most tracked services.
const MOST_SERVICES: usize = 64;

/// How long an end is sent, since messages may be dropped.
const REPORTED_FOR: Duration = Duration::from_secs(30);

/// The stored properties of a service.
const OF_INTEREST: [&str; 5] =
    ["ExecMainCode", "ExecMainStatus", "ExecMainStartTimestamp", "ExecMainExitTimestamp", "Result"];

#[derive(Debug)]
struct TrackedService {
    changes: Changes,
    properties: Properties,
    /// When this life began, as systemd writes it, and its position in the sequence of messages.
    life: (u64, Sequence),
    /// It was seen running.
    was_watched: bool,
    /// The position of a message that it is to be stopped.
    to_stop: Option<Sequence>,
    end: Option<ServiceEnd>,
}

/// Its last end.
#[derive(Debug)]
struct ServiceEnd {
    end: WorkloadEnd,
    noticed: Duration,
    /// The positions of the messages about the begin and the end of its life.
    messages: (Sequence, Sequence),
}

impl ServiceEnd {
    /// Whether the end was requested, given the position of a stop message.
    fn is_stopped(&self, stop: Sequence) -> bool {
        let (began, ended) = self.messages;
        began < stop && stop < ended
    }
}

/// All tracked services, over one connection.
#[derive(Debug)]
pub(super) struct Services {
    reporter: Reporter,
    each: BTreeMap<Arc<str>, TrackedService>,
    /// Services that systemd has in another control group than their engines.
    others: BTreeMap<Arc<str>, Arc<str>>,
}

impl Services {
    pub(super) fn new(reporter: Reporter) -> Self {
        Self { reporter, each: BTreeMap::new(), others: BTreeMap::new() }
    }

    /// Tracks these services, each in its engine's control group, and no others.
    pub(super) async fn track(
        &mut self,
        systemd: &Systemd,
        services: &BTreeMap<Arc<str>, Arc<str>>,
    ) -> Result<(), String> {
        // A service that has just ended is still reported.
        let now = (self.reporter.clock)().uptime;
        let is_reported = |service: &TrackedService| service.ended(now).is_some();
        self.each.retain(|name, service| services.contains_key(name) || is_reported(service));
        self.others.retain(|name, cgroup| services.get(name) == Some(cgroup));
        for (name, cgroup) in services {
            let is_known = self.each.contains_key(name) || self.others.contains_key(name);
            if is_known || self.each.len() >= MOST_SERVICES {
                continue;
            }
            let (message, changes) = systemd.track_service(name).await?;
            if !is_where(&message.properties, cgroup) {
                self.others.insert(Arc::clone(name), Arc::clone(cgroup));
                continue;
            }
            let mut service = TrackedService::new(changes);
            service.take(message, now);
            self.each.insert(Arc::clone(name), service);
        }
        Ok(())
    }

    /// A job was queued that stops the service.
    pub(super) fn is_to_stop(&mut self, unit: &str, reported_at: Sequence) {
        if let Some(service) = self.each.get_mut(unit) {
            service.is_to_stop(reported_at);
        }
    }

    pub(super) fn knows(&self, unit: &str) -> bool {
        self.each.contains_key(unit)
    }

    /// Waits until something has changed. An error: the connection has ended. Cancel-safe.
    pub(super) async fn change(&mut self) -> Result<(), String> {
        let now = self.reporter.clock;
        let changed = poll_fn(|cx| {
            let mut has_changed = false;
            for service in self.each.values_mut() {
                while let Poll::Ready(message) = service.changes.poll(cx) {
                    match message {
                        Some(changed) => service.take(changed, now().uptime),
                        None => return Poll::Ready(Err(())),
                    }
                    has_changed = true;
                }
            }
            if has_changed { Poll::Ready(Ok(())) } else { Poll::Pending }
        });
        changed.await.map_err(|()| "systemd has ended the connection".to_owned())
    }

    /// Reads the last output of services that have ended since.
    pub(super) async fn read_output(&mut self) {
        let now = (self.reporter.clock)().uptime;
        for (name, service) in &mut self.each {
            let Some(ended) = &mut service.end else { continue };
            let is_new = now.saturating_sub(ended.noticed) < REPORTED_FOR;
            if ended.end.log.is_none() && is_new {
                ended.end.log = output(name, None, &ended.end).await;
            }
        }
    }

    /// Services that have ended lately.
    pub(super) fn ended(&self) -> Vec<EndedWorkload> {
        let now = (self.reporter.clock)().uptime;
        let ended = |(name, service): (&Arc<str>, &TrackedService)| {
            let end = service.ended(now)?;
            let (name, id) = (Arc::clone(name), Arc::clone(name));
            let target = Workload { supervisor: Supervisor::Systemd, name, id };
            Some(EndedWorkload { target, end: end.clone() })
        };
        self.each.iter().filter_map(ended).collect()
    }
}

/// The last output of the run that ended so; `None`: its times are unknown. `user`: the user whose
/// own systemd ran it.
pub(super) async fn output(
    name: &str,
    user: Option<u32>,
    end: &WorkloadEnd,
) -> Option<Arc<WorkloadLog>> {
    let ended: u64 = end.mark.parse().ok()?;
    let lived = u64::try_from(end.lived?.as_micros()).ok()?;
    let run = ServiceRun { began: ended.saturating_sub(lived), ended };
    let name = name.to_owned();
    let read = move || last_output((&name, user), run, |line| last_words(line).is_some());
    // It fails only if it panics.
    tokio::task::spawn_blocking(read).await.ok().map(Arc::new)
}

/// Whether it is the service of the engine, and not another of the same name. An ended one has no
/// control group.
fn is_where(properties: &Properties, cgroup: &str) -> bool {
    let own = properties.get("ControlGroup").and_then(text).unwrap_or_default();
    let below = cgroup.strip_prefix(&*own);
    own.is_empty() || below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

impl TrackedService {
    fn new(changes: Changes) -> Self {
        let life = (0, Sequence::default());
        let properties = Properties::new();
        Self { changes, properties, life, was_watched: false, to_stop: None, end: None }
    }

    fn take(&mut self, ServiceChange { properties, position }: ServiceChange, now: Duration) {
        self.properties
            .extend(properties.into_iter().filter(|(name, _)| OF_INTEREST.contains(&&**name)));
        let time = |name: &str| self.properties.get(name).and_then(number).unwrap_or(0);
        let (began, ended) = (time("ExecMainStartTimestamp"), time("ExecMainExitTimestamp"));
        if began != self.life.0 {
            (self.life, self.was_watched) = ((began, position), false);
        }
        let has_ended = self.properties.get("ExecMainCode").and_then(number).unwrap_or(0) != 0;
        if !has_ended || ended < began {
            self.was_watched = true;
            return;
        }
        let end = end(&self.properties, (began, ended));
        // Later messages have more about the same end: that it was an OOM kill, for example.
        let (noticed, messages, log) = match &self.end {
            Some(known) if known.end.mark == end.mark => {
                (known.noticed, known.messages, known.end.log.clone())
            }
            _ => (now, (self.life.1, position), None),
        };
        let mut ended = ServiceEnd { end: WorkloadEnd { log, ..end }, noticed, messages };
        let is_stopped = self.to_stop.is_some_and(|stop| ended.is_stopped(stop));
        ended.end.requested = match (is_stopped, self.was_watched) {
            (true, _) => OnRequest::Yes,
            (false, true) => OnRequest::No,
            (false, false) => OnRequest::Unknown,
        };
        self.end = Some(ended);
    }

    /// Its last end, while it is reported.
    fn ended(&self, now: Duration) -> Option<&WorkloadEnd> {
        let ended = self.end.as_ref()?;
        (now.saturating_sub(ended.noticed) < REPORTED_FOR).then_some(&ended.end)
    }

    /// A message that it is to be stopped, which may arrive after its end.
    fn is_to_stop(&mut self, stop: Sequence) {
        self.to_stop = Some(stop);
        if let Some(ended) = self.end.as_mut().filter(|ended| ended.is_stopped(stop)) {
            ended.end.requested = OnRequest::Yes;
        }
    }
}
