//! What an engine serves and which version it is, from its arguments and its image.

use super::command_line::option;
use super::{facts, without_secrets};
use crate::model::EngineKind;

/// The name under which an engine serves its model, as clients use it, else the model as its
/// command names it. `arguments` are one a line, without secrets.
pub fn served_model(
    kind: EngineKind,
    arguments: Option<&str>,
    model: Option<&str>,
) -> Option<String> {
    let arguments: Vec<String> = arguments.unwrap_or_default().lines().map(str::to_owned).collect();
    let served = option(&arguments, facts(kind).served_name_options).map(str::to_owned);
    // The path of a model may hold a user name and a password.
    let model = || without_secrets(&[model?.to_owned()]).pop();
    served.or_else(model)
}

/// The version that the tag of an official image names: `vllm/vllm-openai:v0.29.0@1f2e…` is 0.29.0.
/// Tags of NVIDIA's registry are the versions of its containers.
pub fn version_of_image(kind: EngineKind, image: &str) -> Option<&str> {
    let name = image.split('@').next()?;
    let (repository, tag) = name.rsplit_once(':')?;
    let is_of_nvidia = repository.starts_with("nvcr.io/");
    if is_of_nvidia || !super::launch_command::is_official(repository, facts(kind).images) {
        return None;
    }
    let version = tag.strip_prefix('v').unwrap_or(tag).split('-').next()?;
    let is_of_version = |byte: u8| byte.is_ascii_alphanumeric() || b".+".contains(&byte);
    let is_version = version.len() <= 32
        && version.contains('.')
        && version.starts_with(|first: char| first.is_ascii_digit())
        && version.bytes().all(is_of_version);
    is_version.then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::serving;

    #[test]
    fn a_model_has_the_name_that_clients_use() {
        let of = |kind, line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let serving = serving(kind, &words);
            served_model(kind, serving.arguments.as_deref(), serving.model.as_deref())
        };
        for (kind, line, model) in [
            (EngineKind::Vllm, "vllm serve Qwen/Qwen3-8B --port 8000", "Qwen/Qwen3-8B"),
            (EngineKind::Vllm, "vllm serve /m/q --served-model-name qwen other", "qwen"),
            (EngineKind::Vllm, "vllm serve /m/q --served-model-name=qwen", "qwen"),
            (
                EngineKind::Sglang,
                "python -m sglang.launch_server --model-path m --served-model-name s",
                "s",
            ),
            (EngineKind::LlamaServer, "llama-server -m /m/q.gguf -a qwen", "qwen"),
            (EngineKind::LlamaServer, "llama-server -m /m/q.gguf", "/m/q.gguf"),
            (EngineKind::Vllm, "vllm serve https://u:S3CR3T@host/m", "[hidden]"),
            (EngineKind::Vllm, "vllm serve hf_S3CR3TS3CR3TS3CR3T", "[hidden]"),
            (EngineKind::Vllm, "vllm serve m --served-model-name sk-S3CR3TS3CR3TS3", "[hidden]"),
        ] {
            assert_eq!(of(kind, line).as_deref(), Some(model), "{line}");
        }
        assert_eq!(of(EngineKind::Ollama, "ollama serve"), None);
    }

    #[test]
    fn the_tag_of_an_official_image_is_a_version() {
        for (kind, image, version) in [
            (EngineKind::Vllm, "vllm/vllm-openai:v0.29.0@1f2e3d4c5b6a", Some("0.29.0")),
            (EngineKind::Vllm, "registry:5000/vllm/vllm-openai:v0.29.0-cu129", Some("0.29.0")),
            (EngineKind::Sglang, "lmsysorg/sglang:v0.5.3rc0", Some("0.5.3rc0")),
            (EngineKind::Vllm, "vllm/vllm-openai:latest", None),
            (EngineKind::Vllm, "vllm/vllm-openai", None),
            (EngineKind::Vllm, "registry:5000/vllm/vllm-openai", None),
            (EngineKind::Vllm, "somebody/vllm:v0.29.0", None),
            (EngineKind::Vllm, "nvcr.io/nvidia/vllm:25.10-py3", None),
            (EngineKind::Vllm, "vllm/vllm-openai:v0.29.0\"x", None),
            (EngineKind::Vllm, "sha256:1f2e3d4c5b6a", None),
        ] {
            assert_eq!(version_of_image(kind, image), version, "{image}");
        }
    }
}
