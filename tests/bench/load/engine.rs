//! The simulated engine: a process that reads its checkpoint and takes memory meanwhile.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use memmap2::Mmap;
use serde_json::{Value, json};

use crate::checkpoint::Checkpoint;
use crate::measure::major_faults;
use crate::options::{Loader, Options};
use crate::pool::{PAGE_BYTES, grow_to, pages};

/// Bytes that are read before more weights are taken.
const PIECE_BYTES: usize = 64 << 20;

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
    let output = command.stderr(std::process::Stdio::inherit()).output().unwrap();
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
    for shard in &shards {
        engine.load(loader, shard).unwrap();
    }
    let with_weights = pages().unwrap();
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
    fn load(&mut self, loader: Loader, shard: &Path) -> io::Result<()> {
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
        }
    }

    fn read(&mut self, mut file: File) -> io::Result<()> {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let mut filled = 0;
            while filled < buffer.len() {
                match file.read(&mut buffer[filled..])? {
                    0 => break,
                    count => filled += count,
                }
            }
            if filled == 0 {
                return Ok(());
            }
            self.take(&buffer[..filled])?;
        }
    }

    /// Uses a piece of the checkpoint, then takes weights up to the share that has been read.
    fn take(&mut self, piece: &[u8]) -> io::Result<()> {
        let words = piece.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        self.sum = words.fold(self.sum, u64::wrapping_add);
        self.read += piece.len() as u64;
        let share = self.read as f64 / self.total as f64;
        let weights = (self.weights as f64 * share) as u64 / PAGE_BYTES;
        grow_to(self.began + weights).map(drop)
    }
}

#[expect(unsafe_code, reason = "no process writes to the shards while they are mapped")]
fn map(file: &File) -> io::Result<Mmap> {
    unsafe { Mmap::map(file) }
}
