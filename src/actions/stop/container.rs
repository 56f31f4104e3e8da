//! Signals to a container, through Docker's API, so that its restart policies see a requested end.

use std::path::Path;
use std::time::Duration;

use crate::supervisors::docker::Docker;
use crate::supervisors::{NotEnded, within};
use crate::sys::descriptors;

/// The number of descriptors of a tokio runtime and a socket.
const RUNTIME_TAKES: usize = 6;

/// The time that Docker has beyond the wait: it may be slow, and act.
const LONGER: Duration = Duration::from_secs(10);

/// Signals a container, with a time limit for the response: a Docker that waits for memory must not
/// delay the signals that need none. An error names the socket.
pub(super) fn signal(
    socket: &Path,
    container: &str,
    signal: &'static str,
    patience: Duration,
) -> Result<(), String> {
    let (docker, id) = (Docker::new(socket), container.to_owned());
    let lent = descriptors::lend(RUNTIME_TAKES);
    let signalled = within("docker", patience, move || async move {
        let _lent = lent;
        docker.kill(&id, signal, patience + LONGER).await
    });
    let socket = socket.display();
    match signalled {
        Ok(done) => done.map_err(|error| format!("{socket}: {error}")),
        Err(NotEnded::TimedOut) => {
            Err(format!("{socket} has not answered within {} ms", patience.as_millis()))
        }
        Err(NotEnded::Broken(why)) => Err(format!("{socket}: {why}")),
    }
}
