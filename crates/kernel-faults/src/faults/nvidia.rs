//! Messages of the NVIDIA driver.
//!
//! Shapes: `NV_PRINTF` and `nvCheckOk…` of open-gpu-kernel-modules; the Xid catalogue.

use crate::{GpuLossSign, KernelEvent, Pool, Recovery};

use super::text::{fits_comm, gpu_prefix, hex, identifier, number, pid, whole_pid};

/// A line of the driver.
#[derive(Debug, PartialEq)]
pub(super) enum Nvidia {
    /// A complete fault.
    Event(KernelEvent),
    /// A fault whose end may follow in the next record.
    Unfinished(Option<KernelEvent>),
    /// A GPU's address space is full: memory is not short.
    AddressSpace,
    /// No fault that is known.
    Other,
}

/// Reads a line of the driver; `None`: it is of another source.
pub(super) fn parse(text: &str) -> Option<Nvidia> {
    if let Some(message) = uvm_fatal(text) {
        return Some(message);
    }
    if let Some(rest) = text.strip_prefix("nvgpu: ") {
        return nvgpu(rest).map(Nvidia::Event);
    }
    if begins(text, "NVRM: ") {
        return Some(Nvidia::Unfinished(None));
    }
    // Drivers of 2022 print no colon here.
    let message = text.strip_prefix("NVRM: ").or_else(|| text.strip_prefix("NVRM "))?;
    let (gpu, message) = gpu_prefix(message);
    if let Some(rest) = message.strip_prefix("Xid (") {
        let cut = !rest.contains("): ") || rest.ends_with("): ");
        let other = if cut { Nvidia::Unfinished(None) } else { Nvidia::Other };
        return Some(xid(rest).unwrap_or(other));
    }
    if message.is_empty() || begins(message, "Xid (") {
        return Some(Nvidia::Unfinished(None));
    }
    if let Some(found) = lost(gpu, message) {
        return Some(found);
    }
    if let Some(event) = no_pages(gpu, message) {
        return Some(Nvidia::Event(event));
    }
    let Some((function, rest)) = identifier(message) else { return Some(Nvidia::Other) };
    if is_check(function) {
        return Some(check(function, gpu, rest));
    }
    // Perhaps the name of a check, or of a function that could not allocate.
    if rest.is_empty() {
        return Some(Nvidia::Unfinished(None));
    }
    Some(allocation(function, rest))
}

/// Whether a record can be the rest of a message that was broken: the driver may repeat its prefix.
pub(super) fn continuation(text: &str) -> &str {
    text.strip_prefix("NVRM: ").unwrap_or(text)
}

/// Whether a text is the cut beginning of `whole`.
fn begins(text: &str, whole: &str) -> bool {
    !text.is_empty() && text.len() < whole.len() && whole.starts_with(text)
}

fn uvm_fatal(text: &str) -> Option<Nvidia> {
    const FATAL: &str = "uvm encountered global fatal error 0x";
    let (prefixed, text) =
        match text.strip_prefix("NVRM: ").or_else(|| text.strip_prefix("nvidia-uvm: ")) {
            Some(text) => (true, text),
            None => (false, text),
        };
    let (_, text) = gpu_prefix(text);
    let named = identifier(text).and_then(|(_, rest)| rest.strip_prefix(": "));
    let is_fatal = text.starts_with(FATAL)
        || named.is_some_and(|text| text.starts_with(FATAL))
        || (prefixed && uvm_print(text).is_some_and(|text| text.starts_with(UVM_FATAL)));
    if is_fatal {
        return Some(Nvidia::Event(KernelEvent::UvmFatal));
    }
    let cut = prefixed && (begins(text, FATAL) || named.is_some_and(|text| begins(text, FATAL)));
    cut.then_some(Nvidia::Unfinished(None))
}

/// The words of UVM itself, which older drivers write alone.
pub(super) const UVM_FATAL: &str = "Encountered a global fatal error: ";

/// The text after `uvm_global.c:399 uvm_global_set_fatal_error_impl[pid:4242] ` (`UVM_ERR_PRINT`
/// of uvm_common.h).
fn uvm_print(text: &str) -> Option<&str> {
    let (file, rest) = text.split_once(':')?;
    let (_line, rest) = number(rest)?;
    let (_function, rest) = identifier(rest.strip_prefix(' ')?)?;
    let (_pid, rest) = pid(rest.strip_prefix("[pid:")?)?;
    let rest = rest.strip_prefix(']')?.trim_start();
    file.ends_with(".c").then(|| rest.strip_prefix("ERROR: ").unwrap_or(rest))
}

const CHECKS: [&str; 4] =
    ["nvCheckFailed", "nvCheckOkFailed", "nvAssertFailed", "nvAssertOkFailed"];

fn is_check(function: &str) -> bool {
    CHECKS.contains(&function.strip_suffix("NoLog").unwrap_or(function))
}

/// `: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from …`.
fn check(function: &str, gpu: Option<u32>, rest: &str) -> Nvidia {
    let status =
        rest.strip_prefix(": Check failed: ").or_else(|| rest.strip_prefix(": Assertion failed: "));
    let Some(status) = status else { return unfinished_if_cut(rest) };
    let Some((words, rest)) = status.split_once('[') else { return unfinished_if_cut(rest) };
    // The status is words and a code; an expression before the bracket is no status.
    if !words.bytes().all(|byte| byte.is_ascii_alphanumeric() || b" -_,/'".contains(&byte)) {
        return Nvidia::Other;
    }
    let Some((code, rest)) = rest.split_once(']') else {
        return if "NV_ERR_NO_MEMORY".starts_with(rest) {
            Nvidia::Unfinished(None)
        } else {
            Nvidia::Other
        };
    };
    if code == "NV_ERR_RESET_REQUIRED" {
        let sign = GpuLossSign::ResetRequired;
        return Nvidia::Event(KernelEvent::GpuLost { pci: None, gpu, sign });
    }
    if code != "NV_ERR_NO_MEMORY" {
        return Nvidia::Other;
    }
    let (expression, location, whole) = origin(rest);
    if is_address_space(expression, location) {
        return Nvidia::AddressSpace;
    }
    let event = KernelEvent::NvNoMemory {
        function: function.to_owned(),
        gpu,
        pool: pool(expression, location),
        location: location.map(str::to_owned),
    };
    if whole { Nvidia::Event(event) } else { Nvidia::Unfinished(Some(event)) }
}

/// A check without its status may continue in the next record; one with a location is complete.
fn unfinished_if_cut(rest: &str) -> Nvidia {
    if split_location(rest).is_some() { Nvidia::Other } else { Nvidia::Unfinished(None) }
}

/// The text after the code: the expression, its source location, and whether that is all.
fn origin(rest: &str) -> (&str, Option<&str>, bool) {
    let rest = rest.trim();
    let rest = match rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
        Some((code, after)) if hex(code).is_some_and(|(_, rest)| rest.is_empty()) => after.trim(),
        _ => rest,
    };
    if let Some((expression, location)) = split_location(rest) {
        return (expression, Some(location), true);
    }
    let from = rest.strip_prefix("returned from").unwrap_or(rest).trim();
    let digits = from.strip_prefix("0x").unwrap_or(from);
    let address = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    (rest, None, address)
}

/// `<expr> @ <file>:<line>`, from the end.
fn split_location(text: &str) -> Option<(&str, &str)> {
    let (expression, location) = text.trim_end().rsplit_once(" @ ")?;
    let (file, line) = location.rsplit_once(':')?;
    let file_like = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte);
    let valid = !file.is_empty()
        && file.bytes().all(file_like)
        && file.contains('.')
        && number(line).is_some_and(|(_, rest)| rest.is_empty());
    valid.then_some((expression, location))
}

/// Whether a mapping found no address in BAR1 or BAR2, the windows of the CPU on a GPU's memory
/// (open-gpu-kernel-modules, issues 1132 and 1187). Memory is not short.
fn is_address_space(expression: &str, location: Option<&str>) -> bool {
    const NAMES: [&str; 7] =
        ["pReuseMappingDb", "kbusMap", "kbusUpdateRmAperture", "Bar1", "BAR1", "Bar2", "BAR2"];
    // These files also allocate memory: page tables of the windows.
    let is_of_bus = || location.is_some_and(|location| location.starts_with("kern_bus"));
    location.is_some_and(|location| location.starts_with("mapping_reuse.c:"))
        || NAMES.iter().any(|name| expression.contains(name))
        || (is_of_bus() && !["memdesc", "portMem"].iter().any(|name| expression.contains(name)))
}

fn pool(expression: &str, location: Option<&str>) -> Pool {
    let file = location
        .and_then(|location| location.rsplit_once(':'))
        .map(|(file, _)| file.rsplit('/').next().unwrap_or(file));
    let names = |name: &str| {
        expression
            .split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'))
            .any(|word| word.starts_with(name))
    };
    // Before video memory: `isSystemMemory ? NV01_MEMORY_SYSTEM : NV01_MEMORY_LOCAL_USER` is what a
    // unified machine prints, and it has only the first.
    if names("NV01_MEMORY_SYSTEM")
        || file == Some("system_mem.c")
        || expression.contains("system_mem.c")
    {
        Pool::System
    } else if ["pmaAllocatePages", "ctxBufPoolReserve", "NV01_MEMORY_LOCAL_USER"]
        .into_iter()
        .any(names)
        || matches!(file, Some("pool_alloc.c" | "video_mem.c"))
        || expression.contains("pool_alloc.c")
    {
        Pool::Vram
    } else {
        Pool::Any
    }
}

/// `VM: nv_alloc_pages: failed to allocate 4096 pages`: system memory, in pages of a size that the
/// line does not have (nv-vm.c of open-gpu-kernel-modules).
fn no_pages(gpu: Option<u32>, message: &str) -> Option<KernelEvent> {
    let (function, rest) = identifier(message.strip_prefix("VM: ")?)?;
    let (_, rest) = number(rest.strip_prefix(": failed to allocate ")?)?;
    (rest.trim_end().trim_end_matches('.') == " pages").then(|| KernelEvent::NvNoMemory {
        function: function.to_owned(),
        gpu,
        pool: Pool::System,
        location: None,
    })
}

/// `: failed to allocate 0x176028 bytes for IOVA mapping metadata`.
fn allocation(function: &str, rest: &str) -> Nvidia {
    const FAILED: &str = ": failed to allocate ";
    let Some(rest) = rest.strip_prefix(FAILED) else {
        return if begins(rest, FAILED) { Nvidia::Unfinished(None) } else { Nvidia::Other };
    };
    if "0x".starts_with(rest) {
        return Nvidia::Unfinished(None);
    }
    let Some((bytes, rest)) = hex(rest).or_else(|| number(rest)) else { return Nvidia::Other };
    const WHAT: &str = " bytes for IOVA mapping metadata";
    if rest.trim_end().trim_end_matches('.') == WHAT {
        Nvidia::Event(KernelEvent::NvAllocFailed { function: function.to_owned(), bytes })
    } else if WHAT.starts_with(rest) {
        Nvidia::Unfinished(None)
    } else {
        Nvidia::Other
    }
}

/// `17000000.gpu  nvgpu_dma_print_err:101  [INFO]  DMA alloc FAILED: [sysmem] size=257490944 …`:
/// drivers/gpu/nvgpu/os/linux/linux-dma.c of L4T.
fn nvgpu(rest: &str) -> Option<KernelEvent> {
    let (_device, rest) = rest.split_once(' ')?;
    let (function, rest) = identifier(rest.trim_start())?;
    let (_line, rest) = rest.strip_prefix(':').and_then(number)?;
    let (_level, rest) = rest.trim_start().strip_prefix('[')?.split_once(']')?;
    let (_kind, rest) = rest.trim_start().strip_prefix("DMA alloc FAILED: [")?.split_once(']')?;
    let (bytes, _) = number(rest.strip_prefix(" size=")?)?;
    Some(KernelEvent::NvAllocFailed { function: function.to_owned(), bytes })
}

/// Messages about a device that is gone or cannot be used, after `NVRM: ` and `GPU<n> `
/// (osinit.c, osapi.c, kernel_gsp.c, kernel_gsp_tu102.c and kernel_gsp_gh100.c of
/// open-gpu-kernel-modules).
fn lost(gpu: Option<u32>, message: &str) -> Option<Nvidia> {
    let event = |pci: Option<&str>, sign| {
        let pci = pci.map(str::to_owned);
        Some(Nvidia::Event(KernelEvent::GpuLost { pci, gpu, sign }))
    };
    const OFF_BUS: &str = "fallen off the bus and is not responding to commands";
    if let Some(rest) = message.strip_prefix("The NVIDIA GPU ") {
        // In three records, or in one with newlines.
        let end = rest.find(|letter: char| !(letter.is_ascii_hexdigit() || ":.".contains(letter)));
        let pci = rest.get(..end.unwrap_or(rest.len())).filter(|pci| is_pci(pci))?;
        let is_whole = rest.contains(OFF_BUS);
        return if is_whole { event(Some(pci), GpuLossSign::OffBus) } else { unfinished() };
    }
    if message.strip_prefix("system has ").unwrap_or(message).starts_with(OFF_BUS) {
        return event(None, GpuLossSign::OffBus);
    }
    if let Some((pci, text)) = message.strip_prefix("GPU ").and_then(|rest| rest.split_once(": ")) {
        is_pci(pci).then_some(())?;
        if text.starts_with("GPU has fallen off the bus") {
            return event(Some(pci), GpuLossSign::OffBus);
        }
        return init_failed(Some(pci), text);
    }
    // Older drivers: Bumblebee-Project/Bumblebee, issues 554 and 628.
    if let Some((pci, text)) = message.strip_prefix("GPU at ").and_then(|rest| rest.split_once(' '))
    {
        let pci = pci.strip_prefix("PCI:").unwrap_or(pci);
        let is_lost = is_pci(pci) && text.starts_with("has fallen off the bus");
        return is_lost.then(|| event(Some(pci), GpuLossSign::OffBus)).flatten();
    }
    if message.starts_with("RmInitAdapter failed! (") || minor(message).is_some() {
        return init_failed(None, message);
    }
    if let Some(rest) = message.strip_prefix("Rate limiting GSP RPC error prints for GPU at PCI:") {
        let (pci, rest) = rest.split_once(' ')?;
        let is_lost = is_pci(pci) && rest.contains("The GPU likely needs to be reset");
        return is_lost.then(|| event(Some(pci), GpuLossSign::ResetRequired)).flatten();
    }
    let (_function, rest) = identifier(message)?;
    event(None, sign(rest.strip_prefix(": ")?)?)
}

/// What follows the codes of a failed initialisation; older drivers write the second.
pub(super) const INIT_FAILED: [&str; 2] = [
    "rm_init_adapter failed, device minor number ",
    "rm_init_adapter failed for device bearing minor number ",
];
/// The status of one whose codes are missing.
const UNKNOWN_STATUS: &str = "unknown";

/// `RmInitAdapter failed! (0x62:0x40:2168)`.
fn init_failed(pci: Option<&str>, text: &str) -> Option<Nvidia> {
    let status = match minor(text) {
        Some(minor) => whole_pid(minor.trim_end()).map(|_| UNKNOWN_STATUS)?,
        None => text.strip_prefix("RmInitAdapter failed! (")?.split_once(')')?.0,
    };
    let (pci, status) = (pci.map(str::to_owned), status.to_owned());
    Some(Nvidia::Event(KernelEvent::GpuInitFailed { pci, status }))
}

/// The number of the device that could not be initialised.
fn minor(text: &str) -> Option<&str> {
    INIT_FAILED.iter().find_map(|words| text.strip_prefix(words))
}

fn unfinished() -> Option<Nvidia> {
    Some(Nvidia::Unfinished(None))
}

/// The driver's words for a device that must be reset.
pub(super) const RESETS: [&str; 2] = [
    "(the GPU is likely in a bad state and may need to be reset)",
    "(the GPU may be in a bad state and may need to be reset)",
];
/// The driver's words for a GSP that does not respond.
pub(super) const TIMEOUTS: [&str; 10] = [
    "Heartbeat timed out, ",
    "GSP RM heartbeat timed out",
    "LibOS heartbeat timed out",
    "Timeout waiting for RISC-V to halt",
    "Timeout waiting for GSP ",
    "SEC2 GSP Boot:Timeout waiting for GSP ",
    "Timeout waiting for lockdown release",
    "Timeout waiting for SEC2-RTOS to resume GSP-RM",
    "failed to wait for GFW boot complete",
    "rpcRecvPoll timedout for fn ",
];
/// The same between asterisks.
pub(super) const BANNER: &str = " GSP Timeout ";

/// What the text after a function's name shows.
fn sign(text: &str) -> Option<GpuLossSign> {
    if RESETS.contains(&text.trim_end()) {
        return Some(GpuLossSign::ResetRequired);
    }
    let is_banner = text.trim_end().trim_matches('*') == BANNER;
    let is_timeout = TIMEOUTS.iter().any(|start| text.starts_with(start));
    (is_timeout || is_banner).then_some(GpuLossSign::GspTimeout)
}

/// `PCI:000f:01:00 GPU-I:02 GPU-CI:00): 31, pid=4242, name=VLLM::EngineCor, …`.
fn xid(rest: &str) -> Option<Nvidia> {
    let (origin, rest) = rest.split_once("): ")?;
    let mut words = origin.split(' ');
    let pci = words.next()?;
    let pci = pci.strip_prefix("PCI:").unwrap_or(pci);
    if !is_pci(pci) {
        return None;
    }
    let (mut gpu_instance, mut compute_instance) = (None, None);
    for word in words {
        if let Some(id) = word.strip_prefix("GPU-I:") {
            gpu_instance = Some(whole_pid(id)?);
        } else if let Some(id) = word.strip_prefix("GPU-CI:") {
            compute_instance = Some(whole_pid(id)?);
        } else if !word.is_empty() {
            return None;
        }
    }
    let (xid, rest) = pid(rest)?;
    if !(rest.is_empty() || rest.starts_with([',', ' ', ':'])) {
        return None;
    }
    let message = rest.trim_start_matches([',', ':']).trim_start();
    let (pid, process) = xid_process(message);
    let recovery = if xid == 154 { recovery(message) } else { None };
    let event = KernelEvent::Xid {
        xid,
        pci: pci.to_owned(),
        gpu_instance,
        compute_instance,
        pid,
        process,
        recovery,
    };
    let has_recovery = message.contains(" to ") && message.trim_end().ends_with(')');
    let cut = rest.is_empty() || (xid == 154 && recovery.is_none() && !has_recovery);
    Some(if cut { Nvidia::Unfinished(Some(event)) } else { Nvidia::Event(event) })
}

/// `domain:bus:device`, perhaps with a function.
fn is_pci(text: &str) -> bool {
    let (slot, function) = text.split_once('.').map_or((text, None), |(a, b)| (a, Some(b)));
    let hexes = |text: &str, min: usize, max: usize| {
        (min..=max).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = slot.split(':');
    let (Some(domain), Some(bus), Some(device), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    hexes(domain, 4, 8)
        && hexes(bus, 2, 2)
        && hexes(device, 2, 2)
        && function.is_none_or(|function| hexes(function, 1, 1))
}

fn xid_process(message: &str) -> (Option<u32>, Option<String>) {
    let Some(rest) = message.strip_prefix("pid=") else {
        return (None, message.strip_prefix("name=").and_then(xid_name));
    };
    let (value, rest) = match rest.split_once(", name=") {
        Some((value, name)) if !value.contains(',') => (value, Some(name)),
        _ => (rest.split(',').next().unwrap_or(rest), None),
    };
    (whole_pid(value.trim_matches('\'').trim()), rest.and_then(xid_name))
}

/// The name ends where the message that follows it begins; the name itself may hold commas.
fn xid_name(rest: &str) -> Option<String> {
    let commas = || {
        rest.match_indices(", ")
            .map(|(at, _)| at)
            .take_while(|at| rest.get(..*at).is_some_and(fits_comm))
    };
    let starts = |at: &usize, test: fn(&str) -> bool| rest.get(at + 2..).is_some_and(test);
    let end = commas()
        .filter(|at| starts(at, starts_channel))
        .last()
        .or_else(|| commas().find(|at| starts(at, starts_message)))
        .or_else(|| rest.find(", "))
        .unwrap_or(rest.len());
    let name = rest.get(..end)?.trim_end_matches(',');
    let unquoted = name.strip_prefix('\'').and_then(|name| name.strip_suffix('\'')).unwrap_or(name);
    (!unquoted.is_empty() && unquoted != "<unknown>").then(|| name.to_owned())
}

/// `Ch 00000008` or `channel 0x00000008`, which comes right after the name.
fn starts_channel(text: &str) -> bool {
    let number = text.strip_prefix("Ch ").or_else(|| text.strip_prefix("channel 0x"));
    number.is_some_and(|number| number.bytes().take_while(u8::is_ascii_hexdigit).count() >= 8)
}

fn starts_message(text: &str) -> bool {
    const STARTS: [&str; 18] = [
        "Channel ",
        "Graphics ",
        "MMU Fault",
        "Class Error",
        "Contained",
        "Uncontained",
        "Timeout after",
        "Row Remapper",
        "SW Notify",
        "CTX SWITCH",
        "GSP ",
        "PBDMA",
        "errorString",
        "GPU has ",
        "GPU recovery",
        "Engine ",
        "DBE ",
        "NVLink",
    ];
    STARTS.iter().any(|start| text.starts_with(start))
}

/// `GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)`. Drivers word it in
/// several ways (`OS Reboot`, `PF FLR`); the numbers are `NV2080_CTRL_GPU_RECOVERY_ACTION_*`.
fn recovery(message: &str) -> Option<Recovery> {
    let (_, to) = message.rsplit_once(" to ")?;
    let (number, words) = hex(to).map_or((None, to), |(number, rest)| (Some(number), rest));
    let words = words.trim().trim_start_matches('(').trim_end_matches(['.', ')']);
    match words {
        "None" => Some(Recovery::None),
        "GPU Reset Required" | "GPU Reset" | "PF FLR" => Some(Recovery::GpuReset),
        "Node Reboot Required" | "Node Reboot" | "OS Reboot" => Some(Recovery::NodeReboot),
        "Drain P2P" => Some(Recovery::DrainP2p),
        "Drain and Reset" => Some(Recovery::DrainAndReset),
        _ => match number {
            Some(0) => Some(Recovery::None),
            Some(1) => Some(Recovery::GpuReset),
            Some(2) => Some(Recovery::NodeReboot),
            Some(3) => Some(Recovery::DrainP2p),
            Some(4) => Some(Recovery::DrainAndReset),
            _ => None,
        },
    }
}
