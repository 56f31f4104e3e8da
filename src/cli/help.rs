//! The help of the program itself: its commands in groups, which clap does not do
//! (<https://github.com/clap-rs/clap/issues/1553>).

use std::ffi::OsString;

use clap::Command;

use super::text::wrapped;
use crate::cli::output;

/// The widest help, as clap's own.
pub(super) const WIDEST: usize = 100;

/// The groups and their commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "See what happens",
        &["top", "status", "engines", "verdict", "cluster", "history", "explain", "query"],
    ),
    ("Run and set up", &["run", "doctor", "tune", "config", "token", "print"]),
    ("Start engines", &["gate", "lease", "leases", "launch", "fit", "loads", "adopt"]),
    ("Rules and recordings", &["rules", "promote", "replay", "dmesg"]),
    ("Give orders", &["silence", "approve", "deny", "breaker", "pause", "resume", "reboot"]),
];

/// The group of a command that is in none of them.
const OTHERS: &str = "Others";

/// The same command, whose help has its commands in groups.
pub(super) fn grouped(command: Command) -> Command {
    let width = output::width().unwrap_or(WIDEST).min(WIDEST);
    let groups = groups(&command, width);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}{{options}}{{after-help}}"
    ))
}

/// Whether `-h` asks for a summary.
pub(super) fn is_summary_wanted(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.skip(1).take_while(|word| word != "--").any(|word| word == "-h")
}

/// The same commands without the texts below their options, which `--help` has.
pub(super) fn summarised(command: Command) -> Command {
    command.mut_subcommands(|command| {
        let has_text = command.get_after_help().is_some();
        let command = summarised(command);
        if has_text { command.after_help(IN_HELP) } else { command }
    })
}

/// The text that replaces the one below the options.
const IN_HELP: &str = "--help explains what is done and printed, and has exit codes and examples.";

fn groups(command: &Command, width: usize) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let known = |name: &&str| command.find_subcommand(name).is_some_and(|one| !one.is_hide_set());
    let is_grouped = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let others: Vec<&str> = command
        .get_subcommands()
        .filter(|one| !one.is_hide_set() && !is_grouped(one.get_name()))
        .map(Command::get_name)
        .collect();
    let all = GROUPS.into_iter().chain([(OTHERS, others.as_slice())]);
    let names = command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name);
    let column = names.map(str::len).max().unwrap_or(0) + 4;
    let mut text = String::new();
    for (title, names) in all {
        let names: Vec<&str> = names.iter().copied().filter(known).collect();
        if names.is_empty() {
            continue;
        }
        text.push_str(&format!("{header}{title}:{header:#}\n"));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let gap = " ".repeat(column.saturating_sub(name.len() + 2));
            let about = wrapped(&about, column, column, width);
            text.push_str(&format!("  {literal}{name}{literal:#}{gap}{about}\n"));
        }
        text.push('\n');
    }
    text.push_str(&format!("{header}Options:{header:#}\n"));
    text
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Arguments;

    /// The command and all below it.
    fn all(command: &Command) -> Vec<&Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn the_terminal_wraps_paragraphs_and_other_lines_fit_80_columns() {
        let program = Arguments::command();
        for command in all(&program) {
            let (name, help) = (command.get_name(), command.get_after_help());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(!about.ends_with('.'), "in a list of commands: {name}: {about}");
            let help = help.map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
            for two in lines.windows(2) {
                assert!(!is_prose(two[0]) || !is_prose(two[1]), "{name}: {two:?}");
            }
            for line in lines {
                assert!(is_prose(line) || line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }

    #[test]
    fn a_summary_has_options_and_refers_to_the_rest() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let is_wanted = |line: &str| is_summary_wanted(words(line).into_iter());
        assert!(is_wanted("umawarden fit -h") && is_wanted("umawarden -h"));
        assert!(!is_wanted("umawarden fit --help") && !is_wanted("umawarden gate -- ls -h"));
        let mut program = summarised(Arguments::command());
        assert!(program.render_help().to_string().contains("Exit codes"), "it is short");
        for (group, name) in [("", "fit"), ("", "gate"), ("config", "check")] {
            let of = if group.is_empty() {
                Some(&mut program)
            } else {
                program.find_subcommand_mut(group)
            };
            let help = of.unwrap().find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.contains(IN_HELP) && !help.contains("Exit codes"), "{help}");
            assert!(help.contains("\nOptions:\n"), "{help}");
        }
    }

    #[test]
    fn every_command_is_in_one_group_with_its_whole_sentence() {
        let command = Arguments::command();
        for one in command.get_subcommands().filter(|one| !one.is_hide_set()) {
            let name = one.get_name();
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name}");
        }
        let help = grouped(command).render_help().to_string();
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        for one in Arguments::command().get_subcommands().filter(|one| !one.is_hide_set()) {
            let about = one.get_about().unwrap().to_string();
            assert!(words(&help).contains(&format!("{} {}", one.get_name(), words(&about))));
        }
        assert!(!help.contains("nvml-child"), "{help}");
        assert!(help.lines().all(|line| line.chars().count() <= WIDEST), "{help}");
    }
}
