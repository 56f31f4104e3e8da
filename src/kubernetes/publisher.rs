//! Sends what has changed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::backoff::Backoff;
use super::conditions::{self, ConditionState, as_json};
use super::events::EventBook;
use super::resource::Requestable;
use super::{KubernetesSetup, KubernetesTally};
use crate::clients::kubernetes::{ApiError, NodeApi, Reported, node_name};
use crate::model::{KubernetesSettings, Moment};
use crate::policy::status::Status;

/// Between two reports of an unchanged node. The detector of node problems does the same
/// (node-problem-detector, `--k8s-exporter-heartbeat-period`).
const HEARTBEAT_EVERY: Duration = Duration::from_secs(300);

/// Between two reports of a changed node.
const LEAST_BETWEEN: Duration = Duration::from_secs(5);

/// Events in one turn: what happens to all nodes at once comes over some seconds.
pub(super) const MOST_EVENTS: usize = 2;

/// The time of the farewell.
const LEAVING_TAKES: Duration = Duration::from_secs(2);

/// How long a change of the requestable memory must last. Its figures come and go with each load.
const RESOURCE_SETTLES: Duration = Duration::from_secs(30);

/// What was reported last.
#[derive(Debug, Default)]
struct PublishedState {
    states: Vec<ConditionState>,
    /// As the server has them; `None`: not known yet.
    reported: Option<Vec<Reported>>,
    mebibytes: Option<u64>,
    /// On the uptime clock.
    at: Option<Duration>,
}

/// The state of the thread.
pub(super) struct Publisher {
    setup: KubernetesSetup,
    api: Option<NodeApi>,
    tally: Arc<KubernetesTally>,
    report: PublishedState,
    requestable: Requestable,
    /// A new figure of memory, and since when.
    settling: Option<(u64, Duration)>,
    of_status: Backoff,
    events: EventBook,
    of_events: Backoff,
    /// From 0 to 1 by the node's name: nodes report at times of their own.
    spread: f64,
}

impl Publisher {
    pub(super) fn new(setup: KubernetesSetup, tally: Arc<KubernetesTally>) -> Self {
        let node = node_name(&setup.settings.access);
        Self {
            api: None,
            tally,
            report: PublishedState::default(),
            requestable: Requestable::default(),
            settling: None,
            of_status: Backoff::default(),
            events: EventBook::new(node.clone(), (setup.clock)().utc),
            of_events: Backoff::default(),
            spread: spread(&node),
            setup,
        }
    }

    /// Sends what is due.
    pub(super) async fn turn(&mut self) {
        let now = (self.setup.clock)();
        let status = self.setup.status.load_full();
        if self.setup.settings.events {
            self.events.take(&status, now.uptime);
            self.tally.dropped(self.events.take_dropped());
        }
        if self.of_status.may_try(now.uptime) {
            let sent = self.send_status(&status, now).await;
            note(&mut self.of_status, "conditions", sent, now.uptime, self.spread);
        }
        if self.of_events.may_try(now.uptime) {
            let sent = self.send_events(now).await;
            note(&mut self.of_events, "events", sent, now.uptime, self.spread);
        }
    }

    /// Says that nobody checks the conditions any more.
    pub(super) async fn leave(&mut self) {
        if self.setup.settings.conditions.is_empty() || self.report.at.is_none() {
            return;
        }
        let states = conditions::left(&self.setup.settings.conditions);
        let reported = self.report.reported.take().unwrap_or_default();
        let now = (self.setup.clock)();
        let patch = json!({"conditions": as_json(&states, &reported, now.utc)});
        // The end may have come during a request, or after an error: both close the connection.
        let farewell = async {
            let api = match self.api.take() {
                Some(api) => api,
                None => NodeApi::open(&self.setup.settings.access).await?,
            };
            api.patch_status(patch).await
        };
        // The last heartbeat says how old the conditions are.
        let _ = tokio::time::timeout(LEAVING_TAKES, farewell).await;
    }

    /// `Ok(false)`: nothing was due.
    async fn send_status(&mut self, status: &Status, now: Moment) -> Result<bool, ApiError> {
        let (named, before) = (&self.setup.settings.conditions, &self.report.states);
        let states = conditions::states(named, status, before);
        let mebibytes = self.offered(status, now.uptime);
        if states.is_empty() && mebibytes.is_none() || !self.is_due(&states, mebibytes, now.uptime)
        {
            return Ok(false);
        }
        let reported = match self.report.reported.take() {
            Some(reported) => reported,
            None => self.ask(now, async |api| api.state().await).await?.conditions(),
        };
        let conditions = as_json(&states, &reported, now.utc);
        let mut patch = json!({});
        if !conditions.is_empty() {
            patch["conditions"] = conditions.clone().into();
        }
        if let Some(mebibytes) = mebibytes {
            let quantity = json!({KubernetesSettings::RESOURCE: mebibytes.to_string()});
            patch["capacity"] = quantity.clone();
            // Where there is no kubelet to copy it.
            patch["allocatable"] = quantity;
        }
        self.ask(now, async |api| api.patch_status(patch).await).await?;
        let reported = conditions.iter().filter_map(Reported::read).collect();
        self.report =
            PublishedState { states, reported: Some(reported), mebibytes, at: Some(now.uptime) };
        Ok(true)
    }

    fn is_due(&self, states: &[ConditionState], mebibytes: Option<u64>, now: Duration) -> bool {
        let Some(at) = self.report.at else { return true };
        let is_same = self.report.states == states && self.report.mebibytes == mebibytes;
        match is_same {
            true => turn(now, self.spread) > turn(at, self.spread),
            false => now.saturating_sub(at) >= LEAST_BETWEEN,
        }
    }

    /// The memory that is offered: the last figure until a new one has stayed.
    fn offered(&mut self, status: &Status, now: Duration) -> Option<u64> {
        if !self.setup.settings.extended_resource {
            return None;
        }
        let offered = self.report.mebibytes;
        let Some(found) = self.requestable.mebibytes(status) else { return offered };
        if offered.is_none() || offered == Some(found) {
            self.settling = None;
            return Some(found);
        }
        let (_, since) = *self.settling.insert(match self.settling {
            Some((figure, since)) if figure == found => (figure, since),
            _ => (found, now),
        });
        if now.saturating_sub(since) >= RESOURCE_SETTLES { Some(found) } else { offered }
    }

    async fn send_events(&mut self, now: Moment) -> Result<bool, ApiError> {
        let mut is_any = false;
        for _ in 0..MOST_EVENTS {
            let Some(request) = self.events.next(now.uptime) else { break };
            let (namespace, body) = (&*request.namespace, request.body.clone());
            let sent = match &request.name {
                Some(name) => {
                    let patch = async |api: &NodeApi| api.patch_event(namespace, name, body).await;
                    self.ask(now, patch).await.map(|()| None)
                }
                None => {
                    let create = async |api: &NodeApi| api.create_event(namespace, &body).await;
                    self.ask(now, create).await.map(Some)
                }
            };
            match sent {
                Ok(name) => {
                    is_any = true;
                    self.events.written(&request, name, now.uptime);
                }
                Err(error) if error.code() == Some(404) && request.name.is_some() => {
                    self.events.expired();
                }
                // The namespace has gone or is going, and the pod with it.
                Err(error)
                    if matches!(error.code(), Some(403 | 404)) && is_of_namespace(&error) =>
                {
                    self.events.give_up();
                }
                // A quota, a webhook, or a right for one namespace: others may be written.
                Err(error) if matches!(error.code(), Some(403)) => {
                    self.events.refused(now.uptime);
                    self.of_events.refused("events", &error);
                }
                Err(error) if matches!(error.code(), Some(400 | 413 | 422)) => {
                    self.events.give_up();
                    self.of_events.refused("events", &error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(is_any)
    }

    /// Asks over the connection that there is, or a new one.
    async fn ask<T>(
        &mut self,
        now: Moment,
        request: impl AsyncFnOnce(&NodeApi) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let api = match self.api.take() {
            Some(api) => api,
            None => NodeApi::open(&self.setup.settings.access).await?,
        };
        let result = request(&api).await;
        // After an error the kubeconfig or the service account is read again.
        if !matches!(&result, Err(ApiError::Unreachable { .. } | ApiError::Unconfigured(_)))
            && result.as_ref().err().and_then(ApiError::code) != Some(401)
        {
            self.api = Some(api);
        }
        self.tally.asked(result.is_ok(), now.utc_ms());
        result
    }
}

/// The number of heartbeats until then. Nodes that start together get different times.
fn turn(now: Duration, spread: f64) -> u64 {
    let every = HEARTBEAT_EVERY.as_secs();
    now.saturating_add(HEARTBEAT_EVERY.mul_f64(spread)).as_secs() / every
}

/// The message of the server for a namespace that is being removed, or is not there.
fn is_of_namespace(error: &ApiError) -> bool {
    let text = error.to_string();
    text.contains("because it is being terminated") || text.contains("namespaces \"")
}

fn note(
    backoff: &mut Backoff,
    feature: &str,
    sent: Result<bool, ApiError>,
    now: Duration,
    spread: f64,
) {
    match sent {
        Ok(true) => backoff.succeeded(feature),
        Ok(false) => {}
        Err(error) => backoff.failed(feature, &error, now, spread),
    }
}

/// FNV-1a, as a fraction: the same at each start.
fn spread(node: &str) -> f64 {
    let hash = node
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // Names that differ in the last digit alone have hashes close together so far.
    let hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    f64::from(hash ^ (hash >> 13)) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;

    use super::*;
    use crate::clients::kubernetes::scripted::serve;
    use crate::kubernetes::events::tests::of_an_engine_that_died;
    use crate::model::RecentEvent;

    /// One node's requests for conditions, second by second.
    struct Node {
        spread: f64,
        at: Option<Duration>,
        backoff: Backoff,
    }

    impl Node {
        fn asks(&mut self, now: Duration, is_up: bool) -> bool {
            let is_due = self.at.is_none_or(|at| turn(now, self.spread) > turn(at, self.spread));
            if !is_due || !self.backoff.may_try(now) {
                return false;
            }
            if is_up {
                self.at = Some(now);
                self.backoff.succeeded("conditions");
            } else {
                let server = "s".to_owned();
                let error = ApiError::Unreachable { server, what: "is away".to_owned() };
                self.backoff.failed("conditions", &error, now, self.spread);
            }
            true
        }
    }

    fn now() -> Moment {
        Moment { uptime: Duration::from_secs(1_000), utc: jiff::Timestamp::UNIX_EPOCH }
    }

    fn publisher(
        settings: KubernetesSettings,
        status: Status,
    ) -> (Publisher, Arc<KubernetesTally>) {
        let (status, tally) =
            (Arc::new(ArcSwap::from_pointee(status)), Arc::<KubernetesTally>::default());
        let setup = KubernetesSetup { settings, status, clock: now };
        (Publisher::new(setup, Arc::clone(&tally)), tally)
    }

    #[test]
    fn the_farewell_needs_no_open_connection() {
        let folder = tempfile::tempdir().unwrap();
        let (access, requests) = serve(folder.path(), |_, _| (200, json!({"metadata": {}})));
        let settings = KubernetesSettings { access, events: false, ..Default::default() };
        let (mut publisher, _) = publisher(settings, of_an_engine_that_died());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            publisher.turn().await;
            publisher.api = None;
            publisher.leave().await;
        });
        let requests = requests.lock().unwrap();
        let (line, body) = requests.last().unwrap();
        assert!(line.starts_with("PATCH /api/v1/nodes/n/status"), "{line}");
        assert_eq!(body["status"]["conditions"][0]["reason"], "UmawardenStopped", "{requests:?}");
    }

    /// A quota of one namespace, or a webhook that takes no such Event.
    #[test]
    fn a_refused_event_delays_no_other() {
        for (code, dropped) in [(403, 0), (422, 1)] {
            let folder = tempfile::tempdir().unwrap();
            let (access, requests) = serve(folder.path(), move |line, _| {
                let is_pods = line.contains("/namespaces/models/");
                let code = if is_pods { code } else { 201 };
                (code, json!({"message": "exceeded quota", "metadata": {"name": "e"}}))
            });
            let mut status = of_an_engine_that_died();
            let died = status.happened[0].clone();
            let later = RecentEvent { text: "Xid 31".to_owned(), engine: None, ..died.clone() };
            status.happened = [later, died].into();
            let settings = KubernetesSettings {
                access,
                conditions: Vec::new(),
                ..KubernetesSettings::default()
            };
            let (mut publisher, tally) = publisher(settings, status);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            for _ in 0..3 {
                runtime.block_on(publisher.turn());
            }
            let lines = requests.lock().unwrap();
            let lines: Vec<&str> = lines.iter().map(|(line, _)| line.as_str()).collect();
            let of = |namespace| format!("POST /api/v1/namespaces/{namespace}/events? HTTP/1.1");
            assert_eq!(lines, ["default", "models", "default"].map(of), "{code}");
            assert_eq!((tally.succeeded(), tally.failed()), (2, 1), "{code}");
            assert_eq!(tally.dropped_events(), dropped, "{code}");
        }
    }

    /// The figures of docs/src/operate/kubernetes.md.
    #[test]
    fn a_thousand_nodes_make_three_requests_a_second_and_no_storm_after_an_outage() {
        let named = |number| spread(&format!("gh200-{number}"));
        let mut nodes: Vec<Node> = (0..1_000)
            .map(|number| Node { spread: named(number), at: None, backoff: Backoff::default() })
            .collect();
        let mut each_second = Vec::new();
        for second in 0..4 * 3_600 {
            let now = Duration::from_secs(second);
            let is_up = !(7_200..7_800).contains(&second);
            each_second.push(
                nodes.iter_mut().filter_map(|node| node.asks(now, is_up).then_some(())).count(),
            );
        }
        let mean = |seconds: std::ops::Range<usize>| {
            let length = seconds.len();
            each_second[seconds].iter().sum::<usize>() / length
        };
        assert_eq!(mean(1_800..7_200), 3);
        assert_eq!(mean(9_000..14_400), 3);
        let most = |seconds: std::ops::Range<usize>| each_second[seconds].iter().copied().max();
        assert!(most(600..7_200) < Some(15), "{:?}", most(600..7_200));
        assert!(most(7_800..14_400) < Some(60), "{:?}", most(7_800..14_400));
        assert!(mean(7_200..7_800) < 20, "{}", mean(7_200..7_800));
    }
}
