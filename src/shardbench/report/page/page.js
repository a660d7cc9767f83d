"use strict";
// Dark and light, folded parts, and the charts.

document.getElementById("theme").addEventListener("click", () => {
  const { style } = document.documentElement;
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  style.colorScheme = (style.colorScheme || preferred) === "dark" ? "light" : "dark";
});

/** Opens what the target of the address lies in, and goes there. */
function reveal() {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let outer = target.closest("details"); outer; outer = outer.parentElement.closest("details")) outer.open = true;
  target.scrollIntoView();
}

const rows = JSON.parse(document.getElementById("rows").textContent);
const selects = [...document.querySelectorAll("select[data-param]")];
const views = [];

/** What a select leaves a chart that has its parameter. */
const chosen = (spec) => selects.filter(({ dataset }) => spec.signals?.some(({ name }) => name === dataset.param));

/** Draws a chart in its place; panels stand side by side as there is room for them. */
async function draw(place) {
  const spec = JSON.parse(place.textContent);
  if (spec.layout) spec.layout.columns = Math.max(1, Math.floor(place.clientWidth / 400));
  for (const data of spec.data) if (data.name in rows) data.values = rows[data.name];
  for (const { dataset, value } of chosen(spec)) spec.signals.find(({ name }) => name === dataset.param).value = value;
  const options = { renderer: "svg", ast: true, actions: false, defaultStyle: false, logLevel: 1, tooltip: { disableDefaultStyle: true } };
  const { view } = await vegaEmbed(place, spec, options);
  views.push({ place, view, spec });
  hideEmpty(place);
}

/** Hides layers without a mark from those who are read the page: they say nothing. */
function hideEmpty(place) {
  for (const layer of place.querySelectorAll("g[role]")) if (!layer.ariaLabel) layer.ariaHidden = String(layer.role === "graphics-symbol");
}

// A chart is drawn when it comes into sight: those that are folded away have no width.
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    draw(target);
  }
}, { rootMargin: "400px" });
for (const place of document.querySelectorAll(".chart")) seen.observe(place);
for (const select of selects) {
  select.addEventListener("change", () => {
    for (const { place, view, spec } of views) {
      if (chosen(spec).includes(select)) view.signal(select.dataset.param, select.value).runAsync().then(() => hideEmpty(place));
    }
  });
}

addEventListener("hashchange", reveal);
reveal();
