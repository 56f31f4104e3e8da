//! Threads of the daemon: signals, the HTTP server, reloads, systemd's notifications.

use std::path::Path;
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
use crate::config::reader::LoadedConfig;
use crate::config::settings::Settings;
use crate::exports::{ExplainRequest, OrderRequest, ReloadRequest, Served};
use crate::model::{
    DeathReport, LaunchedEngine, OperatorCommand, RuleId, counted, mode_text, off_text,
};

/// Threads for work that may hang on a disk: queries, with a margin for orders.
const BLOCKING_THREADS: usize = 12;

/// One line on the loaded configuration.
pub(super) fn summary(loaded: &LoadedConfig) -> String {
    let groups = &loaded.rules.groups;
    let rules: usize = groups.iter().map(|group| group.rules.len()).sum();
    let rules = counted(rules as u64, "rule");
    let groups = counted(groups.len() as u64, "group");
    let off = off_text(&loaded.rules.shipped_off).map(|text| format!("; {text}"));
    let mode = mode_text(loaded.settings.mode, &loaded.rules.guard_rails.enforced);
    format!("{rules} in {groups}, mode {mode}{}", off.unwrap_or_default())
}

/// Changed settings that need a restart.
pub(super) fn needs_restart(used: &Settings, read: &Settings) -> Vec<&'static str> {
    let parts = [
        ("sampling_interval", used.sampling_interval == read.sampling_interval),
        ("path", used.path == read.path),
        ("web", used.web == read.web),
        ("storage", used.storage == read.storage),
        ("pause_file", used.pause_file == read.pause_file),
        ("recording", used.recording == read.recording),
        ("starts", used.starts == read.starts),
        ("gpu", used.gpu == read.gpu),
        ("alertmanager", used.alertmanager.sending == read.alertmanager.sending),
        ("kubernetes", used.kubernetes == read.kubernetes),
        ("otlp", used.otlp == read.otlp),
        ("nvsentinel", reports_to(used) == reports_to(read)),
        ("log", used.log == read.log),
        ("cluster", used.cluster == read.cluster),
    ];
    parts.into_iter().filter(|(_, same)| !same).map(|(name, _)| name).collect()
}

/// Where health events go, and of which node; the rest applies at a reload.
fn reports_to(settings: &Settings) -> Option<(&Path, Option<&str>)> {
    let nvsentinel = settings.nvsentinel.as_ref()?;
    Some((&nvsentinel.socket, nvsentinel.node.as_deref()))
}

/// Reads the configuration again. An error has all mistakes.
pub type Loader = Arc<dyn Fn() -> Result<LoadedConfig, String> + Send + Sync>;

/// Commands of other threads for the loop.
#[derive(Debug)]
pub(super) enum LoopCommand {
    /// End orderly.
    End {
        /// The reason.
        signal: &'static str,
    },
    /// Carry out a journalled order.
    Obey {
        /// The order.
        command: Box<OperatorCommand>,
        /// Takes the result. An error says why it has no effect.
        reply: oneshot::Sender<Result<(), String>>,
    },
    /// Explain a rule by the present values.
    Explain {
        /// The rule to explain.
        rule: RuleId,
        /// Takes the explanation as JSON; `None` if the rule was not evaluated.
        reply: oneshot::Sender<Option<serde_json::Value>>,
    },
    /// An engine was launched.
    Launched {
        /// Its processes.
        engine: LaunchedEngine,
    },
    /// A launched engine has died.
    Died {
        /// The cause of death.
        report: Box<DeathReport>,
    },
    /// Pass the pause to the policy.
    CheckPause {
        /// Takes the confirmation.
        reply: oneshot::Sender<()>,
    },
    /// Use these rules, or report that they cannot be used.
    Reload {
        /// What was read.
        loaded: Result<Box<LoadedConfig>, String>,
        /// Who requested it, in words; `None` for a signal.
        by: Option<String>,
        /// Takes the result.
        reply: oneshot::Sender<Result<String, String>>,
    },
}

/// The threads of the daemon.
pub(super) struct DaemonService {
    runtime: Runtime,
    commands: Receiver<LoopCommand>,
    shutdown: watch::Sender<bool>,
}

/// Requests by HTTP for the loop.
pub(super) struct LoopRequests {
    pub(super) reloads: mpsc::Receiver<ReloadRequest>,
    pub(super) orders: mpsc::Receiver<OrderRequest>,
    pub(super) explanations: mpsc::Receiver<ExplainRequest>,
    /// Carries out orders.
    pub(super) taker: Orders,
}

/// Sends commands to the loop.
#[derive(Clone)]
pub(super) struct CommandSender {
    commands: Sender<LoopCommand>,
    wake: Wake,
    loader: Loader,
}

impl DaemonService {
    /// Starts the threads. The listeners are bound already, so that an invalid address fails first.
    pub(super) fn start(
        listeners: Vec<std::net::TcpListener>,
        served: Served,
        requests: LoopRequests,
        loader: Loader,
        wake: Wake,
    ) -> anyhow::Result<Self> {
        let LoopRequests { reloads, orders, mut explanations, taker } = requests;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("http")
            .enable_all()
            .build()
            .context("cannot start the threads of the HTTP server")?;
        let (commands, received) = channel();
        let (shutdown, stopped) = watch::channel(false);
        let sender = CommandSender { commands, wake, loader };
        {
            let _in_runtime = runtime.enter();
            sender.clone().handle_signals(reloads).context("cannot install signal handlers")?;
            signals::ignore().context("cannot install signal handlers")?;
        }
        let explains = sender.clone();
        runtime.spawn(async move {
            while let Some(ExplainRequest { rule, answer }) = explanations.recv().await {
                explains.send(LoopCommand::Explain { rule, reply: answer });
            }
        });
        runtime.spawn(taker.take(sender, orders));
        runtime.spawn(async move {
            if let Err(error) = crate::exports::serve(listeners, Arc::new(served), stopped).await {
                tracing::error!(%error, "HTTP server failed");
            }
        });
        Ok(Self { runtime, commands: received, shutdown })
    }

    /// The next command, if any.
    pub(super) fn command(&self) -> Option<LoopCommand> {
        self.commands.try_recv().ok()
    }

    /// Notifies systemd that the daemon is ready.
    pub(super) fn ready(&self) {
        notify_systemd(&[sd_notify::NotifyState::Ready]);
    }

    /// Notifies systemd and the HTTP server of the end.
    pub(super) fn stopping(&self) {
        notify_systemd(&[sd_notify::NotifyState::Stopping]);
        // Without a receiver the server has failed.
        let _ = self.shutdown.send(true);
    }

    /// Gives open connections the rest of the time.
    pub(super) fn close(self, deadline: Duration) {
        self.runtime.shutdown_timeout(deadline);
    }
}

fn notify_systemd(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

impl CommandSender {
    /// Two tasks: a reload that hangs on its files must not delay the end.
    fn handle_signals(self, mut reloads: mpsc::Receiver<ReloadRequest>) -> std::io::Result<()> {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let sender = self.clone();
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                sender.send(LoopCommand::End { signal });
            }
        });
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = hangup.recv() => {
                        // The loop logs the result.
                        let _ = self.reload(None).await;
                    }
                    Some(request) = reloads.recv() => {
                        let by = in_words(None, request.by).await;
                        // The receiver may be gone.
                        let _ = request.answer.send(self.reload(Some(by)).await);
                    }
                }
            }
        });
        Ok(())
    }

    /// Reads files here; the loop takes the result.
    async fn reload(&self, by: Option<String>) -> Result<String, String> {
        let loader = Arc::clone(&self.loader);
        let loaded = tokio::task::spawn_blocking(move || loader())
            .await
            .unwrap_or_else(|error| Err(format!("reading the configuration failed: {error}")))
            .map(Box::new);
        let (reply, answer) = oneshot::channel();
        self.send(LoopCommand::Reload { loaded, by, reply });
        answer.await.unwrap_or_else(|_| Err("umawarden is ending".to_owned()))
    }

    /// Sends a command, and wakes the loop.
    pub(super) fn send(&self, command: LoopCommand) {
        // Without a receiver the loop has ended.
        let _ = self.commands.send(command);
        self.wake.notify();
    }
}
