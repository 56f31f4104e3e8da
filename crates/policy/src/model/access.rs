//! Access control over the network: roles, credentials, and reasons of a refusal.

use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;

use super::names::named;

named! {
    /// A role over the network. A higher role includes the lower ones.
    pub enum Role {
        /// Read only.
        Read = "read",
        /// Prevent actions, and end that: silences, pauses, notes, reloads.
        Operate = "operate",
        /// Cause actions that need a person: approve, reboot, reset a breaker.
        Remedy = "remedy",
    }
}

/// The identity of a client on the network; never a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Credential {
    /// A bearer token of that name.
    Token(Arc<str>),
    /// A client certificate for that name.
    Certificate(Arc<str>),
    /// A user of that name, by password.
    User(Arc<str>),
}

impl fmt::Display for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(name) => write!(f, "token {name}"),
            Self::Certificate(name) => write!(f, "certificate {name}"),
            Self::User(name) => write!(f, "user {name}"),
        }
    }
}

/// The author of an order, by the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderedBy {
    /// A user of this node, over the control socket.
    Local {
        /// User id of the peer, from the kernel.
        uid: u32,
    },
    /// A client on the network.
    Remote {
        /// The credential that the request was authenticated with.
        credential: Credential,
        /// The address of the other end of the connection.
        address: IpAddr,
    },
}

named! {
    /// Why access control refused a request over the network.
    pub enum RefusalReason {
        /// It has no credential, and needs one.
        NoCredential = "no_credential",
        /// Its credential is unknown or wrong.
        WrongCredential = "wrong_credential",
        /// Its credential has expired.
        Expired = "expired",
        /// Its credential has a lower role.
        Role = "role",
        /// It is accepted on this node only.
        LocalOnly = "local_only",
        /// A browser sent it for a page of another site.
        CrossSite = "cross_site",
        /// There were too many requests.
        RateLimit = "rate_limit",
        /// Too many passwords were to be verified at once.
        Busy = "busy",
        /// Its address has too many connections, and none of them idle.
        Connections = "connections",
        /// Its address does not read responses: too many are pending, or one for too long.
        Unread = "unread",
    }
}
