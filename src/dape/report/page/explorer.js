"use strict";
// The terms of attention of one query: choose layer, head and text, see what each key gets.

const TERM_NAMES = { scores: "A", bias: "B", f: "f", logits: "logit", weights: "weight" }; // also names of colours

function floats(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 4 }, (_, place) => view.getFloat32(4 * place, true));
}

function short(value) {
  return Number.isFinite(value) ? Number(value.toPrecision(3)).toString() : String(value);
}

class Explorer {
  constructor(block) {
    this.block = block;
    this.figure = block.querySelector("figure");
    this.data = dataOf(this.figure);
    this.terms = Object.fromEntries(Object.entries(this.data.terms).map(([name, text]) => [name, floats(text)]));
    this.selects = Object.fromEntries([...block.querySelectorAll("select")].map((s) => [s.dataset.pick, s]));
    for (const select of Object.values(this.selects)) select.addEventListener("change", () => this.draw());
    for (const chip of block.querySelectorAll("[data-term]")) {
      chip.addEventListener("click", () => {
        press(chip, !isPressed(chip));
        this.draw();
      });
    }
    this.figure.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("themechange", () => this.draw());
  }

  key(event) {
    const move = { ArrowLeft: ["head", -1], ArrowRight: ["head", 1], ArrowUp: ["layer", -1], ArrowDown: ["layer", 1] };
    if (!(event.key in move)) return;
    event.preventDefault();
    const [name, step] = move[event.key];
    const select = this.selects[name];
    select.selectedIndex = Math.max(0, Math.min(select.length - 1, select.selectedIndex + step));
    this.draw();
  }

  chosen(name) {
    return this.selects[name].selectedIndex;
  }

  values(name) {
    const { layers, heads, lags } = this.data;
    const row = (this.chosen("sample") * layers.length + this.chosen("layer")) * heads.length + this.chosen("head");
    return this.terms[name].subarray(row * lags.length, (row + 1) * lags.length);
  }

  // The coordinate of each key along the horizontal axis: its distance from the query, or its position.
  places() {
    const across = this.selects.across.value;
    return this.data.lags.map((lag) => (across === "key" ? this.data.query - lag : lag));
  }

  pointsOf(name, places) {
    const head = (lag) => `distance ${lag}, key ${this.data.query - lag}`;
    const colour = colourOf(TERM_NAMES[name]);
    return [...this.values(name)].map((value, place) => ({
      s: name,
      x: places[place],
      y: Number.isFinite(value) ? value : null,
      tip: { head: head(this.data.lags[place]), lines: [{ name: TERM_NAMES[name], text: short(value), colour }] },
    }));
  }

  fillAcross(spec) {
    const across = this.selects.across.value;
    const title = across === "key" ? "position of the key" : "distance from the query (tokens)";
    spec.encoding.x.axis = { title, tickCount: 8 };
    spec.encoding.x.scale = { nice: false, type: across === "log" ? "symlog" : "linear" };
    if (across === "log") {
      const longest = Math.max(...this.data.lags);
      const powers = Array.from({ length: 1 + Math.floor(Math.log2(longest || 1)) }, (_, n) => 2 ** n);
      Object.assign(spec.encoding.x.axis, { values: [0, ...powers], labelOverlap: true });
    }
    return spec;
  }

  async draw() {
    const places = this.places();
    const shown = [...this.block.querySelectorAll("[data-term]")].filter(isPressed).map((chip) => chip.dataset.term);
    const terms = this.fillAcross(copy("terms"));
    terms.datasets.points = shown.flatMap((name) => this.pointsOf(name, places));
    terms.encoding.color.scale = { domain: shown, range: shown.map((name) => colourOf(TERM_NAMES[name])) };
    const weights = this.fillAcross(copy("weights"));
    weights.datasets.points = this.pointsOf("weights", places);
    const color = colourOf(TERM_NAMES.weights);
    Object.assign(weights.layer[0].mark, { color, line: { color } });
    weights.layer[1].mark.color = color;
    this.say();
    await embed(this.figure.querySelector(".terms"), terms);
    await embed(this.figure.querySelector(".weights"), weights);
  }

  say() {
    const { layers, heads, samples, lags } = this.data;
    const weights = this.values("weights");
    const top = weights.reduce((best, value, place) => (value > weights[best] ? place : best), 0);
    const range = (values) => `${short(Math.min(...values))} to ${short(Math.max(...values))}`;
    const ranges = ["scores", "bias", "f"]
      .filter((name) => name in this.terms)
      .map((name) => `${TERM_NAMES[name]} ${range(this.values(name))}`);
    const sample = samples[this.chosen("sample")];
    this.block.querySelector("[data-said]").textContent =
      `Layer ${layers[this.chosen("layer")]}, head ${heads[this.chosen("head")]}, ${sample.id}: largest weight ` +
      `${short(weights[top])} at distance ${lags[top]}; ${ranges.join(", ")}.`;
    this.block.querySelector("[data-text]").textContent = sample.text;
  }
}

const explorers = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      explorers.unobserve(target);
      new Explorer(target).draw();
    }
  },
  { rootMargin: "800px" },
);
for (const block of document.querySelectorAll(".explorer")) explorers.observe(block);
