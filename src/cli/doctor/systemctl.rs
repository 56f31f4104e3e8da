//! Queries systemd about units, by `systemctl show`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::doctor::{Fact, OF_OTHERS, PROPERTIES, SystemdState, unit_states};

/// This folder exists if systemd runs (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// The timeout of a query. That of systemd itself is 25 s.
const QUERY_TIMEOUT: Duration = Duration::from_secs(4);

/// Limit of the output, which has about 1 KiB for each unit.
const MOST_BYTES: u64 = 4 << 20;

/// Units in one query: the command line has a limit.
const MOST_UNITS: usize = 512;

/// The state of these units and of the units that they name. A given `program` is used instead of
/// the one in PATH, and even if systemd does not seem to run.
pub(super) fn query(program: Option<&Path>, units: Vec<String>) -> Fact<SystemdState> {
    let program = match program {
        Some(program) => program.to_owned(),
        None if Path::new(BOOTED).is_dir() => PathBuf::from("systemctl"),
        None => return Fact::Absent,
    };
    match states(&program, units) {
        Ok(states) => Fact::Is(states),
        Err(why) => Fact::Unknown(why),
    }
}

fn states(program: &Path, mut units: Vec<String>) -> Result<SystemdState, String> {
    // A template has no state without an instance.
    units.retain(|name| !name.contains("@."));
    units.truncate(MOST_UNITS);
    if units.is_empty() {
        return Ok(SystemdState::default());
    }
    let units = unit_states(&show(program, &PROPERTIES, &units)?, &units)?;
    let named: BTreeSet<&String> = units.values().flat_map(|unit| &unit.named).collect();
    let named: Vec<String> = named.into_iter().take(MOST_UNITS).cloned().collect();
    let mut loads = BTreeMap::new();
    if !named.is_empty() {
        let named = unit_states(&show(program, &OF_OTHERS, &named)?, &named)?;
        loads.extend(named.into_iter().map(|(name, unit)| (name, unit.load_state)));
    }
    Ok(SystemdState { units, loads })
}

/// The output of `systemctl show`. It is killed after the timeout.
fn show(program: &Path, properties: &[&str], units: &[String]) -> Result<String, String> {
    let name = program.display();
    let mut child = Command::new(program)
        .args(["show", "--no-pager", "--property"])
        .arg(properties.join(","))
        .arg("--")
        .args(units)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("systemd runs, but {name} is missing"),
            _ => format!("cannot run {name}: {error}"),
        })?;
    let (to, answer) = channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            let mut text = Vec::new();
            let read = output.take(MOST_BYTES + 1).read_to_end(&mut text);
            // The receiver may have timed out.
            let _ = to.send(read.map(|_| text));
        });
    }
    let answered = answer.recv_timeout(QUERY_TIMEOUT);
    // It has closed its output and exits. Otherwise it hangs or writes too much, and is killed.
    let ended = match &answered {
        Ok(Ok(text)) if text.len() as u64 <= MOST_BYTES => child.wait(),
        _ => child.kill().and_then(|()| child.wait()),
    };
    let text = match answered {
        Err(_) => {
            let seconds = QUERY_TIMEOUT.as_secs();
            return Err(format!("{name} did not respond within {seconds} s"));
        }
        Ok(Err(error)) => return Err(format!("cannot read the output of {name}: {error}")),
        Ok(Ok(text)) if text.len() as u64 > MOST_BYTES => {
            return Err(format!("the output of {name} exceeds {} MiB", MOST_BYTES >> 20));
        }
        Ok(Ok(text)) => text,
    };
    match ended {
        Ok(status) if status.success() => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok(status) => Err(format!("{name} show failed ({status}); check that systemd runs")),
        Err(error) => Err(format!("cannot wait for {name}: {error}")),
    }
}
