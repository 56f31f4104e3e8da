//! What would have come of acts that were not carried out, and what follows for a rule.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::episode::{Episode, Observed, Pair};
use crate::model::{Grade, RestartState, seconds_text};

/// What ended within this time ended by itself.
const SOON: SignedDuration = SignedDuration::from_secs(60);

/// An engine that ran on for this time did not need to be stopped.
const LIVED_ON: SignedDuration = SignedDuration::from_mins(10);

/// A fault that came this late leaves open whether the act was right.
const LATE_FAULT: SignedDuration = SignedDuration::from_hours(1);

/// Most notices a day that a person reads.
const MOST_NOTICES: i64 = 24;

/// What would have come of an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EpisodeResult {
    /// Memory ran out soon after: it would have been in time.
    InTime,
    /// The trouble lasted: there was something to do.
    Lasted,
    /// The trouble ended soon without it.
    ByItself,
    /// What it would have ended ran on, or recovered: it would have been wrong.
    Wrong,
    /// The journal does not say.
    Unclear,
    /// It is too early to say.
    TooRecent,
}

impl EpisodeResult {
    /// The heading of its column.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::InTime => "in time",
            Self::Lasted => "lasted",
            Self::ByItself => "ended by itself",
            Self::Wrong => "wrong",
            Self::Unclear => "unclear",
            Self::TooRecent => "too recent",
        }
    }
}

/// What follows for a rule and a grade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum PromotionReadiness {
    /// It would have been wrong at least once.
    WouldHaveBeenWrong,
    /// It can be enforced.
    Ready,
    /// In doubt.
    NotEnoughSeen,
    /// It is enforced already.
    Enforced,
}

impl PromotionReadiness {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::WouldHaveBeenWrong => "would have been wrong",
            Self::Ready => "ready",
            Self::NotEnoughSeen => "not enough seen",
            Self::Enforced => "enforced",
        }
    }
}

/// An episode with its result and the reason of that.
#[derive(Clone, Debug)]
pub(super) struct EpisodeReview {
    pub(super) episode: Episode,
    pub(super) result: EpisodeResult,
    pub(super) why: String,
}

fn lasted(time: SignedDuration) -> String {
    seconds_text(Duration::try_from(time).unwrap_or_default())
}

/// Finds what would have come of an act of that grade.
pub(super) fn review(pair: &Pair, episode: &Episode, observed: &Observed) -> EpisodeReview {
    let (rule, grade) = pair;
    let lives = &observed.lives;
    let (result, why) = match grade {
        Grade::Restart => restart(&rule.alert, episode, observed),
        Grade::Stop => stop(episode, observed),
        Grade::Reboot => reboot(episode, observed),
        Grade::Notice | Grade::Evict | Grade::Drop | Grade::Cordon => {
            trouble(episode, observed.covered)
        }
    };
    let fault = match grade {
        Grade::Restart => None,
        _ => lives.fault(&rule.alert, episode.first, episode.last),
    };
    let (result, why) = match fault {
        Some(fault) => {
            let after = lasted(fault.at.duration_since(episode.first));
            let text = format!("{after} later: {}", fault.text);
            match result {
                // What ran on after all did not have to be ended.
                EpisodeResult::Wrong => (EpisodeResult::Unclear, format!("{text}; but {why}")),
                _ => (EpisodeResult::InTime, text),
            }
        }
        None if result == EpisodeResult::Wrong
            && *grade != Grade::Restart
            && lives.has_fault_within(episode.first, LATE_FAULT) =>
        {
            (EpisodeResult::Unclear, format!("{why}, and memory ran out within an hour"))
        }
        None => (result, why),
    };
    EpisodeReview { episode: episode.clone(), result, why }
}

/// Whether the trouble lasted, for what ends no engine.
fn trouble(episode: &Episode, covered: Timestamp) -> (EpisodeResult, String) {
    let Episode { first, ended, cut, is_helped, .. } = *episode;
    let until = ended.or(cut).unwrap_or(covered);
    let time = until.duration_since(first);
    match (time > SOON, ended.is_some()) {
        (true, true) => (EpisodeResult::Lasted, format!("the trouble lasted {}", lasted(time))),
        (true, false) => {
            (EpisodeResult::Lasted, format!("the trouble lasted at least {}", lasted(time)))
        }
        (false, true) if is_helped => {
            (EpisodeResult::Unclear, "another act came before its end".to_owned())
        }
        (false, true) => (EpisodeResult::ByItself, format!("after {}", lasted(time))),
        (false, false) if cut.is_some() => {
            (EpisodeResult::Unclear, format!("umawarden ended or began {} later", lasted(time)))
        }
        (false, false) => (EpisodeResult::TooRecent, format!("it is {} old", lasted(time))),
    }
}

fn stop(episode: &Episode, observed: &Observed) -> (EpisodeResult, String) {
    let Some((engine, server)) = &episode.engine else {
        return (EpisodeResult::Unclear, "the engine is unknown".to_owned());
    };
    let first = episode.first;
    let seen = observed.lives.later_state(engine, *server, first, observed.covered);
    let Some(seen) = seen else {
        return (EpisodeResult::Unclear, format!("whether {engine} ran on is not in the journal"));
    };
    let time = seen.until.duration_since(first);
    if time < LIVED_ON {
        return match seen.ended {
            Some(how) => {
                (EpisodeResult::Unclear, format!("it ended {} later: {how}", lasted(time)))
            }
            None if observed.covered.duration_since(first) < LIVED_ON => {
                (EpisodeResult::TooRecent, format!("it is {} old", lasted(time)))
            }
            None => {
                (EpisodeResult::Unclear, format!("{engine} is known for {} more", lasted(time)))
            }
        };
    }
    if !seen.is_up {
        let text = format!("{engine} ran on for {}, and did not answer at the end", lasted(time));
        return (EpisodeResult::Unclear, text);
    }
    let bound = if seen.ended.is_some() { "" } else { "at least " };
    let memory = match episode.ended {
        Some(ended) => {
            format!("; the trouble ended by itself after {}", lasted(ended.duration_since(first)))
        }
        None => String::new(),
    };
    let text = format!("{engine} ran on and answered for {bound}{}{memory}", lasted(time));
    (EpisodeResult::Wrong, text)
}

fn reboot(episode: &Episode, observed: &Observed) -> (EpisodeResult, String) {
    let (lives, first) = (&observed.lives, episode.first);
    let up = lives.engines().find_map(|engine| {
        let seen = lives.later_state(engine, None, first, observed.covered)?;
        let time = seen.until.duration_since(first);
        (seen.is_up && time >= LIVED_ON).then(|| (engine.to_owned(), time))
    });
    if let Some((engine, time)) = up {
        return (
            EpisodeResult::Wrong,
            format!("{engine} ran on and answered for {}", lasted(time)),
        );
    }
    match (episode.ended, episode.cut) {
        (Some(ended), _) if !episode.is_helped => {
            let time = lasted(ended.duration_since(first));
            (EpisodeResult::Wrong, format!("the trouble ended after {time}, without a reboot"))
        }
        (Some(_), _) => (EpisodeResult::Unclear, "another act came before its end".to_owned()),
        (None, Some(cut)) => {
            let time = lasted(cut.duration_since(first));
            (
                EpisodeResult::Unclear,
                format!("umawarden ended {time} later, and the trouble lasted till then"),
            )
        }
        (None, None) => {
            let time = lasted(observed.covered.duration_since(first));
            (EpisodeResult::TooRecent, format!("the trouble has lasted {time}, and goes on"))
        }
    }
}

/// A restart: what a person made of the engine.
fn restart(name: &str, episode: &Episode, observed: &Observed) -> (EpisodeResult, String) {
    let first = episode.first;
    let down_for = |at: Timestamp| lasted(at.duration_since(first));
    let mut up: Option<Timestamp> = None;
    for (at, state) in observed.lives.restart_after(name, first) {
        match (state, up) {
            (RestartState::Running, None) => up = Some(*at),
            (RestartState::Stopped | RestartState::NotOurs, None) => {
                let what = match state {
                    RestartState::Stopped => "a person stopped it",
                    _ => "it was taken from umawarden",
                };
                return (EpisodeResult::Wrong, format!("{what} {} later", down_for(*at)));
            }
            (_, Some(started)) if state != &RestartState::Running => {
                return match at.duration_since(started) >= LIVED_ON {
                    true => (EpisodeResult::Lasted, came_back(first, started)),
                    false => (
                        EpisodeResult::Unclear,
                        format!(
                            "it was started {} later, and ran for {} only",
                            down_for(started),
                            lasted(at.duration_since(started))
                        ),
                    ),
                };
            }
            _ => {}
        }
    }
    match up {
        Some(started) if observed.covered.duration_since(started) >= LIVED_ON => {
            (EpisodeResult::Lasted, came_back(first, started))
        }
        Some(started) => {
            (EpisodeResult::TooRecent, format!("it was started {} later", down_for(started)))
        }
        None => {
            let time = lasted(observed.covered.duration_since(first));
            (
                EpisodeResult::Unclear,
                format!("it has been down for {time}: whether it is wanted is unknown"),
            )
        }
    }
}

fn came_back(first: Timestamp, started: Timestamp) -> String {
    let time = lasted(started.duration_since(first));
    format!("it was down until a person started it {time} later, and it ran")
}

/// How often each result was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct ResultCounts {
    pub(super) episodes: u64,
    pub(super) acts: u64,
    pub(super) in_time: u64,
    pub(super) lasted: u64,
    pub(super) by_itself: u64,
    pub(super) wrong: u64,
    pub(super) unclear: u64,
    pub(super) too_recent: u64,
}

impl ResultCounts {
    pub(super) fn of(reviews: &[EpisodeReview]) -> Self {
        let mut counts = Self::default();
        for one in reviews {
            counts.episodes += 1;
            counts.acts += one.episode.acts;
            *match one.result {
                EpisodeResult::InTime => &mut counts.in_time,
                EpisodeResult::Lasted => &mut counts.lasted,
                EpisodeResult::ByItself => &mut counts.by_itself,
                EpisodeResult::Wrong => &mut counts.wrong,
                EpisodeResult::Unclear => &mut counts.unclear,
                EpisodeResult::TooRecent => &mut counts.too_recent,
            } += 1;
        }
        counts
    }

    fn known(&self) -> u64 {
        self.episodes.saturating_sub(self.too_recent)
    }
}

/// How often a grade must have been seen before it is ready.
fn least_seen(grade: Grade) -> u64 {
    match grade {
        Grade::Notice => 1,
        Grade::Restart | Grade::Stop | Grade::Reboot => 2,
        Grade::Evict | Grade::Drop | Grade::Cordon => 3,
    }
}

/// What follows, and why. `observed`: how long the node was observed, and how long it must be.
pub(super) fn readiness(
    grade: Grade,
    counts: &ResultCounts,
    observed: (SignedDuration, SignedDuration),
) -> (PromotionReadiness, String) {
    let (known, least) = (counts.known(), least_seen(grade));
    let useful = counts.in_time + counts.lasted;
    if counts.wrong > 0 {
        let text = format!("wrong {} of {} times", counts.wrong, counts.episodes);
        return (PromotionReadiness::WouldHaveBeenWrong, text);
    }
    let doubt = |text: String| (PromotionReadiness::NotEnoughSeen, text);
    let (span, wanted) = observed;
    if span < wanted {
        return doubt(format!("observed for {}, of {}", lasted(span), lasted(wanted)));
    }
    if known < least {
        return doubt(format!("seen {known} times, of {least}"));
    }
    // What is stopped, started or rebooted must have been right each time.
    let is_severe = matches!(grade, Grade::Restart | Grade::Stop | Grade::Reboot);
    if is_severe && useful < known {
        return doubt(format!("right {useful} of {known} times, the rest is unclear"));
    }
    if useful * 2 <= known {
        let (ended, unclear) = (counts.by_itself, counts.unclear);
        return doubt(match ended >= unclear {
            true => format!(
                "the trouble ended by itself {ended} of {known} times: there is little to remedy"
            ),
            false => format!("unclear {unclear} of {known} times"),
        });
    }
    let days = (span.as_hours() / 24).max(1);
    if grade == Grade::Notice
        && i64::try_from(counts.acts).unwrap_or(i64::MAX) > days * MOST_NOTICES
    {
        return doubt(format!("{} notices in {days} d: nobody reads so many", counts.acts));
    }
    (PromotionReadiness::Ready, format!("needed {useful} of {known} times"))
}
