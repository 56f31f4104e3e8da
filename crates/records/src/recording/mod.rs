//! The flight recorder: all input of the policy and its results, in a bounded
//! ring of files, so that a replay needs nothing else.
//!
//! A **segment** is one file: the eight bytes of [`MAGIC`] and version, then blocks. A **block** is
//! its two lengths, a CRC and deflated entries; it is written whole, so that a crash leaves whole
//! blocks and at most one torn one. The first entry of a segment, [`SegmentBegin`], has the state
//! to start from. Readings are stored by column: each series has its difference from the previous
//! reading in the segment.
//!
//! A [`RecordingRing`] is a folder of segments of which the oldest give way; an incident is a
//! segment cut out of it. A reader does not trust segments: every length is checked before its use.

mod block;
mod columns;
mod decode;
mod encode;
mod entry;
mod frames;
mod incident;
mod ring;
mod segment;
#[cfg(test)]
mod tests;
mod wire;

pub use entry::{RecordedRules, RecordedStep, RecordingEntry, RuleText, SegmentBegin, StepResult};
pub use frames::Frames;
pub use incident::{IncidentLimits, Incidents};
pub use ring::{RecordingRing, RingError, RingTally, segment_files};
pub use segment::{AddOutcome, OpenError, SegmentReader, SegmentWriter, Truncation};

/// The magic bytes of a recording; the version follows as two bytes, little-endian.
pub const MAGIC: [u8; 6] = *b"umarec";

/// The version of the format that this build writes and reads.
pub const VERSION: u16 = 1;

/// The extension of a recording.
pub const FILE_ENDING: &str = "umarec";

/// The size limit of a block before deflating, in bytes.
const MAX_BLOCK_BYTES: usize = 16 << 20;

/// Beyond this a block is written even though it is young.
const BLOCK_BYTES: usize = 64 << 10;

/// The most values and kernel records of one step.
const MAX_VALUES_A_STEP: usize = 128 << 10;

/// The most observations of one step.
const MAX_OBSERVATIONS: usize = 64 << 10;

/// The most series of all schemas of one segment together.
const MAX_COLUMNS: usize = 64 << 10;
