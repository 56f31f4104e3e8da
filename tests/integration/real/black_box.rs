//! The black box on real disks: one loses power, one hangs, one is full.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::enabled;
use crate::daemon::{Daemon, Notifications, binary};

const RECORDS: &str = "uma_black_box_records_total";
/// Of the watchdog of systemd.
const PATIENCE: Duration = Duration::from_secs(3);
const UP: &str = "uma_scrape_collector_success{collector=\"black_box\"}";

fn succeed(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status().unwrap();
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

/// A mounted disk; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// A file system in a file of its own.
    fn image(image: &Path, mount: &Path) -> Self {
        std::fs::create_dir_all(mount).unwrap();
        succeed("mount", &["-o", "loop", text(image), text(mount)]);
        Self(mount.to_owned())
    }

    /// One in memory, of that size.
    fn memory(mount: &Path, size: &str) -> Self {
        std::fs::create_dir_all(mount).unwrap();
        succeed("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", text(mount)]);
        Self(mount.to_owned())
    }

    /// Frozen until the result is dropped.
    fn freeze(&self) -> Frozen<'_> {
        succeed("fsfreeze", &["--freeze", text(&self.0)]);
        Frozen(self)
    }
}

/// A frozen disk. A daemon that is killed meanwhile ends only when it is thawed: the kernel tries
/// the write again and again.
struct Frozen<'d>(&'d Mounted);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").args(["--unfreeze", text(&self.0.0)]).status();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let mount = text(&self.0);
        // A killed process may keep it busy for a moment.
        for _ in 0..50 {
            if Command::new("umount").arg(mount).status().is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The report that the next boot would show.
fn last_boot(storage: &Path) -> Vec<Value> {
    let output = Command::new(binary())
        .args(["history", "--last-boot", "--json", "--path.procfs=/nowhere", "--storage.path"])
        .arg(storage)
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn real_black_box_survives_a_power_cut_and_a_hung_disk_stops_it_alone() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    succeed("mkfs.ext4", &["-q", text(&image)]);
    let disk = Mounted::image(&image, &folder.path().join("mounted"));
    let notifications = Notifications::listen(folder.path());
    let mut command = Command::new(binary());
    command.args(["run", "--web.listen-address=127.0.0.1:0", "--storage.path", text(&disk.0)]);
    notifications.watch(&mut command, PATIENCE);
    let daemon = Daemon::from_command(&mut command);
    daemon.wait_until("recording", |daemon| {
        daemon.metrics().get(RECORDS).is_some_and(|records| *records >= 4.0)
    });

    // Nothing is synced: data that is not on disk by now is lost.
    let cut_at = jiff::Timestamp::now();
    let cut = folder.path().join("cut");
    std::fs::copy(&image, &cut).unwrap();
    let after = Mounted::image(&cut, &folder.path().join("after"));
    let lines = last_boot(&after.0);
    let last: jiff::Timestamp = lines[0]["last_record"].as_str().unwrap().parse().unwrap();
    let lost = cut_at.duration_since(last);
    println!("{} records survived; the last one was {lost:#} old", lines.len() - 1);
    assert!(lines.len() >= 5, "{lines:#?}");
    assert!(lost.as_secs_f64() < 2.0, "{lost:#}");

    let missed = daemon.metric("uma_samples_missed_total");
    let stalls = daemon.metric("uma_black_box_missed_records_total");
    let hung = disk.freeze();
    let frozen = Instant::now();
    daemon.wait_until("reporting a hung disk", |daemon| daemon.metric(UP) == 0.0);
    println!("reported after {:.1} s", frozen.elapsed().as_secs_f64());
    let status = daemon.get("/api/v1/status").1;
    assert!(status.contains("the disk has not taken a record for"), "{status}");
    assert_eq!(daemon.get("/-/healthy").0, 200);
    let late = daemon.metric("uma_samples_missed_total") - missed;
    assert!(late <= 2.0, "{late} samples were late while the disk hung");
    std::thread::sleep((2 * PATIENCE).saturating_sub(frozen.elapsed()));
    let silence = notifications.longest_silence(frozen);
    assert!(silence < PATIENCE, "systemd would have ended it after {silence:?}");
    drop(hung);
    daemon.wait_until("recording again", |daemon| daemon.metric(UP) == 1.0);
    assert!(daemon.metric("uma_black_box_missed_records_total") >= stalls + 3.0);
    daemon.terminate();
}

#[test]
fn real_black_box_survives_a_full_and_a_read_only_disk() {
    if !enabled() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disk = Mounted::memory(&folder.path().join("memory"), "1M");
    let daemon = Daemon::start(&disk.0, &["--recording.size=0"]);
    daemon.wait_until("reported", |daemon| daemon.metrics().get(UP) == Some(&0.0));
    assert!(daemon.get("/api/v1/status").1.contains("No space left on device"));
    // It is tried again without a request, perhaps on a file system without direct I/O.
    succeed("mount", &["-o", "remount,size=64M", text(&disk.0)]);
    daemon.wait_until("recording", |daemon| daemon.metrics().get(UP) == Some(&1.0));
    daemon.wait_until("recording on", |daemon| daemon.metric(RECORDS) >= 2.0);
    daemon.kill();

    succeed("mount", &["-o", "remount,ro", text(&disk.0)]);
    assert_eq!(last_boot(&disk.0)[0]["end"], "unknown", "without a boot id nothing is claimed");
    let daemon = Daemon::start(&disk.0, &["--recording.size=0"]);
    daemon.wait_until("reported", |daemon| daemon.metrics().get(UP) == Some(&0.0));
    let status = daemon.get("/api/v1/status").1;
    assert!(status.contains("Read-only file system"), "{status}");
    daemon.terminate();
}
