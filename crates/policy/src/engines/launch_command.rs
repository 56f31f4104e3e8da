//! What a command that starts an engine says of its memory: model, context, share of memory, ranks
//! and loader. The command may be wrapped: `env`, `sudo`, `bash -c`, `docker run`.

mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use super::command_line::{ProcessRole, recognise, serving};
use super::loaders::{Loader, loader};
use super::{ENGINES, facts};
use crate::model::EngineKind;
use words::{Command, shell_words};

/// Further words of a command are ignored.
const MOST_WORDS: usize = 4096;

/// No engine has an option with a longer name.
const LONGEST_OPTION: usize = 64;

/// Wrappers in wrappers.
const MOST_DEPTH: usize = 4;

/// The options that set how much memory an engine takes, in all spellings.
#[derive(Clone, Copy, Debug)]
pub struct SizeOptions {
    /// Tokens of one request.
    pub context: &'static [&'static str],
    /// Tokens of all requests together.
    pub all_tokens: &'static [&'static str],
    /// The most requests at the same time.
    pub requests: &'static [&'static str],
    /// Tokens that are computed at the same time. Activations grow with it.
    pub batch: &'static [&'static str],
    /// The type of numbers in the KV cache.
    pub kv_type: &'static [&'static str],
    /// The size of the KV cache, in bytes.
    pub kv_bytes: &'static [&'static str],
    /// Its share of memory, between 0 and 1.
    pub share: &'static [&'static str],
    /// Ranks that divide each layer, and ranks that divide the layers.
    pub ranks: [&'static [&'static str]; 2],
    /// Nodes that it spans.
    pub nodes: &'static [&'static str],
    /// GiB of weights in the memory of the CPU.
    pub offload_gib: &'static [&'static str],
    /// Options that bound the images and sounds of a request, or leave them out.
    pub media: &'static [&'static str],
    /// Options with which layers with a window keep all tokens.
    pub whole_windows: &'static [&'static str],
    /// A file with further options.
    pub file: &'static [&'static str],
}

impl SizeOptions {
    pub(super) const NONE: Self = Self {
        context: &[],
        all_tokens: &[],
        requests: &[],
        batch: &[],
        kv_type: &[],
        kv_bytes: &[],
        share: &[],
        ranks: [&[], &[]],
        nodes: &[],
        offload_gib: &[],
        media: &[],
        whole_windows: &[],
        file: &[],
    };
}

/// An option of a command, and its value.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenOption<T> {
    /// The option, as the command has it.
    pub option: String,
    /// The parsed value of the option.
    pub value: T,
}

/// What the command says. Of its words nothing else is kept: keys are among them.
#[derive(Clone, Debug)]
pub struct LaunchCommand {
    /// The kind of engine that the command starts.
    pub engine: EngineKind,
    /// How it reads weights.
    pub loader: &'static Loader,
    /// The model's name, or the path on this node.
    pub model: Option<String>,
    /// Tokens of one request.
    pub context: Option<GivenOption<u64>>,
    /// Tokens of all requests together.
    pub all_tokens: Option<GivenOption<u64>>,
    /// The most requests at the same time.
    pub requests: Option<GivenOption<u64>>,
    /// Tokens that are computed at the same time.
    pub batch: Option<GivenOption<u64>>,
    /// The type of numbers in the KV cache.
    pub kv_type: Option<GivenOption<String>>,
    /// The size of the KV cache on a rank, in bytes.
    pub kv_bytes: Option<GivenOption<u64>>,
    /// Its share of memory.
    pub share: Option<GivenOption<f64>>,
    /// Ranks, of which each has a GPU.
    pub ranks: u64,
    /// Nodes, if the command says how many.
    pub nodes: Option<GivenOption<u64>>,
    /// GiB of weights in the memory of the CPU, which is the same memory on unified nodes.
    pub offload_gib: Option<GivenOption<f64>>,
    /// Whether it bounds the images and sounds of a request.
    pub bounds_media: bool,
    /// Whether layers with a window keep all tokens.
    pub keeps_windows_whole: bool,
    /// Options whose values could not be read.
    pub unread: Vec<String>,
    /// The names of all options, with dashes for underscores.
    pub options: BTreeSet<String>,
    /// The names of the variables that the command sets.
    pub variables: BTreeSet<String>,
    /// The official image that it runs in: `vllm/vllm-openai:v0.29.0`.
    pub image: Option<String>,
}

impl LaunchCommand {
    /// Reads a command. `None` if it starts no known server.
    pub fn read(words: &[String]) -> Option<Self> {
        let words = &words[..words.len().min(MOST_WORDS)];
        let command = find(words, &[], MOST_DEPTH)?;
        let engine = command.engine;
        let options = Options { words: &command.words, variables: &command.variables };
        let of = facts(engine).sizes;
        let mut unread = Vec::new();
        let file = options.given(of.file);
        unread.extend(file.map(|file| format!("{} {}: the file", file.option, file.value)));
        let mut reader = OptionReader { options: &options, unread: &mut unread };
        let [tensor, pipeline] = of.ranks;
        let ranks = [tensor, pipeline].map(|names| reader.count(names).map_or(1, |one| one.value));
        let sizes = (reader.count(of.context), reader.count(of.all_tokens));
        Some(Self {
            engine,
            loader: loader(engine, &options),
            model: serving(engine, &command.words).model.map(|model| command.on_host(model)),
            context: sizes.0,
            all_tokens: sizes.1,
            requests: reader.count(of.requests),
            batch: reader.count(of.batch),
            kv_type: options.given(of.kv_type),
            kv_bytes: reader.count(of.kv_bytes),
            share: reader.number(of.share, 1.0),
            ranks: ranks[0].saturating_mul(ranks[1]),
            nodes: reader.count(of.nodes),
            offload_gib: reader.number(of.offload_gib, 1e6),
            bounds_media: options.has(of.media),
            keeps_windows_whole: options.has(of.whole_windows),
            unread,
            options: options.names(),
            variables: command.variables.iter().map(|(name, _)| name.clone()).collect(),
            image: command.image,
        })
    }
}

/// The options of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options<'a> {
    words: &'a [String],
    variables: &'a [(String, String)],
}

impl Options<'_> {
    /// The last value of an option, as `--name value` or `--name=value`. vLLM and SGLang accept
    /// underscores for dashes.
    pub(super) fn value(&self, names: &[&str]) -> Option<&str> {
        self.last(names).and_then(|(_, value)| value)
    }

    /// Whether the option is there.
    pub(super) fn has(&self, names: &[&str]) -> bool {
        self.last(names).is_some()
    }

    /// A variable that the command sets.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.variables.iter().rev().find(|(variable, _)| variable == name);
        found.map(|(_, value)| value.as_str())
    }

    fn names(&self) -> BTreeSet<String> {
        let options = self.words.iter().filter(|word| word.starts_with('-'));
        let name = |word: &String| Some(word.split('=').next()?.replace('_', "-"));
        options.filter_map(name).filter(|name| name.len() <= LONGEST_OPTION).collect()
    }

    fn given(&self, names: &[&str]) -> Option<GivenOption<String>> {
        let (option, value) = self.last(names)?;
        Some(GivenOption { option: option.to_owned(), value: value?.to_owned() })
    }

    fn last(&self, names: &[&str]) -> Option<(&str, Option<&str>)> {
        let is_named = |option: &str| {
            let spelled = option.replace('_', "-");
            option.starts_with('-') && names.iter().any(|name| spelled == *name)
        };
        let with_value = |(at, word): (usize, &'_ String)| {
            if let Some((option, value)) = word.split_once('=')
                && is_named(option)
            {
                return Some((at, Some(option.len()), Some(value.to_owned())));
            }
            is_named(word).then_some((at, None, None))
        };
        let (at, cut, _) = self.words.iter().enumerate().rev().find_map(with_value)?;
        let word = self.words.get(at)?;
        match cut {
            Some(cut) => Some((word.get(..cut)?, word.get(cut + 1..))),
            None => {
                let next = self.words.get(at + 1).map(String::as_str);
                Some((word, next.filter(|next| !next.starts_with("--"))))
            }
        }
    }
}

/// Reads values, and keeps the options whose values it cannot read.
struct OptionReader<'a> {
    options: &'a Options<'a>,
    unread: &'a mut Vec<String>,
}

impl OptionReader<'_> {
    /// A positive number: `131072`, `128k`, `128K`. `auto`, 0 and -1 leave it to the engine.
    fn count(&mut self, names: &[&str]) -> Option<GivenOption<u64>> {
        let GivenOption { option, value } = self.options.given(names)?;
        if matches!(&*value, "auto" | "0" | "-1") {
            return None;
        }
        match count(&value) {
            Some(value) => Some(GivenOption { option, value }),
            None => self.unreadable(&option),
        }
    }

    /// A number above 0, and at most `most`.
    fn number(&mut self, names: &[&str], most: f64) -> Option<GivenOption<f64>> {
        let GivenOption { option, value } = self.options.given(names)?;
        match value.parse() {
            Ok(0.0) => None,
            Ok(value) if value > 0.0 && value <= most => Some(GivenOption { option, value }),
            _ => self.unreadable(&option),
        }
    }

    fn unreadable<T>(&mut self, option: &str) -> Option<T> {
        self.unread.push(format!("{option}: its value"));
        None
    }
}

/// A number with one of vLLM's units: `k`, `m`, `g` in thousands, also with a fraction, and `K`,
/// `M`, `G` in steps of 1024.
pub fn count(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().next_back()? {
        (at, 'k') => (&text[..at], 1000),
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'm') => (&text[..at], 1_000_000),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'g') => (&text[..at], 1_000_000_000),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1_u64),
    };
    if let Ok(number) = digits.parse::<u64>() {
        return number.checked_mul(unit).filter(|number| *number > 0);
    }
    let is_decimal = |byte: u8| byte.is_ascii_digit() || byte == b'.';
    let number: f64 = digits.bytes().all(is_decimal).then(|| digits.parse().ok()).flatten()?;
    let number = (number * unit as f64).round();
    let fits = unit % 1000 == 0 && number >= 1.0 && number < (1_u64 << 53) as f64;
    fits.then_some(number as u64)
}

/// Finds the server that a command starts.
fn find(words: &[String], outer: &[String], depth: usize) -> Option<Command> {
    for start in 0..words.len() {
        let rest = &words[start..];
        if let Some(inner) = shell_text(rest).filter(|_| depth > 0) {
            let before: Vec<String> = outer.iter().chain(&words[..start]).cloned().collect();
            return find(&shell_words(inner), &before, depth - 1);
        }
        if let Some((engine, ProcessRole::Server)) = recognise("", rest, None) {
            return Some(Command::new(engine, rest, outer, &words[..start]));
        }
        if start > 0
            && let Some(found) = of_image(words, start, outer)
        {
            return Some(found);
        }
    }
    None
}

/// The text of `bash -c TEXT`.
fn shell_text(words: &[String]) -> Option<&str> {
    let [shell, option, text, ..] = words else { return None };
    let shell = shell.rsplit('/').next()?;
    let is_shell = matches!(shell, "sh" | "bash" | "dash" | "zsh");
    let is_text = option.starts_with('-') && !option.starts_with("--") && option.ends_with('c');
    (is_shell && is_text).then_some(text)
}

/// A container of an official image whose entry point is the server.
fn of_image(words: &[String], at: usize, outer: &[String]) -> Option<Command> {
    if !words[..at].iter().any(|word| is_runtime(word)) {
        return None;
    }
    let found = ENGINES.iter().find(|facts| is_official(&words[at], facts.images))?;
    let entry = found.entry_point;
    // A command behind the image that is no option may replace the entry point.
    let rest = &words[at + 1..];
    let is_replaced = (0..rest.len()).any(|start| {
        recognise("", &rest[start..], None).is_some() || shell_text(&rest[start..]).is_some()
    });
    if entry.is_empty() || is_replaced {
        return None;
    }
    let line: Vec<String> =
        entry.iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect();
    Some(Command::new(found.kind, &line, outer, &words[..=at]))
}

/// A program that runs containers.
fn is_runtime(word: &str) -> bool {
    matches!(word.rsplit('/').next(), Some("docker" | "podman" | "nerdctl"))
}

/// Whether a word names one of these images, of any registry and with any tag.
pub(super) fn is_official(word: &str, images: &[&str]) -> bool {
    let Some(name) = word.split('@').next() else { return false };
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    let is_its = |image: &&str| {
        name.strip_suffix(*image).is_some_and(|host| host.is_empty() || host.ends_with('/'))
    };
    images.iter().any(is_its)
}
