"use strict";
// Charts. The page holds their Vega-Lite specifications; these functions add data, colours and sizes. Vega evaluates
// expressions by its interpreter (ast), as the page's security policy forbids eval.

const SPECS = JSON.parse(document.getElementById("specs").textContent);
const ERRORS = 1; // Vega's level of logging: it would warn of every empty data set
// A Map, as metrics come from files: an object would find a title for the metric "constructor".
const TITLES = new Map([
  ["perplexity", "perplexity (log)"],
  ["accuracy", "accuracy (%)"],
  ["nll", "nats per token"],
]);

function copy(name) {
  return structuredClone(SPECS[name]);
}

// A colour of page.css as it is in the current theme: light-dark() is resolved only in an element that uses it.
const probe = document.body.appendChild(document.createElement("i"));
function colourOf(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function dataOf(element) {
  return JSON.parse(element.querySelector(':scope > script[type="application/json"]').textContent);
}

// The look of everything that is not data.
function config() {
  const [ink, soft, line] = ["ink", "soft", "line"].map(colourOf);
  return {
    background: null,
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: {
      domainColor: line,
      gridColor: line,
      tickColor: line,
      labelColor: soft,
      titleColor: soft,
      titleFontWeight: "normal",
      labelFontSize: 11,
      titleFontSize: 12,
    },
    axisX: { grid: false },
    text: { color: ink },
    rule: { color: soft },
  };
}

// Values at the pointer ---------------------------------------------------------------------------------------------

const tip = document.getElementById("tip");

// Names come from files, so they are set as text, never as HTML.
function fillTip({ head, lines }) {
  const title = document.createElement("b");
  title.textContent = head;
  tip.replaceChildren(
    title,
    ...lines.map(({ name, text, colour }) => {
      const line = document.createElement("div");
      const [dot, label, value] = ["i", "span", "em"].map((tag) => line.appendChild(document.createElement(tag)));
      dot.style.background = colour ?? "transparent";
      label.textContent = name;
      value.textContent = text;
      return line;
    }),
  );
}

function placeTip(x, y) {
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > innerWidth ? x - width - 16 : x + 16;
  tip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`;
}

// Called by Vega with the tooltip of the point nearest to the pointer, or of none. (To find the nearest point the
// specifications draw Voronoi cells, in which datum.datum is the point's datum.)
function showTip(_handler, event, _item, value) {
  if (!value?.lines) {
    tip.hidden = true;
    return;
  }
  fillTip(value);
  placeTip(event.clientX, event.clientY);
}

// Drawing -----------------------------------------------------------------------------------------------------------

const views = new WeakMap();

async function embed(element, spec) {
  spec.config = config();
  const options = { ast: true, renderer: "svg", actions: false, logLevel: ERRORS, tooltip: showTip };
  const turn = (element.turn = (element.turn ?? 0) + 1);
  const result = await vegaEmbed(element.appendChild(document.createElement("div")), spec, options);
  if (turn !== element.turn) {
    result.finalize(); // a newer call draws this element
    return null;
  }
  while (element.children.length > 1) element.firstChild.remove();
  views.get(element)?.finalize();
  views.set(element, result);
  return result.view;
}

function slot(figure, name, label) {
  const plots = figure.querySelector(".plots");
  let plot = plots.querySelector(`:scope > [data-name="${name}"]`);
  if (!plot) {
    plot = plots.appendChild(document.createElement("div"));
    plot.className = "plot";
    plot.dataset.name = name;
    plot.append(document.createElement("p"), document.createElement("div"));
    plot.firstChild.className = "name";
    plot.lastChild.className = "drawing";
  }
  plot.firstChild.textContent = label ?? "";
  plot.firstChild.hidden = !label;
  return plot;
}

function stateOf(block) {
  const series = JSON.parse(block.querySelector("script.series").textContent);
  const hidden = new Set(
    [...block.querySelectorAll(".chip[data-series]")].filter((chip) => !isPressed(chip)).map((c) => c.dataset.series),
  );
  const mode = block.querySelector(".switch input:checked")?.value ?? "ours";
  return { series: series.filter(({ name }) => !hidden.has(name)), mode, theme: root.dataset.theme };
}

function tipsOf(points, field, colours, unit) {
  const stops = new Map();
  for (const point of points) {
    if (!stops.has(point[field])) stops.set(point[field], []);
    stops.get(point[field]).push(point);
  }
  return [...stops.entries()]
    .sort(([a], [b]) => a - b)
    .map(([x, at]) => {
      const lines = at
        .sort((a, b) => (b.y ?? Infinity) - (a.y ?? Infinity))
        .map((p) => ({ name: p.s, text: p.n ? `${p.text} (${p.n})` : p.text, colour: colours.get(p.s) }));
      return { x, tip: { head: unit(x, at[0]), lines } };
    });
}

// Round numbers for a logarithmic axis: evenly spaced on a short one, 1-2-5 or powers of ten on a long one.
function logTicks(low, high) {
  if (!(high > 0)) return [];
  if (high / low < 4) return evenTicks(low, high);
  const powers = Array.from({ length: 40 }, (_, place) => 10 ** (place - 10));
  for (const digits of [[1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1, 3], [1]]) {
    const ticks = powers.flatMap((power) => digits.map((digit) => digit * power));
    const within = ticks.filter((tick) => tick >= low * 0.97 && tick <= high * 1.03);
    if (within.length <= 7) return within;
  }
  return powers.filter((power) => power >= low && power <= high);
}

function evenTicks(low, high) {
  const rough = (high - low) / 5 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((digit) => digit * power >= rough);
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, place) => (first + place) * step);
}

function fillCurves(spec, points, state, { field, metric, train, chance, domain }) {
  const shown = new Set(state.series.map(({ name }) => name));
  const drawn = points.filter(({ s }) => shown.has(s));
  const colours = new Map(state.series.map((look) => [look.name, look[state.theme]]));
  const wide = new Map(state.series.map((look) => [look.name, look.wide]));
  const names = [...colours.keys()];
  const at = (point) => ({ ...point, x: point[field], wide: wide.get(point.s) });
  spec.datasets.points = drawn.map(at);
  spec.datasets.odd = spread(drawn.filter(({ odd }) => odd).map(at));
  spec.datasets.train = train ? [{ x: train }] : [];
  spec.datasets.chance = Number.isFinite(chance) ? [{ y: chance }] : [];
  const unit = field === "m" ? (x, p) => `${x}× the training length (${p.x} tokens)` : (x) => `${x} tokens`;
  spec.datasets.stops = tipsOf(drawn, field, colours, unit);
  spec.encoding.color.scale = { domain: names, range: [...colours.values()] };
  const { strokeDash } = spec.layer[3].encoding;
  strokeDash.scale = { domain: names, range: state.series.map((look) => look.dash) };
  spec.layer[4].encoding.shape.scale = { domain: names, range: state.series.map((look) => look.shape) };
  const y = spec.layer[3].encoding.y;
  // The space keeps Vega from finding a title such as "constructor" among the properties of its objects.
  y.axis = { title: TITLES.get(metric) ?? `${metric.replaceAll("_", " ")} `, tickCount: 6 };
  if (metric === "accuracy") y.scale = { domain: [0, 100] };
  if (metric === "perplexity") {
    const values = drawn.flatMap(({ y, lo, hi }) => [y, lo, hi]).filter((value) => value !== null);
    y.scale = { type: "log", nice: false, padding: 8 };
    Object.assign(y.axis, { values: logTicks(Math.min(...values), Math.max(...values)), format: "~r" });
  }
  if (domain) spec.encoding.x.scale.domain = domain;
  return spec.datasets.stops;
}

// Put the marks of one length side by side.
function spread(odd) {
  return odd.map((point, place) => {
    const before = odd.slice(0, place).filter(({ x }) => x === point.x).length;
    return { ...point, shift: -26 * before };
  });
}

// Arrow keys move through the lengths of the focused chart and show, and have read out, what the pointer would show.
function byKeyboard(drawing, view, stops) {
  drawing.tabIndex = 0;
  drawing.setAttribute("role", "application");
  drawing.setAttribute("aria-label", "Chart. Left and right arrow keys read the values at each length.");
  let place = -1;
  drawing.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || !stops.length) return;
    event.preventDefault();
    place = Math.max(0, Math.min(stops.length - 1, place + step));
    fillTip(stops[place].tip);
    const box = drawing.getBoundingClientRect();
    placeTip(box.left + view.origin()[0] + view.scale("x")(stops[place].x), box.top + 20);
  };
  drawing.onblur = () => (tip.hidden = true);
}

async function drawCurves(figure, state) {
  const data = dataOf(figure);
  const modes = state.mode === "both" ? ["ours", "paper"] : [state.mode];
  const sides = modes.filter((mode) => data[mode].length);
  const field = sides.length === 2 ? "m" : "x";
  const all = sides.flatMap((side) => data[side].map((point) => point[field]));
  const domain = [Math.min(...all), Math.max(...all)];
  figure.querySelector(".plots").classList.toggle("two", sides.length === 2);
  for (const name of ["ours", "paper"]) {
    const plot = slot(figure, name, name === "ours" ? `ours, trained at ${data.train}` : `paper: ${data.papers}`);
    plot.hidden = !sides.includes(name);
    if (plot.hidden) continue;
    const spec = copy("curves");
    const values = [...new Set(data[name].map((point) => point[field]))].sort((a, b) => a - b);
    spec.encoding.x.axis =
      field === "m"
        ? { title: "length / training length", values, labelExpr: "datum.value + '×'", labelOverlap: true }
        : { title: "context length (tokens)", values, format: "d", labelOverlap: true };
    const trained = name === "ours" ? data.train : data.paper[0].x / data.paper[0].m;
    const train = field === "m" ? 1 : trained;
    const settings = { field, metric: data.metric, train: values.includes(train) ? train : null, domain };
    const stops = fillCurves(spec, data[name], state, settings);
    const view = await embed(plot.lastChild, spec);
    if (view) byKeyboard(plot.lastChild, view, stops);
  }
}

async function drawLengths(figure, state) {
  const data = dataOf(figure);
  const spec = copy("curves");
  spec.height = 170;
  spec.encoding.x = { field: "x", type: "quantitative", scale: { nice: false }, axis: { title: "length", tickCount: 5 } };
  spec.layer[4].mark.size = 0;
  const settings = { field: "x", metric: "accuracy", train: data.train, chance: data.chance };
  const stops = fillCurves(spec, data.ours, state, settings);
  const drawing = slot(figure, "ours").lastChild;
  const view = await embed(drawing, spec);
  if (view) byKeyboard(drawing, view, stops);
}

async function drawLadder(figure, state) {
  const data = dataOf(figure);
  const spec = copy("curves");
  const values = [...new Set(data.ours.map(({ x }) => x))].sort((a, b) => a - b);
  spec.encoding.x.axis = { title: "tokens seen in training", values, format: ".2s", labelOverlap: true };
  const stops = fillCurves(spec, data.ours, state, { field: "x", metric: data.metric, chance: 0 });
  const drawing = slot(figure, "ours").lastChild;
  const view = await embed(drawing, spec);
  if (view) byKeyboard(drawing, view, stops);
}

// Maps --------------------------------------------------------------------------------------------------------------

function inkOn(shade) {
  return shade === null ? colourOf("ink") : shade < 0.55 ? "#ffffff" : "#111111";
}

async function drawMap(figure, state) {
  const data = dataOf(figure);
  const shown = new Set(state.series.map(({ name }) => name));
  const known = new Set(JSON.parse(figure.closest(".block").querySelector("script.series").textContent).map((s) => s.name));
  const paper = state.mode === "paper";
  const cells = data.cells
    .filter(({ c }) => shown.has(c) || (!known.has(c) && state.mode !== "ours"))
    .map((cell) => {
      const shade = paper ? cell.p : cell.v;
      const text = paper ? cell.paper : cell.text;
      const below = state.mode === "both" && cell.paper ? `paper ${cell.paper}` : "";
      const lines = [
        { name: "ours", text: cell.text ? `${cell.text}%` : "not measured" },
        { name: "paper", text: cell.paper ? `${cell.paper}%` : "-" },
      ];
      return { ...cell, shade, text, below, ink: inkOn(shade), tip: { head: `${cell.r}, ${cell.c}`, lines } };
    })
    .filter(({ text, below }) => text || below);
  const spec = copy("map");
  spec.datasets.cells = cells;
  spec.encoding.x.sort = data.columns;
  const plot = slot(figure, "map");
  plot.lastChild.classList.add("wide");
  plot.lastChild.tabIndex = 0;
  await embed(plot.lastChild, spec);
  if (!plot.querySelector(".scale")) plot.append(scaleOf());
}

function scaleOf() {
  const scale = document.createElement("div");
  scale.className = "scale";
  scale.append("guessing", document.createElement("i"), "perfect");
  return scale;
}

async function drawPlaces(figure, state) {
  const data = dataOf(figure);
  figure.hidden = !state.series.some(({ name }) => name === data.series);
  if (figure.hidden) return;
  const spec = copy("map");
  spec.width = { step: 44 };
  spec.height = { step: 24 };
  spec.encoding.x.axis = { orient: "bottom", labelAngle: 0 };
  spec.encoding.x.title = "length";
  spec.encoding.y.title = data.axis;
  spec.datasets.cells = data.cells.map((cell) => ({
    ...cell,
    shade: cell.v,
    below: "",
    ink: inkOn(cell.v),
    tip: { head: `${data.series}, length ${cell.c}, ${data.axis} ${cell.r}`, lines: [{ name: "accuracy", text: cell.exact }] },
  }));
  const drawing = slot(figure, "map").lastChild;
  drawing.classList.add("wide");
  await embed(drawing, spec);
}

// When to draw ------------------------------------------------------------------------------------------------------

const DRAW = { curves: drawCurves, ladder: drawLadder, lengths: drawLengths, map: drawMap, places: drawPlaces };
const seen = new Set();

async function draw(figure) {
  figure.setAttribute("aria-busy", "true");
  await DRAW[figure.dataset.kind](figure, stateOf(figure.closest(".block")));
  figure.removeAttribute("aria-busy");
}

const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting || seen.has(target)) continue;
      seen.add(target);
      near.unobserve(target);
      draw(target);
    }
  },
  { rootMargin: "800px" },
);

function redraw(block) {
  for (const figure of block.querySelectorAll("figure")) if (seen.has(figure)) draw(figure);
}

function setMode(block) {
  const { mode } = stateOf(block);
  const paper = block.querySelector(".of-paper");
  if (paper) {
    paper.hidden = mode === "ours";
    block.querySelector(".of-ours").hidden = mode === "paper";
  }
  redraw(block);
}

for (const block of document.querySelectorAll(".block:has(script.series)")) {
  const chips = [...block.querySelectorAll(".chip[data-series]")];
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      press(chip, !isPressed(chip));
      redraw(block);
    });
  }
  // "all" shows every series, or none if all are shown already.
  block.querySelector("[data-all]")?.addEventListener("click", () => {
    const some = chips.some((chip) => !isPressed(chip));
    for (const chip of chips) press(chip, some);
    redraw(block);
  });
  for (const input of block.querySelectorAll(".switch input")) input.addEventListener("change", () => setMode(block));
  for (const figure of block.querySelectorAll("figure")) near.observe(figure);
  setMode(block);
}
document.addEventListener("themechange", () => document.querySelectorAll(".block:has(script.series)").forEach(redraw));
