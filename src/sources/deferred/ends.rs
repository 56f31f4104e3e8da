//! Facts about the ends of containers beyond their state: whether the end was requested, and the
//! last lines of the log. Each is queried once for each end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Reporter;
use super::docker::filters;
use crate::engines::last_words;
use crate::model::{OnRequest, WorkloadEnd, WorkloadLog, WorkloadState};
use crate::parse::container::{
    ContainerEvent, InspectedContainer, end_after, event, log_end, requested, time,
};
use crate::supervisors::docker::{Docker, DockerError};

/// Timeout of one response. After one timeout, further queries are skipped.
const EVENTS_TAKE: Duration = Duration::from_secs(3);
const LOG_TAKES: Duration = Duration::from_secs(2);

/// The longest response that is read.
const MAX_EVENTS_BYTES: usize = 4 << 20;
const MAX_LOG_BYTES: usize = 1 << 20;

/// Docker records a start late: first log lines may have earlier times.
const BEGAN_BEFORE: Duration = Duration::from_secs(2);

/// The most lines of a log, and the fallback if they are too long.
const LOG_LINES: [u32; 2] = [200, 20];

/// After this time Docker knows everything about an end.
const SETTLES_SECONDS: i64 = 10;

/// How long an end is sent with its log, since messages may be dropped.
const LOG_IS_REPORTED: Duration = Duration::from_secs(30);

/// The state of a container between queries.
#[derive(Clone, Debug, Default)]
struct KnownContainer {
    /// The start of its current life, as Docker writes it.
    seen_running: Option<Arc<str>>,
    /// Docker was unreachable since.
    was_away: bool,
    end: Option<KnownEnd>,
    /// For a container that is only tracked: its last end, and when it was noticed.
    passed: Option<(WorkloadEnd, Duration)>,
}

/// The last examined end.
#[derive(Clone, Debug)]
struct KnownEnd {
    mark: Arc<str>,
    /// When it was noticed, by uptime.
    noticed: Duration,
    /// The end before it, if known.
    before: Option<Timestamp>,
    /// Whether it was requested, once that is certain.
    requested: Option<OnRequest>,
    log: Option<Arc<WorkloadLog>>,
}

/// The time from which log lines belong to the life that began then, and not to the one that ended
/// at `before`: the times of ends and starts are slightly off.
fn writes_from(began: Timestamp, before: Option<Timestamp>) -> Option<Timestamp> {
    let earliest = began.checked_sub(BEGAN_BEFORE).ok();
    let between = before.map(|ended| {
        let apart = Duration::try_from(began.duration_since(ended)).unwrap_or_default();
        ended.checked_add(apart / 2).unwrap_or(ended)
    });
    earliest.max(between)
}

/// The state of all containers.
#[derive(Debug)]
pub(super) struct ContainerEnds {
    docker: Docker,
    reporter: Reporter,
    known: BTreeMap<Arc<str>, KnownContainer>,
    /// A request of this query has timed out; further ones are skipped.
    hangs: bool,
}

impl ContainerEnds {
    pub(super) fn new(docker: Docker, reporter: Reporter) -> Self {
        Self { docker, reporter, known: BTreeMap::new(), hangs: false }
    }

    /// Begins a query.
    pub(super) fn begin(&mut self) {
        self.hangs = false;
    }

    /// Docker is unreachable, or the event stream has ended.
    pub(super) fn mark_unavailable(&mut self) {
        self.known.values_mut().for_each(|known| known.was_away = true);
    }

    /// Forgets containers that are gone.
    pub(super) fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        let now = (self.reporter.clock)().uptime;
        let is_reported = |known: &KnownContainer| {
            known.passed.as_ref().is_some_and(|(_, at)| now.saturating_sub(*at) < LOG_IS_REPORTED)
        };
        self.known.retain(|id, known| is_there(id) || is_reported(known));
    }

    /// Tracks a container of which only the end is reported, for a while. `None` if it was
    /// restarted or is gone.
    pub(super) async fn track(
        &mut self,
        id: &Arc<str>,
        found: Option<&InspectedContainer>,
        is_podman: bool,
    ) -> Option<WorkloadEnd> {
        let known = self.known.entry(Arc::clone(id)).or_default();
        let state = found.map(|found| &found.state);
        let goes_on = match state {
            Some(WorkloadState::Running { mark, .. }) => known.seen_running.as_ref() == Some(mark),
            Some(WorkloadState::Between { .. } | WorkloadState::Fresh) => true,
            Some(WorkloadState::Ended(_)) | None => false,
        };
        let before = known.seen_running.take_if(|_| !goes_on);
        if let (Some(WorkloadState::Running { mark, .. }), Some(known)) =
            (state, self.known.get_mut(id))
        {
            known.seen_running = Some(Arc::clone(mark));
        }
        if let Some(started) = before {
            let passed = self.passed(id, &started, found, is_podman).await;
            let noticed = (self.reporter.clock)().uptime;
            self.known.get_mut(id)?.passed = passed.map(|end| (end, noticed));
        }
        let now = (self.reporter.clock)().uptime;
        let (end, noticed) = self.known.get(id)?.passed.as_ref()?;
        (now.saturating_sub(*noticed) < LOG_IS_REPORTED).then(|| end.clone())
    }

    /// The end of the life that began then.
    async fn passed(
        &mut self,
        id: &Arc<str>,
        started: &str,
        found: Option<&InspectedContainer>,
        is_podman: bool,
    ) -> Option<WorkloadEnd> {
        let began = time(started)?;
        let now = (self.reporter.clock)().utc;
        let lived = Duration::try_from(now.duration_since(began)).unwrap_or_default();
        let until_now =
            WorkloadEnd { utc: Some(now), lived: Some(lived), ..WorkloadEnd::unknown() };
        let events = self.events_of(id, is_podman, &until_now).await.unwrap_or_default();
        let before = self.known.get(id).and_then(|known| known.passed.as_ref()?.0.utc);
        let mut end = match (found.map(|found| &found.state), end_after(began, &events)) {
            (Some(WorkloadState::Ended(end)), event) => {
                let requested = event.map_or(OnRequest::Unknown, |event| event.requested);
                WorkloadEnd { requested, ..end.clone() }
            }
            (_, event) => event?,
        };
        if is_podman && end.looks_requested() && end.requested == OnRequest::No {
            end.requested = OnRequest::Unknown;
        }
        end.are_stops_silent = is_podman;
        end.log = Some(Arc::new(match found {
            Some(found) => {
                let until = match &found.state {
                    WorkloadState::Running { .. } => {
                        time(&found.started).and_then(|next| writes_from(next, end.utc))
                    }
                    _ => None,
                };
                self.read_log_of(found, writes_from(began, before), until).await
            }
            None => WorkloadLog::Unknown("its container is gone, and its log with it".to_owned()),
        }));
        Some(end)
    }

    /// Records a running life, or examines an end.
    pub(super) async fn learn(
        &mut self,
        found: &InspectedContainer,
        is_podman: bool,
        state: &mut WorkloadState,
    ) {
        let known = self.known.entry(Arc::clone(&found.id)).or_default();
        match state {
            WorkloadState::Running { mark, .. } => {
                known.seen_running = Some(Arc::clone(mark));
                known.was_away = false;
            }
            WorkloadState::Ended(end) => {
                let now = (self.reporter.clock)().uptime;
                if known.end.as_ref().is_none_or(|known| known.mark != end.mark) {
                    let (mark, noticed) = (Arc::clone(&end.mark), now);
                    let before = known.end.take().and_then(|before| time(&before.mark));
                    let (requested, log) = (None, None);
                    known.end = Some(KnownEnd { mark, noticed, before, requested, log });
                }
                end.are_stops_silent = is_podman;
                end.requested = self.requested(found, is_podman, end).await;
                end.log = self.log(found).await;
            }
            WorkloadState::Fresh | WorkloadState::Between { .. } => {}
        }
    }

    /// Whether the end was requested.
    async fn requested(
        &mut self,
        found: &InspectedContainer,
        is_podman: bool,
        end: &WorkloadEnd,
    ) -> OnRequest {
        let known = self.known.get(&found.id).cloned().unwrap_or_default();
        if let Some(requested) = known.end.and_then(|known| known.requested) {
            return requested;
        }
        let was_watched = known.seen_running.as_ref() == Some(&found.started);
        let judged = match self.events_of(&found.id, is_podman, end).await {
            Some(events) => match requested(end, &events) {
                // Docker that was down itself has no events of it, and cannot have been asked for
                // it.
                // Podman's containers run without it.
                OnRequest::Unknown if was_watched && known.was_away && !is_podman => OnRequest::No,
                // `podman stop` has no event: an end that looks like one may be one.
                OnRequest::No if is_podman && end.looks_requested() => OnRequest::Unknown,
                judged => judged,
            },
            None => OnRequest::Unknown,
        };
        // A recent event may arrive a moment later.
        let age = end.utc.map(|utc| (self.reporter.clock)().utc.duration_since(utc));
        let is_old = age.is_some_and(|age| age.as_secs() >= SETTLES_SECONDS) && !self.hangs;
        if (judged != OnRequest::Unknown || is_old)
            && let Some(known) = self.known_end(&found.id)
        {
            known.requested = Some(judged);
        }
        judged
    }

    fn known_end(&mut self, id: &Arc<str>) -> Option<&mut KnownEnd> {
        self.known.get_mut(id)?.end.as_mut()
    }

    /// Docker's events of a container's last life; `None` if unavailable.
    async fn events_of(
        &mut self,
        id: &str,
        is_podman: bool,
        end: &WorkloadEnd,
    ) -> Option<Vec<ContainerEvent>> {
        let ended = end.utc?.as_second();
        let lived = i64::try_from(end.lived.unwrap_or_default().as_secs()).unwrap_or(i64::MAX);
        let since = ended.saturating_sub(lived).saturating_sub(2);
        let filters = filters([
            ("container", &[id]),
            ("event", &["start", "kill", "stop", "die", "died", "oom"]),
        ]);
        let now = (self.reporter.clock)().utc;
        // Podman has no fractions of seconds.
        let until = (!is_podman).then(|| exact(now));
        let span = (since.to_string(), until);
        let docker = self.docker.clone();
        let response = docker.past_events(filters, span, MAX_EVENTS_BYTES, EVENTS_TAKE);
        let lines = self.unless_it_hangs(EVENTS_TAKE, response).await.ok()?;
        let mut events: Vec<ContainerEvent> = lines.iter().filter_map(|text| event(text)).collect();
        events.retain(|event| *event.id == *id);
        events.sort_by_key(|event| event.time_ns);
        Some(events)
    }

    /// The last lines of its log.
    async fn log(&mut self, found: &InspectedContainer) -> Option<Arc<WorkloadLog>> {
        let now = (self.reporter.clock)().uptime;
        let known = self.known_end(&found.id)?;
        if known.log.is_none() && !self.hangs {
            let log = Arc::new(self.read_log(found).await);
            self.known_end(&found.id)?.log = Some(log);
        }
        let known = self.known_end(&found.id)?;
        let is_reported = now.saturating_sub(known.noticed) < LOG_IS_REPORTED;
        known.log.clone().filter(|_| is_reported)
    }

    async fn read_log(&mut self, found: &InspectedContainer) -> WorkloadLog {
        let before = self.known_end(&found.id).and_then(|known| known.before);
        let began = time(&found.started).map_or(before, |began| writes_from(began, before));
        self.read_log_of(found, began, None).await
    }

    /// The log between two times.
    async fn read_log_of(
        &mut self,
        found: &InspectedContainer,
        began: Option<Timestamp>,
        until: Option<Timestamp>,
    ) -> WorkloadLog {
        let since = began.map_or(0, Timestamp::as_second).to_string();
        let until = until.map(exact);
        let mut response = Err("not queried".to_owned());
        for lines in LOG_LINES {
            let (docker, span) = (self.docker.clone(), (&*since, until.as_deref()));
            let read = docker.logs(&found.id, span, lines, MAX_LOG_BYTES, LOG_TAKES);
            response = self.unless_it_hangs(LOG_TAKES, read).await;
            if response.is_ok() || self.hangs {
                break;
            }
        }
        match response {
            Ok(pieces) => {
                let has_reason = |line: &str| last_words(line).is_some();
                WorkloadLog::Lines(log_end(&pieces, began, has_reason))
            }
            Err(why) => WorkloadLog::Unknown(why),
        }
    }

    /// Sends a request, unless one of this query has timed out.
    async fn unless_it_hangs<T>(
        &mut self,
        takes: Duration,
        request: impl Future<Output = Result<T, DockerError>>,
    ) -> Result<T, String> {
        if self.hangs {
            return Err(DockerError::TimedOut(takes).to_string());
        }
        let response = request.await;
        self.hangs = matches!(response, Err(DockerError::TimedOut(_)));
        response.map_err(|error| error.to_string())
    }
}

/// Seconds since 1970, with their fraction.
fn exact(at: Timestamp) -> String {
    format!("{}.{:09}", at.as_second(), at.subsec_nanosecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_between_an_end_and_a_start_belong_to_the_nearer_one() {
        let at = |ms: i64| Timestamp::from_millisecond(1_795_219_200_000 + ms).unwrap();
        let from = |began, before: Option<i64>| writes_from(at(began), before.map(at)).unwrap();
        assert_eq!(from(10_000, None), at(8_000));
        assert_eq!(from(10_000, Some(1_000)), at(8_000), "long before");
        assert_eq!(from(10_000, Some(9_800)), at(9_900));
        // Docker records a start after the end before it.
        assert_eq!(from(10_000, Some(10_050)), at(10_050));
    }
}
