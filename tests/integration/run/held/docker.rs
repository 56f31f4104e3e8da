//! A made-up Docker: it keeps containers as the real one does, and answers as it is told to.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

/// What it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Question {
    List,
    Inspect,
    Start,
    Follow,
    Events,
    Log,
}

/// What it does instead of answering truly.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It takes the question, and never answers.
    Hangs,
    /// It closes the connection.
    HangsUp,
    /// It dies in the middle of a true answer.
    Cut,
    /// It answers without end.
    NeverEnds,
    /// It answers that.
    Says(u16, &'static str, String),
    /// It does what it is asked for, and closes the connection without a word.
    DoesAndHangsUp,
    /// The container goes before it answers.
    IsGone,
    /// Somebody else starts it before it answers.
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
    /// How often it was started.
    pub starts: usize,
    /// Whether its labels say that it is started again.
    pub is_held: bool,
    /// Docker's own restart policy.
    pub policy: &'static str,
}

#[derive(Debug, Default)]
pub struct State {
    pub containers: BTreeMap<String, Container>,
    faults: BTreeMap<Question, Fault>,
    /// Faults of one container's inspection.
    inspections: BTreeMap<String, Fault>,
    events: Vec<(Timestamp, String, &'static str)>,
    pub asked: BTreeMap<Question, usize>,
}

/// The server.
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

    /// It listens.
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

    /// It goes, with all its connections; of what has happened it remembers nothing.
    pub fn down(&self) {
        self.is_up.store(false, Ordering::SeqCst);
        std::fs::remove_file(&self.socket).unwrap();
        self.state().events.clear();
        std::thread::sleep(Duration::from_millis(50));
    }

    pub fn set(&self, question: Question, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.faults.insert(question, fault),
            None => state.faults.remove(&question),
        };
    }

    pub fn set_inspection(&self, name: &str, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.inspections.insert(id(name), fault),
            None => state.inspections.remove(&id(name)),
        };
    }

    /// A container that runs.
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

    pub fn asked(&self, question: Question) -> usize {
        self.state().asked.get(&question).copied().unwrap_or(0)
    }
}

/// What Docker writes of one.
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
            // So that it is ready at once.
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
        let question = match path.split('?').next().unwrap_or_default() {
            "/containers/json" => Question::List,
            "/events" if path.contains("until=") => Question::Events,
            "/events" => Question::Follow,
            path if path.ends_with("/start") => Question::Start,
            path if path.ends_with("/logs") => Question::Log,
            _ => Question::Inspect,
        };
        // Who asks which engines there are does not know these faults.
        let is_all = question != Question::List || path.contains("all=true");
        let fault = {
            let mut state = self.state.lock().unwrap();
            if is_all {
                *state.asked.entry(question).or_default() += 1;
            }
            let own = state.inspections.get(&id).filter(|_| question == Question::Inspect);
            own.or(state.faults.get(&question)).filter(|_| is_all).cloned()
        };
        // Whoever asked may have gone.
        let _gone = self.reply(&mut stream, (question, &id), fault);
    }

    fn reply(
        &self,
        stream: &mut UnixStream,
        (question, id): (Question, &str),
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        match fault {
            None if question == Question::Follow => return self.follow(stream),
            None => stream.write_all(&self.truth(question, id))?,
            Some(Fault::Hangs) => self.wait(),
            Some(Fault::HangsUp) => {}
            Some(Fault::Cut) => {
                let truth = self.truth(question, id);
                stream.write_all(&truth[..truth.len() - 40])?;
            }
            Some(Fault::NeverEnds) => {
                stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n[")?;
                while self.is_up.load(Ordering::SeqCst) {
                    stream.write_all(&[b' '; 65536])?;
                }
            }
            Some(Fault::Says(status, kind, body)) => {
                stream.write_all(&answer(status, kind, body.as_bytes()))?;
            }
            Some(Fault::DoesAndHangsUp) => drop(self.truth(question, id)),
            Some(Fault::IsGone) => {
                self.state.lock().unwrap().containers.remove(id);
                stream.write_all(&self.truth(question, id))?;
            }
            Some(Fault::IsStarted) => {
                self.truth(Question::Start, id);
                stream.write_all(&self.truth(question, id))?;
            }
        }
        Ok(())
    }

    fn wait(&self) {
        while self.is_up.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn truth(&self, question: Question, id: &str) -> Vec<u8> {
        let mut state = self.state.lock().unwrap();
        let no_such = as_json(404, &json!({"message": format!("No such container: {id}")}));
        let known = state.containers.get(id).cloned();
        match question {
            Question::List => {
                let all = state.containers.iter().map(|(id, container)| {
                    let names = [format!("/{}", container.name)];
                    json!({"Id": id, "Names": names, "Labels": labels(container)})
                });
                as_json(200, &Value::Array(all.collect()))
            }
            Question::Inspect => {
                known.map_or(no_such, |found| as_json(200, &inspection(id, &found)))
            }
            Question::Log => known.map_or(no_such, |found| {
                answer(200, "application/vnd.docker.multiplexed-stream", &found.log)
            }),
            Question::Start => {
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
            Question::Events => {
                let lines: String = state.events.iter().map(line).collect();
                answer(200, "application/json", lines.as_bytes())
            }
            Question::Follow => Vec::new(),
        }
    }

    fn follow(&self, stream: &mut UnixStream) -> std::io::Result<()> {
        let mut told = self.state.lock().unwrap().events.len();
        stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
        while self.is_up.load(Ordering::SeqCst) {
            let new: String = {
                let state = self.state.lock().unwrap();
                let new = state.events.get(told..).unwrap_or_default();
                told = state.events.len();
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
    // All that die end with that.
    let attributes = if *what == "die" { json!({"exitCode": "1"}) } else { json!({}) };
    let told = json!({
        "Type": "container",
        "Action": what,
        "Actor": {"ID": id, "Attributes": attributes},
        "time": at.as_second(),
        "timeNano": time_ns,
    });
    format!("{told}\n")
}
