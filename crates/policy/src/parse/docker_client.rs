//! The command line of Docker's client.

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

/// The same as letters.
const LETTERS: &str = "itPq";

/// The name of the container that this command runs or starts in the foreground, as with
/// `docker run --name NAME …` or `docker start --attach NAME`. `None`: another command, one that
/// does not wait for the container's end, or one with options before `run`, which may choose
/// another daemon.
pub fn attached_container(arguments: &[String]) -> Option<&str> {
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
        "start" => start(rest),
        _ => None,
    }
}

fn run(arguments: &[String]) -> Option<&str> {
    let mut name = None;
    let mut rest = arguments.iter().map(String::as_str);
    while let Some(argument) = rest.next() {
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
            if option == "name" && name.replace(value).is_some() {
                return None;
            }
        } else if let Some(letters) = argument.strip_prefix('-') {
            let valued = letters.trim_start_matches(|letter: char| LETTERS.contains(letter));
            if valued.starts_with('d') {
                return None;
            }
            // The value is the rest of the letters, or the next argument.
            if valued.chars().count() == 1 {
                rest.next()?;
            }
        } else {
            // The image. What follows is the command inside.
            return name.filter(|name| !name.is_empty());
        }
    }
    None
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
            assert_eq!(attached_container(&words(line)), name, "{line}");
        }
    }

    proptest! {
        #[test]
        fn a_name_is_a_word_of_the_command(line in "docker (run|start)( -{0,2}[a-z=]{0,6}){0,8}") {
            let words = words(&line);
            if let Some(name) = attached_container(&words) {
                prop_assert!(!name.is_empty() && line.contains(name), "{line}");
            }
        }
    }
}
