//! A file per command, and what they share: the arguments' frame and the exit codes.

pub mod adopt;
pub mod approve;
pub mod breaker;
pub mod cluster;
pub mod config;
mod control;
mod death;
pub mod dmesg;
pub mod doctor;
pub mod engines;
pub mod explain;
pub mod fit;
pub mod gate;
mod help;
pub mod history;
mod json_time;
mod last_boot;
pub mod launch;
pub mod lease;
pub mod leases;
mod loader;
pub mod loads;
mod log;
mod log_input;
pub mod nvml_child;
mod order_text;
mod output;
pub mod pause;
mod pictures;
pub mod print;
mod progress;
pub mod promote;
pub mod query;
pub mod reboot;
mod replace;
pub mod replay;
pub mod rules;
pub mod run;
pub mod silence;
pub mod status;
mod storage;
mod style;
mod targets;
mod text;
pub mod token;
pub mod top;
pub mod tune;
mod variables;
pub mod verdict;

use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

/// Keeps NVIDIA unified-memory machines alive while they serve large language models.
#[derive(Debug, Parser)]
#[command(name = "umawarden", version, long_version = BUILD, about, after_help = AFTER_HELP)]
#[command(max_term_width = 100)]
pub struct Arguments {
    /// The subcommand.
    #[command(subcommand)]
    pub command: Command,
}

/// What `--version` says: `0.1.0 (revision 4f2a…, rustc 1.90.0, x86_64-unknown-linux-gnu)`.
pub const BUILD: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("UMAWARDEN_REVISION"),
    ", rustc ",
    env!("UMAWARDEN_RUST_VERSION"),
    ", ",
    env!("UMAWARDEN_TARGET"),
    ")"
);

const AFTER_HELP: &str = "\
Exit codes: 0 fine, 1 findings (something is wrong with what was checked), 2 unusable input.

Start with `umawarden run`: it watches, exports on :9942 and logs what it would do. It changes \
nothing without --mode enforce. `umawarden top` shows what it sees.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch this node: export metrics, evaluate rules, and act if enabled.
    Run(Box<run::RunArguments>),
    /// Report the faults in a kernel log: allocation failures, OOM kills, Xids, hung tasks.
    Dmesg(dmesg::DmesgArguments),
    /// Check the files that `umawarden run` would read.
    Config(config::ConfigArguments),
    /// Create tokens for access over the network.
    Token(token::TokenArguments),
    /// Work with rule files.
    Rules(rules::RulesArguments),
    /// Show the events, decisions and outcomes in the journal.
    History(history::HistoryArguments),
    /// Show this node all the time: memory, engines, who waits, what happened.
    Top(top::TopArguments),
    /// Show on one screen whether this node is well, and why not.
    Status(status::StatusArguments),
    /// Show the nodes of the cluster, their state, and the weakest.
    Cluster(cluster::ClusterArguments),
    /// Show the inference engines, their phases, and the evidence.
    Engines(engines::EnginesArguments),
    /// Show what each start of an engine took, and compare two starts.
    Loads(loads::LoadsArguments),
    /// Show the cause of memory that no process accounts for.
    Verdict(verdict::VerdictArguments),
    /// Run an engine when the node can take it, and report its cause of death.
    Launch(Box<launch::LaunchArguments>),
    /// Check this node for known faults, and print the fix for each.
    Doctor(Box<doctor::DoctorArguments>),
    /// Wait until this node can take an engine.
    Gate(gate::GateArguments),
    /// Wait for memory, reserve it, and become a command.
    Lease(lease::LeaseCommandArguments),
    /// Show who has reserved memory, and who waits for whom.
    Leases(leases::LeasesArguments),
    /// Show whether an engine fits on these nodes, and its options.
    Fit(Box<fit::FitArguments>),
    /// Restart a container once there is memory, instead of at once by Docker.
    Adopt(adopt::AdoptArguments),
    /// Explain why a rule acted, or did not.
    Explain(explain::ExplainArguments),
    /// Silence rules: their remedies hold, and their alerts go on.
    Silence(silence::SilenceArguments),
    /// Approve a decision that waits for it.
    Approve(approve::ApproveArguments),
    /// Deny a decision that was announced, or that waits for approval.
    Deny(approve::DenyArguments),
    /// Show remedies that keep missing their aim, and reset their breakers.
    Breaker(breaker::BreakerArguments),
    /// Reboot the machine as configured, through all guard rails; show, cancel, clear.
    Reboot(reboot::RebootArguments),
    /// Pause all actions until `umawarden resume`. Works without the daemon.
    Pause(pause::PauseArguments),
    /// End a pause.
    Resume(pause::ResumeArguments),
    /// Replay a recording or a kernel log through the rules.
    Replay(replay::ReplayArguments),
    /// Print files to install: units for systemd, the configuration.
    Print(print::PrintArguments),
    /// Show which rules can be enforced, by what they would have done, and write that if requested.
    Promote(Box<promote::PromoteArguments>),
    /// Query samples of this node in PromQL: a table, or a plot over time.
    Query(Box<query::QueryArguments>),
    /// Compare the kernel's settings with a profile for this node, and apply it if requested.
    Tune(tune::TuneArguments),
    /// Query the NVIDIA driver for `umawarden run`, which starts it.
    #[command(hide = true)]
    NvmlChild(nvml_child::NvmlChildArguments),
}

/// The result of a command, as exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// 0: done, without findings.
    Fine,
    /// 1: findings.
    Findings,
    /// 2: the input cannot be used. Errors of commands have this code too.
    Unusable,
    /// Another code, which the command's help documents.
    Code(u8),
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Fine => 0,
            Exit::Findings => 1,
            Exit::Unusable => 2,
            Exit::Code(code) => code,
        })
    }
}

/// The program: arguments, command, exit code.
pub fn main() -> ExitCode {
    let mut command = variables::command();
    if help::is_summary_wanted(std::env::args_os()) {
        command = help::summarised(command);
    }
    let matches = command.try_get_matches();
    match matches.and_then(|matches| Arguments::from_arg_matches(&matches)) {
        Ok(arguments) => output::end(arguments.execute().map(ExitCode::from)),
        Err(usage) => {
            output::print_usage(&usage);
            if let Some(name) = variables::source_of(&usage) {
                output::errln!("The value is that of the environment variable {name}.");
            }
            output::end(Ok(ExitCode::from(u8::try_from(usage.exit_code()).unwrap_or(2))))
        }
    }
}

impl Arguments {
    /// Runs the command. [`main`] prints its error once, with all causes.
    pub fn execute(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Run(arguments) => run::execute(*arguments),
            Command::Dmesg(arguments) => dmesg::execute(&arguments),
            Command::Config(arguments) => config::execute(&arguments),
            Command::Token(arguments) => token::execute(&arguments),
            Command::Rules(arguments) => rules::execute(&arguments),
            Command::History(arguments) => history::execute(&arguments),
            Command::Top(arguments) => top::execute(&arguments),
            Command::Status(arguments) => status::execute(&arguments),
            Command::Cluster(arguments) => cluster::execute(&arguments),
            Command::Engines(arguments) => engines::execute(&arguments),
            Command::Loads(arguments) => loads::execute(&arguments),
            Command::Verdict(arguments) => verdict::execute(&arguments),
            Command::Launch(arguments) => Ok(launch::execute(&arguments)),
            Command::Doctor(arguments) => doctor::execute(&arguments),
            Command::Gate(arguments) => gate::execute(&arguments),
            Command::Lease(arguments) => lease::execute(&arguments),
            Command::Leases(arguments) => leases::execute(&arguments),
            Command::Fit(arguments) => fit::execute(&arguments),
            Command::Adopt(arguments) => adopt::execute(&arguments),
            Command::Explain(arguments) => explain::execute(&arguments),
            Command::Silence(arguments) => silence::execute(&arguments),
            Command::Approve(arguments) => approve::execute(&arguments),
            Command::Deny(arguments) => approve::deny(&arguments),
            Command::Breaker(arguments) => breaker::execute(&arguments),
            Command::Reboot(arguments) => reboot::execute(&arguments),
            Command::Pause(arguments) => pause::pause(&arguments),
            Command::Resume(arguments) => pause::resume(&arguments),
            Command::Replay(arguments) => replay::execute(&arguments),
            Command::Print(arguments) => print::execute(&arguments),
            Command::Promote(arguments) => promote::execute(&arguments),
            Command::Query(arguments) => query::execute(&arguments),
            Command::Tune(arguments) => tune::execute(&arguments),
            Command::NvmlChild(arguments) => nvml_child::execute(&arguments),
        }
    }
}
