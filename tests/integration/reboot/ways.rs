//! The orderly methods: logind, and systemd where logind is missing.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::fake_bus::Inhibitor;
use super::*;
use crate::actions::act;

fn inhibitor(what: &str, mode: &str) -> Inhibitor {
    let [what, who, why, mode] =
        [what, "PackageKit\u{1b}[2J", "Package update in progress", mode].map(str::to_owned);
    (what, who, why, mode, 0, 815)
}

#[test]
fn logind_is_queried_for_inhibitors_and_then_reboots() {
    let machine = Machine::new();
    let outcome = machine.reboot();
    assert_eq!(outcome, (OutcomeResult::Done, Some("logind reboots the machine".to_owned())));
    let calls = ["logind.CanReboot", "logind.ListInhibitors", "logind.Reboot"];
    assert_eq!(machine.bus.calls(), calls);
    assert_eq!(machine.bus.state().interactive, [false], "no password is requested");
}

#[test]
fn a_block_inhibitor_stops_the_reboot_by_name_and_a_delay_inhibitor_does_not() {
    let machine = Machine::new();
    for mode in ["block", "block-weak"] {
        machine.bus.state().inhibitors =
            vec![inhibitor("sleep", "block"), inhibitor("idle:shutdown:sleep", mode)];
        let outcome = machine.reboot();
        let expected = "a reboot is blocked by PackageKit [2J (pid 815, uid 0): Package update in \
                        progress";
        assert_eq!(not_done(&outcome), expected, "and nothing of the terminal's");
    }
    machine.bus.state().inhibitors = vec![inhibitor("shutdown", "block"); 5];
    assert!(not_done(&machine.reboot()).ends_with("and 2 more"));
    assert_eq!(machine.bus.reboots(), 0);
    machine.bus.state().inhibitors =
        vec![inhibitor("shutdown", "delay"), inhibitor("sleep:handle-power-key", "block")];
    assert_eq!(machine.reboot().0, OutcomeResult::Done);
}

#[test]
fn no_reboot_is_tried_without_permission() {
    let machine = Machine::new();
    for answer in ["no", "challenge", "na", "inhibited", "", "yes\n"] {
        machine.bus.state().may_reboot = answer.to_owned();
        let outcome = machine.reboot();
        assert!(not_done(&outcome).contains("it must run as root"), "{answer:?}: {outcome:?}");
    }
    assert_eq!(machine.bus.reboots(), 0);
}

#[test]
fn systemd_reboots_where_logind_is_missing() {
    let machine = Machine::new();
    machine.bus.state().has_logind = false;
    let outcome = machine.reboot();
    let effect = "systemd reboots the machine; there is no logind".to_owned();
    assert_eq!(outcome, (OutcomeResult::Done, Some(effect)));
    assert_eq!(machine.bus.calls(), ["logind.CanReboot", "systemd.Reboot"]);
    machine.bus.state().has_systemd = false;
    assert!(failed(&machine.reboot()).contains("nobody of that name"));
    let mut nowhere = machine.rebooter();
    nowhere.bus = Bus::System(machine.path("no-bus"));
    let outcome = nowhere.execute(&act(decision(RebootAct::Perform(order())))).result;
    let OutcomeResult::Failed(why) = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("No such file or directory"), "{why}");
}

#[test]
fn a_hanging_method_is_distinguished_from_other_failures() {
    // Each blocks for a while.
    let hanging = ["CanReboot", "ListInhibitors", "Reboot"].map(|call| {
        std::thread::spawn(move || {
            let machine = Machine::new();
            machine.bus.state().hangs.insert(call);
            let (result, effect) = within(Duration::from_secs(15), || machine.reboot());
            assert_eq!(result, OutcomeResult::TimedOut, "{call}");
            assert!(effect.unwrap().contains(&format!("has not answered {call} in time")));
            // A call that hangs before the one that reboots prevents the reboot.
            assert_eq!(machine.bus.reboots(), usize::from(call == "Reboot"), "{call}");
        })
    });
    let systemd = std::thread::spawn(|| {
        let machine = Machine::new();
        machine.bus.state().has_logind = false;
        machine.bus.state().hangs.insert("Reboot");
        assert_eq!(machine.reboot().0, OutcomeResult::TimedOut);
    });
    // A socket without any response.
    let silent = std::thread::spawn(|| {
        let machine = Machine::new();
        let listener = std::os::unix::net::UnixListener::bind(machine.path("silent")).unwrap();
        let mut rebooter = machine.rebooter();
        rebooter.bus = Bus::System(machine.path("silent"));
        let outcome = within(Duration::from_secs(10), || {
            rebooter.execute(&act(decision(RebootAct::Perform(order())))).result
        });
        assert_eq!(outcome, OutcomeResult::TimedOut);
        drop(listener);
    });
    hanging.into_iter().chain([systemd, silent]).for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_logind_that_refuses_or_answers_falsely_has_not_rebooted() {
    let machine = Machine::new();
    for (call, name) in [
        ("CanReboot", "org.freedesktop.DBus.Error.AccessDenied"),
        ("ListInhibitors", "org.freedesktop.DBus.Error.Failed"),
        ("Reboot", "org.freedesktop.login1.OperationInProgress"),
        ("Reboot", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired"),
    ] {
        machine.bus.state().refuses = [(call, name)].into();
        let outcome = machine.reboot();
        assert!(failed(&outcome).contains("no,\\u{1b}[2J not now"), "{outcome:?}");
    }
    machine.bus.state().refuses.clear();
    for call in ["CanReboot", "ListInhibitors"] {
        machine.bus.state().garbled = [call].into();
        assert!(failed(&machine.reboot()).contains(call));
    }
    let reboots = machine.bus.reboots();
    assert_eq!(reboots, 2, "only those that it has refused itself");
}

#[test]
fn no_request_is_sent_in_another_boot() {
    let machine = Machine::new();
    let file = machine.path("proc/sys/kernel/random/boot_id");
    fs::write(file, "another\n").unwrap();
    assert!(not_done(&machine.reboot()).contains("another boot"));
    assert_eq!(machine.bus.calls(), [""; 0]);
}

/// A real bus without services.
struct RealBus(Child);

impl RealBus {
    fn start(machine: &Machine) -> Option<Self> {
        let config = machine.path("bus.conf");
        let socket = machine.path("real-bus");
        let text = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\"><busconfig>\
             <listen>unix:path={}</listen><auth>EXTERNAL</auth><policy context=\"default\">\
             <allow send_destination=\"*\"/><allow receive_sender=\"*\"/><allow own=\"*\"/>\
             <allow user=\"*\"/></policy></busconfig>",
            socket.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("dbus-daemon");
        command.args(["--nofork", "--nopidfile", "--config-file"]).arg(config);
        let Ok(child) = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn() else {
            eprintln!("SKIPPED: there is no dbus-daemon");
            return None;
        };
        let bus = Self(child);
        let deadline = Instant::now() + Duration::from_secs(10);
        while UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < deadline, "dbus-daemon does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(bus)
    }
}

impl Drop for RealBus {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_missing_service_is_distinguished_from_a_silent_one_over_a_real_bus() {
    let machine = Machine::new();
    let Some(_bus) = RealBus::start(&machine) else { return };
    let bus = Bus::System(machine.path("real-bus"));
    let mut rebooter = machine.rebooter();
    rebooter.bus = bus;
    let reboot = act(decision(RebootAct::Perform(order())));
    // Neither logind nor systemd is there: the bus itself reports it.
    let outcome = rebooter.execute(&reboot).result;
    let OutcomeResult::Failed(why) = outcome else { panic!("{outcome:?}") };
    assert!(why.contains("logind, CanReboot") && why.contains("systemd, Reboot"), "{why}");
    let logind = FakeBus::on_bus(&machine.path("real-bus"));
    assert_eq!(rebooter.execute(&reboot).result, OutcomeResult::Done);
    assert_eq!(logind.calls(), ["logind.CanReboot", "logind.ListInhibitors", "logind.Reboot"]);
    logind.state().inhibitors = vec![inhibitor("shutdown", "block")];
    assert!(matches!(rebooter.execute(&reboot).result, OutcomeResult::NotDone(_)));
}
