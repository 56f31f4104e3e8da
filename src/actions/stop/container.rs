//! Signals to a container, through Docker's API: whoever restarts containers learns from it that
//! this one is meant to end.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use bollard::query_parameters::KillContainerOptionsBuilder;
use bollard::{API_DEFAULT_VERSION, Docker};

use crate::sys::descriptors;

/// Descriptors of a tokio runtime, and a socket.
const RUNTIME_TAKES: usize = 6;

/// A container could not be signalled.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContainerError {
    /// It cannot be a container's name.
    #[error("{0:?} is no container's id")]
    NotAContainer(String),
    /// There is no answer.
    #[error("{socket} has not answered within {} ms", patience.as_millis())]
    Silent {
        /// Whom it was sent to.
        socket: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// It has refused.
    #[error("{socket}: {error}")]
    Failed {
        /// Whom it was sent to.
        socket: String,
        /// What it said.
        error: String,
    },
}

/// Has a container signalled, and waits no longer than that for the answer: a daemon that waits for
/// memory must not hold up the signals that need none.
pub(super) fn signal(
    socket: &Path,
    container: &str,
    signal: &'static str,
    patience: Duration,
) -> Result<(), ContainerError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if !container.starts_with(|first: char| first.is_ascii_alphanumeric())
        || !container.bytes().all(is_plain)
    {
        return Err(ContainerError::NotAContainer(container.to_owned()));
    }
    let socket = socket.display().to_string();
    let failed = |error: String| ContainerError::Failed { socket: socket.clone(), error };
    let (answer, answered) = sync_channel(1);
    let (to, name) = (socket.clone(), container.to_owned());
    thread::Builder::new()
        .name("docker".into())
        .spawn(move || {
            // Whoever asked may have gone on without the answer.
            let _ = answer.send(ask(&to, &name, signal, patience));
        })
        .map_err(|error| failed(format!("starting a thread failed: {error}")))?;
    match answered.recv_timeout(patience) {
        Ok(result) => result.map_err(failed),
        Err(RecvTimeoutError::Timeout) => Err(ContainerError::Silent { socket, patience }),
        Err(RecvTimeoutError::Disconnected) => Err(failed("its thread has ended".to_owned())),
    }
}

fn ask(
    socket: &str,
    container: &str,
    signal: &'static str,
    patience: Duration,
) -> Result<(), String> {
    let _lent = descriptors::lend(RUNTIME_TAKES);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("starting a runtime failed: {error}"))?;
    runtime.block_on(async {
        // The daemon may be slow, and act all the same: it is left the time to.
        let seconds = patience.as_secs().saturating_add(10);
        let docker = Docker::connect_with_unix(socket, seconds, API_DEFAULT_VERSION)
            .map_err(|error| error.to_string())?;
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        let asked = docker.kill_container(container, Some(options)).await;
        asked.map_err(|error| error.to_string())
    })
}
