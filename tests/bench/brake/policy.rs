//! The policies under test.

use std::fmt;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::kernel_log::KernelLog;
use crate::options::Options;
use crate::processes::{Program, get};
use crate::scenario::Scenario;
use crate::served::Served;
use crate::worker::holds_within;

/// What is to stop the hog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Nothing: this program kills the hog in the end.
    None,
    /// earlyoom with its defaults.
    Earlyoom,
    /// `umawarden run` in enforce mode with the shipped rules.
    Umawarden,
}

const PORT: u16 = 19_956;

impl Policy {
    pub const ALL: [Self; 3] = [Self::None, Self::Earlyoom, Self::Umawarden];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Earlyoom => "earlyoom",
            Self::Umawarden => "umawarden",
        }
    }

    /// Name and version, if it has one.
    pub fn version(self) -> String {
        let program = match self {
            Self::None => return self.name().to_owned(),
            Self::Earlyoom => "earlyoom",
            Self::Umawarden => env!("CARGO_BIN_EXE_umawarden"),
        };
        let flag = if self == Self::Earlyoom { "-v" } else { "--version" };
        let output = Command::new(program).arg(flag).output().unwrap();
        let output = [output.stdout, output.stderr].concat();
        String::from_utf8(output).unwrap().lines().next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A running policy, ended when dropped.
pub struct InForce {
    child: Option<Child>,
    program: Option<Program>,
    pub kernel_log: Option<KernelLog>,
    /// The folder of the journal.
    storage: TempDir,
}

/// Starts the policy and waits until it watches.
pub fn start(
    policy: Policy,
    options: &Options,
    served: Option<&Served>,
    scenario: Scenario,
) -> InForce {
    let storage = tempfile::tempdir().unwrap();
    let kernel_log = (scenario == Scenario::Lines).then(|| KernelLog::make(storage.path()));
    let mut in_force = InForce { child: None, program: None, kernel_log, storage };
    match policy {
        Policy::None => {}
        Policy::Earlyoom => {
            // It must not outlive this program, which restores the machine.
            let mut earlyoom = Command::new("setpriv");
            earlyoom.args(["--pdeathsig", "KILL", "earlyoom"]);
            let quiet = earlyoom.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            in_force.child = Some(quiet.spawn().unwrap());
            std::thread::sleep(Duration::from_secs(1));
        }
        Policy::Umawarden => in_force.umawarden(options, served, scenario),
    }
    in_force
}

impl InForce {
    fn umawarden(&mut self, options: &Options, served: Option<&Served>, scenario: Scenario) {
        let storage = self.storage.path();
        let file = storage.join("umawarden.yaml");
        fs::write(&file, configuration(served)).unwrap();
        let file = file.display().to_string();
        let mut arguments = vec!["--config.file", &file];
        let kmsg = self.kernel_log.as_ref().map(|log| log.path().display().to_string());
        if let Some(kmsg) = &kmsg {
            arguments.extend(["--path.kmsg", kmsg]);
        }
        let rules = options.rules.as_ref().map(|rules| rules.display().to_string());
        if let Some(rules) = &rules {
            arguments.extend(["--rules", rules]);
        }
        let program = Program::umawarden(storage, PORT, &arguments);
        let name = if matches!(scenario, Scenario::Job(_)) { "serves" } else { "hog" };
        let is_tracked = || metrics(&program).contains(&format!("engine=\"{name}\""));
        assert!(
            holds_within(Duration::from_secs(10), is_tracked),
            "umawarden does not find {name}"
        );
        // Long enough to track the hog for a while and to return to the calm interval.
        std::thread::sleep(Duration::from_millis(2_500));
        self.program = Some(program);
    }

    /// Whether umawarden has counted that many failures of the driver.
    pub fn counts(&self, failures: u64) -> bool {
        let counted = |program: &Program| {
            let metrics = metrics(program);
            let series = "uma_kernel_events_total{event=\"nv_no_memory\"} ";
            let value = metrics.lines().find_map(|line| line.strip_prefix(series));
            value.is_some_and(|value| value.trim().parse::<f64>().unwrap() >= failures as f64)
        };
        let has_counted =
            |program: &Program| holds_within(Duration::from_secs(5), || counted(program));
        self.program.as_ref().is_some_and(has_counted)
    }

    /// The decisions of umawarden so far, as text.
    pub fn decisions(&self) -> String {
        if self.program.is_none() {
            return String::new();
        }
        let output = Command::new(env!("CARGO_BIN_EXE_umawarden"))
            .args(["history", "--storage.path"])
            .arg(self.storage.path())
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn metrics(program: &Program) -> String {
    String::from_utf8_lossy(&get(&mut program.connect(), "/metrics", "")).into_owned()
}

impl Drop for InForce {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A configuration that declares the workers as engines; it uses the shipped rules.
fn configuration(served: Option<&Served>) -> String {
    let mut text = "mode: enforce\nengines:\n".to_owned();
    for (name, arguments) in
        [("hog", "hog *"), ("loads", "bystander loads"), ("serves", "bystander serves")]
    {
        text.push_str(&format!("- name: {name}\n  match: {{cmdline: \"*brake* {arguments}\"}}\n"));
    }
    if let Some(served) = served {
        text.push_str(&format!(
            "- name: served\n  match: {{cmdline: \"*brake* served *\"}}\n  \
             model_files: [\"{}\"]\n  health: http://127.0.0.1:{}/health\n",
            served.file().display(),
            served.port(),
        ));
    }
    text
}
