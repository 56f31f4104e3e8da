//! Who comes in over the network, what they may do there, and why somebody may not.

use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;

use super::names::named;

named! {
    /// What somebody may do over the network; who may do more may do less, too.
    pub enum Role {
        /// Look.
        Read = "read",
        /// Keep things from being done, and end that: silences, pauses, notes, reloads.
        Operate = "operate",
        /// Have things done that hold without a person: approve, reboot, reset a breaker.
        Remedy = "remedy",
    }
}

/// What somebody on the network is known by; never a secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Credential {
    /// A bearer token of that name.
    Token(Arc<str>),
    /// A client certificate that is good for that name.
    Certificate(Arc<str>),
    /// The user of that name, and their password.
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

/// Who orders something, as their connection shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OrderedBy {
    /// Somebody on this node who may open the control socket.
    Local {
        /// The kernel's word for who that is.
        uid: u32,
    },
    /// Somebody on the network.
    Remote {
        /// What they have shown.
        credential: Credential,
        /// Where they come from.
        address: IpAddr,
    },
}

named! {
    /// Why a request that came over the network was refused at the door.
    pub enum RefusalReason {
        /// It needs a credential, and has none.
        NoCredential = "no_credential",
        /// What it shows is nobody's, or wrong.
        WrongCredential = "wrong_credential",
        /// What it shows was good once.
        Expired = "expired",
        /// What it shows is good for less.
        Role = "role",
        /// It is answered on this node alone.
        LocalOnly = "local_only",
        /// A page of another site has made a browser send it.
        CrossSite = "cross_site",
        /// There were too many requests.
        RateLimit = "rate_limit",
        /// Too many passwords were to be verified at once.
        Busy = "busy",
        /// Its address has too many connections, and none of them idle.
        Connections = "connections",
        /// Its address has not read answers: too many wait, or one has waited too long.
        Unread = "unread",
    }
}
