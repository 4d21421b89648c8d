// Runs: shown and hidden, one in detail, their evaluations.

const FEW_RUNS = 4;

function showRun(index) {
  const run = data.runs[index];
  for (const name of data.kinds) drawFigure(name, run.charts[name]);
  for (const node of document.querySelectorAll("[data-run]")) node.hidden = Number(node.dataset.run) !== index;
  if (byId("tokens")) showTokens(run.tokens);
}

function fillRuns() {
  const selects = [...document.querySelectorAll(".run-choice")];
  for (const select of selects) {
    select.append(...options(data.runs.map((run) => run.name)));
    select.addEventListener("change", () => {
      for (const other of selects) other.value = select.value;
      showRun(Number(select.value));
    });
  }
}

function fillChips() {
  const chips = byId("chips");
  if (!chips) return;
  const redraw = () => { for (const [plot, spec] of drawn) if (plot.closest("figure").dataset.shared) draw(plot, spec); };
  const buttons = data.runs.map((run) => toggle(run.style, run.label, (on) => {
    hiddenRuns[on ? "delete" : "add"](run.style.legendgroup);
    redraw();
  }));
  if (buttons.length > FEW_RUNS) chips.append(...[["all", true], ["none", false]].map(([label, on]) => {
    const button = make("button", "all", label);
    button.type = "button";
    button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", on);
      for (const run of data.runs) hiddenRuns[on ? "delete" : "add"](run.style.legendgroup);
      redraw();
    });
    return button;
  }));
  chips.append(...buttons);
}

function fillEvaluations() {
  const select = byId("number");
  if (!select) return;
  const charts = data.evaluations;
  const show = () => drawFigure("evaluations", charts[select.value]);
  select.append(...options(charts.map((chart) => chart.title)));
  select.addEventListener("change", show);
  show();
}

fillChips();
fillRuns();
fillTokens();
drawAll(() => {
  showRun(0);
  fillEvaluations();
});
