//! `umawarden rules test`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::super::Exit;
use super::count;
use crate::cli::output;
use crate::cli::progress::Progress;
use crate::cli::text::wrapped;
use crate::config::measure::written;
use crate::config::mistake::{Mistake, Mistakes, SourceText, Style};
use crate::config::reader::{UnreadablePath, find_as_promtool, is_test_file, read_text};
use crate::config::rules::parse_rules;
use crate::config::settings::limits::DEFAULT_INTERVAL;
use crate::model::{HoldReason, without_unprintable};
use crate::scenario::{ComparisonRow, Failure, TestFile, TestReport, agree, parse_tests, play};

/// Arguments of `umawarden rules test`.
#[derive(Debug, Args)]
#[command(after_help = reasons_help())]
pub struct TestArguments {
    /// Test files, or folders of *_test.yaml.
    #[arg(value_name = "FILE", required = true)]
    pub paths: Vec<PathBuf>,

    /// One JSON object a line: each file, its tests, and failures.
    #[arg(long)]
    pub json: bool,
}

const TEST_HELP: &str = "\
A test file has the shape of promtool's own (`promtool test rules`), plus `remedy_test`, `mode` \
and `outcomes`. Time is virtual, and passes through the very steps that the daemon takes:

  rule_files: [memory.yaml]             # relative to this file; globs are taken
  evaluation_interval: 100ms            # of every group, as in promtool; or 1m
  tests:
  - name: the cache eats the reserve
    interval: 100ms                     # of samples; or evaluation_interval
    input_series:
    - {series: uma_memory_total_bytes, values: 128e9x100}        # 101 values
    - {series: uma_memory_free_bytes, values: 9e9-1e9x6 2e9x90}  # 9e9, 8e9, ...
    promql_expr_test:
    - {expr: uma_memory_free_bytes < 3e9, eval_time: 1s, exp_samples: [...]}
    alert_rule_test:
    - eval_time: 1s
      alertname: CacheEats
      exp_alerts:                       # none: it must not fire
      - exp_labels: {severity: warning}
        exp_annotations: {summary: ...}
    mode: enforce                       # the default here; or observe
    node: spark-1                       # of scope cluster: where remedies act;
                                        #   series have labels cluster and node
    outcomes:                           # of acts; without: done, at once
    - action: drop_caches               # the first one; the next entry is for
      result: done                      #   the next, the last for all others
      after: 200ms
      then:                             # values from the next sample on
      - {series: uma_memory_free_bytes, values: 40e9x90}
    remedy_test:
    - eval_time: 5s                     # all decisions since the last entry
      exp_decisions:                    # none: nothing is decided
      - {alert: CacheEats, step: 0, action: drop_caches, decision: act}
      - {rule: memory/CacheEats, at: 4200ms, decision: hold, reason: aim_met}

A result is done, failed, skipped or timed_out. In exp_decisions, what is not written is not \
compared; steps count from 0; an action is named as `drop_caches` or in full as `drop_caches all`. \
Values may also be `failed` and `unsupported` (`failedx5`: five times): readings without a value, \
which make rules unknown; `_` is no sample and `stale` ends a series.

A test is played under the guard rails that it writes, else under the defaults; no configuration \
is read, so that a file means the same everywhere. A window that it does not define is never open. \
What people order is part of it too:

  - start_timestamp: 2026-07-01T19:50:00Z           # its beginning; else 1970
    guard_rails:                                    # as in the configuration:
      budget: {times: 60, per: 1h}
      breaker: {misses: 3, reset_after: 1h}
      protect: {units: [\"sshd*\"]}
      maintenance_windows: [{name: nights, from: \"22:00\", to: \"06:00\"}]
      never_in: []                                  # windows
      inhibited_by: []                              # alerts
      pauses: [{from: 1h, to: 2h}]                  # times since the beginning
      silences: [{from: 3h, to: 4h, rule: Fragmented}]
      approvals: [{at: 12m, rule: Fragmented, step: 0, expires: 2m}]
      denials: [{at: 13m, rule: Fragmented}]
      breaker_resets: [{at: 5h, rule: Fragmented}]
      journal_readable_from: 10s

stop_engine chooses among the engines that the test declares by their series (none: no_target), \
and by what the node has taken: total, unaccounted, shmem and anonymous memory must be there.

    - {series: 'uma_engine_phase{engine=\"a\",phase=\"loading\"}', values: 1x99}
    - series: 'uma_engine_memory_bytes{engine=\"a\",type=\"anon\"}'
      values: 1e9+1e8x99
    - series: uma_memory_unaccounted_bytes  # memory that no process shows
      values: 2e9+4e8x99

An engine of the first sample is old, a later one starts then. Serving it works, ready it is idle.

Rules see the declared series alone, so a test also declares what this program counts itself. A \
file without additions gets the result that promtool of Prometheus 3 gives it: where promtool says \
SUCCESS, all pass here; where it says FAILED, with its one exit code 1, something differs here or \
the file is unusable. Beyond that, recording rules, native histograms and what rules cannot say \
are refused; external_labels and external_url have no effect, since no template here can refer to \
them.

Exit codes: 0 all pass, 1 something differs, 2 a file is unusable: it cannot be read, or something \
in it or in its rules is miswritten.";

/// The table of hold reasons in the help.
fn reasons_help() -> String {
    let mut help = format!("{TEST_HELP}\n\nA reason is one of\n");
    for reason in HoldReason::ALL {
        let meaning = wrapped(reason.meaning(), 22, 22, 80);
        help.push_str(&format!("  {:<19} {meaning}\n", reason.name()));
    }
    help
}

/// Runs the command.
pub(super) fn execute(arguments: &TestArguments) -> anyhow::Result<Exit> {
    let mut out = output::stdout();
    let colours = !arguments.json && output::colours_wanted(output::is_terminal());
    let style = if colours { Style::Coloured } else { Style::Plain };
    let mut exit = Exit::Fine;
    let files = test_files(&arguments.paths);
    // Files differ much in how many tests they have.
    let count = output::is_error_terminal()
        .then(|| files.iter().flatten().map(|path| tests_in(path)).sum());
    let mut progress = Progress::things("rules test", "tests", count.unwrap_or_default());
    for path in files {
        let tested = match path {
            Ok(path) => Tested::new(&path, &mut progress),
            Err(unreadable) => Tested::unreadable(unreadable),
        };
        exit = match (exit, tested.exit()) {
            (Exit::Unusable, _) | (_, Exit::Unusable) => Exit::Unusable,
            (Exit::Findings, _) | (_, Exit::Findings) => Exit::Findings,
            (Exit::Fine | Exit::Code(_), Exit::Fine | Exit::Code(_)) => Exit::Fine,
        };
        let printed = match arguments.json {
            true => tested.print_json(&mut out),
            false => tested.print_text(style, &mut out),
        };
        printed.and_then(|()| out.flush())?;
    }
    Ok(exit)
}

/// How many tests a file has; none if it cannot be used.
fn tests_in(path: &Path) -> u64 {
    let tests = read_text(path).ok().and_then(|source| parse_tests(&source).ok());
    tests.map_or(0, |file| file.tests.len() as u64)
}

/// The given files, and the test files of a folder by name. An error is a path that cannot be read.
fn test_files(paths: &[PathBuf]) -> Vec<Result<PathBuf, UnreadablePath>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(Ok(path.clone()));
            continue;
        }
        let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
        let mut found = match entries {
            Ok(entries) => entries.into_iter().map(|entry| entry.path()).collect(),
            Err(error) => {
                files.push(Err(UnreadablePath { path: path.clone(), why: error.to_string() }));
                continue;
            }
        };
        Vec::retain(&mut found, |path| is_test_file(path));
        found.sort();
        if found.is_empty() {
            let why = "it holds no *_test.yaml".to_owned();
            files.push(Err(UnreadablePath { path: path.clone(), why }));
        }
        files.extend(found.into_iter().map(Ok));
    }
    files
}

/// The result of one file.
struct Tested {
    source: Option<SourceText>,
    reports: Vec<TestReport>,
    remarks: Vec<Mistake>,
    /// Why it cannot be used.
    mistakes: Vec<Mistake>,
    unreadable: Vec<UnreadablePath>,
}

impl Tested {
    fn unreadable(why: UnreadablePath) -> Self {
        Self {
            source: None,
            reports: Vec::new(),
            remarks: Vec::new(),
            mistakes: Vec::new(),
            unreadable: vec![why],
        }
    }

    fn new(path: &Path, progress: &mut Progress) -> Self {
        let source = match read_text(path) {
            Ok(source) => source,
            Err(error) => return Self::unreadable(error),
        };
        let mut tested = Self {
            source: None,
            reports: Vec::new(),
            remarks: Vec::new(),
            mistakes: Vec::new(),
            unreadable: Vec::new(),
        };
        match parse_tests(&source) {
            Ok(file) => tested.test(path, (&source, &file), progress),
            Err(Mistakes(mistakes)) => tested.mistakes = mistakes,
        }
        tested.source = Some(source);
        tested
    }

    fn test(
        &mut self,
        path: &Path,
        (source, file): (&SourceText, &TestFile),
        progress: &mut Progress,
    ) {
        let rule_files = self.read_rule_files(path, source, file);
        if !self.mistakes.is_empty() || !self.unreadable.is_empty() {
            return;
        }
        let rules = match parse_rules(&rule_files, DEFAULT_INTERVAL) {
            Ok(rules) => rules,
            Err(Mistakes(mistakes)) => return self.mistakes = mistakes,
        };
        match agree(source, file, &rules) {
            Ok(remarks) => self.remarks.extend(remarks),
            Err(Mistakes(mistakes)) => return self.mistakes = mistakes,
        }
        for test in &file.tests {
            self.reports.push(play(file, test, &rules));
            progress.advance(1);
        }
    }

    fn read_rule_files(
        &mut self,
        path: &Path,
        source: &SourceText,
        file: &TestFile,
    ) -> Vec<SourceText> {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut texts: Vec<SourceText> = Vec::new();
        for (pattern, span) in &file.rule_files {
            // An empty name is no file.
            let found = match pattern.is_empty() {
                true => Ok(Vec::new()),
                false => find_as_promtool(&folder.join(pattern)),
            };
            let found = found.unwrap_or_else(|unreadable| {
                self.mistakes.push(source.mistake(span.clone(), unreadable.to_string()));
                Vec::new()
            });
            if found.is_empty() {
                let message = format!("{pattern} matches no file");
                self.remarks.push(source.mistake(span.clone(), message));
            }
            for file in found {
                match read_text(&file) {
                    Ok(text) if texts.iter().any(|known| known.name == text.name) => {}
                    Ok(text) => texts.push(text),
                    Err(error) => {
                        self.mistakes.push(source.mistake(span.clone(), error.to_string()));
                    }
                }
            }
        }
        texts
    }

    fn exit(&self) -> Exit {
        if !self.unreadable.is_empty() || !self.mistakes.is_empty() {
            return Exit::Unusable;
        }
        if self.failed() > 0 { Exit::Findings } else { Exit::Fine }
    }

    fn failed(&self) -> usize {
        self.reports.iter().filter(|report| !report.failures.is_empty()).count()
    }

    fn name(&self) -> &str {
        self.source.as_ref().map_or("", |source| &source.name)
    }

    fn line(&self, at: usize) -> usize {
        self.source.as_ref().map_or(0, |source| source.position(at).0)
    }

    fn print_text(&self, style: Style, out: &mut impl Write) -> io::Result<()> {
        let paint = Paint(style);
        for why in &self.unreadable {
            writeln!(out, "{}", paint.red(&why.to_string()))?;
        }
        let Some(source) = &self.source else { return Ok(()) };
        let name = &source.name;
        let tests = count(self.reports.len(), "test");
        let checks: usize = self.reports.iter().map(|report| report.checks).sum();
        match (self.exit(), self.failed()) {
            (Exit::Unusable, _) => {
                let mistakes = count(self.mistakes.len(), "mistake");
                writeln!(out, "{name}: {}, {mistakes}", paint.red("UNUSABLE"))?;
            }
            (_, 0) => {
                let checks = count(checks, "check");
                writeln!(out, "{name}: {}, {tests}, {checks}", paint.green("SUCCESS"))?;
            }
            (_, failed) => {
                writeln!(out, "{name}: {}, {failed} of {tests}", paint.red("FAILED"))?;
            }
        }
        for mistake in &self.mistakes {
            write!(out, "\n{}", mistake.render(style))?;
        }
        for remark in &self.remarks {
            write!(out, "\nremark: {}", remark.render(style))?;
        }
        for report in self.reports.iter().filter(|report| !report.failures.is_empty()) {
            let line = self.line(report.span.start);
            writeln!(out, "\n  {name}:{line}: {}", printable(&report.name))?;
            for failure in &report.failures {
                self.print_failure(failure, &paint, out)?;
            }
        }
        if !self.mistakes.is_empty() || !self.remarks.is_empty() || self.failed() > 0 {
            writeln!(out)?;
        }
        Ok(())
    }

    fn print_failure(
        &self,
        failure: &Failure,
        paint: &Paint,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let subject = printable(&failure.subject);
        let (check, at) = (failure.check.name(), written(failure.at));
        let line = self.line(failure.span.start);
        writeln!(out, "    line {line}: {check} {subject}, at {at}")?;
        if let Some(message) = &failure.message {
            writeln!(out, "      {}", paint.red(&printable(message)))?;
        }
        if failure.message.is_some() && failure.expected.is_empty() && failure.got.is_empty() {
            return Ok(());
        }
        let widths = widths(failure.expected.iter().chain(&failure.got));
        print_rows("expected", &failure.expected, &widths, paint, out)?;
        print_rows("got", &failure.got, &widths, paint, out)
    }

    fn print_json(&self, out: &mut impl Write) -> io::Result<()> {
        let mut lines = Vec::new();
        if self.source.is_some() {
            let (tests, failed) = (self.reports.len(), self.failed());
            let ok = self.exit() == Exit::Fine;
            lines.push(TestLine::File { file: self.name(), ok, tests, failed });
        }
        lines.extend(self.unreadable.iter().map(|unreadable| TestLine::Unreadable {
            path: unreadable.path.display().to_string(),
            why: &unreadable.why,
        }));
        lines.extend(self.mistakes.iter().map(TestLine::Mistake));
        lines.extend(self.remarks.iter().map(TestLine::Remark));
        for report in &self.reports {
            lines.push(TestLine::Test {
                file: self.name(),
                test: &report.name,
                line: self.line(report.span.start),
                ok: report.failures.is_empty(),
                checks: report.checks,
            });
            lines.extend(report.failures.iter().map(|failure| TestLine::Failure {
                file: self.name(),
                test: &report.name,
                line: self.line(failure.span.start),
                check: failure.check.name(),
                subject: &failure.subject,
                at: written(failure.at),
                message: failure.message.as_deref(),
                expected: cells(&failure.expected),
                got: cells(&failure.got),
            }));
        }
        for line in lines {
            serde_json::to_writer(&mut *out, &line)?;
            writeln!(out)?;
        }
        Ok(())
    }
}

fn cells(rows: &[ComparisonRow]) -> Vec<&[String]> {
    rows.iter().map(|row| row.cells.as_slice()).collect()
}

/// The width of each column, in characters.
fn widths<'r>(rows: impl Iterator<Item = &'r ComparisonRow>) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        for (column, cell) in row.cells.iter().enumerate() {
            if widths.len() <= column {
                widths.push(0);
            }
            widths[column] = widths[column].max(printable(cell).chars().count());
        }
    }
    widths
}

/// Rows in columns. Rows without a counterpart are marked.
fn print_rows(
    title: &str,
    rows: &[ComparisonRow],
    widths: &[usize],
    paint: &Paint,
    out: &mut impl Write,
) -> io::Result<()> {
    if rows.is_empty() {
        return writeln!(out, "      {title:>8}   nothing");
    }
    for (position, row) in rows.iter().enumerate() {
        let title = if position == 0 { title } else { "" };
        let mark = if row.matched { ' ' } else { '!' };
        let cells = row.cells.iter().zip(widths);
        let line: Vec<String> =
            cells.map(|(cell, width)| format!("{:<width$}", printable(cell))).collect();
        let line = line.join("  ");
        let line = format!("{mark} {}", line.trim_end());
        let line = if row.matched { line } else { paint.red(&line) };
        writeln!(out, "      {title:>8} {line}")?;
    }
    Ok(())
}

/// Texts of a test must not control the terminal.
fn printable(text: &str) -> String {
    let text = text.trim().replace(['\n', '\t'], " ");
    without_unprintable(&text, char::REPLACEMENT_CHARACTER)
}

struct Paint(Style);

impl Paint {
    fn red(&self, text: &str) -> String {
        self.with("\x1b[31m", text)
    }

    fn green(&self, text: &str) -> String {
        self.with("\x1b[32m", text)
    }

    fn with(&self, colour: &str, text: &str) -> String {
        match self.0 {
            Style::Plain => text.to_owned(),
            Style::Coloured => format!("{colour}{text}\x1b[0m"),
        }
    }
}

/// One line of `--json`.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum TestLine<'t> {
    File {
        file: &'t str,
        ok: bool,
        tests: usize,
        failed: usize,
    },
    Test {
        file: &'t str,
        test: &'t str,
        line: usize,
        ok: bool,
        checks: usize,
    },
    Failure {
        file: &'t str,
        test: &'t str,
        line: usize,
        check: &'t str,
        subject: &'t str,
        at: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<&'t str>,
        expected: Vec<&'t [String]>,
        got: Vec<&'t [String]>,
    },
    Mistake(&'t Mistake),
    Remark(&'t Mistake),
    Unreadable {
        path: String,
        why: &'t str,
    },
}
