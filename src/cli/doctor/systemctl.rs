//! Asks systemd of units, by `systemctl show`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use crate::doctor::{Known, OF_OTHERS, PROPERTIES, Told, told_units};

/// Where there is such a folder, systemd runs (sd_booted(3)).
const BOOTED: &str = "/run/systemd/system";

/// How long it may take to answer. systemd itself gives callers 25 s; nobody waits for so long.
const ANSWER_TAKES: Duration = Duration::from_secs(4);

/// No answer is longer: about 1 KiB of each unit.
const MOST_BYTES: u64 = 4 << 20;

/// More are not asked for: a command line has an end.
const MOST_ASKED: usize = 512;

/// What systemd says of these units and of what they name. `program`: instead of the one in PATH,
/// whether or not systemd seems to run.
pub(super) fn ask(program: Option<&Path>, units: Vec<String>) -> Known<Told> {
    let program = match program {
        Some(program) => program.to_owned(),
        None if Path::new(BOOTED).is_dir() => PathBuf::from("systemctl"),
        None => return Known::Absent,
    };
    match told(&program, units) {
        Ok(told) => Known::Is(told),
        Err(why) => Known::Not(why),
    }
}

fn told(program: &Path, mut units: Vec<String>) -> Result<Told, String> {
    // Of a template, nobody can tell before it has a name.
    units.retain(|name| !name.contains("@."));
    units.truncate(MOST_ASKED);
    if units.is_empty() {
        return Ok(Told::default());
    }
    let units = told_units(&show(program, &PROPERTIES, &units)?, &units)?;
    let named: BTreeSet<&String> = units.values().flat_map(|unit| &unit.named).collect();
    let named: Vec<String> = named.into_iter().take(MOST_ASKED).cloned().collect();
    let mut loads = BTreeMap::new();
    if !named.is_empty() {
        let told = told_units(&show(program, &OF_OTHERS, &named)?, &named)?;
        loads.extend(told.into_iter().map(|(name, unit)| (name, unit.load_state)));
    }
    Ok(Told { units, loads })
}

/// Its answer; it is ended where it takes too long.
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
            ErrorKind::NotFound => format!("systemd runs here, and there is no {name}"),
            _ => format!("{name} cannot be run: {error}"),
        })?;
    let (to, answer) = channel();
    if let Some(output) = child.stdout.take() {
        thread::spawn(move || {
            let mut text = Vec::new();
            let read = output.take(MOST_BYTES + 1).read_to_end(&mut text);
            // Whoever waits may have given up.
            let _gone = to.send(read.map(|_| text));
        });
    }
    let answered = answer.recv_timeout(ANSWER_TAKES);
    // What has answered is about to end; what has not, or says more than anybody asked for, is not.
    let ended = match &answered {
        Ok(Ok(text)) if text.len() as u64 <= MOST_BYTES => child.wait(),
        _ => child.kill().and_then(|()| child.wait()),
    };
    let text = match answered {
        Err(_) => {
            let seconds = ANSWER_TAKES.as_secs();
            return Err(format!("{name} has not answered within {seconds} s"));
        }
        Ok(Err(error)) => return Err(format!("what {name} says cannot be read: {error}")),
        Ok(Ok(text)) if text.len() as u64 > MOST_BYTES => {
            return Err(format!("{name} says more than {} MiB", MOST_BYTES >> 20));
        }
        Ok(Ok(text)) => text,
    };
    match ended {
        Ok(status) if status.success() => Ok(String::from_utf8_lossy(&text).into_owned()),
        Ok(status) => Err(format!("{name} show has failed ({status}): is systemd at work?")),
        Err(error) => Err(format!("{name} cannot be waited for: {error}")),
    }
}
