//! `umawarden rules check`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::Exit;
use super::count;
use super::now::{RuleLine, RulesNow};
use crate::cli::output;
use crate::cli::style::fitted_lines;
use crate::config::flags::{LoadFlags, RunFlags};
use crate::config::ladder::{BrokenLadder, broken_ladders};
use crate::config::mistake::{Mistake, SourceText, Style};
use crate::config::overrides;
use crate::config::reader::{
    LoadError, UnreadablePath, environment, find_rule_files, load_settings, unknown_alerts,
};
use crate::config::rules::{Examined, examine, parse_rules_alone, parse_rules_under};
use crate::config::settings::limits::DEFAULT_INTERVAL;
use crate::config::settings::{Environment, RuleSource, Settings};
use crate::config::shipped::shipped_off;
use crate::daemon::{MissingAbility, missing};
use crate::model::{ADD_SHIPPED, ShippedRule, off_names, off_text};
use crate::policy::rule::{RuleGroup, RuleSet};

/// Arguments of `umawarden rules check`.
#[derive(Debug, Args)]
#[command(after_help = CHECK_HELP)]
pub struct RulesCheckArguments {
    /// Rule files, folders of *.yaml, or globs [default: those of the configuration, else the
    /// shipped rules].
    ///
    /// `shipped` is the rules inside the program. All are checked together, as `umawarden run` with
    /// the same --config.file and --rules PATH… would load them.
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,

    /// The configuration that the rules will run under.
    ///
    /// It is checked too: the maintenance windows and alerts that it names.
    #[arg(long = "config.file", value_name = "FILE")]
    pub config_file: Option<PathBuf>,

    /// Also observe this node for three seconds, and print which of these rules are true now.
    #[arg(long)]
    pub now: bool,

    /// One JSON object a line: files, then mistakes, findings and remarks.
    #[arg(long)]
    pub json: bool,
}

const CHECK_HELP: &str = "\
A rule file has the shape of Prometheus' own, plus `mode` and `remedy`:

  groups:
  - name: memory
    rules:
    - alert: PageCacheEatsReserve
      expr: uma_memory_free_bytes < uma_memory_reserve_bytes + 2 * 1024^3
      for: 300ms
      remedy:
        aim: uma_memory_free_bytes > uma_memory_reserve_bytes + 6 * 1024^3
        steps:                            # tried in order until the aim is met
        - drop_caches: {what: pagecache}  # or all; sync: true writes back
        - compact_memory: {}
        - notify: {message: \"{{ $value | humanize1024 }}B free\"}
        cooldown: 30s                     # rest after a round of steps
        at_most: {times: 20, per: 1h}     # acts: each step that is taken counts

Without mistakes it also prints findings: valid rules that cannot be meant, as far as rules and \
the series of this build prove it. These are expressions that can never hold, an aim that is met \
whenever the rule fires or while its alert still holds, conflicting or repeated rules, unknown \
labels and label values, and a file without rules. Such rules load and run; mistakes keep \
`umawarden run` from starting.

Conditions are also tried on thirty machines of five sizes, idle, full, loading and in trouble. \
One that is true on each of them, or on those of 121 or 480 GiB whatever they do, is a finding if \
its remedy acts: it would act at once. An alert that always fires is only a remark.

With --now this node is observed as `umawarden run` does, without acting: memory, engines, the \
driver and who uses it. Rules that are true now are printed with their values. They do not change \
the exit code. Ranges reach back three seconds only, and what the kernel log, the journal or other \
nodes say is known to a daemon alone.

`only_in` and `never_in` name maintenance windows, which only a configuration defines: without \
--config.file a remark says that they were not checked, and the exit code does not.

A remark names the shipped rules that are off with these files. With --config.file another one \
names each rule that carries out a severe step and only reports a milder one before it \
(`enforce`).

With --config.file it also prints actions of these rules that this user could not do on this node, \
and the remedy. They do not change the exit code.

Exit codes: 0 all fine, 1 mistakes or findings, 2 a path cannot be read or holds no rule files.";

const PARTIAL: &str = "so many rules that not each was compared with each other";

/// Runs the command.
pub(super) fn execute(arguments: &RulesCheckArguments) -> anyhow::Result<Exit> {
    let mut checked = check(arguments);
    if let (true, Some(rules)) = (arguments.now, &checked.rules) {
        let settings = match checked.settings.take() {
            Some(settings) => settings,
            None => load_settings(&RunFlags::default(), &Environment::default())?,
        };
        checked.now = Some(RulesNow::observe(&settings, rules)?);
    }
    let mut out = output::stdout();
    let style = if !arguments.json && output::colours_wanted(output::is_terminal()) {
        Style::Coloured
    } else {
        Style::Plain
    };
    let printed = if arguments.json {
        print_json(&checked, &mut out)
    } else {
        print_text(&checked, style, &mut out)
    };
    printed.and_then(|()| out.flush())?;
    Ok(checked.exit())
}

/// The result of a check.
struct RulesCheck {
    files: Vec<FileReport>,
    mistakes: Vec<Mistake>,
    /// Rules that are valid and cannot be meant.
    findings: Vec<Mistake>,
    /// Paths that cannot be read.
    remarks: Vec<Mistake>,
    unreadable: Vec<UnreadablePath>,
    /// Actions that this process could not do here.
    missing: Vec<MissingAbility>,
    /// Whether there were too many rules to compare each with each.
    is_partial: bool,
    /// Rules inside the binary that are not loaded.
    off: Vec<ShippedRule>,
    /// Rules that pass over milder steps under the configuration.
    ladders: Vec<BrokenLadder>,
    /// What is checked, where it can be read.
    rules: Option<RuleSet>,
    settings: Option<Settings>,
    now: Option<RulesNow>,
}

/// The content of one file.
#[derive(Serialize)]
struct FileReport {
    file: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rules: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedies: Option<usize>,
}

impl RulesCheck {
    fn exit(&self) -> Exit {
        let fine = !self.files.is_empty() && self.files.iter().all(|file| file.ok);
        match (self.unreadable.is_empty(), fine) {
            (false, _) => Exit::Unusable,
            (true, false) => Exit::Findings,
            (true, true) => Exit::Fine,
        }
    }
}

fn check(arguments: &RulesCheckArguments) -> RulesCheck {
    let configured = Configured::read(arguments);
    let mut found = find_rule_files(&configured.rules);
    let texts = found.read();
    let mut unreadable = found.unreadable;
    unreadable.extend(found.empty.into_iter().map(UnreadablePath::empty));
    let is_unreadable = !(unreadable.is_empty() && configured.unreadable.is_empty());
    let mut mistakes = configured.mistakes;
    let mut remarks = Vec::new();
    let parsed = match &configured.settings {
        Some(settings) => {
            let under = settings.guard_rails.clone();
            parse_rules_under(&texts, settings.evaluation_interval, under)
        }
        None => parse_rules_alone(&texts, DEFAULT_INTERVAL).map(|parsed| {
            remarks = parsed.unchecked;
            parsed.rules
        }),
    };
    let mut rules = match parsed {
        Ok(rules) => Some(rules),
        Err(found) => {
            mistakes.extend(found.0);
            None
        }
    };
    if let (Some(settings), Some(rules)) = (&configured.settings, &mut rules) {
        rules.shipped_off = shipped_off(rules).into();
        match overrides::apply(&settings.overrides, rules) {
            Ok(idle) => remarks.extend(idle),
            Err(found) => mistakes.extend(found),
        }
    }
    let examined = rules.as_ref().map_or_else(Examined::default, |rules| examine(&texts, rules));
    remarks.extend(examined.remarks);
    let (mut lacking, mut ladders) = (Vec::new(), Vec::new());
    if let (Some(settings), Some(rules)) = (&configured.settings, &rules) {
        mistakes.extend(unknown_alerts(settings, rules));
        lacking = missing(settings, rules);
        ladders = broken_ladders(rules, settings.mode);
    }
    let has_mistakes =
        |name: &str| mistakes.iter().chain(&examined.findings).any(|one| *one.file == *name);
    let config = configured.file.into_iter().map(|file| FileReport {
        ok: !has_mistakes(&file),
        file,
        groups: None,
        rules: None,
        remedies: None,
    });
    let files =
        texts.iter().map(|text| FileReport::new(text, !has_mistakes(&text.name), rules.as_ref()));
    RulesCheck {
        files: config.chain(files).collect(),
        findings: examined.findings,
        unreadable: configured.unreadable.into_iter().chain(unreadable).collect(),
        remarks,
        missing: lacking,
        ladders,
        is_partial: examined.is_partial,
        // Of rules that cannot be read, what they replace is not known.
        off: match (&rules, is_unreadable) {
            (Some(rules), false) => shipped_off(rules),
            _ => Vec::new(),
        },
        mistakes,
        rules,
        settings: configured.settings,
        now: None,
    }
}

/// The configuration, and its rules for the arguments.
struct Configured {
    /// The file that it was read from.
    file: Option<String>,
    settings: Option<Settings>,
    rules: RuleSource,
    mistakes: Vec<Mistake>,
    unreadable: Vec<UnreadablePath>,
}

impl Configured {
    fn read(arguments: &RulesCheckArguments) -> Self {
        // With a configuration, they are its own once it is read.
        let rules = match &arguments.config_file {
            None => RuleSource::given(&arguments.paths),
            Some(_) => RuleSource::written(&arguments.paths, Path::new("")),
        };
        let mut configured = Self {
            file: None,
            settings: None,
            rules,
            mistakes: Vec::new(),
            unreadable: Vec::new(),
        };
        let Some(file) = &arguments.config_file else { return configured };
        let flags = LoadFlags {
            config_file: Some(file.clone()),
            rules: arguments.paths.clone(),
            mode: None,
        };
        let name = file.display().to_string();
        match load_settings(&flags.into(), &environment()) {
            Ok(settings) => {
                configured.rules = settings.rules.clone();
                configured.settings = Some(settings);
                configured.file = Some(name);
            }
            Err(LoadError::Unreadable(unreadable)) => configured.unreadable = unreadable,
            Err(LoadError::Settings(found) | LoadError::Rules(found)) => {
                configured.mistakes = found.0;
                configured.file = Some(name);
            }
        }
        configured
    }
}

impl FileReport {
    fn new(text: &SourceText, ok: bool, rules: Option<&RuleSet>) -> Self {
        let file = text.name.to_string();
        let Some(rules) = rules else {
            return Self { file, ok, groups: None, rules: None, remedies: None };
        };
        let of_file = |group: &&RuleGroup| group.file.as_os_str() == file.as_str();
        let groups: Vec<&RuleGroup> = rules.groups.iter().filter(of_file).collect();
        let rules = groups.iter().flat_map(|group| &group.rules);
        Self {
            ok,
            groups: Some(groups.len()),
            rules: Some(rules.clone().count()),
            remedies: Some(rules.filter(|rule| rule.remedy.is_some()).count()),
            file,
        }
    }
}

fn print_text(checked: &RulesCheck, style: Style, out: &mut impl Write) -> io::Result<()> {
    let (green, red, reset) = match style {
        Style::Plain => ("", "", ""),
        Style::Coloured => ("\x1b[32m", "\x1b[31m", "\x1b[0m"),
    };
    for report in &checked.files {
        let of_file = |all: &[Mistake]| -> Vec<Mistake> {
            all.iter().filter(|one| *one.file == *report.file).cloned().collect()
        };
        let (mistakes, findings) = (of_file(&checked.mistakes), of_file(&checked.findings));
        match (report.ok, report.groups, report.rules, report.remedies) {
            (true, Some(groups), Some(rules), Some(remedies)) => {
                let (groups, rules) = (count(groups, "group"), count(rules, "rule"));
                let remedies = count(remedies, "remedy");
                let counts = format!("{groups}, {rules}, {remedies}");
                let text = format!("{}: {green}OK{reset}, {counts}", report.file);
                writeln!(out, "{}", fitted_lines(&text))?;
            }
            (true, ..) => writeln!(out, "{}: {green}OK{reset}", report.file)?,
            (false, ..) => {
                let result = match findings.len() {
                    0 => count(mistakes.len(), "mistake"),
                    found => count(found, "finding"),
                };
                writeln!(out, "{}: {red}{result}{reset}", report.file)?;
            }
        }
        for mistake in mistakes.iter().chain(&findings) {
            write!(out, "\n{}", fitted_lines(&mistake.render(style)))?;
        }
        if !report.ok {
            writeln!(out)?;
        }
    }
    for remark in &checked.remarks {
        let text = format!("\nremark: {}", remark.render(style));
        write!(out, "{}", fitted_lines(&text))?;
    }
    if checked.is_partial {
        writeln!(out, "{PARTIAL}")?;
    }
    if let Some(text) = off_text(&checked.off) {
        let names = off_names(&checked.off);
        let text = format!("\nremark: {text}\n  {names}\n  = {ADD_SHIPPED}");
        writeln!(out, "{}", fitted_lines(&text))?;
    }
    for ladder in &checked.ladders {
        let text = format!("\nremark: {ladder}\n  = {}", ladder.remedy());
        writeln!(out, "{}", fitted_lines(&text))?;
    }
    for missing in &checked.missing {
        let MissingAbility { what, remedy, .. } = missing;
        let text = format!("\non this node: {}: {what}\n  {remedy}", availability(missing));
        writeln!(out, "{}", fitted_lines(&text))?;
    }
    for unreadable in &checked.unreadable {
        let text = format!("{red}{unreadable}{reset}");
        writeln!(out, "{}", fitted_lines(&text))?;
    }
    checked.now.iter().try_for_each(|now| now.print(out))
}

fn names(off: &[ShippedRule]) -> Vec<String> {
    off.iter().map(|rule| rule.id.to_string()).collect()
}

fn availability(missing: &MissingAbility) -> &'static str {
    if missing.wanted_now { "not available" } else { "would not be available in enforce mode" }
}

/// One line of `--json`.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum CheckLine<'c> {
    File(&'c FileReport),
    Mistake(&'c Mistake),
    Finding(&'c Mistake),
    Remark(&'c Mistake),
    Node { what: &'c str, remedy: &'c str, wanted_now: bool },
    Now(&'c RuleLine),
    Partial { message: &'static str },
    ShippedOff { message: String, rules: Vec<String> },
    BrokenLadder { rule: String, message: String, hint: String },
    Unreadable { path: String, why: &'c str },
}

fn print_json(checked: &RulesCheck, out: &mut impl Write) -> io::Result<()> {
    let files = checked.files.iter().map(CheckLine::File);
    let mistakes = checked.mistakes.iter().map(CheckLine::Mistake);
    let findings = checked.findings.iter().map(CheckLine::Finding);
    let unreadable = checked.unreadable.iter().map(|unreadable| CheckLine::Unreadable {
        path: unreadable.path.display().to_string(),
        why: &unreadable.why,
    });
    let remarks = checked.remarks.iter().map(CheckLine::Remark);
    let partial = checked.is_partial.then_some(CheckLine::Partial { message: PARTIAL });
    let missing = checked.missing.iter().map(|missing| CheckLine::Node {
        what: &missing.what,
        remedy: missing.remedy,
        wanted_now: missing.wanted_now,
    });
    let off = off_text(&checked.off)
        .map(|message| CheckLine::ShippedOff { message, rules: names(&checked.off) });
    let lines = files.chain(mistakes).chain(findings).chain(remarks).chain(missing).chain(partial);
    let now = checked.now.iter().flat_map(RulesNow::lines).map(CheckLine::Now);
    let ladders = checked.ladders.iter().map(|ladder| CheckLine::BrokenLadder {
        rule: ladder.rule.to_string(),
        message: ladder.to_string(),
        hint: ladder.remedy(),
    });
    let lines = lines.chain(off).chain(ladders).chain(now);
    for line in lines.chain(unreadable) {
        serde_json::to_writer(&mut *out, &line)?;
        writeln!(out)?;
    }
    Ok(())
}
