// The tables of the page, filled anew with each picture. Their columns are those of the server.

const LEVELS = {
  well: "Well", unknown: "Unknown", warning: "Needs attention", critical: "In trouble",
};
const PHASES = ["starting", "loading", "ready", "serving"];

function rows(id) {
  return document.querySelector(`#${id} tbody`);
}

function fill(id, made, columns, nothing) {
  const lines = made.length ? made : [h("tr", {}, h("td", { colspan: columns }, nothing))];
  replace(rows(id), ...lines);
}

function header(text, small) {
  return h("th", { scope: "row" }, text, small ? " " : null, small ? h("small", {}, small) : null);
}

function cell(className, ...children) {
  return h("td", { class: className }, ...children);
}

/** The banner and the title of the page. */
function showBanner(node, level, reasons) {
  const well = document.getElementById("well");
  const word = LEVELS[level] || level;
  well.className = `well ${level}`;
  replace(well, h("strong", {}, word),
    h("ul", {}, ...reasons.map((reason) => h("li", {}, reason))));
  document.title = `${level === "well" ? "" : `${word}: `}${visible(node)} – umawarden`;
}

function showFacts(picture) {
  document.getElementById("notes").textContent = visible((picture.well.notes || []).join("; "));
  const machine = picture.machine;
  const facts = [
    ["Machine", machine.model || "unknown"],
    ["Memory", gib(machine.memory_bytes)],
    ["GPU", machine.gpu || "unknown"],
    ["Mode", picture.mode_text],
    ["Running for", span(picture.uptime_seconds)],
    ["Version", picture.version],
  ];
  const fact = ([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const sampled = h("div", {}, h("dt", {}, "Sampled"), h("dd", { id: "sampled" },
    h("time", { datetime: picture.at }, CLOCK.format(new Date(picture.at)))));
  replace(document.getElementById("facts"), ...facts.map(fact), sampled);
}

/** The parts of memory: now, or at the point of the plot that the pointer is at. */
function showMemory(memory, colours, at, parts) {
  const shown = (parts || memory.parts).filter((part) => part.bytes !== null);
  const all = [...shown].sort((one, other) => rank(other) - rank(one));
  const total = memory.total_bytes;
  fill("memory", all.map((part) => h("tr", {},
    h("th", { scope: "row" },
      h("span", { class: `chip ${colours.name(part)}`, "aria-hidden": "true" }), part.name),
    cell("number", gib(part.bytes)),
    cell("number minor", total ? percent(part.bytes / total) : ""))), 3, "Memory is unknown.");
  const levels = document.getElementById("levels");
  replace(levels, at === null
    ? `All ${gib(total)}; available, by the kernel's estimate, ${gib(memory.available_bytes)}; `
      + `reserve that the kernel keeps free ${gib(memory.reserve_bytes)}.`
    : `At ${CLOCK.format(new Date(at))}.`);
  replace(document.getElementById("remarks"),
    ...memory.remarks.map((remark) => h("li", {}, remark)));
}

/** Where in its life an engine is, as a bar of four. */
function phaseBar(engine) {
  const reached = PHASES.indexOf(engine.phase);
  const bar = h("span", { class: "phases", "aria-hidden": "true" },
    ...PHASES.map((_, place) => h("i", { class: place <= reached ? "on" : "" })));
  const children = [bar, " ", engine.phase, h("br", {}), h("small", {}, engine.note || "")];
  if (engine.progress !== null) {
    children.splice(3, 0, " ", h("progress", {
      max: "1", value: engine.progress.toFixed(2), "aria-label": `load of ${visible(engine.name)}`,
    }), ` ${percent(engine.progress)}, ${span(engine.seconds_left)} left`);
  }
  return children;
}

/** Queue and KV cache, for a page without their columns. */
function shortLoad(engine, queue) {
  const cache = engine.kv_cache_used === null ? "" : `KV ${percent(engine.kv_cache_used)}`;
  const text = [queue, cache].filter((one) => one).join(", ");
  return text ? [" ", h("small", { class: "narrow" }, text)] : [];
}

function showEngines(engines) {
  const queue = (queue) => (queue
    ? `${queue.running ?? "?"} run, ${queue.waiting ?? "?"} wait` : "");
  const cache = (engine) => (engine.kv_cache_used === null ? [] : [h("meter", {
    min: "0", max: "1", high: "0.9", value: engine.kv_cache_used.toFixed(2),
    "aria-label": `KV cache of ${visible(engine.name)}`,
  }), ` ${percent(engine.kv_cache_used)}`]);
  fill("engines", engines.map((engine) => h("tr", {},
    header(engine.name, `${engine.model || engine.kind}${engine.pod ? `, pod ${engine.pod}` : ""}`),
    h("td", {}, ...phaseBar(engine), ...shortLoad(engine, queue(engine.queue))),
    cell("number", engine.memory_bytes === null ? "" : gib(engine.memory_bytes)),
    cell("minor", queue(engine.queue)),
    cell("minor", ...cache(engine)))), 5, "No inference engine is found.");
}

/** Entries that are shown until a visitor wants all. */
const FIRST_HAPPENED = 6;
let wantsAllHappened = false;

const moreHappened = h("button", {
  type: "button",
  id: "more",
  "aria-controls": "happened",
  onclick: () => {
    wantsAllHappened = !wantsAllHappened;
    foldHappened();
  },
});

/** Hides what is beyond the first entries, and says how much that is. */
function foldHappened() {
  const lines = [...rows("happened").children];
  const more = lines.length - FIRST_HAPPENED;
  lines.forEach((line, place) => { line.hidden = !wantsAllHappened && place >= FIRST_HAPPENED; });
  const section = document.getElementById("happened");
  if (!moreHappened.isConnected) section.append(moreHappened);
  moreHappened.hidden = more <= 0;
  moreHappened.setAttribute("aria-expanded", String(wantsAllHappened));
  moreHappened.textContent = wantsAllHappened ? `Only the first ${FIRST_HAPPENED}`
    : `${more} earlier ${more === 1 ? "entry" : "entries"}`;
}

function showHappened(happened, now, dialog) {
  fill("happened", happened.map((entry) => h("tr", {},
    cell("when", timeElement(entry.at, now)),
    cell(entry.level,
      h("button", { type: "button", class: "plain", "data-entry": JSON.stringify(entry) },
        entry.text),
      entry.times > 1 ? h("small", {}, ` ${entry.times} times`) : null))), 2,
  "Nothing has happened yet.");
  for (const button of rows("happened").querySelectorAll("button[data-entry]")) {
    button.onclick = () => dialog.explain(JSON.parse(button.dataset.entry));
  }
  foldHappened();
}

function showSilences(silences, now) {
  fill("silences", silences.map((one) => h("tr", {},
    header(one.rules, `#${one.id}`),
    cell("when", timeElement(one.until, now)),
    cell("minor", one.by),
    cell("minor", one.why))), 4, "No remedy is silenced.");
}

function showWaiting(waiting, now) {
  fill("waiting", waiting.map((one) => h("tr", {},
    header(one.who, one.kind),
    cell("number", gib(one.needs_bytes)),
    cell("minor", timeElement(one.since, now)),
    h("td", {}, one.reason,
      one.seconds_left === null ? null
        : h("small", {}, `, about ${span(one.seconds_left)} left`),
      one.behind.length ? h("small", {}, `, behind ${one.behind.join(", ")}`) : null))), 4,
  "Nobody waits.");
}

function showNodes(nodes) {
  const states = { self: "this node", answers: "answers", unknown: "unknown" };
  fill("nodes", nodes.map((node) => h("tr", {},
    node.url ? h("th", { scope: "row" }, h("a", { href: node.url }, visible(node.name)))
      : header(node.name),
    cell("number", gib(node.available_bytes),
      node.available_bytes !== null && node.total_bytes ? h("meter", {
        min: "0", max: "1", low: "0.1", optimum: "1",
        value: (node.available_bytes / node.total_bytes).toFixed(2),
        "aria-label": `available memory of ${visible(node.name)}`,
      }) : null),
    cell("number minor", gib(node.total_bytes)),
    cell(node.level && node.level !== "well" ? node.level : "", (node.level ? `${LEVELS[node.level] || node.level}; ` : "")
      + (states[node.state] || node.state) + (node.weakest ? ", the weakest" : ""),
      node.note ? h("small", {}, ` ${node.note}`) : null))), 4, "No cluster is configured.");
}
