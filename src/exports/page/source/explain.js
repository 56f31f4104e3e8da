// Why a rule decided as it did: its condition as a tree.

/** A number in the unit of its expression. */
function valueText(expr, value) {
  if (typeof value !== "number") return String(value);
  return /_bytes\b[^_]*$/.test(expr) && Math.abs(value) >= 1024 ? gib(value) : String(value);
}

function labelsText(labels) {
  const pairs = Object.entries(labels || {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
  return pairs.length ? ` {${pairs.join(", ")}}` : "";
}

/** The values of a part, one a line. */
function partValues(part) {
  const text = (value) => valueText(part.expr, value);
  if ("scalar" in part) return [text(part.scalar)];
  if ("vector" in part) {
    if (!part.vector.length) return ["nothing"];
    return part.vector.map((sample) => text(sample.value) + labelsText(sample.labels));
  }
  if ("range" in part) {
    if (!part.range.length) return ["no such series"];
    return part.range.map((range) => (range.count === 0 ? `no samples${labelsText(range.labels)}`
      : `${range.count} samples from ${text(range.first)} to ${text(range.last)}, least `
        + `${text(range.least)}, greatest ${text(range.greatest)}${labelsText(range.labels)}`));
  }
  if ("unknown" in part) return [`unknown: ${part.unknown.join("; ")}`];
  return [`error: ${part.error}`];
}

const MOST_VALUES = 6;

function tree(part) {
  const values = partValues(part);
  const shown = values.slice(0, MOST_VALUES);
  if (values.length > MOST_VALUES) shown.push(`and ${values.length - MOST_VALUES} more`);
  const parts = part.parts || [];
  return h("li", {},
    h("code", {}, part.expr),
    ...shown.map((value) => h("div", { class: "value" }, value)),
    part.not_needed ? h("div", { class: "value" }, `not needed: ${part.not_needed}`) : null,
    parts.length ? h("ul", {}, ...parts.map(tree)) : null);
}

function explanation(found) {
  const children = [];
  if (found.state) children.push(h("p", {}, `${found.rule}, ${found.state}, mode ${found.mode}`));
  for (const reason of found.unknown || []) children.push(h("p", { class: "unknown" }, reason));
  if (found.condition) {
    children.push(h("h3", {}, "Condition"), h("ul", { class: "tree" }, tree(found.condition)));
  } else {
    children.push(h("p", {}, `${found.rule} is not loaded any more: its condition cannot be shown.`));
  }
  const remedy = found.remedy;
  if (remedy) {
    const met = { true: "met", false: "missed" }[remedy.aim_met] || "unknown";
    children.push(h("h3", {}, `Aim: ${met}`));
    if (remedy.aim) children.push(h("ul", { class: "tree" }, tree(remedy.aim)));
    children.push(h("h3", {}, "Steps"), h("ol", {}, ...remedy.steps.map((step, place) => h(
      "li", {}, place === remedy.step ? `${step} (next)` : step))));
    const holds = remedy.guard_rails.filter((rail) => rail.holds);
    if (holds.length) {
      children.push(h("h3", {}, "Held by"), h("ul", {}, ...holds.map(
        (rail) => h("li", {}, `${rail.reason}: ${rail.detail}`))));
    }
  }
  const outcome = found.outcome;
  if (outcome) {
    const detail = outcome.detail || outcome.effect;
    const result = String(outcome.result).replace(/_/g, " ");
    children.push(h("h3", {}, "Outcome"), h("p", {}, detail ? `${result}: ${detail}` : result));
  }
  return children;
}

/** The dialog of the page: what it shows has a heading and a button that closes it. */
class Dialog {
  constructor() {
    this.title = h("h2", { id: "dialog-title" });
    this.body = h("div", {});
    this.buttons = h("p", { class: "buttons" });
    this.element = h("dialog", { "aria-labelledby": "dialog-title" },
      this.title, this.body, this.buttons);
    this.element.addEventListener("click", (event) => {
      if (event.target === this.element) this.element.close();
    });
    document.body.append(this.element);
  }

  show(title, children, buttons) {
    this.title.textContent = visible(title);
    this.body.replaceChildren(...children);
    const close = h("button", { type: "button", onclick: () => this.element.close() }, "Close");
    this.buttons.replaceChildren(...(buttons || []), close);
    if (!this.element.open) this.element.showModal();
  }

  /** Explains an entry, where it has a rule. */
  async explain(entry) {
    const facts = [h("p", {}, timeElement(entry.at, Date.now()))];
    const wanted = entry.id !== undefined && entry.kind === "decision"
      ? `decision=${entry.id}` : entry.rule ? `rule=${encodeURIComponent(entry.rule)}` : null;
    if (!wanted) {
      this.show(entry.text, facts);
      return;
    }
    this.show(entry.text, facts.concat(h("p", {}, "…")));
    try {
      const found = await api(`api/v1/explain?${wanted}`);
      this.show(entry.text, facts.concat(explanation(found)));
    } catch (error) {
      this.show(entry.text, facts.concat(h("p", { class: "critical" }, error.message)));
    }
  }
}
