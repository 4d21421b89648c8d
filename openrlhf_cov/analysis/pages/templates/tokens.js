// Tokens of the highest covariance in their text.

const PAGE = 20;
const SEEN = { "\n": "↵", "\t": "→", "\r": "␍" };
const CONTROL = /([\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff])/u;
let tokens = null;
let shownPassages = [];

/** Nodes of a text whose line ends, tabs and control characters can be seen; of a token its spaces too. */
function visible(text, isToken) {
  const nodes = [];
  for (const part of text.split(isToken ? /([\s\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff])/u : CONTROL)) {
    if (part === "") continue;
    if (part.length > 1 || !(CONTROL.test(part) || (isToken && /\s/.test(part)))) nodes.push(part);
    else {
      const code = part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      nodes.push(make("span", "space", SEEN[part] || (part === " " ? "␣" : `⟨U+${code}⟩`)));
      if (!isToken) nodes.push(document.createElement("wbr"));
    }
  }
  return nodes;
}

const shade = (cov) => (cov === 0 ? 0 : 0.12 + 0.58 * Math.min(1, Math.abs(cov) / tokens.scale));
const digits = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString().replace("-", "−"));

function describe(token) {
  return `${token.token === "" ? "empty token" : token.token}, covariance ${digits(token.cov)}${token.selected ? ", selected" : ""}`;
}

function tokenNode(token) {
  const node = make("span", "token", ...(token.token === "" ? [make("span", "space", "∅")] : visible(token.token, true)));
  const negative = token.cov < 0;
  node.classList.toggle("negative", negative);
  node.classList.toggle("selected", token.selected);
  node.style.backgroundColor = `rgba(${color(negative ? "--negative" : "--positive")}, ${shade(token.cov).toFixed(3)})`;
  node.setAttribute("role", "button");
  node.setAttribute("aria-label", describe(token));
  node.tabIndex = -1;
  const show = () => showTip(node, token);
  for (const name of ["mouseenter", "focus", "click"]) node.addEventListener(name, show);
  for (const name of ["mouseleave", "blur"]) node.addEventListener(name, hideTip);
  return node;
}

function showTip(node, token) {
  const facts = [
    ["covariance", digits(token.cov)], ["entropy, nats", digits(token.entropy)], ["advantage", digits(token.advantage)],
    ["log-prob", digits(token.log_prob)], ["selected", token.selected ? "yes" : "no"],
    ["position", digits(token.position)], ["token id", digits(token.token_id)],
  ];
  const list = make("dl", "facts", ...facts.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
  const tip = byId("tip");
  tip.replaceChildren(make("code", "", ...(token.token === "" ? ["empty token"] : visible(token.token, true))), list);
  tip.hidden = false;
  node.setAttribute("aria-describedby", "tip");
  const box = node.getClientRects()[0];
  const left = Math.max(8, Math.min(box.left, document.documentElement.clientWidth - tip.offsetWidth - 8));
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${left + scrollX}px`;
  tip.style.top = `${(above > 0 ? above : box.bottom + 8) + scrollY}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

function passageNode(step, parts) {
  const places = parts.filter((part) => typeof part === "number");
  const first = step.tokens[places[0]];
  const known = [["prompt", first.prompt_id], ["sample", first.sample_id], ["position", first.position]];
  const where = known.filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value}`).join(", ");
  const nodes = parts.flatMap((part) => {
    if (typeof part === "string") return visible(part, false);
    const token = step.tokens[part];
    return byId("selected-only").checked && !token.selected ? visible(token.token, false) : [tokenNode(token)];
  });
  return make("li", "passage", make("div", "where", where), make("div", "text", ...nodes));
}

function showMore() {
  const step = tokens.steps[byId("step").value];
  const list = byId("passages");
  showPage(list, shownPassages, (parts) => passageNode(step, parts), PAGE);
  const first = list.querySelector(".token");
  if (first && !list.querySelector(".token[tabindex='0']")) first.tabIndex = 0;
}

function showStep() {
  hideTip();
  const step = tokens.steps[byId("step").value];
  const only = byId("selected-only").checked;
  const isChosen = (part) => typeof part === "number" && step.tokens[part].selected;
  shownPassages = only ? step.passages.filter((parts) => parts.some(isChosen)) : step.passages;
  const selected = step.tokens.filter((token) => token.selected).length;
  const values = step.tokens.map((token) => token.cov);
  const among = step.of > step.tokens.length ? `, those of the largest |covariance| of ${step.of} in the file` : "";
  byId("token-count").textContent = `Step ${step.step}: ${step.tokens.length} tokens${among}, covariance ` +
    `${digits(Math.min(...values))} to ${digits(Math.max(...values))}, ${selected} selected. ` +
    `${shownPassages.length} passages${only ? " with a selected token" : ""}, highest |covariance| first.`;
  byId("passages").replaceChildren();
  byId("earlier").disabled = Number(byId("step").value) === 0;
  byId("later").disabled = Number(byId("step").value) === tokens.steps.length - 1;
  showMore();
}

function showScale() {
  const negative = tokens.steps.some((step) => step.tokens.some((token) => token.cov < 0));
  const end = (name, cov) => `rgba(${color(name)}, ${shade(cov)})`;
  const stops = [end("--positive", 1e-9 * tokens.scale), end("--positive", tokens.scale)];
  if (negative) stops.unshift(end("--negative", tokens.scale), `${end("--negative", 1e-9 * tokens.scale)} 50%`);
  byId("bar").style.background = `linear-gradient(90deg, ${negative ? `${stops[0]}, ${stops[1]}, ${stops[2]} 50%, ${stops[3]}` : stops.join(", ")})`;
  const labels = negative ? [-tokens.scale, 0, tokens.scale] : [0, tokens.scale / 2, tokens.scale];
  byId("bar-ends").replaceChildren(...labels.map((value) => make("span", "", digits(value))));
  byId("key-negative").hidden = !negative;
}

function showTokens(found) {
  tokens = found;
  const none = !found || !found.steps.length;
  byId("token-view").hidden = none;
  byId("token-notes").replaceChildren(...(found ? found.notes : []).map((line) => make("p", "note", line)));
  byId("no-tokens").hidden = !none;
  if (none) return;
  byId("step").replaceChildren(...options(found.steps.map((step) => `step ${step.step}`)));
  showScale();
  showStep();
}

/** One stop of the tabulator for all tokens; arrows lead from one to the next. */
function moveInTokens(event) {
  if (event.key === "Escape") return hideTip();
  const all = [...byId("passages").querySelectorAll(".token")];
  const place = all.indexOf(document.activeElement);
  const to = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: all.length - 1 }[event.key];
  if (place < 0 || to === undefined || !all[to]) return;
  event.preventDefault();
  all[place].tabIndex = -1;
  all[to].tabIndex = 0;
  all[to].focus();
}

function fillTokens() {
  if (!byId("tokens")) return;
  byId("step").addEventListener("change", showStep);
  byId("selected-only").addEventListener("change", showStep);
  byId("more").addEventListener("click", showMore);
  byId("passages").addEventListener("keydown", moveInTokens);
  for (const [id, by] of [["earlier", -1], ["later", 1]]) {
    byId(id).addEventListener("click", () => {
      byId("step").value = Number(byId("step").value) + by;
      showStep();
    });
  }
  dark.addEventListener("change", () => { if (tokens && tokens.steps.length) { showScale(); showStep(); } });
}
