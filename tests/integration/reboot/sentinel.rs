//! The file that requests a reboot, over a reload and a restart with another method.

use std::fs;

use rustix::process::Signal;

use super::program::{SOON, World, stage, until};

#[test]
fn the_sentinel_is_removed_when_a_reload_or_restart_selects_another_method() {
    for is_restart in [false, true] {
        let world = World::new("");
        let file = world.path("reboot-required");
        let config = world.path("umawarden.yaml");
        let way = format!("reboot: {{way: sentinel, sentinel_file: {}}}", file.display());
        fs::write(&config, way).unwrap();
        let mut daemon = world.start();
        world.ordered(&SOON);
        until(&daemon, "handed over", 20, || stage(&daemon) == "handed_over");
        assert!(file.exists());
        let expected = ["reboot: done", "perform_reboot: done", "call_off_reboot: done"];
        // A killed program's last outcome would be unknown.
        until(&daemon, "journalled", 10, || world.acts() == expected[..2]);
        fs::write(&config, "reboot: {way: logind}").unwrap();
        if is_restart {
            daemon.kill();
            daemon = world.start();
        } else {
            daemon.signal(Signal::HUP);
        }
        until(&daemon, "withdrawn", 20, || !file.exists());
        until(&daemon, "cancelled", 10, || stage(&daemon) == "none");
        until(&daemon, "reported", 10, || world.acts() == expected);
        assert_eq!(world.bus.reboots(), 0, "and no other method is used");
        daemon.terminate();
    }
}
