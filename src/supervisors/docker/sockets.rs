//! Where servers with Docker's API have their sockets.

use std::path::{Path, PathBuf};

/// The folders of users for the time of their sessions (`XDG_RUNTIME_DIR`, pam_systemd(8)).
pub const USER_FOLDERS: &str = "/run/user";

/// The sockets of rootless Docker and Podman below such a folder: `dockerd-rootless.sh` of Docker
/// 20.10, and podman-system-service(1).
pub const OF_USERS: [&str; 2] = ["docker.sock", "podman/podman.sock"];

/// The socket in `DOCKER_HOST`, if it is one: `unix://PATH`, as Docker's own commands read it.
pub fn socket_of_environment() -> Option<PathBuf> {
    socket_of(&std::env::var("DOCKER_HOST").ok()?)
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
}
