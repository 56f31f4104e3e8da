//! A picture as lines, for the terminal and for a pipe.

use jiff::Timestamp;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::memory;
use crate::cli::progress::{bar_of, share};
use crate::cli::style::{Screen, Tone};
use crate::model::{
    ApprovalPicture, EnginePhase, EnginePicture, MemoryHistory, NodeHealthLevel, NodePicture,
    NodeState, Picture, RecentEvent, RecentEventLevel, SilencePicture, WaitingStart, age_text,
    bytes_text, duration_text, printable, seconds_text,
};

/// Lines of reasons why a node is not well, where the height is limited.
const MOST_REASONS: usize = 3;

/// Lines of decisions for a person, where the height is limited.
const MOST_ASKED: usize = 3;

/// The least height that always has a plot of the past hour, and the most lines of a plot with its
/// axis.
const LEAST_HEIGHT_FOR_PLOT: usize = 34;
const PLOT_LINES: usize = 9;

/// The least lines of a plot with its axis, and the lines of the past that it leaves, where it has
/// to fit.
const LEAST_PLOT_LINES: usize = 6;
const LEAST_HAPPENED: usize = 2;

/// The cells of a bar in a line.
const BAR: usize = 10;

/// Lines of the past where the height is unlimited.
const MOST_HAPPENED: usize = 8;

/// What is shown.
pub(in crate::cli) struct FrameView<'v> {
    pub(in crate::cli) picture: &'v Picture,
    /// The past hour of memory, if known.
    pub(in crate::cli) memory: Option<&'v MemoryHistory>,
    /// Why the picture is not of now.
    pub(in crate::cli) away: Option<String>,
    /// Which of several nodes it is, like `1 of 3`.
    pub(in crate::cli) which: Option<String>,
}

impl<'v> FrameView<'v> {
    /// The picture alone.
    pub(in crate::cli) fn of(picture: &'v Picture) -> Self {
        Self { picture, memory: None, away: None, which: None }
    }
}

/// How large it may be.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct FrameSize {
    pub(in crate::cli) width: usize,
    /// `None`: as many lines as there are, each whole, as in a pipe.
    pub(in crate::cli) height: Option<usize>,
    pub(in crate::cli) is_utf8: bool,
    /// Entries of the past to leave out.
    pub(in crate::cli) scroll: usize,
}

/// A part of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct StyledText {
    pub(in crate::cli) tone: Tone,
    pub(in crate::cli) text: String,
}

/// A line of pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cli) struct FrameLine(pub(in crate::cli) Vec<StyledText>);

impl FrameLine {
    /// A line with one piece.
    pub(super) fn of(tone: Tone, text: &str) -> Self {
        Self::default().with(tone, text)
    }

    /// The same with another piece, in which what is not printable is escaped.
    pub(super) fn with(mut self, tone: Tone, text: &str) -> Self {
        self.0.push(StyledText { tone, text: printable(text).into_owned() });
        self
    }

    pub(super) fn width(&self) -> usize {
        self.0.iter().map(|piece| piece.text.width()).sum()
    }

    /// Not wider than that. What is cut off ends with a mark.
    fn cut(self, width: usize, mark: char) -> Self {
        if self.width() <= width {
            return self;
        }
        let mut left = width.saturating_sub(1);
        let mut cut = Vec::new();
        for piece in self.0 {
            let mut text = String::new();
            for letter in piece.text.chars() {
                let wide = letter.width().unwrap_or(0);
                if wide > left {
                    text.push(mark);
                    cut.push(StyledText { tone: piece.tone, text });
                    return Self(cut);
                }
                left -= wide;
                text.push(letter);
            }
            cut.push(StyledText { tone: piece.tone, text });
        }
        Self(cut)
    }

    /// The line as it is for that terminal.
    pub(in crate::cli) fn shown(&self, screen: Screen) -> String {
        self.0.iter().map(|piece| screen.paint(piece.tone, &piece.text)).collect()
    }
}

/// A list with a title.
struct Section {
    title: &'static str,
    lines: Vec<FrameLine>,
    /// What an empty one says; without it, it is left out.
    none: Option<&'static str>,
}

impl Section {
    fn is_shown(&self) -> bool {
        !self.lines.is_empty() || self.none.is_some()
    }
}

/// The lines of a picture. If its height is limited: none wider than the frame, and not more than
/// it is high.
pub(in crate::cli) fn lines(view: &FrameView<'_>, frame: FrameSize) -> Vec<FrameLine> {
    let mut all = vec![title(view, frame.width), machine(view.picture)];
    if let Some(why) = &view.away {
        all.push(FrameLine::of(Tone::Bad, &format!("not of now: {why}")));
    }
    all.extend(reasons(view.picture, frame));
    let notes = &view.picture.well.notes;
    all.extend(notes.iter().map(|note| FrameLine::of(Tone::Faint, &format!("  {note}"))));
    let approvals = view.picture.approvals.iter();
    let asked = approvals.map(|one| approval(one, view.picture.at)).collect();
    let most = frame.height.map(|_| MOST_ASKED + 1);
    let asked = Section { title: "for a person", lines: asked, none: None };
    all.extend(fitted(vec![asked], most));
    all.extend(memory::lines(&view.picture.memory, frame));
    let sections = sections(view.picture, frame);
    let plot = plot_lines(frame.height, all.len(), &sections);
    if let Some((past, plot)) = view.memory.zip(plot) {
        all.extend(memory::plot(past, view.picture.memory.total_bytes, (frame, plot)));
    }
    let left = frame.height.map(|height| height.saturating_sub(all.len()));
    all.extend(fitted(sections, left));
    if let Some(height) = frame.height {
        all.truncate(height);
    }
    let mark = if frame.is_utf8 { '…' } else { '>' };
    let shown = |line: FrameLine| if frame.is_utf8 { line } else { ascii(line) };
    let cut = |line: FrameLine| match frame.height {
        Some(_) => line.cut(frame.width, mark),
        None => line,
    };
    all.into_iter().map(|line| shown(cut(line))).collect()
}

/// The lists below memory.
fn sections(picture: &Picture, frame: FrameSize) -> Vec<Section> {
    let Picture { engines, waiting, silences, nodes, happened, .. } = picture;
    let (now, available) = (picture.at, picture.memory.available_bytes);
    let section = |title, lines, none| Section { title, lines, none };
    let past = happened.iter().skip(frame.scroll);
    let past = past.take(if frame.height.is_none() { MOST_HAPPENED } else { usize::MAX });
    let waiters = waiting.iter().map(|one| waits(one, now, available)).collect();
    let past = past.map(|one| entry(one, now)).collect();
    vec![
        section("engines", engines.iter().map(engine).collect(), Some("no engine is found")),
        section("waiting for memory", waiters, None),
        section("silences", silences.iter().map(|one| silence(one, now)).collect(), None),
        section("nodes", nodes.iter().map(node).collect(), None),
        section("happened", past, Some("nothing has happened")),
    ]
}

/// The lines of a plot with its axis, below `taken` lines. Where the height is small there is none
/// if it would hide a line of a list; of the past, some lines suffice.
fn plot_lines(height: Option<usize>, taken: usize, sections: &[Section]) -> Option<usize> {
    let Some(height) = height.filter(|height| *height < LEAST_HEIGHT_FOR_PLOT) else {
        return Some(PLOT_LINES);
    };
    let listed = sections.iter().filter(|one| one.is_shown()).map(|one| match one.title {
        "happened" => 1 + one.lines.len().min(LEAST_HAPPENED),
        _ => 1 + one.lines.len(),
    });
    let free = height.checked_sub(taken + listed.sum::<usize>())?;
    (free >= LEAST_PLOT_LINES).then_some(free.min(PLOT_LINES))
}

/// Signs that this program itself writes, in ASCII. Names stay as they are.
fn ascii(mut line: FrameLine) -> FrameLine {
    for piece in &mut line.0 {
        piece.text = piece.text.replace('→', "->").replace('×', "x");
    }
    line
}

fn title(view: &FrameView<'_>, width: usize) -> FrameLine {
    let Picture { node, version, mode_text, uptime_seconds, well, at, .. } = view.picture;
    let (tone, word) = level_word(well.level);
    let up = std::time::Duration::try_from_secs_f64(uptime_seconds.round()).unwrap_or_default();
    // A node that does not answer may be in any state.
    let (tone, word) = match &view.away {
        Some(_) => (Tone::Warn, format!("unknown, was {word}")),
        None => (tone, word.to_owned()),
    };
    let line = FrameLine::of(Tone::Strong, node).with(Tone::Plain, ": ").with(tone, &word);
    let line = line.with(Tone::Plain, &format!(", mode {mode_text}, up {}", rough(up)));
    let which = view.which.as_ref().map(|which| format!("{which}  ")).unwrap_or_default();
    let right = format!("{which}{}  {version}", at.strftime("%H:%M:%SZ"));
    let gap = width.saturating_sub(line.width() + right.width());
    if gap < 2 { line } else { line.with(Tone::Faint, &format!("{}{right}", " ".repeat(gap))) }
}

/// Whether a node is well.
fn level_word(level: NodeHealthLevel) -> (Tone, &'static str) {
    match level {
        NodeHealthLevel::Well => (Tone::Good, "well"),
        NodeHealthLevel::Unknown => (Tone::Warn, "unknown"),
        NodeHealthLevel::Warning => (Tone::Warn, "warning"),
        NodeHealthLevel::Critical => (Tone::Bad, "CRITICAL"),
    }
}

/// A time to the minute, if it is longer than that.
fn rough(time: std::time::Duration) -> String {
    let step = match time.as_secs() {
        0..60 => 1,
        60..86_400 => 60,
        _ => 3_600,
    };
    duration_text(std::time::Duration::from_secs(time.as_secs() / step * step))
}

fn machine(picture: &Picture) -> FrameLine {
    let machine = &picture.machine;
    let model = machine.model.as_deref().unwrap_or("machine unknown");
    let gpu = machine.gpu.as_deref().map_or("no GPU known".to_owned(), |gpu| format!("GPU {gpu}"));
    let memory = machine
        .memory_bytes
        .map_or("memory unknown".to_owned(), |bytes| format!("{} of memory", bytes_text(bytes)));
    FrameLine::of(Tone::Faint, &format!("{model}, {memory}, {gpu}"))
}

fn reasons(picture: &Picture, frame: FrameSize) -> Vec<FrameLine> {
    let tone = if picture.well.level == NodeHealthLevel::Critical { Tone::Bad } else { Tone::Warn };
    let all = &picture.well.reasons;
    let most = frame.height.map_or(usize::MAX, |_| MOST_REASONS);
    let mut lines: Vec<FrameLine> =
        all.iter().take(most).map(|why| FrameLine::of(tone, &format!("  {why}"))).collect();
    if let Some(more) = all.len().checked_sub(most).filter(|more| *more > 0) {
        lines.push(FrameLine::of(tone, &format!("  and {more} more")));
    }
    lines
}

fn engine(engine: &EnginePicture) -> FrameLine {
    let EnginePicture { name, phase, memory_bytes, progress, seconds_left, .. } = engine;
    let tone = match phase {
        EnginePhase::Starting | EnginePhase::Loading => Tone::Number(0),
        EnginePhase::Ready | EnginePhase::Serving => Tone::Good,
        EnginePhase::Stopping => Tone::Warn,
        EnginePhase::Gone => Tone::Faint,
    };
    let unknown = if *phase == EnginePhase::Gone { "" } else { "?" };
    let memory = memory_bytes.map_or(unknown.to_owned(), bytes_text);
    let line = FrameLine::of(Tone::Plain, &format!("  {name:<20} "));
    let line = line.with(tone, &format!("{:<9}", phase.name()));
    let mut line = line.with(Tone::Plain, &format!("{memory:>10}"));
    if let Some(progress) = progress {
        let percent = (progress.clamp(0.0, 1.0) * 100.0).round();
        let text = format!("  {} {percent} %{}", bar_of(*progress, BAR), left(*seconds_left));
        line = line.with(Tone::Number(0), &text);
    }
    let mut facts: Vec<String> = engine.pod.iter().map(|pod| format!("pod {pod}")).collect();
    if let Some(queue) = engine.queue {
        facts.extend(queue.running.map(|running| format!("{running} running")));
        facts.extend(queue.waiting.map(|waiting| format!("{waiting} waiting")));
    }
    let percent = |share: f64| format!("KV cache {:.0} %", share * 100.0);
    facts.extend(engine.kv_cache_used.map(percent));
    if !facts.is_empty() {
        line = line.with(Tone::Plain, &format!("  {}", facts.join(", ")));
    }
    match &engine.note {
        Some(note) => line.with(Tone::Faint, &format!("  {note}")),
        None => line,
    }
}

fn left(seconds: Option<f64>) -> String {
    let left = seconds.and_then(|left| std::time::Duration::try_from_secs_f64(left).ok());
    left.map_or_else(String::new, |left| format!(", about {} left", seconds_text(left)))
}

fn approval(approval: &ApprovalPicture, now: Timestamp) -> FrameLine {
    let ApprovalPicture { decision, rule, what, why, lapses, goes_ahead, answer } = approval;
    // What a person can do comes first: the end of a line may be cut off.
    let (first, then) = match (answer, goes_ahead) {
        (Some(answer), _) => (format!("  #{decision}"), answer.clone()),
        (None, Some(due)) => {
            let due = until(now, *due);
            (format!("  umawarden deny {decision}"), format!("goes ahead in {due}"))
        }
        (None, None) => {
            let lapses = until(now, *lapses);
            (format!("  umawarden approve {decision}"), format!("lapses in {lapses}"))
        }
    };
    FrameLine::of(Tone::Warn, &first)
        .with(Tone::Plain, &format!("  {then}: {what}"))
        .with(Tone::Faint, &format!("; {rule}: {why}"))
}

fn waits(waiting: &WaitingStart, now: Timestamp, available: Option<u64>) -> FrameLine {
    let WaitingStart { who, needs_bytes, behind, since, kind, reason, seconds_left } = waiting;
    let mut line = FrameLine::of(Tone::Plain, &format!("  {who:<20} {:<8}", kind.name()));
    if let Some(needs) = needs_bytes {
        line = line.with(Tone::Plain, &format!(" needs {:>9}", bytes_text(*needs)));
        if let Some(available) = available {
            line =
                line.with(Tone::Number(0), &format!(" {}", bar_of(share(available, *needs), BAR)));
        }
    }
    line = line.with(Tone::Plain, &format!(" for {}{}", ago(now, *since), left(*seconds_left)));
    if !behind.is_empty() {
        line = line.with(Tone::Plain, &format!(", behind {}", behind.join(", ")));
    }
    if reason.is_empty() { line } else { line.with(Tone::Faint, &format!(": {reason}")) }
}

fn silence(silence: &SilencePicture, now: Timestamp) -> FrameLine {
    let SilencePicture { id, rules, by, why, .. } = silence;
    let ends = until(now, silence.until);
    let line = FrameLine::of(Tone::Plain, &format!("  {rules:<20} #{id} ends in {ends}, by {by}"));
    if why.is_empty() { line } else { line.with(Tone::Faint, &format!(": {why}")) }
}

fn node(node: &NodePicture) -> FrameLine {
    let NodePicture { name, state, weakest, available_bytes, total_bytes, note, level, .. } = node;
    let mut line = FrameLine::of(Tone::Plain, &format!("  {name:<20} "));
    if let Some(level) = level {
        let (tone, word) = level_word(*level);
        line = line.with(tone, &format!("{word:<8} "));
    }
    let text = match (available_bytes, total_bytes) {
        (Some(available), Some(total)) if *state != NodeState::Unknown => {
            format!("{:>10} of {} available", bytes_text(*available), bytes_text(*total))
        }
        _ => "unknown".to_owned(),
    };
    let tone = if *state == NodeState::Unknown { Tone::Warn } else { Tone::Plain };
    let mut line = line.with(tone, &text);
    if *weakest {
        line = line.with(Tone::Strong, ", the weakest");
    }
    if *state == NodeState::Own {
        line = line.with(Tone::Plain, ", this node");
    }
    match note {
        Some(note) => line.with(Tone::Faint, &format!(": {note}")),
        None => line,
    }
}

fn entry(happened: &RecentEvent, now: Timestamp) -> FrameLine {
    let RecentEvent { at, kind, level, text, times, .. } = happened;
    let tone = match level {
        RecentEventLevel::Info => Tone::Plain,
        RecentEventLevel::Warning => Tone::Warn,
        RecentEventLevel::Critical => Tone::Bad,
    };
    let times = if *times > 1 { format!("{times} times: ") } else { String::new() };
    FrameLine::of(Tone::Faint, &format!("  {:>4} ago  {:<8}  ", ago(now, *at), kind.name()))
        .with(tone, &format!("{times}{text}"))
}

fn ago(now: Timestamp, then: Timestamp) -> String {
    age_text(now.duration_since(then).try_into().unwrap_or_default())
}

fn until(now: Timestamp, then: Timestamp) -> String {
    ago(then, now)
}

/// All sections that have something to show, in so many lines. Each gets a share; what is left over
/// goes to the first that have more.
fn fitted(sections: Vec<Section>, height: Option<usize>) -> Vec<FrameLine> {
    let sections: Vec<Section> = sections.into_iter().filter(Section::is_shown).collect();
    let mut quotas = vec![0; sections.len()];
    let mut left = height.map_or(usize::MAX, |height| height.saturating_sub(sections.len()));
    while left > 0 {
        let before = left;
        for (section, quota) in sections.iter().zip(&mut quotas) {
            if *quota < section.lines.len() && left > 0 {
                *quota += 1;
                left -= 1;
            }
        }
        if left == before {
            break;
        }
    }
    let mut all = Vec::new();
    for (section, quota) in sections.into_iter().zip(quotas) {
        let count = section.lines.len();
        // The past goes on for ever, so that its end is no news.
        let is_cut = quota < count && section.title != "happened";
        let hidden = match (count, quota) {
            (0, _) => section.none.map(|none| format!(": {none}")).unwrap_or_default(),
            (_, 0) => format!(": {count}"),
            _ if is_cut => format!(" (the first {quota} of {count})"),
            _ => String::new(),
        };
        all.push(FrameLine::of(Tone::Strong, section.title).with(Tone::Faint, &hidden));
        all.extend(section.lines.into_iter().take(quota));
    }
    all
}
