//! Prints the explanation for people or as JSON.

use std::borrow::Cow;
use std::io::{self, Write};

use jiff::Timestamp;
use promql_rules::{Labels, Relation, Traced, TracedRange, TracedValue, Value};
use serde_json::json;

use super::sentence::sentence;
use super::{ReportSource, RuleReport, StateSince};
use crate::cli::history::{decision_text, outcome_text};
use crate::cli::output;
use crate::cli::style::fitted;
use crate::cli::text::wrapped;
use crate::model::{Mode, duration_text, measured_bytes_text, printable};
use crate::policy::explain::{part_json, rail_json};

/// Longer texts of parts have lines of their own in the table, above their values.
const TEXT_WIDTH: usize = 64;

/// Elements of a vector that are printed.
const MOST_ELEMENTS: usize = 4;

/// Writes the report for people.
pub(super) fn text(report: &RuleReport, now: Timestamp, out: &mut impl Write) -> io::Result<()> {
    let rule = &report.explanation.rule;
    let every = duration_text(rule.interval);
    let text = format!("{} of {}, evaluated every {every}", rule.rule, rule.file);
    writeln!(out, "{}", fitted(&text))?;
    let ago = now.duration_since(report.at).round(jiff::Unit::Second).unwrap_or_default();
    let source = match &report.source {
        ReportSource::Recording { name, .. } => format!("from the recording {name}"),
        ReportSource::Journal => "from the journal".to_owned(),
        ReportSource::Daemon => "from the daemon".to_owned(),
    };
    writeln!(out, "{}\n", fitted(&format!("{:.3}, {ago:#} ago, {source}", report.at)))?;
    writeln!(out, "{}\n", fitted(&sentence(report)))?;
    let since = match report.since {
        None => String::new(),
        Some(StateSince::Exactly(since)) => format!(" since {since:.3}"),
        Some(StateSince::AtLeast(since)) => format!(" since {since:.3} or before"),
    };
    writeln!(out, "state       {}{since}, mode {}", rule.state.name(), rule.mode.name())?;
    if let Some(overridden) = &rule.overridden {
        writeln!(out, "{}", fitted(&format!("            {overridden}")))?;
    }
    for alert in &rule.alerts {
        let (state, since) = (alert.state.name(), alert.active_since.utc);
        let labels: Vec<String> =
            alert.labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
        let line = format!("  {state}, holds since {since:.3}  {{{}}}", labels.join(", "));
        writeln!(out, "{}", fitted(&line))?;
    }
    writeln!(out, "\ncondition")?;
    tree(&report.explanation.condition, out)?;
    remedy(report, out)?;
    decisions(report, out)?;
    for remark in &report.remarks {
        writeln!(out, "{}", fitted(&format!("# {remark}")))?;
    }
    Ok(())
}

fn remedy(report: &RuleReport, out: &mut impl Write) -> io::Result<()> {
    let Some(remedy) = &report.explanation.remedy else {
        return writeln!(out, "\nremedy      none");
    };
    let met = match remedy.aim_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "unknown",
    };
    match &remedy.aim {
        Some(aim) => {
            writeln!(out, "\naim         {met}")?;
            tree(aim, out)?;
        }
        None => writeln!(out, "\naim         {met}: that the condition ends")?,
    }
    writeln!(out, "\nsteps")?;
    for (index, step) in remedy.steps.iter().enumerate() {
        let note = match remedy.under_way {
            _ if index != remedy.step => String::new(),
            Some(decision) => format!("  ← under way, #{decision}"),
            None => "  ← next".to_owned(),
        };
        writeln!(out, "{}", fitted(&format!("  {} {step}{note}", index + 1)))?;
    }
    writeln!(out, "\nguard rails")?;
    let width = remedy.rails.iter().map(|rail| rail.reason.name().len()).max().unwrap_or(0);
    for rail in &remedy.rails {
        let (holds, name) = (if rail.holds { "holds" } else { "free " }, rail.reason.name());
        let text = format!("  {holds}  {name:<width$}  {}", rail.detail);
        writeln!(out, "{}", fitted(&text))?;
    }
    let mode = report.explanation.rule.mode;
    let holds = if mode == Mode::Observe { "holds" } else { "free " };
    let what = match mode {
        Mode::Observe => "observe: actions are only reported",
        Mode::Enforce => "enforce",
    };
    writeln!(out, "  {holds}  {:<width$}  {what}", "mode")
}

fn decisions(report: &RuleReport, out: &mut impl Write) -> io::Result<()> {
    if report.decisions.is_empty() {
        writeln!(out, "\nlast decisions  none is known")?;
        return writeln!(out);
    }
    writeln!(out, "\nlast decisions")?;
    for record in &report.decisions {
        let at = record.decision.at.utc;
        let text = format!("  {at:.3}  {}", decision_text(&record.decision));
        writeln!(out, "{}", fitted(&text))?;
        if let Some(outcome) = &record.outcome {
            let text = outcome_text(outcome, None, record.aim_check.as_ref());
            let text = format!("  {:.3}  {text}", outcome.ended.utc);
            writeln!(out, "{}", fitted(&text))?;
        }
    }
    writeln!(out)
}

/// The parts of a condition as a tree, with their values in a column.
fn tree(root: &Traced, out: &mut impl Write) -> io::Result<()> {
    let mut lines = Vec::new();
    collect(root, 1, &mut lines);
    let widths = lines.iter().map(|(text, _)| text.chars().count());
    let width = widths.filter(|width| *width <= TEXT_WIDTH).max().unwrap_or(0);
    for (text, values) in lines {
        let mut left = text;
        if left.chars().count() > width {
            let indent = left.len() - left.trim_start().len() + 2;
            let columns = output::width().unwrap_or(usize::MAX);
            writeln!(out, "{}", wrapped(&left, 0, indent, columns))?;
            left.clear();
        }
        for value in values {
            writeln!(out, "{}", fitted(&format!("{left:<width$}  {value}")))?;
            left.clear();
        }
    }
    Ok(())
}

fn collect(part: &Traced, depth: usize, lines: &mut Vec<(String, Vec<String>)>) {
    let text = printable(&label(part)).into_owned();
    lines.push((format!("{}{text}", "  ".repeat(depth)), values(part)));
    for part in &part.parts {
        collect(part, depth + 1, lines);
    }
}

/// The label of a part: its operator, if both sides are printed below it.
fn label(part: &Traced) -> Cow<'_, str> {
    let is_long = part.text.chars().count() > TEXT_WIDTH;
    match part.relation {
        Relation::And if is_long => Cow::Borrowed("and"),
        Relation::Or if is_long => Cow::Borrowed("or"),
        Relation::Unless if is_long => Cow::Borrowed("unless"),
        _ => Cow::Borrowed(&part.text),
    }
}

/// A part's value in a few words.
pub(super) fn value(part: &Traced) -> String {
    values(part).join(", ")
}

fn values(part: &Traced) -> Vec<String> {
    let shown = |number: f64| number_text(number, part.is_bytes);
    match &part.value {
        TracedValue::Known(Value::Scalar(number)) => vec![shown(*number)],
        TracedValue::Known(Value::Vector(samples)) => match samples.as_slice() {
            [] => vec!["nothing".to_owned()],
            samples => several(samples, |sample| {
                format!("{}{}", shown(sample.value), braces(&sample.labels))
            }),
        },
        TracedValue::Range(ranges) => match ranges.as_slice() {
            [] => vec!["no such series".to_owned()],
            ranges => several(ranges, |range| range_text(range, &shown)),
        },
        TracedValue::Unknown(reasons) => vec![unknown_text(part, &reasons.join("; "))],
        TracedValue::Failed(error) => vec![format!("error: {error}")],
    }
}

fn unknown_text(part: &Traced, reasons: &str) -> String {
    match (part.decided_by, part.yields) {
        (Some(decided_by), _) => format!("not needed: {reasons}; {decided_by}"),
        (None, Some(true)) => format!("something, and what is unknown: {reasons}"),
        (None, _) => format!("unknown: {reasons}"),
    }
}

fn several<T>(all: &[T], one: impl Fn(&T) -> String) -> Vec<String> {
    let mut shown: Vec<String> = all.iter().take(MOST_ELEMENTS).map(one).collect();
    if all.len() > MOST_ELEMENTS {
        shown.push(format!("and {} more", all.len() - MOST_ELEMENTS));
    }
    shown
}

fn range_text(range: &TracedRange, shown: &impl Fn(f64) -> String) -> String {
    let labels = braces(&range.labels);
    match range.count {
        0 => format!("no samples{labels}"),
        1 => format!("1 sample, {}{labels}", shown(range.last)),
        count if same(range.least, range.greatest) => {
            format!("{count} samples, all {}{labels}", shown(range.last))
        }
        count => format!(
            "{count} samples from {} to {}, least {}, greatest {}{labels}",
            shown(range.first),
            shown(range.last),
            shown(range.least),
            shown(range.greatest)
        ),
    }
}

/// Whether these are one value, bit for bit.
fn same(least: f64, greatest: f64) -> bool {
    least.to_bits() == greatest.to_bits()
}

fn number_text(number: f64, is_bytes: bool) -> String {
    if is_bytes && number.is_finite() {
        return measured_bytes_text(number);
    }
    // More digits of a computed number than these are noise.
    if number.abs() >= 1.0 && number.is_finite() {
        return format!("{number:.3}").trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    number.to_string()
}

fn braces(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<String> =
        labels.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
    format!("  {{{}}}", labels.join(","))
}

/// Writes the report as one object.
pub(super) fn json(report: &RuleReport, out: &mut impl Write) -> io::Result<()> {
    let explanation = &report.explanation;
    let (source, whole, name) = match &report.source {
        ReportSource::Recording { whole, name } => ("recording", *whole, Some(name)),
        ReportSource::Journal => ("journal", false, None),
        ReportSource::Daemon => ("daemon", true, None),
    };
    let (since, exact) = match report.since {
        None => (None, false),
        Some(StateSince::Exactly(since)) => (Some(since), true),
        Some(StateSince::AtLeast(since)) => (Some(since), false),
    };
    let remedy = explanation.remedy.as_ref().map(|remedy| {
        json!({
            "aim_met": remedy.aim_met,
            "aim": remedy.aim.as_ref().map(part_json),
            "steps": remedy.steps,
            "step": remedy.step,
            "under_way": remedy.under_way,
            "guard_rails": remedy.rails.iter().map(rail_json).collect::<Vec<_>>(),
        })
    });
    let decisions = report.decisions.iter().map(|record| {
        json!({
            "decision": record.decision,
            "outcome": record.outcome,
            "aim_check": record.aim_check,
        })
    });
    let object = json!({
        "rule": explanation.rule.rule.to_string(),
        "overridden": explanation.rule.overridden,
        "time": report.at,
        "source": source,
        "recording": name,
        "from_process_start": whole,
        "sentence": sentence(report),
        "state": explanation.rule.state,
        "since": since,
        "since_is_exact": exact,
        "mode": explanation.rule.mode,
        "unknown": explanation.rule.unknown,
        "idle": explanation.rule.is_idle,
        "alerts": explanation.rule.alerts,
        "condition": part_json(&explanation.condition),
        "remedy": remedy,
        "decisions": decisions.collect::<Vec<_>>(),
        "remarks": report.remarks,
    });
    serde_json::to_writer(&mut *out, &object)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_few_digits_and_a_value_that_stays_is_named_once() {
        for (number, text) in [
            (0.0, "0"),
            (120.0, "120"),
            (-12.000_000_4, "-12"),
            (2.0 / 3.0, "0.6666666666666666"),
            (7.0 / 3.0, "2.333"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number_text(number, false), text);
        }
        let shown = |number: f64| number_text(number, false);
        let (first, last) = (0.0, 0.0);
        let mut range = TracedRange {
            labels: Labels::default(),
            count: 9,
            first,
            last,
            least: 0.0,
            greatest: 0.0,
        };
        assert_eq!(range_text(&range, &shown), "9 samples, all 0");
        range.greatest = 2.0;
        assert_eq!(range_text(&range, &shown), "9 samples from 0 to 0, least 0, greatest 2");
    }
}
