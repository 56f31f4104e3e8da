//! Which processes are inference engines, told by what they are called and how they were started.
//!
//! A title (`VLLM::EngineCore`) replaces the command line of the process that takes it, so that
//! ports and models are read from the one that was started: the server.

mod last_words;
mod load;
#[cfg(test)]
mod tests;

pub use last_words::{LastWords, last_words};
pub use load::{comfy_queue, load_in_metrics, metric_sum, sglang_loads, sglang_version};

use crate::model::EngineKind;

/// What a process is to its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It was started to serve; its arguments tell how.
    Server,
    /// It works for one.
    Worker,
}

/// How an engine serves, as far as its arguments tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// `--host`.
    pub host: Option<String>,
    /// `--port`, else what is usual.
    pub port: Option<u16>,
    /// The model.
    pub model: Option<String>,
}

/// What a command line runs.
struct Program<'a> {
    /// A module (`python -m`) or the name of a file.
    name: &'a str,
    /// The whole path of the file.
    path: &'a str,
    rest: &'a [String],
}

/// What those arguments run: a shell or Python, and what wraps a script, is looked through.
fn program(arguments: &[String]) -> Option<Program<'_>> {
    let first = arguments.first()?;
    let interpreter = base_name(first);
    let is_python = interpreter.starts_with("python") || interpreter.starts_with("pypy");
    if !is_python && !matches!(interpreter, "sh" | "bash" | "dash") {
        return Some(Program { name: interpreter, path: first, rest: &arguments[1..] });
    }
    let mut at = 1;
    loop {
        let argument = arguments.get(at)?;
        let rest = arguments.get(at + 1..)?;
        match argument.as_str() {
            "-m" if is_python => {
                let module = rest.first()?;
                return Some(Program { name: module, path: "", rest: &rest[1..] });
            }
            // What follows is a program's text, and no name.
            "-c" => return None,
            "-X" | "-W" => at += 2,
            option if option.starts_with('-') => at += 1,
            script => return Some(Program { name: base_name(script), path: script, rest }),
        }
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// What a process is, told by its name, its arguments, and the name of the folder that it works in.
pub fn recognise(
    comm: &str,
    arguments: &[String],
    folder: Option<&str>,
) -> Option<(EngineKind, Role)> {
    let title = arguments.first().map_or("", String::as_str);
    for (prefix, kind) in [("VLLM::", EngineKind::Vllm), ("sglang::", EngineKind::Sglang)] {
        if comm.starts_with(prefix) || title.starts_with(prefix) {
            return Some((kind, Role::Worker));
        }
    }
    let program = program(arguments)?;
    let serves = || program.rest.first().is_some_and(|first| first == "serve");
    match program.name {
        "vllm" | "vllm.entrypoints.cli.main" if serves() => Some(EngineKind::Vllm),
        "vllm.entrypoints.openai.api_server" | "vllm.entrypoints.api_server" => {
            Some(EngineKind::Vllm)
        }
        "sglang" | "sglang.cli.main" if serves() => Some(EngineKind::Sglang),
        "sglang.launch_server" => Some(EngineKind::Sglang),
        "launch_server.py" if program.path.contains("sglang/") => Some(EngineKind::Sglang),
        "ollama" => return ollama(program.rest),
        "llama-server" => Some(EngineKind::LlamaServer),
        "comfyui" => Some(EngineKind::ComfyUi),
        "main.py" if is_comfy(program.path, folder) => Some(EngineKind::ComfyUi),
        "trtllm-serve" | "tensorrt_llm.commands.serve" => Some(EngineKind::TensorRtLlm),
        "tritonserver" => Some(EngineKind::Triton),
        "lmdeploy" if serves() && program.rest.get(1).is_some_and(|what| what == "api_server") => {
            Some(EngineKind::Lmdeploy)
        }
        "lmdeploy.serve.openai.api_server" => Some(EngineKind::Lmdeploy),
        "text-generation-launcher" => Some(EngineKind::Tgi),
        // The launcher starts both, and tells them how.
        "text-generation-router" | "text-generation-server" => {
            return Some((EngineKind::Tgi, Role::Worker));
        }
        _ => None,
    }
    .map(|kind| (kind, Role::Server))
}

fn ollama(rest: &[String]) -> Option<(EngineKind, Role)> {
    match rest.first()?.as_str() {
        "serve" | "start" => Some((EngineKind::Ollama, Role::Server)),
        "runner" => Some((EngineKind::Ollama, Role::Worker)),
        _ => None,
    }
}

fn is_comfy(path: &str, folder: Option<&str>) -> bool {
    let is_its = |part: &str| part.eq_ignore_ascii_case("comfyui");
    match path.rsplit('/').nth(1) {
        Some(part) if part != "." => is_its(part),
        _ => folder.is_some_and(is_its),
    }
}

/// The port that an engine serves on unless told otherwise.
pub fn usual_port(kind: EngineKind) -> Option<u16> {
    match kind {
        EngineKind::Sglang => Some(30000),
        EngineKind::Vllm | EngineKind::TensorRtLlm | EngineKind::Triton => Some(8000),
        EngineKind::Ollama => Some(11434),
        EngineKind::LlamaServer => Some(8080),
        EngineKind::ComfyUi => Some(8188),
        EngineKind::Lmdeploy => Some(23333),
        EngineKind::Tgi => Some(3000),
        EngineKind::Declared => None,
    }
}

/// The options of a kind of server that name its port, its address and its model.
struct Options {
    ports: &'static [&'static str],
    hosts: &'static [&'static str],
    models: &'static [&'static str],
}

fn options(kind: EngineKind) -> Options {
    let (ports, hosts, models): (&[&str], &[&str], &[&str]) = match kind {
        EngineKind::Sglang => (&["--port"], &["--host"], &["--model-path", "--model"]),
        EngineKind::Vllm | EngineKind::TensorRtLlm => (&["--port"], &["--host"], &["--model"]),
        EngineKind::LlamaServer => {
            (&["--port"], &["--host"], &["--model", "-m", "--hf-repo", "-hf", "-hfr"])
        }
        EngineKind::ComfyUi => (&["--port"], &["--listen"], &[]),
        EngineKind::Triton => (&["--http-port"], &["--http-address"], &["--model-repository"]),
        EngineKind::Ollama => (&[], &[], &[]),
        EngineKind::Lmdeploy => (&["--server-port"], &["--server-name"], &[]),
        EngineKind::Tgi => (&["--port", "-p"], &["--hostname"], &["--model-id"]),
        EngineKind::Declared => (&["--port"], &["--host"], &["--model", "--model-path"]),
    };
    Options { ports, hosts, models }
}

/// How a server serves. Of the arguments nothing else is kept: keys are among them.
pub fn serving(kind: EngineKind, arguments: &[String]) -> Serving {
    let Some(program) = program(arguments) else { return Serving::default() };
    let rest = program.rest;
    let Options { ports, hosts, models } = options(kind);
    let port = option(rest, ports).and_then(|text| text.parse().ok()).filter(|port| *port != 0);
    // Behind an option it might be that option's value, which may be a key.
    let commands = ["serve", "api_server"];
    let mut words = rest.iter().zip(commands);
    let place = words.position(|(word, command)| word != command).unwrap_or(rest.len().min(2));
    let takes_name =
        matches!(kind, EngineKind::Vllm | EngineKind::TensorRtLlm | EngineKind::Lmdeploy);
    let named = rest.get(place).filter(|name| takes_name && !name.starts_with('-'));
    Serving {
        host: option(rest, hosts).map(str::to_owned),
        port: port.or(usual_port(kind)),
        model: option(rest, models).map(str::to_owned).or_else(|| named.cloned()),
    }
}

/// Variables that say how a kind of engine serves, where its arguments do not.
pub fn variables(kind: EngineKind) -> &'static [&'static str] {
    match kind {
        EngineKind::Ollama => &["OLLAMA_HOST"],
        EngineKind::LlamaServer => &["LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_MODEL"],
        // HOSTNAME is the container's own name, and no address that it listens at.
        EngineKind::Tgi => &["PORT", "MODEL_ID"],
        _ => &[],
    }
}

/// How a server serves, by its arguments and, where those say nothing, by its environment.
pub fn serving_with(
    kind: EngineKind,
    arguments: &[String],
    variable: impl Fn(&str) -> Option<String>,
) -> Serving {
    let told = serving(kind, arguments);
    let of_environment = match kind {
        EngineKind::Ollama => variable("OLLAMA_HOST").map(|text| ollama_host(&text)),
        EngineKind::LlamaServer => Some(Serving {
            host: variable("LLAMA_ARG_HOST"),
            port: variable("LLAMA_ARG_PORT").and_then(|text| text.parse().ok()),
            model: variable("LLAMA_ARG_MODEL"),
        }),
        EngineKind::Tgi => Some(Serving {
            host: None,
            port: variable("PORT").and_then(|text| text.parse().ok()),
            model: variable("MODEL_ID"),
        }),
        _ => None,
    };
    let Some(environment) = of_environment else { return told };
    let ports = options(kind).ports;
    let is_told = program(arguments).is_some_and(|program| option(program.rest, ports).is_some());
    Serving {
        host: told.host.or(environment.host).filter(|host| !host.is_empty()),
        port: if is_told {
            told.port
        } else {
            environment.port.filter(|port| *port != 0).or(told.port)
        },
        model: told.model.or(environment.model),
    }
}

/// `http://host:port/path`, of which any part may be missing.
fn ollama_host(text: &str) -> Serving {
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
    Serving { host: Some(host.to_owned()), port: port.or(usual), model: None }
}

/// The last value of an option, as `--name value` or `--name=value`.
fn option<'a>(arguments: &'a [String], names: &[&str]) -> Option<&'a str> {
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
