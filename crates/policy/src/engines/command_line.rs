//! Recognises the processes of inference engines by name and command line.
//!
//! A title (`VLLM::EngineCore`) replaces the command line of its process. So ports and models are
//! read from the server process, which keeps its command line.

use super::{ENGINES, EngineFacts, Variable, facts, without_secrets};
use crate::model::{EngineKind, EngineRank};

/// The role of a process in its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessRole {
    /// The server, whose arguments have address, port and model.
    Server,
    /// A worker of a server.
    Worker,
}

/// Address, port and model of an engine, from its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServingArguments {
    /// `--host`.
    pub host: Option<String>,
    /// `--port`, else the engine's default.
    pub port: Option<u16>,
    /// Name or path of the model.
    pub model: Option<String>,
    /// All arguments without secrets, one a line; none where they come from the environment.
    pub arguments: Option<String>,
    /// What it is a part of, and what it does.
    pub part: EnginePart,
}

/// What an engine's process does of the engine's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnginePart {
    /// Its rank, where the engine spans several nodes.
    pub rank: Option<EngineRank>,
    /// Whether it serves no HTTP.
    pub is_headless: bool,
    /// Its name, where the kind of engine does not say what it is.
    pub name: Option<&'static str>,
}

impl EnginePart {
    /// All of an engine on one node.
    pub(super) const WHOLE: Self = Self { rank: None, is_headless: false, name: None };
}

impl ServingArguments {
    pub(super) const NONE: Self =
        Self { host: None, port: None, model: None, arguments: None, part: EnginePart::WHOLE };
}

impl ServingArguments {
    /// From environment variables with the names of host, port and model; "" means none.
    pub(super) fn of_environment(
        variable: &Variable<'_>,
        [host, port, model]: [&'static str; 3],
    ) -> Self {
        let value = |name: &str| if name.is_empty() { None } else { variable(name) };
        Self {
            host: value(host),
            port: value(port).and_then(|text| text.parse().ok()),
            model: value(model),
            ..Self::NONE
        }
    }
}

/// What a command line runs.
#[derive(Clone, Copy, Debug)]
pub struct Program<'a> {
    /// A module (`python -m`) or the name of a file.
    pub name: &'a str,
    /// The whole path of the file.
    pub path: &'a str,
    /// The arguments behind it.
    pub rest: &'a [String],
    /// The name of the folder that it works in.
    pub folder: Option<&'a str>,
}

impl Program<'_> {
    /// Whether its first argument is that command.
    pub(super) fn has_command(&self, command: &str) -> bool {
        self.rest.first().is_some_and(|first| first == command)
    }

    /// Whether one of its arguments is one of those words.
    pub(super) fn has_any(&self, words: &[&str]) -> bool {
        self.rest.iter().any(|argument| words.contains(&&**argument))
    }

    /// Whether it only prints its usage or its version.
    fn only_informs(&self) -> bool {
        self.has_any(&["-h", "--help", "-V", "--version"])
            || self.rest.iter().any(|word| word.starts_with("--help="))
    }

    /// Whether its script is in a folder of that name; upper and lower case do not matter.
    pub(super) fn is_in_folder(&self, name: &str) -> bool {
        let is_its = |part: &str| {
            // The folder in an archive of GitHub has the name of a branch, too.
            let part = part.strip_suffix("-master").or(part.strip_suffix("-main")).unwrap_or(part);
            part.eq_ignore_ascii_case(name)
        };
        match self.path.rsplit('/').nth(1) {
            Some(part) if part != "." => is_its(part),
            _ => self.folder.is_some_and(is_its),
        }
    }
}

/// The program that the arguments run. Shells, Python and wrappers of scripts are skipped.
fn program(arguments: &[String]) -> Option<Program<'_>> {
    let first = arguments.first()?;
    let interpreter = base_name(first);
    let is_python = interpreter.starts_with("python") || interpreter.starts_with("pypy");
    if !is_python && !matches!(interpreter, "sh" | "bash" | "dash") {
        return Some(Program {
            name: interpreter,
            path: first,
            rest: &arguments[1..],
            folder: None,
        });
    }
    let mut at = 1;
    loop {
        let argument = arguments.get(at)?;
        let rest = arguments.get(at + 1..)?;
        let Some(letters) = argument.strip_prefix('-') else {
            return Some(Program { name: base_name(argument), path: argument, rest, folder: None });
        };
        // Letters share a dash (`-um MODULE`, `-lc TEXT`), and a value may follow its letter.
        let takes_value: &[char] = if is_python { &['c', 'm', 'X', 'W'] } else { &['c', 'o', 'O'] };
        let place = letters.find(takes_value).filter(|_| !letters.starts_with('-'));
        let option = place.and_then(|place| letters.get(place..)?.split_at_checked(1));
        match option {
            // What follows is a program's text, and no name.
            Some(("c", _)) => return None,
            Some(("m", "")) => {
                let (module, rest) = rest.split_first()?;
                return Some(Program { name: module, path: "", rest, folder: None });
            }
            Some(("m", module)) => {
                return Some(Program { name: module, path: "", rest, folder: None });
            }
            Some((_, "")) => at += 2,
            _ => at += 1,
        }
    }
}

/// The name of a file. Nix puts a script in the place of a program, which it calls `.NAME-wrapped`.
fn base_name(path: &str) -> &str {
    let name = path.rsplit('/').next().unwrap_or(path);
    let wrapped = name.strip_prefix('.').and_then(|name| name.strip_suffix("-wrapped"));
    wrapped.map_or(name, base_name)
}

/// Kind and role of a process, by its name, its arguments, and the name of its working folder.
pub fn recognise(
    comm: &str,
    arguments: &[String],
    folder: Option<&str>,
) -> Option<(EngineKind, ProcessRole)> {
    let title = arguments.first().map_or("", String::as_str);
    let is_worker = |facts: &&&EngineFacts| facts.has_title(comm) || facts.has_title(title);
    if let Some(facts) = ENGINES.iter().find(is_worker) {
        return Some((facts.kind, ProcessRole::Worker));
    }
    let program = Program { folder, ..program(arguments)? };
    if program.only_informs() {
        return None;
    }
    ENGINES.iter().find_map(|facts| Some((facts.kind, (facts.recognise)(&program)?)))
}

/// How a server serves. Of the arguments no secret is kept: keys are among them.
pub fn serving(kind: EngineKind, arguments: &[String]) -> ServingArguments {
    let Some(program) = program(arguments) else { return ServingArguments::default() };
    let rest = program.rest;
    let facts = facts(kind);
    let address = option(rest, facts.address_options).map_or(ServingArguments::NONE, address);
    let port = option(rest, facts.port_options).and_then(|text| text.parse().ok());
    let port = port.or(address.port);
    let host = option(rest, facts.host_options).map(str::to_owned);
    let part = (facts.part)(&program);
    // Behind an option it might be that option's value, which may be a key.
    let commands = [&["serve", "preload", "frontend"][..], &["api_server"]];
    let mut words = rest.iter().zip(commands);
    let index = words.position(|(word, commands)| !commands.contains(&&**word));
    let index = index.unwrap_or(rest.len().min(2));
    let may_be_named = facts.may_name_model_first;
    let named = rest.get(index).filter(|name| may_be_named && !name.starts_with('-'));
    ServingArguments {
        host: host.or(address.host.filter(|host| !host.is_empty())),
        port: port.filter(|port| *port != 0).or(facts.port).filter(|_| !part.is_headless),
        model: option(rest, facts.model_options).map(str::to_owned).or_else(|| named.cloned()),
        arguments: Some(without_secrets(arguments).join("\n")),
        part,
    }
}

/// How a server serves, by its arguments and, where those say nothing, by its environment.
pub fn serving_with(
    kind: EngineKind,
    arguments: &[String],
    variable: impl Fn(&str) -> Option<String>,
) -> ServingArguments {
    let read = serving(kind, arguments);
    let facts = facts(kind);
    let environment = (facts.of_variables)(&variable);
    let has = |program: &Program<'_>, names| option(program.rest, names).is_some();
    let is_given = program(arguments).is_some_and(|program| {
        has(&program, facts.port_options) || has(&program, facts.address_options)
    });
    ServingArguments {
        host: read.host.or(environment.host).filter(|host| !host.is_empty()),
        port: if is_given || read.part.is_headless {
            read.port
        } else {
            environment.port.filter(|port| *port != 0).or(read.port)
        },
        model: read.model.or(environment.model),
        arguments: read.arguments,
        part: read.part,
    }
}

/// `http://host:port/path`, of which any part may be missing.
pub(super) fn address(text: &str) -> ServingArguments {
    let text = text.trim().trim_matches(['"', '\'']);
    let (usual, rest) = match text.split_once("://") {
        Some(("http", rest)) => (Some(80), rest),
        Some(("https", rest)) => (Some(443), rest),
        Some((_, rest)) => (None, rest),
        None => (None, text),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port))
            if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) =>
        {
            (host, port.parse().ok())
        }
        _ => (authority, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServingArguments { host: Some(host.to_owned()), port: port.or(usual), ..ServingArguments::NONE }
}

/// The last value of an option, as `--name value` or `--name=value`.
pub(super) fn option<'a>(arguments: &'a [String], names: &[&str]) -> Option<&'a str> {
    let mut found = None;
    for (at, argument) in arguments.iter().enumerate() {
        for name in names {
            let after = argument.strip_prefix(name);
            if let Some(value) = after.and_then(|after| after.strip_prefix('=')) {
                found = Some(value);
            } else if after == Some("") {
                let next = arguments.get(at + 1).map(String::as_str);
                found = next.filter(|next| !next.starts_with("--")).or(found);
            }
        }
    }
    found.filter(|value| !value.is_empty())
}
