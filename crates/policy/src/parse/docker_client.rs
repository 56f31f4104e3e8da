//! The command line of Docker's client, and the files that choose its daemon.

use serde_json::Value;

use super::container::is_id;

/// Options of `docker run` without a value.
const FLAGS: [&str; 14] = [
    "disable-content-trust",
    "help",
    "init",
    "interactive",
    "no-healthcheck",
    "oom-kill-disable",
    "privileged",
    "publish-all",
    "quiet",
    "read-only",
    "rm",
    "sig-proxy",
    "tty",
    "use-api-socket",
];

/// The same as letters, and the dash before them.
const LETTERS: &str = "-itPq";

/// How a command names the container that it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachedContainer<'a> {
    /// By its name.
    Name(&'a str),
    /// By the file that the client writes its id to (`--cidfile`).
    IdFile(&'a str),
}

/// The container that this command runs or starts in the foreground, as with `docker run --name
/// NAME …`, `docker run --cidfile FILE …` or `docker start --attach NAME`. `None`: another command,
/// one that does not wait for the container's end, or one with options before `run`, which may
/// choose another daemon.
pub fn attached_container(arguments: &[String]) -> Option<AttachedContainer<'_>> {
    let [program, rest @ ..] = arguments else { return None };
    if program.rsplit('/').next() != Some("docker") {
        return None;
    }
    let rest = match rest {
        [noun, rest @ ..] if noun == "container" => rest,
        _ => rest,
    };
    let [verb, rest @ ..] = rest else { return None };
    match verb.as_str() {
        "run" => run(rest),
        "start" => start(rest).map(AttachedContainer::Name),
        _ => None,
    }
}

fn run(arguments: &[String]) -> Option<AttachedContainer<'_>> {
    let (mut name, mut id_file) = (None, None);
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
        // The image, or what may stand before it. What follows is the command inside.
        if argument == "--" || !argument.starts_with('-') {
            let named = name.map(AttachedContainer::Name);
            let named = named.or_else(|| id_file.map(AttachedContainer::IdFile));
            return named.filter(|named| !named.text().is_empty());
        }
        if let Some(long) = argument.strip_prefix("--") {
            let (option, value) = match long.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                None => (long, None),
            };
            if option == "detach" {
                return None;
            }
            if FLAGS.contains(&option) {
                continue;
            }
            let value = value.or_else(|| rest.next())?;
            let known = match option {
                "name" => &mut name,
                "cidfile" => &mut id_file,
                _ => continue,
            };
            if known.replace(value).is_some() {
                return None;
            }
        } else {
            let valued = argument.trim_start_matches(|letter: char| LETTERS.contains(letter));
            if valued.starts_with('d') {
                return None;
            }
            // The value is the rest of the letters, or the next argument.
            if valued.chars().count() == 1 {
                rest.next()?;
            }
        }
    }
    None
}

impl<'a> AttachedContainer<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Name(text) | Self::IdFile(text) => text,
        }
    }
}

/// The id in a file that Docker's client has written (`--cidfile`).
pub fn container_id(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text).ok().map(str::trim_ascii_end).filter(|id| is_id(id))
}

/// The context that a client's `config.json` chooses, if it chooses one.
pub fn current_context(config: &[u8]) -> Option<String> {
    let config: Value = serde_json::from_slice(config).ok()?;
    config["currentContext"].as_str().filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The address of the daemon in a context's `meta.json`.
pub fn context_host(meta: &[u8]) -> Option<String> {
    let meta: Value = serde_json::from_slice(meta).ok()?;
    meta["Endpoints"]["docker"]["Host"].as_str().map(str::to_owned)
}

fn start(arguments: &[String]) -> Option<&str> {
    let all = arguments.iter().map(String::as_str);
    let (options, names): (Vec<&str>, Vec<&str>) = all.partition(|word| word.starts_with('-'));
    let attaches = |option: &&str| matches!(*option, "-a" | "-ai" | "-ia" | "--attach");
    let is_known = |option: &&str| attaches(option) || matches!(*option, "-i" | "--interactive");
    let is_attached = options.iter().all(is_known) && options.iter().any(attaches);
    match names[..] {
        [name] if is_attached => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_container_in_the_foreground_is_read_before_the_image() {
        for (line, name) in [
            ("docker run --rm --gpus all --name sglang -p 30000:30000 image cmd", Some("sglang")),
            ("/usr/bin/docker run --name=sglang -it --ipc=host image", Some("sglang")),
            ("docker container run -v/a:/b -e A=b -tie C=d --name sglang image", Some("sglang")),
            ("docker run --cidfile /run/c.id --name sglang image", Some("sglang")),
            ("docker run --cidfile /run/c.id image --name x", Some("file /run/c.id")),
            ("docker run --cidfile=c.id --gpus all image", Some("file c.id")),
            ("docker run --cidfile a --cidfile b image", None),
            ("docker run -d --cidfile a image", None),
            ("docker run --cidfile= image", None),
            ("docker run -- image --name inside cmd", None),
            ("docker run --name sglang -- image --name inside", Some("sglang")),
            ("docker run --rm image umawarden launch --name chat -- vllm serve", None),
            ("docker run -d --name sglang image", None),
            ("docker run -itd --name sglang image", None),
            ("docker run --detach=true --name sglang image", None),
            ("docker run --name a --name b image", None),
            ("docker run --name= image", None),
            ("docker run --name sglang", None),
            ("docker run --rm --name", None),
            ("docker run -p", None),
            ("docker -H tcp://other:2375 run --name sglang image", None),
            ("docker --context other run --name sglang image", None),
            ("docker start -a sglang", Some("sglang")),
            ("docker start --attach -i sglang", Some("sglang")),
            ("docker start sglang", None),
            ("docker start -a one two", None),
            ("docker start -a --detach-keys x sglang", None),
            ("docker logs -f sglang", None),
            ("podman run --name sglang image", None),
            ("docker", None),
            ("", None),
        ] {
            let words = words(line);
            let found = attached_container(&words).map(|found| match found {
                AttachedContainer::Name(name) => name.to_owned(),
                AttachedContainer::IdFile(file) => format!("file {file}"),
            });
            assert_eq!(found.as_deref(), name, "{line}");
        }
    }

    #[test]
    fn ids_and_contexts_are_read_as_docker_writes_them() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(container_id(id.as_bytes()), Some(&*id));
        assert_eq!(container_id(format!("{id}\n").as_bytes()), Some(&*id));
        for other in [&id[1..], &id.replace('0', "g"), &format!("{id} x"), ""] {
            assert_eq!(container_id(other.as_bytes()), None, "{other}");
        }
        let config = br#"{"auths": {}, "currentContext": "rootless"}"#;
        assert_eq!(current_context(config).as_deref(), Some("rootless"));
        let meta = br#"{"Name":"rootless","Metadata":{},"Endpoints":{"docker":
            {"Host":"unix:///run/user/1000/docker.sock","SkipTLSVerify":false}}}"#;
        let host = Some("unix:///run/user/1000/docker.sock");
        assert_eq!(context_host(meta).as_deref(), host);
        for other in ["", "[]", "{}", "null", r#"{"currentContext":""}"#, r#"{"Endpoints":7}"#] {
            let other = other.as_bytes();
            assert_eq!((current_context(other), context_host(other)), (None, None));
        }
    }

    proptest! {
        #[test]
        fn a_name_is_a_word_of_the_command(
            line in "docker (run|start)( -{0,2}(cidfile|[a-z=]{0,6})){0,8}",
        ) {
            let words = words(&line);
            if let Some(found) = attached_container(&words) {
                let name = found.text();
                prop_assert!(!name.is_empty() && line.contains(name), "{line}");
            }
        }

        #[test]
        fn arbitrary_files_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = (current_context(&text), context_host(&text), container_id(&text));
        }
    }
}
