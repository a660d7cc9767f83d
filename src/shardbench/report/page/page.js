"use strict";
// Ranking, sorting, hiding and isolating strategies, dark and light; the page can be read without any of it.

const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, million: 1e6, billion: 1e9, "%": 1, x: 1 };

/** The number that a cell begins with, in its unit; null where it begins with none. */
function numberOf(text) {
  if (text === "best" || text === "=") return 0;
  const match = /^[<>~]?\s*([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([A-Za-z%]+)?/.exec(text);
  if (!match) return null;
  return Number(match[1].replaceAll(",", "")) * (UNITS[match[2]] ?? 1);
}

/** Sorts a table's rows by a column; cells without a number come last either way. */
function sort(table, column, numeric, descending) {
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const text = row.cells[column].textContent.trim();
    return { row, key: numeric ? numberOf(text) : text === "" ? null : text };
  });
  const sign = descending ? -1 : 1;
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * (numeric ? a.key - b.key : a.key.localeCompare(b.key, "en", { numeric: true }));
  });
  body.append(...keyed.map((one) => one.row));
}

for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.firstElementChild.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sort(table, column, head.classList.contains("number"), descending);
    });
  });
}

/** Closes the gaps that hidden rows leave in a chart. */
function stack(chart) {
  const top = Number(chart.dataset.top);
  const height = Number(chart.dataset.row);
  const visible = [...chart.querySelectorAll(":scope > g[data-s]")].filter((row) => !row.classList.contains("off"));
  visible.forEach((row, place) => row.setAttribute("transform", `translate(0 ${top + place * height})`));
  const axis = chart.querySelector(".axis");
  chart.dataset.below ??= chart.viewBox.baseVal.height - axis.transform.baseVal.getItem(0).matrix.f;
  const bottom = top + visible.length * height;
  axis.setAttribute("transform", `translate(0 ${bottom})`);
  chart.setAttribute("viewBox", `0 0 ${chart.viewBox.baseVal.width} ${bottom + Number(chart.dataset.below)}`);
}

const boxes = [...document.querySelectorAll("input[data-toggle]")];

/** Shows the strategies whose boxes are ticked. */
function toggle() {
  const hidden = new Set(boxes.filter((box) => !box.checked).map((box) => box.dataset.toggle));
  for (const one of document.querySelectorAll("[data-s]")) one.classList.toggle("off", hidden.has(one.dataset.s));
  for (const chart of document.querySelectorAll("svg[data-row]")) stack(chart);
  document.getElementById("shown").textContent = String(boxes.length - hidden.size);
}

for (const box of boxes) box.addEventListener("change", toggle);
for (const button of document.querySelectorAll("button[data-all]")) {
  button.addEventListener("click", () => {
    for (const box of boxes) box.checked = button.dataset.all === "1";
    toggle();
  });
}
// A browser keeps ticks over a reload.
if (boxes.some((box) => !box.checked)) toggle();

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? preferred) === "dark" ? "light" : "dark";
});

/** Opens what the target of the address lies in, and goes there. */
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let outer = target.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
  target.scrollIntoView();
}

/** Numbers of the strategies that were clicked: they stay lit. */
const kept = new Set();

/** Dims all strategies but those that are kept, or that the pointer is on. */
function isolate(hovered) {
  const lit = hovered === null ? kept : new Set([hovered]);
  document.body.classList.toggle("isolating", lit.size > 0);
  for (const one of document.querySelectorAll("[data-s]")) one.classList.toggle("lit", lit.has(one.dataset.s));
  for (const pick of document.querySelectorAll("button.pick")) {
    pick.setAttribute("aria-pressed", String(kept.has(pick.closest("[data-s]").dataset.s)));
  }
}

const strategyAt = (target) => target.closest?.("svg [data-s], #ranked [data-s]")?.dataset.s ?? null;
document.addEventListener("mouseover", (event) => isolate(strategyAt(event.target)));
document.addEventListener("focusin", (event) => isolate(event.target.matches("button.pick") ? strategyAt(event.target) : null));
document.addEventListener("click", (event) => {
  const at = event.target.closest?.("svg, button.pick") ? strategyAt(event.target) : null;
  if (at === null) return;
  if (!kept.delete(at)) kept.add(at);
  isolate(null);
});

const ranked = document.getElementById("ranked");

/** The median of some numbers. */
function middle(numbers) {
  const sorted = numbers.toSorted((a, b) => a - b);
  const half = Math.floor(sorted.length / 2);
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** Three significant digits, as the rest of the page has them. */
const digits = (value) => (value === 0 ? "0" : value >= 100 ? value.toFixed(0) : value.toPrecision(3));

/** A strategy's share of the problems of a backend that it is near the best on, families alike. */
function shareOf(rows, problems) {
  const families = new Map();
  for (const [, problem, near] of rows) {
    const family = problems[problem].family;
    families.set(family, [...(families.get(family) ?? []), near ?? 0]);
  }
  const means = [...families.values()].map((all) => all.reduce((a, b) => a + b, 0) / all.length);
  return means.reduce((a, b) => a + b, 0) / means.length;
}

/** Fills in a cell with a number and its bar. */
function bar(cell, text, value) {
  const meter = cell.querySelector("meter") ?? document.createElement("meter");
  cell.textContent = text === null ? "" : `${text} `;
  if (text === null) return;
  meter.max = cell.dataset.most ?? 1;
  meter.value = value;
  cell.append(meter);
}

/** Ranks the strategies anew on the problems that the filters leave. */
function rank(board, chosen) {
  const body = ranked.tBodies[0];
  const heads = [...ranked.tHead.rows[0].cells].map((head) => head.textContent.trim());
  const backends = heads.filter((head) => head.endsWith(", within 5 %")).map((head) => head.split(",")[0]);
  const left = board.problems.map((one) => {
    const budget = one.backend === "measured" || !chosen.budget || one.budget === chosen.budget;
    return budget && (!chosen.devices || String(one.devices) === chosen.devices) && (!chosen.memory || one.memory === chosen.memory);
  });
  const rows = [...body.rows].map((row) => {
    const own = board.rows.filter(([s, problem]) => String(s) === row.dataset.s && left[problem]);
    const shares = backends.map((backend) => {
      const of = own.filter(([, problem]) => board.problems[problem].backend === backend);
      return of.length ? { value: shareOf(of, board.problems), finished: of.filter((one) => one[2] !== null).length, all: of.length, of } : null;
    });
    return { row, shares, competes: board.competing[row.dataset.s] };
  });
  const by = Math.max(0, backends.indexOf(chosen.backend));
  const value = (one) => one.shares[by]?.value ?? -1;
  const ranks = backends[by] !== "measured"; // noise leaves a measured rank open
  rows.sort((a, b) => value(b) - value(a));
  for (const one of rows) {
    const better = rows.filter((other) => other.competes && value(other) > value(one) + 1e-6).length;
    const cells = [...one.row.cells];
    cells[0].textContent = ranks && one.competes && one.shares[by] ? String(1 + better) : "-";
    one.shares.forEach((share, i) => {
      bar(cells[2 + 2 * i], share && `${(100 * share.value).toFixed(0)} %`, share?.value);
      cells[3 + 2 * i].textContent = share ? `${share.finished} of ${share.all}` : "";
    });
    const seconds = (one.shares[by]?.of ?? []).filter((each) => each[2] !== null).map((each) => each[3]);
    cells.at(-1).dataset.most = 60;
    bar(cells.at(-1), seconds.length ? digits(middle(seconds)) : null, seconds.length ? middle(seconds) : 0);
  }
  body.append(...rows.map((one) => one.row));
  for (const head of ranked.tHead.rows[0].cells) head.removeAttribute("aria-sort");
  const counts = backends.map((backend) => `${left.filter((is, i) => is && board.problems[i].backend === backend).length} ${backend}`);
  document.getElementById("counted").textContent = `Problems that the filters leave: ${counts.join(", ")}.`;
}

if (ranked) {
  const board = JSON.parse(document.getElementById("board").textContent);
  const filters = [...document.querySelectorAll("select[data-filter]")];
  const anew = () => rank(board, Object.fromEntries(filters.map((one) => [one.dataset.filter, one.value])));
  for (const filter of filters) filter.addEventListener("change", anew);
  // A browser keeps choices over a reload.
  if (filters.some((filter) => filter.selectedIndex > 0)) anew();
}

addEventListener("hashchange", reveal);
reveal();
