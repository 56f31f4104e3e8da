//! Environment variables of settings: each flag of `umawarden run` has one.

use std::env;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{Args as _, Command, CommandFactory as _};

use super::{Arguments, help};
use crate::config::flags::RunFlags;

const PREFIX: &str = "UMAWARDEN_";

/// Settings that mean the same in every command.
const SHARED: [&str; 6] = [
    "config.file",
    "storage.path",
    "web.control-socket",
    "pause-file",
    "path.procfs",
    "path.sysfs",
];

/// The commands. A setting that no flag gives has the value of its variable.
pub(super) fn command() -> Command {
    with_variables(help::grouped(Arguments::command()), &settings())
}

fn with_variables(command: Command, settings: &[String]) -> Command {
    let longs: Vec<_> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
    let has_all = settings.iter().all(|setting| longs.contains(&setting.as_str()));
    let reads = |long: &str| {
        SHARED.contains(&long) || has_all && settings.iter().any(|setting| setting == long)
    };
    command
        .mut_args(|flag| match flag.get_long().filter(|long| reads(long)).map(variable) {
            // An empty one would be an empty value; Compose passes those for what is not set.
            Some(name) if env::var_os(&name).is_none_or(|value| !value.is_empty()) => {
                flag.env(name)
            }
            _ => flag,
        })
        .mut_subcommands(|command| with_variables(command, settings))
}

/// The flags of `umawarden run`, without dashes.
fn settings() -> Vec<String> {
    let run = RunFlags::augment_args(Command::new("run"));
    run.get_arguments().filter_map(|flag| flag.get_long().map(str::to_owned)).collect()
}

/// The variable of a flag: that of `web.listen-address` is `UMAWARDEN_WEB_LISTEN_ADDRESS`.
fn variable(long: &str) -> String {
    let name = long.replace(['.', '-'], "_").to_ascii_uppercase();
    format!("{PREFIX}{name}")
}

/// Variables that look like settings and are none.
pub(super) fn unknown() -> Vec<String> {
    unknown_in(env::vars_os().map(|(name, _)| name))
}

fn unknown_in(names: impl Iterator<Item = OsString>) -> Vec<String> {
    let known: Vec<String> = settings().iter().map(|long| variable(long)).collect();
    let mut unknown: Vec<String> = names
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name))
        .collect();
    unknown.sort();
    unknown
}

/// The variable that an invalid value came from, if it was not on the command line.
pub(super) fn source_of(usage: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(flag)) = usage.get(ContextKind::InvalidArg) else { return None };
    let long = flag.strip_prefix("--")?.split([' ', '=']).next()?;
    let is_given = env::args_os().any(|argument| {
        let argument = argument.to_string_lossy();
        argument.strip_prefix("--").is_some_and(|given| given.split('=').next() == Some(long))
    });
    let name = variable(long);
    (!is_given && env::var_os(&name).is_some()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(path: &[&str]) -> Vec<String> {
        let mut command = command();
        command.build();
        let found = path
            .iter()
            .fold(&command, |command, name| command.find_subcommand(name).expect("a command"));
        let names = found.get_arguments().filter_map(|flag| flag.get_env());
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn every_setting_has_a_variable() {
        let names = variables(&["run"]);
        assert_eq!(names.len(), settings().len());
        assert!(names.contains(&"UMAWARDEN_WEB_LISTEN_ADDRESS".to_owned()), "{names:?}");
        assert_eq!(variables(&["config", "check"]), names);
    }

    #[test]
    fn other_commands_read_the_variables_that_find_the_daemon() {
        assert_eq!(
            variables(&["history"]),
            ["UMAWARDEN_STORAGE_PATH", "UMAWARDEN_CONFIG_FILE", "UMAWARDEN_PATH_PROCFS"]
        );
        assert!(!variables(&["replay"]).contains(&"UMAWARDEN_RULES".to_owned()));
    }

    #[test]
    fn a_variable_that_is_no_setting_is_found() {
        let names = ["UMAWARDEN_MODE", "UMAWARDEN_LISTEN", "HOME", "UMAWARDEN_MOD"];
        let unknown = unknown_in(names.into_iter().map(OsString::from));
        assert_eq!(unknown, ["UMAWARDEN_LISTEN", "UMAWARDEN_MOD"]);
    }
}
