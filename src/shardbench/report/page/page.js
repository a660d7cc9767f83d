"use strict";
// Sorting, hiding strategies, dark and light; the page can be read without any of it.

const UNITS = { kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, million: 1e6, billion: 1e9, "%": 1, x: 1 };

/** The number that a cell begins with, in its unit; null where it begins with none. */
function numberOf(text) {
  if (text === "best" || text === "=") return 0;
  const found = /^[<>~]?\s*([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*([A-Za-z%]+)?/.exec(text);
  if (!found) return null;
  return Number(found[1].replaceAll(",", "")) * (UNITS[found[2]] ?? 1);
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
  const shown = [...chart.querySelectorAll(":scope > g[data-s]")].filter((row) => !row.classList.contains("off"));
  shown.forEach((row, place) => row.setAttribute("transform", `translate(0 ${top + place * height})`));
  const axis = chart.querySelector(".axis");
  chart.dataset.below ??= chart.viewBox.baseVal.height - axis.transform.baseVal.getItem(0).matrix.f;
  const bottom = top + shown.length * height;
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

addEventListener("hashchange", reveal);
reveal();
