//! Files of several boots in a folder.

use std::fs::{self, File};
use std::path::Path;

use super::{boot, moment};
use crate::journal::black_box::*;

const HOUR_MS: i64 = 3_600_000;

/// What a program does that starts, writes so many records from `from_ms` on, and ends in order or
/// not. The boot begins at `began_ms`.
struct Run<'a> {
    storage: &'a Path,
    boot: &'a str,
    began_ms: i64,
    from_ms: i64,
    records: i64,
    closed: bool,
}

impl Run<'_> {
    fn now(&self, ms: i64) -> crate::model::Moment {
        let uptime = std::time::Duration::from_millis((ms - self.began_ms).unsigned_abs());
        crate::model::Moment { uptime, ..moment(ms) }
    }

    fn find(&self) -> Option<LastBoot> {
        let folder = Folder::read(self.storage).unwrap();
        folder.last_boot(boot(self.boot), self.now(self.from_ms))
    }

    fn go(&self) -> Option<LastBoot> {
        let folder = Folder::read(self.storage).unwrap();
        let now = self.now(self.from_ms);
        let last_boot = folder.last_boot(boot(self.boot), now);
        let (mut ring, remarks) =
            folder.open(boot(self.boot), now, 16, last_boot.as_ref()).unwrap();
        assert_eq!(remarks, [] as [&str; 0]);
        for second in 0..self.records {
            let mut record =
                BlackBoxRecord::new(boot(self.boot), self.now(self.from_ms + second * 1000));
            record.reported = true;
            record.closed = self.closed && second == self.records - 1;
            ring.write(&mut record).unwrap();
        }
        last_boot
    }
}

fn names(storage: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(storage.join("black-box"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn an_unclean_end_of_a_boot_is_found_by_the_next_boot_and_after_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path();
    let run = Run { storage, boot: "a", began_ms: 0, from_ms: 1000, records: 20, closed: false };
    assert_eq!(run.go(), None, "nothing is known before the first boot");
    let restart = Run { from_ms: 60_000, records: 1, closed: true, ..run };
    assert_eq!(restart.go(), None, "a restart is no boot");
    let crashed = Run { from_ms: 70_000, records: 5, closed: false, ..restart };
    assert_eq!(crashed.go(), None);

    let next = Run { boot: "b", began_ms: 100_000, from_ms: 110_000, records: 3, ..run };
    let found = next.go().unwrap();
    assert_eq!(found.previous.end, EndOfBoot::Unclean);
    assert_eq!(found.previous.boot_id.as_str(), "a");
    assert_eq!(found.previous.gap_ms, Some(100_000 - 74_000));
    assert_eq!((found.unclean_boots, found.reported), (1, false));
    let last = found.last.unwrap();
    assert_eq!((last.sequence, last.at.utc), (25, moment(74_000).utc), "numbers go on");
    assert!(recover(found.path.as_deref().unwrap()).unwrap().records.len() >= 9);

    let restarted = Run { from_ms: 2 * HOUR_MS, ..next }.find().unwrap();
    assert_eq!(restarted, LastBoot { reported: true, ..found }, "later it is still the same");

    let third = Run { boot: "c", began_ms: HOUR_MS, from_ms: HOUR_MS, ..next }.find().unwrap();
    assert_eq!((third.previous.end, third.unclean_boots), (EndOfBoot::Unclean, 2));
}

#[test]
fn a_clean_end_is_recognised_if_the_next_boot_follows_soon() {
    for (began_ms, end) in
        [(60_000, EndOfBoot::Clean), (HOUR_MS, EndOfBoot::Unknown), (-HOUR_MS, EndOfBoot::Unknown)]
    {
        let folder = tempfile::tempdir().unwrap();
        let storage = folder.path();
        Run { storage, boot: "a", began_ms: 0, from_ms: 0, records: 9, closed: true }.go();
        let from_ms = began_ms + 5000;
        let next = Run { storage, boot: "b", began_ms, from_ms, records: 1, closed: false };
        let found = next.go().unwrap();
        assert_eq!((found.previous.end, found.unclean_boots), (end, 0), "{began_ms}");
    }
}

#[test]
fn boots_without_ids_are_indistinguishable_and_their_end_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path();
    let run = Run { storage, boot: "a", began_ms: 0, from_ms: 0, records: 3, closed: false };
    run.go();
    let nameless = Run { boot: "", from_ms: 9000, ..run };
    assert_eq!(nameless.go().unwrap().previous.end, EndOfBoot::Unknown);
    assert_eq!(Run { from_ms: 20_000, ..nameless }.find().unwrap().unclean_boots, 0);
}

#[test]
fn five_boots_are_kept_and_foreign_files_never_touched() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path();
    for (number, name) in ["a", "b", "c", "d", "e", "f", "g"].into_iter().enumerate() {
        let began_ms = i64::try_from(number).unwrap() * HOUR_MS;
        let run =
            Run { storage, boot: name, began_ms, from_ms: began_ms, records: 1, closed: false };
        run.go();
    }
    let kept: Vec<String> = (2..7).map(|number| format!("{number:08}.umabox")).collect();
    assert_eq!(names(storage), kept);

    let path = |name: &str| storage.join("black-box").join(name);
    fs::write(path("00000040.umabox"), "something else").unwrap();
    let mut newer = fs::read(path("00000006.umabox")).unwrap();
    newer[6] = 9;
    fs::write(path("00000041.umabox"), &newer).unwrap();
    fs::write(path("notes.txt"), "mine").unwrap();
    fs::create_dir(path("00000042.umabox")).unwrap();

    let found = Folder::read(storage).unwrap();
    let now = moment(10 * HOUR_MS);
    let last_boot = found.last_boot(boot("h"), now);
    assert_eq!(last_boot.as_ref().unwrap().previous.boot_id.as_str(), "g");
    let (_ring, remarks) = found.open(boot("h"), now, 16, last_boot.as_ref()).unwrap();
    assert_eq!(remarks.len(), 3, "{remarks:?}");
    assert!(remarks[0].contains("set aside as") && remarks[0].contains("00000040"), "{remarks:?}");
    assert!(remarks[1].contains("left alone: it has version 9"), "{remarks:?}");
    assert!(remarks[2].contains("left alone: it cannot be read"), "{remarks:?}");
    assert_eq!(fs::read(path("00000040.umabox.foreign")).unwrap(), b"something else");
    assert_eq!(fs::read(path("00000041.umabox")).unwrap(), newer);
    assert!(path("notes.txt").exists() && path("00000043.umabox").is_file());
    assert_eq!(Folder::read(storage).unwrap().files().len(), 5);
}

#[test]
fn only_one_process_writes_and_a_half_created_file_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path();
    let open = || Folder::read(storage).unwrap().open(boot("a"), moment(0), 16, None);
    let first = open().unwrap();
    let error = open().unwrap_err().to_string();
    assert!(error.contains("another umawarden records there"), "{error}");
    drop(first);
    open().unwrap();

    fs::write(storage.join("black-box/00000007.new"), "half").unwrap();
    assert_eq!(Folder::read(storage).unwrap().files().len(), 1);
}

#[test]
fn a_truncated_file_grows_again() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path();
    let run = Run { storage, boot: "a", began_ms: 0, from_ms: 0, records: 16, closed: false };
    run.go();
    let path = storage.join("black-box/00000000.umabox");
    File::options().write(true).open(&path).unwrap().set_len(PAGE_BYTES as u64 + 700).unwrap();
    let cut = Run { boot: "b", began_ms: 99_000, from_ms: 99_000, ..run }.find().unwrap();
    assert_eq!(cut.last, None, "a page that is not whole is not taken");
    Run { from_ms: 30_000, records: 20, ..run }.go();
    let found = Run { boot: "b", began_ms: 99_000, from_ms: 99_000, ..run }.find().unwrap();
    assert_eq!(found.last.unwrap().at.utc, moment(49_000).utc);
}

#[test]
fn the_error_for_an_unwritable_path_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let storage = folder.path().join("file");
    fs::write(&storage, "").unwrap();
    let error = match Folder::read(&storage) {
        Err(error) => error.to_string(),
        Ok(found) => found.open(boot("a"), moment(0), 16, None).unwrap_err().to_string(),
    };
    assert!(error.contains("black-box") && error.contains("cannot"), "{error}");
}
