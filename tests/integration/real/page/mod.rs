//! The page in a real browser: headless Chromium, driven by playwright-core.

mod screenshots;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use umawarden::model::{EngineHealth, EngineLoad, HealthResponse, Reading, Role};

use crate::access::{Files, HASH, program, token};
use crate::daemon::{Daemon, binary};
use crate::exports::page::full_status;
use crate::exports::server;
use crate::real::enabled;
use crate::run::Node;

/// Set by `tests/run`: where `tests/tools/page` has installed what the page and its tests need.
const MODULES: &str = "UMAWARDEN_PAGE_MODULES";

/// What happens is shown within this time: the time between two pictures.
const LIVE_MS: f64 = 1000.0;

/// How much later than that it may be: eight tests at a time keep a machine of two processors busy,
/// so that the task that writes pictures and the browser wait for a processor.
const SLACK_MS: f64 = 1500.0;

/// Debian's browser.
const CHROMIUM: &str = "/usr/bin/chromium";

/// What npm has installed; `None`, with a note, where it is absent.
fn modules() -> Option<PathBuf> {
    if !enabled() {
        return None;
    }
    let modules = std::env::var_os(MODULES).map(PathBuf::from);
    if modules.is_none() {
        eprintln!(
            "skipped: {MODULES} is not set: tests/run sets it, where node 20 and npm are installed"
        );
    }
    modules
}

/// A browser; ended when dropped.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Browser {
    /// `None`, with a note, where it cannot be had.
    fn start() -> Option<Self> {
        let modules = modules()?;
        if !Path::new(CHROMIUM).exists() {
            eprintln!("skipped: there is no {CHROMIUM}; tests/run installs it");
            return None;
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("node");
        command.arg(root.join("tests/integration/real/page/drive.mjs"));
        command.arg(root.join(modules)).arg(CHROMIUM);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Some(Self { child, to, from: BufReader::new(from) })
    }

    /// Has the script carry out a command, and returns its result.
    fn run(&mut self, what: &str, more: Value) -> Value {
        let mut command = more;
        command["do"] = what.into();
        writeln!(self.to, "{command}").unwrap();
        let mut line = String::new();
        assert!(self.from.read_line(&mut line).unwrap() > 0, "the browser has ended: {command}");
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer.get("error").is_none(), "{answer:#}");
        answer["result"].clone()
    }

    fn open(&mut self, daemon: &Daemon, more: Value) {
        let mut command = more;
        command["url"] = format!("http://{}/", daemon.address()).into();
        self.run("open", command);
    }

    fn texts(&mut self, selector: &str) -> Vec<String> {
        let texts = self.run("text", json!({ "selector": selector }));
        serde_json::from_value(texts).unwrap()
    }

    fn number(&mut self, selector: &str) -> u64 {
        self.run("number", json!({ "selector": selector })).as_u64().unwrap()
    }

    fn click(&mut self, selector: &str) {
        self.run("click", json!({ "selector": selector }));
    }

    /// No error, no warning, and no request but to this node.
    fn assert_clean(&mut self, daemon: &Daemon) {
        let seen = self.run("seen", json!({}));
        assert_eq!(seen["errors"], json!([]), "{seen:#}");
        let own = format!("http://{}/", daemon.address());
        let requests = seen["requests"].as_array().unwrap();
        assert!(requests.len() >= 5, "{requests:?}");
        for request in requests {
            assert!(request.as_str().unwrap().starts_with(&own), "{request}");
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A name as an attacker writes it, in the rules of a node.
const RULES: &str = "
groups:
- name: g
  rules:
  - alert: MemoryLow
    expr: uma_memory_free_bytes < 2e9
    labels: {severity: critical}
    annotations: {summary: '<img src=x onerror=\"document.hacked=1\"> {{ $value }} left'}
    remedy:
      aim: uma_memory_free_bytes > 2e9
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 1h
  - alert: Always
    expr: uma_memory_free_bytes >= 0
    labels: {severity: warning}
    annotations: {summary: '</script><script>document.hacked=2</script>'}
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - compact_memory: {}
      cooldown: 1h
      require_approval: {expires: 1h}
  - alert: Announced
    expr: uma_memory_free_bytes >= 0
    remedy:
      aim: uma_memory_free_bytes < 0
      steps:
      - drop_caches: {what: pagecache}
      cooldown: 1h
      require_approval: {unless_denied_within: 10m}
";

fn node() -> Node {
    let node = Node::new("gb10-4k");
    node.write_rules(RULES);
    node.set_meminfo("MemFree", 60 << 20);
    node
}

fn start(node: &Node) -> Daemon {
    start_with(node, &[])
}

fn start_with(node: &Node, more: &[String]) -> Daemon {
    let arguments = node.arguments();
    let arguments: Vec<&str> = arguments.iter().chain(more).map(String::as_str).collect();
    Daemon::start(&node.storage(), &arguments)
}

/// Runs a command of an operator.
fn order(node: &Node, arguments: &[&str]) {
    let mut command = Command::new(binary());
    let output = command.args(arguments).arg("--storage.path").arg(node.storage()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
}

/// A daemon whose page has an engine, two other nodes, a silence, both kinds of approvals, and a
/// start that waits.
fn start_full(node: &Node) -> Full {
    let other_node = self::node();
    let other = start(&other_node);
    node.set_meminfo("MemFree", 1 << 20);
    node.put_engine();
    let peers = format!("peers: ['127.0.0.1:1', '{}']", other.address());
    let cluster = format!("cluster: {{name: rack, node: spark-1, {peers}, interval: 500ms}}");
    let starts = format!("starts: {{folder: {}}}", node.path("starts").display());
    std::fs::write(node.path("umawarden.yaml"), format!("{cluster}\n{starts}\n")).unwrap();
    let config = format!("--config.file={}", node.path("umawarden.yaml").display());
    let daemon = start_with(node, std::slice::from_ref(&config));
    order(node, &["silence", "MemoryLow", "--for", "2h", "--comment", "loading by hand"]);
    for part in ["would drop", "VLLM", "127.0.0.1:1", "loading by hand", "Announced"] {
        daemon.wait_until(part, |daemon| daemon.get("/").1.contains(part));
    }
    let mut gate = Command::new(binary());
    gate.args(["gate", "--need", "100GiB", "--name", "deepseek", &config, "--storage.path"]);
    gate.arg(node.storage()).args(node.arguments().iter().filter(|one| one.contains("procfs")));
    let waiter = Waiter(gate.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    daemon.wait_until("waiting", |daemon| daemon.get("/").1.contains("deepseek"));
    let link = format!("<a href=\"http://{}/\">", other.address());
    daemon.wait_until("linked", |daemon| daemon.get("/").1.contains(&link));
    Full { daemon, _waiter: waiter, _other: other, _other_node: other_node }
}

/// What [`start_full`] has started.
struct Full {
    daemon: Daemon,
    _waiter: Waiter,
    _other: Daemon,
    _other_node: Node,
}

/// A start that waits for memory; ended when dropped.
struct Waiter(Child);

impl Drop for Waiter {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_page_is_live_and_shows_a_collapse() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let daemon = start(&node);
    browser.open(&daemon, json!({}));
    let paces = browser.run("paces", json!({ "pictures": 4 }));
    // Other tests may keep the machine busy.
    let fastest = paces.as_array().unwrap().iter().filter_map(Value::as_u64).min().unwrap();
    assert!((700..=1300).contains(&fastest), "a picture each second: {paces}");
    let delays = browser.run("delays", json!({ "pictures": 5 }));
    let least = |name: &str| {
        let all = delays.as_array().unwrap().iter();
        all.map(|delay| delay[name].as_f64().unwrap()).fold(f64::INFINITY, f64::min)
    };
    assert!((0.0..LIVE_MS).contains(&least("age")), "a sample is shown at once: {delays}");
    assert!((0.0..200.0).contains(&least("drawn")), "a picture is shown at once: {delays}");
    let parts = browser.texts("#memory tbody tr");
    assert!(parts.len() >= 7, "{parts:?}");
    assert!(browser.texts("#well").concat().contains("Needs attention"));

    // Times are in the visitor's zone, which is Tokyo's.
    let clock = "(() => {
        const shown = document.querySelector('#sampled time');
        const hours = (new Date(shown.dateTime).getUTCHours() + 9) % 24;
        return [shown.textContent, String(hours).padStart(2, '0')];
    })()";
    let clock = browser.run("evaluate", json!({ "expression": clock }));
    assert!(clock[0].as_str().unwrap().starts_with(clock[1].as_str().unwrap()), "{clock}");

    browser.run("awaitEntry", json!({ "text": "MemoryLow fires" }));
    node.set_meminfo("MemFree", 1 << 20);
    let age = browser.run("entryAge", json!({})).as_f64().unwrap();
    // From the sample that shows the collapse, by its own time, until a person sees it.
    assert!(age < LIVE_MS + SLACK_MS, "shown {age} ms after the sample");
    browser.run("until", json!({ "selector": "#memory tbody", "pattern": "free1.00 GiB" }));
    browser.run("until", json!({ "selector": "#well", "pattern": "In trouble" }));
    browser.run("until", json!({ "selector": "#happened tbody", "pattern": "MemoryLow fires" }));
    let happened = browser.texts("#happened tbody").concat();
    assert!(happened.contains("would drop"), "what would have been done: {happened}");
    // What names say is text.
    assert!(happened.contains("<img src=x onerror="), "{happened}");
    assert_eq!(browser.number("main img"), 0);
    let hacked = browser.run("evaluate", json!({ "expression": "document.hacked ?? null" }));
    assert_eq!(hacked, Value::Null);
    browser.assert_clean(&daemon);
}

#[test]
fn a_node_that_hangs_or_ends_is_unknown_and_not_well() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let daemon = start(&node);
    browser.open(&daemon, json!({}));
    browser.run("until", json!({ "selector": "#well", "pattern": "^Needs attention" }));
    daemon.signal(rustix::process::Signal::STOP);
    browser.run("until", json!({ "selector": "#well", "pattern": "^UnknownNo new sample since " }));
    browser.run("until", json!({ "selector": "title", "pattern": "^Unknown: " }));
    assert_eq!(browser.number("#well.unknown"), 1);
    daemon.signal(rustix::process::Signal::CONT);
    browser.run("until", json!({ "selector": "#well", "pattern": "^Needs attention" }));
    browser.run("until", json!({ "selector": "title", "pattern": "^Needs attention: " }));
    daemon.kill();
    let pattern = "^UnknownThe node does not answer since .*: the connection is lost";
    browser.run("until", json!({ "selector": "#well", "pattern": pattern }));
    browser.run("until", json!({ "selector": "title", "pattern": "^Unknown: " }));
}

#[test]
fn trouble_shows_in_the_title_of_a_hidden_page() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let daemon = start(&node);
    browser.open(&daemon, json!({ "clock": true }));
    browser.run("hide", json!({ "milliseconds": 31_000 }));
    node.set_meminfo("MemFree", 1 << 20);
    daemon.wait_until("in trouble", |daemon| daemon.get("/").1.contains("In trouble"));
    browser.run("pass", json!({ "milliseconds": 61_000 }));
    browser.run("until", json!({ "selector": "title", "pattern": "^In trouble: " }));
}

#[test]
fn what_people_order_and_folds_are_shown_without_a_reload() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let daemon = start(&node);
    browser.open(&daemon, json!({}));
    order(&node, &["pause", "--comment", "firmware"]);
    browser.run("until", json!({ "selector": "#well", "pattern": "paused by .*: firmware" }));
    order(&node, &["resume"]);
    browser.run("until", json!({ "selector": "#well", "pattern": "^(?!.*paused by)" }));
    order(&node, &["silence", "MemoryLow", "--for", "2h", "--comment", "loading by hand"]);
    browser
        .run("until", json!({ "selector": "#silences", "pattern": "MemoryLow.*loading by hand" }));
    browser.click("#counters > summary");
    browser.run("until", json!({ "selector": "#counters", "pattern": "free60.0 GiB" }));
    node.set_meminfo("MemFree", 8 << 20);
    browser.run("until", json!({ "selector": "#counters", "pattern": "free8.0 GiB" }));
    assert_eq!(browser.number("#counters[open]"), 1, "it stays open");
    browser.assert_clean(&daemon);
}

#[test]
fn a_click_or_a_key_opens_the_explanation() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    node.set_meminfo("MemFree", 1 << 20);
    let daemon = start(&node);
    browser.open(&daemon, json!({}));
    browser.run("until", json!({ "selector": "#happened tbody", "pattern": "would drop" }));
    // Of many entries the first are shown, until all are wanted.
    browser.click("#more");
    browser.run("until", json!({ "selector": "#more", "pattern": "Only the first 6" }));
    browser.click("#happened button:has-text('MemoryLow: would drop')");
    browser.run("until", json!({ "selector": "dialog[open]", "pattern": "Condition" }));
    let shown = browser.texts("dialog[open]").concat();
    for wanted in ["uma_memory_free_bytes < 2e9", "1.00 GiB", "Aim: missed", "Steps"] {
        assert!(shown.contains(wanted), "{wanted}: {shown}");
    }
    browser.run("press", json!({ "selector": "dialog[open] button", "key": "Escape" }));
    assert_eq!(browser.number("dialog[open]"), 0);
    let alert = "#happened button:has-text('MemoryLow fires')";
    browser.run("press", json!({ "selector": alert, "key": "Enter" }));
    browser.run("until", json!({ "selector": "dialog[open]", "pattern": "firing, mode observe" }));
    browser.run("press", json!({ "selector": "dialog[open] button", "key": "Escape" }));

    // So does a click on a mark of the plot, which says what it is.
    let mark = browser.run("mark", json!({}));
    assert!(!mark["tip"].as_str().unwrap().is_empty(), "{mark}");
    assert_eq!(mark["title"], mark["tip"], "{mark}");
    browser.run("press", json!({ "selector": "dialog[open] button", "key": "Escape" }));

    // The plot answers to keys, too: the table has the values of a point.
    browser.run("press", json!({ "selector": "#plot", "key": "ArrowLeft" }));
    browser.run("until", json!({ "selector": "#levels", "pattern": "^At " }));
    // The expressions are in folds of the fold.
    assert_eq!(browser.number("#rules:not([open])"), 1);
    browser.click("#rules > summary");
    browser.click("#rules tbody details summary");
    assert!(browser.texts("#rules tbody code").concat().contains("uma_memory_free_bytes"));
    browser.assert_clean(&daemon);
}

#[test]
fn the_page_fits_a_phone_and_works_without_a_script() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let full = start_full(&node);
    let daemon = &full.daemon;
    for scheme in ["light", "dark"] {
        browser.open(daemon, json!({ "width": 360, "height": 740, "scheme": scheme }));
        let overflow = browser.run("overflow", json!({}));
        assert_eq!(overflow["beyond"], json!([]), "{overflow:#}");
        assert!(overflow["width"].as_u64() <= overflow["window"].as_u64(), "{overflow:#}");
        assert_eq!(browser.number("#nodes a"), 1, "of the node that answers");
        assert!(browser.texts("#waiting tbody").concat().contains("deepseek"));
        let announced = browser.texts("#approvals tbody").concat();
        assert!(announced.contains(" unless denied"), "also on a phone: {announced}");
    }
    // Nothing is broken within a word that has no need to be.
    browser.open(daemon, json!({}));
    let heights = "[...document.querySelectorAll('thead th, .when time')].filter((one) =>
        one.textContent.split(' ').length === 1 && one.getClientRects().length > 1).length";
    assert_eq!(browser.run("evaluate", json!({ "expression": heights })), 0);
    let top = "document.getElementById('engines').getBoundingClientRect().top";
    let top = browser.run("evaluate", json!({ "expression": top }));
    assert!(top.as_f64() < Some(800.0), "what runs is on the first screen: {top}");
    browser.open(daemon, json!({ "script": false }));
    let parts = browser.texts("#memory tbody").concat();
    assert!(parts.contains("1.00 GiB"), "{parts}");
    assert!(browser.texts("#happened tbody").concat().contains("would drop"));
    assert!(browser.texts("#approvals tbody").concat().contains("umawarden approve"));
    assert!(browser.texts("#sampled").concat().contains("UTC"));
}

#[test]
fn progress_queue_and_cache_of_an_engine_are_shown_on_a_phone_too() {
    let Some(mut browser) = Browser::start() else { return };
    let server = server::start();
    let mut status = full_status();
    let mut engine = status.engines[0].clone();
    let load = EngineLoad {
        running: Reading::Value(3),
        waiting: Reading::Value(1),
        kv_cache_usage: Reading::Value(0.41),
        ..EngineLoad::default()
    };
    engine.health = Some(EngineHealth {
        engine: Arc::clone(&engine.engine.name),
        server: engine.engine.server,
        asked_at: Duration::from_secs(99),
        answer: HealthResponse::Ready,
        requests: Reading::Value(4),
        load,
        key_withheld: None,
    });
    status.engines = Arc::new([engine]);
    server.status.store(Arc::new(status));
    let url = format!("http://{}/", server.address);
    for (width, is_narrow) in [(1280, false), (360, true)] {
        for script in [true, false] {
            browser.run("open", json!({ "url": url, "width": width, "script": script }));
            let shown = browser.texts("#engines tbody").concat();
            for wanted in ["49 %, 51 s left", "3 run, 1 wait", "41 %"] {
                assert!(shown.contains(wanted), "{width} {script} {wanted}: {shown}");
            }
            let is_short = shown.contains("3 run, 1 wait, KV 41 %");
            assert_eq!(is_short, is_narrow, "{width} {script}: {shown}");
        }
    }
    server.end();
}

#[test]
fn axe_finds_no_fault_against_wcag_2_2_aa() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let full = start_full(&node);
    let daemon = &full.daemon;
    for (width, scheme) in [(1280, "light"), (1280, "dark"), (360, "light")] {
        // axe is a script that is not ours.
        browser.open(daemon, json!({ "width": width, "scheme": scheme, "csp": false }));
        let found = browser.run("axe", json!({}));
        assert_eq!(found["violations"], json!([]), "{width} {scheme}: {found:#}");
        assert!(found["passes"].as_u64() > Some(15), "{found:#}");
    }
    browser.click("#happened button:has-text('would drop')");
    browser.run("until", json!({ "selector": "dialog[open]", "pattern": "Condition" }));
    let found = browser.run("axe", json!({}));
    assert_eq!(found["violations"], json!([]), "the dialog: {found:#}");
}

#[test]
fn a_person_with_the_role_approves_and_another_is_shown_how() {
    let Some(mut browser) = Browser::start() else { return };
    let node = node();
    let reader = token("reader", Role::Read);
    let roles = "- {user: alice, role: remedy}\n- {user: carol, role: operate}\n";
    let entries = format!("{}{roles}", reader.entry());
    let users = format!("basic_auth_users: {{alice: {HASH}, bob: {HASH}, carol: {HASH}}}\n");
    let files = Files::new(&users, &entries);
    let daemon = program::start_with(&node, &files, |_| {});
    let user = |name: &str| json!({ "user": { "username": name, "password": "correct horse", "send": "always" } });
    browser.open(&daemon, user("bob"));
    browser.run("until", json!({ "selector": "#approvals tbody", "pattern": "umawarden approve" }));
    assert_eq!(browser.number("#approvals button"), 0, "bob may only read");

    browser.open(&daemon, user("carol"));
    browser.run("until", json!({ "selector": "#approvals tbody", "pattern": "unless denied" }));
    browser.run("until", json!({ "selector": "#approvals tbody", "pattern": "Deny.*Deny" }));
    assert_eq!(browser.number("#approvals button:has-text('Approve')"), 0, "carol may deny alone");
    browser.click("#approvals tr:has-text('unless denied') button:has-text('Deny')");
    let asked = browser.texts("dialog[open]").concat();
    assert!(asked.contains("It goes ahead ") && asked.contains("user carol"), "{asked}");
    browser.click("dialog[open] button.strong");
    browser.run("until", json!({ "selector": "#approvals tbody", "pattern": "denied by .*carol" }));

    browser.open(&daemon, user("alice"));
    browser.click("#approvals button:has-text('Approve')");
    let asked = browser.texts("dialog[open]").concat();
    assert!(asked.contains("user alice"), "{asked}");
    browser.click("dialog[open] button.strong");
    browser.run("until", json!({ "selector": "#happened tbody", "pattern": "would compact" }));
    assert_eq!(browser.number("dialog[open]"), 0);
    browser.assert_clean(&daemon);
}

#[test]
fn the_assets_are_what_their_source_makes() {
    let Some(modules) = modules() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = root.join("src/exports/page");
    let made = Command::new("node")
        .arg(page.join("source/build.mjs"))
        .args([root.join(modules), page.join("assets")])
        .arg("--check")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let script = std::fs::read_to_string(page.join("assets/page.js")).unwrap();
    assert!(script.contains("Copyright (c) 2022 Leon Sorokin"), "the licence of uPlot is kept");
}
