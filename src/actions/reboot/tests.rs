//! What touches files: the sentinel, and the kernel's own reboot, below a made-up procfs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Mutex;

use super::*;
use crate::model::{Action, RebootPlan};

const BOOT: &str = "11111111-2222-3333-4444-555555555555";

fn order(how: RebootMeans) -> RebootOrder {
    let plan = RebootPlan { why: "8 GiB are leaked\nfor good".to_owned(), ..RebootPlan::default() };
    RebootOrder { boot_id: BOOT.into(), how, plan }
}

fn decision(act: RebootAct) -> DecisionRecord {
    crate::actions::tests::decision(42, Action::Reboot(Box::new(act)))
}

fn act_of(act: RebootAct) -> Act {
    Act::of(decision(act)).unwrap()
}

/// A machine of files: nobody is behind its bus.
struct Machine {
    folder: tempfile::TempDir,
}

static SLEPT: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

impl Machine {
    fn new() -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(machine.path("proc/sys/kernel/random")).unwrap();
        fs::write(machine.path("proc/sys/kernel/random/boot_id"), format!("{BOOT}\n")).unwrap();
        fs::write(machine.path("proc/sys/kernel/sysrq"), "0\n").unwrap();
        fs::write(machine.path("proc/sysrq-trigger"), "").unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rebooter(&self) -> RebootExecutor {
        RebootExecutor {
            devices: self.path("dev"),
            utmp: self.path("utmp"),
            machine_id: self.path("machine-id"),
            sleep: |_| {},
            ..RebootExecutor::new(&self.path("proc"), Bus::System(self.path("bus")))
        }
    }

    fn perform(&self, act: RebootAct) -> (OutcomeResult, Option<String>) {
        let mut rebooter = self.rebooter();
        let Performed { result, effect } = rebooter.execute(&act_of(act));
        (result, effect)
    }

    fn reboot(&self, how: RebootMeans) -> (OutcomeResult, Option<String>) {
        self.perform(RebootAct::Perform(order(how)))
    }

    fn sentinel(&self) -> RebootMeans {
        RebootMeans::Way(RebootWay::Sentinel { file: self.path("reboot-required") })
    }

    fn call_off(&self) -> (OutcomeResult, Option<String>) {
        let way = RebootWay::Sentinel { file: self.path("reboot-required") };
        let why = "the leak is gone".to_owned();
        self.perform(RebootAct::CallOff { way, why, was_handed_over: true })
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "proc").collect();
        names.sort();
        names
    }
}

fn failed(performed: &(OutcomeResult, Option<String>)) -> &str {
    match &performed.0 {
        OutcomeResult::Failed(why) => why,
        other => panic!("{other:?}"),
    }
}

fn not_done(performed: &(OutcomeResult, Option<String>)) -> &str {
    match &performed.0 {
        OutcomeResult::NotDone(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sysrq_commands_are_written_one_by_one_below_the_given_procfs_only() {
    let machine = Machine::new();
    let before = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let rebooter =
        RebootExecutor { sleep: |time| SLEPT.lock().unwrap().push(time), ..machine.rebooter() };
    let act = RebootAct::Perform(order(RebootMeans::Sysrq));
    let mut doing = rebooter.clone();
    // That keyboards may not (kernel.sysrq = 0) does not matter.
    let Performed { result, effect } = doing.execute(&act_of(act));
    assert_eq!(result, OutcomeResult::Done);
    assert_eq!(fs::read_to_string(machine.path("proc/sysrq-trigger")).unwrap(), "sub");
    let pause = Duration::from_secs(5);
    assert_eq!(*SLEPT.lock().unwrap(), [pause, pause, Duration::ZERO]);
    let effect = effect.unwrap();
    assert!(effect.contains(&machine.path("proc/sysrq-trigger").display().to_string()), "{effect}");
    // This machine is still the same.
    assert_eq!(fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap(), before);
}

#[test]
fn a_missing_sysrq_trigger_is_not_created() {
    let machine = Machine::new();
    fs::remove_file(machine.path("proc/sysrq-trigger")).unwrap();
    let performed = machine.reboot(RebootMeans::Sysrq);
    assert!(failed(&performed).contains("sysrq b: "), "{performed:?}");
    assert!(!machine.path("proc/sysrq-trigger").exists());
}

#[test]
fn a_hanging_sysrq_times_out() {
    let machine = Machine::new();
    fs::remove_file(machine.path("proc/sysrq-trigger")).unwrap();
    // Whoever opens a pipe for writing waits for a reader.
    let file = machine.path("proc/sysrq-trigger");
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    let (result, effect) = machine.reboot(RebootMeans::Sysrq);
    assert_eq!(result, OutcomeResult::TimedOut);
    assert!(effect.unwrap().starts_with("sysrq b: "), "all three were tried");
}

#[test]
fn another_or_unknown_boot_prevents_the_reboot() {
    let machine = Machine::new();
    let boot_id = machine.path("proc/sys/kernel/random/boot_id");
    let command = RebootWay::Command { line: vec!["touch".into(), file_name(&machine)] };
    for how in [RebootMeans::Sysrq, machine.sentinel(), RebootMeans::Way(command)] {
        fs::write(&boot_id, "99999999-2222-3333-4444-555555555555\n").unwrap();
        assert!(not_done(&machine.reboot(how.clone())).contains("another boot"));
        fs::write(&boot_id, "").unwrap();
        assert!(not_done(&machine.reboot(how.clone())).contains("the boot ID is unknown"));
        fs::remove_file(&boot_id).unwrap();
        assert!(not_done(&machine.reboot(how)).contains("the boot ID is unknown"));
    }
    assert_eq!(machine.names(), [""; 0]);
    assert_eq!(fs::read_to_string(machine.path("proc/sysrq-trigger")).unwrap(), "");
}

fn file_name(machine: &Machine) -> String {
    machine.path("touched").display().to_string()
}

#[test]
fn the_sentinel_names_requester_and_reason_and_is_removed_on_cancellation() {
    let machine = Machine::new();
    let (result, effect) = machine.reboot(machine.sentinel());
    assert_eq!(result, OutcomeResult::Done);
    assert!(
        effect.unwrap().ends_with("reboot-required requests a reboot from the tools that watch it")
    );
    let text = fs::read_to_string(machine.path("reboot-required")).unwrap();
    let expected = format!(
        "umawarden asks for a reboot of this machine\nwhy: 8 GiB are leaked for good\nrule: g/A\n\
         decision: 42\nboot: {BOOT}\nto prevent it: umawarden reboot --cancel\n"
    );
    assert_eq!(text, expected);
    assert_eq!(machine.names(), ["reboot-required"], "no other file");
    let mode = fs::metadata(machine.path("reboot-required")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    let (result, effect) = machine.reboot(machine.sentinel());
    assert_eq!(result, OutcomeResult::Done);
    assert!(effect.unwrap().ends_with("already, by umawarden"));
    let (result, effect) = machine.call_off();
    assert_eq!(result, OutcomeResult::Done);
    assert!(effect.unwrap().contains("is taken away; no user was notified"));
    assert_eq!(machine.names(), [""; 0]);
    assert!(machine.call_off().1.unwrap().contains("is not there"));
}

#[test]
fn a_foreign_sentinel_is_left_as_it_is() {
    let machine = Machine::new();
    let file = machine.path("reboot-required");
    let theirs = "*** System restart required ***\n";
    fs::write(&file, theirs).unwrap();
    assert!(machine.reboot(machine.sentinel()).1.unwrap().contains("by another program"));
    assert!(machine.call_off().1.unwrap().contains("is of another program, and stays"));
    assert_eq!(fs::read_to_string(&file).unwrap(), theirs);
    fs::remove_file(&file).unwrap();
    // Not even what it leads to.
    fs::write(machine.path("victim"), "umawarden asks for a reboot of this machine\n").unwrap();
    symlink(machine.path("victim"), &file).unwrap();
    assert!(machine.reboot(machine.sentinel()).1.unwrap().contains("by another program"));
    assert!(machine.call_off().1.unwrap().contains("stays"));
    assert_eq!(machine.names(), ["reboot-required", "victim"]);
    fs::remove_file(&file).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
    assert!(made.success());
    assert!(machine.call_off().1.unwrap().contains("stays"), "and nobody waits for a pipe");
}

#[test]
fn a_failure_to_create_or_remove_the_sentinel_is_an_error() {
    let machine = Machine::new();
    let way = RebootWay::Sentinel { file: machine.path("missing/reboot-required") };
    let performed = machine.reboot(RebootMeans::Way(way));
    assert!(failed(&performed).contains("No such file or directory"), "{performed:?}");
    // What an earlier crash has left is in nobody's way.
    fs::write(machine.path(".reboot-required.umawarden"), "half").unwrap();
    assert_eq!(machine.reboot(machine.sentinel()).0, OutcomeResult::Done);
    assert_eq!(machine.names(), ["reboot-required"]);
    let way = RebootWay::Sentinel { file: machine.path("proc/sysrq-trigger/file") };
    let why = "x".to_owned();
    let performed = machine.perform(RebootAct::CallOff { way, why, was_handed_over: true });
    assert!(failed(&performed).contains("remove it by hand"), "{performed:?}");
}

#[test]
fn a_command_gets_the_reason_and_its_exit_is_the_outcome() {
    let machine = Machine::new();
    let line = |script: &str| {
        let line = ["sh", "-c", script].map(str::to_owned).to_vec();
        RebootMeans::Way(RebootWay::Command { line })
    };
    let (result, effect) = machine.reboot(line("echo \"$UMAWARDEN_REASON\""));
    assert_eq!(result, OutcomeResult::Done);
    assert_eq!(effect.unwrap(), "sh has ended well: 8 GiB are leaked for good");
    let performed = machine.reboot(line("echo Access/permission denied >&2; exit 1"));
    assert_eq!(failed(&performed), "sh has ended with 1: Access/permission denied");
}

#[test]
fn actions_of_other_lanes_are_refused() {
    let machine = Machine::new();
    let act = RebootAct::WarnUsers { text: "text".to_owned() };
    let other = DecisionRecord { action: Action::CompactMemory, ..decision(act) };
    let Performed { result, effect } = machine.rebooter().execute(&Act::of(other).unwrap());
    assert!(not_done(&(result, effect)).contains("compact_memory belongs to another lane"));
    assert!(Path::new("/proc/sysrq-trigger") != machine.rebooter().procfs.join("sysrq-trigger"));
}
