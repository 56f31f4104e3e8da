// Drives the page in headless Chromium. Each line of the input is a command as JSON, each line of
// the output its result.
//
//   node drive.mjs NODE_MODULES CHROMIUM

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";

const [modules, program] = process.argv.slice(2);
const require = createRequire(join(modules, "x.js"));
const { chromium } = require("playwright-core");
const axe = readFileSync(join(modules, "axe-core", "axe.min.js"), "utf8");

/** Rules of WCAG 2.2 AA. */
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
const WAIT = 20000;

const browser = await chromium.launch({
  executablePath: program,
  args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
});
let page = null;
let context = null;
let seen = { errors: [], requests: [] };

/** Keeps when the last picture arrived, by the clock of the page. */
function keepArrivals() {
  window.EventSource = class extends EventSource {
    constructor(...details) {
      super(...details);
      this.addEventListener("picture", () => { window.arrived = performance.now(); });
    }
  };
}

const count = () => page.evaluate(() => Number(document.documentElement.dataset.pictures || 0));

const commands = {
  /** Opens the page in a context of its own, and waits for the first picture. */
  async open({ url, width = 1280, height = 900, scheme = "light", script = true, csp = true,
    user = null, zone = "Asia/Tokyo", locale = "en-GB", clock = false }) {
    if (context) await context.close();
    context = await browser.newContext({
      viewport: { width, height },
      deviceScaleFactor: width < 500 ? 3 : 1,
      colorScheme: scheme,
      javaScriptEnabled: script,
      bypassCSP: !csp,
      httpCredentials: user || undefined,
      timezoneId: zone,
      locale,
    });
    page = await context.newPage();
    if (clock) await page.clock.install();
    await page.addInitScript(keepArrivals);
    seen = { errors: [], requests: [] };
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type())) seen.errors.push(message.text());
    });
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    page.on("request", (request) => seen.requests.push(request.url()));
    await page.goto(url, { waitUntil: "load" });
    if (script) {
      await page.waitForFunction(
        () => Number(document.documentElement.dataset.pictures || 0) >= 2, null, { timeout: WAIT });
      await page.waitForSelector("#plot canvas", { timeout: WAIT });
    }
    return { title: await page.title() };
  },

  /** Milliseconds between so many pictures. */
  async paces({ pictures }) {
    return page.evaluate((wanted) => new Promise((resolve) => {
      const times = [];
      new MutationObserver(() => {
        times.push(performance.now());
        if (times.length > wanted) {
          resolve(times.slice(1).map((time, place) => Math.round(time - times[place])));
        }
      }).observe(document.documentElement, { attributeFilter: ["data-pictures"] });
    }), pictures);
  },

  /**
   * Of so many pictures, in milliseconds: the age of the sample, by its own time, once it is shown,
   * and how long it took from the arrival of the picture.
   */
  async delays({ pictures }) {
    return page.evaluate((wanted) => new Promise((resolve) => {
      const delays = [];
      const observer = new MutationObserver(() => {
        const sampled = Date.parse(document.querySelector("#sampled time").dateTime);
        delays.push({ age: Date.now() - sampled, drawn: performance.now() - window.arrived });
        if (delays.length < wanted) return;
        observer.disconnect();
        resolve(delays);
      });
      observer.observe(document.documentElement, { attributeFilter: ["data-pictures"] });
    }), pictures);
  },

  /** Keeps the age of the first entry of the past with this text, once it is shown. */
  async awaitEntry({ text }) {
    return page.evaluate(([wanted, wait]) => {
      window.entryAge = new Promise((resolve, reject) => {
        setTimeout(() => reject(new Error(`no entry with ${wanted}`)), wait);
        const observer = new MutationObserver(() => {
          const rows = [...document.querySelectorAll("#happened tbody tr")];
          const row = rows.find((one) => one.textContent.includes(wanted));
          if (!row) return;
          observer.disconnect();
          resolve(Date.now() - Date.parse(row.querySelector("time").dateTime));
        });
        observer.observe(document.documentElement, { attributeFilter: ["data-pictures"] });
      });
      return true;
    }, [text, WAIT]);
  },

  /** What `awaitEntry` has kept, in milliseconds. */
  async entryAge() {
    return page.evaluate(() => window.entryAge);
  },

  async seen() {
    return seen;
  },

  async text({ selector }) {
    return page.locator(selector).allInnerTexts();
  },

  async number({ selector }) {
    return page.locator(selector).count();
  },

  /** Waits until the text of an element matches. Returns after how many milliseconds. */
  async until({ selector, pattern }) {
    const began = Date.now();
    await page.waitForFunction(
      ([where, wanted]) => {
        const element = document.querySelector(where);
        return element && new RegExp(wanted).test(element.textContent);
      }, [selector, pattern], { timeout: WAIT, polling: 50 });
    return Date.now() - began;
  },

  /** Whether anything is wider than the window, with everything unfolded. */
  async overflow() {
    return page.evaluate(() => {
      for (const fold of document.querySelectorAll("details")) fold.open = true;
      const wide = document.documentElement.clientWidth;
      const beyond = [...document.querySelectorAll("body *")].filter(
        (element) => element.getBoundingClientRect().right > wide + 1
          && !element.classList.contains("skip"));
      return {
        width: document.documentElement.scrollWidth,
        window: wide,
        beyond: beyond.slice(0, 5).map((element) => element.outerHTML.slice(0, 200)),
      };
    });
  },

  async axe() {
    await page.evaluate(axe);
    const found = await page.evaluate(
      (tags) => window.axe.run(document, { runOnly: { type: "tag", values: tags } }), TAGS);
    return {
      passes: found.passes.length,
      violations: found.violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 4).map(
        (node) => `${node.html.slice(0, 160)} (${node.failureSummary.slice(0, 240)})`).join(" | ")}`),
    };
  },

  async click({ selector }) {
    await page.locator(selector).first().click({ timeout: WAIT });
    return true;
  },

  async press({ selector, key }) {
    await page.locator(selector).first().focus();
    await page.keyboard.press(key);
    return true;
  },

  /** Hides the page, as another tab does, for so long by its clock. */
  async hide({ milliseconds }) {
    await page.evaluate(() => {
      Object.defineProperty(document, "hidden", { value: true, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    });
    await page.clock.fastForward(milliseconds);
    return true;
  },

  /** Lets so much time pass by the clock of the page. */
  async pass({ milliseconds }) {
    await page.clock.fastForward(milliseconds);
    return true;
  },

  /** Moves the pointer along the plot to the newest mark, and clicks it. */
  async mark() {
    const over = page.locator("#plot .u-over");
    await over.scrollIntoViewIfNeeded();
    const box = await over.boundingBox();
    for (let x = box.width - 1; x > 0; x -= 3) {
      await page.mouse.move(box.x + x, box.y + box.height / 2);
      const tip = await page.evaluate(() => {
        const shown = document.querySelector("#plot .tip");
        return shown.hidden ? null : shown.textContent;
      });
      if (tip !== null) {
        await page.mouse.down();
        await page.mouse.up();
        await page.waitForSelector("dialog[open]", { timeout: WAIT });
        return { tip, title: await page.locator("dialog[open] h2").first().innerText() };
      }
    }
    throw new Error("there is no mark");
  },

  async evaluate({ expression }) {
    return page.evaluate(expression);
  },

  async picture({ path, whole = false }) {
    await page.screenshot({ path, fullPage: whole });
    return true;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = { result: await commands[command.do](command) };
  } catch (error) {
    answer = { error: `${command.do}: ${error.message}`, seen };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
await browser.close();
