"""Results in sentences. Every sentence is computed; nothing is assumed about which method is better."""

import math
from collections.abc import Iterable, Sequence

from dape.evaluation.config import ENOUGH_WINDOWS
from dape.positional.names import base_of
from dape.results.numbers import as_text, p_text, percent, runs_of
from dape.results.records import Row
from dape.results.statistics import (
    CONFIDENCE,
    Comparison,
    Results,
    arrange,
    base_pairs,
    compare,
    compare_at,
    in_words,
    spread,
    t_needed,
)

SIGNIFICANT = 0.05
FLAT = 0.02
"""Perplexity that changes by at most this share is called flat."""
FEW_SEEDS = 3


def summary(
    rows: Iterable[Row], *, methods: Sequence[str] = (), lengths: Sequence[int] = (), seeds: Sequence[int] = ()
) -> str:
    """Markdown. ``methods``, ``lengths`` and ``seeds`` say what was to be measured: what is missing is then named."""
    results = arrange(rows, methods=methods, lengths=lengths, seeds=seeds)
    if not results:
        return "\n".join(["No perplexity was measured.", *(f"\n{why}." for why in results.left_out)]) + "\n"
    comparisons = compare(results)
    sections = {
        "Lowest perplexity": lowest(results),
        "DAPE against its base": dape_against_base(results, comparisons),
        "Beyond the training length": beyond_training(results),
        "Caveats": caveats(results, comparisons) or ["None that the rows show."],
    }
    texts = [f"## {title}\n\n" + "\n".join(f"- {line}" for line in lines) for title, lines in sections.items() if lines]
    return "\n\n".join(texts) + "\n"


# Lowest perplexity ---------------------------------------------------------------------------------------------------


def lowest(results: Results) -> list[str]:
    """Which method is lowest at which lengths. Lengths with the same answer share a sentence."""
    measured = [method for method in results.methods if any(results.at(method, n) for n in results.lengths)]
    if len(measured) == 1:
        return [f"Only {measured[0]} was measured: there is nothing to compare it with."]
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for length in results.lengths:
        groups.setdefault(_ranking(results, length), []).append(length)
    return [_lowest_at(results, best, present, at) for (best, present), at in groups.items() if present]


def _ranking(results: Results, length: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The methods with the lowest mean (several if equal), and all methods measured at this length."""
    means = {method: found.mean for method in results.methods if (found := results.spread(method, length))}
    finite = [mean for mean in means.values() if math.isfinite(mean)]
    return tuple(m for m, mean in means.items() if finite and mean == min(finite)), tuple(means)


def _lowest_at(results: Results, best: Sequence[str], present: Sequence[str], at: Sequence[int]) -> str:
    where = f"at {_lengths(at, results.lengths, results)}"
    complete = len(present) == len(results.methods)
    some = "" if complete else f", among the {len(present)} of {len(results.methods)} methods measured there"
    if not best:
        return f"No method has a finite perplexity {where}{some}."
    if len(present) == 1:
        return f"Only {present[0]} was measured {where}."
    if len(best) > 1:
        return f"{in_words(best)} have the same, lowest perplexity {where}{some}."
    return f"{best[0]} has the lowest perplexity {where}{some}{_lead(results, best[0], present, at)}."


def _lead(results: Results, best: str, present: Sequence[str], at: Sequence[int]) -> str:
    """By how much the best method leads over the second best, and where the difference could be chance."""
    leads, seconds, unclear = [], set(), []
    for length in at:
        others = {m: mean for m in present if m != best and math.isfinite(mean := _mean(results, m, length))}
        if not others:
            continue
        second = min(others, key=others.__getitem__)
        seconds.add(second)
        leads.append(_mean(results, best, length) / others[second])
        unclear += [length] if _could_be_chance(compare_at(results, best, second, length)) else []
    if not leads:
        return ", the only finite one"
    name = f", {seconds.pop()}" if len(seconds) == 1 else ""
    low, high = percent(max(leads)), percent(min(leads))
    text = f" ({low if low == high else f'{low} to {high}'} below the next{name})"
    if unclear:
        text += f"; at {_lengths(unclear, at, results)} the {CONFIDENCE:.0%} interval of that difference includes zero"
    return text


def _could_be_chance(c: Comparison) -> bool:
    return c.ci is not None and c.ci[0] <= 0 <= c.ci[1]


def _lengths(at: Sequence[int], of: Sequence[int], results: Results) -> str:
    """``at`` in words; "all 6 lengths" if these are all of ``of`` and of the results."""
    everything = len(of) > 2 and len(at) == len(of) == len(results.lengths)
    return f"all {len(at)} lengths" if everything else runs_of(at, results.lengths)


# Pairs ---------------------------------------------------------------------------------------------------------------


def dape_against_base(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    pairs = base_pairs(results.methods)
    if not pairs:
        return ["No encoding was measured both with and without DAPE."] if any(map(base_of, results.methods)) else []
    lines = []
    for method, base in pairs:
        here = [c for c in comparisons if (c.method, c.base) == (method, base)]
        lines.append(_pair(results, here) if here else f"{method} and {base} share no length.")
    return [*lines, *_how_to_read(comparisons)]


def _pair(results: Results, here: Sequence[Comparison]) -> str:
    sides = {"lower": "<", "higher": ">", "equal": "=", "undecided": "?"}
    parts = []
    for word, sign in sides.items():
        at = [c.length for c in here if _sign(c.gap_nll) == sign]
        if at:
            parts.append(f"{word} at {_lengths(at, [c.length for c in here], results)}")
    shown = [c for c in _shown(results, here) if _sign(c.gap_nll) in "<>"]
    amounts = "; ".join(f"{_change(c.ratio)} at {_place(results, c, here)}" for c in shown)
    sentences = [f"{here[0].method} against {here[0].base}: {', '.join(parts)}.", f"{amounts}." if amounts else ""]
    if results.train_length not in [c.length for c in here]:
        sentences.append(f"At the training length {results.train_length} not both were measured.")
    return " ".join(sentence for sentence in [*sentences, *_evidence(results, here)] if sentence)


def _sign(gap: float) -> str:
    return "?" if math.isnan(gap) else "<" if gap < 0 else ">" if gap > 0 else "="


def _shown(results: Results, here: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons at the training length and at the longest length."""
    return [c for c in here if c.length == results.train_length or c is here[-1]]


def _place(results: Results, c: Comparison, here: Sequence[Comparison]) -> str:
    """The length, and what is special about it."""
    names = ["training length"] if c.length == results.train_length else []
    names += ["longest"] if c is here[-1] and len(here) > 1 else []
    return f"{c.length} ({', '.join(names)})" if names else str(c.length)


def _change(ratio: float) -> str:
    if ratio == 0 or math.isinf(ratio):
        return "finite against infinite" if ratio == 0 else "infinite against finite"
    return f"{percent(ratio)} {'lower' if ratio < 1 else 'higher'}"


def _evidence(results: Results, here: Sequence[Comparison]) -> list[str]:
    tested = [c for c in here if c.test == "paired t"]
    resampled = [c for c in here if c.test == "bootstrap"]
    untested: dict[str, list[int]] = {}
    for c in here:
        if c.test == "none":
            untested.setdefault(c.note, []).append(c.length)
    return [
        *([_tested(results, tested)] if tested else []),
        *([_resampled(results, resampled)] if resampled else []),
        *(f"No test at {runs_of(at, results.lengths)}: {note}." for note, at in untested.items()),
    ]


def _tested(results: Results, tested: Sequence[Comparison]) -> str:
    counts = sorted({c.n for c in tested})
    n = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    values = "; ".join(
        f"{p_text(c.p)} at {c.length} (Holm {p_number(c.p_holm)})" for c in _shown(results, tested) if c.p is not None
    )
    clear = [c.length for c in tested if c.p_holm is not None and c.p_holm < SIGNIFICANT]
    where = f"at {_lengths(clear, [c.length for c in tested], results)}" if clear else "at no length"
    return f"Paired t-test over {n} seeds: {values}; below {SIGNIFICANT:g} after Holm's correction {where}."


def p_number(p: float | None) -> str:
    """``p_text`` without "p =": 0.031, or < 0.0001."""
    return "-" if p is None else p_text(p).removeprefix("p ").removeprefix("= ")


def _resampled(results: Results, resampled: Sequence[Comparison]) -> str:
    values = "; ".join(f"{_interval(c.ci)} at {c.length}" for c in _shown(results, resampled) if c.ci)
    clear = [c.length for c in resampled if c.ci and (c.ci[0] > 0 or c.ci[1] < 0)]
    where = f"at {_lengths(clear, [c.length for c in resampled], results)}" if clear else "at no length"
    return (
        f"{CONFIDENCE:.0%} interval over {resampled[0].windows} windows of one seed: {values}; "
        f"it excludes zero {where}."
    )


def _interval(ci: tuple[float, float]) -> str:
    low, high = math.exp(ci[0]), math.exp(ci[1])
    if high < 1:
        return f"{percent(high)} to {percent(low)} lower"
    if low > 1:
        return f"{percent(low)} to {percent(high)} higher"
    return f"{percent(low)} lower to {percent(high)} higher"


def _how_to_read(comparisons: Sequence[Comparison]) -> list[str]:
    lines = []
    tests = [c for c in comparisons if c.p is not None]
    if tests:
        lines.append(
            "Percentages are of the geometric mean of perplexity over the seeds that both have. Tests are two-sided, "
            f"on nats per token; Holm's correction is over {len(tests)} test{'s' if len(tests) > 1 else ''}."
        )
    few = min((c.n for c in tests), default=FEW_SEEDS + 1)
    if few <= FEW_SEEDS:
        freedom = "1 degree" if few == 2 else f"{few - 1} degrees"
        deviations = t_needed(few, SIGNIFICANT) / math.sqrt(few)
        lines.append(
            f"{few} seeds are very few: with {freedom} of freedom, p < {SIGNIFICANT:g} needs a mean difference of more "
            f"than {deviations:.1f} times its standard deviation over seeds. A large p does not mean no difference."
        )
    if any(c.test == "bootstrap" for c in comparisons):
        lines.append("Intervals over windows tell how much the choice of text matters, and nothing about other seeds.")
    return lines


# Beyond the training length ------------------------------------------------------------------------------------------


def beyond_training(results: Results) -> list[str]:
    """Perplexity at the longest length over that at the training length, per method."""
    trained = results.train_length
    beyond = [n for n in results.lengths if trained is not None and n > trained]
    if trained is None or not beyond:
        return [f"No length beyond the training length {trained} was measured."]
    groups: dict[str, list[tuple[float, str]]] = {"rises": [], "is flat": [], "falls": []}
    lines = []
    for method in results.methods:
        at = [n for n in beyond if results.at(method, n)]
        if not at:
            continue
        seeds = set.intersection(*(set(results.at(method, n)) for n in (trained, *at)))
        if not seeds:
            lines.append(
                f"{method}: no seed was measured at all its lengths from {trained} on, so nothing is said about it."
            )
            continue
        means = {n: spread([results.at(method, n)[seed].value for seed in seeds]).mean for n in (trained, *at)}
        if not math.isfinite(means[trained]) or math.isnan(means[at[-1]]):
            where = at[-1] if math.isfinite(means[trained]) else trained
            lines.append(f"{method} has no finite perplexity at {where}.")
            continue
        kind, ratio, text = _growth(method, [means[n] / means[trained] for n in at], at)
        groups[kind].append((ratio, text if at[-1] == beyond[-1] else f"{text} at {at[-1]}"))
    sentences = []
    for kind, found in groups.items():
        ordered = [text for _, text in sorted(found, reverse=kind != "falls")]
        within = f" (within {FLAT:.0%})" if kind == "is flat" else ""
        if ordered:
            sentences.append(
                f"Perplexity {kind}{within} from {trained} (training length) to {beyond[-1]}: {', '.join(ordered)}."
            )
    return sentences + lines


def _growth(method: str, ratios: Sequence[float], at: Sequence[int]) -> tuple[str, float, str]:
    """rises, is flat or falls; the factor at the longest length; both in words, with the worst length if another."""
    last, peak = ratios[-1], max(ratio for ratio in ratios if not math.isnan(ratio))
    detour = f" ({_factor(peak)} at {at[ratios.index(peak)]})" if peak > max(1, last) * (1 + FLAT) else ""
    kind = "rises" if last > 1 + FLAT else "falls" if last < 1 - FLAT else "is flat"
    return kind, last, f"{method} {_factor(last)}{detour}"


def _factor(ratio: float) -> str:
    if math.isinf(ratio):
        return "to infinity"
    return f"x{as_text(ratio) if ratio >= 1000 else f'{ratio:.3g}'}" if ratio >= 1.5 else f"{100 * (ratio - 1):+.1f}%"


def _mean(results: Results, method: str, length: int) -> float:
    found = results.spread(method, length)
    return math.nan if found is None else found.mean


# Caveats -------------------------------------------------------------------------------------------------------------


def caveats(results: Results, comparisons: Sequence[Comparison]) -> list[str]:
    return [
        *(f"{why}." for why in results.left_out),
        *_incomplete(results),
        *_unpaired(comparisons),
        *_one_seed(results),
        *_steps(results),
        *_not_finite(results),
        *_windows(results),
    ]


def _incomplete(results: Results) -> list[str]:
    lines = []
    for method in results.methods:
        missing: dict[tuple[int, ...], list[int]] = {}
        for length in results.lengths:
            absent = tuple(seed for seed in results.seeds if seed not in results.at(method, length))
            if absent:
                missing.setdefault(absent, []).append(length)
        if missing == {results.seeds: list(results.lengths)}:
            lines.append(f"Missing: {method}.")
            continue
        for absent, at in missing.items():
            lines.append(f"Missing: {method}, {_seeds(absent)}, at {runs_of(at, results.lengths)}.")
    return lines


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {in_words(seeds)}"


def _unpaired(comparisons: Sequence[Comparison]) -> list[str]:
    alone: dict[tuple[str, str], set[int]] = {}
    for c in comparisons:
        if c.unpaired:
            alone.setdefault((c.method, c.base), set()).update(c.unpaired)
    return [
        f"{method} against {base}: one of them lacks {_seeds(sorted(seeds))} at some length, so it is not paired there."
        for (method, base), seeds in alone.items()
    ]


def _one_seed(results: Results) -> list[str]:
    if len(results.seeds) > 1:
        return []
    return [
        f"One seed ({in_words(results.seeds)}): nothing here tells how much perplexity would change with another one."
    ]


def _steps(results: Results) -> list[str]:
    steps: dict[int, list[str]] = {}
    for row in results.every_row():
        if row.step is not None:
            steps.setdefault(row.step, []).append(row.run)
    if len(steps) < 2:
        return []
    told = "; ".join(f"{step} steps: {in_words(list(dict.fromkeys(steps[step])))}" for step in sorted(steps))
    return [f"Not all were trained for the same time, so differences are not those of the methods alone. {told}."]


def _not_finite(results: Results) -> list[str]:
    lines = []
    for method in results.methods:
        odd = [row for n in results.lengths for row in results.at(method, n).values() if not math.isfinite(row.value)]
        if odd:
            at = sorted({row.length for row in odd})
            kinds = in_words(sorted({as_text(row.value) for row in odd}))
            lines.append(f"{method} has perplexity {kinds} at {runs_of(at, results.lengths)}.")
    return lines


def _windows(results: Results) -> list[str]:
    counts = [row.windows for row in results.every_row() if row.windows is not None]
    if not counts or min(counts) >= ENOUGH_WINDOWS:
        return []
    same = min(counts) == max(counts)
    few, where = (f"Only {min(counts)}", "each length") if same else (f"As few as {min(counts)}", "some length")
    return [f"{few} windows were scored at {where}; {ENOUGH_WINDOWS} or more are advised."]
