use super::*;
use crate::engines::LaunchCommand;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn of(line: &str) -> &'static Loader {
    LaunchCommand::read(&words(line)).unwrap_or_else(|| panic!("{line}")).loader
}

#[test]
fn loaders_are_recognised_by_the_options_of_each_engine() {
    use PageCacheUse::{Fills, Spares, Unknown};
    for (line, name, page_cache) in [
        ("vllm serve m", "mmap", Fills),
        ("vllm serve m --load-format safetensors", "mmap", Fills),
        ("vllm serve m --safetensors-load-strategy eager", "eager", Fills),
        ("vllm serve m --safetensors_load_strategy=prefetch", "prefetch", Fills),
        ("vllm serve m --load-format InstantTensor", "instanttensor", Spares),
        ("vllm serve m --load_format=fastsafetensors", "fastsafetensors", Fills),
        ("vllm serve m --load-format runai_streamer", "runai_streamer", Unknown),
        ("vllm serve m --load-format mistral", "mistral", Fills),
        ("vllm serve m --load-format ipc_cache", "ipc_cache", Fills),
        ("vllm serve m --load-format tensorizer", "unknown", Unknown),
        ("vllm serve m --load-format of-a-plugin", "unknown", Unknown),
        ("env VLLM_PLE_MMAP=1 vllm serve m", "mmap with a table in its file", Fills),
        ("env VLLM_PLE_MMAP=0 vllm serve m", "mmap", Fills),
        ("sglang serve --model-path m", "mmap", Fills),
        (
            "sglang serve --model-path m --weight-loader-drop-cache-after-load",
            "mmap, evicting",
            Spares,
        ),
        ("sglang serve --model-path m --weight-loader-disable-mmap", "read", Fills),
        ("sglang serve --model-path m --load-format fastsafetensors", "fastsafetensors", Fills),
        ("sglang serve --model-path m --load-format remote", "unknown", Unknown),
        ("llama-server -m x.gguf", "mmap", Fills),
        ("llama-server -m x.gguf --no-mmap", "read", Fills),
        ("llama-server -m x.gguf --direct-io", "direct-io", Spares),
        ("llama-server -m x.gguf -lm dio", "direct-io", Spares),
        ("llama-server -m x.gguf --mlock", "mlock", Fills),
        ("llama-server -m x.gguf --load-mode other", "unknown", Unknown),
        ("lmdeploy serve api_server m", "unknown", Unknown),
    ] {
        let found = of(line);
        assert_eq!((found.name, found.page_cache), (name, page_cache), "{line}");
    }
}

#[test]
fn weights_may_stay_in_a_mapping_or_outlive_the_engine() {
    use WeightResidence::{Copied, Mapped, Outlives};
    for (line, residence) in [
        ("llama-server -m x.gguf", Mapped),
        ("llama-server -m x.gguf -ngl auto", Mapped),
        ("llama-server -m x.gguf -ngl 99", Copied),
        ("llama-server -m x.gguf -ngl all --n-cpu-moe 20", Mapped),
        ("llama-server -m x.gguf -ngl 99 --no-mmap", Copied),
        ("sglang serve --model-path m --ple-offload-embedding", Copied),
        ("sglang serve --model-path m --ple-offload-embedding --ple-offload-backend file", Mapped),
        ("vllm serve m --load-format ipc_cache", Outlives),
    ] {
        assert_eq!(of(line).residence, residence, "{line}");
    }
}

#[test]
fn a_daemon_that_holds_weights_is_no_engine() {
    for (line, expected) in [
        ("vllm preload /m", true),
        ("/usr/bin/python3 /env/bin/vllm preload /m", true),
        ("vllm weight-cache-daemon --model /m", true),
        ("python -u -m vllm.model_executor.model_loader.weight_cache.daemon --model /m", true),
        ("vllm serve preload", false),
        ("ls preload", false),
        ("", false),
    ] {
        assert_eq!(weight_daemon(&words(line)).is_some(), expected, "{line}");
    }
}

#[test]
fn a_variable_that_names_a_loader_is_read() {
    let names: Vec<_> = loader_variables().collect();
    assert_eq!(names, ["VLLM_PLE_MMAP", "VLLM_PLE_DISK_OFFLOAD_DIR", "USE_FASTSAFETENSOR"]);
}

#[test]
fn every_loader_names_its_costs_and_its_source() {
    let rules: Vec<_> = ENGINES.iter().flat_map(|facts| facts.loaders).collect();
    assert!(rules.len() > 30, "{}", rules.len());
    for LoaderRule(signs, loader) in rules {
        assert!(!loader.name.is_empty() && !loader.costs.is_empty(), "{loader:?}");
        assert!(!loader.source.is_empty() && !signs.is_empty(), "{loader:?}");
        assert!(loader.work_bytes.0 <= loader.work_bytes.1, "{loader:?}");
        let (least, most) = loader.peak_percent.unwrap();
        assert!(100 <= least && least <= most, "{loader:?}");
        let is_spared = loader.page_cache == PageCacheUse::Spares;
        assert!(!is_spared || loader.instead.is_none(), "{loader:?}");
    }
}
