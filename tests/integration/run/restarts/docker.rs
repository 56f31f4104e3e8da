//! A fake Docker: it manages containers as the real one does, and has faults on demand.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Query {
    List,
    Inspect,
    Start,
    Follow,
    Events,
    Log,
}

/// A fault in place of a true response.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It accepts the request, and never answers.
    Hangs,
    /// It closes the connection.
    HangsUp,
    /// It dies in the middle of a true response.
    Cut,
    /// It answers without end.
    NeverEnds,
    /// It sends that response.
    Answers(u16, &'static str, String),
    /// It executes the request, and closes the connection without a response.
    ExecutesAndCloses,
    /// The container is removed before it answers.
    IsGone,
    /// Another client starts it before it answers.
    IsStarted,
}

/// One container.
#[derive(Clone, Debug)]
pub struct Container {
    pub name: String,
    pub is_running: bool,
    pub started: String,
    pub finished: String,
    pub exit_code: i32,
    pub log: Vec<u8>,
    /// Number of starts.
    pub starts: usize,
    /// Whether its labels enable restarts.
    pub is_held: bool,
    /// Docker's own restart policy.
    pub policy: &'static str,
}

#[derive(Debug, Default)]
pub struct State {
    pub containers: BTreeMap<String, Container>,
    faults: BTreeMap<Query, Fault>,
    /// Faults of the inspections of one container.
    inspections: BTreeMap<String, Fault>,
    events: Vec<(Timestamp, String, &'static str)>,
    pub queries: BTreeMap<Query, usize>,
}

pub struct FakeDocker {
    pub socket: PathBuf,
    state: Arc<Mutex<State>>,
    is_up: Arc<AtomicBool>,
}

pub const NEVER: &str = "0001-01-01T00:00:00Z";

pub fn id(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect::<String>()
        + &"0".repeat(64 - 2 * name.len())
}

impl FakeDocker {
    pub fn start(socket: &Path) -> Self {
        let docker = Self {
            socket: socket.to_owned(),
            state: Arc::default(),
            is_up: Arc::new(AtomicBool::new(false)),
        };
        docker.up();
        docker
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Begins to listen.
    pub fn up(&self) {
        self.is_up.store(true, Ordering::SeqCst);
        let listener = UnixListener::bind(&self.socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (state, is_up) = (Arc::clone(&self.state), Arc::clone(&self.is_up));
        std::thread::spawn(move || {
            while is_up.load(Ordering::SeqCst) {
                let Ok((stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                stream.set_nonblocking(false).unwrap();
                let one = Connection { state: Arc::clone(&state), is_up: Arc::clone(&is_up) };
                std::thread::spawn(move || one.serve(stream));
            }
        });
    }

    /// Ends with all connections, and forgets past events.
    pub fn down(&self) {
        self.is_up.store(false, Ordering::SeqCst);
        std::fs::remove_file(&self.socket).unwrap();
        self.state().events.clear();
        std::thread::sleep(Duration::from_millis(50));
    }

    pub fn set(&self, query: Query, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.faults.insert(query, fault),
            None => state.faults.remove(&query),
        };
    }

    pub fn set_inspection(&self, name: &str, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.inspections.insert(id(name), fault),
            None => state.inspections.remove(&id(name)),
        };
    }

    /// A running container.
    pub fn run(&self, name: &str) {
        let started = Timestamp::now().to_string();
        let container = Container {
            name: name.to_owned(),
            is_running: true,
            started,
            finished: NEVER.to_owned(),
            exit_code: 0,
            log: Vec::new(),
            starts: 0,
            is_held: true,
            policy: "no",
        };
        self.state().containers.insert(id(name), container);
        self.happens(name, "start");
    }

    pub fn dies(&self, name: &str) {
        {
            let mut state = self.state();
            let container = state.containers.get_mut(&id(name)).unwrap();
            container.is_running = false;
            container.exit_code = 1;
            container.finished = Timestamp::now().to_string();
        }
        self.happens(name, "die");
    }

    /// Docker starts it again itself, at once.
    pub fn starts(&self, name: &str) {
        {
            let mut state = self.state();
            let container = state.containers.get_mut(&id(name)).unwrap();
            container.is_running = true;
            container.started = Timestamp::now().to_string();
        }
        self.happens(name, "start");
    }

    fn happens(&self, name: &str, what: &'static str) {
        self.state().events.push((Timestamp::now(), id(name), what));
    }

    pub fn of(&self, name: &str) -> Container {
        self.state().containers[&id(name)].clone()
    }

    pub fn queries(&self, query: Query) -> usize {
        self.state().queries.get(&query).copied().unwrap_or(0)
    }
}

/// Docker's JSON of one container.
pub fn inspection(id: &str, container: &Container) -> Value {
    json!({
        "Id": id,
        "Name": format!("/{}", container.name),
        "State": {
            "Status": if container.is_running { "running" } else { "exited" },
            "Running": container.is_running,
            "OOMKilled": false,
            "ExitCode": container.exit_code,
            "Error": "",
            "StartedAt": container.started,
            "FinishedAt": container.finished,
            // It is ready at once.
            "Health": {"Status": "healthy"},
        },
        "HostConfig": {"RestartPolicy": {"Name": container.policy, "MaximumRetryCount": 0}},
        "Config": {"Labels": labels(container), "Tty": false},
    })
}

fn labels(container: &Container) -> Value {
    if !container.is_held {
        return json!({});
    }
    json!({"umawarden.restart": "when-ready", "umawarden.restart.need": "1GiB"})
}

struct Connection {
    state: Arc<Mutex<State>>,
    is_up: Arc<AtomicBool>,
}

fn answer(status: u16, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\
         \r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn as_json(status: u16, body: &Value) -> Vec<u8> {
    answer(status, "application/json", body.to_string().as_bytes())
}

impl Connection {
    fn serve(&self, mut stream: UnixStream) {
        let mut request = [0; 4096];
        let Ok(length) = stream.read(&mut request) else { return };
        let head = String::from_utf8_lossy(&request[..length]).into_owned();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let id = path.split('/').nth(2).unwrap_or_default().to_owned();
        let query = match path.split('?').next().unwrap_or_default() {
            "/containers/json" => Query::List,
            "/events" if path.contains("until=") => Query::Events,
            "/events" => Query::Follow,
            path if path.ends_with("/start") => Query::Start,
            path if path.ends_with("/logs") => Query::Log,
            _ => Query::Inspect,
        };
        // Requests that search for engines get no faults.
        let is_all = query != Query::List || path.contains("all=true");
        let fault = {
            let mut state = self.state.lock().unwrap();
            if is_all {
                *state.queries.entry(query).or_default() += 1;
            }
            let own = state.inspections.get(&id).filter(|_| query == Query::Inspect);
            own.or(state.faults.get(&query)).filter(|_| is_all).cloned()
        };
        // The client may have disconnected.
        let _ = self.reply(&mut stream, (query, &id), fault);
    }

    fn reply(
        &self,
        stream: &mut UnixStream,
        (query, id): (Query, &str),
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        match fault {
            None if query == Query::Follow => return self.follow(stream),
            None => stream.write_all(&self.truth(query, id))?,
            Some(Fault::Hangs) => self.wait(),
            Some(Fault::HangsUp) => {}
            Some(Fault::Cut) => {
                let truth = self.truth(query, id);
                stream.write_all(&truth[..truth.len() - 40])?;
            }
            Some(Fault::NeverEnds) => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n[")?;
                while self.is_up.load(Ordering::SeqCst) {
                    stream.write_all(&[b' '; 65536])?;
                }
            }
            Some(Fault::Answers(status, kind, body)) => {
                stream.write_all(&answer(status, kind, body.as_bytes()))?;
            }
            Some(Fault::ExecutesAndCloses) => drop(self.truth(query, id)),
            Some(Fault::IsGone) => {
                self.state.lock().unwrap().containers.remove(id);
                stream.write_all(&self.truth(query, id))?;
            }
            Some(Fault::IsStarted) => {
                self.truth(Query::Start, id);
                stream.write_all(&self.truth(query, id))?;
            }
        }
        Ok(())
    }

    fn wait(&self) {
        while self.is_up.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn truth(&self, query: Query, id: &str) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        let no_such = as_json(404, &json!({"message": format!("No such container: {id}")}));
        let known = state.containers.get(id).cloned();
        match query {
            Query::List => {
                let all = state.containers.iter().map(|(id, container)| {
                    let names = [format!("/{}", container.name)];
                    json!({"Id": id, "Names": names, "Labels": labels(container)})
                });
                as_json(200, &Value::Array(all.collect()))
            }
            Query::Inspect => known.map_or(no_such, |found| as_json(200, &inspection(id, &found))),
            Query::Log => known.map_or(no_such, |found| {
                answer(200, "application/vnd.docker.multiplexed-stream", &found.log)
            }),
            Query::Start => {
                let Some(container) = state.containers.get_mut(id) else { return no_such };
                if container.is_running {
                    return answer(304, "text/plain", b"");
                }
                container.is_running = true;
                container.starts += 1;
                container.started = Timestamp::now().to_string();
                state.events.push((Timestamp::now(), id.to_owned(), "start"));
                answer(204, "text/plain", b"")
            }
            Query::Events => {
                let lines: String = state.events.iter().map(line).collect();
                answer(200, "application/json", lines.as_bytes())
            }
            Query::Follow => Vec::new(),
        }
    }

    fn follow(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        let mut sent = self.state.lock().unwrap().events.len();
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
        while self.is_up.load(Ordering::SeqCst) {
            let new: String = {
                let state = self.state.lock().unwrap();
                let new = state.events.get(sent..).unwrap_or_default();
                sent = state.events.len();
                new.iter().map(line).collect()
            };
            stream.write_all(new.as_bytes())?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn line((at, id, what): &(Timestamp, String, &'static str)) -> String {
    let time_ns = i64::try_from(at.as_nanosecond()).unwrap();
    // Every death is an exit with that code.
    let attributes = if *what == "die" { json!({"exitCode": "1"}) } else { json!({}) };
    let event = json!({
        "Type": "container",
        "Action": what,
        "Actor": {"ID": id, "Attributes": attributes},
        "time": at.as_second(),
        "timeNano": time_ns,
    });
    format!("{event}\n")
}
