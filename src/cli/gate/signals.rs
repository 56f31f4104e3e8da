//! A signal ends the wait at once, also for the first process of a container, which ignores signals
//! by default.

use std::io;
use std::thread::Builder;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::output::{self, errln};

/// Shells add this to the number of the signal.
pub(crate) const BY_SIGNAL: i32 = 128;

/// From now on SIGINT, SIGTERM and SIGHUP end this process.
///
/// # Errors
/// The signals cannot be handled.
pub(super) fn end_at_once() -> io::Result<()> {
    on_end(|number| {
        if output::is_error_terminal() {
            errln!();
        }
        std::process::exit(BY_SIGNAL + number);
    })
}

/// Calls `end` with the number of the first SIGINT, SIGTERM or SIGHUP, on a thread of its own.
///
/// # Errors
/// The signals cannot be handled.
pub(crate) fn on_end(end: impl FnOnce(i32) + Send + 'static) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let listened: Vec<(i32, Signal)> = {
        let _within = runtime.enter();
        let listen = |kind: SignalKind| Ok((kind.as_raw_value(), signal(kind)?));
        kinds.into_iter().map(listen).collect::<io::Result<_>>()?
    };
    Builder::new().name("signals".to_owned()).spawn(move || {
        runtime.block_on(async {
            let mut waits = tokio::task::JoinSet::new();
            for (number, mut signal) in listened {
                waits.spawn(async move {
                    signal.recv().await;
                    number
                });
            }
            if let Some(Ok(number)) = waits.join_next().await {
                end(number);
            }
        });
    })?;
    Ok(())
}
