//! Who comes in over the network, what they may do there, and why somebody may not.

use core::net::IpAddr;
use std::fmt;
use std::sync::Arc;

/// What somebody may do over the network; who may do more may do less, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    Read,
    /// Keep things from being done, and end that: silences, pauses, notes, reloads.
    Operate,
    /// Have things done that hold without a person: approve, reboot, reset a breaker.
    Remedy,
}

impl Role {
    /// All of them, the least first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Operate, Self::Remedy];

    /// As in files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Remedy => "remedy",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
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

/// Why a request that came over the network was refused at the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalReason {
    /// It needs a credential, and has none.
    NoCredential,
    /// What it shows is nobody's, or wrong.
    WrongCredential,
    /// What it shows was good once.
    Expired,
    /// What it shows is good for less.
    Role,
    /// It is answered on this node alone.
    LocalOnly,
    /// A page of another site has made a browser send it.
    CrossSite,
    /// There were too many requests.
    RateLimit,
    /// Too many passwords were to be verified at once.
    Busy,
    /// Its address has too many connections, and none of them idle.
    Connections,
    /// Its address has not read answers: too many wait, or one has waited too long.
    Unread,
}

impl RefusalReason {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::NoCredential,
        Self::WrongCredential,
        Self::Expired,
        Self::Role,
        Self::LocalOnly,
        Self::CrossSite,
        Self::RateLimit,
        Self::Busy,
        Self::Connections,
        Self::Unread,
    ];

    /// As in labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoCredential => "no_credential",
            Self::WrongCredential => "wrong_credential",
            Self::Expired => "expired",
            Self::Role => "role",
            Self::LocalOnly => "local_only",
            Self::CrossSite => "cross_site",
            Self::RateLimit => "rate_limit",
            Self::Busy => "busy",
            Self::Connections => "connections",
            Self::Unread => "unread",
        }
    }
}
