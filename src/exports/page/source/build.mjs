// Makes the assets of the page from the files of this folder and from uPlot.
//
//   node build.mjs NODE_MODULES FOLDER           writes them into FOLDER
//   node build.mjs NODE_MODULES FOLDER --check   fails if those in FOLDER are others
//
// NODE_MODULES is what `npm ci` has installed by package-lock.json; tests/tools/page does that.

import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const [modules, folder, check] = process.argv.slice(2);
if (!modules || !folder || (check && check !== "--check")) {
  console.error("usage: node build.mjs NODE_MODULES FOLDER [--check]");
  process.exit(2);
}
const own = dirname(fileURLToPath(import.meta.url));
const source = (name) => readFileSync(join(own, name), "utf8");
const uplot = (name) => readFileSync(join(modules, "uplot", name), "utf8");
const version = JSON.parse(uplot("package.json")).version;
const licence = (title, text) => `/*! ${title}\n\n${text.trim()}\n*/\n`;

const parts = ["text.js", "plot.js", "explain.js", "tables.js", "approvals.js", "main.js"];
const files = {
  "page.js": licence(`uPlot ${version}, https://github.com/leeoniya/uPlot`, uplot("LICENSE"))
    + `${uplot("dist/uPlot.iife.min.js").trim()}\n`
    + `(() => {\n"use strict";\n\n${parts.map(source).join("\n")}})();\n`,
  "page.css": `${licence(`uPlot ${version}`, uplot("LICENSE"))}${uplot("dist/uPlot.min.css").trim()}\n`
    + source("page.css"),
  "page.svg": source("page.svg"),
};

let different = 0;
if (!check) mkdirSync(folder, { recursive: true });
for (const [name, content] of Object.entries(files)) {
  const path = join(folder, name);
  if (!check) {
    writeFileSync(path, content);
  } else if (readFileSync(path, "utf8") !== content) {
    console.error(`${path} is not what the source makes: run src/exports/page/source/build`);
    different += 1;
  }
}
process.exit(different ? 1 : 0);
