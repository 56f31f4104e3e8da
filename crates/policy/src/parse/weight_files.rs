//! Which files of a folder an engine loads as weights. A folder often has a model several times:
//! as shards and as one consolidated file, in the format of safetensors and of torch, or in many
//! quantizations.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::weight_index;

/// No index that is worth reading is longer: one of 1 trillion parameters has 20 MiB.
pub const MOST_INDEX_BYTES: u64 = 64 << 20;

/// The lists of shards, by format.
pub const INDICES: [&str; 2] = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];

/// The most names in a text.
const MOST_NAMED: usize = 8;

/// A file of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundFile {
    /// Its name in the folder.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Device and inode. Two names with the same are one file.
    pub identity: (u64, u64),
}

/// The weights that an engine loads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// The total size.
    pub bytes: u64,
    /// The size of the largest file: some loaders keep a whole file while they copy it.
    pub largest_bytes: u64,
    /// How many files they are.
    pub files: usize,
    /// The name of the first; a GGUF file describes its model there.
    pub first: Option<String>,
    /// What was left out, and why.
    pub notes: Vec<String>,
}

/// Which of several copies is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice<'a> {
    /// What engines load without an option.
    #[default]
    Usual,
    /// `consolidated*.safetensors`, as the format `mistral` loads it.
    Consolidated,
    /// The file of that name, with the other parts of its set.
    File(&'a str),
}

/// A format of weights, in the order in which engines prefer them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Format {
    Safetensors,
    Gguf,
    Bin,
    Torch,
}

/// Files of torch that are no weights: what a trainer leaves behind.
const NO_WEIGHTS: [&str; 5] = ["training_args", "optimizer", "scheduler", "rng_state", "imatrix"];

fn format(name: &str) -> Option<Format> {
    let (stem, ending) = name.rsplit_once('.')?;
    if stem.is_empty() || NO_WEIGHTS.iter().any(|other| stem.starts_with(other)) {
        return None;
    }
    match ending {
        "safetensors" => Some(Format::Safetensors),
        "gguf" => Some(Format::Gguf),
        "bin" => Some(Format::Bin),
        "pt" | "pth" => Some(Format::Torch),
        _ => None,
    }
}

/// Whether a file may hold weights, by its name.
pub fn is_weights(name: &str) -> bool {
    format(name).is_some()
}

/// Selects the files that an engine loads. `index` returns the text of an index of the folder.
///
/// # Errors
/// There are none, the choice is not clear, or a listed file is missing.
pub fn select(
    found: &[FoundFile],
    choice: Choice<'_>,
    index: impl Fn(&str) -> Option<Result<String, String>>,
) -> Result<Weights, String> {
    if let Choice::File(name) = choice {
        let set = set_of(name);
        let parts: Vec<&FoundFile> =
            found.iter().filter(|file| set_of(&file.name).stem == set.stem).collect();
        return if set.of.is_some() { complete(&parts) } else { only(&parts, name) }
            .map(|parts| sum(&parts, Vec::new()));
    }
    let formats = found.iter().filter_map(|file| format(&file.name));
    let chosen = formats.min().ok_or("it has no *.safetensors, *.gguf, *.bin, *.pt or *.pth")?;
    let mut notes = Vec::new();
    let (files, others): (Vec<&FoundFile>, Vec<&FoundFile>) = found
        .iter()
        .filter(|file| format(&file.name).is_some())
        .partition(|file| format(&file.name) == Some(chosen));
    note(&mut notes, &others, "in another format: engines load one");
    let files = match chosen {
        Format::Safetensors => safetensors(files, choice, &index, &mut notes)?,
        Format::Gguf => gguf(files, &mut notes)?,
        Format::Bin => match index(INDICES[1]) {
            Some(text) => listed(&files, INDICES[1], &text?, &mut notes)?,
            None => files,
        },
        Format::Torch => files,
    };
    Ok(sum(&files, notes))
}

fn safetensors<'f>(
    files: Vec<&'f FoundFile>,
    choice: Choice<'_>,
    index: &impl Fn(&str) -> Option<Result<String, String>>,
    notes: &mut Vec<String>,
) -> Result<Vec<&'f FoundFile>, String> {
    let (consolidated, shards): (Vec<&FoundFile>, Vec<&FoundFile>) =
        files.into_iter().partition(|file| file.name.starts_with("consolidated"));
    if shards.is_empty() || (choice == Choice::Consolidated && !consolidated.is_empty()) {
        note(notes, &shards, "not loaded in the format mistral");
        return complete_sets(consolidated);
    }
    note(notes, &consolidated, "the same weights once more, for the format mistral");
    match index(INDICES[0]) {
        Some(text) => listed(&shards, INDICES[0], &text?, notes),
        None => complete_sets(shards),
    }
}

/// The files that an index names.
fn listed<'f>(
    files: &[&'f FoundFile],
    index: &str,
    text: &str,
    notes: &mut Vec<String>,
) -> Result<Vec<&'f FoundFile>, String> {
    let named =
        weight_index::files(text.as_bytes()).map_err(|error| format!("{index}: {error}"))?;
    let names: BTreeSet<&str> = named.iter().map(String::as_str).collect();
    let have: BTreeSet<&str> = files.iter().map(|file| &*file.name).collect();
    let missing: Vec<&str> = names.difference(&have).copied().collect();
    if !missing.is_empty() {
        return Err(format!(
            "it lacks {} of {} files that {index} names: {}; the download is incomplete",
            missing.len(),
            names.len(),
            shown(&missing)
        ));
    }
    let (files, others): (Vec<&FoundFile>, Vec<&FoundFile>) =
        files.iter().copied().partition(|file| names.contains(&*file.name));
    note(notes, &others, &format!("not in {index}"));
    Ok(files)
}

/// One quantization. Projectors of images are apart.
fn gguf<'f>(
    files: Vec<&'f FoundFile>,
    notes: &mut Vec<String>,
) -> Result<Vec<&'f FoundFile>, String> {
    let (projectors, models): (Vec<&FoundFile>, Vec<&FoundFile>) =
        files.into_iter().partition(|file| file.name.to_ascii_lowercase().contains("mmproj"));
    if models.is_empty() {
        return Err("it has no *.gguf but projectors (mmproj)".to_owned());
    }
    note(notes, &projectors, "a projector, loaded with --mmproj only");
    let mut sets: BTreeMap<&str, Vec<&FoundFile>> = BTreeMap::new();
    for file in models {
        sets.entry(set_of(&file.name).stem).or_default().push(file);
    }
    if sets.len() > 1 {
        let first: Vec<&str> = sets.values().filter_map(|set| first_name(set)).collect();
        return Err(format!(
            "it has {} models in the format GGUF, of which an engine loads one: {}; name the file",
            first.len(),
            shown(&first)
        ));
    }
    complete(&sets.into_values().next().unwrap_or_default())
}

fn first_name<'f>(set: &[&'f FoundFile]) -> Option<&'f str> {
    set.iter().map(|file| &*file.name).min()
}

/// A file of a set: `NAME-00001-of-00003.gguf`.
#[derive(Clone, Copy)]
struct SplitFile<'a> {
    /// The name without its number, or all of it.
    stem: &'a str,
    number: u32,
    /// How many parts there are; `None`: it is alone.
    of: Option<u32>,
}

fn set_of(name: &str) -> SplitFile<'_> {
    let alone = SplitFile { stem: name, number: 1, of: None };
    let Some((stem, _)) = name.rsplit_once('.') else { return alone };
    let number = |text: &str| {
        let is_number = (4..=6).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    let parts = stem.rsplit_once("-of-").and_then(|(before, of)| {
        let (stem, at) = before.rsplit_once('-')?;
        Some(SplitFile { stem, number: number(at)?, of: Some(number(of)?) })
    });
    parts.unwrap_or(alone)
}

/// All sets, of which each must be complete.
fn complete_sets(files: Vec<&FoundFile>) -> Result<Vec<&FoundFile>, String> {
    let mut sets: BTreeMap<&str, Vec<&FoundFile>> = BTreeMap::new();
    for file in &files {
        sets.entry(set_of(&file.name).stem).or_default().push(file);
    }
    sets.values().try_for_each(|set| complete(set).map(drop))?;
    Ok(files)
}

/// A set, if no part of it is missing.
fn complete<'f>(set: &[&'f FoundFile]) -> Result<Vec<&'f FoundFile>, String> {
    let parts: Vec<SplitFile<'_>> = set.iter().map(|file| set_of(&file.name)).collect();
    let numbers: BTreeSet<u32> = parts.iter().map(|part| part.number).collect();
    let of = parts.iter().filter_map(|part| part.of).max();
    match of {
        Some(of) if (numbers.len() as u64) < u64::from(of) => Err(format!(
            "it has {} of {of} parts of {}; the download is incomplete",
            numbers.len(),
            parts.first().map_or("", |part| part.stem)
        )),
        _ => Ok(set.to_vec()),
    }
}

fn only<'f>(files: &[&'f FoundFile], name: &str) -> Result<Vec<&'f FoundFile>, String> {
    let file = files.iter().find(|file| file.name == name);
    file.map(|file| vec![*file]).ok_or_else(|| format!("it has no {name}"))
}

fn note(notes: &mut Vec<String>, files: &[&FoundFile], why: &str) {
    if !files.is_empty() {
        let names: Vec<&str> = files.iter().map(|file| &*file.name).collect();
        notes.push(format!("not counted: {} ({why})", shown(&names)));
    }
}

fn shown(names: &[&str]) -> String {
    let more = names.len().saturating_sub(MOST_NAMED);
    let listed = names.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{listed} and {more} more") } else { listed }
}

/// A file with several names counts once.
fn sum(files: &[&FoundFile], notes: Vec<String>) -> Weights {
    let mut seen = BTreeSet::new();
    let first = files.iter().map(|file| &file.name).min().cloned();
    let mut weights = Weights { notes, first, ..Weights::default() };
    for file in files.iter().filter(|file| seen.insert(file.identity)) {
        weights.bytes = weights.bytes.saturating_add(file.bytes);
        weights.largest_bytes = weights.largest_bytes.max(file.bytes);
        weights.files += 1;
    }
    weights
}
