//! Engines without a supervisor whose parent is not this program: how they ended.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::enabled;
use crate::daemon::{Daemon, binary, history, of_kind};

/// Two processes of one engine; the server ends when it reads a line.
const ENGINE: &str = "#!/bin/sh\nsleep 100 >/dev/null 2>&1 &\nworker=$!\nread word\necho reads $word\ncase $word in\n\
    exit) kill $worker; wait $worker; exit 3;;\n\
    worker) kill -9 $worker; wait $worker; sleep 3; exit 0;;\n\
    esac\n";

struct Engine {
    child: Child,
    port: u16,
}

impl Engine {
    fn start(script: &Path, port: u16) -> Self {
        let port_text = port.to_string();
        let mut command = Command::new("/bin/sh");
        command.arg(script).args(["serve", "/models/tiny", "--port", &port_text]);
        let log = fs::File::create(script.with_extension(&port_text)).unwrap();
        Self { child: command.stdin(Stdio::piped()).stdout(log).spawn().unwrap(), port }
    }

    /// Has it end, and reaps it at once, as a shell does.
    fn end(&mut self, word: &str) {
        use std::io::Write as _;
        match word {
            "" => self.child.kill().unwrap(),
            word => writeln!(self.child.stdin.take().unwrap(), "{word}").unwrap(),
        }
        self.child.wait().unwrap();
    }

    fn report(&self, storage: &Path, daemon: &Daemon) -> Value {
        let name = format!("vllm-{}", self.port);
        let began = Instant::now();
        loop {
            let entries = history(storage);
            let all = of_kind(&entries, "engine_died").map(|event| event["report"].clone());
            if let Some(report) = all.into_iter().find(|report| report["who"]["name"] == *name) {
                return report;
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{name}:\n{}", daemon.log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[test]
fn a_bare_engine_is_reported_with_its_exit_code_or_signal() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().join("data");
    let config = folder.path().join("umawarden.yaml");
    fs::write(&config, "rule_files: []\n").unwrap();
    let mut command = Command::new(binary());
    command
        .args(["run", "--web.listen-address=127.0.0.1:0", "--gpu.interval=off"])
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.path={}", storage.display()));
    let daemon = Daemon::from_command(&mut command);
    // A shell reads its script as it runs: no process may have it open for writing any more.
    let script = folder.path().join("vllm");
    fs::write(&script, ENGINE).unwrap();
    let mut engines = [41_001, 41_002, 41_003].map(|port| Engine::start(&script, port));
    for engine in &engines {
        let name = format!("engine=\"vllm-{}\"", engine.port);
        daemon.wait_until("reporting the process", |daemon| {
            daemon.metrics().keys().any(|key| key.contains(&name))
        });
    }
    // It is known once its pidfd is open.
    std::thread::sleep(Duration::from_secs(2));
    let words = ["exit", "", "worker"];
    let reports: Vec<Value> = engines
        .iter_mut()
        .zip(words)
        .map(|(engine, word)| {
            engine.end(word);
            engine.report(&storage, &daemon)
        })
        .collect();
    let status = |report: &Value, key: &str, name: &str| report[key][name].clone();
    assert_eq!(status(&reports[0], "exit", "code"), 3, "{:#}", reports[0]);
    assert_eq!(reports[0]["killer"]["by"], "itself", "{:#}", reports[0]);
    assert_eq!(reports[0]["last_lines"][0], "reads exit", "its log: {:#}", reports[0]);
    assert_eq!(status(&reports[1], "exit", "signal"), 9, "{:#}", reports[1]);
    assert_eq!(status(&reports[1], "killer", "signal"), 9, "{:#}", reports[1]);
    // Its parent alone reports a clean exit.
    let worker = &reports[2];
    assert_eq!(status(worker, "exit", "code"), 0, "{worker:#}");
    assert_eq!(worker["killed_workers"][0]["status"]["signal"], 9, "{worker:#}");
    assert_eq!(worker["is_failure"], true, "{worker:#}");
    daemon.terminate();
}
