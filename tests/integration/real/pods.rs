//! A real containerd, whose CRI confirms which container of a pod an engine belongs to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::net::UnixStream;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::enabled;
use super::identity::{Group, KEY, Pretender, engine};
use crate::daemon::{Daemon, write_secret};

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
    /// `/host`; its id.
    fn run(&mut self, name: &str, command: Vec<String>) -> String {
        let namespaces = Some(NamespaceOption { network: 2 });
        let uid = format!("umawarden-{}", std::process::id());
        let sandbox_config = SandboxConfig {
            metadata: Some(Metadata {
                name: format!("pod-{name}"),
                uid: uid.clone(),
                namespace: "default".into(),
            }),
            linux: Some(LinuxSandbox {
                cgroup_parent: format!("/kubepods/besteffort/pod{uid}"),
                security: Some(SandboxSecurity { namespaces: namespaces.clone() }),
            }),
        };
        let request = RunPodSandbox { config: Some(sandbox_config.clone()) };
        let sandbox: Created = self.call("/runtime.v1.RuntimeService/RunPodSandbox", request);
        self.sandboxes.push(sandbox.id.clone());
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.into() }),
            image: Some(Image { image: IMAGE.into() }),
            command,
            mounts: vec![Mount { container_path: "/host".into(), host_path: "/".into() }],
            labels: [("app".to_owned(), "llm".to_owned())].into(),
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
         - {{name: pod, match: {{label: app=llm}}, user: daemon, api_key_file: {key}}}\n\
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
    assert!(found["image"].as_str().is_some_and(|image| image.contains("sha256:")), "{found}");
    assert!(found["claimed_container"].is_null() && found["key_withheld"].is_null(), "{found}");
    daemon.wait_until("withheld", |daemon| engine(daemon, "false")["key_withheld"].is_string());
    assert_eq!(engine(&daemon, "false")["claimed_container"], *id);
    assert!(!pretender.requests().contains("Bearer"), "{}", pretender.requests());
    daemon.terminate();
    drop(pretender);
    drop(group);
}
