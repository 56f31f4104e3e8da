//! Log lines of dying engines. A logged prompt may contain the same text, so a line can name a
//! reason but proves no kill.

mod prefix;
mod reason;
mod request;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use super::ENGINES;
use crate::model::ExitStatus;
use crate::parse::process::{MAX_TEXT, printable};

pub use reason::Reason;
pub use request::RequestTexts;

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

/// A part of a line, and its meaning. `*` is any text, `^` the beginning of the line, perhaps
/// behind what a collector of logs puts before it, `$` its end.
/// The first word of a phrase does not begin within a word of the line.
pub(super) type Phrase = (&'static str, Reason);

/// Lines without a reason: of engines that go on or try again, and of a port that is in use.
const WITHOUT_REASON: [&str; 10] = [
    "KV cache pool is full. Retract requests",
    "is preempted by",
    "may not be an issue",
    "failed to mlock",
    "out of resource: shared memory",
    "falling back to",
    "trying with fallback",
    "retrying",
    "be retried",
    "EADDRINUSE",
];

/// Words that make the rest of their sentence advice, or a line of code in a traceback.
const ADVISES: [&str; 12] = [
    "If ",
    "if ",
    "avoid ",
    "prevent ",
    "in case of ",
    "may ",
    "might ",
    "can cause ",
    "can lead to ",
    "could cause ",
    "could lead to ",
    "except ",
];

/// Words behind a phrase that make it the name of a feature, or advice.
const FEATURES: [&str; 15] = [
    "handler",
    "handling",
    "hook",
    "detection",
    "protection",
    "prevention",
    "guard",
    "can be ",
    "could be ",
    "will be ",
    "would be ",
    "is handled",
    "are handled",
    "is caught",
    "are caught",
];

/// Words behind which a line has the text of a request, or of its response.
const QUOTES: [&str; 13] = [
    "Received request ",
    "GenerateReqInput(",
    "prompt: '",
    "prompt: \"",
    "prompt=",
    "\"prompt\":",
    "'prompt':",
    "inputs=",
    "\"inputs\":",
    "\"content\":",
    "'content':",
    "\"messages\":",
    "'messages':",
];

/// What begins a colour, and the same in logs of rsyslog.
const ESCAPE: &str = "\u{1b}[";
const WRITTEN_ESCAPE: &str = "#033[";

/// Words before the exit code of a process, in lines of supervisors, shells, make, Go and Python.
const EXITS: [&str; 12] = [
    "exited with code ",
    "exited with status ",
    "exited with ",
    "exit code ",
    "exit code: ",
    "exit status ",
    "exitcode: ",
    "exitcode=",
    "exitCode=",
    "code=exited, status=",
    "Exited (",
    "] Error ",
];

/// Phrases of shells, supervisors, Python and torch for a process that SIGKILL has ended.
const KILLED: [&str; 9] = [
    "^Killed$",
    "]+  Killed",
    ": line *Killed",
    "is killed by signal: Killed",
    "terminated with signal SIGKILL",
    "terminated by SIGKILL",
    "code=killed, status=9/KILL",
    "died with <Signals.SIGKILL",
    "Signal 9 (SIGKILL) received by PID",
];

/// Parts of lines of libraries, which any engine may log.
const PHRASES: &[Phrase] = &[
    // torch, CUDA and its libraries.
    ("CUDA out of memory", Reason::OutOfMemory),
    ("HIP out of memory", Reason::OutOfMemory),
    ("torch.OutOfMemoryError", Reason::OutOfMemory),
    ("torch.cuda.OutOfMemoryError", Reason::OutOfMemory),
    ("CUDA*: out of memory", Reason::OutOfMemory),
    ("Cuda*: out of memory", Reason::OutOfMemory),
    ("cuda*: out of memory", Reason::OutOfMemory),
    ("cuMem*: out of memory", Reason::OutOfMemory),
    ("CUDA error*out of memory", Reason::OutOfMemory),
    ("CUDA failed with error out of memory", Reason::OutOfMemory),
    ("error: 2 (out of memory)", Reason::OutOfMemory),
    ("ErrorOutOfDeviceMemory", Reason::OutOfMemory),
    ("vk::OutOfDeviceMemoryError", Reason::OutOfMemory),
    ("Cuda Runtime (out of memory)", Reason::OutOfMemory),
    ("CUDA error*the resource allocation failed", Reason::OutOfMemory),
    ("Cuda failure*out of memory", Reason::OutOfMemory),
    ("Failed to CUDA malloc", Reason::OutOfMemory),
    ("Failed to CUDA calloc", Reason::OutOfMemory),
    ("Failed to CUDA host alloc", Reason::OutOfMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", Reason::OutOfMemory),
    ("cudaErrorMemoryAllocation", Reason::OutOfMemory),
    ("XPU out of memory", Reason::OutOfMemory),
    ("RESOURCE_EXHAUSTED: Out of memory", Reason::OutOfMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", Reason::OutOfMemory),
    ("CUBLAS_STATUS_NOT_INITIALIZED*cublasCreate", Reason::HandleFailed),
    ("CUDNN_STATUS_NOT_INITIALIZED", Reason::HandleFailed),
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
    ("runtime: out of memory", Reason::HostOutOfMemory),
    ("runtime: cannot allocate memory", Reason::HostOutOfMemory),
    ("Cannot allocate memory", Reason::HostOutOfMemory),
    ("JavaScript heap out of memory", Reason::HostOutOfMemory),
    ("ibv_*Cannot allocate memory", Reason::LockedMemoryLimit),
    ("Failed to register memory*Cannot allocate memory", Reason::LockedMemoryLimit),
    // Compilers of kernels.
    ("Killed signal terminated program", Reason::HostOutOfMemory),
    ("nvcc error*died due to signal 9", Reason::HostOutOfMemory),
    ("ptxas fatal*Memory allocation failure", Reason::HostOutOfMemory),
    // The kernel's OOM killer, as Slurm, systemd and Kubernetes report it.
    ("slurmstepd: *Detected*oom_kill event", Reason::OomKilled),
    ("slurmstepd: *Detected*oom-kill event", Reason::OomKilled),
    ("srun: error:*: Out Of Memory", Reason::OomKilled),
    ("Failed with result 'oom-kill'", Reason::OomKilled),
    ("killed by the OOM killer", Reason::OomKilled),
    ("OOMKilled", Reason::OomKilled),
    // Processes, as Python, a shell and MPI call their ends.
    ("Fatal Python error: Bus error", Reason::BusError),
    ("Bus error (core dumped)", Reason::BusError),
    ("^Bus error$", Reason::BusError),
    (": line *Bus error", Reason::BusError),
    ("SIGBUS received at", Reason::BusError),
    ("SIGBUS: bus error", Reason::BusError),
    ("Signal: Bus error", Reason::BusError),
    (": line *Aborted", Reason::WorkerDied),
    (": line *Segmentation fault", Reason::WorkerDied),
    ("^Aborted$", Reason::WorkerDied),
    ("^Segmentation fault$", Reason::WorkerDied),
    ("Aborted (core dumped)", Reason::WorkerDied),
    ("Segmentation fault (core dumped)", Reason::WorkerDied),
    ("Fatal Python error: ", Reason::WorkerDied),
    ("A worker process managed by the executor was unexpectedly", Reason::WorkerDied),
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
    ("object store size*exceeds /dev/shm size", Reason::SharedMemoryFull),
    ("Unexpected bus error encountered in worker", Reason::SharedMemoryFull),
    // Ray.
    ("ray.exceptions.OutOfMemoryError", Reason::RayMemoryMonitor),
    ("killed due to the node running low on memory", Reason::RayMemoryMonitor),
    ("killed due to memory pressure (OOM)", Reason::RayMemoryMonitor),
    ("RayOutOfMemoryError", Reason::RayMemoryMonitor),
    ("Ray killed*worker", Reason::RayMemoryMonitor),
    ("OOM kill reason:", Reason::RayMemoryMonitor),
    ("Node memory usage above threshold", Reason::RayMemoryMonitor),
    ("Killing worker with*to free up memory", Reason::RayMemoryMonitor),
    ("which exceeds the memory usage threshold of", Reason::RayMemoryMonitor),
    ("A worker died or was killed while executing", Reason::WorkerDied),
    ("Some Ray subprocesses exited unexpectedly", Reason::WorkerDied),
    ("SIGSEGV received at time=", Reason::WorkerDied),
    ("RayChannelTimeoutError", Reason::WorkerTimedOut),
    ("LocalRayletDiedError", Reason::PeerLost),
    ("The actor died unexpectedly", Reason::PeerLost),
    ("The actor died because its node has died", Reason::PeerLost),
    ("The actor is dead because its", Reason::PeerLost),
    ("ray.exceptions.ActorDiedError", Reason::PeerLost),
    ("ray.exceptions.ActorUnavailableError", Reason::PeerLost),
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
    ("gloo*Broken pipe", Reason::PeerLost),
    ("gloo*Timed out waiting", Reason::PeerLost),
    ("ncclRemoteError", Reason::PeerLost),
    ("remote process exited or there was a network error", Reason::PeerLost),
    ("unexpected exit of a remote peer", Reason::PeerLost),
    ("NET/IB*Got completion", Reason::PeerLost),
    ("Transport retry count exceeded", Reason::PeerLost),
    ("socketStartConnect: Connect to*failed", Reason::PeerLost),
    ("exceeded error retry count", Reason::PeerLost),
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
    ("unhandled system error", Reason::GaveUp),
    ("ncclUnhandledCudaError", Reason::GaveUp),
    ("hit an exception: Traceback", Reason::GaveUp),
    ("MPI_ABORT was invoked", Reason::GaveUp),
];

/// Reads one line of the log of any engine.
pub fn last_words(line: &str) -> Option<LastWords> {
    let plain = without_colours(cut(line));
    let line = own_words(&plain).trim_end();
    if let Some(died) = ENGINES.iter().find_map(|facts| (facts.worker_died)(line)) {
        return Some(died);
    }
    if WITHOUT_REASON.iter().any(|phrase| line.contains(phrase)) {
        return None;
    }
    let phrases = ENGINES.iter().flat_map(|facts| facts.last_words).chain(PHRASES);
    let found = phrases.filter(|(phrase, _)| is_logged(phrase, line)).map(|(_, reason)| *reason);
    found.min().map(LastWords::Because).or_else(|| killed_process(line))
}

/// The line without the colours of a terminal, such as `ESC[31m`, which stand before its words.
/// rsyslog writes the escape as a number.
fn without_colours(line: &str) -> Cow<'_, str> {
    if line.contains(WRITTEN_ESCAPE) {
        return without_colours(&line.replace(WRITTEN_ESCAPE, ESCAPE)).into_owned().into();
    }
    let mut parts = line.split(ESCAPE);
    let first = parts.next().unwrap_or_default();
    parts.fold(Cow::Borrowed(first), |plain, part| {
        let rest = part.trim_start_matches(|next: char| next.is_ascii_digit() || next == ';');
        plain + rest.strip_prefix('m').unwrap_or(rest)
    })
}

/// The line up to the text of a request, which may contain anything.
fn own_words(line: &str) -> &str {
    let quotes = QUOTES.iter().filter_map(|quote| Some(line.split_once(*quote)?.0));
    quotes.min_by_key(|own| own.len()).unwrap_or(line)
}

/// Whether a line has a phrase of a table, other than in advice or as the name of a feature.
fn is_logged(phrase: &str, line: &str) -> bool {
    around(phrase, line).is_some_and(|(before, after)| !is_advice(before) && !is_feature(after))
}

/// Whether the text before a phrase makes the phrase advice.
fn is_advice(text: &str) -> bool {
    let sentence = text.rsplit(". ").next().unwrap_or_default();
    let sentence = sentence.rsplit(": ").next().unwrap_or_default();
    ADVISES.iter().any(|words| text_before(words, sentence).is_some())
}

/// Whether the text behind a phrase makes the phrase the name of a feature, or advice.
fn is_feature(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(' ') else { return false };
    let errors = ["errors ", "error ", "exceptions ", "exception "];
    let rest = errors.iter().find_map(|word| rest.strip_prefix(word)).unwrap_or(rest);
    FEATURES.iter().any(|word| rest.starts_with(word))
}

/// A process, without its name, that SIGKILL or a fault of its own has ended: 137, 134, -9.
fn killed_process(line: &str) -> Option<LastWords> {
    let of_code = |words: &&str| {
        let (before, code) = line.split_once(*words)?;
        python_status(code)?.signal().filter(|_| !is_advice(before))
    };
    let is_killed = KILLED.iter().any(|phrase| is_logged(phrase, line));
    let mut signals = EXITS.iter().filter_map(of_code).chain(is_killed.then_some(9));
    let signal = signals.find(|signal| matches!(signal, 4..=9 | 11))?;
    let status = ExitStatus::Signal { signal };
    Some(LastWords::WorkerDied { worker: "process".to_owned(), pid: None, status })
}

/// The text before a phrase of a table, if the line has that phrase.
fn text_before<'l>(phrase: &str, line: &'l str) -> Option<&'l str> {
    around(phrase, line).map(|(before, _)| before)
}

/// The text before a phrase of a table, and the text behind it.
fn around<'l>(phrase: &str, line: &'l str) -> Option<(&'l str, &'l str)> {
    let begin = phrase.strip_prefix('^');
    let phrase = begin.unwrap_or(phrase);
    let end = phrase.strip_suffix('$');
    let mut parts = end.unwrap_or(phrase).split('*');
    let first = parts.next().unwrap_or_default();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let is_whole = |before: &str| {
        let is_within = before.as_bytes().last().is_some_and(is_word);
        !is_within || !first.as_bytes().first().is_some_and(is_word)
    };
    let mut places = line.match_indices(first).filter_map(|(at, _)| line.split_at_checked(at));
    let fits = |before: &str| is_whole(before) && (begin.is_none() || prefix::is_prefix(before));
    let (before, found) = places.find(|(before, _)| fits(before))?;
    let rest = found.get(first.len()..)?;
    let rest = parts.try_fold(rest, |rest, part| rest.split_once(part).map(|(_, rest)| rest))?;
    (end.is_none() || rest.is_empty()).then_some((before, rest))
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
