//! Catches signals that would end the program unintentionally.
//!
//! They are caught and not ignored, since children inherit ignored signals and not handlers.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Named as in signal(7). With SIGXFSZ caught, the oversized write fails.
const NAMED: [(&str, i32); 9] = [
    ("SIGUSR1", libc::SIGUSR1),
    ("SIGUSR2", libc::SIGUSR2),
    ("SIGALRM", libc::SIGALRM),
    ("SIGVTALRM", libc::SIGVTALRM),
    ("SIGPROF", libc::SIGPROF),
    ("SIGIO", libc::SIGIO),
    ("SIGPWR", libc::SIGPWR),
    ("SIGSTKFLT", libc::SIGSTKFLT),
    ("SIGXFSZ", libc::SIGXFSZ),
];

/// Catches the signals. Each is logged when it first comes.
///
/// # Errors
/// A handler cannot be installed.
pub(super) fn ignore() -> io::Result<()> {
    let named = NAMED.into_iter().map(|(name, number)| (name.to_owned(), number));
    let realtime = (libc::SIGRTMIN()..=libc::SIGRTMAX())
        .map(|number| (format!("SIGRTMIN+{}", number - libc::SIGRTMIN()), number));
    for (name, number) in named.chain(realtime) {
        tokio::spawn(log_first(name, signal(SignalKind::from_raw(number))?));
    }
    Ok(())
}

async fn log_first(name: String, mut signal: Signal) {
    if signal.recv().await.is_some() {
        tracing::warn!(signal = name, remedy = "SIGHUP reloads, SIGTERM ends", "signal ignored");
    }
}
