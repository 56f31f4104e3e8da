//! One second as 512 bytes.

use std::time::Duration;

use jiff::Timestamp;

use super::text::ShortText;
use crate::model::{Moment, Reading};

/// The size of a record: no disk tears anything smaller.
pub const RECORD_BYTES: usize = 512;

/// The offset of each field; gaps are 0.
const CRC: usize = 0;
const FLAGS: usize = 4;
const SEQUENCE: usize = 8;
const UTC_MS: usize = 16;
const UPTIME_MS: usize = 24;
const LOOP_AGE_MS: usize = 32;
const WRITE_MS: usize = 36;
const MISSED: usize = 40;
const RULE_COUNTS: usize = 44;
const BOOT_ID_LENGTH: usize = 50;
const FIRING_LENGTH: usize = 51;
const KIND_LENGTH: usize = 52;
const DETAIL_LENGTH: usize = 53;
const EVENT_UTC_MS: usize = 56;
const EVENT_SEQUENCE: usize = 64;
const BOOT_ID: usize = 72;
const SIGNALS: usize = 112;
const KIND: usize = 296;
const DETAIL: usize = 320;
const FIRING: usize = 416;

const _: () = assert!(SIGNALS + 8 * Signal::COUNT == KIND);
const _: () = assert!(FIRING + FIRING_BYTES == RECORD_BYTES);

const BOOT_ID_BYTES: usize = 40;
const KIND_BYTES: usize = 24;
const DETAIL_BYTES: usize = 96;
const FIRING_BYTES: usize = 96;

const CLOSED: u32 = 1;
const REPORTED: u32 = 2;

/// NaN values that no arithmetic yields.
const UNSUPPORTED: u64 = 0xfff8_756d_6100_0001;
const FAILED: u64 = 0xfff8_756d_6100_0002;

const NO_MS: u32 = u32::MAX;
const NO_TIME: i64 = i64::MIN;
const NO_SEQUENCE: u64 = u64::MAX;

/// The boot id of a record; a longer one is cut.
pub type BootId = ShortText<BOOT_ID_BYTES>;

/// Declares the values of a record in their order, which is that on disk.
macro_rules! signals {
    ($($(#[$doc:meta])+ $name:ident = $text:literal,)+) => {
        /// A value of a record. Bytes unless the name says otherwise.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Signal {
            $($(#[$doc])+ $name,)+
        }

        impl Signal {
            /// All values, in their order on disk.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The number of values.
            pub const COUNT: usize = Self::ALL.len();

            /// The key in JSON.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

signals! {
    /// `MemTotal`, like all that follow up to [`Self::CpuSome`] read by the black box itself.
    Total = "memory_total_bytes",
    /// `MemFree`.
    Free = "memory_free_bytes",
    /// `MemAvailable`.
    Available = "memory_available_bytes",
    /// Page cache without shmem.
    PageCache = "memory_page_cache_bytes",
    /// Page cache that must be written first.
    Dirty = "memory_dirty_bytes",
    /// `AnonPages`.
    Anonymous = "memory_anonymous_bytes",
    /// `Shmem`.
    Shmem = "memory_shmem_bytes",
    /// `Slab`.
    Slab = "memory_slab_bytes",
    /// `Unevictable`.
    Unevictable = "memory_unevictable_bytes",
    /// `SwapFree`.
    SwapFree = "swap_free_bytes",
    /// Memory in no counter of the kernel.
    Unaccounted = "memory_unaccounted_bytes",
    /// The share of the last 10 s in which some tasks waited for memory.
    MemorySome = "pressure_memory_some_ratio",
    /// The same for all tasks.
    MemoryFull = "pressure_memory_full_ratio",
    /// The same for the disks.
    IoFull = "pressure_io_full_ratio",
    /// Share of the last 10 s in which some tasks waited for a CPU.
    CpuSome = "pressure_cpu_some_ratio",
    /// The kernel's reserve; this and the following are of the loop's last snapshot.
    Reserve = "memory_reserve_bytes",
    /// The zones' low watermarks together.
    LowWatermark = "memory_low_watermark_bytes",
    /// Free memory in blocks of at least 2 MiB.
    Contiguous = "memory_contiguous_2mib_bytes",
    /// Free memory on the CPUs' own lists.
    PerCpuLists = "memory_per_cpu_lists_bytes",
    /// Pages that allocations scanned to reclaim them, since boot.
    DirectScans = "reclaim_direct_scanned_pages_total",
    /// Page faults that read from storage, since boot.
    MajorFaults = "major_page_faults_total",
    /// Pages written to swap, since boot.
    SwapOut = "swap_out_pages_total",
    /// Processes that the kernel killed for memory, since boot.
    OomKills = "oom_kills_total",
}

/// A kernel event, cut to its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastEvent {
    /// Time of the event, if the log has it.
    pub utc: Option<Timestamp>,
    /// Sequence number of the kernel log, if it has any.
    pub seq: Option<u64>,
    /// Kind of the event.
    pub kind: ShortText<KIND_BYTES>,
    /// The process or device that it concerns.
    pub detail: ShortText<DETAIL_BYTES>,
}

/// Number of rules in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Rules that fire.
    pub firing: u16,
    /// Rules whose condition holds, but not for long enough yet.
    pub pending: u16,
    /// Rules of unknown state.
    pub unknown: u16,
}

/// One second. Plain bytes: it can be copied and filled without any allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlackBoxRecord {
    /// The number of the record within the boot.
    pub sequence: u64,
    /// The time, in whole milliseconds.
    pub at: Moment,
    /// Whether the program ended cleanly with this record.
    pub closed: bool,
    /// Whether the end of the boot before has been reported as an event.
    pub reported: bool,
    /// The age of the loop's last snapshot; `None` before the first one.
    pub loop_age: Option<Duration>,
    /// The duration of the previous write.
    pub write_took: Option<Duration>,
    /// Seconds before this one that have no record.
    pub missed: u32,
    /// Id of the boot.
    pub boot_id: BootId,
    /// A value for each of [`Signal::ALL`].
    pub signals: [Reading<f64>; Signal::COUNT],
    /// The rules in the last snapshot of the loop.
    pub rules: RuleCounts,
    /// Names of firing rules, as many as fit, with blanks between.
    pub firing: ShortText<FIRING_BYTES>,
    /// The newest kernel event since the program started.
    pub last_event: Option<LastEvent>,
}

/// The content of a slot.
#[expect(clippy::large_enum_variant, reason = "it is short-lived; a box would allocate")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Slot {
    /// Nothing has been written there.
    Empty,
    /// A record whose checksum is right.
    Whole(BlackBoxRecord),
    /// A record that was torn or has been damaged.
    Damaged,
}

impl BlackBoxRecord {
    /// A record without values.
    pub fn new(boot_id: BootId, at: Moment) -> Self {
        Self {
            sequence: 0,
            at,
            closed: false,
            reported: false,
            loop_age: None,
            write_took: None,
            missed: 0,
            boot_id,
            signals: [Reading::Unsupported; Signal::COUNT],
            rules: RuleCounts::default(),
            firing: ShortText::default(),
            last_event: None,
        }
    }

    /// `Unsupported` until it is set.
    pub fn get(&self, signal: Signal) -> Reading<f64> {
        self.signals[signal as usize]
    }

    /// Replaces the value of that signal.
    pub fn set(&mut self, signal: Signal, value: Reading<f64>) {
        self.signals[signal as usize] = value;
    }

    /// Writes its fixed layout in little endian, with a checksum.
    pub fn encode(&self, out: &mut [u8; RECORD_BYTES]) {
        out.fill(0);
        let flags = if self.closed { CLOSED } else { 0 } | if self.reported { REPORTED } else { 0 };
        put(out, FLAGS, flags.to_le_bytes());
        put(out, SEQUENCE, self.sequence.to_le_bytes());
        put(out, UTC_MS, self.at.utc_ms().to_le_bytes());
        put(out, UPTIME_MS, whole_ms(self.at.uptime).to_le_bytes());
        put(out, LOOP_AGE_MS, short_ms(self.loop_age).to_le_bytes());
        put(out, WRITE_MS, short_ms(self.write_took).to_le_bytes());
        put(out, MISSED, self.missed.to_le_bytes());
        let counts = [self.rules.firing, self.rules.pending, self.rules.unknown];
        for (index, count) in counts.into_iter().enumerate() {
            put(out, RULE_COUNTS + 2 * index, count.to_le_bytes());
        }
        put_text(out, BOOT_ID_LENGTH, BOOT_ID, &self.boot_id);
        put_text(out, FIRING_LENGTH, FIRING, &self.firing);
        for (index, value) in self.signals.iter().enumerate() {
            put(out, SIGNALS + 8 * index, bits(*value).to_le_bytes());
        }
        let (mut utc_ms, mut sequence) = (NO_TIME, NO_SEQUENCE);
        if let Some(event) = &self.last_event {
            utc_ms = event.utc.map_or(NO_TIME, Timestamp::as_millisecond);
            sequence = event.seq.unwrap_or(NO_SEQUENCE);
            put_text(out, KIND_LENGTH, KIND, &event.kind);
            put_text(out, DETAIL_LENGTH, DETAIL, &event.detail);
        }
        put(out, EVENT_UTC_MS, utc_ms.to_le_bytes());
        put(out, EVENT_SEQUENCE, sequence.to_le_bytes());
        let crc = crc32fast::hash(&out[FLAGS..]);
        put(out, CRC, crc.to_le_bytes());
    }

    /// `Empty` where all bytes are 0, `Damaged` where the checksum fails.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Slot {
        if bytes.iter().all(|byte| *byte == 0) {
            return Slot::Empty;
        }
        if crc32fast::hash(&bytes[FLAGS..]) != u32::from_le_bytes(take(bytes, CRC)) {
            return Slot::Damaged;
        }
        read(bytes).map_or(Slot::Damaged, Slot::Whole)
    }
}

/// `None`: the slot has no record of this version.
fn read(bytes: &[u8; RECORD_BYTES]) -> Option<BlackBoxRecord> {
    let flags = u32::from_le_bytes(take(bytes, FLAGS));
    let number = |offset| u64::from_le_bytes(take(bytes, offset));
    let count = |index: usize| u16::from_le_bytes(take(bytes, RULE_COUNTS + 2 * index));
    let utc = Timestamp::from_millisecond(i64::from_le_bytes(take(bytes, UTC_MS))).ok()?;
    let mut signals = [Reading::Unsupported; Signal::COUNT];
    for (index, value) in signals.iter_mut().enumerate() {
        *value = reading(number(SIGNALS + 8 * index));
    }
    let kind = take_text(bytes, KIND_LENGTH, KIND)?;
    let last_event = (!kind.is_empty()).then_some(LastEvent {
        utc: Timestamp::from_millisecond(i64::from_le_bytes(take(bytes, EVENT_UTC_MS))).ok(),
        seq: Some(number(EVENT_SEQUENCE)).filter(|number| *number != NO_SEQUENCE),
        kind,
        detail: take_text(bytes, DETAIL_LENGTH, DETAIL)?,
    });
    Some(BlackBoxRecord {
        sequence: number(SEQUENCE),
        at: Moment { uptime: Duration::from_millis(number(UPTIME_MS)), utc },
        closed: flags & CLOSED != 0,
        reported: flags & REPORTED != 0,
        loop_age: from_short_ms(take(bytes, LOOP_AGE_MS)),
        write_took: from_short_ms(take(bytes, WRITE_MS)),
        missed: u32::from_le_bytes(take(bytes, MISSED)),
        boot_id: take_text(bytes, BOOT_ID_LENGTH, BOOT_ID)?,
        signals,
        rules: RuleCounts { firing: count(0), pending: count(1), unknown: count(2) },
        firing: take_text(bytes, FIRING_LENGTH, FIRING)?,
        last_event,
    })
}

pub(super) fn put<const N: usize>(out: &mut [u8], offset: usize, value: [u8; N]) {
    out[offset..offset + N].copy_from_slice(&value);
}

pub(super) fn take<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[offset..offset + N]);
    value
}

pub(super) fn put_text<const N: usize>(
    out: &mut [u8],
    length: usize,
    offset: usize,
    text: &ShortText<N>,
) {
    let bytes = text.as_str().as_bytes();
    // A short text has a length of one byte.
    out[length] = u8::try_from(bytes.len()).unwrap_or(0);
    out[offset..offset + bytes.len()].copy_from_slice(bytes);
}

pub(super) fn take_text<const N: usize>(
    bytes: &[u8],
    length: usize,
    offset: usize,
) -> Option<ShortText<N>> {
    let length = usize::from(bytes[length]);
    if length > N {
        return None;
    }
    std::str::from_utf8(&bytes[offset..offset + length]).ok().map(ShortText::new)
}

pub(super) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn short_ms(duration: Option<Duration>) -> u32 {
    duration.map_or(NO_MS, |duration| {
        u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).min(NO_MS - 1)
    })
}

fn from_short_ms(bytes: [u8; 4]) -> Option<Duration> {
    let ms = u32::from_le_bytes(bytes);
    (ms != NO_MS).then(|| Duration::from_millis(u64::from(ms)))
}

fn bits(reading: Reading<f64>) -> u64 {
    match reading {
        Reading::Value(value) => value.to_bits(),
        Reading::Unsupported => UNSUPPORTED,
        Reading::Failed => FAILED,
    }
}

fn reading(bits: u64) -> Reading<f64> {
    match bits {
        UNSUPPORTED => Reading::Unsupported,
        FAILED => Reading::Failed,
        bits => Reading::Value(f64::from_bits(bits)),
    }
}
