//! A real containerd, whose CRI confirms which container of a pod an engine belongs to. The test
//! does what a kubelet does, apart from starting containers again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use umawarden::actions::{Executor as _, StopExecutor};
use umawarden::model::{
    Action, ContainerRuntime, DecisionRecord, EngineTarget, OutcomeResult, Pod, ProcessId, Proof,
    Target,
};

use super::enabled;
use super::identity::{Group, KEY, Pretender, engine};
use crate::daemon::{Daemon, history, of_kind, write_secret};

const IMAGE: &str = "docker.io/library/umawarden-test:latest";

#[derive(Clone, PartialEq, prost::Message)]
struct Metadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    uid: String,
    #[prost(string, tag = "3")]
    namespace: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NamespaceOption {
    /// 2: the PID namespace of the node.
    #[prost(int32, tag = "1")]
    network: i32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxSecurity {
    #[prost(message, optional, tag = "1")]
    namespaces: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxSandbox {
    #[prost(string, tag = "1")]
    cgroup_parent: String,
    #[prost(message, optional, tag = "2")]
    security: Option<SandboxSecurity>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SandboxConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<Metadata>,
    #[prost(string, tag = "3")]
    log_directory: String,
    #[prost(map = "string, string", tag = "6")]
    labels: std::collections::HashMap<String, String>,
    #[prost(message, optional, tag = "8")]
    linux: Option<LinuxSandbox>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RunPodSandbox {
    #[prost(message, optional, tag = "1")]
    config: Option<SandboxConfig>,
}

/// The response to both: the id.
#[derive(Clone, PartialEq, prost::Message)]
struct Created {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerMetadata {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Image {
    #[prost(string, tag = "1")]
    image: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Mount {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "2")]
    host_path: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxSecurity {
    #[prost(message, optional, tag = "3")]
    namespaces: Option<NamespaceOption>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LinuxContainer {
    #[prost(message, optional, tag = "2")]
    security: Option<LinuxSecurity>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContainerConfig {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ContainerMetadata>,
    #[prost(message, optional, tag = "2")]
    image: Option<Image>,
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    mounts: Vec<Mount>,
    #[prost(map = "string, string", tag = "9")]
    labels: std::collections::HashMap<String, String>,
    #[prost(string, tag = "11")]
    log_path: String,
    #[prost(message, optional, tag = "15")]
    linux: Option<LinuxContainer>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CreateContainer {
    #[prost(string, tag = "1")]
    sandbox: String,
    #[prost(message, optional, tag = "2")]
    config: Option<ContainerConfig>,
    #[prost(message, optional, tag = "3")]
    sandbox_config: Option<SandboxConfig>,
}

/// Start of a container, and removal of a sandbox.
#[derive(Clone, PartialEq, prost::Message)]
struct ById {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Nothing {}

/// A containerd of our own: own data, own socket.
struct Containerd {
    child: Child,
    folder: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    sandboxes: Vec<String>,
}

impl Containerd {
    fn start() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let config = format!(
            "version = 2\nroot = '{}'\nstate = '{}'\n[grpc]\naddress = '{}'\n\
             [plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = '{IMAGE}'\n\
             disable_apparmor = true\nrestrict_oom_score_adj = true\n\
             [plugins.'io.containerd.grpc.v1.cri'.containerd]\nsnapshotter = 'native'\n",
            path("root"),
            path("state"),
            path("sock"),
        );
        fs::write(path("config.toml"), config).unwrap();
        let child = Command::new("containerd")
            .args(["--config", &path("config.toml")])
            .stdout(Stdio::null())
            .stderr(fs::File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let containerd = Self { child, folder, runtime, sandboxes: Vec::new() };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !containerd.ctr(&["version"]) {
            assert!(Instant::now() < deadline, "containerd does not answer:\n{}", containerd.log());
            std::thread::sleep(Duration::from_millis(200));
        }
        containerd
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    /// The folder of a pod's logs.
    fn logs(&self, name: &str) -> String {
        self.folder.path().join("pods").join(format!("llm_pod-{name}")).display().to_string()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        let socket = self.socket();
        let mut ctr = Command::new("ctr");
        ctr.arg("--address").arg(socket).args(["--namespace", "k8s.io"]).args(arguments);
        ctr.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    /// Imports an image that holds busybox and whose default command sleeps.
    fn import_busybox(&self) {
        let folder = self.folder.path().join("image");
        let root = self.folder.path().join("busybox");
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
        std::os::unix::fs::symlink("busybox", root.join("bin/sh")).unwrap();
        let tar = |from: &Path, to: &Path| {
            let mut tar = Command::new("tar");
            let packed = tar.arg("-C").arg(from).arg("-cf").arg(to).arg(".").status();
            assert!(packed.unwrap().success());
        };
        let blob = |bytes: &[u8]| {
            let digest: String =
                Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            fs::write(folder.join("blobs/sha256").join(&digest), bytes).unwrap();
            (format!("sha256:{digest}"), bytes.len())
        };
        let layer = self.folder.path().join("layer.tar");
        tar(&root, &layer);
        let (layer, layer_size) = blob(&fs::read(&layer).unwrap());
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Entrypoint": ["/bin/busybox", "sleep", "3600"]},
            "rootfs": {"type": "layers", "diff_ids": [layer]},
        });
        let (config, config_size) = blob(config.to_string().as_bytes());
        let of = |kind: &str| format!("application/vnd.oci.image.{kind}");
        let manifest = json!({
            "schemaVersion": 2, "mediaType": of("manifest.v1+json"),
            "config": {"mediaType": of("config.v1+json"), "digest": config, "size": config_size},
            "layers": [{"mediaType": of("layer.v1.tar"), "digest": layer, "size": layer_size}],
        });
        let (manifest, size) = blob(manifest.to_string().as_bytes());
        let index = json!({"schemaVersion": 2, "manifests": [{
            "mediaType": of("manifest.v1+json"), "digest": manifest, "size": size,
            "annotations": {"io.containerd.image.name": IMAGE},
        }]});
        fs::write(folder.join("index.json"), index.to_string()).unwrap();
        fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let archive = self.folder.path().join("image.tar");
        tar(&folder, &archive);
        let archive = archive.to_str().unwrap();
        assert!(self.ctr(&["image", "import", "--snapshotter", "native", archive]));
    }

    fn call<A, B>(&self, method: &'static str, request: A) -> B
    where
        A: prost::Message + 'static,
        B: prost::Message + Default + 'static,
    {
        let socket = self.socket();
        let answered = self.runtime.block_on(async {
            let connector = tower::service_fn(move |_| {
                let socket = socket.clone();
                async move { UnixStream::connect(socket).await.map(TokioIo::new) }
            });
            let endpoint = Endpoint::from_static("http://localhost");
            let channel: Channel = endpoint.connect_with_connector(connector).await.unwrap();
            let mut client = Grpc::new(channel);
            client.ready().await.unwrap();
            let path = PathAndQuery::from_static(method);
            let codec: ProstCodec<A, B> = ProstCodec::default();
            client.unary(tonic::Request::new(request), path, codec).await
        });
        let answered = answered.unwrap_or_else(|status| panic!("{status}\n{}", self.log()));
        answered.into_inner()
    }

    /// Runs a container in a pod of its own, in the node's network, with the node's files below
    /// `/host`; its id. The pod is `llm/pod-NAME`, with the label `app`: `llm`.
    fn run(&mut self, name: &str, command: Vec<String>) -> String {
        let namespaces = Some(NamespaceOption { network: 2 });
        let uid = format!("6f1c0ddc-6a0b-4c2d-8e4f-{:012x}", std::process::id());
        let names = [
            ("io.kubernetes.pod.name", format!("pod-{name}")),
            ("io.kubernetes.pod.namespace", "llm".to_owned()),
            ("io.kubernetes.pod.uid", uid.clone()),
        ];
        let names = names.map(|(key, value)| (key.to_owned(), value));
        let (own, mut of_container) =
            (("app".to_owned(), "llm".to_owned()), names.clone().to_vec());
        of_container.push(("io.kubernetes.container.name".to_owned(), name.to_owned()));
        let sandbox_config = SandboxConfig {
            metadata: Some(Metadata {
                name: format!("pod-{name}"),
                uid: uid.clone(),
                namespace: "llm".into(),
            }),
            log_directory: self.logs(name),
            labels: names.into_iter().chain([own]).collect(),
            linux: Some(LinuxSandbox {
                cgroup_parent: format!("/kubepods/besteffort/pod{uid}"),
                security: Some(SandboxSecurity { namespaces: namespaces.clone() }),
            }),
        };
        fs::create_dir_all(Path::new(&self.logs(name)).join(name)).unwrap();
        let request = RunPodSandbox { config: Some(sandbox_config.clone()) };
        let sandbox: Created = self.call("/runtime.v1.RuntimeService/RunPodSandbox", request);
        self.sandboxes.push(sandbox.id.clone());
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into() }),
            image: Some(Image { image: IMAGE.into() }),
            command,
            mounts: vec![Mount { container_path: "/host".into(), host_path: "/".into() }],
            labels: of_container.into_iter().collect(),
            log_path: format!("{name}/0.log"),
            linux: Some(LinuxContainer { security: Some(LinuxSecurity { namespaces }) }),
        };
        let sandbox_config = Some(sandbox_config);
        let request = CreateContainer { sandbox: sandbox.id, config: Some(config), sandbox_config };
        let created: Created = self.call("/runtime.v1.RuntimeService/CreateContainer", request);
        let start = ById { id: created.id.clone() };
        let _: Nothing = self.call("/runtime.v1.RuntimeService/StartContainer", start);
        created.id
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        for id in std::mem::take(&mut self.sandboxes) {
            for method in [
                "/runtime.v1.RuntimeService/StopPodSandbox",
                "/runtime.v1.RuntimeService/RemovePodSandbox",
            ] {
                let _: Nothing = self.call(method, ById { id: id.clone() });
            }
        }
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

#[test]
fn real_engine_in_a_pod_is_named_and_sent_its_key_once_the_cri_confirms_it() {
    if !enabled() {
        return;
    }
    let mut containerd = Containerd::start();
    containerd.import_busybox();
    let folder = tempfile::tempdir().unwrap();
    // The server is this program, in the files of the host.
    let marker = format!("umawarden-pod-{}", std::process::id());
    let served = Pretender::command(folder.path(), &format!("{marker}-served"));
    let command = ["/bin/busybox", "chroot", "/host"].map(str::to_owned);
    let id = containerd.run("engine", [&command[..], &served].concat());
    let key = folder.path().join("key");
    // The key belongs to another user, so the user number is no proof.
    write_secret(&key, &format!("{KEY}\n"));
    let config = folder.path().join("umawarden.yaml");
    let text = format!(
        "rule_files: []\npath: {{cri_socket: {}}}\nengines:\n\
         - {{name: pod, match: {{label: app=llm, namespace: ll*}}, user: daemon, \
             api_key_file: {key}}}\n\
         - {{name: false, match: {{cmdline: '* {marker}-false*'}}, api_key_file: {key}}}\n",
        containerd.socket().display(),
        key = key.display(),
    );
    fs::write(&config, text).unwrap();
    let pretender = Pretender::start("nobody", &format!("{marker}-false"));
    let group = Group::new(&format!("cri-containerd-{id}.scope"));
    fs::write(group.path().join("cgroup.procs"), pretender.pid().to_string()).unwrap();
    let config = format!("--config.file={}", config.display());
    let daemon = Daemon::start(&folder.path().join("data"), &[&config]);
    let requests = || fs::read_to_string(folder.path().join("requests")).unwrap_or_default();
    daemon.wait_until("sent its key", |_| requests().contains(KEY));
    daemon.wait_until("named", |daemon| engine(daemon, "pod")["container_name"] == "engine");
    let found = engine(&daemon, "pod");
    assert_eq!(found["kind"], "vllm", "{found}");
    let image = found["image"].as_str().unwrap_or_default();
    let digest = image.strip_prefix(&format!("{IMAGE}@")).unwrap_or_default();
    assert!(digest.len() == 12 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{found}");
    let pod: Pod = serde_json::from_value(found["pod"].clone()).unwrap();
    assert_eq!((pod.to_string().as_str(), &*pod.container), ("pod llm/pod-engine", "engine"));
    assert_eq!(pod.labels, Some([("app".into(), "llm".into())].into()));
    assert!(found["cgroup"].as_str().unwrap().contains(&*pod.uid), "{found}");
    let info = |daemon: &Daemon, wanted: &str| {
        let all = daemon.metrics();
        all.keys().any(|key| key.starts_with("uma_engine_info{") && key.contains(wanted))
    };
    let labels = "namespace=\"llm\",pod=\"pod-engine\"";
    daemon.wait_until("described", |daemon| info(daemon, labels));
    assert!(found["claimed_container"].is_null() && found["key_withheld"].is_null(), "{found}");
    daemon.wait_until("withheld", |daemon| engine(daemon, "false")["key_withheld"].is_string());
    assert_eq!(engine(&daemon, "false")["claimed_container"], *id);
    assert!(engine(&daemon, "false")["pod"].is_null(), "it is in no pod that the CRI confirms");
    assert!(!pretender.requests().contains("Bearer"), "{}", pretender.requests());
    daemon.terminate();
    drop(pretender);
    drop(group);
}

/// A shell that is called as vLLM, and that script.
fn vllm(script: &str) -> Vec<String> {
    let begins = format!(
        "/bin/busybox mkdir -p /srv; /bin/busybox ln -s /bin/busybox /bin/sleep; \
         echo '{script}' >/srv/vllm; exec /bin/sh /srv/vllm serve /models/tiny --port 8000"
    );
    ["/bin/busybox", "sh", "-c", &begins].map(str::to_owned).to_vec()
}

/// The report on the death of the engine in a container.
fn death(storage: &Path, container: &str) -> Option<Value> {
    let entries = history(storage);
    let of = |entry: &&Value| entry["report"]["who"]["container_name"] == container;
    of_kind(&entries, "engine_died").find(of).map(|entry| entry["report"].clone())
}

fn in_container(daemon: &Daemon, container: &str) -> Option<Value> {
    let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
    let all = response["data"]["engines"].as_array().unwrap();
    all.iter().find(|engine| engine["container_name"] == container).cloned()
}

/// Stops the engine as the brake does; returns what starts it again.
fn stop(engine: &Value) -> String {
    let number = |key: &str| engine["server"][key].as_u64().unwrap();
    let server =
        ProcessId { pid: number("pid").try_into().unwrap(), start_ticks: number("start_ticks") };
    let runtime: ContainerRuntime =
        serde_json::from_value(engine["container_runtime"].clone()).unwrap();
    let target = EngineTarget {
        name: "boxed".into(),
        processes: vec![server],
        cgroup: engine["cgroup"].as_str().map(Into::into),
        container: engine["container"].as_str().map(Into::into),
        proof: Proof::PodContainer,
        pod: serde_json::from_value(engine["pod"].clone()).unwrap(),
        runtime: Some(runtime),
        ..EngineTarget::default()
    };
    let action = Action::StopEngine {
        engine: None,
        grace_ms: 5_000,
        unless_free_bytes: None,
        for_reboot: None,
    };
    let target = Target::Engine(Box::new(target));
    let decision = DecisionRecord { target, ..crate::actions::decision(action) };
    assert!(decision.deed().ends_with("; the kubelet starts its container again"), "{decision:?}");
    let (procfs, sysfs, docker) = ("/proc".into(), "/sys".into(), "/nowhere".into());
    let user_folders = "/nowhere".into();
    let mut executor = StopExecutor { procfs, sysfs, docker, user_folders };
    let performed = executor.execute(&crate::actions::act(decision));
    assert_eq!(performed.result, OutcomeResult::Done);
    performed.effect.unwrap().to_string()
}

#[test]
fn real_death_in_a_pod_has_the_words_of_its_log_and_what_the_runtime_reports() {
    if !enabled() {
        return;
    }
    let mut containerd = Containerd::start();
    containerd.import_busybox();
    let folder = tempfile::tempdir().unwrap();
    let (data, config) = (folder.path().join("data"), folder.path().join("umawarden.yaml"));
    let text = format!(
        "rule_files: []\npath: {{cri_socket: {}, docker_socket: /nonexistent/docker.sock}}\n\
         restarts: [{{container: polite, need: 1GiB}}]\n",
        containerd.socket().display(),
    );
    fs::write(&config, text).unwrap();
    let daemon = Daemon::start(&data, &[&format!("--config.file={}", config.display())]);
    let report = |daemon: &Daemon, container: &str| {
        daemon.wait_until("its death is explained", |_| death(&data, container).is_some());
        death(&data, container).unwrap()
    };
    let named = |daemon: &Daemon, container: &str| {
        let is_proven = |engine: &Value| engine["pod"].is_object();
        daemon.wait_until("found", |daemon| {
            in_container(daemon, container).is_some_and(|e| is_proven(&e))
        });
        in_container(daemon, container).unwrap()
    };
    let fails = "sleep 6; echo loads; sleep 1; echo RuntimeError: CUDA out of memory >&2; exit 3";
    containerd.run("fails", vllm(fails));
    containerd.run("polite", vllm("trap \"exit 0\" TERM; while true; do sleep 0.1; done"));
    containerd.run("evicted", vllm("while true; do sleep 0.1; done"));
    named(&daemon, "fails");
    let found = report(&daemon, "fails");
    assert_eq!(
        (&found["exit"]["code"], &found["is_failure"]),
        (&3.into(), &true.into()),
        "{found:#}"
    );
    assert_eq!(found["last_lines"], json!(["loads", "RuntimeError: CUDA out of memory"]));
    assert_eq!(
        (&found["who"]["pod"]["namespace"], &found["who"]["pod"]["name"]),
        (&"llm".into(), &"pod-fails".into())
    );
    // A restart that nobody can defer.
    let polite = named(&daemon, "polite");
    daemon.wait_until("not ours", |daemon| {
        let response: Value = serde_json::from_str(&daemon.get("/api/v1/engines").1).unwrap();
        let held = response["data"]["deferred_restarts"].as_array().unwrap();
        held.iter().any(|one| one["name"] == "llm/pod-polite/polite" && one["state"] == "not_ours")
    });
    let again = stop(&polite);
    assert!(again.contains("scale down what made pod llm/pod-polite"), "{again}");
    let id = polite["container"].as_str().unwrap();
    assert!(
        containerd.log().contains(&format!("StopContainer for \\\"{id}\\\"")),
        "{}",
        containerd.log()
    );
    let found = report(&daemon, "polite");
    assert_eq!(
        (&found["exit"]["code"], &found["is_failure"]),
        (&0.into(), &false.into()),
        "{found:#}"
    );
    // As a kubelet that evicts a pod.
    named(&daemon, "evicted");
    let sandbox = containerd.sandboxes.last().unwrap().clone();
    let _: Nothing =
        containerd.call("/runtime.v1.RuntimeService/StopPodSandbox", ById { id: sandbox });
    let found = report(&daemon, "evicted");
    assert_eq!(found["is_failure"], false, "{found:#}");
    assert!(found["killer"]["sender"].as_str().unwrap().contains("kubelet"), "{found:#}");
    assert!(found["advice"].to_string().contains("involvedObject.name=pod-evicted"), "{found:#}");
    daemon.terminate();
}
