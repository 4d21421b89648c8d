// Charts, their legends and their zoom.

const drawn = new Map(); // plot -> what is drawn in it
const hiddenOf = new Map(); // figure -> legend groups that its own legend hides
const hiddenRuns = new Set(); // legend groups that the page's legend of runs hides
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(hover: none), (pointer: coarse)");

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A copy with the colours of the page in the place of var(--name); arrays are shared. */
function themed(value) {
  if (typeof value === "string") {
    const found = /^var\((--\w+)\)$/.exec(value);
    return found ? color(found[1]) : value;
  }
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return typeof value[0] === "object" || value.length === 2 ? value.map(themed) : value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, themed(each)]));
}

function themedLayout(layout) {
  const axis = { gridcolor: color("--line"), linecolor: color("--edge"), automargin: true, zeroline: false };
  const found = themed(layout);
  for (const name of Object.keys(found).filter((key) => /^[xy]axis/.test(key))) found[name] = { ...axis, ...found[name] };
  const label = { bgcolor: color("--ground"), bordercolor: color("--edge"), font: { color: color("--ink"), size: 13 } };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    margin: { l: 48, r: 14, t: 8, b: 44 }, dragmode: touch.matches ? false : "zoom",
    font: { family: 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif', size: 12, color: color("--ink") },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: color("--edge"), activecolor: color("--ink") },
    hoverlabel: { ...label, namelength: 40 },
    ...found,
  };
}

const CONFIG = {
  responsive: true, displaylogo: false, displayModeBar: touch.matches ? false : "hover",
  modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]], toImageButtonOptions: { format: "svg" },
};

async function draw(plot, spec) {
  try {
    drawn.set(plot, spec);
    const traces = themed(spec.traces).map((trace) => ({ ...trace, visible: isVisible(plot, trace) }));
    await Plotly.react(plot, traces, themedLayout(spec.layout), CONFIG);
    if (!plot.dataset.ready) {
      plot.dataset.ready = "true";
      plot.on("plotly_relayout", (change) => follow(plot, change));
    }
  } catch (problem) {
    note(problem);
    plot.textContent = "This chart could not be drawn.";
  }
}

function isVisible(plot, trace) {
  const figure = plot.closest("figure");
  const hidden = figure.dataset.shared ? hiddenRuns : hiddenOf.get(figure);
  return !hidden.has(trace.legendgroup);
}

let following = false;
/** Charts by step zoom together. */
function follow(plot, change) {
  if (following || !drawn.get(plot).linked) return;
  const range = change["xaxis.autorange"] ? { "xaxis.autorange": true } : {
    "xaxis.range[0]": change["xaxis.range[0]"], "xaxis.range[1]": change["xaxis.range[1]"],
  };
  if (!range["xaxis.autorange"] && range["xaxis.range[0]"] === undefined) return;
  following = true;
  const others = [...drawn].filter(([other, spec]) => other !== plot && spec.linked && other.dataset.ready);
  Promise.all(others.map(([other]) => Plotly.relayout(other, range))).finally(() => { following = false; });
}

const SVG = "http://www.w3.org/2000/svg";
const PATTERN = { dash: "7 4", dot: "2 3", dashdot: "7 3 2 3", longdash: "11 4" };

const HATCH = {
  "/": "M4 12L16 0M14 12L26 0", "\\": "M4 0L16 12M14 0L26 12", x: "M6 12L18 0M6 0L18 12M14 12L26 0M14 0L26 12",
  ".": "M9 6h.1M15 6h.1M21 6h.1",
};

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

/** The line, dot or bar of a legend. */
function swatch(trace) {
  const { line = {}, marker = {}, type, mode } = themed(trace);
  const parts = [];
  if (type === "bar") {
    const { shape, fgcolor } = marker.pattern;
    parts.push(svg("rect", { x: 4, width: 22, height: 12, fill: marker.color }));
    if (shape) parts.push(svg("path", { d: HATCH[shape], stroke: fgcolor, "stroke-width": shape === "." ? 3 : 1.5, "stroke-linecap": "round" }));
  } else if (/lines/.test(mode)) {
    parts.push(svg("line", { x2: 30, y1: 6, y2: 6, stroke: line.color, "stroke-width": 2.5, "stroke-dasharray": PATTERN[line.dash] || "none" }));
  } else {
    const fill = Array.isArray(marker.color) ? color("--late") : marker.color;
    parts.push(svg("circle", { cx: 15, cy: 6, r: 4.5, fill, opacity: 0.8 }));
  }
  return svg("svg", { class: "swatch", width: 30, height: 12, "aria-hidden": "true" }, ...parts);
}

function toggle(trace, label, onToggle) {
  const button = make("button", "", swatch(trace), label);
  button.type = "button";
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    onToggle(on);
  });
  return button;
}

const unescaped = (text) => text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");

/** Buttons that show and hide the groups of a figure's traces. */
function legend(figure, traces) {
  const hidden = new Set();
  hiddenOf.set(figure, hidden);
  const first = new Map();
  for (const trace of traces) {
    if (trace.showlegend !== false && !first.has(trace.legendgroup)) first.set(trace.legendgroup, trace);
  }
  const buttons = [...first.values()].map((trace) => toggle(trace, unescaped(trace.name), (on) => {
    hidden[on ? "delete" : "add"](trace.legendgroup);
    for (const plot of figure.querySelectorAll(".plot")) draw(plot, drawn.get(plot));
  }));
  figure.querySelector(".legend").replaceChildren(...(buttons.length < 2 ? [] : buttons));
}

/** Gives a figure as many places for plots as it has panels. */
function placePanels(list, count) {
  list.dataset.count = count;
  while (list.children.length > count) {
    const plot = list.lastElementChild.querySelector(".plot");
    Plotly.purge(plot);
    drawn.delete(plot);
    list.lastElementChild.remove();
  }
  while (list.children.length < count) {
    list.append(make("div", "panel", make("h4", ""), make("p", "said"), make("div", "plot")));
  }
}

function drawFigure(name, spec) {
  const figure = byId(`chart-${name}`);
  figure.hidden = !spec;
  if (!spec) return;
  figure.querySelector("figcaption").textContent = spec.note;
  const list = figure.querySelector(".plots");
  list.setAttribute("aria-label", spec.description);
  placePanels(list, spec.panels.length);
  if (!figure.dataset.shared) legend(figure, spec.panels.flatMap((panel) => panel.traces));
  spec.panels.forEach((panel, place) => {
    const node = list.children[place];
    const plot = node.querySelector(".plot");
    node.querySelector("h4").textContent = panel.title;
    node.querySelector(".said").textContent = panel.said;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", panel.title || spec.title);
    draw(plot, { ...panel, linked: spec.linked });
  });
}

const pause = () => new Promise((done) => setTimeout(done));

/** Draws the charts of the page, then what is left to do. */
async function drawAll(rest) {
  for (const [name, spec] of Object.entries(data.charts)) {
    drawFigure(name, spec);
    await pause(); // the page answers in between
  }
  if (rest) rest();
  await pause();
  document.body.dataset.charts = document.querySelectorAll("figure:not([hidden])").length;
  document.body.dataset.requests = performance.getEntriesByType("resource").length;
  document.body.dataset.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
}

dark.addEventListener("change", () => { for (const [plot, spec] of drawn) draw(plot, spec); });
