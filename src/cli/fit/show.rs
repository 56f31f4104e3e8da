//! Prints the result.

mod advice;

use serde_json::{Value, json};

use super::command::{LayerCounts, ToFit};
use super::nodes::Nodes;
use crate::cli::output::{errln, outln};
use crate::cli::style::{fitted, is_too_wide, stacked};
use crate::engines::LaunchCommand;
use crate::fit::{Fit, FitResult, Model, NodeFit, sharing_engines};
use crate::model::{bytes_text, printable};
use advice::advice;

pub(super) fn text(read: &ToFit, fit: &Fit, nodes: &Nodes) {
    outln!("{}", fitted(&summary(&read.model, fit)));
    outln!();
    table(fit);
    outln!();
    for line in advice(read, fit) {
        outln!("{}", fitted(&line));
    }
    for note in read.notes.iter().chain(&nodes.notes) {
        outln!("{}", fitted(&format!("note: {note}")));
    }
}

/// Prints why nothing is known.
pub(super) fn silent(nodes: &Nodes, is_json: bool) {
    if is_json {
        outln!(
            "{}",
            json!({ "fits": Value::Null, "result": Value::Null, "silent": silent_json(nodes) })
        );
    }
    for (node, why) in &nodes.silent {
        errln!("umawarden: {}: {}", printable(node), printable(why));
    }
    errln!("umawarden: unknown whether it fits; umawarden must run on each of its nodes");
}

pub(super) fn json(read: &ToFit, fit: &Fit, nodes: &Nodes) -> Value {
    let model = &read.model;
    let mut object = json!(fit);
    object["weights_bytes"] = model.weights_bytes.into();
    object["mapped_bytes"] = model.mapped_bytes.into();
    let kv_cache = model.kv_cache;
    object["kv_bytes_per_token"] = kv_cache.map(|of| of.token_bytes).into();
    object["kv_window_bytes_per_token"] = kv_cache.map(|of| of.window_token_bytes).into();
    object["tokens"] = model.context.map(|tokens| tokens.saturating_mul(model.requests)).into();
    object["layers"] = read.layers.map(layers_json).into();
    object["command"] = read.command.as_ref().map(command_json).into();
    object["notes"] = read.notes.iter().chain(&nodes.notes).cloned().collect::<Vec<_>>().into();
    object
}

fn layers_json(layers: LayerCounts) -> Value {
    json!({
        "all": layers.all, "kv": layers.kv, "windowed": layers.windowed,
        "window_tokens": layers.window_tokens, "state": layers.state,
    })
}

fn command_json(command: &LaunchCommand) -> Value {
    let loader = command.loader;
    json!({
        "engine": command.engine.name(),
        "model": command.model,
        "context": command.context.as_ref().map(|of| of.value),
        "batch_tokens": command.batch.as_ref().map(|of| of.value),
        "kv_cache_dtype": command.kv_type.as_ref().map(|of| &of.value),
        "share": command.share.as_ref().map(|of| of.value),
        "ranks": command.ranks,
        "loader": {
            "name": loader.name,
            "page_cache": loader.page_cache.name(),
            "weights": loader.residence.name(),
            "work_least_bytes": loader.work_bytes.0,
            "work_most_bytes": loader.work_bytes.1,
            "peak_percent": loader.peak_percent.map(|(_, most)| most),
            "costs": loader.costs,
            "instead": loader.instead,
            "source": loader.source,
        },
    })
}

fn silent_json(nodes: &Nodes) -> Vec<Value> {
    nodes.silent.iter().map(|(node, why)| json!({ "node": node, "why": why })).collect()
}

fn summary(model: &Model, fit: &Fit) -> String {
    let mut what = format!("{} of weights", bytes_text(model.weights_bytes));
    if let Some(mapped) = model.mapped_bytes {
        what.push_str(&format!(", {} of them in a mapping,", bytes_text(mapped)));
    }
    if let Some((kv_cache, tokens)) = model.kv_cache.zip(model.context) {
        let all = kv_cache.bytes(tokens, model.requests);
        let tokens = tokens.saturating_mul(model.requests);
        what.push_str(&format!(" and {} of KV cache for {tokens} tokens", bytes_text(all)));
    }
    let on = match fit.nodes.len() {
        1 => "one node".to_owned(),
        count => format!("{count} nodes"),
    };
    let result = match fit.result {
        FitResult::Fits => "it fits",
        FitResult::Tight => "it is tight",
        FitResult::DoesNotFit => "it does not fit",
        FitResult::Unknown => "unknown for this loader",
    };
    format!("{what} on {on}: {result}.")
}

/// The columns before those of engines, and the least width of each.
const COLUMNS: [(&str, usize); 9] = [
    ("NODE", 4),
    ("MEMORY", 9),
    ("CAN HAVE", 9),
    ("PROCESSES", 9),
    ("HEADROOM", 9),
    ("WEIGHTS", 9),
    ("WORK", 9),
    ("FOR KV", 9),
    ("LACKS", 10),
];

/// The least width of the column of an engine.
const SHARE_WIDTH: usize = 5;

fn table(fit: &Fit) {
    let engines = sharing_engines().map(|(facts, _)| facts.kind.name().to_uppercase());
    let engines = engines.map(|title| (title, SHARE_WIDTH));
    let columns = COLUMNS.iter().map(|(title, width)| ((*title).to_owned(), *width));
    let (titles, mut widths): (Vec<String>, Vec<usize>) = columns.chain(engines).unzip();
    let rows: Vec<Vec<String>> = fit.nodes.iter().map(cells).collect();
    for (column, width) in widths.iter_mut().enumerate() {
        let cells = rows.iter().chain([&titles]).map(|row| row[column].chars().count());
        *width = cells.fold(*width, usize::max);
    }
    if is_too_wide(widths.iter().sum::<usize>() + 2 * (titles.len() - 1)) {
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        rows.iter().for_each(|row| outln!("{}", stacked(&titles, row)));
        return;
    }
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            0 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    outln!("{}", line(&titles));
    rows.iter().for_each(|row| outln!("{}", line(row)));
}

/// In the order of the columns.
fn cells(node: &NodeFit) -> Vec<String> {
    let mut cells = vec![
        printable(&node.node).into_owned(),
        bytes_text(node.total_bytes),
        bytes_text(node.available_bytes),
        bytes_text(node.processes_bytes),
        bytes_text(node.headroom_bytes),
        bytes_text(node.weights_bytes),
        range_text(node.work_least_bytes, node.work_bytes),
        bytes_text(node.kv_available_bytes),
        lacks_text(node),
    ];
    let shares = sharing_engines().map(|(_, memory)| node.shares.of(memory).most);
    cells.extend(shares.map(|most| format!("{most:.2}")));
    cells
}

/// What is missing: surely, or (`<12.0 GiB`) in the worst case.
fn lacks_text(node: &NodeFit) -> String {
    match (node.lacks_bytes, node.may_lack_bytes) {
        (0, 0) => "-".to_owned(),
        (0, perhaps) => format!("<{}", bytes_text(perhaps)),
        (lacks, _) => bytes_text(lacks),
    }
}

/// `3.3-14.0 GiB`.
fn range_text(least: u64, most: u64) -> String {
    let (least_text, most_text) = (bytes_text(least), bytes_text(most));
    if least == most {
        return most_text;
    }
    match (least_text.split_once(' '), most_text.split_once(' ')) {
        (Some((number, unit)), Some((_, same))) if unit == same => format!("{number}-{most_text}"),
        _ => format!("{least_text}-{most_text}"),
    }
}
