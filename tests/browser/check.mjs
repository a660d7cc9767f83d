// Opens pages in a headless Chromium and says what is wrong with them, one line a fault; exits 1 where anything is.
//
//   node check.mjs --chromium PATH [--screenshots FOLDER] [--broken PAGE.html] PAGE.html ...
//
// --broken: a page with planted faults, named in it, all of which must be found.

import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import puppeteer from "puppeteer-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf-8");
const WIDE = { width: 1280, height: 900 };
const NARROW = { width: 400, height: 800 };
/** Pixels that a page takes before its folded parts, at most. */
const TALLEST = 12000;
const SEVERE = new Set(["serious", "critical"]);

/** Opens every folded part, so that what is in it is checked, too. */
const unfold = (page) => page.evaluate(() => document.querySelectorAll("details").forEach((one) => (one.open = true)));

async function links(page) {
  const found = await page.evaluate(() => {
    const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
    const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
    const hrefs = [...new Set([...document.querySelectorAll("a[href]")].map((a) => a.href))];
    return { ids, twice, hrefs, here: location.href.split("#")[0] };
  });
  const faults = found.twice.map((id) => `id ${id} is there twice`);
  const ids = new Set(found.ids);
  for (const href of found.hrefs) {
    const [path, hash] = href.split("#");
    if (path === found.here) {
      if (!ids.has(decodeURIComponent(hash ?? ""))) faults.push(`#${hash} leads nowhere`);
    } else if (!href.startsWith("file:") || !existsSync(fileURLToPath(path))) faults.push(`${href} leads nowhere`);
  }
  if (!found.hrefs.length) faults.push("has no links");
  return faults;
}

/** Clicks the first column of numbers of every table twice, and the first column of text once. */
function sorting(page) {
  return page.evaluate(() => {
    const faults = [];
    const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, million: 1e6, billion: 1e9 };
    const number = (text) => {
      if (text === "best" || text === "=") return 0;
      const found = /^(?:< )?([+-]?[\d.,]+)(?: (\w+))?/.exec(text);
      return found ? parseFloat(found[1].replace(/,/g, "")) * (UNITS[found[2]] ?? 1) : null;
    };
    const tables = document.querySelectorAll("table.sortable");
    if (!tables.length) faults.push("no table can be sorted");
    for (const table of tables) {
      const name = table.caption.textContent.trim().slice(0, 60);
      const heads = [...table.tHead.rows[0].cells];
      const column = heads.findIndex((head) => head.classList.contains("number"));
      const read = (at) => [...table.tBodies[0].rows].map((row) => row.cells[at].textContent.trim());
      const before = JSON.stringify(read(0).sort());
      if (column >= 0) {
        for (const [direction, sign] of [["ascending", 1], ["descending", -1]]) {
          heads[column].querySelector("button").click();
          const values = read(column).map(number);
          const known = values.filter((value) => value !== null);
          if (known.some((value, i) => i > 0 && sign * (known[i - 1] - value) > 0)) {
            faults.push(`table "${name}": column ${column} does not sort ${direction}: ${read(column).join(" | ")}`);
          }
          const blank = values.indexOf(null);
          if (blank >= 0 && values.slice(blank).some((value) => value !== null)) {
            faults.push(`table "${name}": column ${column}: cells without a number are not last`);
          }
          const said = heads.map((head) => head.getAttribute("aria-sort")).filter(Boolean).join();
          if (said !== direction) faults.push(`table "${name}": aria-sort is ${said || "nothing"}, not ${direction}`);
        }
      }
      heads[0].querySelector("button").click();
      if (heads[0].getAttribute("aria-sort") !== "ascending") faults.push(`table "${name}": text does not sort`);
      if (JSON.stringify(read(0).sort()) !== before) faults.push(`table "${name}": sorting loses rows`);
    }
    return faults;
  });
}

/** Every chart is drawn, says what it is, and fits its place. */
async function charts(page) {
  await page.evaluate(async () => {
    for (const place of document.querySelectorAll(".chart")) {
      place.scrollIntoView();
      await new Promise((done) => setTimeout(done, 60));
    }
    await new Promise((done) => setTimeout(done, 1500));
    scrollTo(0, 0);
  });
  return page.evaluate(() => {
    const faults = [];
    // Those that are folded away are drawn when they are seen.
    const places = [...document.querySelectorAll(".chart")].filter((place) => place.checkVisibility());
    if (!places.length) faults.push("there is no chart");
    for (const place of places) {
      const svg = place.querySelector("svg");
      const name = place.closest("figure").querySelector("figcaption").textContent.slice(0, 60);
      const marks = svg ? svg.querySelectorAll(".mark-symbol path, .mark-rule line, .mark-rect path, .mark-line path").length : 0;
      if (!svg || svg.viewBox.baseVal.height < 40 || !marks) faults.push(`chart "${name}" is not drawn`);
      else if (!place.querySelector("[aria-label]")) faults.push(`chart "${name}" does not say what it is`);
    }
    return faults;
  });
}

/** Colours of paper, words and charts, as drawn. */
const colours = (page) =>
  page.evaluate(() => {
    const of = (query, what) => {
      const one = document.querySelector(query);
      return one ? getComputedStyle(one)[what] : "none";
    };
    return [of("body", "backgroundColor"), of("body", "color"), of(".chart svg text", "fill")];
  });

const scheme = (page, value) => page.emulateMediaFeatures([{ name: "prefers-color-scheme", value }]);

async function themes(page) {
  const faults = [];
  await scheme(page, "light");
  const light = await colours(page);
  await scheme(page, "dark");
  const dark = await colours(page);
  light.forEach((colour, i) => {
    if (colour !== "none" && colour === dark[i]) faults.push(`colour ${colour} is the same in dark and light`);
  });
  await page.click("#theme");
  if ((await colours(page)).join() !== light.join()) faults.push("the button does not switch dark to light");
  await page.click("#theme");
  if ((await colours(page)).join() !== dark.join()) faults.push("the button does not switch light to dark");
  await scheme(page, "light");
  await page.click("#theme");
  return faults;
}

/** Numbers as a program has them are not for readers. */
function raw(page) {
  return page.evaluate(() => {
    const found = document.body.innerText.match(/\d\.\d{7,}|\b\d(\.\d+)?e[+-]\d+/g) ?? [];
    return [...new Set(found)].map((number) => `the raw number ${number} is shown`);
  });
}

async function widths(page) {
  const faults = [];
  for (const size of [NARROW, WIDE]) {
    await page.setViewport(size);
    const wide = await page.evaluate(() => {
      scrollTo(10000, scrollY);
      const moved = scrollX;
      scrollTo(0, 0);
      return { moved, width: document.documentElement.scrollWidth };
    });
    if (wide.width > size.width || wide.moved) faults.push(`at ${size.width} px the page is ${wide.width} px wide`);
  }
  return faults;
}

/** Goes through the page by the Tab key, and sorts and folds by Enter. */
async function keyboard(page) {
  const faults = [];
  const met = new Set();
  await page.evaluate(() => scrollTo(0, 0));
  for (let i = 0; i < 60; i++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const one = document.activeElement;
      return { tag: one.tagName, ring: getComputedStyle(one).outlineStyle, text: one.outerHTML.slice(0, 80) };
    });
    met.add(at.tag);
    if (at.tag !== "BODY" && at.ring === "none") faults.push(`focus cannot be seen on ${at.text}`);
  }
  for (const tag of ["BUTTON", "SUMMARY", "A"]) if (!met.has(tag)) faults.push(`the keyboard does not reach a ${tag}`);
  // The first that is shown: answers to other problems are hidden.
  await page.evaluate(() => [...document.querySelectorAll("table.sortable thead button")].find((one) => one.checkVisibility()).focus());
  await page.keyboard.press("Enter");
  if (!(await page.evaluate(() => document.activeElement.parentElement.hasAttribute("aria-sort")))) {
    faults.push("Enter on a header does not sort");
  }
  return faults;
}

/** A link to something folded away opens it. */
function anchors(page) {
  return page.evaluate(async () => {
    document.querySelectorAll("details").forEach((one) => (one.open = false));
    const folded = [...document.querySelectorAll('a[href^="#"]')].find((a) => {
      const target = document.getElementById(decodeURIComponent(a.hash.slice(1)));
      return target && target.closest("details");
    });
    if (!folded) return [];
    folded.click();
    await new Promise((done) => setTimeout(done, 100));
    const target = document.getElementById(decodeURIComponent(folded.hash.slice(1)));
    return target.getClientRects().length ? [] : [`${folded.hash} stays folded away`];
  });
}

/** What is not folded away is short, and begins with what is best on a problem. */
async function brief(page) {
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  const faults = height > TALLEST ? [`before the details the page is ${height} px tall`] : [];
  const first = await page.evaluate(() => {
    const table = document.querySelector("table");
    return { answers: Boolean(table?.closest(".answer")), top: table?.getBoundingClientRect().top ?? 0 };
  });
  if (!first.answers || first.top > WIDE.height) faults.push("what is best on a problem is not first");
  return faults;
}

/** What is chosen changes the charts that know it, and choosing the first again gives them back. */
function choices(page) {
  return page.evaluate(async () => {
    const faults = [];
    const drawn = () => [...document.querySelectorAll("#ranking svg, #problem svg")].map((svg) => svg.outerHTML).join();
    const choose = async (select, index) => {
      select.selectedIndex = index;
      select.dispatchEvent(new Event("change"));
      await new Promise((done) => setTimeout(done, 400));
    };
    for (const { dataset, options } of document.querySelectorAll("select[data-choice]")) {
      for (let i = 0; i < options.length; i++) {
        await choose(options[i].parentElement, i);
        const shown = [...document.querySelectorAll(".answer")].filter((one) => one.checkVisibility());
        if (shown.length !== 1) faults.push(`${shown.length} answers are shown, not 1`);
        const alike = shown[0]?.dataset[dataset.choice] === options[i].value;
        const said = document.getElementById("likeness").textContent.startsWith("None");
        if (!alike && !said) faults.push(`the answer to ${options[i].value} is of ${shown[0]?.dataset[dataset.choice]}`);
      }
    }
    for (const select of document.querySelectorAll("select[data-param]")) {
      const before = drawn();
      await choose(select, select.options.length - 1);
      if (select.options.length > 1 && drawn() === before) faults.push(`choosing a ${select.dataset.param} changes no chart`);
      const link = document.getElementById("tables");
      if (link && !document.getElementById(link.hash.slice(1))) faults.push(`${link.hash} leads nowhere`);
      await choose(select, 0);
    }
    return faults;
  });
}

async function accessible(page) {
  await page.evaluate(AXE);
  const faults = [];
  for (const [size, look] of [[WIDE, "light"], [WIDE, "dark"], [NARROW, "light"]]) {
    await page.setViewport(size);
    await scheme(page, look);
    const found = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
    for (const one of found.violations.filter((violation) => SEVERE.has(violation.impact))) {
      const where = one.nodes.slice(0, 3).map((node) => node.target.join(" ")).join(", ");
      faults.push(`axe, ${look}, ${size.width} px: ${one.id} (${one.impact}), ${one.nodes.length} times: ${one.help}: ${where}`);
    }
  }
  await scheme(page, "light");
  return faults;
}

/** Markup in names must be text: nothing of it ran, no element came of it, and it can be read. */
function escaped(page) {
  return page.evaluate(() => {
    const faults = [];
    if (window.ran) faults.push("markup of a record ran as a script");
    const made = document.querySelectorAll('img, script:not([type="application/json"])').length;
    if (made !== 1) faults.push(`${made} elements img or script, not 1`);
    for (const words of ['<img src=x onerror="window.ran = 1">', "</script><script>window.ran = 1</script>"]) {
      if (!document.body.innerText.includes(words)) faults.push(`${words} cannot be read`);
    }
    return faults;
  });
}

async function pictures(page, folder, name) {
  mkdirSync(folder, { recursive: true });
  for (const size of [WIDE, NARROW]) {
    for (const look of ["light", "dark"]) {
      await page.setViewport(size);
      await scheme(page, look);
      await page.screenshot({ path: join(folder, `${name}-${size.width}-${look}.png`) });
      await page.screenshot({
        path: join(folder, `${name}-${size.width}-${look}-long.png`),
        clip: { x: 0, y: 0, width: size.width, height: 6000 },
        captureBeyondViewport: true,
      });
    }
  }
  await scheme(page, "light");
}

async function check(browser, path, screenshots) {
  const page = await browser.newPage();
  const faults = [];
  page.on("console", (message) => {
    if (["error", "warn"].includes(message.type())) faults.push(`console: ${message.text()}`);
  });
  page.on("pageerror", (error) => faults.push(`script: ${error.message}`));
  page.on("request", (request) => {
    const asked = request.url();
    if (!asked.startsWith("data:") && asked.split("#")[0] !== pathToFileURL(path).href) faults.push(`fetches ${asked}`);
  });
  await page.setViewport(WIDE);
  await page.goto(pathToFileURL(path).href, { waitUntil: "load", timeout: 120000 });
  const name = basename(path, ".html");
  if (screenshots) await pictures(page, screenshots, name);
  faults.push(...(await brief(page)), ...(await charts(page)), ...(await choices(page)));
  faults.push(...(await anchors(page)));
  await unfold(page);
  for (const part of [charts, links, raw, themes, widths, sorting, keyboard, accessible]) faults.push(...(await part(page)));
  if (name === "hostile") faults.push(...(await escaped(page)));
  await page.close();
  return faults;
}

const { values, positionals } = parseArgs({
  options: { chromium: { type: "string" }, screenshots: { type: "string" }, broken: { type: "string" } },
  allowPositionals: true,
});
// A sandbox of its own needs rights that a container's user has not; the pages are our own files.
const browser = await puppeteer.launch({
  executablePath: values.chromium,
  args: ["--no-sandbox", "--disable-gpu"],
  protocolTimeout: 600000,
});
let wrong = 0;
if (values.broken) {
  // What is checked must be able to fail: of a page with one fault of each kind every one is to be found.
  const found = (await check(browser, values.broken)).join("\n");
  const wanted = readFileSync(values.broken, "utf-8").match(/(?<=fault: ).*/g);
  const missed = wanted.filter((fault) => !found.includes(fault));
  for (const fault of missed) console.log(`the checks do not find this: ${fault}\nthey find:\n${found}`);
  console.log(`${basename(values.broken)}: ${wanted.length - missed.length} of ${wanted.length} planted faults found`);
  wrong += missed.length;
}
for (const path of positionals) {
  const began = Date.now();
  const faults = await check(browser, path, values.screenshots);
  wrong += faults.length;
  for (const fault of faults) console.log(`${basename(path)}: ${fault}`);
  console.log(`${basename(path)}: ${faults.length || "no"} fault${faults.length === 1 ? "" : "s"} in ${((Date.now() - began) / 1000).toFixed(0)} s`);
}
await browser.close();
process.exit(wrong ? 1 : 0);
