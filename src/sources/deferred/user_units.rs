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
    unknown: UnknownUsers,
}

/// Why the user of a unit is unknown.
type UnknownUsers = BTreeMap<(EngineUser, Arc<str>), String>;

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
    /// As it was logged last.
    unknown: UnknownUsers,
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
        let (users, ids, unknown) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { folders, declared, reporter, users, ids, unknown, no_services }
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
            let Found { units, ids, unknown } = found.unwrap_or_default();
            self.ids.extend(ids);
            log_new(&self.unknown, &unknown);
            self.unknown = unknown;
            self.declare(units);
            let changed = self.declared.changed();
            let changed = match self.unknown.is_empty() {
                false => timeout(AGAIN, changed).await.unwrap_or(Ok(())),
                true => changed.await,
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
                    found.unknown.insert((user.clone(), Arc::clone(name)), error);
                }
            }
        }
        found
    }
}

/// Logs what is not as before, since each lookup finds the same users unknown. Returns how many.
fn log_new(before: &UnknownUsers, now: &UnknownUsers) -> usize {
    let mut logged = 0;
    for (place, error) in now.iter().filter(|(place, error)| before.get(*place) != Some(*error)) {
        let (_, unit) = place;
        tracing::warn!(%unit, %error, "deferred restarts of a user unavailable");
        logged += 1;
    }
    logged
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
        assert!(found.unknown.contains_key(&(gone.clone(), Arc::from("c.service"))));
        assert_eq!(log_new(&BTreeMap::new(), &found.unknown), 1);
        assert_eq!(log_new(&found.unknown, &found.unknown), 0, "each minute");
        assert_eq!(found.units.keys().collect::<Vec<_>>(), [&0]);
        let units: Vec<_> = found.units[&0].iter().map(|entry| entry.matches.clone()).collect();
        let unit = |name: &str| RestartMatch::Unit(name.into());
        assert_eq!(units, [unit("a.service"), unit("b.service")]);
        let found = Found::look_up(&declared, &BTreeMap::from([(gone, 7)]));
        assert!(found.unknown.is_empty());
        assert_eq!(found.units[&7].len(), 1);
    }
}
