"use strict";

// What goes wrong is kept on the page itself, for whoever looks there.
const problems = [];
function keep(problem) {
  problems.push(problem);
  document.documentElement.dataset.problems = problems.join("\n");
}
addEventListener("error", (event) => keep(event.message));
addEventListener("unhandledrejection", (event) => keep(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) =>
  keep(`${event.effectiveDirective}: ${event.blockedURI}`),
);

const PRINT = { ink: "#1b1f24", line: "#d9dee4", paper: "#ffffff" };
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)").matches;

function screenColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { ink: colour("--ink"), line: colour("--line"), paper: colour("--paper") };
}

function template({ ink, line, paper }) {
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return {
    layout: {
      font: { family: "system-ui, sans-serif", size: 13, color: ink },
      paper_bgcolor: paper,
      plot_bgcolor: paper,
      hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink } },
      xaxis: axis,
      yaxis: axis,
    },
  };
}

function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function draw(plot, { data, layout }) {
  // Dragging on a touch screen scrolls the page.
  const dragmode = touch ? false : "zoom";
  const themed = { ...layout, template: template(screenColours()), dragmode };
  // On a resize Plotly forgets the layout's height and asks the element.
  plot.style.height = `${layout.height}px`;
  return Plotly.react(plot, data, themed, { responsive: true, displayModeBar: false });
}

async function download(plot, format, name) {
  const { clientWidth: width, clientHeight: height } = plot;
  const layout = { ...plot.layout, template: template(PRINT) };
  const options = { format, width, height, scale: format === "png" ? 2 : 1 };
  const link = document.createElement("a");
  link.href = await Plotly.toImage({ data: plot.data, layout }, options);
  link.download = `${name}.${format}`;
  link.click();
}

// A checkbox shows or hides one kind of trace, bands or single runs, in its section's figures.
function showKind(box) {
  for (const plot of box.closest("section").querySelectorAll(".drawing")) {
    const chosen = plot.data.flatMap(({ meta }, index) => (meta === box.dataset.kind ? [index] : []));
    if (chosen.length) Plotly.restyle(plot, { visible: box.checked }, chosen);
  }
}

function withMetric(figure, column, curves, points) {
  const along = (curve) => (Array.isArray(curve) ? curve : Array(points).fill(curve));
  const data = figure.data.map((trace, arm) => ({ ...trace, y: along(curves[arm]) }));
  const title = { ...figure.layout.yaxis.title, text: escaped(column) };
  return { data, layout: { ...figure.layout, yaxis: { ...figure.layout.yaxis, title } } };
}

// A figure over the axis chosen: its traces name where their points lie, the page has the places.
function along(figure, { places, axes }, axis) {
  if (!figure.along) return figure;
  const data = figure.data.map((trace, index) => ({ ...trace, x: places[figure.along[index]][axis] }));
  const title = { ...figure.layout.xaxis.title, text: axes[axis] };
  return { data, layout: { ...figure.layout, xaxis: { ...figure.layout.xaxis, title } } };
}

function sortBy(header) {
  const body = header.closest("table").tBodies[0];
  const descending = header.getAttribute("aria-sort") === "ascending";
  for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const value = (row) => {
    const cell = row.cells[header.cellIndex];
    return cell.dataset.value ?? cell.textContent;
  };
  const compare = (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
  const byNumber = (a, b) => Number(value(a)) - Number(value(b));
  const numeric = header.classList.contains("n");
  const absent = (row) => numeric && (value(row) === "" || isNaN(value(row)));
  const rows = [...body.rows].sort((a, b) => {
    if (absent(a) || absent(b)) return absent(a) - absent(b);
    return (numeric ? byNumber(a, b) : compare(a, b)) * (descending ? -1 : 1);
  });
  body.append(...rows);
}

function openRecipe() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) target.open = true;
}

document.addEventListener("DOMContentLoaded", () => {
  const page = JSON.parse(document.getElementById("page").textContent);
  const select = document.getElementById("metric");
  const boxes = document.querySelectorAll("[data-kind]");
  const choosers = document.querySelectorAll("[data-chooses]");
  const plots = new Map();

  function drawOne(name) {
    const chooser = document.querySelector(`[data-chooses="${name}"]`);
    const axis = document.querySelector("[name=axis]:checked")?.value ?? "env_steps";
    draw(plots.get(name), along(page.figures[chooser?.value ?? name], page, axis));
  }

  function drawMetric() {
    const { values, points, figures } = page.metrics;
    figures.forEach((name, env) => {
      const curves = values[select.value][env];
      draw(plots.get(name), withMetric(page.figures[name], select.value, curves, points));
    });
  }

  function drawAll() {
    for (const name of plots.keys()) drawOne(name);
    if (select) drawMetric();
    boxes.forEach(showKind);
  }

  for (const element of document.querySelectorAll("[data-figure]")) {
    const name = element.dataset.figure;
    const plot = element.querySelector(".drawing");
    plots.set(name, plot);
    for (const button of element.querySelectorAll("button")) {
      button.addEventListener("click", () =>
        download(plot, button.dataset.format, `${page.name}-${name}`),
      );
    }
  }

  drawAll();
  dark.addEventListener("change", drawAll);
  select?.addEventListener("change", drawMetric);
  for (const radio of document.querySelectorAll("[name=axis]")) {
    radio.addEventListener("change", drawAll);
  }
  for (const chooser of choosers) {
    chooser.addEventListener("change", () => drawOne(chooser.dataset.chooses));
  }
  for (const box of boxes) box.addEventListener("change", () => showKind(box));
  for (const header of document.querySelectorAll(".sortable th")) {
    header.addEventListener("click", () => sortBy(header));
  }
  addEventListener("hashchange", openRecipe);
  openRecipe();
  document.documentElement.dataset.drawn = plots.size;
});
