//! The arguments of an engine, without the secrets among them.

use crate::parse::container::may_hold_secret;

/// Written in place of what may be a secret.
pub const HIDDEN: &str = "[hidden]";

/// Arguments that are kept, and characters of each.
const MOST: usize = 256;
const LONGEST: usize = 512;

/// Words in the name of an option whose value is a secret. The whole word counts, since
/// `--max-num-batched-tokens`, `--tokenizer` and `--kv-cache-dtype` are worth keeping.
const SECRET_WORDS: [&str; 16] = [
    "key",
    "keys",
    "apikey",
    "token",
    "password",
    "passwd",
    "pass",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "header",
    "cookie",
];

/// How keys of well-known services begin.
const KEY_PREFIXES: [&str; 5] = ["hf_", "sk-", "nvapi-", "ghp_", "eyJ"];
const SHORTEST_KEY: usize = 16;

/// The arguments as they can be stored: what may be a secret is replaced by [`HIDDEN`]. Long lists
/// and long arguments are cut.
pub fn without_secrets(arguments: &[String]) -> Vec<String> {
    let mut is_secret_next = false;
    let mut kept = Vec::new();
    for argument in arguments.iter().take(MOST) {
        let is_secret = std::mem::replace(&mut is_secret_next, false);
        if is_secret {
            kept.push(HIDDEN.to_owned());
            continue;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        let is_option = name.starts_with('-');
        let names_secret = is_name(name) && has_secret_word(name);
        is_secret_next = is_option && names_secret && value.is_none() || name == "-H";
        kept.push(match value {
            Some(value) if is_name(name) && (names_secret || hides(value)) => {
                format!("{name}={HIDDEN}")
            }
            None if is_option && is_name(name) => cut(name),
            _ if hides(argument) => HIDDEN.to_owned(),
            _ => cut(argument),
        });
    }
    kept
}

/// Whether it is like the name of an option or of a variable: what is longer, or has other
/// characters, may itself be a secret.
fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.len() <= 64 && text.bytes().all(is_of_name)
}

fn has_secret_word(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.split(['-', '_', '.']).any(|word| SECRET_WORDS.contains(&word))
}

fn hides(value: &str) -> bool {
    let is_key = |prefix: &&str| value.starts_with(*prefix) && value.len() >= SHORTEST_KEY;
    may_hold_secret(value) || KEY_PREFIXES.iter().any(is_key)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        without_secrets(&words).join(" ")
    }

    #[test]
    fn what_sizes_an_engine_is_kept() {
        for line in [
            "vllm serve /models/m --max-num-batched-tokens 8192 --tokenizer t --port=8000",
            "python -m sglang.launch_server --model-path m --mem-fraction-static 0.8",
            "vllm serve m --kv-cache-dtype fp8 --ssl-keyfile /etc/k.pem --skip-tokenizer-init",
            "llama-server -m m.gguf -c 8192 -ngl 99 --override-kv a=int:3",
        ] {
            assert_eq!(of(line), line);
        }
    }

    #[test]
    fn no_secret_is_kept() {
        for line in [
            "vllm serve --api-key S3CR3T /m",
            "vllm serve --api-key=S3CR3T /m",
            "vllm serve --api-key --S3CR3T /m",
            "sglang --admin-api-key S3CR3T --hf-token S3CR3T",
            "env HF_TOKEN=S3CR3T vllm serve m",
            "x --password=S3CR3T --ssl-keyfile-password S3CR3T",
            "x {\"api_key\":\"S3CR3T\"} m",
            "x --config={\"hf_token\":\"S3CR3T\"}",
            "x --proxy https://u:S3CR3T@host/ --url=https://u:S3CR3T@host/",
            "curl -H X-Any:S3CR3T",
            "x hf_S3CR3TS3CR3TS3CR3T --flag sk-S3CR3TS3CR3TS3CR3T",
            "x --header=Authorization:S3CR3T",
        ] {
            assert!(!of(line).contains("S3CR3T"), "{}", of(line));
        }
        assert_eq!(of("vllm serve --api-key S /m"), "vllm serve --api-key [hidden] /m");
    }

    proptest! {
        #[test]
        fn any_arguments_are_bounded(words in prop::collection::vec(".{0,900}", 0..300)) {
            let kept = without_secrets(&words);
            prop_assert!(kept.len() <= MOST);
            prop_assert!(kept.iter().all(|one| one.chars().count() <= LONGEST + HIDDEN.len() + 1));
        }
    }
}
