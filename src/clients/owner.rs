//! Whether an engine is still the one that was meant, and is what listens where it is asked.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use crate::model::{EngineTarget, ProcessId};
use crate::parse::process::{listening_inodes, stat};

/// Those that listen stand first.
const MOST_SOCKET_BYTES: u64 = 256 << 10;
/// The most open files of a process that are looked at.
const MOST_OPEN: usize = 4096;

/// Whether that very process lives.
pub fn is_alive(procfs: &Path, id: ProcessId) -> bool {
    let text = fs::read(procfs.join(id.pid.to_string()).join("stat")).ok();
    let known = text.and_then(|text| stat(&text));
    known.is_some_and(|known| {
        known.start_ticks == id.start_ticks && !matches!(known.state, 'Z' | 'X')
    })
}

/// Whether one of the engine's processes has the socket that listens on that port in its network;
/// `None` where nothing listens there, as behind a port that Docker offers, or that cannot be seen.
pub fn listens(procfs: &Path, engine: &EngineTarget, port: u16) -> Option<bool> {
    let server = engine.processes.first()?;
    let of = |name: &str| {
        let mut text = Vec::new();
        let file = File::open(procfs.join(server.pid.to_string()).join(name)).ok()?;
        file.take(MOST_SOCKET_BYTES).read_to_end(&mut text).ok()?;
        Some(text)
    };
    let files = [of("net/tcp"), of("net/tcp6")];
    let sockets: BTreeSet<String> = files
        .iter()
        .flatten()
        .flat_map(|text| listening_inodes(text, port))
        .map(|inode| format!("socket:[{inode}]"))
        .collect();
    if sockets.is_empty() {
        return None;
    }
    let mut is_all_seen = true;
    for id in &engine.processes {
        match fs::read_dir(procfs.join(id.pid.to_string()).join("fd")) {
            Ok(open) => {
                let mut open = open.flatten().take(MOST_OPEN);
                let has_it = open.any(|entry| {
                    let target = fs::read_link(entry.path()).ok();
                    target.and_then(|target| Some(sockets.contains(target.to_str()?))) == Some(true)
                });
                if has_it {
                    return Some(true);
                }
            }
            Err(_) => is_all_seen = false,
        }
    }
    is_all_seen.then_some(false)
}
