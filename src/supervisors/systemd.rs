//! systemd, over D-Bus.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::timeout;
use zbus::export::futures_core::Stream as _;
pub use zbus::message::Sequence;
use zbus::{DynamicType, MatchRule, Message, MessageStream, OwnedObjectPath, OwnedVariant};

use super::bus::{ANSWER_TAKES, Address, BusConnection};
pub use super::bus::{Bus, BusError};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER_PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const SERVICE: &str = "org.freedesktop.systemd1.Service";
const JOB: &str = "org.freedesktop.systemd1.Job";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// A connection to systemd.
#[derive(Debug)]
pub struct Systemd {
    line: BusConnection,
}

/// The properties of a unit by their names in systemd.
pub type Properties = BTreeMap<String, OwnedVariant>;

impl Systemd {
    /// Connects to systemd.
    ///
    /// # Errors
    /// No response, or not in time.
    pub async fn connect(bus: &Bus) -> Result<Self, BusError> {
        Ok(Self { line: BusConnection::connect(bus, "systemd").await? })
    }

    async fn call<B>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> Result<Message, String>
    where
        B: serde::Serialize + DynamicType,
    {
        let to = Address { service: SYSTEMD, path, interface };
        let called = self.line.call(to, method, body, ANSWER_TAKES).await;
        called.map_err(|error| error.to_string())
    }

    /// Reboots the machine without regard to logged-in users and inhibitors.
    ///
    /// # Errors
    /// There is no response of systemd, or it refuses.
    pub async fn reboot(&self, patience: Duration) -> Result<(), BusError> {
        let to = Address { service: SYSTEMD, path: MANAGER_PATH, interface: MANAGER };
        self.line.call(to, "Reboot", &(), patience).await.map(drop)
    }

    /// All properties of a service.
    ///
    /// # Errors
    /// There is no valid response of systemd.
    pub async fn service(&self, name: &str) -> Result<Properties, String> {
        let path = self.path_of(name).await?;
        self.properties(&path).await
    }

    /// Makes systemd keep the result of a unit for the life of this connection. Otherwise it
    /// forgets a unit at once that has ended successfully and is not required.
    ///
    /// # Errors
    /// There is no valid response of systemd.
    pub async fn keep(&self, name: &str) -> Result<(), String> {
        let path = self.path_of(name).await?;
        self.refer_to(&path).await;
        Ok(())
    }

    /// Without that right, fewer properties are visible.
    async fn refer_to(&self, path: &OwnedObjectPath) {
        let _ = self.call(path.as_str(), UNIT, "Ref", &()).await;
    }

    async fn path_of(&self, name: &str) -> Result<OwnedObjectPath, String> {
        let reply = self.call(MANAGER_PATH, MANAGER, "LoadUnit", &name).await?;
        reply.body().deserialize().map_err(|error| format!("systemd, LoadUnit: {error}"))
    }

    async fn properties(&self, path: &OwnedObjectPath) -> Result<Properties, String> {
        let mut all = Properties::new();
        for interface in [UNIT, SERVICE] {
            let reply = self.call(path.as_str(), PROPERTIES, "GetAll", &interface).await?;
            let found: Properties =
                reply.body().deserialize().map_err(|error| format!("systemd, GetAll: {error}"))?;
            all.extend(found);
        }
        Ok(all)
    }

    /// All properties of a service, and from then on its changes.
    ///
    /// # Errors
    /// There is no valid response of systemd.
    pub async fn track_service(&self, name: &str) -> Result<(ServiceChange, Changes), String> {
        let path = self.path_of(name).await?;
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(PROPERTIES)
            .member("PropertiesChanged")
            .path(path.clone())
            .build()
            .map_err(|error| error.to_string())?;
        let stream = self.stream(rule).await?;
        self.refer_to(&path).await;
        let properties = self.properties(&path).await?;
        // Earlier changes are in the properties.
        Ok((ServiceChange { properties, position: Sequence::default() }, Changes(stream)))
    }

    async fn stream(&self, rule: MatchRule<'static>) -> Result<MessageStream, String> {
        let stream = MessageStream::for_match_rule(rule, &self.line.connection, None);
        let stream = timeout(ANSWER_TAKES, stream).await;
        let stream = stream.map_err(|_| "systemd has not answered in time".to_owned())?;
        stream.map_err(|error| format!("systemd: {error}"))
    }

    /// Starts a service, even after failures, without waiting for it.
    ///
    /// # Errors
    /// There is no response of systemd, or it refuses.
    pub async fn start(&self, name: &str) -> Result<(), String> {
        // A unit that has not failed needs no reset.
        let _ = self.call(MANAGER_PATH, MANAGER, "ResetFailedUnit", &name).await;
        self.call(MANAGER_PATH, MANAGER, "StartUnit", &(name, "replace")).await.map(drop)
    }

    /// Stops a service, without waiting for its end. `Restart=` does not start it again.
    ///
    /// # Errors
    /// There is no response of systemd, or it refuses.
    pub async fn stop(&self, name: &str) -> Result<(), String> {
        self.call(MANAGER_PATH, MANAGER, "StopUnit", &(name, "replace")).await.map(drop)
    }

    /// Subscribes to the signals of systemd.
    ///
    /// # Errors
    /// systemd refuses, or there is no response.
    pub async fn jobs(&self) -> Result<Jobs, String> {
        let rule = MatchRule::builder()
            .msg_type(zbus::message::Type::Signal)
            .interface(MANAGER)
            .member("JobNew")
            .build()
            .map_err(|error| error.to_string())?;
        let stream = self.stream(rule).await?;
        self.call(MANAGER_PATH, MANAGER, "Subscribe", &()).await?;
        Ok(Jobs(stream))
    }

    /// The type of a job: `start`, `stop`; `None` if it has ended.
    pub async fn job_type(&self, job: &str) -> Option<String> {
        let reply = self.call(job, PROPERTIES, "Get", &(JOB, "JobType")).await.ok()?;
        let value: OwnedVariant = reply.body().deserialize().ok()?;
        text(&value)
    }
}

/// A queued job of systemd.
#[derive(Clone, Debug)]
pub struct SystemdJob {
    /// Its object path.
    pub path: String,
    /// Name of the unit that the job is for.
    pub unit: String,
    /// The state before and after it.
    pub position: Sequence,
}

/// The stream of new jobs.
#[derive(Debug)]
pub struct Jobs(MessageStream);

impl Jobs {
    /// The next job; `None`: the connection has ended. The call may be cancelled and repeated.
    pub async fn next(&mut self) -> Option<SystemdJob> {
        loop {
            let message = poll_fn(|cx| Pin::new(&mut self.0).poll_next(cx)).await?.ok()?;
            let reply: Result<(u32, OwnedObjectPath, String), _> = message.body().deserialize();
            if let Ok((_, path, unit)) = reply {
                let (path, position) = (path.as_str().to_owned(), message.recv_position());
                return Some(SystemdJob { path, unit, position });
            }
        }
    }
}

/// A change of a service.
#[derive(Debug)]
pub struct ServiceChange {
    /// As it is now.
    pub properties: Properties,
    /// The state before and after it.
    pub position: Sequence,
}

/// The stream of changes of one service.
#[derive(Debug)]
pub struct Changes(MessageStream);

impl Changes {
    /// The changes since the last call, if any; `None`: the connection has ended.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<ServiceChange>> {
        loop {
            let message = match ready!(Pin::new(&mut self.0).poll_next(cx)) {
                Some(Ok(message)) => message,
                Some(Err(_)) | None => return Poll::Ready(None),
            };
            let reply: Result<(String, Properties, Vec<String>), _> = message.body().deserialize();
            if let Ok((_, properties, _)) = reply {
                let position = message.recv_position();
                return Poll::Ready(Some(ServiceChange { properties, position }));
            }
        }
    }
}

/// A property that is text.
pub fn text(value: &OwnedVariant) -> Option<String> {
    <&str>::try_from(value).ok().map(str::to_owned)
}

/// A property that is a number.
pub fn number(value: &OwnedVariant) -> Option<u64> {
    let signed = i32::try_from(value).ok().and_then(|number| u64::try_from(number).ok());
    signed
        .or_else(|| u64::try_from(value).ok())
        .or_else(|| u32::try_from(value).ok().map(u64::from))
}
