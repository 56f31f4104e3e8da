//! Prints what rules would have done, and what was written.

use std::collections::BTreeMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::Assessed;
use super::episode::Observed;
use super::plan::{PromotionPlan, PromotionRequest};
use super::readiness::{EpisodeResult, EpisodeReview, PromotionReadiness};
use super::write::WriteResult;
use crate::cli::output::{errln, outln};
use crate::cli::style::{fitted, headed};
use crate::model::{bytes_text, printable};
use crate::policy::restarts::GROUP;

/// Episodes of a rule and a grade that are printed; the newest.
const MOST_SHOWN: usize = 4;

/// The same in JSON.
const MOST_IN_JSON: usize = 100;

/// All that is shown.
pub(super) struct PromotionView<'s> {
    pub(super) observed: &'s Observed,
    pub(super) assessed: &'s [Assessed],
    pub(super) plan: &'s PromotionPlan,
    pub(super) remarks: &'s [String],
    /// Whether all rules are named, however many.
    pub(super) is_all: bool,
}

impl PromotionView<'_> {
    pub(super) fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let (since, covered) = (self.observed.since, self.observed.covered);
        writeln!(out, "From {since:.0} to {covered:.0}.")?;
        for remark in self.remarks {
            writeln!(out, "{}", fitted(&format!("# {remark}")))?;
        }
        let is_quiet = |one: &&Assessed| {
            one.counts.episodes == 0 && one.readiness == PromotionReadiness::NotEnoughSeen
        };
        let mut busy: Vec<&Assessed> = self.assessed.iter().filter(|one| !is_quiet(one)).collect();
        busy.sort_by(|a, b| (a.readiness, &a.pair).cmp(&(b.readiness, &b.pair)));
        for one in busy.iter().filter(|one| one.readiness != PromotionReadiness::Enforced) {
            self.rule(one, out)?;
        }
        let enforced =
            busy.iter().filter(|one| one.readiness == PromotionReadiness::Enforced).copied();
        self.list("enforced already", enforced, |one| format!("acted {} times", one.acted), out)?;
        let quiet = self.assessed.iter().filter(is_quiet);
        self.list("not enough seen", quiet, |one| one.why.clone(), out)?;
        self.conclusion(out)
    }

    fn rule(&self, one: &Assessed, out: &mut impl Write) -> io::Result<()> {
        let (rule, grade) = &one.pair;
        let name = rule.to_string();
        let text = format!("{name} {grade}: {} ({})", one.readiness.text(), one.why);
        writeln!(out, "\n{}", fitted(&text))?;
        let counts = &one.counts;
        let by_result = [
            (EpisodeResult::InTime, counts.in_time),
            (EpisodeResult::Lasted, counts.lasted),
            (EpisodeResult::ByItself, counts.by_itself),
            (EpisodeResult::Wrong, counts.wrong),
            (EpisodeResult::Unclear, counts.unclear),
            (EpisodeResult::TooRecent, counts.too_recent),
        ];
        let by_result = by_result.iter().filter(|(_, count)| *count > 0);
        let by_result = by_result.map(|(result, count)| format!("{} {count}", result.text()));
        let by_result = by_result.collect::<Vec<_>>().join(", ");
        let text = format!("  episodes {}, acts {}: {by_result}", counts.episodes, counts.acts);
        writeln!(out, "{}", fitted(&text))?;
        if !one.is_loaded && *rule.group != *GROUP {
            writeln!(out, "  not among the rules of the configuration")?;
        }
        for review in one.reviews.iter().rev().take(MOST_SHOWN) {
            writeln!(out, "{}", fitted(&format!("  {}", line(review))))?;
        }
        if let more @ 1.. = one.reviews.len().saturating_sub(MOST_SHOWN) {
            writeln!(out, "  and {more} before")?;
        }
        Ok(())
    }

    /// Prints rules and grades, by what is to be said of them.
    fn list<'a>(
        &self,
        what: &str,
        all: impl Iterator<Item = &'a Assessed>,
        about: impl Fn(&Assessed) -> String,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let mut by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in all {
            let (rule, grade) = &one.pair;
            by_text.entry(about(one)).or_default().push(format!("{rule} {grade}"));
        }
        for (text, names) in by_text {
            write!(out, "\n{}", headed(&format!("{what}, {text}"), &names, self.is_all))?;
        }
        Ok(())
    }

    fn conclusion(&self, out: &mut impl Write) -> io::Result<()> {
        let plan = self.plan;
        let restarts = self.assessed.iter().filter(|one| {
            *one.pair.0.group == *GROUP && one.readiness == PromotionReadiness::Ready
        });
        for one in restarts {
            let rule = one.pair.0.to_string();
            let text = format!(
                "{rule}: write mode: enforce into its entry of restarts, or add restart to enforce"
            );
            writeln!(out, "\n{}", fitted(&text))?;
        }
        if plan.promoted.is_empty() && plan.left_out.is_empty() {
            return writeln!(out, "\nNothing is ready to be enforced.");
        }
        writeln!(out)?;
        for (rule, grades) in &plan.promoted {
            let grades: Vec<&str> = grades.iter().map(|grade| grade.name()).collect();
            let rule = rule.to_string();
            let text = format!("can be enforced: {rule} ({})", grades.join(", "));
            writeln!(out, "{}", fitted(&text))?;
        }
        for (rule, why) in &plan.left_out {
            writeln!(out, "{}", fitted(&format!("left out: {rule}: {why}")))?;
        }
        Ok(())
    }

    pub(super) fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let head = json!({
            "kind": "promote",
            "since": self.observed.since,
            "until": self.observed.covered,
            "journal_begins": self.observed.begins,
            "observed_seconds": self.observed.span().as_secs(),
            "remarks": self.remarks,
        });
        writeln!(out, "{head}")?;
        for one in self.assessed {
            let (rule, grade) = &one.pair;
            let newest = one.reviews.iter().rev().take(MOST_IN_JSON);
            let line = json!({
                "kind": "rule",
                "rule": rule.to_string(),
                "grade": grade,
                "readiness": one.readiness,
                "why": one.why,
                "is_loaded": one.is_loaded,
                "can_be_enforced": self.plan.promoted.get(rule)
                    .is_some_and(|grades| grades.contains(grade)),
                "acted": one.acted,
                "counts": one.counts,
                "episodes": newest.map(episode_json).collect::<Vec<_>>(),
            });
            writeln!(out, "{line}")?;
        }
        for (rule, why) in &self.plan.left_out {
            writeln!(out, "{}", json!({"kind": "left_out", "rule": rule.to_string(), "why": why}))?;
        }
        Ok(())
    }
}

fn line(review: &EpisodeReview) -> String {
    let EpisodeReview { episode, result, why } = review;
    let times = match episode.acts {
        1 => String::new(),
        acts => format!(" {acts} times"),
    };
    let amount =
        episode.amount.map(|amount| format!(" ({} {})", bytes_text(amount.bytes), amount.what));
    let (action, target) = (episode.action, &episode.target);
    format!(
        "{:.0} would {action} on {target}{}{times}: {}: {why}",
        episode.first,
        amount.unwrap_or_default(),
        result.text()
    )
}

fn episode_json(review: &EpisodeReview) -> Value {
    let EpisodeReview { episode, result, why } = review;
    json!({
        "first": episode.first,
        "last": episode.last,
        "acts": episode.acts,
        "ended": episode.ended,
        "action": episode.action,
        "target": episode.target,
        "bytes": episode.amount.map(|amount| amount.bytes),
        "bytes_are": episode.amount.map(|amount| amount.what),
        "result": result,
        "why": why,
    })
}

/// Says that nothing is written.
pub(super) fn nothing(is_json: bool) {
    match is_json {
        true => outln!("{}", json!({"kind": "written", "file": null})),
        false => errln!("umawarden: nothing is written: no rule can be enforced"),
    }
}

/// What a person overrides.
fn overridden<'a>(
    assessed: &'a [Assessed],
    wanted: &'a PromotionRequest,
) -> impl Iterator<Item = &'a Assessed> {
    assessed.iter().filter(|one| {
        let is_settled =
            matches!(one.readiness, PromotionReadiness::Ready | PromotionReadiness::Enforced);
        wanted.forced.contains(&one.pair.0) && !is_settled
    })
}

/// Prints what was written.
pub(super) fn written(
    written: &WriteResult,
    plan: &PromotionPlan,
    (assessed, wanted): (&[Assessed], &PromotionRequest),
    is_json: bool,
) {
    if is_json {
        return outln!("{}", written_json(written, plan, (assessed, wanted)));
    }
    for one in overridden(assessed, wanted) {
        let ((rule, grade), readiness) = (&one.pair, one.readiness.text());
        let text = format!("forced: {rule} {grade}, although: {readiness} ({})", one.why);
        outln!("{}", printable(&text));
    }
    for rule in &plan.pinned {
        let text = format!("{rule} observes from now on: a grade that is added would let it act");
        outln!("{}", printable(&text));
    }
    match written {
        WriteResult::File { path, diff, remarks } => {
            outln!("\n{}:", path.display());
            for line in diff {
                outln!("{}", printable(line));
            }
            for remark in remarks {
                outln!("mind: {}", printable(remark));
            }
            outln!("\nIt takes effect at a reload: systemctl reload umawarden");
        }
        WriteResult::Snippet { path, file, text, why } => {
            errln!(
                "umawarden: {} cannot be changed safely ({why}); add these lines, which are in {}:",
                file.display(),
                path.display()
            );
            outln!("{}", text.trim_end());
        }
    }
}

fn written_json(
    written: &WriteResult,
    plan: &PromotionPlan,
    (assessed, wanted): (&[Assessed], &PromotionRequest),
) -> Value {
    let forced = overridden(assessed, wanted).map(|one| {
        let (rule, grade) = &one.pair;
        json!({
            "rule": rule.to_string(), "grade": grade, "readiness": one.readiness, "why": one.why,
        })
    });
    let forced: Vec<Value> = forced.collect();
    let pinned: Vec<String> = plan.pinned.iter().map(ToString::to_string).collect();
    let changes = json!({"modes": plan.changes.modes, "grades": plan.changes.grades});
    match written {
        WriteResult::File { path, diff, remarks } => json!({
            "kind": "written", "file": path, "changes": changes, "pinned": pinned,
            "forced": forced, "diff": diff, "remarks": remarks,
        }),
        WriteResult::Snippet { path, file, why, .. } => json!({
            "kind": "written", "file": null, "snippet": path, "belongs_to": file, "why": why,
            "changes": changes, "pinned": pinned, "forced": forced,
        }),
    }
}
