//! Where memory is, as a bar and a list, and where it was, as a plot.

use std::time::Duration;

use super::frame::{FrameLine, FrameSize};
use crate::cli::progress::share;
use crate::cli::style::Tone;
use crate::model::{MemoryHistory, MemoryPart, MemoryPicture, PartKind, age_text, bytes_text};

/// The columns of a part in the list, and of its name in them.
const PART: usize = 38;
const NAME: usize = PART - 16;

/// The columns of the axis of a plot.
const AXIS: usize = 11;

/// The sign of a part, also in ASCII, and its colour; engines differ by their number.
fn sign(kind: PartKind, state: Option<&str>, number: usize) -> (char, char, Tone) {
    match (kind, state) {
        (PartKind::Engine, _) => ('█', '#', Tone::Number(number)),
        (PartKind::Processes, _) => ('▓', 'p', Tone::Plain),
        (PartKind::Driver, _) => ('▒', 'd', Tone::Warn),
        (PartKind::Cache, Some("mapped")) => ('▞', 'm', Tone::Good),
        (PartKind::Cache, Some("dirty")) => ('▄', 'w', Tone::Warn),
        (PartKind::Cache, _) => ('░', 'c', Tone::Good),
        (PartKind::Other, _) => ('▚', 'o', Tone::Faint),
        (PartKind::Free, _) => ('·', '.', Tone::Faint),
    }
}

/// The sign and the colour of each of these parts.
fn signs<'p>(
    parts: impl Iterator<Item = (PartKind, &'p Option<String>)>,
    is_utf8: bool,
) -> Vec<(char, Tone)> {
    let mut engines = 0;
    parts
        .map(|(kind, state)| {
            let number = engines;
            engines += usize::from(kind == PartKind::Engine);
            let (wide, narrow, tone) = sign(kind, state.as_deref(), number);
            (if is_utf8 { wide } else { narrow }, tone)
        })
        .collect()
}

/// The bar, its parts, and what is available.
pub(super) fn lines(memory: &MemoryPicture, frame: FrameSize) -> Vec<FrameLine> {
    let mut all = Vec::new();
    if let Some(total) = memory.total_bytes.filter(|total| *total > 0 && !memory.parts.is_empty()) {
        all.push(bar(memory, total, frame));
        all.extend(parts(memory, frame));
    }
    let known = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), bytes_text);
    let text = format!(
        "{} available of {}, the kernel's reserve is {}",
        known(memory.available_bytes),
        known(memory.total_bytes),
        known(memory.reserve_bytes)
    );
    all.push(FrameLine::of(Tone::Strong, "memory").with(Tone::Plain, &format!(": {text}")));
    all.rotate_right(1);
    all.extend(memory.remarks.iter().map(|text| FrameLine::of(Tone::Faint, &format!("  {text}"))));
    all
}

/// All of memory in one line. A `|` marks where less than the kernel's reserve is left.
fn bar(memory: &MemoryPicture, total: u64, frame: FrameSize) -> FrameLine {
    let width = frame.width.saturating_sub(2).max(1);
    let mut cells = vec![(' ', Tone::Faint); width];
    let mut taken = 0_u64;
    let mut filled = 0;
    let kinds = memory.parts.iter().map(|part| (part.kind, &part.state));
    for (part, sign) in memory.parts.iter().zip(signs(kinds, frame.is_utf8)) {
        taken = taken.saturating_add(part.bytes);
        let until = cell(taken, total, width).max(filled);
        cells.iter_mut().take(until).skip(filled).for_each(|cell| *cell = sign);
        filled = until;
    }
    if let Some(reserve) = memory.reserve_bytes.filter(|reserve| *reserve > 0) {
        // A small reserve is in the last cell.
        let at = cell(total.saturating_sub(reserve), total, width).min(width - 1);
        cells.iter_mut().skip(at).take(1).for_each(|cell| *cell = ('|', Tone::Strong));
    }
    joined(FrameLine::of(Tone::Plain, "["), &cells).with(Tone::Plain, "]")
}

/// The line with these cells, those of one colour in one piece.
fn joined(line: FrameLine, cells: &[(char, Tone)]) -> FrameLine {
    cells.chunk_by(|one, other| one.1 == other.1).fold(line, |line, same| {
        let text: String = same.iter().map(|(sign, _)| sign).collect();
        line.with(same[0].1, &text)
    })
}

fn is_free(part: &MemoryPart) -> bool {
    part.kind == PartKind::Free
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a column of the terminal"
)]
fn cell(bytes: u64, total: u64, cells: usize) -> usize {
    ((share(bytes, total) * cells as f64).round() as usize).min(cells)
}

/// The parts side by side.
fn parts(memory: &MemoryPicture, frame: FrameSize) -> Vec<FrameLine> {
    let kinds = memory.parts.iter().map(|part| (part.kind, &part.state));
    let shown: Vec<_> = memory
        .parts
        .iter()
        .zip(signs(kinds, frame.is_utf8))
        .filter(|(part, _)| part.bytes > 0 || is_free(part))
        .collect();
    let in_line = (frame.width / PART).max(1);
    shown
        .chunks(in_line)
        .map(|chunk| {
            chunk.iter().fold(FrameLine::default(), |line, (part, (sign, tone))| {
                let name: String = short_name(part).chars().take(NAME).collect();
                let text = format!(" {name:<NAME$} {:>10}  ", bytes_text(part.bytes));
                line.with(*tone, &format!("{sign}")).with(Tone::Plain, &text)
            })
        })
        .collect()
}

/// The name of a part for a narrow column: without what it may contain, and with the state of page
/// cache.
fn short_name(part: &MemoryPart) -> String {
    let name = match part.kind {
        PartKind::Engine => &*part.name,
        PartKind::Driver => part.name.split(" (").next().unwrap_or_default(),
        _ => part.name.split(" and ").next().unwrap_or_default(),
    };
    match &part.state {
        Some(state) if !name.contains(&**state) => format!("{name} {state}"),
        _ => name.to_owned(),
    }
}

/// Where memory was, from the oldest point to the newest, in so many lines.
pub(super) fn plot(
    past: &MemoryHistory,
    total: Option<u64>,
    (frame, height): (FrameSize, usize),
) -> Vec<FrameLine> {
    let points = past.at.len();
    let Some(total) = total.filter(|total| *total > 0 && points > 1) else { return Vec::new() };
    let columns = frame.width.saturating_sub(AXIS).max(1).min(points);
    let signs = signs(past.parts.iter().map(|part| (part.kind, &part.state)), frame.is_utf8);
    let rows = height.saturating_sub(1).max(1);
    let mut grid = vec![vec![(' ', Tone::Plain); rows]; columns];
    for (column, cells) in grid.iter_mut().enumerate() {
        // The fullest point of those that share a column, so that no collapse is left out.
        let first = column * points / columns;
        let last = ((column + 1) * points / columns).max(first + 1);
        let taken = |point: &usize| sum(past, *point, total).unwrap_or(0);
        let Some(point) = (first..last).max_by_key(taken) else { continue };
        if sum(past, point, total).is_none() {
            continue;
        }
        let mut below = 0_u64;
        for (part, sign) in past.parts.iter().zip(&signs) {
            let above = below.saturating_add(value(&part.bytes, point).unwrap_or(0));
            let (from, until) = (cell(below, total, rows), cell(above, total, rows));
            cells.iter_mut().take(until).skip(from).for_each(|cell| *cell = *sign);
            below = above;
        }
    }
    let line = |row: usize| {
        let cells: Vec<_> = grid.iter().map(|cells| cells[rows - 1 - row]).collect();
        row_of(&cells, (row, rows), total)
    };
    let mut lines: Vec<FrameLine> = (0..rows).map(line).collect();
    lines.push(axis(past, columns));
    lines
}

/// All but free memory at a point; `None` if nothing is known of it.
fn sum(past: &MemoryHistory, point: usize, total: u64) -> Option<u64> {
    let mut known = past.parts.iter().filter_map(|part| Some((part, value(&part.bytes, point)?)));
    let first = known.next()?;
    let taken = std::iter::once(first)
        .chain(known)
        .filter(|(part, _)| part.kind != PartKind::Free)
        .fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes));
    Some(taken.min(total))
}

fn value(bytes: &[Option<u64>], point: usize) -> Option<u64> {
    bytes.get(point).copied().flatten()
}

fn row_of(cells: &[(char, Tone)], (row, rows): (usize, usize), total: u64) -> FrameLine {
    let label = match row {
        0 => bytes_text(total),
        _ if row == rows / 2 => bytes_text(total / 2),
        _ => String::new(),
    };
    joined(FrameLine::of(Tone::Faint, &format!("{label:>9} |")), cells)
}

fn axis(past: &MemoryHistory, columns: usize) -> FrameLine {
    let seconds = past.at.last().zip(past.at.first()).map_or(0, |(last, first)| last - first);
    let begin =
        format!("{} ago", age_text(Duration::from_secs(u64::try_from(seconds).unwrap_or(0))));
    let width = columns.saturating_sub(3);
    match begin.len() < width {
        true => FrameLine::of(Tone::Faint, &format!("{:>9}  {begin:<width$}now", "")),
        false => FrameLine::of(Tone::Faint, &format!("{:>9}  {begin}", "")),
    }
}
