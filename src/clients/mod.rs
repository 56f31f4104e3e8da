//! Thin clients: [`ClientSession`] calls one engine or server, and one request after the other;
//! [`KeyedSession`] adds the keys of an engine. [`fleet_lock`] requests slots for reboots, [`peer`]
//! the umawarden of another node, [`alertmanager`] posts alerts, [`collector`] sends telemetry,
//! `kubernetes` changes this machine's node, and [`nvsentinel`] reports health events over gRPC.
//! HTTP requests leave through [`http`], but for those of `kubernetes`; TLS is in `tls`.

pub mod alertmanager;
pub mod cgroups;
pub mod collector;
pub mod connection;
pub mod files;
pub mod fleet_lock;
pub mod http;
mod key_ring;
mod keyed_session;
mod keys;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod network;
pub mod nvsentinel;
pub mod owner;
pub mod peer;
mod session;
mod tls;

pub use key_ring::{EngineKey, KeyRing, NoKey};
pub use keyed_session::KeyedSession;
pub use keys::{KeyError, Secret, check_permissions};
pub use session::{CallError, ClientSession, Endpoint, origin};
