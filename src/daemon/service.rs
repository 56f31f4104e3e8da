//! What runs beside the loop: signals, the HTTP server, reloads, systemd's notifications.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::Context;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use super::orders::{Orders, in_words};
use super::signals;
use super::wake::Wake;
use crate::config::reader::Loaded;
use crate::config::settings::Settings;
use crate::exports::{OrderRequest, ReloadRequest, Served};
use crate::model::{DeathReport, LaunchedEngine, OperatorCommand, counted};

/// Threads for what may hang on a disk: queries, and then orders all the same.
const BLOCKING_THREADS: usize = 12;

/// One line on what was loaded, for people.
pub(super) fn summary(loaded: &Loaded) -> String {
    let groups = &loaded.rules.groups;
    let rules: usize = groups.iter().map(|group| group.rules.len()).sum();
    let rules = counted(rules as u64, "rule");
    let groups = counted(groups.len() as u64, "group");
    format!("{rules} in {groups}, mode {}", loaded.settings.mode.name())
}

/// The settings that differ and that only a restart puts into force.
pub(super) fn needs_restart(used: &Settings, read: &Settings) -> Vec<&'static str> {
    let parts = [
        ("sampling_interval", used.sampling_interval == read.sampling_interval),
        ("path", used.path == read.path),
        ("web", used.web == read.web),
        ("storage", used.storage == read.storage),
        ("pause_file", used.pause_file == read.pause_file),
        ("recording", used.recording == read.recording),
        ("gpu", used.gpu == read.gpu),
        ("alertmanager", used.alertmanager.sending == read.alertmanager.sending),
        ("otlp", used.otlp == read.otlp),
        ("log", used.log == read.log),
        ("cluster", used.cluster == read.cluster),
    ];
    parts.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// Reads the configuration again; an error is its whole text for people.
pub type Loader = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

/// What other threads ask of the loop.
#[derive(Debug)]
pub(super) enum Command {
    /// End in good order.
    End {
        /// Why.
        signal: &'static str,
    },
    /// Do what a person ordered; it is kept already.
    Obey {
        /// The order.
        command: Box<OperatorCommand>,
        /// Who asked; an error says why nothing has changed.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Somebody has launched an engine.
    Launched {
        /// Which processes.
        engine: LaunchedEngine,
    },
    /// An engine that somebody has launched has died.
    Died {
        /// Of what.
        report: Box<DeathReport>,
    },
    /// Bring what is known of the pause to the policy.
    Look {
        /// Who asked.
        reply: oneshot::Sender<()>,
    },
    /// Use these rules from now on, or tell that they cannot be used.
    Reload {
        /// What was read.
        loaded: Result<Box<Loaded>, String>,
        /// Who wants that, in words; a signal says nothing of it.
        by: Option<String>,
        /// Who asked.
        reply: oneshot::Sender<Result<String, String>>,
    },
}

/// The threads beside the loop.
pub(super) struct Service {
    runtime: Runtime,
    commands: Receiver<Command>,
    shutdown: watch::Sender<bool>,
}

/// What comes in by HTTP for the loop.
pub(super) struct Requests {
    pub(super) reloads: mpsc::Receiver<ReloadRequest>,
    pub(super) orders: mpsc::Receiver<OrderRequest>,
    /// Who carries out the orders.
    pub(super) taker: Orders,
}

/// Sends commands to the loop.
#[derive(Clone)]
pub(super) struct Desk {
    commands: Sender<Command>,
    wake: Wake,
    loader: Loader,
}

impl Service {
    /// Starts them. The listeners are bound already, so that a bad address is told before anything
    /// else happens.
    pub(super) fn start(
        listeners: Vec<std::net::TcpListener>,
        served: Served,
        requests: Requests,
        loader: Loader,
        wake: Wake,
    ) -> anyhow::Result<Self> {
        let Requests { reloads, orders, taker } = requests;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the threads of the HTTP server")?;
        let (commands, received) = channel();
        let (shutdown, stopped) = watch::channel(false);
        let desk = Desk { commands, wake, loader };
        {
            let _in_runtime = runtime.enter();
            desk.clone().follow_signals(reloads).context("cannot install signal handlers")?;
            signals::ignore().context("cannot install signal handlers")?;
        }
        runtime.spawn(taker.take(desk, orders));
        runtime.spawn(async move {
            if let Err(error) = crate::exports::serve(listeners, Arc::new(served), stopped).await {
                tracing::error!("the HTTP server has ended: {error}");
            }
        });
        Ok(Self { runtime, commands: received, shutdown })
    }

    /// The next command, if there is one.
    pub(super) fn command(&self) -> Option<Command> {
        self.commands.try_recv().ok()
    }

    /// Tells systemd that it watches now.
    pub(super) fn ready(&self) {
        notify_systemd(&[sd_notify::NotifyState::Ready]);
    }

    /// Tells systemd and the HTTP server that it ends.
    pub(super) fn stopping(&self) {
        notify_systemd(&[sd_notify::NotifyState::Stopping]);
        // Nobody listens any more if the server has failed.
        let _gone = self.shutdown.send(true);
    }

    /// Gives open connections the rest of the time.
    pub(super) fn close(self, deadline: Duration) {
        self.runtime.shutdown_timeout(deadline);
    }
}

fn notify_systemd(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!("systemd was not notified: {error}");
    }
}

impl Desk {
    /// Two tasks: a reload that hangs on its files must not keep the program from ending.
    fn follow_signals(self, mut reloads: mpsc::Receiver<ReloadRequest>) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let desk = self.clone();
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                desk.send(Command::End { signal });
            }
        });
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = hangup.recv() => {
                        let _logged_by_the_loop = self.reload(None).await;
                    }
                    Some(request) = reloads.recv() => {
                        let by = in_words(None, request.by).await;
                        // Whoever asked may have gone.
                        let _gone = request.answer.send(self.reload(Some(by)).await);
                    }
                }
            }
        });
        Ok(())
    }

    /// Files are read here, away from the loop; the loop only takes what has been read.
    async fn reload(&self, by: Option<String>) -> Result<String, String> {
        let loader = Arc::clone(&self.loader);
        let loaded = tokio::task::spawn_blocking(move || loader())
            .await
            .unwrap_or_else(|error| Err(format!("reading the configuration failed: {error}")))
            .map(Box::new);
        let (reply, answer) = oneshot::channel();
        self.send(Command::Reload { loaded, by, reply });
        answer.await.unwrap_or_else(|_| Err("umawarden is ending".to_owned()))
    }

    /// Sends one, and wakes the loop.
    pub(super) fn send(&self, command: Command) {
        // The loop has ended if nobody receives.
        let _ended = self.commands.send(command);
        self.wake.notify();
    }
}
