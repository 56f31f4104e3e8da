//! The containers that possible engine processes claim to be in.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::identity::Membership;
use kernel_faults::container_id;

/// The most claimed containers.
const MAX_CLAIMED: usize = 1024;
/// The most users whose own runtimes are queried, and the most claimed containers of one.
const MAX_USERS: usize = 64;
const MAX_CLAIMED_OF_USER: usize = 64;

/// The containers of a runtime whose first process is needed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// Ids of the containers.
    pub(super) ids: BTreeSet<Arc<str>>,
    /// Any, since the control group of a process names no container.
    pub(super) is_any: bool,
}

/// The claims of all runtimes of the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllClaims {
    /// Ids that may be of the system's runtimes.
    pub(super) system: BTreeSet<Arc<str>>,
    /// Those of users' own runtimes.
    pub(super) of_users: BTreeMap<u32, Claims>,
    /// The ids that no runtime has confirmed.
    pub unknown: BTreeSet<Arc<str>>,
    /// The users with a process whose container is not confirmed.
    pub(super) unknown_of: BTreeSet<u32>,
}

impl Claims {
    pub(super) fn has(&self, id: &Arc<str>) -> bool {
        self.is_any || self.ids.contains(id)
    }
}

impl AllClaims {
    /// The claims of processes with these memberships.
    pub(super) fn of<'m>(members: impl Iterator<Item = &'m Membership> + Clone) -> Self {
        let mut all = Self {
            system: ids(members.clone()),
            unknown: ids(members.clone().filter(|member| !member.is_confirmed())),
            ..Self::default()
        };
        for member in members {
            let is_of_system = member.is_confirmed() && member.runtime_user().is_none();
            let Some(user) = member.user.filter(|_| !is_of_system) else { continue };
            if all.of_users.len() >= MAX_USERS && !all.of_users.contains_key(&user) {
                continue;
            }
            let of_user = all.of_users.entry(user).or_default();
            match member.path.as_deref().and_then(container_id) {
                Some(id) if of_user.ids.len() < MAX_CLAIMED_OF_USER => {
                    of_user.ids.insert(id.into());
                }
                Some(_) => {}
                None => of_user.is_any = true,
            }
            if !member.is_confirmed() {
                all.unknown_of.insert(user);
            }
        }
        all
    }
}

/// Names from users come last, so that they displace no confirmed ones.
fn ids<'m>(members: impl Iterator<Item = &'m Membership> + Clone) -> BTreeSet<Arc<str>> {
    let of = |is_of_user: bool| {
        let members = members.clone().filter(move |one| one.is_of_user() == is_of_user);
        members.filter_map(|member| member.container.clone()).collect::<BTreeSet<_>>()
    };
    of(false).into_iter().chain(of(true)).take(MAX_CLAIMED).collect()
}
