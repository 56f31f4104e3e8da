//! The folder with the files of the last boots.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::header::{EndOfBoot, Header, PAGE_BYTES, PreviousBoot, RECORDS_A_PAGE, UnusableFile};
use super::record::{BlackBoxRecord, BootId};
use super::ring::{AlignedPage, BlackBoxRing, Disk, page_offset};
use super::scan::{RecoveredRecords, read_header, scan};
use crate::files::open_regular;
use crate::journal::file::Locked;
use crate::model::Moment;

/// The name of the folder below `storage.path`.
const FOLDER: &str = "black-box";

const FILE_ENDING: &str = "umabox";

/// Foreign files get this suffix, and are left alone from then on.
const ASIDE_ENDING: &str = "foreign";

/// The number of kept files, with that of this boot.
const BOOTS_KEPT: usize = 5;

/// A step on the files failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {step} {}: {error}", .path.display())]
pub struct BlackBoxError {
    /// The failed step.
    pub step: &'static str,
    /// Path of the file or folder.
    pub path: PathBuf,
    /// The error of the system.
    pub error: io::Error,
}

/// The content of a folder.
#[derive(Debug, Default)]
pub struct Folder {
    path: PathBuf,
    /// The oldest first.
    files: Vec<(PathBuf, Header)>,
    unusable: Vec<(PathBuf, LeftOutReason)>,
    next_number: u64,
}

/// Why a file is left out.
#[derive(Debug, thiserror::Error)]
pub enum LeftOutReason {
    /// The file is no black box of this version.
    #[error(transparent)]
    Format(UnusableFile),
    /// The first page cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(io::Error),
}

/// The end of the previous boot, as far as known.
#[derive(Clone, Debug, PartialEq)]
pub struct LastBoot {
    /// The boot, its end, and the begin of the next one.
    pub previous: PreviousBoot,
    /// The known number of unclean boots, with this one.
    pub unclean_boots: u32,
    /// The last record of that boot, if any is left.
    pub last: Option<BlackBoxRecord>,
    /// Whether this boot has reported it already.
    pub reported: bool,
    /// The file of that boot, if it is left.
    pub path: Option<PathBuf>,
}

/// The file of this boot.
#[derive(Debug)]
pub struct DiskFile {
    file: File,
    path: PathBuf,
    /// Locked while this process writes in the folder.
    _lock: Locked,
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl Fn(io::Error) -> BlackBoxError + use<'a> {
    move |error| BlackBoxError { step, path: path.to_owned(), error }
}

impl Folder {
    /// Reads the first page of each file below that `storage.path`. Nothing is changed.
    pub fn read(storage: &Path) -> Result<Self, BlackBoxError> {
        let path = storage.join(FOLDER);
        let mut folder = Self { path: path.clone(), ..Self::default() };
        let entries = match fs::read_dir(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(folder),
            entries => entries.map_err(failed("read the folder", &path))?,
        };
        let mut numbered = Vec::new();
        for entry in entries {
            let file = entry.map_err(failed("read the folder", &path))?.path();
            if let Some(number) = number_of(&file) {
                folder.next_number = folder.next_number.max(number.saturating_add(1));
                if file.extension().is_some_and(|ending| ending == FILE_ENDING) {
                    numbered.push((number, file));
                }
            }
        }
        numbered.sort();
        for (_, file) in numbered {
            match open_regular(&file).and_then(|opened| read_header(&opened)) {
                Ok(Ok(header)) => folder.files.push((file, header)),
                Ok(Err(unusable)) => folder.unusable.push((file, LeftOutReason::Format(unusable))),
                Err(error) => folder.unusable.push((file, LeftOutReason::Unreadable(error))),
            }
        }
        Ok(folder)
    }

    /// Its path, which need not exist.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The end of the boot of a file whose last record is `last`. `now` is in another boot,
    /// `current`.
    pub fn end_of(
        &self,
        index: usize,
        current: BootId,
        last: Option<&BlackBoxRecord>,
        now: Moment,
    ) -> PreviousBoot {
        let boot_id = self.files[index].1.boot_id;
        let next = self.files.get(index + 1).and_then(|(_, header)| header.previous);
        match next.filter(|previous| previous.boot_id == boot_id) {
            Some(previous) => previous,
            None => end_of_boot(boot_id, current, last, now).0,
        }
    }

    /// The files, the oldest first.
    pub fn files(&self) -> &[(PathBuf, Header)] {
        &self.files
    }

    /// Files with such a name that cannot be read.
    pub fn unusable(&self) -> &[(PathBuf, LeftOutReason)] {
        &self.unusable
    }

    /// The end of the boot before `boot_id`. `now` is in boot `boot_id`.
    pub fn last_boot(&self, boot_id: BootId, now: Moment) -> Option<LastBoot> {
        let (newest, header) = self.files.last()?;
        if header.boot_id != boot_id {
            let last = newest_record(newest, header);
            let (previous, unclean) = end_of_boot(header.boot_id, boot_id, last.as_ref(), now);
            let unclean_boots = header.unclean_boots.saturating_add(u32::from(unclean));
            let path = Some(newest.clone());
            return Some(LastBoot { previous, unclean_boots, last, reported: false, path });
        }
        let previous = header.previous?;
        let reported = newest_record(newest, header).is_some_and(|record| record.reported);
        let before = self.files.iter().rev().find(|(_, file)| file.boot_id == previous.boot_id);
        let last = before.and_then(|(path, header)| newest_record(path, header));
        let path = before.map(|(path, _)| path.clone());
        let unclean_boots = header.unclean_boots;
        Some(LastBoot { previous, unclean_boots, last, reported, path })
    }

    /// Opens the file of this boot, or creates it for a number of records, and removes the oldest
    /// files. Foreign files with such a name are set aside, with a remark for each.
    pub fn open(
        mut self,
        boot_id: BootId,
        now: Moment,
        records: u32,
        last_boot: Option<&LastBoot>,
    ) -> Result<(BlackBoxRing<DiskFile>, Vec<String>), BlackBoxError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(&self.path)
            .map_err(failed("make the folder", &self.path))?;
        let lock = self.lock()?;
        let mut remarks = self.set_aside();
        let known = self.files.last().filter(|(_, header)| header.boot_id == boot_id);
        let known = known.and_then(|(path, header)| {
            let opened = OpenFile::read(path, header);
            opened.map_err(|error| remarks.push(format!("{error}; another file is made"))).ok()
        });
        let opened = match known {
            Some(opened) => opened,
            None => {
                let records = records.next_multiple_of(RECORDS_A_PAGE);
                let header = Header {
                    boot_id,
                    records,
                    created: now,
                    unclean_boots: last_boot.map_or(0, |last| last.unclean_boots),
                    previous: last_boot.map(|last| last.previous),
                };
                OpenFile::read(&self.make(&header)?, &header)?
            }
        };
        self.let_go_of_oldest();
        Ok((opened.into_ring(lock), remarks))
    }

    /// Locks the folder: only one process writes in it.
    fn lock(&self) -> Result<Locked, BlackBoxError> {
        let lock = failed("lock the folder", &self.path);
        let folder = File::open(&self.path).map_err(&lock)?;
        Locked::try_new(folder).map_err(|(_, error)| match error {
            TryLockError::Error(error) => lock(error),
            TryLockError::WouldBlock => lock(io::Error::other("another umawarden records there")),
        })
    }

    fn set_aside(&mut self) -> Vec<String> {
        let mut remarks = Vec::new();
        for (path, unusable) in std::mem::take(&mut self.unusable) {
            let name = path.display();
            // A later upgrade to the newer version finds its file again.
            if !matches!(unusable, LeftOutReason::Format(UnusableFile::Foreign)) {
                remarks.push(format!("{name} is left alone: {unusable}"));
                continue;
            }
            let mut aside = path.clone().into_os_string();
            aside.push(".");
            aside.push(ASIDE_ENDING);
            match fs::rename(&path, &aside) {
                Ok(()) => remarks.push(format!(
                    "{name} is set aside as {}: {unusable}",
                    Path::new(&aside).display()
                )),
                Err(error) => {
                    remarks.push(format!("{name} cannot be set aside ({error}): {unusable}"));
                }
            }
        }
        remarks
    }

    /// A half-created file is never used: it gets its name last.
    fn make(&mut self, header: &Header) -> Result<PathBuf, BlackBoxError> {
        let path = self.path.join(format!("{:08}.{FILE_ENDING}", self.next_number));
        let new = path.with_extension("new");
        if let Err(error) = fill(&new, header).and_then(|()| fs::rename(&new, &path)) {
            // It may not exist.
            let _ = fs::remove_file(&new);
            return Err(failed("make", &path)(error));
        }
        let synced = File::open(&self.path).and_then(|folder| folder.sync_all());
        synced.map_err(failed("sync the folder", &self.path))?;
        self.files.push((path.clone(), *header));
        Ok(path)
    }

    fn let_go_of_oldest(&mut self) {
        let too_many = self.files.len().saturating_sub(BOOTS_KEPT);
        for (path, _) in self.files.drain(..too_many) {
            // The next start retries it.
            let _ = fs::remove_file(path);
        }
    }
}

/// Reads a whole file.
pub fn recover(path: &Path) -> Result<RecoveredRecords, BlackBoxError> {
    let recovered = open_regular(path).and_then(|file| {
        RecoveredRecords::read(&file).and_then(|recovered| recovered.map_err(io::Error::other))
    });
    recovered.map_err(failed("read", path))
}

fn number_of(path: &Path) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    let digits = name.split('.').next()?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

/// `None` also for an unreadable file, which must not prevent a new one.
fn newest_record(path: &Path, header: &Header) -> Option<BlackBoxRecord> {
    let file = open_regular(path)
        .inspect_err(|error| tracing::warn!(path = %path.display(), %error, "black box not read"));
    let mut newest: Option<BlackBoxRecord> = None;
    scan(header, &file.ok()?, |record| {
        if newest.is_none_or(|newest| newest.sequence < record.sequence) {
            newest = Some(*record);
        }
    });
    newest
}

/// The end of a previous boot, and whether it was unclean.
fn end_of_boot(
    boot_id: BootId,
    current: BootId,
    last: Option<&BlackBoxRecord>,
    now: Moment,
) -> (PreviousBoot, bool) {
    let began_ms = now.utc_ms().saturating_sub(i64::try_from(now.uptime.as_millis()).unwrap_or(0));
    let gap_ms = last.map(|last| began_ms.saturating_sub(last.at.utc_ms()));
    // Without an id, this may still be the same boot.
    let nameless = boot_id.is_empty() || current.is_empty();
    let end = match last {
        Some(last) if !nameless => EndOfBoot::of(last.closed, gap_ms),
        _ => EndOfBoot::Unknown,
    };
    (PreviousBoot { boot_id, end, gap_ms }, end == EndOfBoot::Unclean)
}

/// Every block is written at once, so that no record needs a new block, or memory for the metadata
/// of the file system.
fn fill(path: &Path, header: &Header) -> io::Result<()> {
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(path)?;
    let pages = 1 + header.records / RECORDS_A_PAGE;
    let bytes = u64::from(pages) * PAGE_BYTES as u64;
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        // Not every file system supports it; writing has the same effect, with more fragments.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
        Err(error) => return Err(error.into()),
    }
    let mut page = [0; PAGE_BYTES];
    header.encode(&mut page);
    file.write_all(&page)?;
    page.fill(0);
    for _ in 1..pages {
        file.write_all(&page)?;
    }
    file.sync_all()
}

/// A file that is open for records.
struct OpenFile {
    file: File,
    path: PathBuf,
    records: u32,
    next: u64,
    page: Box<AlignedPage>,
}

impl OpenFile {
    fn read(path: &Path, header: &Header) -> Result<Self, BlackBoxError> {
        let open = failed("open", path);
        let flags = i32::try_from(OFlags::DSYNC.bits()).unwrap_or(0);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
            .map_err(&open)?;
        let newest = newest_record(path, header);
        let next = newest.map_or(0, |record| record.sequence.saturating_add(1));
        let mut page = Box::new(AlignedPage([0; PAGE_BYTES]));
        let offset = page_offset(next % u64::from(header.records));
        match file.read_exact_at(&mut page.0, offset) {
            Ok(()) => {}
            // A truncated file grows again with its records.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => page.0.fill(0),
            Err(error) => return Err(open(error)),
        }
        Ok(Self { file, path: path.to_owned(), records: header.records, next, page })
    }

    fn into_ring(self, lock: Locked) -> BlackBoxRing<DiskFile> {
        let mut disk = DiskFile { file: self.file, path: self.path, _lock: lock };
        // The page cache would need memory when none is free.
        if let Err(error) = disk.set_direct(true) {
            let path = disk.path.display();
            tracing::debug!(%error, %path, "the black box is written through the page cache");
        }
        BlackBoxRing::on(disk, self.records, self.next, self.page)
    }
}

impl DiskFile {
    /// Whether the file still exists at its path.
    pub fn is_there(&self) -> bool {
        self.file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    /// Path of the file in the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn set_direct(&mut self, direct: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.file)?;
        flags.set(OFlags::DIRECT, direct);
        Ok(fcntl_setfl(&self.file, flags)?)
    }
}

impl Disk for DiskFile {
    fn put(&mut self, offset: u64, page: &AlignedPage) -> io::Result<()> {
        match self.file.write_all_at(&page.0, offset) {
            // A file system that takes the flag and not the page, or a disk of larger blocks.
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                self.set_direct(false)?;
                self.file.write_all_at(&page.0, offset)
            }
            written => written,
        }
    }
}
