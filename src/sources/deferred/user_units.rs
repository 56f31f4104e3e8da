//! Units of users' own systemds (`systemctl --user`) that the configuration names. One thread
//! queries all of them, each with its deadlines, so that none waits for another user's.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{LocalSet, spawn_blocking, spawn_local};
use tokio::time::timeout;

use super::systemd::SystemdWatch;
use super::{Reporter, TrackedServices};
use crate::model::{DeclaredRestart, EngineUser, RestartMatch};
use crate::supervisors::systemd::Bus;
use crate::supervisors::user_systemd::uid_of;

/// Users that do not exist are looked up again after this time.
const AGAIN: Duration = Duration::from_secs(60);

/// The users and their units in the configuration.
#[derive(Debug, Default)]
struct Found {
    /// As entries for a unit of that user's systemd.
    units: BTreeMap<u32, Vec<DeclaredRestart>>,
    /// The number of each user.
    ids: BTreeMap<EngineUser, u32>,
    /// A user is unknown.
    is_incomplete: bool,
}

/// The thread that queries the systemds of users.
#[derive(Debug)]
pub(super) struct UserUnits {
    folders: PathBuf,
    declared: watch::Receiver<Arc<[DeclaredRestart]>>,
    reporter: Reporter,
    /// The units of each user that has or had some.
    users: BTreeMap<u32, watch::Sender<Arc<[DeclaredRestart]>>>,
    /// The number of each user when that was last known: a directory service may fail.
    ids: BTreeMap<EngineUser, u32>,
    /// Ends of other services are not read.
    no_services: watch::Sender<TrackedServices>,
}

impl UserUnits {
    /// `folders`: the folder of users' folders for the time of their sessions.
    pub(super) fn new(
        folders: PathBuf,
        declared: watch::Receiver<Arc<[DeclaredRestart]>>,
        reporter: Reporter,
    ) -> Self {
        let (no_services, _) = watch::channel(Arc::default());
        let (users, ids) = (BTreeMap::new(), BTreeMap::new());
        Self { folders, declared, reporter, users, ids, no_services }
    }

    /// Runs until the loop has ended.
    pub(super) fn run(&mut self) {
        let effect = "cannot query the systemds of users";
        super::block_on(LocalSet::new().run_until(self.watch()), effect);
    }

    async fn watch(&mut self) {
        loop {
            let declared = Arc::clone(&self.declared.borrow_and_update());
            // The lookup of a name may wait for a directory service.
            let known = self.ids.clone();
            let found = spawn_blocking(move || Found::look_up(&declared, &known)).await;
            // It fails only if it panics.
            let Found { units, ids, is_incomplete } = found.unwrap_or_default();
            self.ids.extend(ids);
            self.declare(units);
            let changed = self.declared.changed();
            let changed = match is_incomplete {
                true => timeout(AGAIN, changed).await.unwrap_or(Ok(())),
                false => changed.await,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn declare(&mut self, mut units: BTreeMap<u32, Vec<DeclaredRestart>>) {
        for (user, declared) in &self.users {
            let now = units.remove(user).unwrap_or_default();
            declared.send_if_modified(|known| {
                let has_changed = **known != *now;
                if has_changed {
                    *known = Arc::from(now);
                }
                has_changed
            });
        }
        for (user, units) in units {
            let (declare, declared) = watch::channel(Arc::from(units));
            let bus = Bus::of_user(&self.folders, user);
            let receivers = (declared, self.no_services.subscribe());
            let mut of_user = SystemdWatch::new(bus, receivers, self.reporter.clone());
            spawn_local(async move { of_user.watch().await });
            self.users.insert(user, declare);
        }
    }
}

impl Found {
    /// `known`: the numbers of users as they were last known.
    fn look_up(declared: &[DeclaredRestart], known: &BTreeMap<EngineUser, u32>) -> Self {
        let mut found = Self::default();
        for entry in declared {
            let RestartMatch::UnitOfUser(user, name) = &entry.matches else { continue };
            match uid_of(user).or_else(|error| known.get(user).copied().ok_or(error)) {
                Ok(id) => {
                    let matches = RestartMatch::Unit(Arc::clone(name));
                    let entry = DeclaredRestart { matches, ..entry.clone() };
                    found.units.entry(id).or_default().push(entry);
                    found.ids.insert(user.clone(), id);
                }
                Err(error) => {
                    tracing::warn!(unit = %name, %error, "deferred restarts of a user unavailable");
                    found.is_incomplete = true;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{RestartLimits, StartNeed};

    fn entry(user: EngineUser, unit: &str) -> DeclaredRestart {
        DeclaredRestart {
            matches: RestartMatch::UnitOfUser(user, unit.into()),
            need: StartNeed::default(),
            limits: RestartLimits::default(),
            mode: None,
        }
    }

    #[test]
    fn a_user_is_the_same_by_name_and_by_number_and_stays_known() {
        let gone = EngineUser::Name("no-such-user".into());
        let declared = [
            entry(EngineUser::Name("root".into()), "a.service"),
            entry(EngineUser::Id(0), "b.service"),
            entry(gone.clone(), "c.service"),
        ];
        let found = Found::look_up(&declared, &BTreeMap::new());
        assert!(found.is_incomplete);
        assert_eq!(found.units.keys().collect::<Vec<_>>(), [&0]);
        let units: Vec<_> = found.units[&0].iter().map(|entry| entry.matches.clone()).collect();
        let unit = |name: &str| RestartMatch::Unit(name.into());
        assert_eq!(units, [unit("a.service"), unit("b.service")]);
        let found = Found::look_up(&declared, &BTreeMap::from([(gone, 7)]));
        assert!(!found.is_incomplete);
        assert_eq!(found.units[&7].len(), 1);
    }
}
