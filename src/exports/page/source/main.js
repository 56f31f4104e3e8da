// Keeps the page current.

/** A stream that was refused is tried again after this time; until then the picture is polled. */
const RETRY = 15000;
/** A hidden page gives its stream back after this time, and fetches the picture so often. */
const HIDDEN_FOR = 30000;
const HIDDEN_EVERY = 60000;
/** Samples are older than this only if the loop of the daemon is blocked. */
const STALE = 5000;

const colours = new Colours();
const dialog = new Dialog();
const approvals = new Approvals(dialog);
const place = h("div", { id: "plot", tabindex: "0", role: "img" });
document.querySelector("#memory h2").after(place);
let pointer = { at: null, parts: null };
const plot = new Plot(place, colours, (at, parts) => {
  pointer = { at, parts };
  if (picture) showMemory(picture.memory, colours, at, parts);
}, (entry) => dialog.explain(entry));

let picture = null;
let past = null;
let stream = null;
let retry = null;
let poll = null;
let sampled = { at: null, seen: 0 };
/** Why the node does not answer; null if it does. */
let away = null;

/** When the picture was sampled, for a sentence. */
function since() {
  return sampled.at ? ` since ${CLOCK.format(new Date(sampled.at))}` : "";
}

/** Why what is shown may be over; null if it is of now. */
function doubt() {
  if (!picture) return null;
  if (away) return `The node does not answer${since()}: ${away}`;
  // Browsers run timers of hidden pages late.
  const polled = stream ? RETRY : 2 * HIDDEN_EVERY;
  const isLive = stream && stream.readyState === EventSource.OPEN;
  const age = performance.now() - sampled.seen;
  if (age <= STALE + (isLive ? 0 : polled)) return null;
  return `No new sample${since()}: the daemon is blocked or does not answer`;
}

/** The state of the node. Of a node that says nothing it is unknown, whatever it was before. */
function showState() {
  const why = doubt();
  if (!picture) return;
  const { level, reasons } = picture.well;
  if (!why) showBanner(picture.node, level, reasons);
  else {
    const then = `What is shown is of that time. The node was: ${LEVELS[level] || level}`;
    showBanner(picture.node, "unknown", [why, then, ...reasons]);
  }
}

function show(received) {
  picture = received;
  away = null;
  const now = Date.parse(picture.at);
  if (picture.at !== sampled.at) sampled = { at: picture.at, seen: performance.now() };
  showState();
  showFacts(picture);
  if (past) {
    past.take(picture);
    plot.show(past, past.marks(picture.happened));
  }
  showMemory(picture.memory, colours, pointer.at, pointer.parts);
  approvals.show(picture.approvals, now);
  showEngines(picture.engines);
  showHappened(picture.happened, now, dialog);
  showWaiting(picture.waiting, now);
  showNodes(picture.nodes);
  showSilences(picture.silences || [], now);
  document.documentElement.dataset.pictures = String(
    Number(document.documentElement.dataset.pictures || 0) + 1);
}

function link(text) {
  const element = document.getElementById("link");
  if (element.textContent !== text) element.textContent = text;
}

async function learnPast() {
  try {
    past = new Past(await api("api/v1/memory?since=1h"));
    if (picture) show(picture);
  } catch (error) {
    link(error.message);
  }
}

function connect() {
  clearTimeout(retry);
  stream = new EventSource("api/v1/live");
  stream.addEventListener("open", () => {
    link("Live");
    learnPast();
    approvals.learnRole();
  });
  stream.addEventListener("picture", (event) => show(JSON.parse(event.data)));
  stream.addEventListener("error", () => {
    if (stream.readyState !== EventSource.CLOSED) {
      away = "the connection is lost";
      link("The connection is lost; connecting again…");
      showState();
      return;
    }
    // It was refused: there are too many pages, or the visitor may not read any more.
    link("No live stream; the picture is fetched every 15 s");
    retry = setTimeout(async () => {
      await fetchPicture();
      connect();
    }, RETRY);
  });
}

async function fetchPicture() {
  try {
    show(await api("api/v1/picture", { signal: AbortSignal.timeout(RETRY) }));
  } catch (error) {
    away = error.message;
    link(error.message);
    showState();
  }
}

function disconnect() {
  clearTimeout(retry);
  if (stream) stream.close();
  stream = null;
  link("Not visible; the picture is fetched every minute");
  clearInterval(poll);
  poll = setInterval(fetchPicture, HIDDEN_EVERY);
}

// A browser has few connections to a node: a page that nobody sees takes none. Its title stays
// true.
let hidden = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hidden);
  if (document.hidden) hidden = setTimeout(disconnect, HIDDEN_FOR);
  else {
    clearInterval(poll);
    if (!stream) connect();
  }
});

setInterval(() => {
  showState();
  if (stream && stream.readyState === EventSource.OPEN) {
    link(doubt() ? `No new sample for ${span((performance.now() - sampled.seen) / 1000)}` : "Live");
  }
}, 1000);

// Rules change seldom: they are read while their fold is open.
const fold = document.getElementById("rules");
const RULES = 5000;

function ruleRow(rule) {
  const texts = [];
  for (const alert of rule.alerts) {
    const said = Object.values(alert.annotations);
    texts.push([alert.state, ...said].join(": "));
  }
  if (rule.overridden) texts.push(rule.overridden);
  texts.push(...rule.unknown);
  if (rule.remedy) texts.push(rule.remedy);
  const name = `${rule.group}/${rule.alert}`;
  return h("tr", {},
    h("th", { scope: "row" }, name,
      ...texts.flatMap((text) => [h("br", {}), h("small", {}, text)]),
      h("details", {}, h("summary", {}, "Condition"), h("code", {}, rule.expr))),
    cell(rule.state, h("button", { type: "button", class: "plain", "data-rule": name }, rule.state)),
    cell("minor", rule.mode));
}

async function showRules() {
  if (!fold.open || document.hidden) return;
  const body = fold.querySelector("tbody");
  if (!body || body.querySelector("details[open]")) return;
  try {
    const status = await api("api/v1/status");
    const isQuiet = (rule) => (rule.state === "inactive" ? 1 : 0);
    const rules = [...status.rules].sort((one, other) => isQuiet(one) - isQuiet(other));
    replace(body, ...rules.map(ruleRow));
    for (const button of body.querySelectorAll("button[data-rule]")) {
      button.onclick = () => dialog.explain({
        at: status.sampled, kind: "alert", rule: button.dataset.rule, text: button.dataset.rule,
      });
    }
  } catch (error) {
    link(error.message);
  }
}

fold.addEventListener("toggle", showRules);
setInterval(showRules, RULES);

// These folds are written by the node alone: while one is open, they are taken from its page anew.
const folds = ["counters", "sources"].map((id) => document.getElementById(id));

function showFolds() {
  if (document.hidden || !folds.some((one) => one.open)) return;
  const request = new XMLHttpRequest();
  request.open("GET", location.pathname);
  request.responseType = "document";
  request.timeout = RETRY;
  request.addEventListener("load", () => {
    for (const one of folds) {
      const fresh = request.response && request.response.getElementById(one.id);
      if (fresh) replace(one, ...fresh.childNodes);
    }
  });
  request.send();
}

for (const one of folds) one.addEventListener("toggle", showFolds);
setInterval(showFolds, RULES);
connect();
