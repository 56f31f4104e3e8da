//! Where servers with Docker's API have their sockets.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::parse::docker_client::{context_host, current_context};

/// The folders of users for the time of their sessions (`XDG_RUNTIME_DIR`, pam_systemd(8)).
pub const USER_FOLDERS: &str = "/run/user";

/// The sockets of rootless Docker and Podman below such a folder: `dockerd-rootless.sh` of Docker
/// 20.10, and podman-system-service(1).
pub const OF_USERS: [&str; 2] = ["docker.sock", "podman/podman.sock"];

/// The context of Docker's own default address.
const DEFAULT_CONTEXT: &str = "default";

/// The home of the user that runs clients without the variable.
const ROOTS_HOME: &str = "/root";

/// The files of a client are a few hundred bytes.
pub const MOST_CLIENT_BYTES: u64 = 256 << 10;

/// The daemon that a client of Docker uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEndpoint {
    /// Docker's own default.
    Default,
    /// The server of a socket.
    Socket(PathBuf),
    /// Another machine, or not to be known.
    Elsewhere,
}

impl ClientEndpoint {
    /// The endpoint of a client with these variables, which sees these files. The first of
    /// `DOCKER_HOST`, `DOCKER_CONTEXT` and `currentContext` counts.
    pub fn of(
        variable: impl Fn(&str) -> Option<String>,
        read: impl Fn(&str) -> io::Result<Vec<u8>>,
    ) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        if let Some(host) = set("DOCKER_HOST") {
            return Self::at(&host);
        }
        let home = || set("HOME").unwrap_or_else(|| ROOTS_HOME.to_owned());
        let folder = set("DOCKER_CONFIG").unwrap_or_else(|| format!("{}/.docker", home()));
        let context = match set("DOCKER_CONTEXT") {
            Some(context) => Some(context),
            None => match read(&format!("{folder}/config.json")) {
                Ok(text) => current_context(&text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => return Self::Elsewhere,
            },
        };
        match context.filter(|name| name != DEFAULT_CONTEXT) {
            None => Self::Default,
            Some(context) => {
                let meta = read(&format!("{folder}/contexts/meta/{}/meta.json", digest(&context)));
                let host = meta.ok().and_then(|text| context_host(&text));
                host.map_or(Self::Elsewhere, |host| Self::at(&host))
            }
        }
    }

    fn at(host: &str) -> Self {
        socket_of(host).map_or(Self::Elsewhere, Self::Socket)
    }

    /// Whether a server at that socket may be the daemon.
    pub fn may_be(&self, socket: Option<&str>) -> bool {
        // A link on all distributions.
        let usual = |path: &Path| match path.strip_prefix("/var/run") {
            Ok(below) => Path::new("/run").join(below),
            Err(_) => path.to_owned(),
        };
        match self {
            Self::Default => true,
            Self::Socket(own) => {
                socket.is_some_and(|socket| usual(own) == usual(Path::new(socket)))
            }
            Self::Elsewhere => false,
        }
    }
}

/// The folder of a context in those of all.
fn digest(context: &str) -> String {
    Sha256::digest(context.as_bytes()).iter().fold(String::new(), |mut text, byte| {
        // A text takes all.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The socket that Docker's own commands would use in this environment, if it is not the default:
/// that of `DOCKER_HOST`, `unix://PATH`, or of the context.
pub fn socket_of_environment() -> Option<PathBuf> {
    let read = |path: &str| -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        File::open(path)?.take(MOST_CLIENT_BYTES).read_to_end(&mut text)?;
        Ok(text)
    };
    match ClientEndpoint::of(|name| std::env::var(name).ok(), read) {
        ClientEndpoint::Socket(socket) => Some(socket),
        ClientEndpoint::Default | ClientEndpoint::Elsewhere => None,
    }
}

fn socket_of(host: &str) -> Option<PathBuf> {
    host.strip_prefix("unix://").filter(|path| path.starts_with('/')).map(PathBuf::from)
}

/// The user in whose folder for the time of the session a path is.
pub fn user_of(path: &Path) -> Option<u32> {
    let below = path.strip_prefix(USER_FOLDERS).ok()?;
    below.iter().next()?.to_str()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_socket_and_the_socket_of_the_environment_are_read() {
        let user = |path: &str| user_of(Path::new(path));
        assert_eq!(user("/run/user/1000/docker.sock"), Some(1000));
        assert_eq!(user("/run/user/1000/podman/podman.sock"), Some(1000));
        for system in
            ["/run/docker.sock", "/run/user/x/docker.sock", "/run/users/7/s", "run/user/7/s"]
        {
            assert_eq!(user(system), None, "{system}");
        }
        assert_eq!(
            socket_of("unix:///run/user/1000/docker.sock"),
            Some("/run/user/1000/docker.sock".into())
        );
        for other in
            ["tcp://127.0.0.1:2375", "ssh://host", "unix://docker.sock", "/run/docker.sock", ""]
        {
            assert_eq!(socket_of(other), None, "{other}");
        }
    }

    /// Names with their texts.
    type Texts<'a> = &'a [(&'a str, &'a str)];

    /// The endpoint of a client with these variables and files.
    fn endpoint(variables: Texts<'_>, files: Texts<'_>) -> ClientEndpoint {
        let found = |all: Texts<'_>, name: &str| {
            all.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        };
        let read = |path: &str| -> io::Result<Vec<u8>> {
            let text = found(files, path).map(String::into_bytes);
            text.ok_or_else(|| io::ErrorKind::NotFound.into())
        };
        ClientEndpoint::of(|name| found(variables, name), read)
    }

    #[test]
    fn the_daemon_of_a_client_is_that_of_its_variables_and_then_of_its_context() {
        // `printf rootless | sha256sum`.
        let meta = "contexts/meta/\
                    12b961af5feb3e9d39f93b2cefb9a1a944f18d02cca0cac2f04f5a982240605f/meta.json";
        let (at_home, named) = (format!("/root/.docker/{meta}"), format!("/etc/d/{meta}"));
        let socket = "/run/user/1000/docker.sock";
        let host = format!(r#"{{"Endpoints":{{"docker":{{"Host":"unix://{socket}"}}}}}}"#);
        let remote = r#"{"Endpoints":{"docker":{"Host":"ssh://other"}}}"#;
        let config = ("/root/.docker/config.json", r#"{"currentContext":"rootless"}"#);
        let usual = ("/root/.docker/config.json", r#"{"currentContext":"default"}"#);
        let of_user = ClientEndpoint::Socket(socket.into());
        let cases: [(Texts<'_>, Texts<'_>, ClientEndpoint); 10] = [
            (&[], &[], ClientEndpoint::Default),
            (&[], &[usual], ClientEndpoint::Default),
            (&[], &[config, (&*at_home, &*host)], of_user.clone()),
            (&[], &[config, (&*at_home, remote)], ClientEndpoint::Elsewhere),
            (&[], &[config], ClientEndpoint::Elsewhere),
            (&[("DOCKER_CONTEXT", "default")], &[config], ClientEndpoint::Default),
            (
                &[("DOCKER_CONTEXT", "rootless"), ("DOCKER_CONFIG", "/etc/d")],
                &[usual, (&*named, &*host)],
                of_user.clone(),
            ),
            (&[("DOCKER_HOST", "unix:///x")], &[config], ClientEndpoint::Socket("/x".into())),
            (&[("DOCKER_HOST", "tcp://h:1")], &[], ClientEndpoint::Elsewhere),
            (&[("DOCKER_HOST", ""), ("HOME", "/h")], &[config], ClientEndpoint::Default),
        ];
        for (variables, files, expected) in cases {
            assert_eq!(endpoint(variables, files), expected, "{variables:?} {files:?}");
        }
        assert!(of_user.may_be(Some(socket)) && !of_user.may_be(Some("/run/docker.sock")));
        let system = ClientEndpoint::Socket("/var/run/docker.sock".into());
        assert!(system.may_be(Some("/run/docker.sock")) && !system.may_be(None));
        assert!(ClientEndpoint::Default.may_be(None));
    }
}
