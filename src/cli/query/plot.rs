//! Plots of one line and of several, in block and braille characters or in ASCII.

use std::fmt::Write as _;

/// Bars of one line, the lowest first.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', '.', '-', ':', '=', '+', '*', '#'];

/// Dots of a braille character below the left and the right half, from its top (Unicode, chapter
/// 21.1: U+2800 and a bit for each dot).
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
const BRAILLE: u32 = 0x2800;

/// Lines of a plot.
const ROWS: usize = 8;

/// The mean of the finite values in each of `columns` equal parts of a range, as pairs of time and
/// value. A part without values has that of the part before, unless it is older than `step`.
pub(super) fn columns(
    points: &[(f64, f64)],
    (start, end): (f64, f64),
    step: f64,
    columns: usize,
) -> Vec<Option<f64>> {
    let width = (end - start + step) / columns.max(1) as f64;
    let mut points = points.iter().filter(|(_, value)| value.is_finite()).peekable();
    let mut last: Option<(f64, f64)> = None;
    let mut found = Vec::with_capacity(columns);
    for column in 0..columns {
        let begins = start + width * column as f64;
        let ends = if column + 1 == columns { f64::INFINITY } else { begins + width };
        let (mut sum, mut count) = (0.0, 0.0);
        while let Some((at, value)) = points.next_if(|(at, _)| *at < ends) {
            sum += value;
            count += 1.0;
            last = Some((*at, *value));
        }
        let held = last.filter(|(at, _)| begins - at < step).map(|(_, value)| value);
        found.push(if count > 0.0 { Some(sum / count) } else { held });
    }
    found
}

/// The least and the greatest value.
pub(super) fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |bounds, value| {
        let (least, greatest) = bounds.unwrap_or((value, value));
        Some((value.min(least), value.max(greatest)))
    })
}

/// The place of a value between bounds, from 0 to `most`; in the middle if they are equal.
fn place(value: f64, (least, greatest): (f64, f64), most: usize) -> usize {
    // Halves do not overflow.
    let range = greatest / 2.0 - least / 2.0;
    let share = if range > 0.0 { (value / 2.0 - least / 2.0) / range } else { 0.5 };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to a small number"
    )]
    let place = (share.clamp(0.0, 1.0) * most as f64).round() as usize;
    place
}

/// One line, with a character for each value.
pub(super) fn line(values: &[Option<f64>], bounds: (f64, f64), is_utf8: bool) -> String {
    let bars = if is_utf8 { BLOCKS } else { ASCII };
    let bar = |value: &Option<f64>| match value {
        Some(value) => bars[place(*value, bounds, bars.len() - 1)],
        None => ' ',
    };
    values.iter().map(bar).collect()
}

/// Lines from the top to the bottom. With UTF-8 each character has two of the values beside each
/// other.
pub(super) fn lines(values: &[Option<f64>], bounds: (f64, f64), is_utf8: bool) -> Vec<String> {
    let dots = if is_utf8 { DOTS.len() } else { 1 };
    let height = ROWS * dots;
    let mut is_set = vec![vec![false; values.len()]; height];
    let mut before: Option<usize> = None;
    for (column, value) in values.iter().enumerate() {
        let row = value.map(|value| height - 1 - place(value, bounds, height - 1));
        if let Some(row) = row {
            // Steep lines have no holes.
            let (from, to) = match before {
                Some(before) if before < row => (before + 1, row),
                Some(before) if before > row => (row, before - 1),
                _ => (row, row),
            };
            is_set.iter_mut().take(to + 1).skip(from).for_each(|line| line[column] = true);
        }
        before = row;
    }
    match is_utf8 {
        true => is_set.chunks(DOTS.len()).map(braille).collect(),
        false => is_set.iter().map(|line| stars(line)).collect(),
    }
}

fn stars(line: &[bool]) -> String {
    line.iter().map(|is_set| if *is_set { '*' } else { ' ' }).collect()
}

fn braille(lines: &[Vec<bool>]) -> String {
    let width = lines.first().map_or(0, Vec::len);
    let mut out = String::new();
    for left in (0..width).step_by(2) {
        let mut bits = 0;
        for (line, dots) in lines.iter().zip(DOTS) {
            for (half, dot) in dots.into_iter().enumerate() {
                if line.get(left + half).copied().unwrap_or(false) {
                    bits |= dot;
                }
            }
        }
        // An empty one is a space, which every font has.
        let found = char::from_u32(BRAILLE + u32::from(bits)).filter(|_| bits > 0);
        // Writing to a string does not fail.
        let _ = out.write_char(found.unwrap_or(' '));
    }
    out
}
