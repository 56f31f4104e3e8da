//! A block: deflated bytes with their lengths and a CRC over all of it.

use std::io::{self, Read, Write};

use flate2::write::DeflateEncoder;
use flate2::{Compression, Decompress, FlushDecompress, Status};

use super::MAX_BLOCK_BYTES;

/// Deflated length, length and CRC, each four bytes, little-endian.
const HEAD_BYTES: usize = 12;

/// Deflating never adds more than this.
const MAX_DEFLATED_BYTES: usize = MAX_BLOCK_BYTES + MAX_BLOCK_BYTES / 1024 + 1024;

/// Why a block cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BlockError {
    /// The block is truncated or damaged.
    #[error("{0}")]
    Torn(&'static str),
    /// Reading failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The block that holds these bytes, ready to be written.
pub(super) fn deflate(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(vec![0; HEAD_BYTES], Compression::fast());
    encoder.write_all(bytes)?;
    let mut block = encoder.finish()?;
    let too_large = |_| io::Error::other("a block is too large");
    let deflated = u32::try_from(block.len() - HEAD_BYTES).map_err(too_large)?.to_le_bytes();
    let length = u32::try_from(bytes.len()).map_err(too_large)?.to_le_bytes();
    let (head, body) = block.split_at_mut(HEAD_BYTES);
    let crc = crc(deflated, length, body).to_le_bytes();
    for (to, from) in head.iter_mut().zip(deflated.iter().chain(&length).chain(&crc)) {
        *to = *from;
    }
    Ok(block)
}

fn crc(deflated: [u8; 4], length: [u8; 4], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&deflated);
    hasher.update(&length);
    hasher.update(body);
    hasher.finalize()
}

/// Inflates one block after the other.
#[derive(Debug)]
pub(super) struct Inflater(Decompress);

impl Default for Inflater {
    fn default() -> Self {
        Self(Decompress::new(false))
    }
}

impl Inflater {
    /// The inflated bytes, if they have exactly the given length.
    fn inflate(&mut self, body: &[u8], size: usize) -> Option<Vec<u8>> {
        self.0.reset(false);
        // One more than allowed, to detect an excess.
        let mut bytes = Vec::with_capacity(size + 1);
        let status = self.0.decompress_vec(body, &mut bytes, FlushDecompress::Finish).ok()?;
        (status == Status::StreamEnd && bytes.len() == size).then_some(bytes)
    }
}

/// Reads the next block; `None` at the end. The second value is the block's size in the file.
pub(super) fn read(
    from: &mut impl Read,
    inflater: &mut Inflater,
) -> Result<Option<(Vec<u8>, u64)>, BlockError> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    from.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    if head.is_empty() {
        return Ok(None);
    }
    let cut = BlockError::Torn("it ends in the middle of a block");
    let Ok(head) = <[u8; HEAD_BYTES]>::try_from(head) else { return Err(cut) };
    let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
    let (deflated, length) = (word(0), word(4));
    let (stored, size) = (u32::from_le_bytes(deflated), u32::from_le_bytes(length));
    if stored as usize > MAX_DEFLATED_BYTES || size as usize > MAX_BLOCK_BYTES {
        return Err(BlockError::Torn("the length of a block is out of bounds"));
    }
    let mut body = Vec::new();
    from.take(u64::from(stored)).read_to_end(&mut body)?;
    if body.len() != stored as usize {
        return Err(cut);
    }
    if crc(deflated, length, &body) != u32::from_le_bytes(word(8)) {
        return Err(BlockError::Torn("the checksum of a block is wrong"));
    }
    let Some(bytes) = inflater.inflate(&body, size as usize) else {
        return Err(BlockError::Torn("a block differs from its header"));
    };
    Ok(Some((bytes, (HEAD_BYTES + body.len()) as u64)))
}
