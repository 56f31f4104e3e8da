//! The first page of a file: the boot of the records, and the end of the previous boot.

use std::time::Duration;

use jiff::Timestamp;

use super::record::{BootId, RECORD_BYTES, put, put_text, take, take_text, whole_ms};
use crate::model::Moment;

/// The magic bytes of a file; the version follows as two bytes, little-endian.
pub const MAGIC: [u8; 6] = *b"umabox";

/// The version of the format that this build writes and reads.
pub const VERSION: u16 = 1;

/// The unit of a write: a page has eight records, and every block device takes whole pages.
pub const PAGE_BYTES: usize = 4096;

/// Records of a page.
pub const RECORDS_A_PAGE: u32 = (PAGE_BYTES / RECORD_BYTES) as u32;

/// A day of records. A header with more is invalid.
pub const MOST_RECORDS: u32 = 86_400;

/// The longest time from a clean end of the program to the next boot. Servers need up to ten
/// minutes before their kernel starts.
const CLEAN_WITHIN: Duration = Duration::from_secs(15 * 60);

/// The tolerated contradiction of two readings of the wall clock.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

const VERSION_AT: usize = 6;
const CRC: usize = 8;
const RECORD_SIZE: usize = 12;
const RECORDS: usize = 16;
const PAGE_SIZE: usize = 20;
const CREATED_UTC_MS: usize = 24;
const CREATED_UPTIME_MS: usize = 32;
const UNCLEAN_BOOTS: usize = 40;
const PREVIOUS_END: usize = 44;
const BOOT_ID_LENGTH: usize = 45;
const PREVIOUS_ID_LENGTH: usize = 46;
const BOOT_ID: usize = 48;
const PREVIOUS_GAP_MS: usize = 88;
const PREVIOUS_ID: usize = 96;

const NO_GAP: i64 = i64::MIN;

/// The end of a boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOfBoot {
    /// Clean: the program ended, and the next boot began soon after that.
    Clean,
    /// Unclean: the records stop without an end of the program.
    Unclean,
    /// Unknown: the program ended long before the next boot, or the clocks contradict each other.
    Unknown,
}

impl EndOfBoot {
    /// The name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Unclean => "unclean",
            Self::Unknown => "unknown",
        }
    }

    /// From the last record of a boot, and the time from it to the next boot in milliseconds.
    pub fn of(closed: bool, gap_ms: Option<i64>) -> Self {
        let at_least = -i64::try_from(CLOCKS_DIFFER.as_millis()).unwrap_or(i64::MAX);
        let at_most = i64::try_from(CLEAN_WITHIN.as_millis()).unwrap_or(i64::MAX);
        match gap_ms {
            _ if !closed => Self::Unclean,
            Some(gap) if (at_least..=at_most).contains(&gap) => Self::Clean,
            _ => Self::Unknown,
        }
    }
}

/// The previous boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousBoot {
    /// Id of that boot.
    pub boot_id: BootId,
    /// How that boot ended.
    pub end: EndOfBoot,
    /// Time from its last record to the beginning of the next boot, in milliseconds. Negative if
    /// the wall clock was set back.
    pub gap_ms: Option<i64>,
}

/// The first page of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The boot that wrote the file.
    pub boot_id: BootId,
    /// Number of records in the file; a multiple of [`RECORDS_A_PAGE`].
    pub records: u32,
    /// The time of the creation of the file.
    pub created: Moment,
    /// The known number of unclean boots up to then.
    pub unclean_boots: u32,
    /// The boot before, if one is known.
    pub previous: Option<PreviousBoot>,
}

/// Why a file is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnusableFile {
    /// The file is foreign, or its first page is damaged.
    #[error("it is no black box of umawarden's, or its first page is damaged")]
    Foreign,
    /// A newer program wrote it.
    #[error("it has version {0} of the format; this program reads version {VERSION}")]
    Version(u16),
}

impl Header {
    /// Writes the first page of the file, with its checksum.
    pub fn encode(&self, out: &mut [u8; PAGE_BYTES]) {
        out.fill(0);
        put(out, 0, MAGIC);
        put(out, VERSION_AT, VERSION.to_le_bytes());
        put(out, RECORD_SIZE, (RECORD_BYTES as u32).to_le_bytes());
        put(out, RECORDS, self.records.to_le_bytes());
        put(out, PAGE_SIZE, (PAGE_BYTES as u32).to_le_bytes());
        put(out, CREATED_UTC_MS, self.created.utc_ms().to_le_bytes());
        put(out, CREATED_UPTIME_MS, whole_ms(self.created.uptime).to_le_bytes());
        put(out, UNCLEAN_BOOTS, self.unclean_boots.to_le_bytes());
        put_text(out, BOOT_ID_LENGTH, BOOT_ID, &self.boot_id);
        let mut gap_ms = NO_GAP;
        if let Some(previous) = &self.previous {
            let end = match previous.end {
                EndOfBoot::Clean => 1,
                EndOfBoot::Unclean => 2,
                EndOfBoot::Unknown => 3,
            };
            put(out, PREVIOUS_END, [end]);
            put_text(out, PREVIOUS_ID_LENGTH, PREVIOUS_ID, &previous.boot_id);
            gap_ms = previous.gap_ms.unwrap_or(NO_GAP);
        }
        put(out, PREVIOUS_GAP_MS, gap_ms.to_le_bytes());
        let crc = crc32fast::hash(&out[RECORD_SIZE..]);
        put(out, CRC, crc.to_le_bytes());
    }

    /// Decodes a header.
    pub fn decode(page: &[u8; PAGE_BYTES]) -> Result<Self, UnusableFile> {
        if page[..MAGIC.len()] != MAGIC {
            return Err(UnusableFile::Foreign);
        }
        match u16::from_le_bytes(take(page, VERSION_AT)) {
            VERSION => {}
            version => return Err(UnusableFile::Version(version)),
        }
        if crc32fast::hash(&page[RECORD_SIZE..]) != u32::from_le_bytes(take(page, CRC)) {
            return Err(UnusableFile::Foreign);
        }
        read(page).ok_or(UnusableFile::Foreign)
    }
}

fn read(page: &[u8; PAGE_BYTES]) -> Option<Header> {
    let number = |offset| u32::from_le_bytes(take(page, offset));
    let sizes = (number(RECORD_SIZE) as usize, number(PAGE_SIZE) as usize);
    let records = number(RECORDS);
    let sound = sizes == (RECORD_BYTES, PAGE_BYTES)
        && (1..=MOST_RECORDS).contains(&records)
        && records.is_multiple_of(RECORDS_A_PAGE);
    if !sound {
        return None;
    }
    let end = match page[PREVIOUS_END] {
        0 => None,
        1 => Some(EndOfBoot::Clean),
        2 => Some(EndOfBoot::Unclean),
        _ => Some(EndOfBoot::Unknown),
    };
    let gap_ms = i64::from_le_bytes(take(page, PREVIOUS_GAP_MS));
    let gap_ms = (gap_ms != NO_GAP).then_some(gap_ms);
    let previous_id = take_text(page, PREVIOUS_ID_LENGTH, PREVIOUS_ID)?;
    let utc_ms = i64::from_le_bytes(take(page, CREATED_UTC_MS));
    let uptime = Duration::from_millis(u64::from_le_bytes(take(page, CREATED_UPTIME_MS)));
    Some(Header {
        boot_id: take_text(page, BOOT_ID_LENGTH, BOOT_ID)?,
        records,
        created: Moment { uptime, utc: Timestamp::from_millisecond(utc_ms).ok()? },
        unclean_boots: number(UNCLEAN_BOOTS),
        previous: end.map(|end| PreviousBoot { boot_id: previous_id, end, gap_ms }),
    })
}
