//! `umawarden print unit`: units of the daemon and of engines.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};

use crate::config::measure::{duration_within, size_bytes};
use crate::model::{bytes_text, duration_text};

/// Arguments of `umawarden print unit`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct UnitArguments {
    /// Memory that the engine will take.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "command")]
    need: Option<String>,

    /// Memory that it needs in free blocks of at least 2 MiB.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "need")]
    contiguous: Option<String>,

    /// How long each start may wait for memory.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = timeout)]
    timeout: Duration,

    /// The name of the engine [default: the program's name].
    #[arg(long, value_name = "NAME", value_parser = name, requires = "command")]
    name: Option<String>,

    /// The engine's command, behind `--`.
    #[arg(last = true, value_name = "COMMAND", requires = "need")]
    command: Vec<OsString>,
}

/// Remedies with the same needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum RemedyGroup {
    /// drop_caches, compact_memory, reclaim, set_sysctl, throttle_readahead.
    Memory,
    /// evict_checkpoint.
    Evict,
    /// empty_cache, and health, of engines in container networks.
    Engines,
    /// stop_engine.
    Stop,
    /// Names, stops and ends of containers of rootless Docker and Podman; deferred restarts and
    /// stops of users' units.
    Rootless,
    /// reboot.
    Reboot,
}

impl RemedyGroup {
    fn drop_in(self) -> &'static str {
        match self {
            Self::Memory => include_str!("../../../packaging/systemd/drop-ins/memory.conf"),
            Self::Evict => include_str!("../../../packaging/systemd/drop-ins/evict.conf"),
            Self::Engines => include_str!("../../../packaging/systemd/drop-ins/engines.conf"),
            Self::Stop => include_str!("../../../packaging/systemd/drop-ins/stop.conf"),
            Self::Rootless => include_str!("../../../packaging/systemd/drop-ins/rootless.conf"),
            Self::Reboot => include_str!("../../../packaging/systemd/drop-ins/reboot.conf"),
        }
    }
}

const DAEMON: &str = include_str!("../../../packaging/systemd/umawarden.service");
/// The program's path in the packaged unit.
const PACKAGED: &str = "/usr/bin/umawarden";

/// The first lines of a drop-in.
const DROP_IN: &str = "\
# /etc/systemd/system/umawarden.service.d/acting.conf
# Then: sudo systemctl daemon-reload && sudo systemctl restart umawarden
";

/// The section of the unit that all drop-ins change.
const SECTION: &str = "[Service]\n";

const AFTER_HELP: &str = "\
Without a command: the unit of the daemon. With one: a unit that waits at the gate before each \
start, runs the command under `umawarden launch`, is started again when it dies, and rests when it \
has died too often. Put it where its first line says, and: sudo systemctl daemon-reload.

  umawarden print unit | sudo tee /etc/systemd/system/umawarden.service
  umawarden print unit --need 90GiB --name chat -- vllm serve MODEL

Exit codes: 0 printed, 2 the arguments cannot be used.";

/// In addition to the gate's timeout.
const MARGIN: Duration = Duration::from_secs(60);

/// Attempts to start. With this timeout each, and loading, they take at least this time.
const STARTS: u32 = 5;
const LOADS_WITHIN: Duration = Duration::from_secs(600);

fn size(text: &str) -> Result<String, String> {
    match size_bytes(text)? {
        0 => Err("an engine needs more than nothing".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

fn timeout(text: &str) -> Result<Duration, String> {
    duration_within(text, Duration::from_secs(10), Duration::from_secs(86_400))
}

fn name(text: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
    let is_name = (1..=100).contains(&text.len()) && text.bytes().all(fits);
    is_name
        .then(|| text.to_owned())
        .ok_or_else(|| "a unit's name has letters, digits, and any of - _ . :".to_owned())
}

/// The unit.
///
/// # Errors
/// A word of the command is invalid in a unit.
pub(super) fn text(unit: &UnitArguments) -> anyhow::Result<String> {
    let own = env::current_exe().context("cannot find where this program is")?;
    let own = word(own.as_os_str())?;
    match (&unit.need, unit.command.first()) {
        (Some(need), Some(program)) => engine(unit, &own, need, program),
        _ => Ok(daemon(&own)),
    }
}

/// The packaged unit with the path of this program.
fn daemon(own: &str) -> String {
    format!("# /etc/systemd/system/umawarden.service\n{}", DAEMON.replace(PACKAGED, own))
}

/// What the remedies of these groups need in addition to the unit.
pub(super) fn drop_in(groups: &[RemedyGroup]) -> String {
    let mut text = format!("{DROP_IN}{SECTION}");
    let all = RemedyGroup::value_variants();
    let groups = if groups.is_empty() { all } else { groups };
    for group in all.iter().filter(|group| groups.contains(group)) {
        text.push_str(&group.drop_in().replace(SECTION, ""));
    }
    text
}

fn engine(unit: &UnitArguments, own: &str, need: &str, program: &OsStr) -> anyhow::Result<String> {
    let program_name = || Path::new(program).file_name()?.to_str().map(str::to_owned);
    let named = unit.name.clone().or_else(program_name);
    let name = named.filter(|text| name(text).is_ok());
    let name = name.context("the program's name is none for a unit: give one with --name")?;
    let contiguous = unit.contiguous.as_ref().map(|size| format!(" --contiguous {size}"));
    let contiguous = contiguous.unwrap_or_default();
    let waits = duration_text(unit.timeout);
    let start = (unit.timeout + MARGIN).as_secs();
    let within = ((unit.timeout + LOADS_WITHIN) * STARTS).as_secs();
    let amount = bytes_text(size_bytes(need).unwrap_or_default());
    let mut words = vec![word(found(program).as_os_str())?];
    for argument in unit.command.iter().skip(1) {
        words.push(word(argument)?);
    }
    let command = words.join(" ");
    Ok(format!(
        "\
# /etc/systemd/system/{name}.service
[Unit]
Description={name}, started when there are {amount} for it
Wants=network-online.target
After=network-online.target umawarden.service
# On a node that has this target (DGX OS), GPUs are reset and configured before it:
# Wants=nvidia-gpu-reset.target
# After=nvidia-gpu-reset.target
# It rests when it has died {STARTS} times; systemctl reset-failed {name} lets it try again.
StartLimitIntervalSec={within}s
StartLimitBurst={STARTS}

[Service]
Type=exec
# Until memory is there, and nothing of its predecessor is left.
ExecStartPre={own} gate --need {need}{contiguous} --timeout {waits}
# Says what it died of, and ends with a failure when one of its processes was killed.
ExecStart={own} launch --name {name} -- {command}
# Longer than the gate waits.
TimeoutStartSec={start}s
Restart=on-failure
RestartSec=10s
# 143: it ended on SIGTERM.
SuccessExitStatus=143
# The launcher passes the signal on; what is left after that is killed with it.
KillMode=mixed
TimeoutStopSec=2min

[Install]
WantedBy=multi-user.target
"
    ))
}

/// The absolute path of a program, since systemd's search path is not the user's.
fn found(program: &OsStr) -> PathBuf {
    let path = Path::new(program);
    if path.components().count() > 1 {
        return std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let paths = env::split_paths(&folders).map(|folder| folder.join(path));
    paths.into_iter().find(|path| path.is_file()).unwrap_or_else(|| path.to_owned())
}

/// One word of a command line in a unit, quoted where it must be (systemd.service(5)).
fn word(text: &OsStr) -> anyhow::Result<String> {
    let text = text.to_str().context("a word of the command is no UTF-8")?;
    if text.contains(char::is_control) {
        anyhow::bail!("a word of the command has a control character: {text:?}");
    }
    let escaped =
        text.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,+@%$~^".contains(c);
    let is_plain_word = !escaped.is_empty() && escaped.chars().all(is_plain);
    Ok(if is_plain_word { escaped } else { format!("\"{escaped}\"") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drop_ins_of_several_groups_have_one_section() {
        let text = drop_in(&[RemedyGroup::Stop, RemedyGroup::Evict]);
        assert_eq!(text.matches("[Service]").count(), 1, "{text}");
        assert!(text.starts_with("# /etc/systemd/system/umawarden.service.d/acting.conf\n"));
        for key in ["CapabilityBoundingSet=CAP_KILL\n", "CAP_SYS_NICE CAP_FOWNER\n"] {
            let (before, _) = text.split_once(key).unwrap_or_else(|| panic!("{text}"));
            assert!(before.contains("[Service]\n"), "{text}");
        }
    }

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        let quoted = |text: &str| word(OsStr::new(text)).unwrap();
        assert_eq!(quoted("--port=8000"), "--port=8000");
        assert_eq!(quoted("a b"), "\"a b\"");
        assert_eq!(quoted("50%"), "50%%");
        assert_eq!(quoted("$HOME"), "$$HOME");
        assert_eq!(quoted("{\"a\": 1}"), "\"{\\\"a\\\": 1}\"");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted(";"), "\";\"", "alone it would part two commands");
        assert!(word(OsStr::new("a\nb")).is_err());
    }
}
