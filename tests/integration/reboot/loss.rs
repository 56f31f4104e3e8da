//! A journal that is deleted while the daemon runs.

use std::fs;
use std::time::Duration;

use super::program::{SOON, World, until};
use crate::daemon::{history, of_kind};

#[test]
fn a_deleted_journal_blocks_reboots_over_restarts_until_a_person_clears_it() {
    let world = World::new("");
    let daemon = world.start();
    let ready = ["reboot", "--why=x", "--delay=1d", "--force=uptime"];
    world.ordered(&ready);
    world.ordered(&["reboot", "--cancel"]);
    assert_eq!(daemon.metric("uma_journal_lost_total"), 0.0);
    for part in ["", "-wal", "-shm"] {
        let file = world.node.storage().join(format!("journal.sqlite3{part}"));
        fs::remove_file(&file).unwrap();
    }
    // It is refused, or scheduled before the loss is detected, and held.
    world.order(&SOON);
    until(&daemon, "noticed", 20, || daemon.metric("uma_journal_lost_total") == 1.0);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(world.bus.reboots(), 0);
    assert_eq!(daemon.metric("uma_reboot_budget_left"), 0.0);
    let losses = || of_kind(&history(&world.node.storage()), "journal_lost").count();
    until(&daemon, "reported", 10, || losses() == 1);
    daemon.kill();
    let daemon = world.start();
    let shown = world.ordered(&["reboot", "--status"]);
    assert!(shown.contains("was lost") && shown.contains("--clear"), "{shown}");
    world.order(&["reboot", "--cancel"]);
    let (code, printed) = world.order(&SOON);
    assert!(code == 1 && printed.contains("the journal was lost"), "{printed}");
    assert_eq!((world.bus.reboots(), losses()), (0, 1), "it is recorded once");
    world.ordered(&["reboot", "--clear", "--why=it was me"]);
    world.ordered(&SOON);
    until(&daemon, "done", 20, || world.bus.reboots() == 1);
    daemon.terminate();
}
