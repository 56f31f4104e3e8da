//! Signals to a container, through Docker's API or the CRI: its runtime sees a requested end.

use std::path::Path;
use std::time::Duration;

use crate::supervisors::cri::Cri;
use crate::supervisors::docker::Docker;
use crate::supervisors::{NotEnded, within};
use crate::sys::descriptors;

/// The number of descriptors of a tokio runtime and a socket.
const RUNTIME_TAKES: usize = 6;

/// The time that Docker has beyond the wait: it may be slow, and act.
const LONGER: Duration = Duration::from_secs(10);

/// A request to a runtime that ends a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContainerEndRequest {
    /// The signal with that name.
    Signal(&'static str),
    /// A stop, with a grace. Podman 4.3.1 starts a container again that ends after SIGTERM, and
    /// leaves one ended that was stopped or got SIGKILL.
    Stop(Duration),
}

/// Asks for the end of a container, with a time limit for the response. A Docker that waits for
/// memory must not delay the signals that need none. An error names the socket.
pub(super) fn end(
    docker: Docker,
    container: &str,
    ask: ContainerEndRequest,
    patience: Duration,
) -> Result<(), String> {
    let (socket, id) = (docker.socket().display().to_string(), container.to_owned());
    let lent = descriptors::lend(RUNTIME_TAKES);
    let signalled = within("docker", patience, move || async move {
        let _lent = lent;
        match ask {
            ContainerEndRequest::Signal(signal) => {
                docker.kill(&id, signal, patience + LONGER).await
            }
            ContainerEndRequest::Stop(grace) => {
                let seconds = i32::try_from(grace.as_secs()).unwrap_or(i32::MAX).saturating_add(1);
                docker.stop(&id, seconds, patience + grace + LONGER).await
            }
        }
    });
    match signalled {
        Ok(done) => done.map_err(|error| format!("{socket}: {error}")),
        // It answers once the container has ended, and has the request by now.
        Err(NotEnded::TimedOut) if matches!(ask, ContainerEndRequest::Stop(_)) => Ok(()),
        Err(NotEnded::TimedOut) => {
            Err(format!("{socket} has not answered within {} ms", patience.as_millis()))
        }
        Err(NotEnded::Broken(why)) => Err(format!("{socket}: {why}")),
    }
}

/// Asks the runtime of Kubernetes for the end of a container: its stop signal, and after the grace
/// SIGKILL. The time limit is for the response, as above.
pub(super) fn end_of_pod(
    socket: &Path,
    container: &str,
    grace: Duration,
    patience: Duration,
) -> Result<(), String> {
    let (path, id, name) = (socket.to_owned(), container.to_owned(), socket.display().to_string());
    let lent = descriptors::lend(RUNTIME_TAKES);
    // Whole seconds, and 0 is SIGKILL at once.
    let grace = Duration::from_secs(grace.as_secs() + u64::from(grace.subsec_nanos() > 0));
    let stopped = within("cri", patience, move || async move {
        let _lent = lent;
        let cri = Cri::connect(&path, patience + LONGER).await?;
        cri.stop_container(&id, grace).await
    });
    match stopped {
        Ok(done) => done.map_err(|error| format!("{name}: {error}")),
        // It answers once the container has ended, and has the request by now.
        Err(NotEnded::TimedOut) => Ok(()),
        Err(NotEnded::Broken(why)) => Err(format!("{name}: {why}")),
    }
}
