// Problems and responses: the list, its search, what to look at first.

const PAGE = 50;
const number = (value) => value.toLocaleString("en");
let pattern = null;
let matches = [];

/** A <details> whose body is made when it is opened. */
function folded(className, summary, body) {
  const node = make("details", className, make("summary", "", ...summary));
  node.addEventListener("toggle", () => {
    if (node.open && node.children.length === 1) node.append(...body());
  });
  return node;
}

/** Nodes of a text, what was searched for marked. */
function marked(text) {
  if (!pattern) return [text];
  return text.split(pattern).map((part, i) => (i % 2 ? make("mark", "", part) : part)).filter((part) => part !== "");
}

function outcome(problem) {
  const right = problem.samples.filter((sample) => sample.correct).length;
  return right === problem.samples.length ? "right" : right === 0 ? "wrong" : "mixed";
}

function tally(problem) {
  const right = problem.samples.filter((sample) => sample.correct).length;
  if (problem.samples.length === 1) return right ? "✓ correct" : "✗ incorrect";
  return `${right} of ${problem.samples.length} correct`;
}

/** Every different answer with how often it was given, the most frequent first. */
function answers(problem) {
  const counts = new Map();
  for (const { answer, correct } of problem.samples) {
    const text = answer === null ? "no answer" : answer;
    const known = counts.get(text) || { correct, count: 0 };
    counts.set(text, { correct, count: known.count + 1 });
  }
  const ranked = [...counts].sort((a, b) => b[1].count - a[1].count);
  return ranked.flatMap(([text, { correct, count }], i) => [
    i ? ", " : "", make("span", correct ? "right" : "", correct ? "✓ " : "", ...marked(text)), ` × ${count}`,
  ]);
}

function sampleNode(sample, index, open) {
  const length = `${number(sample.tokens)} tokens`;
  const surprisal = sample.surprisal === null ? "" : `, surprisal ${sample.surprisal.toFixed(3)}`;
  const summary = [
    make("span", sample.correct ? "right" : "wrong", sample.correct ? "✓" : "✗", ` sample ${index}`),
    sample.answer === null ? "" : make("span", "answer", "answer ", ...marked(sample.answer)),
    make("span", "faint", length + surprisal),
  ];
  if (sample.truncated) summary.push(make("span", "tag", "truncated"));
  if (sample.status !== "graded") summary.push(make("span", "tag", sample.status.replaceAll("_", " ")));
  if (pattern && pattern.test(sample.text)) summary.push(make("mark", "", "found here"));
  const node = folded("sample", summary, () => [make("pre", "", ...marked(sample.text))]);
  node.open = open;
  return node;
}

function problemBody(problem) {
  const given = problem.samples.length > 1 ? [make("br", ""), make("b", "", "Given: "), ...answers(problem)] : [];
  return [make("div", "body",
    make("div", "text", ...marked(problem.problem)),
    make("p", "answers", make("b", "", "Right answer: "), ...marked(problem.answer), ...given,
      make("br", ""), make("span", "faint", `Source: ${problem.source}`)),
    ...problem.samples.map((sample, i) => sampleNode(sample, i, problem.samples.length === 1)))];
}

function problemNode(problem) {
  const name = make("span", "name", make("span", "faint", `${problem.benchmark} `), ...marked(problem.id));
  return folded("problem", [
    make("span", `tally ${outcome(problem)}`, tally(problem)), name,
    make("span", "preview", problem.problem.slice(0, 300)),
  ], () => problemBody(problem));
}

function isFound(problem) {
  const texts = [problem.id, problem.problem, problem.answer];
  return texts.some((text) => pattern.test(text)) ||
    problem.samples.some((sample) => pattern.test(sample.answer || "") || pattern.test(sample.text));
}

function isChosen(problem, benchmark, kind) {
  if (benchmark && problem.benchmark !== benchmark) return false;
  if (kind === "truncated") return problem.samples.some((sample) => sample.truncated);
  return !kind || outcome(problem) === kind;
}

const showMore = () => showPage(byId("problems"), matches, problemNode, PAGE);

function update() {
  const query = byId("query").value.trim();
  pattern = query ? new RegExp(`(${query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")})`, "i") : null;
  const [benchmark, kind] = [byId("benchmark").value, byId("outcome").value];
  matches = data.problems.filter((problem) => isChosen(problem, benchmark, kind) && (!pattern || isFound(problem)));
  byId("count").textContent = `${number(matches.length)} of ${number(data.problems.length)} problems`;
  byId("problems").replaceChildren();
  showMore();
}

let waiting = 0;
byId("query").addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(update, 200);
});
for (const id of ["benchmark", "outcome"]) byId(id).addEventListener("change", update);
byId("filters").addEventListener("submit", (event) => {
  event.preventDefault();
  update();
});
byId("more").addEventListener("click", showMore);
byId("benchmark").append(...data.benchmarks.map((name) => make("option", "", name)));
byId("highlights").append(...data.highlights.map((index) => problemNode(data.problems[index])));
update();
drawAll();
