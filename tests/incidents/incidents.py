"""The incidents: what happens to the machine, and which rules must act on it.

An incident is a function that gets a Node (see ./record). A rule that it does not name must not
act. Sizes are for a machine of 16 to 64 GiB."""

import contextlib
import fcntl
import mmap
import os
import resource
import signal
import subprocess
import threading
import time

from dataclasses import dataclass, field

GIB = 1 << 30
MIB = 1 << 20
PAGE = 4096
INCIDENTS = {}

OOM_KILL = "kernel/OomKill"
OOM_KILL_AT_LIMIT = "kernel/OomKillAtLimit"
CACHE_EATS_RESERVE = "memory/PageCacheEatsReserve"
RECLAIM_STORM = "memory/DirectReclaimStorm"
RUNS_OUT = "memory/MemoryRunsOutSoon"
FRAGMENTED = "memory/MemoryFragmented"

NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) "
    "returned from _memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)


@dataclass
class Incident:
    name: str
    what: str
    happen: object
    mode: str = "observe"
    must_act: list = field(default_factory=list)
    may_act: list = field(default_factory=list)
    # Expressions that must have held at some time; otherwise the recording is not of the incident.
    shows: list = field(default_factory=list)


def incident(what, **more):
    def add(happen):
        name = happen.__name__.replace("_", "-")
        INCIDENTS[name] = Incident(name, what, happen, **more)
        return happen

    return add


def meminfo(wanted):
    with open("/proc/meminfo") as file:
        for line in file:
            if line.startswith(wanted + ":"):
                return int(line.split()[1]) * 1024
    return 0


def begin_with_empty_page_cache(node):
    """Starts with an empty page cache, and with free memory in large blocks."""
    node.run("sync")
    for name in ("drop_caches", "compact_memory"):
        with open("/proc/sys/vm/" + name, "w") as file:
            file.write("1\n")


class Checkpoint:
    """A file larger than memory. It is sparse, and fills the page cache all the same."""

    def __init__(self, node, size=60 * GIB):
        self.path = os.path.join(node.folder, "checkpoint")
        with open(self.path, "wb") as file:
            file.truncate(size)
        self.file = open(self.path, "rb", buffering=0)
        self.buffer = bytearray(16 * MIB)

    def read(self):
        if not self.file.readinto(self.buffer):
            self.file.seek(0)

    def read_until(self, free_below):
        """Reads until little memory is free."""
        while meminfo("MemFree") > free_below:
            self.read()

    def read_for(self, seconds):
        """Continues to read at the present position."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.read()


def hold(total, per_second, huge=False, until_available=0):
    """The work of a forked process: takes memory at a pace, a step every 20 ms, and keeps it. It
    waits while no more than `until_available` is available."""

    def work():
        memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        step = max(PAGE, per_second // 50 // PAGE * PAGE)
        due, taken = time.monotonic(), 0
        while taken < total:
            due = max(due + 0.02, time.monotonic() - 0.5)
            time.sleep(max(0, due - time.monotonic()))
            if meminfo("MemAvailable") > until_available:
                end = min(taken + step, total)
                memory[taken:end:PAGE] = b"x" * len(range(taken, end, PAGE))
                taken = end
        signal.pause()

    return work


def hugetlb(node, size):
    """Takes memory as a driver does: 2 MiB at a time, with reclaim and compaction. Waits until the
    kernel has found it or given up."""
    node.sysctl("vm/nr_hugepages", size // (2 * MIB))


def kill_in(procs, program="tail", *arguments):
    """Starts a process that exceeds the limit of its cgroup."""
    arguments = arguments or ("/dev/zero",)
    script = f'echo $$ >{procs} && exec "$0" "$@"'
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(["/bin/sh", "-c", script, program, *arguments], **quiet)


@incident("A process exceeds its memory cgroup of 32 MiB; the kernel kills it.",
          must_act=[OOM_KILL_AT_LIMIT],
          shows=['uma_kernel_events_total{event="oom_kill"} > 0'])
def cgroup_oom(node):
    procs = node.memory_cgroup(32 * MIB)
    node.start()
    kill_in(procs).wait()
    node.wait(5)


@incident("User space writes twenty lines into /dev/kmsg that look like Xid 79; they do not count "
          "as the kernel's.",
          shows=['uma_kernel_log_userspace_records_total >= 20'])
def quoted_by_user_space(node):
    node.start()
    with open("/dev/kmsg", "w") as kmsg:
        for number in range(20):
            kmsg.write(f"<4>NVRM: Xid (PCI:000f:01:00): 79, pid={number}, name=x, gone\n")
            kmsg.flush()
            node.wait(0.1)
    node.wait(2)


@incident("A checkpoint is read with read(2) until the page cache has filled memory, while 150 "
          "MiB a second are taken for good: one drop of the cache is enough.",
          mode="enforce", must_act=[CACHE_EATS_RESERVE],
          shows=['uma_memory_page_cache_bytes{state="clean"} > on() uma_memory_total_bytes / 2'])
def page_cache_flood_by_read(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    checkpoint.read_until(1200 * MIB)
    node.fork(hold(2 * GIB, 150 * MIB))
    reading = threading.Thread(target=checkpoint.read_for, args=(6,))
    reading.start()
    reading.join()
    node.wait(4)


@incident("A page-cache flood in observe mode: nothing is dropped, so the rule would act again "
          "and again; its cooldown holds it.",
          must_act=[CACHE_EATS_RESERVE], may_act=[RECLAIM_STORM],
          shows=['uma_memory_page_cache_bytes{state="clean"} > on() uma_memory_total_bytes / 2'])
def page_cache_flood_observed(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    checkpoint.read_until(1200 * MIB)
    node.fork(hold(2 * GIB, 150 * MIB))
    checkpoint.read_for(12)
    node.wait(2)


@incident("A checkpoint stays mapped while 2 MiB pages are requested as by a driver: allocations "
          "scan for pages themselves, and dropping the cache does not help because it is mapped.",
          mode="enforce", must_act=[RECLAIM_STORM],
          may_act=[CACHE_EATS_RESERVE, FRAGMENTED, "memory/MemoryPressureFull", RUNS_OUT],
          shows=['uma_memory_page_cache_bytes{state="mapped"} > on() uma_memory_total_bytes / 2'])
def page_cache_flood_by_mmap(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    size = meminfo("MemFree") - 400 * MIB

    def map_and_touch():
        with open(checkpoint.path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
            end = time.monotonic() + 60
            while time.monotonic() < end:
                for at in range(0, size, 64 * MIB):
                    len(mapped[at:at + 64 * MIB:PAGE])

    node.start()
    node.fork(map_and_touch)
    node.wait_until(lambda: meminfo("MemFree") < 700 * MIB)
    hugetlb(node, 6 * GIB)
    node.wait(4)


@incident("A download fills the page cache within seconds until a sixteenth of memory is free; no "
          "process requests memory, so no rule may act.",
          shows=['uma_memory_page_cache_bytes{state="clean"} > on() uma_memory_total_bytes * 0.85',
                 'uma_memory_free_bytes < uma_memory_total_bytes / 16'])
def download_fills_the_cache(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    checkpoint.read_until(meminfo("MemTotal") // 17)
    node.wait(6)


@incident("Free memory consists of single pages between used ones: hardly any of it in blocks of "
          "2 MiB. Compaction joins them.",
          mode="enforce", must_act=[FRAGMENTED],
          shows=['sum(uma_memory_contiguous_bytes{block="2MiB"}) < uma_memory_free_bytes / 8'])
def fragmentation(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.sysctl("vm/compaction_proactiveness", 0)
    size = 10 * GIB

    def hold_every_other_page():
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, size, 64 * MIB):
            memory[at:at + 64 * MIB:PAGE] = b"x" * (64 * MIB // PAGE)
        # The rest is filled with cache, so that only these pages will be free.
        checkpoint.read_until(700 * MIB)
        for at in range(0, size, 2 * PAGE):
            memory.madvise(mmap.MADV_DONTNEED, at, PAGE)
        signal.pause()

    node.start()
    node.fork(hold_every_other_page)
    node.wait(45)


@incident("A process fills pipes at 60 MiB a second: no counter of the kernel includes this "
          "memory, as with a leak of the driver.",
          must_act=["memory/UnaccountedMemoryGrows"],
          shows=['uma_memory_unaccounted_bytes > 1.5 * 1024^3'])
def slow_leak_through_pipes(node):
    def fill_pipes():
        most = 8192
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        ends = []
        for _ in range(1800):
            reader, writer = os.pipe()
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, MIB)
            os.write(writer, bytes(MIB))
            ends.append((reader, writer))
            time.sleep(1 / 60)
        signal.pause()

    node.start()
    node.fork(fill_pipes)
    node.wait(36)


@incident("2.5 GiB of a cgroup go to swap while little memory is available: swap hides that "
          "memory has run out.",
          must_act=["memory/SwapHidesExhaustion"], may_act=[RUNS_OUT, CACHE_EATS_RESERVE],
          shows=['uma_swap_total_bytes - uma_swap_free_bytes > 2 * 1024^3'])
def swap_storm(node):
    begin_with_empty_page_cache(node)
    with open("/sys/block/zram0/disksize", "w") as file:
        file.write(str(4 * GIB))

    def remove_swap():
        # The pages in swap need free memory first.
        node.wait_until(lambda: subprocess.run(["swapoff", "/dev/zram0"]).returncode == 0)
        with open("/sys/block/zram0/reset", "w") as file:
            file.write("1")

    node.run("mkswap", "/dev/zram0")
    node.run("swapon", "/dev/zram0")
    node.undo.callback(remove_swap)
    procs = node.memory_cgroup(256 * MIB)

    def swap():
        with open(procs, "w") as file:
            file.write(str(os.getpid()))
        memory = mmap.mmap(-1, 3 * GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, 3 * GIB, 8 * MIB):
            for page in range(at, at + 8 * MIB, PAGE):
                memory[page:page + 8] = page.to_bytes(8, "little")
            time.sleep(0.03)
        signal.pause()

    node.fork(hold(22 * GIB, 4 * GIB, huge=True, until_available=2800 * MIB))
    node.wait_until(lambda: meminfo("MemAvailable") < 2900 * MIB)
    node.start()
    node.fork(swap)
    node.wait_until(lambda: meminfo("SwapTotal") - meminfo("SwapFree") > 2400 * MIB)
    node.wait(2)


@incident("Available memory falls fast to an eighth and recovers, as when CUDA graphs are "
          "captured. This is no incident.",
          shows=['uma_memory_available_bytes < uma_memory_total_bytes / 8',
                 'uma_memory_available_bytes > uma_memory_total_bytes / 4'])
def harmless_dip(node):
    begin_with_empty_page_cache(node)
    engine = node.fork(hold(22 * GIB, 12 * GIB, huge=True, until_available=7 * GIB))
    node.wait_until(lambda: meminfo("MemAvailable") < 7 * GIB + 100 * MIB)
    node.start()
    for _ in range(2):
        graphs = node.fork(hold(6 * GIB, 12 * GIB, huge=True, until_available=2600 * MIB))
        node.wait_until(lambda: meminfo("MemAvailable") < 2700 * MIB)
        node.wait(0.8)
        node.release(graphs)
        node.wait(4)
    node.release(engine)


@incident("An engine starts on an empty machine and takes half of its memory at once: enough is "
          "left.",
          shows=['uma_memory_available_bytes < uma_memory_total_bytes * 0.6'])
def large_start(node):
    begin_with_empty_page_cache(node)
    node.start()
    node.fork(hold(meminfo("MemTotal") // 2, 12 * GIB, huge=True))
    node.wait(10)
    node.release()
    node.wait(3)


@incident("A process takes 240 MiB a second without end on a machine full of cache: available "
          "memory, cache included, will be used up in ten seconds.",
          may_act=[RUNS_OUT, CACHE_EATS_RESERVE, RECLAIM_STORM],
          shows=['uma_memory_available_bytes < uma_memory_total_bytes / 10'])
def memory_runs_out(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    fast = meminfo("MemAvailable") - 4 * GIB
    node.fork(hold(fast, 8 * GIB, huge=True))
    node.wait_until(lambda: meminfo("MemAvailable") < 4200 * MIB)
    checkpoint.read_until(500 * MIB)
    node.fork(hold(4 * GIB, 240 * MIB, until_available=1800 * MIB))
    node.wait_until(lambda: meminfo("MemAvailable") < 1900 * MIB)
    node.wait(1)
    node.release()
    node.wait(3)


@incident("The driver logs a thousand failed attempts in twenty seconds and recovers from all of "
          "them; there is plenty of memory.",
          shows=['uma_kernel_events_total{event="nv_no_memory"} >= 1000'])
def thousand_harmless_nv_err_no_memory(node):
    begin_with_empty_page_cache(node)
    node.start()
    for _ in range(50):
        for _ in range(20):
            node.kernel_log.insert(NO_MEMORY)
        node.wait(0.4)
    node.wait(3)


@incident("The driver fails ten allocations a second for a minute and a half while the page cache "
          "has filled memory: caches are dropped, and memory is free again.",
          mode="enforce", must_act=["kernel/DriverStarvedByCache"], may_act=[CACHE_EATS_RESERVE],
          shows=['uma_memory_free_bytes < uma_memory_total_bytes / 16'])
def nv_err_no_memory_in_earnest(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    checkpoint.read_until(900 * MIB)
    reading = threading.Thread(target=checkpoint.read_for, args=(85,))
    reading.start()
    for _ in range(900):
        node.kernel_log.insert(NO_MEMORY)
        node.wait(0.1)
    reading.join()
    node.wait(6)


@incident("A task waits in state D for a frozen file system, and the kernel logs it.",
          must_act=["kernel/HungTask"],
          shows=['uma_kernel_events_total{event="hung_task"} > 0'])
def hung_task(node):
    image, mounted = (os.path.join(node.folder, name) for name in ("image", "mounted"))
    with open(image, "wb") as file:
        file.truncate(64 * MIB)
    node.run("mkfs.ext4", "-q", image)
    os.mkdir(mounted)
    node.run("mount", "-o", "loop", image, mounted)
    node.undo.callback(node.run, "umount", mounted)
    node.sysctl("kernel/hung_task_warnings", 10)
    node.sysctl("kernel/hung_task_timeout_secs", 3)
    node.start()
    node.run("fsfreeze", "-f", mounted)
    with contextlib.ExitStack() as frozen:
        frozen.callback(node.run, "fsfreeze", "-u", mounted)
        writer = subprocess.Popen(["touch", os.path.join(mounted, "x")])
        node.wait(8)
    writer.wait()
    node.wait(2)


@incident("Forty processes are killed at their cgroup's limit faster than the log can be read: "
          "traces are rate-limited and records are lost, but the kernel's own counter is "
          "complete.",
          must_act=[OOM_KILL, "kernel/KernelLogRecordsLost"], may_act=[OOM_KILL_AT_LIMIT],
          shows=['uma_kernel_log_lost_records_total > 0',
                 'increase(uma_memory_oom_kills_total[10s]) >= 40'])
def oom_storm_with_lost_records(node):
    procs = node.memory_cgroup(16 * MIB)
    node.start()
    kill_in(procs).wait()
    node.wait(0.5)
    node.kernel_log.paused.set()
    for _ in range(40):
        kill_in(procs).wait()
    for _ in range(3000):
        with open("/dev/kmsg", "w") as kmsg:
            kmsg.write("<6>a service that logs into the kernel's ring, at some length and often\n")
    node.kernel_log.paused.clear()
    kill_in(procs).wait()
    node.wait(6)


@incident("meminfo cannot be read for ten seconds during a page-cache flood: rules that need it "
          "are unknown and do not act, and the failed source is reported; afterwards they act.",
          must_act=["umawarden/SourceDown", CACHE_EATS_RESERVE], may_act=[RECLAIM_STORM],
          shows=['uma_scrape_collector_success{collector="meminfo"} == 0'])
def a_source_fails(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    procfs = os.path.join(node.folder, "proc")
    os.mkdir(procfs)
    for name in os.listdir("/proc"):
        if name != "meminfo" and not name.isdigit():
            os.symlink(os.path.join("/proc", name), os.path.join(procfs, name))
    # A copy of the kernel's file that can be emptied.
    copy = os.open(os.path.join(procfs, "meminfo"), os.O_RDWR | os.O_CREAT)
    fails, ended = threading.Event(), threading.Event()

    def copy_meminfo():
        while not ended.is_set():
            with open("/proc/meminfo", "rb") as file:
                text = file.read()
            if fails.is_set():
                os.ftruncate(copy, 0)
            else:
                os.pwrite(copy, text.ljust(4000, b"\n"), 0)
            time.sleep(0.05)

    threading.Thread(target=copy_meminfo, daemon=True).start()
    node.undo.callback(ended.set)
    time.sleep(0.2)
    node.start("--path.procfs", procfs)
    checkpoint.read_until(1200 * MIB)
    fails.set()
    node.wait(1)
    node.fork(hold(3 * GIB, 120 * MIB))
    checkpoint.read_for(9)
    fails.clear()
    checkpoint.read_for(6)
    node.wait(2)


@incident("The daemon is killed in the middle of a flood and restarted: it holds for the cooldown "
          "of its earlier act, then acts again.",
          must_act=[CACHE_EATS_RESERVE], may_act=[RECLAIM_STORM],
          shows=['uma_memory_page_cache_bytes{state="clean"} > on() uma_memory_total_bytes / 2'])
def restart_in_the_middle(node):
    begin_with_empty_page_cache(node)
    checkpoint = Checkpoint(node)
    node.start()
    checkpoint.read_until(1000 * MIB)
    node.fork(hold(4 * GIB, 150 * MIB))
    checkpoint.read_for(3)
    node.stop(signal.SIGKILL)
    reading = threading.Thread(target=checkpoint.read_for, args=(12,))
    reading.start()
    node.start()
    reading.join()
    node.wait(1)
