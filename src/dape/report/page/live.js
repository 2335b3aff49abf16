"use strict";
// For a page that is served while runs work: asks for their progress every two seconds, and loads the page again when
// there are new rows. All that is shown is set as text, never as HTML.

const EVERY = 2000;
const said = document.querySelector("[data-live-said]");
const runs = document.querySelector("[data-live-runs]");
let version = null;

function lineOf(run) {
  const line = document.createElement("tr");
  const bar = document.createElement("progress");
  bar.max = 1;
  bar.value = run.done;
  for (const text of [run.name, run.state, run.doing]) line.appendChild(document.createElement("td")).textContent = text;
  line.appendChild(document.createElement("td")).append(bar);
  return line;
}

async function ask() {
  try {
    const answer = await fetch("/state", { cache: "no-store" });
    const state = await answer.json();
    if (version !== null && state.version !== version) location.reload();
    version = state.version;
    said.textContent = state.said;
    runs.replaceChildren(...state.runs.map(lineOf));
  } catch {
    said.textContent = "dape report --live has ended; this is what it showed last";
  }
  setTimeout(ask, EVERY);
}
ask();
