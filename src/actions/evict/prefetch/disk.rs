//! Whether others use the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::actions::evict::files::FileIdentity;

/// Between two counts.
const COUNT_EVERY: Duration = Duration::from_secs(1);

/// What others move in a second is ignored up to this.
const LEAST_OTHERS_BYTES: u64 = 32 << 20;

/// The disk is busy with others once they move this part of all.
const OTHERS_PART: u64 = 4;

/// The unit of the kernel's counters.
const SECTOR_BYTES: u64 = 512;

/// Bytes moved up to a moment.
#[derive(Clone, Copy, Debug)]
struct MovedBytes {
    at: Duration,
    /// By the disk.
    all: u64,
    /// For the engine, and ahead of it.
    ours: u64,
}

/// The disk of the files that are read ahead.
#[derive(Debug, Default)]
pub(super) struct Disk {
    last: Option<(PathBuf, MovedBytes)>,
    is_busy: bool,
}

impl Disk {
    /// Whether others have used the disk of a file much in the last second. `ours`: bytes that were
    /// read for the engine and ahead of it so far, counted only when it is needed. A file system
    /// without a disk of its own number (NFS, btrfs, overlayfs) counts as unused.
    pub(super) fn is_busy(
        &mut self,
        sysfs: &Path,
        file: FileIdentity,
        at: Duration,
        ours: impl FnOnce() -> u64,
    ) -> bool {
        let stat = stat_of(sysfs, file);
        let is_due = |(of, last): &(PathBuf, MovedBytes)| {
            *of != stat || at.saturating_sub(last.at) >= COUNT_EVERY
        };
        if !self.last.as_ref().is_none_or(is_due) {
            return self.is_busy;
        }
        let all = fs::read_to_string(&stat).ok().and_then(|text| moved_bytes(&text));
        let Some(all) = all else {
            (self.last, self.is_busy) = (None, false);
            return false;
        };
        let now = MovedBytes { at, all, ours: ours() };
        let last = self.last.replace((stat.clone(), now)).filter(|(of, _)| *of == stat);
        self.is_busy = last.is_some_and(|(_, last)| is_others(last, now));
        self.is_busy
    }
}

fn is_others(last: MovedBytes, now: MovedBytes) -> bool {
    let all = now.all.saturating_sub(last.all);
    let others = all.saturating_sub(now.ours.saturating_sub(last.ours));
    let seconds = now.at.saturating_sub(last.at).as_secs_f64().max(1.0);
    others as f64 / seconds >= LEAST_OTHERS_BYTES as f64 && others >= all / OTHERS_PART
}

fn stat_of(sysfs: &Path, file: FileIdentity) -> PathBuf {
    let (major, minor) = (rustix::fs::major(file.device), rustix::fs::minor(file.device));
    sysfs.join(format!("dev/block/{major}:{minor}/stat"))
}

/// Bytes read and written, of Documentation/block/stat.rst: sectors are the third and the seventh
/// number.
fn moved_bytes(text: &str) -> Option<u64> {
    let number = |place| text.split_ascii_whitespace().nth(place)?.parse::<u64>().ok();
    Some(number(2)?.saturating_add(number(6)?).saturating_mul(SECTOR_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_disk_is_busy_where_others_move_much_and_a_quarter_of_all() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileIdentity { device: rustix::fs::makedev(259, 3), inode: 1 };
        let stat = stat_of(folder.path(), file);
        fs::create_dir_all(stat.parent().unwrap()).unwrap();
        let mut disk = Disk::default();
        let mut second = 0;
        let mut all = 0;
        let mut busy = |ours: u64, others: u64| {
            (second, all) = (second + 1, all + (ours + others) * MIB / SECTOR_BYTES);
            fs::write(&stat, format!("  9 8 {all} 6 5 4 0 2 1 0 0")).unwrap();
            let ours = move || second * ours * MIB;
            disk.is_busy(folder.path(), file, Duration::from_secs(second), ours)
        };
        assert!(!busy(1000, 5000), "there is nothing to compare with");
        assert!(!busy(1000, 20) && !busy(1000, 300));
        assert!(busy(1000, 400) && busy(1000, 2000));
        assert!(!busy(1000, 0));
        let number = Duration::from_millis(6_500);
        assert!(!disk.is_busy(folder.path(), file, number, || unreachable!("it was just counted")));
        fs::remove_file(&stat).unwrap();
        assert!(!disk.is_busy(folder.path(), file, Duration::from_secs(60), || 0));
    }

    /// Recorded on Linux 6.18.44 (`/sys/dev/block/254:0/stat`) beside a compiler, while a control
    /// group limited all reads of the engine and ahead of it to 100 MiB a second: the time in
    /// hundredths of a second, sectors read and written, and MiB that were read ahead.
    const LIMITED: [(u64, u64, u64, u64); 6] = [
        (1_199, 607_446_610, 789_506_064, 64),
        (1_306, 607_675_986, 789_506_104, 144),
        (1_411, 607_893_170, 789_506_120, 272),
        (1_523, 608_136_458, 789_905_616, 384),
        (1_631, 608_407_114, 789_905_656, 512),
        (1_742, 608_627_074, 789_905_672, 640),
    ];

    #[test]
    fn a_slow_disk_is_busy_in_the_second_in_which_another_process_writes() {
        let folder = tempfile::tempdir().unwrap();
        let file = FileIdentity { device: rustix::fs::makedev(254, 0), inode: 1 };
        let stat = stat_of(folder.path(), file);
        fs::create_dir_all(stat.parent().unwrap()).unwrap();
        let mut disk = Disk::default();
        let busy = LIMITED.map(|(hundredths, read, written, ahead)| {
            fs::write(&stat, format!("1 0 {read} 1 1 0 {written} 1 0 1 1")).unwrap();
            let at = Duration::from_millis(10 * hundredths);
            disk.is_busy(folder.path(), file, at, || (306 + ahead) * MIB)
        });
        assert_eq!(busy, [false, false, false, true, false, false]);
    }
}
