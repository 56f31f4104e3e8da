//! Lists the running containers of users' own runtimes (rootless Docker and Podman), on its own
//! thread, so that a user's socket that hangs delays no container of the system. Only users with a
//! possible engine process are queried.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::runtime::Runtime;

use super::claims::Claims;
use super::containers::{DockerPace, SharedContainers, failure, rest};
use super::listing::RuntimeListing;
use crate::parse::container::{Container, Containers};
use crate::parse::process::printable;
use crate::supervisors::docker::{Docker, DockerError, OF_USERS, user_of};

/// Limit of the time of all users' queries in a pass. The others come first in the next one.
const ALL_TAKE: Duration = Duration::from_secs(5);

/// The pause of a user whose socket has not answered in time.
const SILENT_FOR: Duration = Duration::from_secs(30);

/// The time limit of a response: socket activation starts Podman.
const ANSWER_TAKES: Duration = Duration::from_secs(2);

/// The most sockets, and users without a socket, that are remembered as logged.
const MOST_LOGGED: usize = 256;

/// The most errors of one socket that are logged before it works: users choose parts of the texts.
const MOST_ERRORS: usize = 8;

#[derive(Debug)]
struct UserRuntimes {
    listings: Vec<RuntimeListing>,
    asked_at: Duration,
    retry_at: Duration,
    /// Why sockets of the user cannot be queried. An absent socket is no error.
    error: Option<Arc<str>>,
}

/// What the log has of users' sockets. It outlives the engines of a user.
#[derive(Debug, Default)]
struct LoggedErrors {
    /// The errors of each socket since it has worked.
    of_sockets: BTreeMap<PathBuf, BTreeSet<String>>,
    /// The users without a socket.
    without: BTreeSet<u32>,
}

impl LoggedErrors {
    fn forget(&mut self, user: u32, socket: &Path) {
        self.of_sockets.remove(socket);
        self.without.remove(&user);
    }

    /// Whether this error is to be logged.
    fn is_new(&mut self, socket: &Path, why: &str) -> bool {
        if self.of_sockets.len() >= MOST_LOGGED && !self.of_sockets.contains_key(socket) {
            self.of_sockets.clear();
        }
        let known = self.of_sockets.entry(socket.to_owned()).or_default();
        known.len() < MOST_ERRORS && known.insert(why.to_owned())
    }

    /// Whether it is to be logged that the user has no socket.
    fn is_newly_without(&mut self, user: u32) -> bool {
        if self.without.len() >= MOST_LOGGED {
            self.without.clear();
        }
        self.without.insert(user)
    }
}

/// Queries users' own runtimes.
#[derive(Debug)]
pub(super) struct UserWatch {
    /// The folder with a folder for each user.
    folder: PathBuf,
    /// Sockets in such folders that the configuration names.
    named: Vec<PathBuf>,
    procfs: PathBuf,
    pace: DockerPace,
    shared: SharedContainers,
    clock: fn() -> Duration,
    runtime: Runtime,
    users: BTreeMap<u32, UserRuntimes>,
    logged: LoggedErrors,
}

impl UserWatch {
    pub(super) fn new(
        (folder, named, procfs): (PathBuf, Vec<PathBuf>, PathBuf),
        pace: DockerPace,
        shared: SharedContainers,
        clock: fn() -> Duration,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (users, logged) = (BTreeMap::new(), LoggedErrors::default());
        Ok(Self { folder, named, procfs, pace, shared, clock, runtime, users, logged })
    }

    /// Runs until the loop ends.
    pub(super) fn run(&mut self, news: &Receiver<()>) {
        loop {
            let began = (self.clock)();
            let claims = self.shared.claimed().of_users;
            self.query(&claims, began);
            if !rest(news, self.pace, (self.clock, began, !claims.is_empty())) {
                return;
            }
        }
    }

    fn query(&mut self, claims: &BTreeMap<u32, Claims>, began: Duration) {
        self.users.retain(|user, _| claims.contains_key(user));
        let mut order: Vec<u32> = claims.keys().copied().collect();
        order.sort_by_key(|user| self.users.get(user).map(|known| known.asked_at));
        for user in order {
            let now = (self.clock)();
            let Some(claims) = claims.get(&user) else { continue };
            if now.saturating_sub(began) >= ALL_TAKE {
                break;
            }
            let (folder, named, procfs) = (&self.folder, &self.named, &self.procfs);
            let takes = ANSWER_TAKES.min(self.pace.answer_takes);
            let known = self
                .users
                .entry(user)
                .or_insert_with(|| UserRuntimes::new((folder, named), procfs, user, takes));
            known.query(&self.runtime, claims, (user, now), &mut self.logged);
        }
        let known = self.users.iter().map(|(user, known)| (*user, known.containers()));
        let error = |(user, known): (&u32, &UserRuntimes)| Some((*user, known.error.clone()?));
        let errors = self.users.iter().filter_map(error);
        // The collector `docker` does not fail by them: a user could otherwise switch off the
        // system's source.
        self.shared.set_of_users(known.collect(), errors.collect());
    }
}

impl UserRuntimes {
    fn new(
        (folder, named): (&Path, &[PathBuf]),
        procfs: &Path,
        user: u32,
        takes: Duration,
    ) -> Self {
        let mut sockets = OF_USERS.map(|name| folder.join(user.to_string()).join(name)).to_vec();
        let named = named.iter().filter(|socket| user_of(socket) == Some(user));
        sockets.extend(named.cloned());
        sockets.sort();
        sockets.dedup();
        let listing = |socket: PathBuf| {
            RuntimeListing::new(Docker::of_user(&socket, user), procfs.to_owned(), takes)
        };
        let listings = sockets.into_iter().map(listing).collect();
        Self { listings, asked_at: Duration::ZERO, retry_at: Duration::ZERO, error: None }
    }

    fn query(
        &mut self,
        runtime: &Runtime,
        claims: &Claims,
        (user, now): (u32, Duration),
        logged: &mut LoggedErrors,
    ) {
        if now < self.retry_at {
            return;
        }
        self.asked_at = now;
        let (mut absent, mut errors) = (Vec::new(), Vec::new());
        for listing in &mut self.listings {
            let socket = listing.socket.display().to_string();
            match listing.query(runtime, claims, now) {
                Ok(_) => logged.forget(user, &listing.socket),
                Err(DockerError::Absent) => absent.push(socket),
                Err(error) => {
                    if matches!(error, DockerError::TimedOut(_)) {
                        self.retry_at = now + SILENT_FOR;
                    }
                    let why = printable(failure(&socket, error).as_bytes());
                    if logged.is_new(&listing.socket, &why) {
                        tracing::warn!(user, %why, "the user's containers cannot be confirmed");
                    }
                    errors.push(why);
                }
            }
        }
        // A desktop program in a sandbox has a user namespace, too, and needs no runtime.
        if absent.len() == self.listings.len() && logged.is_newly_without(user) {
            let why = format!(
                "there is no {}: as that user, run `systemctl --user enable --now podman.socket` \
                 for Podman",
                absent.join(" and no ")
            );
            tracing::info!(user, %why, "the user's containers cannot be confirmed");
        }
        self.error = (!errors.is_empty()).then(|| errors.join("; ").into());
    }

    fn containers(&self) -> Containers {
        let known = self.listings.iter().flat_map(RuntimeListing::known);
        known.map(|(id, container)| (id.clone(), bounded(container.clone()))).collect()
    }
}

/// A user must not direct the daemon to addresses of others.
fn bounded(mut container: Container) -> Container {
    container.addresses.clear();
    container.published.retain(|(_, at)| at.ip().is_loopback());
    container
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    const LIST: &str =
        include_str!("../../../tests/fixtures/docker/containers-podman-rootless-4.3.1.json");
    const INSPECTION: &str =
        include_str!("../../../tests/fixtures/docker/inspect-podman-rootless-4.3.1.json");

    /// Podman at a socket in the folder of a user, whose container has that first process.
    fn serve(folder: &Path, user: u32, pid: u32) {
        let folder = folder.join(user.to_string()).join("podman");
        fs::create_dir_all(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("podman.sock")).unwrap();
        let inspection = INSPECTION.replace("\"Pid\":2833", &format!("\"Pid\":{pid}"));
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 1024];
                let length = stream.read(&mut request).unwrap();
                let is_list = request[..length].starts_with(b"GET /containers/json");
                let body = if is_list { LIST } else { &inspection };
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                // The client may have gone.
                let _ = stream.write_all(format!("{head}{body}").as_bytes());
            }
        });
    }

    #[test]
    fn only_a_users_own_runtime_is_asked_and_a_silent_one_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let own = rustix::process::geteuid().as_raw();
        let pid = std::process::id();
        serve(folder.path(), own, pid);
        // Another user's folder leads to a server that is not the user's.
        serve(folder.path(), own + 1, pid);
        // A Docker that does not answer, beside the Podman that does.
        let silent = folder.path().join(own.to_string()).join("docker.sock");
        let _silent = UnixListener::bind(silent).unwrap();
        let pace = DockerPace { answer_takes: Duration::from_millis(300), ..DockerPace::default() };
        let (shared, clock) = (SharedContainers::default(), || Duration::from_secs(7));
        let paths = (folder.path().to_owned(), Vec::new(), PathBuf::from("/proc"));
        let mut watch = UserWatch::new(paths, pace, shared.clone(), clock).unwrap();
        let id: Arc<str> =
            "ce32d04c354e11a1f5ae24287008343f248bf67f06f7fe796012d31570ff366a".into();
        let claims = Claims { ids: [Arc::clone(&id)].into(), is_any: false };
        let users = [own, own + 1].map(|user| (user, claims.clone()));
        watch.query(&users.into(), Duration::from_secs(7));
        let known = shared.get().containers;
        let found = known.get(Some(own), &id).unwrap();
        assert_eq!((&*found.name, found.init.map(|init| init.pid)), ("lives", Some(pid)));
        assert!(found.socket.as_ref().unwrap().ends_with("podman/podman.sock"));
        assert!(found.log.as_ref().unwrap().ends_with("userdata/ctr.log"));
        assert_eq!((known.get(Some(own + 1), &id), known.get(None, &id)), (None, None));
        let why = known.user_errors[&(own + 1)].to_string();
        assert!(why.contains(&format!("served by user {own}")), "{why}");
        let why = known.user_errors[&own].to_string();
        assert!(why.contains("docker.sock has not answered") && !why.contains("podman"), "{why}");
        assert_eq!(watch.users[&own].retry_at, Duration::from_secs(7) + SILENT_FOR);
    }

    #[test]
    fn an_error_of_a_socket_is_logged_once_until_it_works() {
        let denied = DockerError::from(io::Error::from(io::ErrorKind::PermissionDenied));
        let why = failure("/run/user/7/docker.sock", denied);
        let begin = "/run/user/7/docker.sock: permission denied";
        assert!(why.starts_with(begin) && why.contains("print drop-in rootless"), "{why}");
        let (docker, podman) = (Path::new("/run/user/7/docker.sock"), Path::new("/run/user/7/p"));
        let mut logged = LoggedErrors::default();
        assert!(logged.is_new(docker, &why) && !logged.is_new(docker, &why));
        assert!(logged.is_new(podman, &why), "another socket");
        assert!(logged.is_new(docker, "it hangs") && !logged.is_new(docker, &why));
        logged.forget(7, docker);
        assert!(logged.is_new(docker, &why) && !logged.is_new(podman, &why));
        // A server that invents errors does not fill the log.
        let count = (0..99).filter(|number| logged.is_new(podman, &number.to_string())).count();
        assert_eq!(count, MOST_ERRORS - 1);
        assert!(logged.is_newly_without(7) && !logged.is_newly_without(7));
        logged.forget(7, docker);
        assert!(logged.is_newly_without(7));
    }

    #[test]
    fn a_user_names_no_address_of_others() {
        let at = |at: &str| (8000, at.parse().unwrap());
        let container = Container {
            addresses: vec!["169.254.169.254".parse().unwrap()],
            published: vec![at("10.0.0.1:80"), at("127.0.0.1:8001")],
            ..Container::default()
        };
        let container = bounded(container);
        assert!(container.addresses.is_empty());
        assert_eq!(container.published, [at("127.0.0.1:8001")]);
    }
}
