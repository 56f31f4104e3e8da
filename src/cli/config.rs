//! `umawarden config`: checks the files of the daemon.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Exit;
use crate::access::{self, AccessError, AccessSummary};
use crate::cli::output::{errln, outln};
use crate::clients::files;
use crate::config::flags::RunFlags;
use crate::config::mistake::Mistakes;
use crate::config::reader::{LoadError, LoadedConfig, check_paths, config_file, environment, load};
use crate::config::settings::Settings;
use crate::daemon::{access_files, collector};
use crate::model::{DeclaredRestart, RestartMatch, counted, mode_text, off_text};
use crate::supervisors::docker::USER_FOLDERS;
use crate::supervisors::user_systemd;

/// Arguments of `umawarden config`.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    #[command(subcommand)]
    what: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Read everything that `umawarden run` would with the same flags, and print the mistakes.
    Check(Box<ConfigCheckArguments>),
}

/// Arguments of `umawarden config check`.
#[derive(Debug, Args)]
#[command(after_help = AFTER_HELP)]
struct ConfigCheckArguments {
    /// The flags of `umawarden run`.
    #[command(flatten)]
    flags: RunFlags,

    /// One JSON object.
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Reads the configuration, the rules, the web configuration (--web.config.file) with its \
certificates, and the tokens file (--web.tokens.file) with what it names. It listens nowhere and \
changes nothing. Keys and certificates for other servers are read when they are needed; those that \
cannot be read now are remarks (mind: …), and no mistakes. So are users under restarts that do not \
exist or have no systemd now. `umawarden rules check` checks rules in depth.

Exit codes: 0 all fine, 1 mistakes, 2 a file cannot be read.";

/// Runs the command.
pub fn execute(arguments: &ConfigArguments) -> anyhow::Result<Exit> {
    let ConfigCommand::Check(arguments) = &arguments.what;
    let checked = check(&arguments.flags);
    if arguments.json {
        outln!("{}", as_json(&checked));
    } else {
        print(&checked);
    }
    Ok(match &checked {
        Ok(_) => Exit::Fine,
        Err(ConfigProblem { mistakes: Some(_), .. }) => Exit::Findings,
        Err(_) => Exit::Unusable,
    })
}

/// What was read without a mistake.
struct CheckedConfig {
    loaded: LoadedConfig,
    access: AccessSummary,
    /// The configuration file, if there is one.
    file: Option<PathBuf>,
}

/// A mistake.
struct ConfigProblem {
    text: String,
    /// Mistakes with a position.
    mistakes: Option<Mistakes>,
}

impl From<LoadError> for ConfigProblem {
    fn from(error: LoadError) -> Self {
        let text = error.to_string();
        let mistakes = match error {
            LoadError::Unreadable(_) => None,
            LoadError::Settings(mistakes) | LoadError::Rules(mistakes) => Some(mistakes),
        };
        Self { text, mistakes }
    }
}

impl From<AccessError> for ConfigProblem {
    fn from(error: AccessError) -> Self {
        let text = error.to_string();
        let mistakes = match error {
            AccessError::Unreadable(_) | AccessError::Failed(_) => None,
            AccessError::WebConfig(mistakes) | AccessError::Tokens(mistakes) => Some(mistakes),
        };
        Self { text, mistakes }
    }
}

fn check(flags: &RunFlags) -> Result<CheckedConfig, ConfigProblem> {
    let environment = environment();
    let mut loaded = load(flags, &environment)?;
    check_paths(&loaded.settings.path)?;
    loaded.remarks.extend(off_text(&loaded.rules.shipped_off));
    loaded.remarks.extend(of_other_servers(&loaded.settings));
    loaded.remarks.extend(of_users(&loaded.settings, Path::new(USER_FOLDERS)));
    let access = access::check(&access_files(&loaded.settings), Timestamp::now())?;
    let file = config_file(flags, &environment).map(Path::to_owned);
    Ok(CheckedConfig { loaded, access, file })
}

/// The remarks of a check with these flags; the error is the text of its mistakes.
pub(super) fn remarks_of(flags: &RunFlags) -> Result<Vec<String>, String> {
    match check(flags) {
        Ok(CheckedConfig { loaded, access, .. }) => {
            Ok(loaded.remarks.into_iter().chain(access.remarks).collect())
        }
        Err(wrong) => Err(wrong.text),
    }
}

/// Current mistakes in the files for requests to other servers.
fn of_other_servers(settings: &Settings) -> Vec<String> {
    let mut mistakes = Vec::new();
    let mut add = |whose: &str, wrong: Vec<String>| {
        mistakes.extend(wrong.into_iter().map(|why| format!("{whose}: {why}")));
    };
    if let Some(cluster) = &settings.cluster {
        add("cluster", files::of_access(&cluster.access));
        let server = cluster.prometheus.as_ref();
        add("cluster.prometheus", server.map_or(vec![], |it| files::of_access(&it.access)));
    }
    for server in &settings.alertmanager.sending.to {
        add(&format!("alertmanager.send {}", server.url), files::of_alertmanager(server));
    }
    if let Some(otlp) = &settings.otlp {
        add("otlp", files::of_collector(collector(otlp)));
    }
    if let Some(lock) = &settings.guard_rails.reboot.lock {
        add("reboot.lock", files::of_lock(lock).into_iter().collect());
    }
    for engine in &settings.engines {
        add(&format!("engine {}", engine.name), files::of_engine(&engine.keys));
    }
    mistakes
}

/// Units of users' own systemds that cannot be restarted now. What this user may not see is left
/// out.
fn of_users(settings: &Settings, folders: &Path) -> Vec<String> {
    let of = |entry: &DeclaredRestart| {
        let RestartMatch::UnitOfUser(user, unit) = &entry.matches else { return None };
        let why = match user_systemd::uid_of(user) {
            Ok(id) => match user_systemd::find(folders, id) {
                Err(error) if error.kind() != io::ErrorKind::PermissionDenied => error.to_string(),
                Ok(()) | Err(_) => return None,
            },
            Err(unknown) => unknown,
        };
        Some(format!("restarts: unit {unit} of {user}: {why}"))
    };
    settings.restarts.iter().filter_map(of).collect()
}

fn rules(loaded: &LoadedConfig) -> usize {
    loaded.rules.groups.iter().map(|group| group.rules.len()).sum()
}

fn print(checked: &Result<CheckedConfig, ConfigProblem>) {
    let CheckedConfig { loaded, access, file } = match checked {
        Ok(checked) => checked,
        Err(wrong) => {
            errln!("umawarden: {}", wrong.text.trim_end());
            return;
        }
    };
    let mode = mode_text(loaded.settings.mode, &loaded.rules.guard_rails.enforced);
    outln!("fine: {}, mode {mode}", counted(rules(loaded) as u64, "rule"));
    match file {
        Some(file) => outln!("read {}", file.display()),
        None => outln!("no configuration file was read: give it with --config.file"),
    }
    match access.certificate_expires {
        Some(expires) => outln!("TLS, with a certificate that is good until {expires}"),
        None => outln!("no TLS"),
    }
    let entries = match access.entries {
        0 => "no tokens: over the network people can read, and give no orders".to_owned(),
        entries => format!("{} in the tokens file", counted_entries(entries)),
    };
    outln!("{}, {entries}", counted(access.users as u64, "user"));
    for remark in loaded.remarks.iter().chain(&access.remarks) {
        outln!("mind: {remark}");
    }
}

fn counted_entries(entries: usize) -> String {
    if entries == 1 { "1 entry".to_owned() } else { format!("{entries} entries") }
}

fn as_json(checked: &Result<CheckedConfig, ConfigProblem>) -> Value {
    match checked {
        Ok(CheckedConfig { loaded, access, file }) => json!({
            "fine": true,
            "config_file": file.as_ref().map(|file| file.display().to_string()),
            "rules": rules(loaded),
            "mode": loaded.settings.mode.name(),
            "enforce": loaded.rules.guard_rails.enforced,
            "tls": access.has_tls,
            "certificate_expires": access.certificate_expires.map(|expires| expires.to_string()),
            "users": access.users,
            "token_entries": access.entries,
            "remarks": loaded.remarks.iter().chain(&access.remarks).collect::<Vec<_>>(),
        }),
        Err(ConfigProblem { text, mistakes }) => json!({
            "fine": false,
            "error": text,
            "mistakes": mistakes.as_ref().map(|mistakes| &mistakes.0),
        }),
    }
}
