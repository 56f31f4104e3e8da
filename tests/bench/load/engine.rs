//! The simulated engine: a process that reads its checkpoint and takes memory meanwhile.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use memmap2::{Mmap, MmapMut};
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::measure::major_faults;
use crate::options::{Loader, Options};
use crate::pool::{PAGE_BYTES, grow_to, pages};

/// Bytes that are read before more weights are taken.
const PIECE_BYTES: usize = 64 << 20;

/// The size of a tensor, for loaders that take parts of tensors, or take them backwards.
const TENSOR_BYTES: usize = 8 << 20;

/// Shards that are read at a time by threads.
const THREADS: usize = 8;

/// Pieces from one to the next in random order; a prime number.
const LEAP: usize = 1009;

/// The result of one load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub seconds: f64,
    pub weights_bytes: u64,
    pub cache_bytes: u64,
    pub major_faults: u64,
    /// Whether the engine was killed before it was done.
    pub killed: bool,
}

/// Runs one load in a process of its own and waits for its end.
pub fn start(loader: Loader, options: &Options, checkpoint: &Checkpoint) -> Load {
    let mut command = match loader {
        Loader::Safetensors => {
            let mut python = Command::new(&options.python);
            python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/load/engine_load.py"));
            python
        }
        _ => Command::new(std::env::current_exe().unwrap()),
    };
    command.args(["engine", loader.name()]);
    command.args([options.weights_bytes, options.cache_bytes].map(|bytes| bytes.to_string()));
    command.args(checkpoint.shards());
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    Load {
        seconds: report["seconds"].as_f64().unwrap_or(f64::NAN),
        weights_bytes: report["weights_bytes"].as_u64().unwrap_or(0),
        cache_bytes: report["cache_bytes"].as_u64().unwrap_or(0),
        major_faults: report["major_faults"].as_u64().unwrap_or(0),
        killed: !output.status.success(),
    }
}

/// The process of the engine.
pub fn run(arguments: &[String]) -> ExitCode {
    let loader = Loader::ALL.into_iter().find(|loader| loader.name() == arguments[0]).unwrap();
    let [weights, cache] = [1, 2].map(|index| arguments[index].parse::<u64>().unwrap());
    let shards: Vec<PathBuf> = arguments[3..].iter().map(PathBuf::from).collect();
    let total = shards.iter().map(|shard| shard.metadata().unwrap().len()).sum();
    let mut engine =
        Engine { began: pages().unwrap(), weights, total, read: 0, sum: 0, kept: Vec::new() };
    let started = Instant::now();
    let at_a_time = if loader == Loader::Threads { THREADS } else { 1 };
    for shards in shards.chunks(at_a_time) {
        engine.load(loader, shards).unwrap();
    }
    let with_weights = pages().unwrap();
    let cache = if loader == Loader::Plain { 0 } else { cache };
    let with_cache = grow_to(with_weights + cache / PAGE_BYTES).unwrap();
    let report = json!({
        "seconds": started.elapsed().as_secs_f64(),
        "weights_bytes": (with_weights - engine.began) * PAGE_BYTES,
        "cache_bytes": (with_cache - with_weights) * PAGE_BYTES,
        "major_faults": major_faults(std::process::id()),
        "checksum": engine.sum,
    });
    println!("{report}");
    ExitCode::SUCCESS
}

struct Engine {
    /// Pages in the pool before this engine took any.
    began: u64,
    weights: u64,
    total: u64,
    read: u64,
    /// The sum of all bytes, so that reading them cannot be optimised away.
    sum: u64,
    kept: Vec<Mmap>,
}

impl Engine {
    fn load(&mut self, loader: Loader, shards: &[PathBuf]) -> io::Result<()> {
        let Some(shard) = shards.first() else { return Ok(()) };
        let file = File::open(shard)?;
        match loader {
            Loader::Read => self.read(file),
            Loader::Safetensors => Err(io::ErrorKind::Unsupported.into()),
            Loader::MmapKept | Loader::MmapEach => {
                let mapped = map(&file)?;
                for piece in mapped.chunks(PIECE_BYTES) {
                    self.take(piece)?;
                }
                if loader == Loader::MmapKept {
                    self.kept.push(mapped);
                }
                Ok(())
            }
            Loader::Slices => {
                for tensor in map(&file)?.chunks(TENSOR_BYTES) {
                    self.take_of(&tensor[..tensor.len() / 2], tensor.len())?;
                }
                Ok(())
            }
            Loader::Backward => {
                map(&file)?.rchunks(TENSOR_BYTES).try_for_each(|piece| self.take(piece))
            }
            Loader::Random => self.random(&map(&file)?),
            Loader::Threads => self.threads(shards),
            Loader::Direct => {
                let flags = OFlags::RDONLY | OFlags::DIRECT;
                self.read(rustix::fs::open(shard, flags, Mode::empty())?.into())
            }
            Loader::Plain => plain(file),
        }
    }

    /// Takes pieces of 1 MiB in a fixed order without any two neighbours: each is a prime number of
    /// pieces behind the one before.
    fn random(&mut self, mapped: &[u8]) -> io::Result<()> {
        let pieces: Vec<&[u8]> = mapped.chunks(1 << 20).collect();
        (0..pieces.len()).try_for_each(|number| self.take(pieces[number * LEAP % pieces.len()]))
    }

    /// Reads one shard in each thread, and takes the weights of all of them afterwards.
    fn threads(&mut self, shards: &[PathBuf]) -> io::Result<()> {
        let sums = std::thread::scope(|scope| {
            let threads: Vec<_> =
                shards.iter().map(|shard| scope.spawn(|| sum_of(shard))).collect();
            let joined = threads.into_iter().map(|thread| thread.join().unwrap());
            joined.collect::<io::Result<Vec<(u64, u64)>>>()
        })?;
        sums.into_iter().try_for_each(|(sum, bytes)| self.add(sum, bytes))
    }

    fn read(&mut self, mut file: File) -> io::Result<()> {
        // Pages of its own: O_DIRECT wants them aligned.
        let mut buffer = MmapMut::map_anon(PIECE_BYTES)?;
        loop {
            let (mut filled, mut is_end) = (0, false);
            while filled < buffer.len() && !is_end {
                let count = file.read(&mut buffer[filled..])?;
                // Past the page cache, another read from within a page would be an error.
                is_end = !count.is_multiple_of(4096) || count == 0;
                filled += count;
            }
            self.take(&buffer[..filled])?;
            if is_end {
                return Ok(());
            }
        }
    }

    /// Uses a piece of the checkpoint, then takes weights up to the share that has been read.
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        self.take_of(piece, piece.len())
    }

    /// The same for a piece of a part of so many bytes, of which nothing else is wanted.
    fn take_of(&mut self, piece: &[u8], part: usize) -> io::Result<()> {
        self.add(sum(piece), part as u64)
    }

    fn add(&mut self, sum: u64, bytes: u64) -> io::Result<()> {
        self.sum = self.sum.wrapping_add(sum);
        self.read += bytes;
        let share = self.read as f64 / self.total as f64;
        let weights = (self.weights as f64 * share) as u64 / PAGE_BYTES;
        grow_to(self.began + weights).map(drop)
    }
}

fn sum(piece: &[u8]) -> u64 {
    let words = piece.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    words.fold(0, u64::wrapping_add)
}

/// The sum of a file, and its length.
fn sum_of(shard: &Path) -> io::Result<(u64, u64)> {
    let mapped = map(&File::open(shard)?)?;
    Ok((sum(&mapped), mapped.len() as u64))
}

/// Reads a file in order, and does nothing with it.
fn plain(mut file: File) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    while file.read(&mut buffer)? > 0 {}
    Ok(())
}

#[expect(unsafe_code, reason = "no process writes to the shards while they are mapped")]
fn map(file: &File) -> io::Result<Mmap> {
    unsafe { Mmap::map(file) }
}
