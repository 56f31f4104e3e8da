//! The words of a command around the server: variables, mounts, shells.

use super::super::facts;
use super::{is_official, is_runtime};
use crate::model::EngineKind;

/// A server's command, without its wrappers.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) engine: EngineKind,
    /// The program and its arguments.
    pub(super) words: Vec<String>,
    /// Variables that the wrappers set.
    pub(super) variables: Vec<(String, String)>,
    /// Folders of the host, and where they are in the container.
    mounts: Vec<(String, String)>,
    /// The official image of the engine that it runs in.
    pub(super) image: Option<String>,
}

impl Command {
    /// `outer` and `before` are the words before it. It ends where a shell's next command begins.
    pub(super) fn new(
        engine: EngineKind,
        words: &[String],
        outer: &[String],
        before: &[String],
    ) -> Self {
        let ends = |word: &&String| matches!(&***word, ";" | "&&" | "||" | "|" | "&");
        let end = words.iter().position(|word| ends(&word)).unwrap_or(words.len());
        let images = facts(engine).images;
        let of_container = outer.iter().chain(before).skip_while(|word| !is_runtime(word)).skip(1);
        let image = of_container.filter(|word| is_official(word, images)).last().cloned();
        let before: Vec<&str> = outer.iter().chain(before).map(String::as_str).collect();
        Self {
            engine,
            image,
            words: words[..end].to_vec(),
            variables: before.iter().filter_map(|word| variable(word)).collect(),
            mounts: mounts(&before),
        }
    }

    /// The path on the host of one in the container.
    pub(super) fn on_host(&self, path: String) -> String {
        let inside = self.mounts.iter().filter_map(|(host, inner)| {
            let rest = path.strip_prefix(inner.trim_end_matches('/'))?;
            (rest.is_empty() || rest.starts_with('/'))
                .then(|| (inner.len(), format!("{}{rest}", host.trim_end_matches('/'))))
        });
        inside.max_by_key(|(length, _)| *length).map_or(path, |(_, host)| host)
    }
}

/// `NAME=value`, also as `--env=NAME=value`.
fn variable(word: &str) -> Option<(String, String)> {
    let word = word.strip_prefix("--env=").or_else(|| word.strip_prefix("-e")).unwrap_or(word);
    let (name, value) = word.split_once('=')?;
    let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then(|| (name.to_owned(), value.to_owned()))
}

/// `-v HOST:CONTAINER` and `--mount type=bind,source=HOST,target=CONTAINER`.
fn mounts(words: &[&str]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let next = words.get(at + 1).copied().unwrap_or_default();
        let (option, value) = word.split_once('=').unwrap_or((word, next));
        let mount = match option {
            "-v" | "--volume" => volume(value),
            "--mount" => bind(value),
            _ => None,
        };
        found.extend(mount);
    }
    found
}

fn volume(text: &str) -> Option<(String, String)> {
    let (host, rest) = text.split_once(':')?;
    let inner = rest.split(':').next()?;
    host.starts_with('/').then(|| (host.to_owned(), inner.to_owned()))
}

fn bind(text: &str) -> Option<(String, String)> {
    let field = |names: [&str; 3]| {
        let mut fields = text.split(',').filter_map(|field| field.split_once('='));
        fields.find(|(name, _)| names.contains(name)).map(|(_, value)| value.to_owned())
    };
    Some((field(["source", "src", ""])?, field(["target", "dst", "destination"])?))
}

/// Words as a shell divides them. Variables and substitutions stay as they are.
pub(super) fn shell_words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut quote, mut is_open) = (Vec::new(), String::new(), None, false);
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '"' | '\'') => (quote, is_open) = (Some(character), true),
            (None | Some('"'), '\\') => word.extend(characters.next().filter(|next| *next != '\n')),
            (None, ';' | '&' | '|') => {
                take(&mut words, &mut word, &mut is_open);
                let doubled = characters.next_if_eq(&character);
                words.push(std::iter::once(character).chain(doubled).collect());
            }
            (None, _) if character.is_whitespace() => take(&mut words, &mut word, &mut is_open),
            _ => word.push(character),
        }
    }
    take(&mut words, &mut word, &mut is_open);
    words
}

fn take(words: &mut Vec<String>, word: &mut String, is_open: &mut bool) {
    if !word.is_empty() || *is_open {
        words.push(std::mem::take(word));
    }
    *is_open = false;
}
