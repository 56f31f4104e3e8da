//! A fake logind and systemd: alone at the other end of a socket, or on a real bus.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use zbus::connection::Builder;
use zbus::message::{Header, Type};
use zbus::{Connection, MessageStream, ObjectPath, Variant};

use crate::bus_peers;

/// An inhibitor: what, who, why, mode, uid, pid.
pub type Inhibitor = (String, String, String, String, u32, u32);

/// One session, as logind reports it.
#[derive(Clone, Debug)]
pub struct Session {
    pub user: &'static str,
    pub class: &'static str,
    pub kind: &'static str,
    pub state: &'static str,
    pub terminal: String,
    pub is_remote: bool,
    /// It ends between the list and the query.
    pub has_gone: bool,
}

impl Session {
    /// A user at a terminal.
    pub fn at(user: &'static str, terminal: &str) -> Self {
        Self {
            user,
            class: "user",
            kind: "tty",
            state: "active",
            terminal: terminal.to_owned(),
            is_remote: false,
            has_gone: false,
        }
    }
}

/// Its responses, and the calls so far.
#[derive(Clone, Debug)]
pub struct State {
    /// Whether logind exists.
    pub has_logind: bool,
    /// Whether systemd exists.
    pub has_systemd: bool,
    pub may_reboot: String,
    pub inhibitors: Vec<Inhibitor>,
    pub sessions: Vec<Session>,
    /// Calls without a response.
    pub hangs: BTreeSet<&'static str>,
    /// Calls with a response of the wrong type.
    pub garbled: BTreeSet<&'static str>,
    /// Refused calls, with the name of the error.
    pub refuses: BTreeMap<&'static str, &'static str>,
    /// Calls so far, `interface.method`.
    pub calls: Vec<String>,
    /// Arguments of `Reboot` so far.
    pub interactive: Vec<bool>,
}

#[derive(Clone)]
pub struct FakeBus(Arc<Mutex<State>>);

const ABSENT: &str = "org.freedesktop.DBus.Error.ServiceUnknown";
const GONE: &str = "org.freedesktop.DBus.Error.UnknownObject";

impl FakeBus {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            has_logind: true,
            has_systemd: true,
            may_reboot: "yes".to_owned(),
            inhibitors: Vec::new(),
            sessions: Vec::new(),
            hangs: BTreeSet::new(),
            garbled: BTreeSet::new(),
            refuses: BTreeMap::new(),
            calls: Vec::new(),
            interactive: Vec::new(),
        })))
    }

    /// On that socket. Accepts peer connections, and clients that expect a bus.
    pub fn start(socket: &Path) -> Self {
        let fake = Self::new();
        let serving = fake.clone();
        bus_peers::serve_each(socket, move |connection| {
            let fake = serving.clone();
            async move { fake.serve(connection).await }
        });
        fake
    }

    /// On a real bus, as logind alone.
    pub fn on_bus(socket: &Path) -> Self {
        let fake = Self::new();
        let (address, serving) = (format!("unix:path={}", socket.display()), fake.clone());
        let (ready, is_ready) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            bus_peers::runtime().block_on(async {
                let builder = Builder::address(&*address).name("org.freedesktop.login1");
                let connection = builder.build().await.unwrap();
                ready.send(()).unwrap();
                serving.serve(connection).await;
            });
        });
        is_ready.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        fake
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// Number of reboots requested.
    pub fn reboots(&self) -> usize {
        self.calls().iter().filter(|call| call.ends_with(".Reboot")).count()
    }

    async fn serve(&self, connection: Connection) {
        let mut stream = MessageStream::from(&connection);
        loop {
            use zbus::export::futures_core::Stream as _;
            let next = std::future::poll_fn(|cx| std::pin::Pin::new(&mut stream).poll_next(cx));
            let Some(Ok(message)) = next.await else { return };
            if message.header().message_type() == Type::MethodCall {
                let interactive = message.body().deserialize().unwrap_or(true);
                // The client may have disconnected.
                let _ = self.answer(&connection, &message.header(), interactive).await;
            }
        }
    }

    async fn answer(
        &self,
        connection: &Connection,
        header: &Header<'_>,
        interactive: bool,
    ) -> zbus::Result<()> {
        let member = header.member().unwrap().to_string();
        if member == "Hello" {
            return connection.reply(header, &":1.7").await;
        }
        let path = header.path().unwrap().to_string();
        let is_of_logind = path.starts_with("/org/freedesktop/login1");
        let who = if is_of_logind { "logind" } else { "systemd" };
        let state = {
            let mut state = self.state();
            state.calls.push(format!("{who}.{member}"));
            if member == "Reboot" && is_of_logind {
                state.interactive.push(interactive);
            }
            state.clone()
        };
        let is_there = if is_of_logind { state.has_logind } else { state.has_systemd };
        if !is_there {
            return connection.reply_error(header, ABSENT, &"nobody of that name").await;
        }
        if state.hangs.contains(&*member) {
            return Ok(());
        }
        if let Some(name) = state.refuses.get(&*member) {
            return connection.reply_error(header, *name, &"no,\u{1b}[2J not now").await;
        }
        if state.garbled.contains(&*member) {
            return connection.reply(header, &(42_u64, "nonsense")).await;
        }
        match &*member {
            "CanReboot" => connection.reply(header, &state.may_reboot).await,
            "ListInhibitors" => connection.reply(header, &state.inhibitors).await,
            "ListSessions" => connection.reply(header, &listed(&state.sessions)).await,
            "GetAll" => match session_of(&path, &state.sessions) {
                Some(session) => connection.reply(header, &properties(session)).await,
                None => connection.reply_error(header, GONE, &"no such object").await,
            },
            _ => connection.reply(header, &()).await,
        }
    }
}

fn listed(
    sessions: &[Session],
) -> Vec<(String, u32, &'static str, &'static str, ObjectPath<'static>)> {
    let entry = |(number, session): (usize, &Session)| {
        let path = format!("/org/freedesktop/login1/session/{number}");
        let path = ObjectPath::try_from(path).unwrap();
        (number.to_string(), 1000, session.user, "", path)
    };
    sessions.iter().enumerate().map(entry).collect()
}

fn session_of<'s>(path: &str, sessions: &'s [Session]) -> Option<&'s Session> {
    let number: usize = path.rsplit('/').next()?.parse().ok()?;
    sessions.get(number).filter(|session| !session.has_gone)
}

fn properties(session: &Session) -> BTreeMap<&'static str, Variant<'_>> {
    BTreeMap::from([
        ("Class", Variant::from(session.class)),
        ("Type", Variant::from(session.kind)),
        ("State", Variant::from(session.state)),
        ("TTY", Variant::from(&*session.terminal)),
        ("Remote", Variant::from(session.is_remote)),
        ("Timestamp", Variant::from(1_795_000_000_000_000_u64)),
        ("Leader", Variant::from(4711_u32)),
    ])
}
