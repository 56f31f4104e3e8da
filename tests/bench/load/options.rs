//! The options of the benchmark.

use std::fmt;
use std::path::PathBuf;

use crate::arguments::{bytes, named, number};
use crate::measure::memory_total_bytes;
use crate::volume::Filesystem;

/// What a small file system needs for its own data.
const OWN_BYTES: u64 = 1 << 30;

const HELP: &str = "\
cargo bench --bench load -- [OPTIONS]      (as root)

  --directory DIR      where the checkpoint is made and kept [default: target/checkpoint]
  --filesystem NAME    instead: ext4, xfs, btrfs or overlay (on ext4) is made for the checkpoint, in
                       an image below a loop device in target/bench, and removed at the end
  --read-limit BYTES   a slow disk: a control group of all processes of the benchmark limits what
                       they read in a second from the disk of the checkpoint
  --loader NAME        mmap-kept, mmap-each, read, safetensors, slices, backward, random, threads,
                       direct, or plain, which only reads the bytes in order; may be repeated
                       [default: the first three]
  --python FILE        a Python with safetensors and numpy, for the loader safetensors
                       [default: python3]
  --policy NAME        none, drop-loop, drop-loop-readahead, earlyoom, umawarden or
                       umawarden-no-prefetch; may be repeated [default: all but the last]
  --runs N             of each policy with each loader [default: 3]
  --floods N           instead of loads: time from the begin of reading at up to 4 GiB/s to the
                       first eviction, N times with memory to spare and N times on a starved
                       machine with 200 MiB free, or as little as the pool can leave
  --floor GIB          free memory that umawarden is to keep [default: as in the shipped rule]
  --checkpoint GIB     size of the checkpoint [default: the size of memory]
  --weights GIB        taken while it loads [default: half of memory]
  --cache GIB          taken at the end [default: a fifth of memory]
";

/// How the simulated engine reads its checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// Every shard stays mapped to the end.
    MmapKept,
    /// One shard is mapped at a time.
    MmapEach,
    /// `read()` into a buffer.
    Read,
    /// The safetensors library.
    Safetensors,
    /// The first half of every 8 MiB, mapped, as a rank of two reads its part of each tensor.
    Slices,
    /// Mapped, from the last piece to the first.
    Backward,
    /// Mapped, pieces of 1 MiB in an order that only repeats with the same shard.
    Random,
    /// Mapped, eight shards at a time.
    Threads,
    /// `read()` past the page cache.
    Direct,
    /// `read()` of the same bytes, without an engine's work: the limit.
    Plain,
}

impl Loader {
    pub const ALL: [Self; 10] = [
        Self::MmapKept,
        Self::MmapEach,
        Self::Read,
        Self::Safetensors,
        Self::Slices,
        Self::Backward,
        Self::Random,
        Self::Threads,
        Self::Direct,
        Self::Plain,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::MmapKept => "mmap-kept",
            Self::MmapEach => "mmap-each",
            Self::Read => "read",
            Self::Safetensors => "safetensors",
            Self::Slices => "slices",
            Self::Backward => "backward",
            Self::Random => "random",
            Self::Threads => "threads",
            Self::Direct => "direct",
            Self::Plain => "plain",
        }
    }
}

impl fmt::Display for Loader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What keeps pages free during a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The kernel alone.
    None,
    /// `echo 3 > drop_caches` ten times a second.
    DropLoop,
    /// `DropLoop`, with 8 KiB of readahead on the checkpoint's device.
    DropLoopReadahead,
    /// earlyoom with its defaults.
    Earlyoom,
    /// `umawarden run --mode enforce`.
    Umawarden,
    /// The same, with `prefetch: off`.
    UmawardenNoPrefetch,
}

impl Policy {
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::DropLoop,
        Self::DropLoopReadahead,
        Self::Earlyoom,
        Self::Umawarden,
        Self::UmawardenNoPrefetch,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::DropLoop => "drop-loop",
            Self::DropLoopReadahead => "drop-loop-readahead",
            Self::Earlyoom => "earlyoom",
            Self::Umawarden => "umawarden",
            Self::UmawardenNoPrefetch => "umawarden-no-prefetch",
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Sizes, loaders and policies to measure.
#[derive(Debug)]
pub struct Options {
    pub directory: PathBuf,
    /// The file system that is made for the checkpoint.
    pub filesystem: Option<Filesystem>,
    /// In a second.
    pub read_limit_bytes: Option<u64>,
    pub loaders: Vec<Loader>,
    pub policies: Vec<Policy>,
    pub runs: usize,
    /// Number of floods to measure instead of loads; 0: none.
    pub floods: usize,
    /// Free memory that umawarden is to keep, instead of the shipped rule's.
    pub floor_bytes: Option<u64>,
    pub checkpoint_bytes: u64,
    pub weights_bytes: u64,
    pub cache_bytes: u64,
    /// The file of the bystander.
    pub bystander_bytes: u64,
    /// The weights of the served model.
    pub served_bytes: u64,
    /// A Python with safetensors and numpy.
    pub python: PathBuf,
}

impl Options {
    /// `None` after the help text has been shown.
    pub fn parse(arguments: &[String]) -> Result<Option<Self>, String> {
        let total = memory_total_bytes();
        let mut options = Self {
            directory: PathBuf::from("target/checkpoint"),
            filesystem: None,
            read_limit_bytes: None,
            loaders: Vec::new(),
            policies: Vec::new(),
            runs: 3,
            floods: 0,
            floor_bytes: None,
            checkpoint_bytes: total,
            weights_bytes: total / 2,
            cache_bytes: total / 5,
            bystander_bytes: total / 24,
            served_bytes: total / 24,
            python: PathBuf::from("python3"),
        };
        let mut arguments = arguments.iter().filter(|argument| *argument != "--bench");
        while let Some(option) = arguments.next() {
            if option == "--help" {
                print!("{HELP}");
                return Ok(None);
            }
            let value =
                arguments.next().ok_or_else(|| format!("{option} needs a value\n{HELP}"))?;
            match option.as_str() {
                "--directory" => options.directory = PathBuf::from(value),
                "--filesystem" => {
                    let filesystem = named(value, &Filesystem::ALL, Filesystem::name)?;
                    options.directory = filesystem.directory();
                    options.filesystem = Some(filesystem);
                }
                "--read-limit" => {
                    options.read_limit_bytes = Some(number(option, value)? as u64);
                }
                "--python" => options.python = PathBuf::from(value),
                "--loader" => options.loaders.push(named(value, &Loader::ALL, Loader::name)?),
                "--policy" => options.policies.push(named(value, &Policy::ALL, Policy::name)?),
                "--runs" => options.runs = number(option, value)? as usize,
                "--floods" => options.floods = number(option, value)? as usize,
                "--floor" => options.floor_bytes = Some(bytes(option, value)?),
                "--checkpoint" => options.checkpoint_bytes = bytes(option, value)?,
                "--weights" => options.weights_bytes = bytes(option, value)?,
                "--cache" => options.cache_bytes = bytes(option, value)?,
                _ => return Err(format!("unknown option {option}\n{HELP}")),
            }
        }
        options.fill_in();
        Ok(Some(options))
    }

    fn fill_in(&mut self) {
        if self.loaders.is_empty() {
            self.loaders = vec![Loader::MmapKept, Loader::MmapEach, Loader::Read];
        }
        if self.policies.is_empty() {
            let is_default = |policy: &Policy| *policy != Policy::UmawardenNoPrefetch;
            self.policies = Policy::ALL.into_iter().filter(is_default).collect();
        }
    }

    /// The size of a file system for all files of the measurement, and for its own data.
    pub fn volume_bytes(&self) -> u64 {
        let files = self.checkpoint_bytes + self.bystander_bytes + self.served_bytes;
        files + files / 16 + OWN_BYTES
    }
}
