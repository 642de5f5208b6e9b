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
const narrow = matchMedia("(max-width: 40rem)");
const touch = matchMedia("(pointer: coarse)").matches;
const LETTER = 8, LINE = 20; // Pixels of a title's letter, and of its line.

function screenColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return { ink: colour("--ink"), line: colour("--line"), paper: colour("--paper") };
}

// Ticks are alike in all figures: 0.005, 20, 1.5k, 2M. By the distance of ticks, since SI prefixes
// alone would make 5m of 0.005.
const TICKS = {
  tickformatstops: [
    { dtickrange: [null, 0.9999], value: "~g" },
    { dtickrange: [0.9999, null], value: "~s" },
  ],
};

function template({ ink, line, paper }) {
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
  return {
    layout: {
      font: { family: "system-ui, sans-serif", size: 13, color: ink },
      paper_bgcolor: paper,
      plot_bgcolor: paper,
      hoverlabel: { bgcolor: paper, bordercolor: line, font: { color: ink } },
      xaxis: { ...axis, hoverformat: ",.12~r" },
      yaxis: { ...axis, hoverformat: ",.5~r" },
    },
  };
}

function shortNumber(digit, power) {
  if (power >= 3 && power < 15) return digit * 10 ** (power % 3) + "kMGT"[Math.floor(power / 3) - 1];
  if (Math.abs(power) > 5) return `${digit}e${power}`;
  return (digit * 10 ** power).toFixed(Math.max(0, -power));
}

// A logarithmic axis has 1, 2 and 5 of each power of ten, or 1 alone over many powers.
function logTicks(axis, values) {
  const known = values.filter((value) => value > 0).map(Math.log10);
  const low = axis.range?.[0] ?? Math.min(...known);
  const high = axis.range?.[1] ?? Math.max(...known);
  if (!isFinite(low) || !isFinite(high)) return axis;
  const digits = high - low > 2.5 ? [1] : [1, 2, 5];
  const ticks = [];
  // Further than the axis reaches: it may be zoomed out of.
  for (let power = Math.floor(low) - 3; power <= high + 3; power++) {
    for (const digit of digits) ticks.push([digit, power]);
  }
  return {
    ...axis,
    tickvals: ticks.map(([digit, power]) => digit * 10 ** power),
    ticktext: ticks.map(([digit, power]) => shortNumber(digit, power)),
  };
}

function withTicks(data, layout) {
  const axes = Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name));
  const ticked = axes.map(([name, axis]) => {
    if (axis.type !== "log") return [name, { ...axis, ...TICKS }];
    const id = name.replace("axis", "");
    const drawn = data.filter((trace) => (trace[`${id[0]}axis`] ?? id[0]) === id);
    return [name, logTicks(axis, drawn.flatMap((trace) => trace[id[0]] ?? []))];
  });
  return { ...layout, ...Object.fromEntries(ticked) };
}

// A title longer than its figure is wide is broken over lines: Plotly would cut it.
function withBrokenTitle(layout, width) {
  const [first, ...words] = layout.title.text.replaceAll("<br>", " ").split(" ");
  const lines = [first];
  for (const word of words) {
    const longer = `${lines.at(-1)} ${word}`;
    if (longer.length * LETTER <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  const title = { ...layout.title, text: lines.join("<br>") };
  const room = LINE * (lines.length - 1);
  const margin = { ...layout.margin, t: layout.margin.t + room };
  return { ...layout, title, margin, height: layout.height + room };
}

function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

function draw(plot, { data, layout }) {
  // Dragging on a touch screen scrolls the page.
  const dragmode = touch ? false : "zoom";
  const fitting = withBrokenTitle(withTicks(data, layout), plot.clientWidth);
  const themed = { ...fitting, template: template(screenColours()), dragmode };
  // On a resize Plotly forgets the layout's height and asks the element.
  plot.style.height = `${themed.height}px`;
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

function withMetric(figure, column, curves, names, points) {
  const along = (curve) => (Array.isArray(curve) ? curve : Array(points).fill(curve));
  const data = figure.data.map((trace, arm) => ({
    ...trace,
    name: names[arm] ?? trace.name,
    y: along(curves[arm]),
  }));
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
    const { values, names, points, figures } = page.metrics;
    figures.forEach((name, env) => {
      const curves = values[select.value][env];
      const known = names[select.value]?.[env] ?? {};
      draw(plots.get(name), withMetric(page.figures[name], select.value, curves, known, points));
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
  narrow.addEventListener("change", drawAll);
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
