//! Logged-in users, and messages to them.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use umawarden::model::{LoggedInReadings, Observation, Reading};
use umawarden::sources::logged_in::LoggedInWatch;
use umawarden::supervisors::logged_in::{LoginSources, read_users};

use super::fake_bus::Session;
use super::*;

fn sources(machine: &Machine) -> LoginSources {
    LoginSources {
        bus: Bus::Peer(machine.path("bus")),
        utmp: machine.path("utmp"),
        procfs: machine.path("proc"),
    }
}

fn users(readings: &LoggedInReadings) -> Vec<(&str, Option<&str>)> {
    let Reading::Value(users) = &readings.users else { panic!("{readings:?}") };
    users.iter().map(|user| (&*user.user, user.terminal.as_deref())).collect()
}

fn seen(machine: &Machine) -> LoggedInReadings {
    read_users(&sources(machine), Duration::from_secs(7))
}

fn why(readings: &LoggedInReadings) -> &str {
    readings.error.as_deref().unwrap()
}

/// A record of utmp(5), as the C library lays it out here.
fn record(pid: i32, terminal: &str, user: &str) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<libc::utmpx>()];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, &7_i16.to_ne_bytes());
    put(std::mem::offset_of!(libc::utmpx, ut_pid), &pid.to_ne_bytes());
    put(std::mem::offset_of!(libc::utmpx, ut_line), terminal.as_bytes());
    put(std::mem::offset_of!(libc::utmpx, ut_user), user.as_bytes());
    bytes
}

#[test]
fn users_are_distinguished_from_sessions_without_a_person() {
    let machine = Machine::new();
    assert_eq!(users(&seen(&machine)), []);
    let of = |class, kind, terminal: &str, is_remote| Session {
        class,
        kind,
        is_remote,
        ..Session::at("x", terminal)
    };
    machine.bus.state().sessions = vec![
        of("greeter", "x11", "tty1", false),
        of("manager", "unspecified", "", false),
        of("background", "unspecified", "", false),
        of("lock-screen", "wayland", "tty1", false),
        // cron, whose sessions are a user's.
        of("user", "unspecified", "", false),
        Session { state: "closing", ..Session::at("left", "pts/7") },
        Session { has_gone: true, ..Session::at("gone", "pts/8") },
    ];
    assert_eq!(users(&seen(&machine)), []);
    machine.bus.state().sessions.extend([
        Session::at("anna", "tty2"),
        Session { is_remote: true, ..Session::at("berta", "pts/3") },
        // A file is copied over SSH.
        Session { is_remote: true, kind: "unspecified", ..Session::at("carla", "") },
        Session { kind: "wayland", ..Session::at("dora", "") },
        Session::at("evil\u{1b}[2J", "pts/4"),
    ]);
    let readings = seen(&machine);
    let expected = [
        ("anna", Some("tty2")),
        ("berta", Some("pts/3")),
        ("carla", None),
        ("dora", None),
        ("evil [2J", Some("pts/4")),
    ];
    assert_eq!(users(&readings), expected);
    assert_eq!((readings.at, &readings.error), (Duration::from_secs(7), &None));
    let Reading::Value(users) = &readings.users else { panic!() };
    assert_eq!(users[0].since.unwrap().as_second(), 1_795_000_000);
    // With too many sessions at least one user is reported.
    machine.bus.state().sessions = vec![of("background", "unspecified", "", false); 100];
    let Reading::Value(users) = seen(&machine).users else { panic!() };
    assert_eq!(users.iter().map(|user| &*user.user).collect::<Vec<_>>(), ["others"]);
}

#[test]
fn a_failing_logind_leaves_the_users_unknown() {
    let machine = Machine::new();
    fs::write(machine.path("utmp"), "").unwrap();
    machine.bus.state().sessions = vec![Session::at("anna", "tty2")];
    for call in ["ListSessions", "GetAll"] {
        machine.bus.state().garbled = [call].into();
        let readings = seen(&machine);
        assert_eq!(readings.users, Reading::Failed, "{call}");
        assert!(why(&readings).contains(call), "{readings:?}");
    }
    machine.bus.state().garbled.clear();
    for call in ["ListSessions", "GetAll"] {
        machine.bus.state().hangs = [call].into();
        let readings = within(Duration::from_secs(12), || seen(&machine));
        assert_eq!(readings.users, Reading::Failed, "{call}");
        assert!(why(&readings).contains("in time"), "{readings:?}");
    }
}

#[test]
fn utmp_is_read_without_logind_and_users_are_unknown_without_both() {
    let machine = Machine::new();
    machine.bus.state().has_logind = false;
    let readings = seen(&machine);
    assert_eq!(readings.users, Reading::Unsupported);
    assert!(why(&readings).contains("there is neither logind nor"), "{readings:?}");
    fs::write(machine.path("utmp"), "").unwrap();
    assert_eq!(users(&seen(&machine)), []);
    let records = [record(11, "pts/0", "anna"), record(12, "pts/1", "left by a crash")];
    fs::write(machine.path("utmp"), records.concat()).unwrap();
    // No process is visible below that procfs: all may be alive.
    assert_eq!(users(&seen(&machine)).len(), 2);
    fs::create_dir(machine.path("proc/11")).unwrap();
    fs::create_dir(machine.path("proc/self")).unwrap();
    assert_eq!(users(&seen(&machine)), [("anna", Some("pts/0"))]);
    fs::write(machine.path("utmp"), [0; 100]).unwrap();
    let readings = seen(&machine);
    assert_eq!(readings.users, Reading::Failed);
    assert!(why(&readings).contains("it has 100 bytes"), "{readings:?}");
    fs::remove_file(machine.path("utmp")).unwrap();
    fs::create_dir(machine.path("utmp")).unwrap();
    assert_eq!(seen(&machine).users, Reading::Failed);
    // Without a bus there is no logind.
    let nowhere = LoginSources { bus: Bus::Peer(machine.path("nowhere")), ..sources(&machine) };
    assert_eq!(read_users(&nowhere, Duration::ZERO).users, Reading::Failed, "and utmp is a folder");
}

/// A real terminal: its output, and its name.
pub fn terminal() -> (OwnedFd, String) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    (master, name.strip_prefix("/dev/").unwrap().to_owned())
}

#[test]
fn logged_in_users_are_warned_on_their_terminals() {
    let machine = Machine::new();
    let notify = |act: RebootAct| match machine.perform(act) {
        (OutcomeResult::Done, Some(effect)) => effect,
        other => panic!("{other:?}"),
    };
    let plan = RebootPlan { why: "33 GiB are leaked".to_owned(), ..RebootPlan::default() };
    let schedule = || RebootAct::Schedule(plan.clone());
    assert_eq!(notify(schedule()), "no user is logged in");
    let (master, name) = terminal();
    machine.bus.state().sessions = vec![
        Session::at("anna", &name),
        // The same terminal twice, and two that do not exist.
        Session::at("anna", &name),
        Session::at("berta", "../etc/passwd"),
        Session::at("carla", "pts/9999999"),
        Session { is_remote: true, ..Session::at("dora", "") },
    ];
    assert_eq!(notify(schedule()), "1 of 3 terminals notified");
    let mut bytes = [0; 4096];
    let length = File::from(master).read(&mut bytes).unwrap();
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    assert!(
        message.contains("umawarden will reboot this machine: 33 GiB are leaked\r"),
        "{message}"
    );
    assert!(message.contains("To prevent it: umawarden reboot --cancel"), "{message}");
    machine.bus.state().sessions = vec![Session { is_remote: true, ..Session::at("dora", "") }];
    assert_eq!(notify(schedule()), "1 user is logged in, without a terminal to write to");
    machine.bus.state().hangs.insert("ListSessions");
    let message = within(Duration::from_secs(12), || notify(schedule()));
    assert!(
        message.starts_with("no user was notified: the logged-in users are unknown: "),
        "{message}"
    );
}

#[test]
fn users_are_polled_only_while_a_reboot_needs_them() {
    let machine = Machine::new();
    machine.bus.state().sessions = vec![Session::at("anna", "tty2")];
    let mut watch = LoggedInWatch::new(sources(&machine), crate::engines::live::uptime);
    let now = crate::engines::live::uptime;
    let mut seen = Vec::new();
    watch.take(now(), &mut seen);
    assert!(seen.is_empty() && machine.bus.calls().is_empty());
    watch.want(now(), true);
    watch.want(now(), true);
    let deadline = Instant::now() + Duration::from_secs(10);
    while seen.is_empty() {
        assert!(Instant::now() < deadline);
        watch.take(now(), &mut seen);
        std::thread::sleep(Duration::from_millis(5));
    }
    let [Observation::LoggedIn(readings)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(users(readings), [("anna", Some("tty2"))]);
    watch.want(now(), false);
    let before = machine.bus.calls().len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(machine.bus.calls().len(), before);
    // Wanted, without any result: the users are unknown.
    machine.bus.state().hangs.insert("ListSessions");
    watch.want(now(), true);
    seen.clear();
    watch.take(now() + Duration::from_secs(41), &mut seen);
    let [Observation::LoggedIn(readings)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(readings.users, Reading::Failed);
    assert!(why(readings).contains("has not ended for 4"), "{readings:?}");
}
