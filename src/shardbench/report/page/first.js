"use strict";
// Sorting, and the choice of a problem; the tables can be read without any of it.

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

const problem = document.querySelector('select[data-param="problem"]');
const answers = [...document.querySelectorAll(".answer")];
const wishes = [...document.querySelectorAll("select[data-choice]")];

/** How unlike an answer's problem is to the wishes; 0 where it is as they say. */
function unlike({ dataset }) {
  const [devices, memory, lookups] = wishes.map((one) => one.value);
  const times = Math.abs(Math.log2(dataset.devices / devices));
  return 8 * (dataset.lookups !== lookups) + 4 * (dataset.memory !== memory) + times / 2;
}

/** Puts problems in order, the likest first, and chooses that. */
function choose() {
  const far = (option) => unlike(answers[option.value]);
  problem.append(...[...problem.options].sort((a, b) => far(a) - far(b)));
  problem.selectedIndex = 0;
  const exact = far(problem.options[0]) === 0;
  document.getElementById("likeness").textContent = exact ? "A problem like that:" : "None is like that; the nearest:";
  problem.dispatchEvent(new Event("change"));
}

for (const wish of wishes) wish.addEventListener("change", choose);
problem?.addEventListener("change", () => {
  answers.forEach((one, i) => (one.hidden = String(i) !== problem.value));
  const tables = document.getElementById("tables");
  tables.href = tables.href.replace(/\d+$/, problem.value);
});
if (wishes.length) choose();
