//! Runs a configured command, such as `scontrol reboot`: without a shell, without input, with a
//! time limit.

use std::io::{self, PipeReader, Read as _, pipe};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, setpriority_process};

use super::Attempt;
use crate::model::without_unprintable;
use crate::parse::process::printable;
use crate::sys::descriptors::restore_limit_of;

/// The time limit of the command, below that of an action.
const RUNNING_TAKES: Duration = Duration::from_secs(20);

/// The time to end after SIGKILL, which a process that hangs in the kernel receives at its return.
const DYING_TAKES: Duration = Duration::from_secs(1);

/// The time for the last output to arrive after its end.
const LAST_WORDS_TAKE: Duration = Duration::from_millis(200);

/// The kept bytes at the end of its output.
const KEPT_BYTES: usize = 300;

/// The passed variables of this program's environment, which may contain keys.
const ENVIRONMENT: [&str; 8] =
    ["PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "SLURM_CONF", "KUBECONFIG"];

/// The variable with the reason.
const REASON: &str = "UMAWARDEN_REASON";

pub(super) fn run(line: &[String], why: &str) -> Attempt {
    run_within(line, why, RUNNING_TAKES)
}

fn run_within(line: &[String], why: &str, patience: Duration) -> Attempt {
    let Some((program, arguments)) = line.split_first() else {
        return Attempt::Refused("reboot.command names no program".to_owned());
    };
    let shown = printable(program.as_bytes());
    let begun = pipe().and_then(|(reader, writer)| {
        let mut command = Command::new(program);
        command.args(arguments).env_clear().process_group(0).current_dir("/");
        let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.envs(kept).env(REASON, without_unprintable(why, ' '));
        command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
        Ok((command.spawn()?, reader))
    });
    let (child, reader) = match begun {
        Ok(begun) => begun,
        // The command has not started: nothing has happened.
        Err(error) => return Attempt::Refused(format!("{shown} cannot be started: {error}")),
    };
    let pid = child.id();
    restore_limit_of(pid);
    as_everybody(pid);
    let watched = listen(reader).and_then(|words| Ok((words, watch(child)?)));
    let (words, ended) = match watched {
        Ok(watched) => watched,
        Err(error) => {
            kill(pid);
            return Attempt::Failed(format!("{shown} cannot be watched, and was ended: {error}"));
        }
    };
    match ended.recv_timeout(patience) {
        Ok(Ok(status)) => result_of(&shown, status, &words.last()),
        Ok(Err(error)) => Attempt::Failed(format!("{shown}: {error}")),
        Err(RecvTimeoutError::Disconnected) => Attempt::Failed(format!("{shown} is lost")),
        Err(RecvTimeoutError::Timeout) => {
            kill(pid);
            let is_dead = ended.recv_timeout(DYING_TAKES).is_ok();
            let end = if is_dead { "and was ended" } else { "and does not end" };
            let said = words.last();
            Attempt::Hangs(format!("{shown} has not ended within {patience:?}, {end}{said}"))
        }
    }
}

fn result_of(shown: &str, status: ExitStatus, said: &str) -> Attempt {
    match (status.code(), status.signal()) {
        (Some(0), _) => Attempt::Agreed(format!("{shown} has ended well{said}")),
        (Some(code), _) => Attempt::Failed(format!("{shown} has ended with {code}{said}")),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            Attempt::Failed(format!("{shown} was killed by signal {signal}{said}"))
        }
    }
}

/// This program has priority, and is protected from the OOM killer; its children are not.
fn as_everybody(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may have ended.
        let _ = setpriority_process(Some(pid), 0);
        let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "0");
    }
}

fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The process may have ended.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Waits for the end of the command, in a thread.
fn watch(mut child: Child) -> io::Result<Receiver<io::Result<ExitStatus>>> {
    let (report, ended): (SyncSender<io::Result<ExitStatus>>, _) = sync_channel(1);
    Builder::new().name("reboot-command".to_owned()).spawn(move || {
        // The receiver may have given up.
        let _ = report.send(child.wait());
    })?;
    Ok(ended)
}

struct CommandOutput {
    kept: Arc<Mutex<Vec<u8>>>,
    ended: Receiver<()>,
}

/// Reads its output in a thread, so that it never blocks on a full pipe.
fn listen(mut reader: PipeReader) -> io::Result<CommandOutput> {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (end, ended) = sync_channel(1);
    let keep = Arc::clone(&kept);
    Builder::new().name("reboot-words".to_owned()).spawn(move || {
        let mut part = [0; 1024];
        loop {
            match reader.read(&mut part) {
                Ok(length @ 1..) => {
                    let mut kept = keep.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend(part.iter().take(length));
                    let excess = kept.len().saturating_sub(KEPT_BYTES);
                    kept.drain(..excess);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(_) | Err(_) => break,
            }
        }
        // The receiver may have given up.
        let _ = end.send(());
    })?;
    Ok(CommandOutput { kept, ended })
}

impl CommandOutput {
    /// The end of the output, on one line, for people. Children of the command may write on.
    fn last(&self) -> String {
        // Children of the command may write on.
        let _ = self.ended.recv_timeout(LAST_WORDS_TAKE);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = kept.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
        let lines = lines.filter(|line| !line.is_empty()).map(printable);
        let said = lines.collect::<Vec<_>>().join(" / ");
        if said.is_empty() { String::new() } else { format!(": {said}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn sh(script: &str) -> Attempt {
        run_within(&["sh".into(), "-c".into(), script.into()], "it leaks", PATIENCE)
    }

    #[test]
    fn exit_status_and_last_output_are_reported() {
        assert_eq!(
            run_within(&["true".into()], "", PATIENCE),
            Attempt::Agreed("true has ended well".to_owned())
        );
        let attempt = sh("echo one; echo two >&2; printf '\\033[2J'; exit 3");
        let expected = "sh has ended with 3: one / two / \\x1b[2J";
        assert_eq!(attempt, Attempt::Failed(expected.to_owned()));
        let attempt = sh("kill -9 $$");
        assert_eq!(attempt, Attempt::Failed("sh was killed by signal 9".to_owned()));
        let Attempt::Agreed(text) = sh("seq 1 200000") else { panic!() };
        assert!(text.ends_with("/ 199999 / 200000") && text.len() < 500, "{text}");
    }

    #[test]
    fn arguments_reach_no_shell_and_the_environment_is_filtered() {
        let line = ["printf".into(), "%s".into(), "$HOME;reboot".into()];
        let attempt = run_within(&line, "", PATIENCE);
        assert_eq!(attempt, Attempt::Agreed("printf has ended well: $HOME;reboot".to_owned()));
        let Attempt::Agreed(text) = sh("env | cut -d= -f1; echo $UMAWARDEN_REASON; cat; pwd")
        else {
            panic!()
        };
        assert!(!text.contains("CARGO"), "{text}");
        assert!(text.ends_with("it leaks / /"), "{text}");
    }

    #[test]
    fn a_command_that_cannot_start_is_refused() {
        let attempt = run_within(&["/nonexistent/reboot".into()], "", PATIENCE);
        let Attempt::Refused(text) = attempt else { panic!("{attempt:?}") };
        assert!(text.starts_with("/nonexistent/reboot cannot be started: No such file"), "{text}");
        assert!(matches!(run_within(&[], "", PATIENCE), Attempt::Refused(_)));
    }

    #[test]
    fn a_hanging_command_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pids");
        let script = format!("echo begun; sleep 500 & echo $! $$ > {}; wait", file.display());
        let line = ["sh".into(), "-c".into(), script];
        let attempt = run_within(&line, "", Duration::from_millis(700));
        let expected = "sh has not ended within 700ms, and was ended: begun";
        assert_eq!(attempt, Attempt::Hangs(expected.to_owned()));
        for pid in std::fs::read_to_string(file).unwrap().split_whitespace() {
            let is_gone = || match std::fs::read(format!("/proc/{pid}/stat")) {
                Ok(stat) => crate::parse::process::stat(&stat).is_none_or(|it| it.state == 'Z'),
                Err(_) => true,
            };
            let mut checks = 0;
            while !is_gone() {
                assert!(checks < 500, "{pid} lives on");
                checks += 1;
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }

    #[test]
    fn background_children_of_a_command_do_not_block() {
        // The child keeps the pipe open.
        let Attempt::Agreed(text) = sh("sleep 3 & echo left") else { panic!() };
        assert_eq!(text, "sh has ended well: left");
    }
}
