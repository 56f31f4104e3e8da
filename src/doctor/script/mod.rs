//! Reads what the scripts of a unit start: engines, containers, further scripts. Nothing is run;
//! what is not evaluated is named.

mod compose;
mod expand;
mod lexer;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use crate::engines::LaunchCommand;
use crate::parse::process::printable;
use expand::{Context, Value};
use lexer::{Item, ScriptLine, Segment};

/// Reads a file for the reader: its first [`MOST_SCRIPT_BYTES`], and one more if it has more.
pub type OpenScript<'o> = dyn FnMut(&Path) -> io::Result<Vec<u8>> + 'o;

/// Larger scripts are not read.
pub const MOST_SCRIPT_BYTES: usize = 256 << 10;

/// Scripts that start scripts.
const MOST_DEPTH: usize = 4;

/// Limits of one unit: files, commands, and bytes of all commands.
const MOST_FILES: usize = 16;
const MOST_COMMANDS: usize = lexer::MOST_LINES;
const MOST_BYTES: usize = 4 << 20;

/// Limits of what is named for people.
const MOST_NAMED: usize = 8;
const LONGEST_NAMED: usize = 160;

/// Programs that only mention what their arguments name.
const MENTIONS: [&str; 26] = [
    "echo", "printf", "grep", "egrep", "pgrep", "pkill", "killall", "ps", "cat", "tee", "test",
    "[", "[[", "read", "trap", "alias", "logger", "mkdir", "rm", "cp", "mv", "ln", "chmod",
    "chown", "which", "type",
];

/// Programs that run a command, which follows them and their options.
const WRAPPERS: [&str; 18] = [
    "exec",
    "command",
    "builtin",
    "env",
    "nohup",
    "setsid",
    "sudo",
    "nice",
    "ionice",
    "chrt",
    "time",
    "taskset",
    "numactl",
    "timeout",
    "stdbuf",
    "systemd-cat",
    "systemd-inhibit",
    "unbuffer",
];

/// Programs that run a command behind `run`.
const RUNNERS: [&str; 8] = ["uv", "conda", "mamba", "micromamba", "poetry", "pixi", "pdm", "hatch"];

/// Words before a command that the shell reads itself.
const KEYWORDS: [&str; 12] =
    ["if", "then", "elif", "else", "while", "until", "do", "!", "{", "}", "coproc", "done"];

/// A command of a script, as far as its words are known.
#[derive(Clone, Debug)]
pub(super) struct ScriptCommand {
    /// Exported variables as `NAME=value`, and the words.
    pub(super) words: Vec<String>,
    /// What of its words is not evaluated, with its place.
    pub(super) unseen: Vec<String>,
    /// Whether it runs a container.
    pub(super) is_container: bool,
}

/// What scripts run.
#[derive(Clone, Debug, Default)]
pub struct Scripts {
    /// Commands that may start an engine, or umawarden, in their order.
    pub(super) commands: Vec<ScriptCommand>,
    /// Files that could not be read, and why.
    pub(super) unread: Vec<String>,
}

/// A reader of one unit's scripts.
pub(super) struct ScriptReader<'r, 'o> {
    open: &'r mut OpenScript<'o>,
    found: Scripts,
    read: BTreeSet<PathBuf>,
    bytes: usize,
}

impl<'r, 'o> ScriptReader<'r, 'o> {
    pub(super) fn new(open: &'r mut OpenScript<'o>) -> Self {
        let (found, read) = (Scripts::default(), BTreeSet::new());
        Self { open, found, read, bytes: 0 }
    }

    /// What the command of a unit runs. `variables` are those of its `Environment=`.
    pub(super) fn unit_command(
        mut self,
        words: &[String],
        variables: &[(String, String)],
        folder: Option<&str>,
    ) -> Scripts {
        let mut context = Context {
            exports_all: true,
            folder: folder.filter(|folder| folder.starts_with('/')).map(PathBuf::from),
            ..Context::default()
        };
        for (name, value) in variables {
            context.set(name, Value::Text(value.clone()));
        }
        let mut unseen = Vec::new();
        let mut all = Vec::new();
        for word in words {
            // systemd takes a variable as one word, unless it is a word of its own.
            let name = word.strip_prefix('$').filter(|name| lexer::is_name(name));
            let mut parts = lexer::quoted(&word.replace('`', "'").replace("$(", "("));
            if let (Some(_), [_, Segment::Variable { is_quoted, .. }]) =
                (name, parts.as_mut_slice())
            {
                *is_quoted = false;
                parts.remove(0);
            }
            all.extend(context.expand(&parts, &mut unseen));
        }
        context.exports_all = false;
        let unseen = placed(&unseen, "its command");
        self.perform(all, unseen, &context, 0);
        self.found
    }

    /// Takes one command, and reads what it runs.
    fn perform(
        &mut self,
        words: Vec<String>,
        unseen: Vec<String>,
        context: &Context,
        depth: usize,
    ) {
        if self.is_full() {
            return;
        }
        let bare = stripped(&words);
        let Some(program) = bare.first().map(|word| base_name(word)) else { return };
        if MENTIONS.contains(&program) {
            return;
        }
        let is_shell = matches!(program, "sh" | "bash" | "dash" | "zsh");
        let is_text = |word: &&String| word.starts_with('-') && word.ends_with('c');
        if is_shell && let Some(at) = bare.iter().take(4).position(|word| is_text(&word)) {
            if let Some(text) = bare.get(at + 1).filter(|_| depth < MOST_DEPTH) {
                let arguments = bare.get(at + 3..).unwrap_or_default().to_vec();
                let mut inner = context.child(context.file.clone(), arguments);
                self.text(text, &mut inner, depth + 1);
            }
            return;
        }
        let is_container = matches!(program, "docker" | "podman" | "nerdctl");
        if let Some(file) = compose::file(bare) {
            return self.compose(file, unseen, context);
        }
        let starts = |word: &String| matches!(&**word, "run" | "create" | "exec");
        if is_container && !bare.iter().skip(1).take(6).any(starts) {
            return;
        }
        let environment = context.environment();
        self.bytes += environment.iter().map(String::len).sum::<usize>();
        let words: Vec<String> = environment.into_iter().chain(words.iter().cloned()).collect();
        if LaunchCommand::read(&words).is_none()
            && let Some((file, arguments)) = script(bare, is_shell)
        {
            return self.file(Path::new(file), arguments, is_shell, context, depth);
        }
        self.found.commands.push(ScriptCommand { words, unseen, is_container });
    }

    /// Reads a script that a command runs.
    fn file(
        &mut self,
        file: &Path,
        arguments: &[String],
        is_given_to_shell: bool,
        context: &Context,
        depth: usize,
    ) {
        let Some((path, text)) = self.opened(file, context, depth) else { return };
        if is_given_to_shell || is_shell_script(&text) {
            let mut inner = context.child(path, arguments.to_vec());
            self.text(&text, &mut inner, depth + 1);
        }
    }

    /// The text of a file that was not read before; `None` for a binary.
    fn opened(
        &mut self,
        file: &Path,
        context: &Context,
        depth: usize,
    ) -> Option<(PathBuf, String)> {
        let path = match (&context.folder, file.is_absolute()) {
            (_, true) => file.to_owned(),
            (Some(folder), false) => folder.join(file),
            (None, false) => return None,
        };
        if self.read.contains(&path) {
            return None;
        }
        let shown = shown(&path);
        if depth >= MOST_DEPTH || self.read.len() >= MOST_FILES {
            self.unread(format!("{shown} is not read: too many scripts start each other"));
            return None;
        }
        self.read.insert(path.clone());
        match (self.open)(&path) {
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.unread(format!("cannot read {shown}: {error}"));
                }
                None
            }
            // A program.
            Ok(bytes) if bytes.contains(&0) || !is_text_file(&bytes) => None,
            Ok(bytes) if bytes.len() > MOST_SCRIPT_BYTES => {
                let most = MOST_SCRIPT_BYTES >> 10;
                self.unread(format!("{shown} is not read: it is larger than {most} KiB"));
                None
            }
            Ok(bytes) => Some((path, String::from_utf8_lossy(&bytes).into_owned())),
        }
    }

    fn unread(&mut self, text: String) {
        if self.found.unread.len() < MOST_NAMED && !self.found.unread.contains(&text) {
            self.found.unread.push(text);
        }
    }

    fn text(&mut self, text: &str, context: &mut Context, depth: usize) {
        let lines = lexer::lines(text);
        let is_cut = lines.len() >= MOST_COMMANDS;
        for line in lines {
            if self.is_full() {
                break;
            }
            self.line(&line, context, depth);
        }
        if is_cut || self.is_full() {
            let shown = shown(&context.file);
            self.unread(format!("{shown} is not read to its end: it is too large"));
        }
    }

    fn is_full(&self) -> bool {
        self.found.commands.len() >= MOST_COMMANDS || self.bytes > MOST_BYTES
    }

    fn line(&mut self, line: &ScriptLine, context: &mut Context, depth: usize) {
        let mut items = line.items.as_slice();
        while let [Item::Word(word), rest @ ..] = items
            && matches!(word.as_slice(), [Segment::Text(text)] if KEYWORDS.contains(&text.as_str()))
        {
            items = rest;
        }
        let word = |item: Option<&Item>| match item {
            Some(Item::Word(word)) => match word.as_slice() {
                [Segment::Text(text)] => Some(text.clone()),
                _ => None,
            },
            _ => None,
        };
        let first = word(items.first());
        match (first.as_deref(), word(items.get(1))) {
            (Some("for" | "select"), name) => {
                let what = format!("it is of a loop in line {}", line.number);
                name.into_iter().for_each(|name| context.set(&name, Value::Unseen(what.clone())));
                return;
            }
            (Some("case" | "function" | "unset" | "fi" | "esac"), _) => return,
            (Some("export" | "declare" | "typeset" | "local" | "readonly"), _) => {
                let is_export = first.as_deref() == Some("export");
                return self.declare(is_export, &items[1..], context, line.number);
            }
            (Some("set"), Some(option)) if option == "-a" || option == "-o" => {
                context.exports_all = true;
                return;
            }
            (Some("shift"), _) => {
                context.arguments.drain(..context.arguments.len().min(1));
                return;
            }
            _ => {}
        }
        self.command(line, items, context, depth);
    }

    /// `export NAME=value OTHER`.
    fn declare(&mut self, is_export: bool, items: &[Item], context: &mut Context, line: u32) {
        for item in items {
            let plain = match item {
                Item::Word(word) => match word.as_slice() {
                    [Segment::Text(text)] if lexer::is_name(text) => Some(text.clone()),
                    _ => None,
                },
                Item::List { .. } => None,
            };
            let name = plain.or_else(|| {
                let (name, bytes) = context.assign(item, line)?;
                self.bytes += bytes;
                Some(name)
            });
            context.exported.extend(name.filter(|_| is_export));
        }
    }

    /// A command behind keywords: assignments, and words.
    fn command(&mut self, line: &ScriptLine, items: &[Item], context: &mut Context, depth: usize) {
        let mut of_command = None;
        let mut rest = items;
        while let [item, behind @ ..] = rest
            && Context::is_assignment(item)
        {
            // What precedes a command is of that command alone.
            let is_alone = items.iter().all(Context::is_assignment);
            let target = if is_alone {
                &mut *context
            } else {
                of_command.get_or_insert_with(|| context.clone())
            };
            if let Some((name, bytes)) = target.assign(item, line.number) {
                self.bytes += bytes;
                target.exported.extend((!is_alone).then_some(name));
            }
            rest = behind;
        }
        if rest.is_empty() {
            return;
        }
        // The shell expands the words before it assigns what precedes them.
        let (mut words, mut unseen) = (Vec::new(), Vec::new());
        for item in rest {
            if let Item::Word(word) = item {
                let more = context.expand(word, &mut unseen);
                self.bytes += more.iter().map(|word| word.len() + 1).sum::<usize>();
                words.extend(more);
            }
            if self.is_full() {
                return;
            }
        }
        let place = format!("{}: line {}", shown(&context.file), line.number);
        let unseen = placed(&unseen, &place);
        match (words.first().map(String::as_str), words.get(1)) {
            (Some("cd"), Some(folder)) => {
                let folder = Path::new(folder);
                let base = context.folder.clone().unwrap_or_default();
                let joined = base.join(folder);
                context.folder = (joined.is_absolute() && unseen.is_empty()).then_some(joined);
            }
            (Some("." | "source"), Some(file)) => {
                let found = self.opened(Path::new(file), context, depth);
                if let Some((path, text)) = found {
                    let own = std::mem::replace(&mut context.file, path);
                    self.text(&text, context, depth + 1);
                    context.file = own;
                }
            }
            (Some("eval"), _) if depth < MOST_DEPTH => {
                self.text(&words[1..].join(" "), context, depth + 1);
            }
            _ => {
                let context = of_command.as_ref().unwrap_or(context);
                self.perform(words, unseen, context, depth);
            }
        }
    }

    /// The services of a Compose file, as commands.
    fn compose(&mut self, given: Option<&str>, unseen: Vec<String>, context: &Context) {
        let names = match given {
            Some(file) => vec![file],
            None if context.folder.is_some() => compose::USUAL.to_vec(),
            None => {
                return self
                    .unread("its Compose file is not read: its folder is unknown".to_owned());
            }
        };
        let failed = self.found.unread.len();
        for name in names {
            let Some((path, text)) = self.opened(Path::new(name), context, 0) else { continue };
            self.found.unread.truncate(failed);
            match compose::commands(&shown(&path), &text, context) {
                Err(why) => self.unread(why),
                Ok(commands) => {
                    let environment = context.environment();
                    self.found.commands.extend(commands.into_iter().map(|mut command| {
                        command.words.splice(0..0, environment.iter().cloned());
                        command.unseen.extend(unseen.iter().cloned());
                        command
                    }));
                }
            }
            return;
        }
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A path for people.
fn shown(path: &Path) -> String {
    let text = printable(path.as_os_str().as_encoded_bytes());
    if text.is_empty() {
        "its command".to_owned()
    } else {
        text.chars().take(LONGEST_NAMED).collect()
    }
}

fn placed(unseen: &[String], place: &str) -> Vec<String> {
    let text = |what: &String| {
        let what: String = what.chars().take(LONGEST_NAMED).collect();
        format!("{place}: {}", printable(what.as_bytes()))
    };
    let mut all: Vec<String> = unseen.iter().map(text).collect();
    all.dedup();
    all.truncate(MOST_NAMED);
    all
}

/// The words without the wrappers in front of them.
fn stripped(words: &[String]) -> &[String] {
    let mut rest = words;
    loop {
        while rest.first().is_some_and(|word| is_assignment(word)) {
            rest = &rest[1..];
        }
        let Some(first) = rest.first() else { return rest };
        let first = base_name(first);
        let is_runner = RUNNERS.contains(&first) && rest.get(1).is_some_and(|word| word == "run");
        if !is_runner && !WRAPPERS.contains(&first) {
            return rest;
        }
        rest = &rest[if is_runner { 2 } else { 1 }..];
        while let Some(word) = rest.first() {
            let is_option = word.starts_with('-') && word.len() > 1;
            let is_number = word.starts_with(|next: char| next.is_ascii_digit());
            if !is_option && !is_number {
                break;
            }
            // `-u USER`: a short option may have a value, which is no path.
            let is_short = is_option && word.len() == 2 && word != "--";
            let value = rest.get(1).filter(|_| is_short);
            let has_value = value.is_some_and(|value| {
                !value.starts_with('-') && !value.contains('/') && rest.len() > 2
            });
            rest = &rest[if has_value { 2 } else { 1 }..];
        }
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| lexer::is_name(name))
}

/// The script that a command runs, and its arguments.
fn script(bare: &[String], is_shell: bool) -> Option<(&str, &[String])> {
    let at = if is_shell {
        1 + bare.iter().skip(1).position(|word| !word.starts_with('-'))?
    } else {
        0
    };
    let file = bare.get(at)?;
    (is_shell || file.contains('/')).then(|| (file.as_str(), &bare[at + 1..]))
}

/// A program of another kind of machine may have no byte 0 in its first part.
fn is_text_file(bytes: &[u8]) -> bool {
    bytes.iter().take(512).all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

/// Whether its first line names a shell.
fn is_shell_script(text: &str) -> bool {
    let Some(line) = text.strip_prefix("#!") else { return false };
    let line = line.lines().next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace().map(base_name);
    let is_shell = |name: &str| matches!(name, "sh" | "bash" | "dash" | "zsh" | "ksh");
    words.find(|word| !word.starts_with('-') && *word != "env").is_some_and(is_shell)
}
