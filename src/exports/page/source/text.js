// Text for people. Everything from outside becomes text nodes, never HTML.

const GIB = 1073741824;

/** An element with these attributes and children; strings become text. */
function h(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined).map(
    (child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

/** The text with invisible and direction-changing characters made visible. */
function visible(text) {
  return text.replace(
    // eslint-disable-next-line no-control-regex
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
    (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** A size in GiB. */
function gib(bytes) {
  if (bytes === null || bytes === undefined) return "unknown";
  const value = bytes / GIB;
  return `${value.toFixed(value < 10 ? 2 : 1)} GiB`;
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** A duration in at most two units. */
function span(seconds) {
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const whole = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([, length]) => whole >= length);
  if (first < 0) return "0 s";
  const [name, length] = units[first];
  const rest = units[first + 1];
  const more = rest ? Math.floor((whole % length) / rest[1]) : 0;
  const begin = `${Math.floor(whole / length)} ${name}`;
  return more > 0 ? `${begin} ${more} ${rest[0]}` : begin;
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT_CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });

/** A time as people say it, in their zone; `now` is that of the node. */
function timeText(time, now) {
  const date = new Date(time);
  const age = (now - date.getTime()) / 1000;
  const clock = CLOCK.format(date);
  if (age >= 0 && age < 20 * 3600) return `${clock}, ${age < 5 ? "just now" : `${span(age)} ago`}`;
  if (age < 0 && age > -20 * 3600) return `${clock}, in ${span(-age)}`;
  return `${DAY.format(date)}, ${clock}`;
}

function timeElement(time, now) {
  return h("time", { datetime: time, title: new Date(time).toString() }, timeText(time, now));
}

/**
 * Makes the children of an element these. What stays the same stays in place, with the focus, the
 * selection and what is unfolded. Listeners of replaced nodes are not taken over.
 */
function replace(element, ...children) {
  const wanted = children.map(
    (child) => (typeof child === "string" ? document.createTextNode(child) : child));
  wanted.forEach((node, place) => {
    const known = element.childNodes[place];
    if (!known) element.append(node);
    else if (known.nodeName !== node.nodeName) known.replaceWith(node);
    else if (known.nodeType === Node.TEXT_NODE) {
      if (known.data !== node.data) known.data = node.data;
    } else {
      for (const { name, value } of node.attributes) {
        if (known.getAttribute(name) !== value) known.setAttribute(name, value);
      }
      for (const { name } of [...known.attributes]) {
        if (name !== "open" && !node.hasAttribute(name)) known.removeAttribute(name);
      }
      replace(known, ...node.childNodes);
    }
  });
  while (element.childNodes.length > wanted.length) element.lastChild.remove();
}

/** A response of the API; an error has its text. */
async function api(path, options) {
  const response = await fetch(path, { cache: "no-store", ...options });
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Error(`${path}: ${response.status} ${response.statusText}`);
  }
  if (answer.status !== "success") throw new Error(answer.error || `${path}: ${response.status}`);
  return answer.data;
}
