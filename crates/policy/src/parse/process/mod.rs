//! What `/proc/PID/…` says of one process. All of it may be hostile: a process chooses its name,
//! its command line and the files that it maps.

mod cgroup;
#[cfg(test)]
mod tests;

use core::net::{IpAddr, SocketAddr};

use crate::model::is_unprintable;

pub use cgroup::{NamespaceRoot, cgroup, outer_mount};

/// The longest text that is kept of what a process chose itself.
pub const MAX_TEXT: usize = 4096;

/// `PF_KTHREAD` in the flags of `stat`: a thread of the kernel.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// `PF_EXITING` in the flags of `stat`: the process is ending.
const EXITING: u64 = 0x4;

/// `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name, printable.
    pub comm: String,
    /// `R`, `S`, `D`, `Z`, …
    pub state: char,
    /// Its parent's number.
    pub parent: u32,
    /// Whether it is the kernel's own.
    pub is_kernel: bool,
    /// Whether it gives back what it holds, and runs no program any more.
    pub is_exiting: bool,
    /// In user and in kernel mode together, in clock ticks.
    pub cpu_ticks: u64,
    /// Since boot, in clock ticks.
    pub start_ticks: u64,
    /// Resident pages; 0 where the kernel does not report them.
    pub resident_pages: u64,
}

/// The real user of a process, of `/proc/PID/status`.
pub fn real_user(status: &[u8]) -> Option<u32> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let line = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    std::str::from_utf8(line).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// `/proc/PID/fdinfo/N`: an open file, as the kernel describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its flags, as of open(2).
    pub flags: u32,
    /// Number of its mount. `None` before Linux 3.15.
    pub mount: Option<u64>,
    /// Number of its inode in the file system. `None` before Linux 5.14.
    pub inode: Option<u64>,
}

impl Descriptor {
    /// Whether both are of one file, as far as this one shows it.
    pub fn is_of_file_of(&self, other: &Self) -> bool {
        let is_same = |one: Option<u64>, other: Option<u64>| one.is_none() || one == other;
        is_same(self.mount, other.mount) && is_same(self.inode, other.inode)
    }
}

/// Reads `/proc/PID/fdinfo/N`.
pub fn descriptor(text: &[u8]) -> Option<Descriptor> {
    let flags = std::str::from_utf8(field(text, "flags")?).ok()?;
    let flags = u32::from_str_radix(flags, 8).ok()?;
    let of = |name| field(text, name).and_then(number);
    Some(Descriptor { flags, mount: of("mnt_id"), inode: of("ino") })
}

/// The pid of a process in its own PID namespace, of `/proc/PID/status`. `None` before Linux 4.1.
pub fn own_pid(status: &[u8]) -> Option<u32> {
    pids(status).next_back()?.parse().ok()
}

/// Whether `/proc/PID/status` is of a process in a PID namespace below that of its reader, as in a
/// container.
pub fn is_in_inner_namespace(status: &[u8]) -> bool {
    pids(status).count() > 1
}

/// The pids of a process, from the namespace of the reader to its own.
fn pids(status: &[u8]) -> impl DoubleEndedIterator<Item = &str> {
    let pids = field(status, "NSpid").and_then(|pids| std::str::from_utf8(pids).ok());
    pids.unwrap_or_default().split_ascii_whitespace()
}

/// Reads `/proc/PID/stat`. The name may hold parentheses, spaces, digits and newlines.
pub fn stat(text: &[u8]) -> Option<Stat> {
    let opens = text.iter().position(|byte| *byte == b'(')?;
    let closes = text.iter().rposition(|byte| *byte == b')')?;
    let comm = printable(text.get(opens + 1..closes)?);
    let rest = std::str::from_utf8(text.get(closes + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first of them is the third of the file.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let mut state = fields.first()?.chars();
    let (Some(state), None) = (state.next(), state.next()) else { return None };
    // Without anything behind it, the last number may have been cut off.
    fields.get(23 - 3)?;
    Some(Stat {
        comm,
        state: Some(state).filter(char::is_ascii_alphabetic)?,
        parent: u32::try_from(number(4)?).ok()?,
        is_kernel: number(9)? & KERNEL_THREAD != 0,
        is_exiting: number(9)? & EXITING != 0,
        cpu_ticks: number(14)?.saturating_add(number(15)?),
        start_ticks: number(22)?,
        resident_pages: number(24).unwrap_or(0),
    })
}

/// Field 52 of `/proc/PID/stat`, of a zombie: how it ended, as waitpid(2) gives it. To others than
/// its owner the kernel shows 0.
pub fn exit_status(text: &[u8]) -> Option<i32> {
    let closes = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(closes + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(52 - 3)?.parse().ok()
}

/// Text that is safe on a terminal: unprintable bytes become `\xNN`, a backslash `\\`.
pub fn printable(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len());
    for part in text[..text.len().min(MAX_TEXT)].utf8_chunks() {
        for character in part.valid().chars() {
            match character {
                '\\' => shown.push_str("\\\\"),
                character if character.is_control() => {
                    shown.push_str(&format!("\\x{:02x}", u32::from(character)));
                }
                character if is_unprintable(character) => shown.extend(character.escape_unicode()),
                character => shown.push(character),
            }
        }
        for byte in part.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// The arguments in `/proc/PID/cmdline`, printable. A process that has given itself a title has one
/// argument, and perhaps blanks behind it.
pub fn arguments(text: &[u8]) -> Vec<String> {
    let end = text.iter().rposition(|byte| !matches!(byte, 0 | b' ')).map_or(0, |last| last + 1);
    if end == 0 {
        return Vec::new();
    }
    text[..end].split(|byte| *byte == 0).map(printable).collect()
}

/// Resident memory in `/proc/PID/status`, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// `RssAnon`.
    pub anon: Option<u64>,
    /// `RssFile`.
    pub file: Option<u64>,
    /// `RssShmem`.
    pub shmem: Option<u64>,
    /// `HugetlbPages`.
    pub hugetlb: Option<u64>,
}

/// Reads `/proc/PID/status`; a process that is ending has none of these.
pub fn resident(text: &[u8]) -> Resident {
    let field = |name: &str| {
        let value = field(text, name)?.strip_suffix(b"kB")?;
        number(value.trim_ascii())?.checked_mul(1024)
    };
    Resident {
        anon: field("RssAnon"),
        file: field("RssFile"),
        shmem: field("RssShmem"),
        hugetlb: field("HugetlbPages"),
    }
}

/// `/proc/PID/io`: `read_bytes` and `rchar`.
pub fn read_amounts(text: &[u8]) -> (Option<u64>, Option<u64>) {
    let field = |name: &str| number(field(text, name)?);
    (field("read_bytes"), field("rchar"))
}

/// The first line that begins with that name: a process can put a newline into its own name, but
/// the kernel writes it as `\n`.
fn field<'t>(text: &'t [u8], name: &str) -> Option<&'t [u8]> {
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        Some(value.trim_ascii())
    })
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The innermost systemd unit of a control group's path. The owner of a control group names its
/// children, so this is for people only. Decisions use [`system_unit`].
pub fn unit(cgroup: &str) -> Option<&str> {
    let innermost = |ending: &str| {
        let mut parts = cgroup.rsplit('/');
        parts.find(|part| part.len() > ending.len() && part.ends_with(ending))
    };
    innermost(".service").or_else(|| innermost(".scope"))
}

/// The part of a control group's path into which only root puts processes: the slices of the
/// system, and the one unit in them. What is below a unit may be delegated to a user, and
/// `user.slice` holds the sessions and service managers of users.
fn system_parts(cgroup: &str) -> impl Iterator<Item = &str> {
    let mut is_over = !cgroup.starts_with('/');
    cgroup.split('/').filter(|part| !part.is_empty()).take_while(move |part| {
        let is_within = !is_over;
        is_over |= !part.ends_with(".slice");
        is_within
    })
}

/// The unit of the system's own systemd that a control group's path is in. A name below
/// `user.slice`, `user@UID.service`, another unit or a container is none: a user can choose it.
pub fn system_unit(cgroup: &str) -> Option<&str> {
    let mut parts = system_parts(cgroup);
    let slice = parts.next()?;
    let is_system = slice.ends_with(".slice") && slice != "user.slice";
    let named = |ending: &str, part: &str| part.len() > ending.len() && part.ends_with(ending);
    let last = parts.last().filter(|_| is_system)?;
    let is_unit = named(".service", last) || named(".scope", last);
    (is_unit && !last.starts_with("user@")).then_some(last)
}

/// The user and the service of that user's own systemd (`systemctl --user`) that a control group's
/// path is in. The user has chosen the name of the service; only root makes the path above it.
pub fn user_unit(cgroup: &str) -> Option<(u32, &str)> {
    let (user, below) = cgroup.strip_prefix("/user.slice/user-")?.split_once(".slice/user@")?;
    let (of_manager, below) = below.split_once(".service/")?;
    let unit = below.split('/').find(|part| !part.ends_with(".slice"))?;
    let is_service = unit.len() > ".service".len() && unit.ends_with(".service");
    (user == of_manager && is_service).then_some((user.parse().ok()?, unit))
}

/// The control group of that service itself: all its processes are in it or below it.
pub fn group_of_user_unit(cgroup: &str) -> Option<&str> {
    let ends = cgroup.match_indices('/').map(|(at, _)| at).chain([cgroup.len()]);
    ends.filter_map(|end| cgroup.get(..end)).find(|path| user_unit(path).is_some())
}

/// Name prefixes of services that run commands of users.
const OF_USERS: [&str; 30] = [
    "anacron.",
    "at.",
    "atd.",
    "code-server.",
    "code-server@",
    "condor.",
    "cron.",
    "crond.",
    "cronie.",
    "dropbear.",
    "dropbear@",
    "exim4.",
    "gitlab-runner.",
    "jupyter.",
    "jupyterhub.",
    "mom.",
    "pbs_mom.",
    "postfix.",
    "postfix@",
    "rstudio-server.",
    "slurmd.",
    "ssh.",
    "ssh@",
    "sshd.",
    "sshd@",
    "systemd-nspawn@",
    "tailscaled.",
    "teleport.",
    "user@",
    "xinetd.",
];

/// Whether a service runs commands of users: membership in it proves nothing about a process.
pub fn is_of_users(service: &str) -> bool {
    OF_USERS.iter().any(|begins| service.starts_with(begins))
}

/// The units and slices of a control group's path that no user can choose: `user.slice`,
/// `user-1000.slice` and `user@1000.service` are among them, and what is below those is not.
pub fn system_units(cgroup: &str) -> impl Iterator<Item = &str> {
    let is_unit = |part: &&str| [".service", ".scope", ".slice"].iter().any(|e| part.ends_with(e));
    system_parts(cgroup).filter(is_unit)
}

/// Whether a control group is that one, or below it.
pub fn is_within(cgroup: &str, above: &str) -> bool {
    let below = cgroup.strip_prefix(above.trim_end_matches('/'));
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// The user ids of a process in `/proc/PID/status`: real, effective, saved, and of file systems.
pub fn user_ids(status: &[u8]) -> Option<[u32; 4]> {
    let text = std::str::from_utf8(field(status, "Uid")?).ok()?;
    let mut ids = text.split_ascii_whitespace().map(str::parse);
    let mut next = || ids.next()?.ok();
    let all = [next()?, next()?, next()?, next()?];
    next().is_none().then_some(all)
}

/// The user whose own user namespace a process is in, by `/proc/PID/uid_map` as this process reads
/// it: rootless runtimes make one for their containers. `None`: the namespace has root's id, as
/// that of the machine and those of root's own runtimes have, or the id of nobody in particular.
///
/// Without privileges a user maps the own id alone, and by newuidmap(1) those of `/etc/subuid`
/// (user_namespaces(7)), so that no other user can have made a namespace with this id.
pub fn namespace_user(uid_map: &[u8]) -> Option<u32> {
    let line = |line: &str| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (_, outside, count) = (next()?, next()?, next()?);
        Some((outside, count))
    };
    let text = std::str::from_utf8(uid_map).ok()?;
    let ranges: Vec<(u32, u32)> = text.lines().map(line).collect::<Option<_>>()?;
    let is_roots = ranges.iter().any(|(outside, count)| *outside == 0 && *count > 0);
    let single = ranges.iter().filter(|(_, count)| *count == 1).map(|(outside, _)| *outside);
    // Subordinate ids follow those of people, and may be mapped one by one, too.
    single.min().filter(|_| !is_roots)
}

/// The user of a process, where all of its user ids agree. They differ in a setuid program, whose
/// arguments another user chose.
pub fn user_id(status: &[u8]) -> Option<u32> {
    let [real, others @ ..] = user_ids(status)?;
    others.iter().all(|other| *other == real).then_some(real)
}

/// The mapped files in `/proc/PID/maps`: mapped bytes and path. Malformed lines are left out.
pub fn mapped_files(text: &[u8]) -> impl Iterator<Item = (u64, &str)> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        // Without their paths most lines are short, and of no interest.
        let at = line.iter().position(|byte| *byte == b'/')?;
        let path = std::str::from_utf8(line.get(at..)?).ok()?;
        let head = std::str::from_utf8(line.get(..at)?).ok()?;
        let (from, to) = head.split_ascii_whitespace().next()?.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        (path.len() <= MAX_TEXT).then_some((to.checked_sub(from)?, path))
    })
}

/// The value of a variable in `/proc/PID/environ`, printable.
pub fn variable(text: &[u8], name: &str) -> Option<String> {
    text.split(|byte| *byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(printable(value))
    })
}

/// The local addresses of sockets that listen on a port, in `/proc/PID/net/tcp` or `tcp6`. The
/// kernel lists listening sockets first.
pub fn listening(text: &[u8], port: u16) -> impl Iterator<Item = IpAddr> {
    text.split(|byte| *byte == b'\n').filter_map(move |line| {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, _, state) = (fields.next()?, fields.next()?, fields.next()?);
        let (address, number) = local.split_once(':')?;
        let is_it = state == "0A" && u16::from_str_radix(number, 16).ok()? == port;
        is_it.then(|| socket_address(address)).flatten()
    })
}

/// A row of `/proc/PID/net/tcp` or `tcp6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Its own address. That of IPv4 within IPv6 is IPv4.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
    /// Whether it listens.
    pub is_listening: bool,
    /// The user who made or accepted it.
    pub uid: u32,
    /// Its inode; 0 where no process has it: it is not accepted yet, or closed.
    pub inode: u64,
}

impl TcpSocket {
    /// Whether a connection to that address may reach it, if it listens.
    pub fn accepts(&self, to: IpAddr) -> bool {
        let at = self.local.ip();
        // `::` accepts IPv4 too, unless IPV6_V6ONLY is set, which the file does not show.
        at == to || at.is_unspecified() && (at.is_ipv6() || to.is_ipv4())
    }
}

/// The sockets in `/proc/PID/net/tcp` or `tcp6`.
pub fn tcp_sockets(text: &[u8]) -> impl Iterator<Item = TcpSocket> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let line = std::str::from_utf8(line).ok()?;
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let address = |field: usize| {
            let (address, port) = fields.get(field)?.split_once(':')?;
            let port = u16::from_str_radix(port, 16).ok()?;
            Some(SocketAddr::new(socket_address(address)?, port))
        };
        Some(TcpSocket {
            local: address(1)?,
            remote: address(2)?,
            is_listening: *fields.get(3)? == "0A",
            uid: fields.get(7)?.parse().ok()?,
            inode: fields.get(9)?.parse().ok()?,
        })
    })
}

/// Hexadecimal digits of a number of 32 bits.
const NUMBER_DIGITS: usize = 8;

/// As the kernel prints the address of a socket: numbers of 32 bits that it takes for its own, in
/// the order of its bytes.
fn socket_address(text: &str) -> Option<IpAddr> {
    let mut bytes = Vec::new();
    for part in text.as_bytes().chunks(NUMBER_DIGITS) {
        if part.len() != NUMBER_DIGITS {
            return None;
        }
        let number = u32::from_str_radix(std::str::from_utf8(part).ok()?, 16).ok()?;
        bytes.extend(number.to_ne_bytes());
    }
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes.as_slice()) {
        return Some(bytes.into());
    }
    let bytes = <[u8; 16]>::try_from(bytes.as_slice()).ok()?;
    Some(IpAddr::from(bytes).to_canonical())
}
