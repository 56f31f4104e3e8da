//! Services in which engines run and that nobody here starts again: how they ended. systemd may
//! start one again within 100 ms, and then knows of its end no more, but it tells of every change.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::Teller;
use super::systemd::end;
use crate::model::{HeldEnd, HeldEnded, HeldTarget, Requested, Supervisor};
use crate::supervisors::systemd::{Change, Changes, Properties, Sequence, Systemd, number, text};

/// More services are not followed.
const MOST_SERVICES: usize = 64;

/// For so long an end is told: whatever is told may be lost once.
const IS_TOLD: Duration = Duration::from_secs(30);

/// What of a service is remembered.
const OF_INTEREST: [&str; 5] =
    ["ExecMainCode", "ExecMainStatus", "ExecMainStartTimestamp", "ExecMainExitTimestamp", "Result"];

/// One that is followed.
#[derive(Debug)]
struct Service {
    changes: Changes,
    told: Properties,
    /// When this life began, as systemd writes it, and where among all that is told.
    life: (u64, Sequence),
    /// It was seen to go on.
    was_watched: bool,
    /// Where it was told that it is to be stopped.
    to_stop: Option<Sequence>,
    end: Option<Ended>,
}

/// Its last end.
#[derive(Debug)]
struct Ended {
    end: HeldEnd,
    noticed: Duration,
    /// Where its life was told to begin, and where it was told to have ended.
    told: (Sequence, Sequence),
}

impl Ended {
    /// Whether somebody wanted it, if it was told there that it is to be stopped.
    fn is_stopped(&self, stop: Sequence) -> bool {
        let (began, ended) = self.told;
        began < stop && stop < ended
    }
}

/// All that are followed, over one connection.
#[derive(Debug)]
pub(super) struct Services {
    teller: Teller,
    each: BTreeMap<Arc<str>, Service>,
    /// Those that systemd does not know as where their engines are.
    others: BTreeMap<Arc<str>, Arc<str>>,
}

impl Services {
    pub(super) fn new(teller: Teller) -> Self {
        Self { teller, each: BTreeMap::new(), others: BTreeMap::new() }
    }

    /// Follows those, each where its engine's control group is, and no others.
    pub(super) async fn follow(
        &mut self,
        systemd: &Systemd,
        services: &BTreeMap<Arc<str>, Arc<str>>,
    ) -> Result<(), String> {
        // One that has just ended is still told of.
        let now = (self.teller.clock)().uptime;
        let is_told = |service: &Service| service.ended(now).is_some();
        self.each.retain(|name, service| services.contains_key(name) || is_told(service));
        self.others.retain(|name, cgroup| services.get(name) == Some(cgroup));
        for (name, cgroup) in services {
            let is_known = self.each.contains_key(name) || self.others.contains_key(name);
            if is_known || self.each.len() >= MOST_SERVICES {
                continue;
            }
            let (told, changes) = systemd.follow_service(name).await?;
            if !is_where(&told.properties, cgroup) {
                self.others.insert(Arc::clone(name), Arc::clone(cgroup));
                continue;
            }
            let mut service = Service::new(changes);
            service.take(told, now);
            self.each.insert(Arc::clone(name), service);
        }
        Ok(())
    }

    /// A job was taken on that stops it.
    pub(super) fn is_to_stop(&mut self, unit: &str, told_at: Sequence) {
        if let Some(service) = self.each.get_mut(unit) {
            service.is_to_stop(told_at);
        }
    }

    pub(super) fn knows(&self, unit: &str) -> bool {
        self.each.contains_key(unit)
    }

    /// Waits until something has changed; an error: the connection has ended. It may be given up
    /// and called again.
    pub(super) async fn change(&mut self) -> Result<(), String> {
        let now = self.teller.clock;
        let changed = poll_fn(|cx| {
            let mut has_changed = false;
            for service in self.each.values_mut() {
                while let Poll::Ready(told) = service.changes.poll(cx) {
                    match told {
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

    /// Those that have ended lately.
    pub(super) fn ended(&self) -> Vec<HeldEnded> {
        let now = (self.teller.clock)().uptime;
        let ended = |(name, service): (&Arc<str>, &Service)| {
            let end = service.ended(now)?;
            let (name, id) = (Arc::clone(name), Arc::clone(name));
            let target = HeldTarget { supervisor: Supervisor::Systemd, name, id };
            Some(HeldEnded { target, end: end.clone() })
        };
        self.each.iter().filter_map(ended).collect()
    }
}

/// Whether that is the service in which the engine is, and not another of the same name. One that
/// has ended meanwhile has no control group.
fn is_where(told: &Properties, cgroup: &str) -> bool {
    let own = told.get("ControlGroup").and_then(text).unwrap_or_default();
    let below = cgroup.strip_prefix(&*own);
    own.is_empty() || below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

impl Service {
    fn new(changes: Changes) -> Self {
        let life = (0, Sequence::default());
        let told = Properties::new();
        Self { changes, told, life, was_watched: false, to_stop: None, end: None }
    }

    fn take(&mut self, Change { properties, position }: Change, now: Duration) {
        self.told.extend(properties.into_iter().filter(|(name, _)| OF_INTEREST.contains(&&**name)));
        let time = |name: &str| self.told.get(name).and_then(number).unwrap_or(0);
        let (began, ended) = (time("ExecMainStartTimestamp"), time("ExecMainExitTimestamp"));
        if began != self.life.0 {
            (self.life, self.was_watched) = ((began, position), false);
        }
        let has_ended = self.told.get("ExecMainCode").and_then(number).unwrap_or(0) != 0;
        if !has_ended || ended < began {
            self.was_watched = true;
            return;
        }
        let end = end(&self.told, (began, ended));
        // More is told of the same end: that it was for memory, say.
        let (noticed, told) = match &self.end {
            Some(known) if known.end.mark == end.mark => (known.noticed, known.told),
            _ => (now, (self.life.1, position)),
        };
        let mut ended = Ended { end, noticed, told };
        let is_stopped = self.to_stop.is_some_and(|stop| ended.is_stopped(stop));
        ended.end.requested = match (is_stopped, self.was_watched) {
            (true, _) => Requested::Yes,
            (false, true) => Requested::No,
            (false, false) => Requested::Unknown,
        };
        self.end = Some(ended);
    }

    /// Its last end, as long as that is told.
    fn ended(&self, now: Duration) -> Option<&HeldEnd> {
        let ended = self.end.as_ref()?;
        (now.saturating_sub(ended.noticed) < IS_TOLD).then_some(&ended.end)
    }

    /// It was told there that it is to be stopped. That may be heard after its end.
    fn is_to_stop(&mut self, stop: Sequence) {
        self.to_stop = Some(stop);
        if let Some(ended) = self.end.as_mut().filter(|ended| ended.is_stopped(stop)) {
            ended.end.requested = Requested::Yes;
        }
    }
}
