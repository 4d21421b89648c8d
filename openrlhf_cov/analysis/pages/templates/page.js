"use strict";
// What every page needs. Text of runs and models only ever becomes the text of a node, never markup.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const problems = [];

function note(problem) {
  problems.push(String(problem));
  document.body.dataset.problems = JSON.stringify(problems);
}
addEventListener("error", (event) => note(event.message));
addEventListener("unhandledrejection", (event) => note(event.reason));
document.addEventListener("securitypolicyviolation", (event) => note(`policy: ${event.violatedDirective} ${event.blockedURI}`));

function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

/** Options of a selection, whose values are their places. */
const options = (names) => names.map((name, place) => {
  const option = make("option", "", name);
  option.value = place;
  return option;
});

/** Shows the next of many nodes, which ``node`` makes of items, and how many are left. */
function showPage(list, items, node, most) {
  const shown = list.children.length;
  list.append(...items.slice(shown, shown + most).map(node));
  const left = items.length - list.children.length;
  byId("more").hidden = left === 0;
  byId("more").textContent = `Show ${Math.min(left, most)} more of ${left.toLocaleString("en")}`;
}

for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const place = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const each of head.parentNode.children) each.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = head.closest("table").tBodies[0];
    const key = (row) => row.children[place].dataset.value;
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      const order = isNaN(key(a)) || isNaN(key(b)) ? key(a).localeCompare(key(b), "en", { numeric: true }) : key(a) - key(b);
      return down ? -order : order;
    };
    body.append(...[...body.rows].sort(compare));
  });
}
