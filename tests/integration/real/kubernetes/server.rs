//! Starts etcd and kube-apiserver on loopback, and ends them by their pids.

use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::{Started, enabled};

/// The users, with their name for the server and their groups.
///
/// `admin` may do everything. `detector` has the built-in role `system:node-problem-detector`.
/// `agent` is the service account of the Helm chart, and has what the chart's roles give it once
/// they are applied. `stranger` has no role.
const USERS: [(&str, &str, &str); 4] = [
    ("admin", "admin", "system:masters"),
    ("detector", "detector", "detectors"),
    ("agent", "system:serviceaccount:umawarden:umawarden", "system:serviceaccounts"),
    ("stranger", "stranger", "strangers"),
];

const ROLES: &str = r#"
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: detectors}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-problem-detector"}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: detectors}]
"#;

/// On a busy machine of two processors the server takes half a minute.
const PATIENCE: Duration = Duration::from_secs(180);

/// An API server with its data. It ends when dropped.
pub struct Cluster {
    /// Fields are dropped in this order: the API server ends first.
    api: Option<Started>,
    _etcd: Started,
    program: PathBuf,
    kubectl: String,
    port: u16,
    etcd_url: String,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts one, and waits until it is ready. `None`, with a note: its programs are not named.
    pub fn start() -> Option<Self> {
        if !enabled() {
            return None;
        }
        let program = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty());
        let (Some(api), Some(etcd)) =
            (program("UMAWARDEN_KUBE_APISERVER"), program("UMAWARDEN_ETCD"))
        else {
            eprintln!(
                "skipped: UMAWARDEN_KUBE_APISERVER and UMAWARDEN_ETCD name no programs; \
                 tests/kubernetes/build makes them"
            );
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let (client, peer) = (free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let data = folder.path().join("etcd").display().to_string();
        let cluster = format!("default={peer}");
        let mut command = Command::new(etcd);
        command.args(["--data-dir", &data, "--logger", "zap", "--log-level", "error"]);
        command.args(["--listen-client-urls", &etcd_url, "--advertise-client-urls", &etcd_url]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &cluster]);
        let etcd = Started(spawn(&mut command, &folder.path().join("etcd.log")));
        let kubectl = std::env::var("UMAWARDEN_KUBECTL").unwrap_or_else(|_| "kubectl".to_owned());
        let mut cluster = Self {
            api: None,
            _etcd: etcd,
            program: api.into(),
            kubectl,
            port: free_port(),
            etcd_url,
            folder,
        };
        cluster.write_users();
        cluster.start_api();
        cluster.apply("admin", ROLES).unwrap();
        Some(cluster)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_users(&self) {
        let mut tokens = String::new();
        for (number, (user, name, groups)) in USERS.iter().enumerate() {
            tokens += &format!("{},{name},{number},\"{groups}\"\n", self.token(user));
        }
        fs::write(self.file("tokens.csv"), tokens).unwrap();
        let key = self.file("accounts.key").display().to_string();
        let made = Command::new("openssl").args(["genrsa", "-out", &key, "2048"]).output().unwrap();
        assert!(made.status.success(), "{made:?}");
    }

    /// The address: `https://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// The token of a user of [`USERS`].
    pub fn token(&self, user: &str) -> &'static str {
        match user {
            "admin" => "token-of-admin",
            "detector" => "token-of-detector",
            "agent" => "token-of-agent",
            "stranger" => "token-of-stranger",
            other => panic!("there is no user {other}"),
        }
    }

    /// The certificate that the server has made, with the authority that signed it (PEM).
    pub fn ca(&self) -> PathBuf {
        self.file("certificates/apiserver.crt")
    }

    /// A file for `kubeconfig` of the program and of kubectl.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        let path = self.file(&format!("{user}.kubeconfig"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
             clusters: [{{name: test, cluster: {{server: \"{}\", certificate-authority: \"{}\"}}}}]\n\
             users: [{{name: test, user: {{token: \"{}\"}}}}]\n\
             contexts: [{{name: test, context: {{cluster: test, user: test}}}}]\n",
            self.url(),
            self.ca().display(),
            self.token(user),
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// What kubectl prints as `admin`. It must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.kubectl_as("admin", arguments, "").unwrap_or_else(|error| panic!("{error}"))
    }

    /// What kubectl prints for a user, or the error. `input`: its standard input.
    pub fn kubectl_as(
        &self,
        user: &str,
        arguments: &[&str],
        input: &str,
    ) -> Result<String, String> {
        let mut child = Command::new(&self.kubectl)
            .env("KUBECONFIG", self.kubeconfig(user))
            .env("HOME", self.folder.path())
            .args(["--request-timeout", "20s"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; install kubectl", self.kubectl));
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        match output.status.success() {
            true => Ok(text(output.stdout)),
            false => {
                let printed = text(output.stdout) + &text(output.stderr);
                Err(format!("{user}: kubectl {arguments:?}: {printed}"))
            }
        }
    }

    /// Applies objects (YAML or JSON) as a user.
    pub fn apply(&self, user: &str, objects: &str) -> Result<String, String> {
        self.kubectl_as(user, &["apply", "-f", "-"], objects)
    }

    /// The status and the JSON of the response to a request of a user.
    pub fn request(
        &self,
        user: &str,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> (u16, Value) {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--max-time",
            "20",
            "--request",
            method,
            "--cacert",
        ]);
        curl.arg(self.ca()).args(["--write-out", "\n%{http_code}", "--header"]);
        curl.arg(format!("Authorization: Bearer {}", self.token(user)));
        if !body.is_null() {
            curl.args(["--header", &format!("Content-Type: {content_type}"), "--data"]);
            curl.arg(body.to_string());
        }
        let output = curl.arg(format!("{}{path}", self.url())).output().unwrap();
        assert!(output.status.success(), "{method} {path}: {output:?}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let (text, code) = printed.rsplit_once('\n').unwrap();
        (code.parse().unwrap(), serde_json::from_str(text).unwrap_or_default())
    }

    /// Kills the API server. Its data stay.
    pub fn stop_api(&mut self) {
        self.api = None;
    }

    /// Starts the API server at the same address, and waits until it is ready.
    pub fn start_api(&mut self) {
        let path = |name: &str| self.file(name).display().to_string();
        let mut command = Command::new(&self.program);
        command.args(["--etcd-servers", &self.etcd_url, "--bind-address", "127.0.0.1"]);
        command.args(["--secure-port", &self.port.to_string(), "--insecure-port", "0"]);
        command
            .args(["--cert-dir", &path("certificates"), "--token-auth-file"])
            .arg(path("tokens.csv"));
        command.args(["--service-account-key-file", &path("accounts.key")]);
        command.args(["--service-account-signing-key-file", &path("accounts.key")]);
        command.args(["--service-account-issuer", "https://umawarden.test"]);
        command.args(["--api-audiences", "api", "--service-cluster-ip-range", "10.0.0.0/24"]);
        command.args(["--authorization-mode", "RBAC", "--allow-privileged=true"]);
        command.args(["--disable-admission-plugins", "ServiceAccount"]);
        // A loopback address is no endpoint of the service `kubernetes`.
        command.args(["--endpoint-reconciler-type", "none"]);
        let log = self.file("api.log");
        self.api = Some(Started(spawn(&mut command, &log)));
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = self.kubectl_as("admin", &["get", "--raw", "/readyz"], "") {
            let ended = self.api.as_mut().unwrap().0.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the API server is not ready: {error}; ended: {ended:?}; its log:\n{}",
                last_lines(&log)
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }
}

/// A port that nobody listens on.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(command: &mut Command, log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let program = command.get_program().to_owned();
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
}

fn last_lines(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
