//! Listening sockets, and which process uses an address already.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::Path;

/// Listens on all of these addresses. `[::]` means both protocols, and IPv4 alone on a machine
/// without IPv6.
///
/// # Errors
/// The address, why it cannot be used, and what to do.
pub fn bind(addresses: &[SocketAddr]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        bind_one(*address, &mut listeners)
            .map_err(|error| io::Error::new(error.kind(), explain(*address, &error)))?;
    }
    Ok(listeners)
}

/// The listening TCP sockets that systemd has passed to this process, at least one.
///
/// # Errors
/// There is none, or one of them is something else.
pub fn passed_by_systemd() -> io::Result<Vec<TcpListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    let error = |text: &str| {
        let text = format!("--web.systemd-socket: {text}; see umawarden.socket, or leave it out");
        io::Error::new(ErrorKind::InvalidInput, text)
    };
    let mut listeners = Vec::with_capacity(passed.len());
    for index in 0..passed.len() {
        let listener = passed.take_tcp_listener(index);
        let listener = listener.map_err(|_| error("systemd passed a socket that is not TCP"))?;
        listeners.extend(listener);
    }
    if listeners.is_empty() { Err(error("systemd passed no socket")) } else { Ok(listeners) }
}

fn bind_one(address: SocketAddr, listeners: &mut Vec<TcpListener>) -> io::Result<()> {
    let ipv4_twin = |port| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    let both = address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let listener = match TcpListener::bind(address) {
        Err(error) if both && lacks_ipv6(&error) => TcpListener::bind(ipv4_twin(address.port()))?,
        bound => bound?,
    };
    let bound = listener.local_addr()?;
    listeners.push(listener);
    if both && bound.is_ipv6() {
        // With net.ipv6.bindv6only=1 the first socket excludes IPv4. Otherwise it uses the port for
        // both, and the second bind says "in use".
        match TcpListener::bind(ipv4_twin(bound.port())) {
            Ok(twin) => listeners.push(twin),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn lacks_ipv6(error: &io::Error) -> bool {
    let unsupported = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.raw_os_error() == Some(unsupported) || error.kind() == ErrorKind::AddrNotAvailable
}

fn explain(address: SocketAddr, error: &io::Error) -> String {
    let choose = "choose another with --web.listen-address";
    match error.kind() {
        ErrorKind::AddrInUse => {
            let holder = holder_of(address.port()).map_or_else(
                || "another process".to_owned(),
                |(pid, comm)| format!("{comm} (pid {pid})"),
            );
            format!(
                "cannot listen on {address}: {holder} listens there already; stop it, or {choose}"
            )
        }
        ErrorKind::PermissionDenied => format!(
            "cannot listen on {address}: permission denied; low ports need root or \
             CAP_NET_BIND_SERVICE, so grant it, or {choose}"
        ),
        ErrorKind::AddrNotAvailable => format!(
            "cannot listen on {address}: this machine has no such address (`ip addr` lists those \
             that it has); {choose}"
        ),
        _ => format!("cannot listen on {address}: {error}; {choose}"),
    }
}

/// The process that listens on a port, if /proc shows it.
fn holder_of(port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    let inodes: Vec<String> = tables
        .iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| listening_inodes(&table, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if inodes.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|process| Some((process.file_name().to_str()?.parse().ok()?, process.path())))
        .find_map(|(pid, path): (u32, _)| {
            holds_any(&path, &inodes).then(|| {
                let comm = fs::read_to_string(path.join("comm")).unwrap_or_default();
                (pid, comm.trim_end().escape_debug().to_string())
            })
        })
}

/// Inodes of sockets in state LISTEN (0A) on a port.
pub(super) fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let local_port = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_ascii_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&local_port) && *fields.get(3)? == "0A";
            if listens { fields.get(9)?.parse().ok() } else { None }
        })
        .collect()
}

fn holds_any(process: &Path, inodes: &[String]) -> bool {
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    files.flatten().filter_map(|file| fs::read_link(file.path()).ok()).any(|target| {
        target.to_str().is_some_and(|target| inodes.iter().any(|inode| inode == target))
    })
}
