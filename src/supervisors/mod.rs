//! Thin clients of the programs that run engines and the machine. Those may hang, vanish or report
//! false values, so that each call has a deadline and each response a size limit.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

mod bus;
pub mod cri;
pub mod docker;
pub mod journal;
pub mod logged_in;
pub mod logind;
pub mod systemd;
pub mod user_systemd;

/// There is no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotEnded {
    /// It has not ended in time, and may still run.
    TimedOut,
    /// Its thread could not be started, or has ended without one.
    Broken(String),
}

/// Runs work on a thread of its own, with a runtime of its own and a time limit.
///
/// # Errors
/// It has not ended in time, or could not begin.
pub fn within<T, F, W>(name: &str, patience: Duration, work: F) -> Result<T, NotEnded>
where
    T: Send + 'static,
    F: FnOnce() -> W + Send + 'static,
    W: Future<Output = T>,
{
    let (answer, received) = sync_channel(1);
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let done = match runtime {
                Ok(runtime) => Ok(runtime.block_on(async { work().await })),
                Err(error) => Err(NotEnded::Broken(format!("starting a runtime failed: {error}"))),
            };
            // The caller may have gone on without the response.
            let _ = answer.send(done);
        })
        .map_err(|error| NotEnded::Broken(format!("starting a thread failed: {error}")))?;
    match received.recv_timeout(patience) {
        Ok(done) => done,
        Err(RecvTimeoutError::Timeout) => Err(NotEnded::TimedOut),
        Err(RecvTimeoutError::Disconnected) => {
            Err(NotEnded::Broken("its thread has ended".to_owned()))
        }
    }
}
