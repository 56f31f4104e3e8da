//! A stop of a service by its user's systemd, so that `Restart=` does not start it again.

use std::path::Path;
use std::time::Duration;

use super::family::Processes;
use super::handle::PidHandle;
use super::{Stop, StopError};
use crate::model::{Target, UserUnit};
use crate::parse::process::{group_of_user_unit, user_unit};
use crate::supervisors::systemd::{Bus, Systemd, text};
use crate::supervisors::{NotEnded, within};
use crate::sys::descriptors;

/// The number of descriptors of a tokio runtime, of the socket with its folders, and of the relay
/// of its messages.
const RUNTIME_TAKES: usize = 12;

/// What a user's systemd does with a service whose processes are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitEnd {
    /// It stops the service, and starts it again after no end.
    Stopped,
    /// It leaves the service ended after any end (`Restart=no`), and was not asked to stop it: a
    /// deferred restart would take that for a stop by a person.
    LeftEnded,
}

impl Stop<'_> {
    /// Asks the systemd of a user to stop the service that the engine runs in. `again` becomes what
    /// is known of its next start.
    pub(super) fn ask_users_systemd(
        &self,
        handles: &[PidHandle],
        patience: Duration,
        again: &mut Option<String>,
    ) -> Result<(), StopError> {
        let Some(unit) = &self.engine.user_unit else { return Ok(()) };
        let Some(group) = self.own_user_group(unit, handles)? else { return Ok(()) };
        let UserUnit { user, name } = unit;
        *again = match stop(self.user_folders, unit, group, patience) {
            Ok(UnitEnd::LeftEnded) => None,
            Ok(UnitEnd::Stopped) => {
                self.has_signalled.set(true);
                Some(format!(
                    "the systemd of user {user} stops {name}, and does not start it again: to \
                     undo that, as that user, `systemctl --user start {name}`"
                ))
            }
            Err(error) => {
                tracing::warn!(
                    engine = %self.engine.name, user, unit = %name, %error,
                    effect = "systemd may start it again",
                    "the user's systemd has not confirmed the stop"
                );
                Some(format!(
                    "the systemd of user {user} has not confirmed a stop of {name}, and may start \
                     it again: {error}; to keep it stopped, as that user, `systemctl --user stop \
                     {name}`"
                ))
            }
        };
        Ok(())
    }

    /// The control group of that service, if the engine's processes are in it now, and no others
    /// but their ancestors.
    fn own_user_group(
        &self,
        unit: &UserUnit,
        handles: &[PidHandle],
    ) -> Result<Option<&str>, StopError> {
        let is_its = |path: &&str| {
            Target::is_cgroup_path(path) && user_unit(path) == Some((unit.user, &*unit.name))
        };
        let path = self.engine.cgroup.as_deref().filter(is_its);
        let Some(group) = path.and_then(group_of_user_unit) else { return Ok(None) };
        let all = Processes::read(self.procfs).map_err(|error| self.unreadable(error))?;
        let residents = all.residents(self.procfs, group);
        let is_in_it = handles.iter().any(|handle| residents.contains(&handle.id.pid));
        let is_alone = is_in_it && Self::are_known(&all, residents, handles);
        if !is_alone {
            tracing::warn!(
                engine = %self.engine.name, user = unit.user, unit = %unit.name,
                effect = "only the engine's own processes are signalled",
                "the service is not the engine's alone"
            );
        }
        Ok(is_alone.then_some(group))
    }
}

/// Asks for the stop, with a time limit for the response: a systemd that waits for memory must not
/// delay the signals that need none. It may still act later.
fn stop(
    folders: &Path,
    unit: &UserUnit,
    group: &str,
    patience: Duration,
) -> Result<UnitEnd, String> {
    let bus = Bus::of_user(folders, unit.user);
    let (name, group) = (unit.name.to_string(), group.to_owned());
    let lent = descriptors::lend(RUNTIME_TAKES);
    let asked = within("systemd-user", patience, move || async move {
        let _lent = lent;
        ask(&bus, &name, &group).await
    });
    match asked {
        Ok(done) => done,
        Err(NotEnded::TimedOut) => {
            Err(format!("it has not answered within {} ms", patience.as_millis()))
        }
        Err(NotEnded::Broken(why)) => Err(why),
    }
}

/// Stops the service without waiting for its end, if its processes are those of that control group.
/// A user may make groups with the names of other services.
async fn ask(bus: &Bus, name: &str, group: &str) -> Result<UnitEnd, String> {
    let systemd = Systemd::connect(bus).await?;
    let properties = systemd.service(name).await?;
    let property = |key: &str| properties.get(key).and_then(text).unwrap_or_default();
    if property("ControlGroup") != group {
        return Err(format!("it has no service {name} in the control group {group}"));
    }
    if property("Restart") == "no" {
        return Ok(UnitEnd::LeftEnded);
    }
    systemd.stop(name).await?;
    Ok(UnitEnd::Stopped)
}
