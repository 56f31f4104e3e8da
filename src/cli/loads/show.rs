//! Loads as a table.

use super::read::{StoredLoad, release_text};
use crate::cli::style::{is_too_wide, stacked};
use crate::model::{LoadEnd, bytes_text, printable, rounded_seconds_text};

const COLUMNS: [&str; 13] = [
    "NUMBER",
    "TIME (UTC)",
    "ENGINE",
    "READY",
    "TOOK",
    "PEAK",
    "GROWTH",
    "LOWEST FREE",
    "STALLS",
    "READ",
    "END",
    "RELEASE",
    "FINGERPRINT",
];

/// Of the columns that are numbers, the first and the last.
const NUMBERS: std::ops::RangeInclusive<usize> = 3..=9;

pub(super) fn table(loads: &[StoredLoad]) -> String {
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(loads.iter().map(cells));
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..COLUMNS.len()).map(|column| width(column).unwrap_or(0)).collect();
    if is_too_wide(widths.iter().sum::<usize>() + 2 * (COLUMNS.len() - 1)) {
        let rows: Vec<String> = rows.iter().skip(1).map(|row| stacked(&COLUMNS, row)).collect();
        return rows.join("\n");
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let width = *width;
            let cell = match NUMBERS.contains(&column) {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            };
            line.push_str(&cell);
            line.push_str("  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn cells(load: &StoredLoad) -> [String; COLUMNS.len()] {
    let receipt = &load.receipt;
    let end = match receipt.end {
        LoadEnd::Ready => "-",
        LoadEnd::Interrupted => "interrupted",
        LoadEnd::Died => "died",
    };
    [
        load.id.to_string(),
        receipt.started.strftime("%Y-%m-%d %H:%M:%S").to_string(),
        printable(&load.engine).into_owned(),
        seconds(receipt.ready_after_seconds),
        bytes(receipt.ready_bytes),
        bytes(receipt.peak_bytes),
        bytes(receipt.growth_bytes),
        bytes(receipt.lowest_free_bytes),
        count(receipt.stalls),
        bytes(receipt.read_bytes),
        end.to_owned(),
        release_text(load.release.as_ref()),
        printable(receipt.short_fingerprint()).into_owned(),
    ]
}

pub(super) fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), bytes_text)
}

pub(super) fn count(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

pub(super) fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), rounded_seconds_text)
}
