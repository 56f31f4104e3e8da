//! A checkpoint on disk: shards in the safetensors format.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

/// Size of a full shard.
const SHARD_BYTES: u64 = 2 << 30;

/// The shards of a checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<PathBuf>,
    bytes: u64,
}

impl Checkpoint {
    /// Creates missing shards; they are kept for the next run.
    pub fn prepare(directory: &Path, bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let count = bytes.div_ceil(SHARD_BYTES).max(1);
        let each = bytes / count;
        let mut shards = Vec::new();
        for number in 1..=count {
            let path =
                directory.join(format!("model-{number:05}-of-{count:05}-{each}.safetensors"));
            if !path.exists() {
                eprintln!("creating {}", path.display());
                let unfinished = path.with_extension("unfinished");
                write_shard(&unfinished, each, number)?;
                fs::rename(&unfinished, &path)?;
            }
            shards.push(path);
        }
        Ok(Self { shards, bytes: each * count })
    }

    pub fn shards(&self) -> &[PathBuf] {
        &self.shards
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Writes one tensor of incompressible bytes after the header of the format: its length, then JSON.
fn write_shard(path: &Path, bytes: u64, number: u64) -> io::Result<()> {
    let mut header =
        format!(r#"{{"weight":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    // Padded with spaces, so that the tensor begins on a page.
    header.push_str(&" ".repeat(4096 - 8 - header.len()));
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut random = vec![0; 8 << 20];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let mut left = bytes;
    while left > 0 {
        random[0] = random[0].wrapping_add(number as u8);
        let piece = left.min(random.len() as u64) as usize;
        file.write_all(&random[..piece])?;
        left -= piece as u64;
    }
    file.into_inner()?.sync_all()
}
