use proptest::prelude::*;

use super::load::sum;
use super::*;
use crate::model::EngineKind::{
    ComfyUi, Ds4, Dynamo, Exo, LlamaServer, LmStudio, Lmdeploy, LocalAi, MistralRs, Ollama, Sglang,
    TabbyApi, TensorRtLlm, Tgi, Triton, Vllm, VllmRs,
};
use crate::model::{EngineLoad, Reading};
use crate::parse::process::arguments;

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// What the last source of that kind, which is its metrics, reports.
fn load_in_metrics(kind: EngineKind, text: &str) -> EngineLoad {
    let source = facts(kind).load.last().unwrap();
    (source.read)(text).unwrap_or_default()
}

fn actual(line: &str) -> Option<(EngineKind, ProcessRole)> {
    recognise("python3", &words(line), Some("srv"))
}

#[test]
fn engines_are_recognised_by_every_way_of_starting_them() {
    for (line, kind) in [
        ("/env/bin/python /env/bin/vllm serve /m --port 1", Vllm),
        ("vllm serve /m", Vllm),
        ("python3 -m vllm.entrypoints.openai.api_server --model /m", Vllm),
        ("/env/bin/python -m sglang.launch_server --model-path /m", Sglang),
        ("python3.12 -O -X dev -m sglang.launch_server", Sglang),
        ("/usr/bin/python3 /env/bin/sglang serve --model-path /m", Sglang),
        ("/usr/local/bin/ollama serve", Ollama),
        ("/app/llama-server -m /m.gguf --port 8081", LlamaServer),
        ("python /opt/ComfyUI/main.py --listen", ComfyUi),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve /m", TensorRtLlm),
        ("tritonserver --model-repository=/models", Triton),
        ("/usr/bin/python3 /opt/py3/bin/lmdeploy serve api_server /m", Lmdeploy),
        ("python -m lmdeploy serve api_server /m --server-port 1", Lmdeploy),
        ("python -m lmdeploy.serve.openai.api_server /m", Lmdeploy),
        ("text-generation-launcher --model-id a/b", Tgi),
        ("python /env/bin/vllm preload --model /m --tensor-parallel-size 4", Vllm),
        ("python -m dynamo.frontend --http-port 8001", Dynamo),
        ("python3 -m dynamo.vllm --model /m", Dynamo),
        ("python3 -m dynamo.sglang --model-path /m", Dynamo),
        ("python3 -m dynamo.trtllm --model-path /m", Dynamo),
        ("dynamo-run in=http out=mistralrs /m", Dynamo),
        ("dynamo-run out=vllm in=dyn://a.b.c /m", Dynamo),
        ("python3 /opt/tabbyAPI/main.py --host 0.0.0.0", TabbyApi),
        ("/opt/tabbyAPI/venv/bin/python3 /opt/tabbyAPI/start.py", TabbyApi),
        ("/home/u/.lmstudio/llmster/0.0.6-1/bin/llmster", LmStudio),
        ("llmster", LmStudio),
        ("/tmp/.mount_LM-Stu1/lm-studio --no-sandbox", LmStudio),
        ("./local-ai", LocalAi),
        ("/usr/local/bin/local-ai run --address :8081", LocalAi),
        ("local-ai phi-2", LocalAi),
        ("local-ai worker --register-to http://a:8080", LocalAi),
        ("local-ai p2p-worker llama-cpp-rpc", LocalAi),
        ("/opt/local-ai-v4.9.0-linux-arm64 --debug", LocalAi),
        ("/src/exo/.venv/bin/python /src/exo/.venv/bin/exo", Exo),
        ("python3 -m exo -v --api-port 8000 --no-batch", Exo),
        ("exo --namespace a --no-api", Exo),
        ("./ds4-server --ctx 100000 --kv-disk-dir /tmp/kv", Ds4),
        ("mistralrs serve -m a/b", MistralRs),
        ("./mistralrs-server --port 1234 plain -m a/b", MistralRs),
        ("vllm-rs serve a/b --python /env/bin/python --port 8001", Vllm),
        ("vllm-rs frontend a/b --handshake-address tcp://127.0.0.1:62100", Vllm),
        ("/app/bin/com.docker.llama-server --model /m.gguf --host /tmp/a.sock", LlamaServer),
        ("bin/rpc-server -H 0.0.0.0 -p 50052 -c", LlamaServer),
        ("/opt/llama.cpp/build/bin/rpc-server", LlamaServer),
        ("python3 -m huggingfaceserver --model_id=a/b --model_name=b", Vllm),
        ("python main.py --listen 0.0.0.0 --port 8188 --disable-auto-launch", ComfyUi),
        ("python3 main.py --gpu-split-auto True", TabbyApi),
        ("python3 exo/main.py --disable-tui", Exo),
        ("vllm-rs --m a/b --server", VllmRs),
        ("./target/release/vllm-rs --w /m --d 0,1", VllmRs),
        ("python3 -m vllm_rs.server --f /m.gguf --ui-server", VllmRs),
    ] {
        assert_eq!(actual(line), Some((kind, ProcessRole::Server)), "{line}");
    }
    let here = |folder| recognise("python", &words("python3 main.py --listen"), Some(folder));
    assert_eq!(here("ComfyUI"), Some((ComfyUi, ProcessRole::Server)));
    assert_eq!(here("tabbyAPI"), Some((TabbyApi, ProcessRole::Server)));
    let start = |folder| recognise("python3", &words("python3 start.py"), Some(folder));
    assert_eq!(start("tabbyAPI"), Some((TabbyApi, ProcessRole::Server)));
    assert_eq!(start("ComfyUI"), None);
    assert_eq!(here("srv"), None);
    let dotted = words("python3 ./main.py --listen");
    assert_eq!(recognise("", &dotted, Some("comfyui")), Some((ComfyUi, ProcessRole::Server)));
    assert_eq!(recognise("", &dotted, Some("app")), None);
}

#[test]
fn engines_are_recognised_behind_options_and_wrappers() {
    for (line, kind) in [
        ("/root/.cache/uv/a/x/bin/python /root/.cache/uv/a/x/bin/vllm serve m", Vllm),
        ("/opt/conda/envs/v/bin/python3.13t -um vllm.entrypoints.openai.api_server", Vllm),
        ("python3 -mvllm.entrypoints.openai.api_server --model /m", Vllm),
        ("python -W ignore -Xdev -I vllm/entrypoints/openai/api_server.py --model /m", Vllm),
        ("/nix/store/a/bin/python3.12 /nix/store/b/bin/.vllm-wrapped serve /m", Vllm),
        ("bash -eo pipefail /opt/bin/vllm serve /m", Vllm),
        ("/nix/store/b/bin/..ollama-wrapped-wrapped serve", Ollama),
        ("/home/u/.local/bin/llama serve -hf a/b:Q8_0 --port 8081", LlamaServer),
        ("python3 -s ComfyUI-master/main.py", ComfyUi),
        ("/usr/bin/python3 /usr/local/bin/trtllm-serve serve /m", TensorRtLlm),
    ] {
        assert_eq!(actual(line), Some((kind, ProcessRole::Server)), "{line}");
    }
}

#[test]
fn workers_are_recognised_by_their_titles() {
    for (comm, line, kind) in [
        ("VLLM::EngineCor", "VLLM::EngineCore", Vllm),
        ("python", "VLLM::Worker_TP0", Vllm),
        ("ray::RayWorkerP", "ray::RayWorkerProc.run", Vllm),
        ("ray::RayWorkerW", "ray::RayWorkerWrapper.execute_method", Vllm),
        ("vllm-rs", "/env/vllm/vllm-rs frontend --listen-fd 18 --engine-count 1", Vllm),
        ("sglang::schedul", "sglang::scheduler_TP0", Sglang),
        ("python3", "VLLM::APIServer_1", Vllm),
        ("sglang::detoken", "sglang::detokenizer", Sglang),
        ("ollama", "/usr/bin/ollama runner --model /m --port 4", Ollama),
        ("ollama", "/usr/local/bin/ollama runner --ollama-engine --port 4", Ollama),
        ("ollama_llama_se", "/tmp/ollama1/runners/cuda_v12/ollama_llama_server --model /m", Ollama),
        ("python3", "python3 -m tensorrt_llm.llmapi.mgmn_worker_node", TensorRtLlm),
        ("text-generation", "text-generation-router --port 80", Tgi),
        ("text-generation", "/opt/py/bin/python /opt/bin/text-generation-server serve /m", Tgi),
    ] {
        assert_eq!(
            recognise(comm, &words(line), None),
            Some((kind, ProcessRole::Worker)),
            "{line}"
        );
    }
}

#[test]
fn commands_that_only_mention_an_engine_are_no_engine() {
    for line in [
        "bash -c vllm serve /m",
        "python3 -c import vllm serve",
        "docker run vllm/vllm-openai vllm serve",
        "vim vllm serve",
        "grep -r sglang.launch_server",
        "vllm bench serve",
        "python3 -m vllm.model_executor.models.registry",
        "rpc-server",
        "rpc-server --config /etc/rpc.toml",
        "python3 -m mpi4py.futures.server",
        "python3 -m huggingfaceserver --backend=huggingface --model_id=a/b",
        "python3 main.py --listen 0.0.0.0 --port 8188",
        "ollama run llama3",
        "lmdeploy serve proxy --server-port 8000",
        "lmdeploy chat /m",
        "text-generation-benchmark --tokenizer-name x",
        "tail -f /var/log/llama-server",
        "python3 -m dynamo.planner",
        "python3 -m dynamo.router",
        "python3 -m dynamo.frontend --interactive",
        "python3 -m dynamo.vllm --help",
        "dynamo-run /m",
        "dynamo-run in=text out=vllm /m",
        "dynamo-run in=batch:/data out=vllm /m",
        "python3 /opt/tabbyAPI/main.py download a/b",
        "python3 /opt/tabbyAPI/main.py export-config",
        "python3 /opt/tabbyAPI/tests/main.py",
        "python3 start.py",
        "lms chat a/b",
        "lms daemon up",
        "lms server start --port 1234",
        "/opt/lm-studio/lm-studio --type=renderer",
        "local-ai models list",
        "local-ai chat",
        "local-ai federated",
        "local-ai agent-worker",
        "local-ai --help",
        "local-ai-launcher",
        "exo --help",
        "exo compute instance list",
        "exo --quiet compute instance list",
        "exo dev",
        "exo run llama-3.2-3b",
        "exo --multiprocessing-fork tracker_fd=5",
        "ds4-server --help",
        "ds4 -m /m.gguf",
        "ds4-agent",
        "mistralrs run -m a/b",
        "mistralrs bench -m a/b",
        "mistralrs serve --help",
        "mistralrs-server -i plain -m a/b",
        "vllm-rs --m a/b --i",
        "vllm-rs --m a/b --prompts=x",
        "vllm-rs --m a/b --batch 8",
        "vllm-rs --help",
        "vllm-rs serve --help",
        "vllm-rs render a/b",
        "runner --sock x --uuid y",
        "python3 main.py",
        "python3 -m",
        "python3",
        "",
    ] {
        assert_eq!(actual(line), None, "{line}");
    }
}

#[test]
fn wrappers_clients_and_informing_commands_are_no_engine() {
    for line in [
        "bash -lc /app/llama-server",
        "sh -ec /usr/bin/tritonserver",
        "python3 -uc /usr/bin/tritonserver",
        "uv run vllm serve /m",
        "uvx vllm serve /m",
        "/usr/bin/tini -- vllm serve /m",
        "python3 /opt/conda/bin/conda run -n v vllm serve /m",
        "python3 /env/bin/torchrun --nproc_per_node 2 -m sglang.launch_server",
        "mpirun -n 2 tritonserver --model-repository /m",
        "python3 -m pip install vllm",
        "python3 /usr/bin/pip install vllm serve",
        "gdb --args llama-server -m /m.gguf",
        "tail -f vllm.log",
        "less /srv/llama-server",
        "ssh spark2 vllm serve /m",
        "kubectl exec -it p -- vllm serve /m",
        "llama-swap --config /etc/llama-swap.yaml",
        "llama cli -m /m.gguf",
        "llama-server --version",
        "llama-server --list-devices",
        "vllm serve --help",
        "vllm serve --help=max-model-len",
        "trtllm-serve --help",
        "ollama serve --help",
        "python3 -m sglang.launch_server -h",
        "python3 -m sglang_router.launch_router --worker-urls http://a",
        "python3 /env/bin/open-webui serve",
        "python3 -m uvicorn open_webui.main:app --port 8080",
        "python3 -m mlc_llm serve HF://a/b",
        "python3 /env/bin/xinference-local --host 0.0.0.0",
        "python3 /env/bin/comfy launch -- --listen",
        "python3 /opt/ComfyUI-Manager/main.py",
        "python3 api_server.py --model /m",
    ] {
        assert_eq!(actual(line), None, "{line}");
    }
}

#[test]
fn port_host_and_model_are_read_and_keys_are_ignored() {
    let of = |kind, line: &str| serving(kind, &words(line));
    let vllm = of(Vllm, "python vllm serve /m --api-key secret --port=8001 --host 0.0.0.0");
    let expected = ServingArguments {
        host: Some("0.0.0.0".to_owned()),
        port: Some(8001),
        model: Some("/m".to_owned()),
        arguments: Some(
            "python\nvllm\nserve\n/m\n--api-key\n[hidden]\n--port=8001\n--host\n0.0.0.0".to_owned(),
        ),
        part: EnginePart::default(),
    };
    assert_eq!(vllm, expected);
    let hidden = of(Vllm, "vllm serve --api-key secret /m");
    assert_eq!((hidden.model, hidden.port), (None, Some(8000)));
    let sglang = of(Sglang, "python -m sglang.launch_server --model-path a --port 1 --port 2");
    assert_eq!((sglang.model.as_deref(), sglang.port), (Some("a"), Some(2)), "the last counts");
    for port in ["0", "70000", "-1", "x", "--host"] {
        let line = format!("llama-server -m x.gguf --port {port}");
        assert_eq!(of(LlamaServer, &line).port, Some(8080), "{line}");
    }
    assert_eq!(of(Ollama, "ollama serve").port, Some(11434));
    let lmdeploy = of(Lmdeploy, "lmdeploy serve api_server a/b --api-keys k --server-name ::");
    assert_eq!((lmdeploy.model.as_deref(), lmdeploy.port), (Some("a/b"), Some(23333)));
    assert_eq!(lmdeploy.host.as_deref(), Some("::"));
    let module = of(Lmdeploy, "python -m lmdeploy.serve.openai.api_server /m --server-port 5");
    assert_eq!((module.model.as_deref(), module.port), (Some("/m"), Some(5)));
    let tgi = of(Tgi, "text-generation-launcher --model-id a/b -p 8085 --hostname ::");
    assert_eq!(
        (tgi.model.as_deref(), tgi.port, tgi.host.as_deref()),
        (Some("a/b"), Some(8085), Some("::"))
    );
    // As their documentation and sources say.
    for (kind, line, host, port, model) in [
        (Dynamo, "python -m dynamo.frontend --http-host ::", Some("::"), Some(8000), None),
        (Dynamo, "python -m dynamo.vllm --model /m --http-port 1", None, None, Some("/m")),
        (Dynamo, "dynamo-run in=http out=x --http-port 5 --model-path a", None, Some(5), Some("a")),
        (TabbyApi, "python main.py --host a --model-name b", Some("a"), Some(5000), Some("b")),
        (LmStudio, "llmster", None, None, None),
        (LocalAi, "local-ai", None, Some(8080), None),
        (LocalAi, "local-ai run --address :81", None, Some(81), None),
        (LocalAi, "local-ai run --address=127.0.0.1:82", Some("127.0.0.1"), Some(82), None),
        (LocalAi, "local-ai run --address [::1]:83", Some("::1"), Some(83), None),
        (LocalAi, "local-ai worker", None, None, None),
        (Exo, "python -m exo", None, Some(52415), None),
        (Exo, "exo --chatgpt-api-port 8000", None, Some(8000), None),
        (Exo, "exo --no-api", None, None, None),
        (Ds4, "ds4-server -m a.gguf", None, Some(8000), Some("a.gguf")),
        (MistralRs, "mistralrs serve -p 5 -m a/b", None, Some(5), Some("a/b")),
        (MistralRs, "mistralrs serve --model-id a/b", None, Some(1234), Some("a/b")),
        (MistralRs, "mistralrs-server --mcp-port 5 plain -m a/b", None, None, Some("a/b")),
        (Vllm, "vllm-rs serve a/b -- --dtype auto", None, Some(8000), Some("a/b")),
        (Vllm, "vllm-rs frontend a/b --port 5", None, Some(5), Some("a/b")),
        (VllmRs, "vllm-rs --m a/b --port 5", None, Some(5), Some("a/b")),
        (VllmRs, "vllm-rs --w /m --pd-server", None, None, Some("/m")),
    ] {
        let actual = of(kind, line);
        let actual = (actual.host.as_deref(), actual.port, actual.model.as_deref());
        assert_eq!(actual, (host, port, model), "{line}");
    }
    let name = |kind, line: &str| of(kind, line).part.name;
    assert_eq!(name(Dynamo, "python -m dynamo.sglang --model /m"), Some("dynamo-sglang"));
    assert_eq!(name(Dynamo, "python -m dynamo.frontend"), None);
    assert_eq!(name(LocalAi, "local-ai worker"), Some("localai-worker"));
    assert_eq!(of(EngineKind::Declared, "my-server").port, None);
    assert_eq!(of(EngineKind::Declared, "my-server --port 5").port, Some(5));
}

/// vLLM 0.32 and SGLang 0.5.23, as their documents start them over two nodes.
#[test]
fn the_parts_of_an_engine_over_several_nodes_are_read_from_its_arguments() {
    let part = |kind, line: &str| {
        let serving = serving(kind, &words(line));
        let rank = serving.part.rank.map(|rank| (rank.gang.to_string(), rank.rank, rank.ranks));
        (rank, serving.port)
    };
    let of = |gang: &str, rank, ranks| Some((gang.to_owned(), rank, ranks));
    let two = "--nnodes 2 --master-addr 10.0.0.1";
    let vllm = |rest: &str| part(Vllm, &format!("python vllm serve /m {rest}"));
    let first = of("10.0.0.1:29501", Some(0), Some(2));
    assert_eq!(vllm(two), (first.clone(), Some(8000)));
    assert_eq!(vllm(&format!("{two} --node-rank 0")), (first, Some(8000)));
    let second = of("10.0.0.1:29501", Some(1), Some(2));
    assert_eq!(vllm(&format!("{two} --headless -r 1 --port 8000")), (second, None));
    let third = of("a:1234", Some(2), Some(3));
    let line = "-n 3 --node-rank=2 --headless --master-addr=a --master-port=1234";
    assert_eq!(vllm(line), (third, None));
    let data = "--data-parallel-size 4 --data-parallel-address 10.0.0.1";
    let all = of("10.0.0.1:29550", Some(0), None);
    assert_eq!(vllm(data), (all, Some(8000)));
    let line = format!("{data} --data-parallel-rpc-port 13345 --headless");
    assert_eq!(vllm(&line), (of("10.0.0.1:13345", Some(0), None), None));
    for (own, port) in [("--data-parallel-start-rank 2 --headless", None), ("-dpn 2", Some(8000))] {
        let rank = of("10.0.0.1:29550", Some(2), None);
        assert_eq!(vllm(&format!("{data} {own}")), (rank, port), "{own}");
    }
    assert_eq!(vllm("--nnodes 1 --node-rank 0"), (None, Some(8000)));
    let sglang = |rest: &str| {
        part(Sglang, &format!("python -m sglang.launch_server --model-path /m {rest}"))
    };
    let line = "--nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:50000";
    assert_eq!(sglang(line), (of("10.0.0.1:50000", Some(1), Some(2)), Some(30000)));
    assert_eq!(sglang("--nnodes 1 --dist-init-addr 10.0.0.1:50000"), (None, Some(30000)));
    let preload = serving(Vllm, &words("python vllm preload --model /m --port 8000"));
    assert_eq!((preload.part.name, preload.port), (Some("vllm-preload"), None));
    assert_eq!(preload.model.as_deref(), Some("/m"));
}

proptest! {
    #[test]
    fn arbitrary_command_lines_do_not_panic(
        comm in ".{0,15}",
        text in prop::collection::vec(any::<u8>(), 0..300),
        line in "(python3|vllm|bash|ollama)( (-m|-c|-X|serve|--port|--model|=|[a-z/0-9=-]{0,9})){0,8}",
    ) {
        for arguments in [arguments(&text), words(&line)] {
            let _ = recognise(&comm, &arguments, Some("x"));
            for kind in EngineKind::ALL {
                let serving = serving(kind, &arguments);
                prop_assert!(serving.port != Some(0));
            }
        }
    }
}

#[test]
fn the_environment_supplies_missing_arguments() {
    let actual = |kind, line: &str, environment: &[(&str, &str)]| {
        let value = |name: &str| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let serving = serving_with(kind, &words(line), value);
        (serving.host, serving.port)
    };
    for (value, host, port) in [
        ("", None, 11434),
        ("0.0.0.0", Some("0.0.0.0"), 11434),
        ("0.0.0.0:11500", Some("0.0.0.0"), 11500),
        (":11500", None, 11500),
        ("http://10.0.0.1", Some("10.0.0.1"), 80),
        ("https://example.org:9/x", Some("example.org"), 9),
        ("[::1]:7", Some("::1"), 7),
        ("::1", Some("::1"), 11434),
        ("127.0.0.1:0", Some("127.0.0.1"), 11434),
        ("127.0.0.1:x", Some("127.0.0.1"), 11434),
    ] {
        let wanted = (host.map(str::to_owned), Some(port));
        assert_eq!(actual(Ollama, "ollama serve", &[("OLLAMA_HOST", value)]), wanted, "{value}");
    }
    let environment = [("LLAMA_ARG_PORT", "9000"), ("LLAMA_ARG_HOST", "::")];
    let wanted = (Some("::".to_owned()), Some(9000));
    assert_eq!(actual(LlamaServer, "llama-server -m /m", &environment), wanted);
    let flags = "llama-server --port 9001 --host 127.0.0.1";
    let wanted = (Some("127.0.0.1".to_owned()), Some(9001));
    assert_eq!(actual(LlamaServer, flags, &environment), wanted, "flags win");
    let image = [("PORT", "80"), ("HOSTNAME", "3f1c")];
    let launcher = "text-generation-launcher --model-id a/b";
    assert_eq!(actual(Tgi, launcher, &image), (None, Some(80)), "of its image");
    assert_eq!(actual(Tgi, &format!("{launcher} -p 5"), &image), (None, Some(5)), "flags win");
    let address = [("LOCALAI_ADDRESS", "127.0.0.1:9000"), ("ADDRESS", ":1")];
    let wanted = (Some("127.0.0.1".to_owned()), Some(9000));
    assert_eq!(actual(LocalAi, "local-ai", &address), wanted);
    let flags = "local-ai run --address 0.0.0.0:9001";
    assert_eq!(actual(LocalAi, flags, &address), (Some("0.0.0.0".to_owned()), Some(9001)));
    let frontend = [("DYN_HTTP_PORT", "9002")];
    assert_eq!(actual(Dynamo, "python -m dynamo.frontend", &frontend), (None, Some(9002)));
    assert_eq!(actual(Dynamo, "python -m dynamo.vllm --model a", &frontend), (None, None));
    let network = [("TABBY_NETWORK_HOST", "::"), ("TABBY_NETWORK_PORT", "9003")];
    let wanted = (Some("::".to_owned()), Some(9003));
    assert_eq!(actual(TabbyApi, "python main.py", &network), wanted);
    let of_nobody = [("OLLAMA_HOST", "1.2.3.4:5"), ("PORT", "7")];
    assert_eq!(actual(Vllm, "vllm serve /m", &of_nobody), (None, Some(8000)));
}

#[test]
fn requests_are_counted_by_the_metrics_of_each_engine() {
    let metrics = "# HELP vllm:num_requests_running x\n\
        vllm:num_requests_running{engine=\"0\",model_name=\"a b\"} 2.0\n\
        vllm:num_requests_running{engine=\"1\"} 1\n\
        vllm:num_requests_running_peak 9\nvllm:num_requests_waiting{engine=\"0\"} 4.0\n";
    let names = ["vllm:num_requests_running", "vllm:num_requests_waiting"];
    assert_eq!(sum(metrics, &names), Reading::Value(7));
    assert_eq!(sum("other 1\n", &names), Reading::Unsupported, "none reported is not none running");
    for value in ["NaN", "-1", "1e300", "x", ""] {
        let actual = sum(&format!("{} {value}\n", names[0]), &names);
        assert_eq!(actual, Reading::Unsupported, "{value}");
    }
    // As SGLang 0.5.23 answers, shortened.
    let loads = r#"{"version":"0.5.23","loads":[{"dp_rank":0,"num_running_reqs":2,
        "num_waiting_reqs":1,"token_usage":0.25,"num_used_tokens":10,"max_total_num_tokens":40},
        {"dp_rank":1,"num_running_reqs":1,"token_usage":0.5}]}"#;
    let actual = sglang::loads(loads).unwrap();
    assert_eq!(actual.requests(), Reading::Value(4));
    assert_eq!((actual.running, actual.waiting), (Reading::Value(3), Reading::Value(1)));
    assert_eq!(actual.kv_cache_usage, Reading::Value(0.5), "the fullest rank's");
    assert_eq!(actual.kv_cache_available_tokens, Reading::Value(30));
    assert_eq!(sglang::loads(r#"{"loads":[]}"#), None);
    assert_eq!(sglang::loads(r#"{"error":"key"}"#), None);
    let queue = comfyui::queue(r#"{"queue_running":[[0]],"queue_pending":[]}"#).unwrap();
    assert_eq!(queue.requests(), Reading::Value(1));
    assert_eq!(comfyui::queue("[]"), None);
}

#[test]
fn a_version_is_three_numbers_or_none() {
    let of = |version: &str| sglang::version(&format!("{{\"version\":\"{version}\"}}"));
    assert_eq!(of("0.5.23"), Some([0, 5, 23]));
    assert_eq!(of("0.5.12.post1"), Some([0, 5, 12]));
    assert_eq!(of("0.5.9rc1+cu130"), Some([0, 5, 9]));
    for version in ["", "0.5", "main", "0.5.x", "0.-5.1"] {
        assert_eq!(of(version), None, "{version}");
    }
}

/// As the real ones answered (tests/tools/record-answers).
#[test]
fn the_reported_load_of_engines_is_read() {
    let recorded = |kind: &str, state: &str, path: &str| {
        let file = format!("../../tests/fixtures/engines/answers/{kind}.json");
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let actual: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let answers = actual[state].as_array().unwrap();
        let answer = answers.iter().find(|answer| answer["path"] == path).unwrap();
        answer["body"].as_str().unwrap().to_owned()
    };
    let vllm = load_in_metrics(Vllm, &recorded("vllm", "busy", "/metrics"));
    assert_eq!((vllm.running, vllm.waiting), (Reading::Value(1), Reading::Value(0)));
    assert_eq!(vllm.is_sleeping, Reading::Value(false));
    assert!(vllm.work.value().is_some_and(|tokens| tokens > 0), "{vllm:?}");
    assert!(vllm.kv_cache_usage.value().is_some_and(|usage| usage > 0.0 && usage < 1.0));
    let asleep = "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 0.0\n";
    assert_eq!(load_in_metrics(Vllm, asleep).is_sleeping, Reading::Value(true));
    let loads =
        sglang::loads(&recorded("sglang", "busy", "/v1/loads?include=core,memory")).unwrap();
    let metrics = load_in_metrics(Sglang, &recorded("sglang", "busy", "/metrics"));
    assert_eq!((loads.running, loads.waiting), (Reading::Value(1), Reading::Value(0)));
    assert_eq!(metrics.requests().value(), Some(1), "reported a moment later");
    for load in [loads, metrics] {
        let tokens = load.kv_cache_available_tokens.value().unwrap();
        assert!((1..65_536).contains(&tokens), "{tokens}");
    }
    let idle = recorded("sglang", "idle", "/v1/loads?include=core,memory");
    assert_eq!(sglang::loads(&idle).unwrap().requests(), Reading::Value(0));
    assert_eq!(sglang::version(&idle), Some([0, 5, 23]));
    let llama = recorded("llama-server", "busy", "/metrics?model=tiny&autoload=false");
    let llama = load_in_metrics(LlamaServer, &llama);
    assert_eq!((llama.running, llama.waiting), (Reading::Value(1), Reading::Value(0)));
    let steps = load_in_metrics(LlamaServer, "llamacpp:n_decode_total 16\n");
    assert_eq!(steps.work, Reading::Value(16));
    assert_eq!(load_in_metrics(LlamaServer, "x 1\n"), EngineLoad::default());
    // As their documentation names them.
    let text = "lmdeploy:num_requests_running{engine=\"0\",model_name=\"m\"} 2.0\n\
        lmdeploy:num_requests_waiting{engine=\"0\",model_name=\"m\"} 1.0\n\
        lmdeploy:num_api_requests_waiting{engine=\"0\",model_name=\"m\"} 9.0\n\
        lmdeploy:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n\
        tgi_batch_current_size 3\ntgi_queue_size 4\ntgi_batch_current_max_tokens 99\n";
    let lmdeploy = load_in_metrics(Lmdeploy, text);
    assert_eq!((lmdeploy.running, lmdeploy.waiting), (Reading::Value(2), Reading::Value(1)));
    assert_eq!(lmdeploy.kv_cache_usage, Reading::Value(0.25));
    assert_eq!(load_in_metrics(Tgi, text).requests(), Reading::Value(7));
    assert_eq!(load_in_metrics(Tgi, text).kv_cache_usage, Reading::Unsupported);
    let text = "mistralrs_sequences_running 2\nmistralrs_sequences_waiting 1\n\
        mistralrs_sequences_capacity 32\n";
    let mistral = load_in_metrics(MistralRs, text);
    assert_eq!((mistral.running, mistral.waiting), (Reading::Value(2), Reading::Value(1)));
}

#[test]
fn facts_of_memory_have_the_options_that_texts_name() {
    for facts in ENGINES {
        let kind = facts.kind;
        assert_eq!(facts.memory_share.is_some(), !facts.share_option().is_empty(), "{kind}");
        assert!(!facts.needs_longest_request || !facts.sizes.context.is_empty(), "{kind}");
        assert!(facts.media_profile.is_none() || !facts.sizes.media.is_empty(), "{kind}");
        let usual = facts.memory_share.and_then(|share| share.usual);
        assert!(usual.is_none_or(|usual| usual.value > 0.0 && usual.value < 1.0), "{kind}");
    }
    assert!(facts(Vllm).takes_share_of(ShareOf::AllMemory));
    assert!(facts(Sglang).takes_share_of(ShareOf::FreeMemory));
}

proptest! {
    #[test]
    fn any_response_is_read(text in ".{0,200}", loads in "[\\[{\"a-z_:0-9,}\\]]{0,40}") {
        for text in [&text, &format!("{{\"loads\":{loads}}}")] {
            let _ = (sum(text, &["a"]), sglang::loads(text), comfyui::queue(text));
            let _ = (load_in_metrics(Vllm, text), sglang::version(text));
        }
    }
}
