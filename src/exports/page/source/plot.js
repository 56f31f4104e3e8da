// The stacked plot of the last hour.

const STEP = 5;
const MOST_POINTS = 721;
/** What happens again within this time, in milliseconds, is one entry. */
const AGAIN_WITHIN = 600000;
const MOST_MARKS = 200;
/** How near a mark the pointer must be, in pixels. */
const NEAR = 9;

// From below: what cannot be given back first, then what can.
const ORDER = ["other", "driver", "engine", "processes", "cache", "free"];
const STATES = ["mapped", "dirty", "clean"];
const ENGINE_COLOURS = 9;

function keyOf(part) {
  return `${part.kind}|${part.state || ""}|${part.kind === "engine" ? part.name : ""}`;
}

function rank(part) {
  return ORDER.indexOf(part.kind) * 10 + (part.state ? STATES.indexOf(part.state) : 0);
}

/** The colours of parts; engines have theirs by the order in which they were seen. */
class Colours {
  constructor() {
    this.engines = [];
  }

  name(part) {
    if (part.kind !== "engine") return part.state ? `${part.kind}-${part.state}` : part.kind;
    let place = this.engines.indexOf(part.name);
    if (place < 0) place = this.engines.push(part.name) - 1;
    return `engine-${place % ENGINE_COLOURS}`;
  }

  of(part) {
    return css(`--${this.name(part)}`);
  }
}

/** A colour of the style sheet, as a canvas needs it: without var() and light-dark(). */
function css(name) {
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const probe = h("span", { hidden: true });
document.body.append(probe);

/** The points of the last hour: the answer of the node, and what has come since. */
class Past {
  constructor(history) {
    this.at = history.at;
    this.reserve = history.reserve_bytes;
    this.parts = new Map();
    for (const part of history.parts) this.parts.set(keyOf(part), part);
    this.total = null;
    // A node of an older version does not serve them.
    this.happened = history.happened || [];
  }

  /** The entries of the hour: the newest, and those that the picture has no more. */
  marks(newest) {
    const isSame = (one, other) => one.text === other.text && one.kind === other.kind
      && one.rule === other.rule
      && Math.abs(Date.parse(one.at) - Date.parse(other.at)) < AGAIN_WITHIN;
    const isOlder = (entry) => !newest.some((other) => isSame(entry, other));
    this.happened = [...newest, ...this.happened.filter(isOlder)].slice(0, MOST_MARKS);
    return this.happened;
  }

  /** Adds the present. A point is the sample of its step with the least free memory. */
  take(picture) {
    const memory = picture.memory;
    this.total = memory.total_bytes;
    if (memory.total_bytes === null) return;
    const at = Math.floor(Date.parse(picture.at) / 1000);
    const last = this.at.length - 1;
    const free = (parts) => parts.find((part) => part.kind === "free").bytes;
    const isSame = last >= 0 && Math.floor(this.at[last] / STEP) === Math.floor(at / STEP);
    if (last >= 0 && at < this.at[last] && !isSame) return;
    if (isSame) {
      const known = this.parts.get("free||");
      const before = known ? known.bytes[last] : null;
      if (before !== null && before <= free(memory.parts)) return;
    }
    const place = isSame ? last : last + 1;
    this.at[place] = isSame ? this.at[last] : at;
    this.reserve[place] = memory.reserve_bytes;
    for (const part of memory.parts) {
      const key = keyOf(part);
      if (!this.parts.has(key)) {
        const bytes = new Array(place).fill(0);
        this.parts.set(key, { name: part.name, kind: part.kind, state: part.state, bytes });
      }
      this.parts.get(key).bytes[place] = part.bytes;
    }
    for (const part of this.parts.values()) {
      if (part.bytes.length <= place) part.bytes[place] = 0;
    }
    while (this.at.length > MOST_POINTS) {
      this.at.shift();
      this.reserve.shift();
      for (const part of this.parts.values()) part.bytes.shift();
    }
  }

  /** The parts from below. */
  stacked() {
    return [...this.parts.values()].sort((one, other) => rank(one) - rank(other));
  }

  /** All parts at a point. */
  point(place) {
    return this.stacked().map((part) => ({ ...part, bytes: part.bytes[place] }));
  }
}

/** Draws a [`Past`], marks, and what the pointer is at. */
class Plot {
  constructor(root, colours, onPoint, onMark) {
    this.root = root;
    this.colours = colours;
    this.onPoint = onPoint;
    this.onMark = onMark;
    this.marks = [];
    this.keys = "";
    this.tip = h("div", { class: "tip", hidden: true });
    this.chart = null;
    this.past = null;
    new ResizeObserver(() => this.resize()).observe(root);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.build());
    root.addEventListener("keydown", (event) => this.key(event));
    root.addEventListener("blur", () => this.point(null));
  }

  /** Shows the past with these entries as marks. */
  show(past, happened) {
    this.past = past;
    this.happened = happened;
    const keys = past.stacked().map(keyOf).join();
    if (!this.chart || keys !== this.keys) this.build();
    else this.chart.setData(this.data());
    const last = past.at.length ? past.at[past.at.length - 1] : 0;
    const used = past.stacked().filter((part) => part.kind !== "free").map((part) => part.name);
    this.root.setAttribute("aria-label", `Memory of the last hour until ${CLOCK.format(
      new Date(last * 1000))}, stacked: ${visible(used.join(", "))}. Arrow keys move along it; the `
      + "table below has the values.");
  }

  data() {
    const rows = [this.past.at];
    // Each covers what is below it: the highest is drawn first.
    const parts = this.past.stacked();
    const sums = new Array(this.past.at.length).fill(0);
    const stacks = parts.map((part) => this.past.at.map((_, place) => {
      const bytes = part.bytes[place];
      sums[place] = bytes === null || sums[place] === null ? null : sums[place] + bytes / GIB;
      return sums[place];
    }));
    return rows.concat(stacks.reverse());
  }

  build() {
    if (!this.past) return;
    if (this.chart) this.chart.destroy();
    const parts = this.past.stacked();
    this.keys = parts.map(keyOf).join();
    const ink = css("--ink-soft");
    const axis = { stroke: ink, grid: { stroke: css("--line"), width: 1 }, ticks: { show: false } };
    const series = parts.map((part) => ({
      fill: this.colours.of(part),
      stroke: css("--paper"),
      width: 0.5,
      points: { show: false },
    }));
    const { width, height } = this.size();
    this.chart = new uPlot({
      width,
      height,
      padding: [14, 28, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, points: { show: false } },
      scales: {
        x: { time: true, range: () => this.times() },
        y: { range: (_, least, most) => [0, this.past.total ? this.past.total / GIB : most || 1] },
      },
      axes: [
        { ...axis, size: 28, space: 70, values: (_, splits) => splits.map(
          (split) => this.clock().format(new Date(split * 1000))) },
        { ...axis, size: 62, values: (_, splits) => splits.map((split) => `${split} GiB`) },
      ],
      series: [{}].concat(series.reverse()),
      hooks: {
        draw: [(chart) => this.drawn(chart)],
        setCursor: [(chart) => this.point(chart.cursor.idx)],
      },
    }, this.data(), this.root);
    this.root.append(this.tip);
    this.chart.over.addEventListener("mousemove", (event) => this.hover(event));
    this.chart.over.addEventListener("mouseleave", () => this.point(null));
    this.chart.over.addEventListener("click", (event) => {
      const mark = this.near(event.offsetX);
      if (mark) this.onMark(mark);
    });
  }

  /** From the first point, but at least two minutes. */
  times() {
    const at = this.past.at;
    const last = at.length ? at[at.length - 1] : Date.now() / 1000;
    return [Math.min(at.length ? at[0] : last, last - 120), last];
  }

  /** Seconds are shown where the labels would be the same without them. */
  clock() {
    const [first, last] = this.times();
    return last - first < 300 ? CLOCK : SHORT_CLOCK;
  }

  size() {
    const width = Math.max(200, this.root.clientWidth);
    // What runs is to be seen without scrolling.
    return { width, height: Math.round(Math.min(300, Math.max(200, innerHeight * 0.27))) };
  }

  resize() {
    const { width, height } = this.size();
    if (this.chart && (this.chart.width !== width || this.chart.height !== height)) {
      this.chart.setSize({ width, height });
    }
  }

  /** The reserve, and a line for each entry. */
  drawn(chart) {
    const { ctx, bbox } = chart;
    const ratio = devicePixelRatio || 1;
    ctx.save();
    this.drawReserve(chart, ratio);
    this.marks = [];
    for (const entry of this.happened) {
      const seconds = Date.parse(entry.at) / 1000;
      const x = chart.valToPos(seconds, "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      this.marks.push({ x: (x - bbox.left) / ratio, entry });
      ctx.strokeStyle = css(entry.level === "info" ? "--ink-soft" : `--${entry.level}`);
      ctx.fillStyle = ctx.strokeStyle;
      ctx.lineWidth = ratio;
      line(ctx, x, bbox.top, x, bbox.top + bbox.height);
      ctx.beginPath();
      ctx.arc(x, bbox.top - 5 * ratio, 4 * ratio, 0, 2 * Math.PI);
      ctx.fill();
    }
    ctx.restore();
  }

  /** The reserve of each point, in steps; nothing where it is unknown. */
  drawReserve(chart, ratio) {
    const { ctx } = chart;
    const { at, reserve, total } = this.past;
    if (!total) return;
    ctx.strokeStyle = css("--critical");
    ctx.setLineDash([6 * ratio, 4 * ratio]);
    ctx.lineWidth = ratio;
    ctx.beginPath();
    let before = null;
    at.forEach((seconds, place) => {
      const bytes = reserve[place];
      if (!bytes) {
        before = null;
        return;
      }
      const x = chart.valToPos(seconds, "x", true);
      const y = chart.valToPos((total - bytes) / GIB, "y", true);
      if (before === null) ctx.moveTo(x, y);
      else {
        // What stays the same is one line: its dashes go on.
        if (before !== y) ctx.lineTo(x, before);
        ctx.lineTo(x, y);
      }
      before = y;
    });
    ctx.stroke();
    ctx.setLineDash([]);
  }

  near(x) {
    const distance = (mark) => Math.abs(mark.x - x);
    const nearest = this.marks.reduce(
      (best, mark) => (!best || distance(mark) < distance(best) ? mark : best), null);
    return nearest && distance(nearest) <= NEAR ? nearest.entry : null;
  }

  hover(event) {
    const entry = this.near(event.offsetX);
    this.chart.over.style.cursor = entry ? "pointer" : "";
    this.tip.hidden = !entry;
    if (entry) this.tip.textContent = visible(entry.text);
  }

  point(place) {
    if (place === null || place === undefined) {
      this.tip.hidden = true;
      this.onPoint(null, null);
    } else {
      this.onPoint(this.past.at[place] * 1000, this.past.point(place));
    }
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12 };
    const step = steps[event.key];
    if (!step || !this.chart || !this.past.at.length) return;
    event.preventDefault();
    const last = this.past.at.length - 1;
    const now = this.chart.cursor.idx;
    const place = Math.min(last, Math.max(0, (now === null || now === undefined ? last : now) + step));
    const left = this.chart.valToPos(this.past.at[place], "x");
    this.chart.setCursor({ left, top: 0 });
    const entry = this.near(left);
    this.tip.hidden = !entry;
    if (entry) this.tip.textContent = visible(entry.text);
  }
}

function line(ctx, x1, y1, x2, y2) {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}
