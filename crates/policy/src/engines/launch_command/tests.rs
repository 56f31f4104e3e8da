use proptest::prelude::*;

use super::*;

fn words(line: &str) -> Vec<String> {
    shell_words(line)
}

fn read(line: &str) -> LaunchCommand {
    LaunchCommand::read(&words(line)).unwrap_or_else(|| panic!("{line}"))
}

fn value<T: Copy>(given: &Option<GivenOption<T>>) -> Option<T> {
    given.as_ref().map(|given| given.value)
}

#[test]
fn the_options_of_vllm_are_read_in_all_spellings() {
    let command = read(
        "vllm serve /m/glm --max_model_len=128K --max-num-seqs 4 --gpu-memory-utilization 0.9 \
         --max-num-batched-tokens 65.5k --kv-cache-dtype fp8_e4m3 -tp 2 --pipeline-parallel-size \
         3 --nnodes 2 --cpu-offload-gb 10 --gpu_memory_utilization=0.82",
    );
    assert_eq!((command.engine, command.model.as_deref()), (EngineKind::Vllm, Some("/m/glm")));
    assert_eq!((value(&command.context), value(&command.requests)), (Some(131_072), Some(4)));
    assert_eq!((value(&command.batch), value(&command.share)), (Some(65_500), Some(0.82)));
    assert_eq!((command.ranks, value(&command.nodes)), (6, Some(2)));
    assert_eq!(command.kv_type.unwrap().value, "fp8_e4m3");
    assert_eq!(value(&command.offload_gib), Some(10.0));
    assert_eq!(command.share.unwrap().option, "--gpu_memory_utilization");
    assert!(command.unread.is_empty());
}

#[test]
fn other_engines_have_other_options() {
    let sglang = read(
        "python3 -m sglang.launch_server --model-path /m --context-length 65536 --tp 2 \
         --mem-fraction-static 0.8 --chunked-prefill-size -1 --max-total-tokens 200000",
    );
    assert_eq!((sglang.engine, sglang.ranks), (EngineKind::Sglang, 2));
    assert_eq!((value(&sglang.context), value(&sglang.share)), (Some(65_536), Some(0.8)));
    assert_eq!((value(&sglang.batch), value(&sglang.all_tokens)), (None, Some(200_000)));
    let llama = read("/app/llama-server -m /m/x.gguf -c 32768 -np 4 -ctk q8_0");
    assert_eq!(
        (llama.engine, llama.model.as_deref()),
        (EngineKind::LlamaServer, Some("/m/x.gguf"))
    );
    assert_eq!((value(&llama.all_tokens), llama.ranks), (Some(32_768), 1));
    assert_eq!(llama.kv_type.unwrap().value, "q8_0");
}

#[test]
fn names_of_options_and_variables_and_the_image_are_kept() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    for (line, options, variables, image) in [
        (
            "docker run --gpus all -e A=b lmsysorg/sglang:v0.5.6 python3 -m sglang.launch_server \
             --model_path=/m --tp 2",
            &["-m", "--model-path", "--tp"][..],
            &["A"][..],
            Some("lmsysorg/sglang:v0.5.6"),
        ),
        (
            "podman run r.io/vllm/vllm-openai:v0.29.0 /m --api-key S3CR3T",
            &["--api-key"],
            &[],
            Some("r.io/vllm/vllm-openai:v0.29.0"),
        ),
        ("docker run own/image:v1 bash -c 'X=1 vllm serve m'", &[], &["X"], None),
        ("env HF=1 vllm serve vllm/vllm-openai", &[], &["HF"], None),
    ] {
        let read = read(line);
        assert_eq!(read.options, names(options), "{line}");
        assert_eq!(read.variables, names(variables), "{line}");
        assert_eq!(read.image.as_deref(), image, "{line}");
    }
}

#[test]
fn wrappers_are_looked_into() {
    for line in [
        "sudo env HF_HUB_OFFLINE=1 nohup /env/bin/vllm serve /m --max-model-len 8192",
        "bash -lc 'cd /srv && exec vllm serve /m --max-model-len 8192 2>&1 | tee log'",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.29.0 /m --max-model-len 8192",
        "docker run vllm/vllm-openai@sha256:aa --model /m --max-model-len 8192",
        "podman run --rm docker.io/vllm/vllm-openai vllm serve /m --max-model-len 8192",
        "docker run --rm own/image:exl3 bash -c \"vllm serve /m --max-model-len 8192\"",
        "umawarden launch --need 90GiB -- vllm serve /m --max-model-len 8192",
        "python3 -m vllm.entrypoints.openai.api_server --model /m --max-model-len 8192",
    ] {
        let command = read(line);
        assert_eq!(command.engine, EngineKind::Vllm, "{line}");
        assert_eq!(command.model.as_deref(), Some("/m"), "{line}");
        assert_eq!(value(&command.context), Some(8192), "{line}");
    }
    let mounted = read(
        "docker run -v /data:/models:ro --mount type=bind,src=/big,target=/models/big \
         ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/big/x.gguf -c 4096",
    );
    assert_eq!(mounted.model.as_deref(), Some("/big/x.gguf"), "the innermost mount");
    assert_eq!(mounted.engine, EngineKind::LlamaServer);
    for line in [
        "",
        "ls -l",
        "docker run vllm",
        "docker run lmsysorg/sglang:latest",
        "bash -c ''",
        "vllm bench serve",
        "docker ps --filter vllm/vllm-openai-other",
    ] {
        assert!(LaunchCommand::read(&words(line)).is_none(), "{line}");
    }
}

#[test]
fn values_that_cannot_be_read_are_named() {
    let command = read(
        "vllm serve m --max-model-len many --gpu-memory-utilization 90 --max-num-seqs 0 --config \
         /etc/vllm.yaml --cpu-offload-gb 0",
    );
    assert_eq!((command.context, command.share, command.requests), (None, None, None));
    assert_eq!(
        command.unread,
        [
            "--config /etc/vllm.yaml: the file",
            "--max-model-len: its value",
            "--gpu-memory-utilization: its value"
        ]
    );
    let auto = read("vllm serve m --max-model-len auto --max-num-batched-tokens");
    assert!(auto.context.is_none() && auto.batch.is_none() && auto.unread.is_empty());
}

#[test]
fn counts_have_the_units_of_vllm() {
    for (text, expected) in [
        ("131072", Some(131_072)),
        ("128k", Some(128_000)),
        ("25.6k", Some(25_600)),
        ("128K", Some(131_072)),
        ("1M", Some(1 << 20)),
        ("1g", Some(1_000_000_000)),
        ("1.5K", None),
        ("1.5", None),
        ("-5", None),
        ("k", None),
        ("", None),
        ("1e9k", None),
        ("99999999999999999999", None),
        ("99999999999999M", None),
        ("é", None),
    ] {
        assert_eq!(count(text), expected, "{text}");
    }
}

#[test]
fn words_are_divided_as_a_shell_does() {
    for (text, expected) in [
        ("a  b\tc", vec!["a", "b", "c"]),
        ("a 'b c' \"d 'e'\" f\\ g", vec!["a", "b c", "d 'e'", "f g"]),
        ("a '' b", vec!["a", "", "b"]),
        ("a\\\n b", vec!["a", "b"]),
        ("a;b&&c|d", vec!["a", ";", "b", "&&", "c", "|", "d"]),
        ("'open", vec!["open"]),
    ] {
        assert_eq!(shell_words(text), expected, "{text}");
    }
}

proptest! {
    #[test]
    fn arbitrary_commands_are_read_or_not(
        line in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "vllm", "serve", "docker", "run", "bash", "-c", "vllm serve m", "-v", "/a:/b",
                    "vllm/vllm-openai:x", "--", "env", "A=b", "--max-model-len", "--load-format",
                    "llama-server", "-m", "--tp", "-ngl",
                ]).prop_map(str::to_owned),
                ".{0,12}",
            ],
            0..14,
        ),
    ) {
        if let Some(command) = LaunchCommand::read(&line) {
            prop_assert!(command.share.is_none_or(|share| share.value > 0.0 && share.value <= 1.0));
            prop_assert!(command.ranks >= 1);
        }
    }
}
