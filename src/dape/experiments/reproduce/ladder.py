"""The registered tests of docs/evidence.md: does content help, and does the gap grow with training and with size?

The gap of a seed is the log perplexity of f(B) minus that of f(QK, B), at a multiple of the training length. It is
positive if content helps. A rung is a text, a model size and a number of tokens trained on. No torch here.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dape.results.paper import load
from dape.results.records import Row
from dape.results.statistics import holm, latest, nats, paired_t

STATIC, POSITIONS, CONTENT = "kerple", "dape-kerple (bias_only)", "dape-kerple (concat_residual)"
ARMS = {"static": STATIC, "f(B)": POSITIONS, "f(QK, B)": CONTENT}
MARGIN = math.log(1.005)
"""If the interval of a gap is below this, the verdict is no."""
SIGNIFICANT = 0.05

Verdict = Literal["yes", "no", "undecided", "incomplete"]


@dataclass(frozen=True, order=True)
class Rung:
    data: str
    size: str
    tokens: int


@dataclass(frozen=True)
class Finding:
    """One registered question and its answer."""

    id: str
    question: str
    n: int
    planned: int
    mean: float = math.nan
    """In nats; for a slope, nats per doubling of the tokens."""
    low: float = math.nan
    high: float = math.nan
    p: float | None = None
    p_holm: float | None = None
    verdict: Verdict = "incomplete"


def paper_rows() -> list[Row]:
    """The same three arms in the paper, Table 5, as rows of a rung of its own."""
    extra = {"experiment": "bias-ablation", "data": "books3 (the paper)", "model": "-", "tokens": 50_000 * 131_072}
    return [replace(row, run=row.label, extra=extra) for row in (each.as_row() for each in load("A5"))]


class Ladder:
    """Rows of bias-ablation at several rungs."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._values: dict[tuple[Rung, int], dict[tuple[str, int], float]] = {}
        self.in_context: dict[Rung, list[float]] = {}
        for row in latest(rows):
            data, size, tokens = (row.extra.get(name) for name in ("data", "model", "tokens"))
            if row.extra.get("experiment") != "bias-ablation" or not (data and size and isinstance(tokens, int)):
                continue
            rung = Rung(str(data), str(size), tokens)
            if row.metric == "perplexity":
                at = self._values.setdefault((rung, row.length // row.train_length), {})
                at[row.label, row.seed] = nats(row)
            elif row.metric == "in_context_gain":
                self.in_context.setdefault(rung, []).append(row.value)

    @property
    def rungs(self) -> list[Rung]:
        return sorted({rung for rung, _ in self._values})

    def ratios(self, rung: Rung) -> list[int]:
        return sorted(ratio for known, ratio in self._values if known == rung)

    def perplexities(self, rung: Rung, ratio: int, label: str) -> list[float]:
        values = self._values.get((rung, ratio), {})
        return [math.exp(value) for (name, _), value in sorted(values.items()) if name == label]

    def gaps(self, rung: Rung, ratio: int, *, above: str = POSITIONS, below: str = CONTENT) -> dict[int, float]:
        """Gaps by seed, for seeds with both measurements."""
        values = self._values.get((rung, ratio), {})
        seeds = sorted({seed for _, seed in values})
        return {s: values[above, s] - values[below, s] for s in seeds if (above, s) in values and (below, s) in values}

    def slopes(self, rungs: Sequence[Rung], ratio: int) -> list[float]:
        """Slopes of the gap against the binary logarithm of the tokens, for every seed that all rungs have."""
        gaps = [self.gaps(rung, ratio) for rung in rungs]
        x = [math.log2(rung.tokens) for rung in rungs]
        middle = sum(x) / len(x) if x else 0.0
        spread = sum((a - middle) ** 2 for a in x)
        shared = set.intersection(*map(set, gaps)) if gaps else set()
        return [
            sum((a - middle) * gap[seed] for a, gap in zip(x, gaps, strict=True)) / spread for seed in sorted(shared)
        ]


def registered(ladder: Ladder) -> list[Finding]:
    """The eight primary tests, with Holm's correction over all of them."""
    full = 8_192_000
    found = [
        _found(f"E{number}/{ratio}x", f"content helps on {data} at {ratio}x", list(gaps.values()), 5)
        for number, data in ((1, "stdlib"), (2, "sotu"))
        for ratio in (1, 16)
        for gaps in [ladder.gaps(Rung(data, "125m", full), ratio)]
    ]
    for data in ("stdlib", "sotu"):
        gaps = ladder.gaps(Rung(data, "125m", full), 16, above=STATIC, below=POSITIONS)
        found.append(_found(f"E3/{data}", f"f(B) is below the static bias on {data} at 16x", list(gaps.values()), 5))
    rungs = [rung for rung in ladder.rungs if (rung.data, rung.size) == ("stdlib", "125m")]
    slopes = ladder.slopes(rungs, 16) if len(rungs) >= 3 else []
    found.append(_found("E4", "the gap grows with training", slopes, 5))
    small, big = (ladder.gaps(Rung("stdlib", size, full), 16) for size in ("125m", "350m"))
    growth = [big[seed] - small[seed] for seed in sorted(set(small) & set(big))]
    found.append(_found("E5", "the gap does not shrink with size", growth, 3))
    adjusted = holm([each.p for each in found])
    return [_judged(replace(each, p_holm=p)) for each, p in zip(found, adjusted, strict=True)]


def _found(id: str, question: str, values: Sequence[float], planned: int) -> Finding:
    test = paired_t(values) if len(values) > 1 else None
    mean = sum(values) / len(values) if values else math.nan
    found = Finding(id, question, len(values), planned, mean)
    return found if test is None else replace(found, low=test.low, high=test.high, p=test.p)


def _judged(found: Finding) -> Finding:
    """With a verdict, if there are as many seeds as registered."""
    if found.n < found.planned or found.p_holm is None:
        return found
    sure = found.p_holm < SIGNIFICANT
    if sure and found.mean > 0:
        verdict: Verdict = "yes"
    elif (sure and found.mean < 0) or found.high < (MARGIN if found.id != "E4" else 0.0):
        verdict = "no"
    else:
        verdict = "undecided"
    return replace(found, verdict=verdict)


TEST_HEADS = ("test", "question", "n of planned", "effect", "95% interval", "p, Holm", "verdict")
RUNG_HEADS = (
    *("text", "model", "tokens seen", "seeds", "in-context gain"),
    *(f"{name} at {ratio}x" for ratio in (1, 16) for name in ARMS),
    *("gap at 1x", "gap at 16x"),
)


def as_markdown(ladder: Ladder) -> str:
    """Two tables: the measurements of every rung, and the registered tests."""
    rungs = [rung_cells(ladder, rung) for rung in ladder.rungs]
    tests = [finding_cells(each) for each in registered(ladder)]
    return _table(RUNG_HEADS, 2, rungs) + "\n" + _table(TEST_HEADS, len(TEST_HEADS), tests)


def _table(heads: Sequence[str], words: int, lines: Iterable[Sequence[str]]) -> str:
    """A table whose columns after the first ``words`` hold numbers."""
    rules = [*["---"] * words, *["---:"] * (len(heads) - words)]
    return "".join("| " + " | ".join(line) + " |\n" for line in (heads, rules, *lines))


def rung_cells(ladder: Ladder, rung: Rung) -> list[str]:
    """Texts under RUNG_HEADS: means over seeds, with the number of seeds of each mean."""
    arms, gaps = [], []
    for ratio in (1, 16):
        for label in ARMS.values():
            values = ladder.perplexities(rung, ratio, label)
            arms.append(f"{sum(values) / len(values):.2f} ({len(values)})" if values else "-")
        found = list(ladder.gaps(rung, ratio).values())
        gaps.append(percent(sum(found) / len(found)) if found else "-")
    gains = ladder.in_context.get(rung, [])
    gain = f"{sum(gains) / len(gains):.2f}" if gains else "-"
    tokens = f"{rung.tokens / 1e6:,.1f}M"
    return [rung.data, rung.size, tokens, str(len(ladder.gaps(rung, 1))), gain, *arms, *gaps]


def finding_cells(found: Finding) -> list[str]:
    """Texts under TEST_HEADS."""
    unit = " a doubling" if found.id == "E4" else ""
    effect = "-" if math.isnan(found.mean) else percent(found.mean) + unit
    interval = "-" if math.isnan(found.low) else f"{percent(found.low)[:-1]} to {percent(found.high)}"
    p = "-" if found.p_holm is None else f"{found.p_holm:.3g}"
    return [found.id, found.question, f"{found.n} of {found.planned}", effect, interval, p, found.verdict]


def percent(nats: float) -> str:
    """A difference of log perplexities as a percentage of perplexity."""
    return f"{100 * math.expm1(nats):+.2f}%"
