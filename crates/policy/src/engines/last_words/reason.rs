//! Reasons of engines' ends: the cause and the cure of each, in a sentence for people.

/// Why an engine gave up. Of several in one log, the first of this list explains the end best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// Ray's memory monitor killed one of its workers.
    RayMemoryMonitor,
    /// `/dev/shm` is full.
    SharedMemoryFull,
    /// RDMA may not lock as much memory.
    LockedMemoryLimit,
    /// Its share of memory leaves too little for the KV cache.
    KvCacheTooSmall,
    /// It refused to start with as little memory as there was.
    TooLittleMemory,
    /// Ray has fewer nodes, or fewer GPUs, than it wants.
    NodeMissing,
    /// Another process changed the memory that it measured.
    MeasurementDisturbed,
    /// It refused to start, as another rank has less memory than this one.
    Unbalanced,
    /// NvMap, the allocator of Jetson's driver, got no memory.
    NvMapFailed,
    /// An allocation for the GPU failed.
    OutOfMemory,
    /// An allocation for the GPU failed, and NVML reports no memory of that GPU.
    OutOfUnreportedMemory,
    /// An allocation for the CPU failed.
    HostOutOfMemory,
    /// The kernel's OOM killer ended one of its processes, by the word of a supervisor.
    OomKilled,
    /// A library of CUDA could not create its handle: most often memory is short.
    HandleFailed,
    /// Memory that it has mapped could not be had (SIGBUS).
    BusError,
    /// One of its processes has ended unexpectedly.
    WorkerDied,
    /// One of its processes did not answer in time.
    WorkerTimedOut,
    /// Another node, or another rank, was lost.
    PeerLost,
    /// It gave up; another line has the reason.
    GaveUp,
}

impl Reason {
    /// The cause of death in words, for people.
    pub fn cause(self) -> &'static str {
        match self {
            Self::RayMemoryMonitor => {
                "Ray's memory monitor killed a worker, as the memory in use on its node, page \
                 cache included, passed RAY_memory_usage_threshold (0.95)"
            }
            Self::SharedMemoryFull => {
                "/dev/shm, through which its processes exchange data, is full; Docker gives a \
                 container 64 MiB"
            }
            Self::LockedMemoryLimit => "RDMA could not lock memory: RLIMIT_MEMLOCK is too low",
            Self::KvCacheTooSmall => {
                "its share of memory leaves, beside the weights, less KV cache than its requests \
                 need"
            }
            Self::TooLittleMemory => "less memory was free at its start than it takes",
            Self::NodeMissing => "Ray has fewer nodes, or fewer GPUs, than the engine wants",
            Self::MeasurementDisturbed => {
                "another process freed or took memory while vLLM measured its own"
            }
            Self::Unbalanced => {
                "the ranks have unequal memory, and the one that complains is the healthy one"
            }
            Self::NvMapFailed => {
                "NvMap, the allocator of Jetson's driver, got no memory: too little was free, or \
                 only in small blocks"
            }
            Self::OutOfMemory => {
                "an allocation for the GPU failed; on unified memory the page cache and dead \
                 engines count as used there"
            }
            Self::OutOfUnreportedMemory => {
                "an allocation for the GPU failed, and torch could not report it, as NVML has no \
                 memory figures of this GPU (GB10, Jetson, MIG)"
            }
            Self::HostOutOfMemory => {
                "an allocation for the CPU failed: the node was full, or a limit was reached \
                 (control group, ulimit -v, vm.overcommit_memory=2)"
            }
            Self::OomKilled => {
                "the kernel's OOM killer ended one of its processes, as its supervisor reports: \
                 the node was full, or a limit was reached (control group, Slurm's --mem)"
            }
            Self::HandleFailed => {
                "a library of CUDA (cuBLAS, cuDNN) could not start on the GPU: most often too \
                 little memory was free there, else driver and library do not fit"
            }
            Self::BusError => {
                "memory that it had mapped could not be had (SIGBUS): mostly /dev/shm is full, \
                 else a model file cannot be read or has become shorter"
            }
            Self::WorkerDied => "one of its processes ended, and the others with it",
            Self::WorkerTimedOut => {
                "one of its workers did not answer in time: it hung, or waited for memory"
            }
            Self::PeerLost => "it lost another rank or node",
            Self::GaveUp => "it gave up; another line of its log has the reason",
        }
    }

    /// What to do, with the engines' own options.
    pub fn cure(self) -> &'static str {
        match self {
            Self::RayMemoryMonitor => {
                "set RAY_memory_usage_threshold=0.99, or RAY_memory_monitor_refresh_ms=0 to turn \
                 it off, for `ray start` on every node, and keep the page cache small (rule action \
                 evict_checkpoint)"
            }
            Self::SharedMemoryFull => {
                "docker run --shm-size=16g or --ipc=host; in Kubernetes, an emptyDir with medium: \
                 Memory at /dev/shm; remove files there that dead engines left"
            }
            Self::LockedMemoryLimit => {
                "docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity in its unit"
            }
            Self::KvCacheTooSmall => {
                "raise its share if the node has memory to spare (vLLM --gpu-memory-utilization, \
                 SGLang --mem-fraction-static, TensorRT-LLM --kv_cache_free_gpu_memory_fraction), \
                 or lower its context (vLLM --max-model-len, SGLang --context-length)"
            }
            Self::TooLittleMemory => {
                "free page cache and end dead engines before the start (`umawarden gate --need \
                 SIZE --prepare`), or lower its share (vLLM --gpu-memory-utilization, SGLang \
                 --mem-fraction-static) or take a smaller model (`umawarden fit`)"
            }
            Self::NodeMissing => {
                "start Ray on each node (`ray status` on the head shows which have joined), and \
                 end what holds their GPUs"
            }
            Self::MeasurementDisturbed => {
                "start one engine at a time (`umawarden launch --need SIZE`), or set \
                 --kv-cache-memory-bytes, with which vLLM does not measure"
            }
            Self::Unbalanced => {
                "free memory on the other nodes, their page cache above all (`umawarden gate \
                 --need SIZE --prepare` there)"
            }
            Self::NvMapFailed => {
                "free memory in large blocks before the start (`umawarden gate --need SIZE \
                 --contiguous SIZE --prepare`), or reboot if that does not suffice"
            }
            Self::OutOfMemory | Self::OutOfUnreportedMemory => {
                "free memory before the start (`umawarden gate --need SIZE --prepare`), or let it \
                 take less (vLLM --gpu-memory-utilization, SGLang --mem-fraction-static, llama.cpp \
                 --ctx-size or --n-gpu-layers)"
            }
            Self::HostOutOfMemory => {
                "free memory before the start (`umawarden gate --need SIZE --prepare`), raise that \
                 limit, or load and compile with fewer processes (vLLM \
                 --max-parallel-loading-workers, MAX_JOBS)"
            }
            Self::OomKilled => {
                "free memory before the start (`umawarden gate --need SIZE --prepare`), or raise \
                 that limit (docker run --memory, MemoryMax= of its unit, srun --mem); `umawarden \
                 dmesg` shows which one it was"
            }
            Self::HandleFailed => {
                "free memory before the start (`umawarden gate --need SIZE --prepare`), or let it \
                 take less; if memory was free, install a build for this driver's CUDA"
            }
            Self::BusError => {
                "docker run --shm-size=16g or --ipc=host; in Kubernetes, an emptyDir with medium: \
                 Memory at /dev/shm; else check the disk of the model (`umawarden dmesg`)"
            }
            Self::WorkerDied => "see the lines before it, and the kernel log (`umawarden dmesg`)",
            Self::WorkerTimedOut => {
                "check the memory at that time (`umawarden history`); if the work takes that long, \
                 raise vLLM's VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS or SGLang's --watchdog-timeout"
            }
            Self::PeerLost => "see `umawarden history --kind engine_died` on the first dead node",
            Self::GaveUp => "read the first error in its log, and `umawarden dmesg`",
        }
    }
}
