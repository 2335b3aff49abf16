"use strict";
// Everything but the charts: theme, sorting of tables, filtering of claims, the current section in the contents.

const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

// A browser may deny storage to a page opened as a file. The choice is then not remembered.
function kept(value) {
  try {
    if (value !== undefined) localStorage.setItem("dape-theme", value);
    return localStorage.getItem("dape-theme");
  } catch {
    return null;
  }
}

function setTheme(theme) {
  root.dataset.theme = theme;
  const button = document.querySelector("[data-theme-button]");
  button.textContent = theme === "dark" ? "light" : "dark";
  button.setAttribute("aria-label", `switch to ${button.textContent} colours`);
  document.dispatchEvent(new Event("themechange"));
}

setTheme(kept() ?? (dark.matches ? "dark" : "light"));
dark.addEventListener("change", () => kept() ?? setTheme(dark.matches ? "dark" : "light"));
document.querySelector("[data-theme-button]").addEventListener("click", () => {
  const chosen = root.dataset.theme === "dark" ? "light" : "dark";
  kept(chosen);
  setTheme(chosen);
});

function isPressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

// Tables ------------------------------------------------------------------------------------------------------------

// null for what was not measured, which stays last in both directions.
function sortKey(cell) {
  const text = cell.dataset.sort;
  const number = Number(text);
  return text === undefined ? null : Number.isNaN(number) || text === "" ? text : number;
}

function compareKeys(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => compareKeys(sortKey(a.cells[column]), sortKey(b.cells[column]), down ? -1 : 1));
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", (event) => {
    const header = event.target.closest("th");
    if (header) sortBy(header);
  });
}

// Claims ------------------------------------------------------------------------------------------------------------

for (const claims of document.querySelectorAll(".claims")) {
  const buttons = [...claims.querySelectorAll("button[data-verdict]")];
  const rows = [...claims.querySelectorAll("tr[data-verdict]")];
  const filter = () => {
    const shown = new Set(buttons.filter(isPressed).map((button) => button.dataset.verdict));
    for (const row of rows) row.hidden = !shown.has(row.dataset.verdict);
    const count = rows.filter((row) => !row.hidden).length;
    claims.querySelector("[data-count]").textContent = `${count} of ${rows.length} shown`;
  };
  for (const button of buttons) {
    button.addEventListener("click", () => {
      press(button, !isPressed(button));
      filter();
    });
  }
}

// Contents ----------------------------------------------------------------------------------------------------------

const inView = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const link = document.querySelector(`nav a[href="#${target.id}"]`);
      if (!link) continue; // the contents are left out if there is one section only
      link.classList.toggle("here", isIntersecting);
      if (isIntersecting) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  },
  { rootMargin: "-30% 0px -60% 0px" },
);
for (const section of document.querySelectorAll(".result")) inView.observe(section);
