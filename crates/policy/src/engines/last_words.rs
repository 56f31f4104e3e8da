//! Log lines of dying engines. A logged prompt may contain the same text, so a line can name a
//! reason but proves no kill.

mod reason;
#[cfg(test)]
mod tests;

use super::ENGINES;
use crate::model::ExitStatus;
use crate::parse::process::{MAX_TEXT, printable};

pub use reason::Reason;

/// The reason of an engine's end in a line of its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastWords {
    /// One of its processes has ended unexpectedly.
    WorkerDied {
        /// The worker's name in the log.
        worker: String,
        /// Its pid in the pid namespace of the engine.
        pid: Option<u32>,
        /// Exit code or signal.
        status: ExitStatus,
    },
    /// Another reason.
    Because(Reason),
}

impl LastWords {
    /// The class of the reason, without the facts of the line.
    pub fn reason(&self) -> Reason {
        match self {
            Self::WorkerDied { .. } => Reason::WorkerDied,
            Self::Because(reason) => *reason,
        }
    }
}

/// A part of a line, and its meaning. `*` is any text, and `$` the end of the line. The first word
/// of a phrase does not begin within a word of the line.
pub(super) type Phrase = (&'static str, Reason);

/// Lines that engines log while they go on.
const SURVIVED: [&str; 6] = [
    "KV cache pool is full. Retract requests",
    "is preempted by",
    "may not be an issue",
    "failed to mlock",
    "out of resource: shared memory",
    "falling back to",
];

/// Parts of lines of libraries, which any engine may log.
const PHRASES: &[Phrase] = &[
    // torch, CUDA and its libraries.
    ("CUDA out of memory", Reason::OutOfMemory),
    ("HIP out of memory", Reason::OutOfMemory),
    ("torch.OutOfMemoryError", Reason::OutOfMemory),
    ("torch.cuda.OutOfMemoryError", Reason::OutOfMemory),
    ("CUDA error*out of memory", Reason::OutOfMemory),
    ("CUDA Error*out of memory", Reason::OutOfMemory),
    ("CUDA driver error*out of memory", Reason::OutOfMemory),
    ("Triton Error [CUDA]: out of memory", Reason::OutOfMemory),
    ("CUresult error: 2 (out of memory)", Reason::OutOfMemory),
    ("ErrorOutOfDeviceMemory", Reason::OutOfMemory),
    ("Cuda Runtime (out of memory)", Reason::OutOfMemory),
    ("cudaError error: 2 (out of memory)", Reason::OutOfMemory),
    ("CUDA runtime error*out of memory", Reason::OutOfMemory),
    ("CUDA error*the resource allocation failed", Reason::OutOfMemory),
    ("Cuda failure*out of memory", Reason::OutOfMemory),
    ("Failed to CUDA calloc", Reason::OutOfMemory),
    ("Failed to CUDA host alloc", Reason::OutOfMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", Reason::OutOfMemory),
    ("cudaErrorMemoryAllocation", Reason::OutOfMemory),
    ("cudaMalloc*failed*out of memory", Reason::OutOfMemory),
    ("cudaMalloc*: out of memory", Reason::OutOfMemory),
    ("cuMem*out of memory", Reason::OutOfMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", Reason::OutOfMemory),
    ("CUDNN_STATUS_ALLOC_FAILED", Reason::OutOfMemory),
    ("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", Reason::OutOfMemory),
    ("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED", Reason::HostOutOfMemory),
    ("NVML_SUCCESS*INTERNAL ASSERT FAILED*CUDACachingAllocator", Reason::OutOfUnreportedMemory),
    ("NvMapMemAllocInternalTagged*error 12", Reason::NvMapFailed),
    ("NvMapMemHandleAlloc: error", Reason::NvMapFailed),
    // ONNX Runtime.
    ("Failed to allocate memory for requested buffer of size", Reason::OutOfMemory),
    // The CPU's memory: C++, LLVM, Python, numpy, Rust, Go, the C library.
    ("std::bad_alloc", Reason::HostOutOfMemory),
    ("LLVM ERROR: out of memory", Reason::HostOutOfMemory),
    ("MemoryError$", Reason::HostOutOfMemory),
    ("MemoryError:", Reason::HostOutOfMemory),
    ("Unable to allocate*for an array with shape", Reason::HostOutOfMemory),
    ("DefaultCPUAllocator: *memory", Reason::HostOutOfMemory),
    ("memory allocation of*bytes failed", Reason::HostOutOfMemory),
    ("fatal error: runtime: out of memory", Reason::HostOutOfMemory),
    ("runtime: cannot allocate memory", Reason::HostOutOfMemory),
    ("Cannot allocate memory", Reason::HostOutOfMemory),
    ("ibv_reg_mr*Cannot allocate memory", Reason::LockedMemoryLimit),
    ("Failed to register memory*Cannot allocate memory", Reason::LockedMemoryLimit),
    // Compilers of kernels.
    ("Killed signal terminated program", Reason::HostOutOfMemory),
    ("nvcc error*died due to signal 9", Reason::HostOutOfMemory),
    ("ptxas fatal*Memory allocation failure", Reason::HostOutOfMemory),
    // Processes, as Python, a shell and MPI call their ends.
    ("Fatal Python error: Bus error", Reason::BusError),
    ("Bus error (core dumped)", Reason::BusError),
    (": line *Bus error", Reason::BusError),
    (": line *Killed", Reason::WorkerDied),
    (": line *Segmentation fault", Reason::WorkerDied),
    ("BrokenProcessPool", Reason::WorkerDied),
    ("mpirun noticed*exited on signal", Reason::WorkerDied),
    ("prterun noticed*exited on signal", Reason::WorkerDied),
    // Shared memory.
    ("shared memory*No space left on device", Reason::SharedMemoryFull),
    ("/dev/shm*No space left on device", Reason::SharedMemoryFull),
    ("No space left on device*/dev/shm", Reason::SharedMemoryFull),
    ("unable to write to file </torch_*No space left on device", Reason::SharedMemoryFull),
    ("posix_fallocate failed*No space left on device", Reason::SharedMemoryFull),
    ("Error while creating shared memory segment", Reason::SharedMemoryFull),
    ("insufficient shared memory", Reason::SharedMemoryFull),
    ("out of shared memory", Reason::SharedMemoryFull),
    ("Unexpected bus error encountered in worker", Reason::SharedMemoryFull),
    // Ray.
    ("ray.exceptions.OutOfMemoryError", Reason::RayMemoryMonitor),
    ("killed due to the node running low on memory", Reason::RayMemoryMonitor),
    ("killed due to memory pressure (OOM)", Reason::RayMemoryMonitor),
    ("RayOutOfMemoryError", Reason::RayMemoryMonitor),
    ("Ray killed this worker", Reason::RayMemoryMonitor),
    ("Node memory usage above threshold", Reason::RayMemoryMonitor),
    ("Killing worker with*to free up memory", Reason::RayMemoryMonitor),
    ("which exceeds the memory usage threshold of", Reason::RayMemoryMonitor),
    ("A worker died or was killed while executing", Reason::WorkerDied),
    ("Some Ray subprocesses exited unexpectedly", Reason::WorkerDied),
    ("RayChannelTimeoutError", Reason::WorkerTimedOut),
    ("LocalRayletDiedError", Reason::PeerLost),
    ("The actor died unexpectedly", Reason::PeerLost),
    ("The actor died because its node has died", Reason::PeerLost),
    ("The actor is dead because its", Reason::PeerLost),
    ("ray.exceptions.ActorDiedError", Reason::PeerLost),
    ("ray.exceptions.RayActorError", Reason::PeerLost),
    ("ray.exceptions.NodeDiedError", Reason::PeerLost),
    ("ray.exceptions.WorkerCrashedError", Reason::PeerLost),
    ("has been marked dead because", Reason::PeerLost),
    ("the node it was running on is dead or unavailable", Reason::PeerLost),
    // Communication between ranks: NCCL, Gloo, c10d.
    ("Watchdog caught collective operation timeout", Reason::PeerLost),
    ("Connection closed by peer", Reason::PeerLost),
    ("Connection closed by remote peer", Reason::PeerLost),
    ("gloo*Connection reset by peer", Reason::PeerLost),
    ("gloo*Timed out waiting", Reason::PeerLost),
    ("ncclRemoteError", Reason::PeerLost),
    ("remote process exited or there was a network error", Reason::PeerLost),
    ("unexpected exit of a remote peer", Reason::PeerLost),
    ("NET/IB*Got completion", Reason::PeerLost),
    ("Transport retry count exceeded", Reason::PeerLost),
    ("socketStartConnect: Connect to*failed", Reason::PeerLost),
    ("dump signal due to a collective timeout", Reason::PeerLost),
    ("ProcessGroupNCCL's watchdog got stuck", Reason::PeerLost),
    ("Some NCCL operations have failed or timed out", Reason::PeerLost),
    ("Gloo connectFullMesh failed", Reason::PeerLost),
    ("store->get*got error", Reason::PeerLost),
    ("torch.distributed.DistNetworkError", Reason::PeerLost),
    ("torch.distributed.DistStoreError", Reason::PeerLost),
    ("The client socket has timed out", Reason::PeerLost),
    ("Did the remote server shutdown or crash", Reason::PeerLost),
    ("TCPStore*Broken pipe", Reason::PeerLost),
    ("TCPStore*Connection reset by peer", Reason::PeerLost),
    ("TCPStore server has shut down", Reason::PeerLost),
    ("lost communication with a remote daemon", Reason::PeerLost),
    // Reasons that another line has.
    ("torch.distributed.DistBackendError", Reason::GaveUp),
    ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError", Reason::GaveUp),
    ("unhandled cuda error", Reason::GaveUp),
    ("ncclUnhandledCudaError", Reason::GaveUp),
    ("MPI_ABORT was invoked", Reason::GaveUp),
];

/// Reads one line of the log of any engine.
pub fn last_words(line: &str) -> Option<LastWords> {
    let line = cut(line).trim_end();
    if let Some(died) = ENGINES.iter().find_map(|facts| (facts.worker_died)(line)) {
        return Some(died);
    }
    if SURVIVED.iter().any(|phrase| line.contains(phrase)) {
        return None;
    }
    let phrases = ENGINES.iter().flat_map(|facts| facts.last_words).chain(PHRASES);
    let found = phrases.filter(|(phrase, _)| is_in(phrase, line)).map(|(_, reason)| *reason);
    found.min().map(LastWords::Because)
}

/// Whether a line has a phrase of a table.
fn is_in(phrase: &str, line: &str) -> bool {
    let (phrase, is_end) = match phrase.strip_suffix('$') {
        Some(phrase) => (phrase, true),
        None => (phrase, false),
    };
    let mut parts = phrase.split('*');
    let first = parts.next().unwrap_or_default();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_whole = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| line.as_bytes().get(at));
        !first.as_bytes().first().copied().is_some_and(is_word)
            || !before.copied().is_some_and(is_word)
    };
    let begins = line.match_indices(first).find(|(at, _)| is_whole(*at));
    let Some(rest) = begins.and_then(|(at, found)| line.get(at + found.len()..)) else {
        return false;
    };
    let rest = parts.try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest));
    rest.is_some_and(|rest| !is_end || rest.is_empty())
}

fn cut(line: &str) -> &str {
    let mut end = line.len().min(MAX_TEXT);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    line.get(..end).unwrap_or(line)
}

/// Names of workers are short words.
pub(super) fn worker_name(text: &str) -> Option<String> {
    let is_word = !text.is_empty() && text.len() <= 64 && !text.contains(char::is_whitespace);
    is_word.then(|| printable(text.as_bytes()))
}

/// What Python calls an exit code: below 0 it is a signal's.
pub(super) fn python_status(text: &str) -> Option<ExitStatus> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let end = digits.bytes().take_while(u8::is_ascii_digit).count();
    let number: i32 = digits.get(..end)?.parse().ok()?;
    match sign * number {
        code @ 0..=255 => Some(ExitStatus::Code { code }),
        signal @ -64..0 => Some(ExitStatus::Signal { signal: -signal }),
        _ => None,
    }
}
