//! The loaders of running engines, and Ray's processes, by their command lines.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use super::packages;
use crate::doctor::{AdviceTable, Fact, RayVariables, Raylet, RunningLoader, StartedEngine};
use crate::engines::loaders::{loader_variables, weight_daemon};
use crate::engines::{LaunchCommand, ProcessRole, recognise};
use crate::parse::process::{arguments, variable};

/// Limits of the search.
const MOST_PROCESSES: usize = 32_768;
const MOST_LINE_BYTES: u64 = 64 << 10;
const MOST_ENVIRONMENT_BYTES: u64 = 1 << 20;

pub(super) fn loaders(procfs: &Path, advice: &AdviceTable) -> Fact<Vec<RunningLoader>> {
    of_processes(procfs, |procfs, pid| of_process(procfs, pid, advice))
}

pub(super) fn raylets(procfs: &Path) -> Fact<Vec<Raylet>> {
    of_processes(procfs, raylet)
}

fn of_processes<T>(procfs: &Path, of: impl Fn(&Path, u32) -> Option<T>) -> Fact<Vec<T>> {
    let listed = match fs::read_dir(procfs) {
        Ok(listed) => listed,
        Err(error) => return Fact::Unknown(format!("cannot list {}: {error}", procfs.display())),
    };
    let names = listed.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut pids: Vec<u32> =
        names.filter_map(|name| name.parse().ok()).take(MOST_PROCESSES).collect();
    pids.sort_unstable();
    Fact::Is(pids.into_iter().filter_map(|pid| of(procfs, pid)).collect())
}

fn of_process(procfs: &Path, pid: u32, advice: &AdviceTable) -> Option<RunningLoader> {
    let folder = procfs.join(pid.to_string());
    // The process may have ended, or be another user's.
    let line = arguments(&read(&folder.join("cmdline"), MOST_LINE_BYTES)?);
    if let Some(daemon) = weight_daemon(&line) {
        return Some(RunningLoader::Holder { pid, daemon });
    }
    let (_, ProcessRole::Server) = recognise("", &line, None)? else { return None };
    // Of the environment nothing else is kept: keys are among it.
    let path = folder.join("environ");
    let environment = read(&path, MOST_ENVIRONMENT_BYTES);
    let bytes = environment.as_deref().unwrap_or_default();
    let set =
        loader_variables().filter_map(|name| Some(format!("{name}={}", variable(bytes, name)?)));
    let words: Vec<String> = set.chain(line).collect();
    let command = LaunchCommand::read(&words)?;
    let versions = packages::versions(&folder, &advice.packages());
    let names = advice.variables().into_iter().filter(|name| variable(bytes, name).is_some());
    let variables: BTreeSet<String> = names.map(str::to_owned).collect();
    let is_known = environment.is_some();
    let variables = is_known.then_some(variables);
    let variables = variables.ok_or_else(|| format!("cannot read {}", path.display()));
    let started = StartedEngine { variables, ..StartedEngine::new(command, versions) };
    Some(RunningLoader::Server { pid, started })
}

/// `…/ray/core/src/ray/raylet/raylet --raylet_socket_name=…`, with the environment of `ray start`.
fn raylet(procfs: &Path, pid: u32) -> Option<Raylet> {
    let folder = procfs.join(pid.to_string());
    let line = arguments(&read(&folder.join("cmdline"), MOST_LINE_BYTES)?);
    (Path::new(line.first()?).file_name()? == "raylet").then_some(())?;
    let path = folder.join("environ");
    let variables = match read(&path, MOST_ENVIRONMENT_BYTES) {
        Some(environment) => Ok(RayVariables {
            threshold: variable(&environment, "RAY_memory_usage_threshold"),
            refresh_ms: variable(&environment, "RAY_memory_monitor_refresh_ms"),
        }),
        None => Err(format!("cannot read {}", path.display())),
    };
    Some(Raylet { pid, variables })
}

fn read(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_and_holders_of_weights_are_found_and_nobody_else() {
        let procfs = tempfile::tempdir().unwrap();
        for (pid, line, environment) in [
            ("11", "vllm\0serve\0m\0--load-format\0instanttensor\0", ""),
            ("12", "/env/bin/vllm\0preload\0/m\0", ""),
            ("13", "VLLM::EngineCore\0", ""),
            ("14", "docker\0run\0vllm/vllm-openai\0m\0", ""),
            ("15", "vllm\0serve\0m\0", "API_KEY=secret\0VLLM_PLE_MMAP=1\0"),
            ("self", "vllm\0serve\0m\0", ""),
        ] {
            let folder = procfs.path().join(pid);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cmdline"), line).unwrap();
            fs::write(folder.join("environ"), environment).unwrap();
        }
        let advice = AdviceTable::default();
        let Fact::Is(found) = loaders(procfs.path(), &advice) else { panic!() };
        let named: Vec<(u32, &str)> = found
            .iter()
            .map(|one| match one {
                RunningLoader::Server { pid, started } => (*pid, started.loader.name),
                RunningLoader::Holder { pid, daemon } => (*pid, daemon.command),
            })
            .collect();
        let expected =
            [(11, "instanttensor"), (12, "vllm preload"), (15, "mmap with a table in its file")];
        assert_eq!(named, expected);
        assert!(matches!(loaders(&procfs.path().join("none"), &advice), Fact::Unknown(_)));
    }

    #[test]
    fn raylets_are_found_with_their_variables() {
        let procfs = tempfile::tempdir().unwrap();
        let raylet = "/env/ray/core/src/ray/raylet/raylet\0--raylet_socket_name=x\0";
        for (pid, line, environment) in [
            ("11", raylet, Some("KEY=secret\0RAY_memory_usage_threshold=0.97\0")),
            ("12", raylet, Some("RAY_memory_monitor_refresh_ms=0\0")),
            ("13", raylet, None),
            ("14", "grep\0raylet\0", Some("")),
        ] {
            let folder = procfs.path().join(pid);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("cmdline"), line).unwrap();
            if let Some(environment) = environment {
                fs::write(folder.join("environ"), environment).unwrap();
            }
        }
        let Fact::Is(found) = raylets(procfs.path()) else { panic!() };
        let set = |threshold: Option<&str>, refresh_ms: Option<&str>| {
            let owned = |text: Option<&str>| text.map(str::to_owned);
            Ok(RayVariables { threshold: owned(threshold), refresh_ms: owned(refresh_ms) })
        };
        assert_eq!(found.iter().map(|one| one.pid).collect::<Vec<_>>(), [11, 12, 13]);
        assert_eq!(found[0].variables, set(Some("0.97"), None));
        assert_eq!(found[1].variables, set(None, Some("0")));
        assert!(found[2].variables.is_err());
    }
}
