"""What bias maps show, in sentences. Each is computed from the numbers of the heads. No torch here."""

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any

from dape.evaluation.bias_measures import FLAT
from dape.report.tables import markdown_lines
from dape.results.numbers import count
from dape.results.statistics import in_words

KINDS = ("local", "anti-local", "flat")


def bias_summary(facts: dict[str, Any]) -> str:
    """Markdown: sentences, and a table by layer if there is an f."""
    title = f"# Bias maps of {facts['method']}\n"
    lines = "\n".join(f"- {sentence}" for sentence in sentences(facts))
    table = f"\n\n{layer_table(facts)}" if facts["terms"]["f"] else ""
    return f"{title}\n{lines}{table}\n"


def sentences(facts: dict[str, Any]) -> list[str]:
    return [_what(facts), *_about_f(facts), *_about_bias(facts)]


def _what(facts: dict[str, Any]) -> str:
    samples, layers, heads = len(facts["samples"]), facts["layers"], facts["heads"]
    variant = f" ({facts['variant']})" if facts["variant"] else ""
    return (
        f"{facts['method']}{variant}: logits = {facts['terms']['logits']}. Trained at {facts['train_length']} tokens "
        f"for {facts['step']} steps; the last query of {count(samples, 'window')} of {facts['length']} tokens, "
        f"{_numbers('layer', layers, facts['model_layers'])}, {_numbers('head', heads, facts['model_heads'])}."
    )


def _numbers(noun: str, chosen: Sequence[int], available: int) -> str:
    if len(chosen) == available:
        return f"all {available} {noun}s" if available > 1 else f"its only {noun}"
    return f"{noun}{'' if len(chosen) == 1 else 's'} {in_words(chosen)} of {available}"


def _about_f(facts: dict[str, Any]) -> list[str]:
    name, heads, longest = facts["terms"]["f"], facts["heads_summary"], facts["length"] - 1
    if not name:
        return [
            "There is no f: the bias is the same whatever the text says."
            if facts["terms"]["bias"]
            else "Neither a bias nor f enters the logits: there is nothing to judge but the scores."
        ]
    counts = Counter(head["kind"] for head in heads)
    found = [
        f"{name} is local (falls with the logarithm of the lag) in {counts['local']} of {count(len(heads), 'head')},"
        f" anti-local (rises) in {counts['anti-local']}, flat (changes by less than {FLAT:g} from lag 1 to {longest})"
        f" in {counts['flat']}."
    ]
    mixed = [head for head in heads if head["kind"] != "flat" and min(head["slopes"]) < 0 < max(head["slopes"])]
    if mixed:
        found.append(f"In {len(mixed)} of those that are not flat the sign of the slope differs between windows.")
    return [*found, _about_text(name, heads)]


def _about_text(name: str, heads: Sequence[dict[str, Any]]) -> str:
    shares = [(head["input_dependence"], head) for head in heads if head["input_dependence"] is not None]
    if not shares:
        return "Input dependence needs at least 2 windows."
    if all(share == 0 for share, _ in shares):
        return f"Input dependence: none. {name} is the same for every text."
    (low, least), (high, most) = (choose(shares, key=lambda pair: pair[0]) for choose in (min, max))
    middle = median(share for share, _ in shares)
    return (
        f"Input dependence, the share of the variance of {name} due to the text rather than the lag: median "
        f"{_percent(middle)}, from {_percent(low)} ({_place(least)}) to {_percent(high)} ({_place(most)})."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _place(head: dict[str, Any]) -> str:
    return f"layer {head['layer']}, head {head['head']}"


def _about_bias(facts: dict[str, Any]) -> list[str]:
    if not facts["terms"]["bias"]:
        return []
    heads = facts["heads_summary"]
    counts = Counter(head["bias_kind"] for head in heads)
    kinds = ", ".join(f"{kind} in {counts[kind]}" for kind in KINDS if counts[kind])
    text = f"The static bias B is {kinds} of {count(len(heads), 'head')}"
    shares = [head["bias_input_dependence"] for head in heads if head["bias_input_dependence"] is not None]
    if not shares:
        return [f"{text}."]
    # It is measured in the same way as that of f. It must be 0, so the number shows how exact the measure is.
    return [f"{text}; its input dependence is {_percent(max(shares))}."]


def layer_table(facts: dict[str, Any]) -> str:
    body = []
    for layer in facts["layers"]:
        heads = [head for head in facts["heads_summary"] if head["layer"] == layer]
        counts = Counter(head["kind"] for head in heads)
        shares = [head["input_dependence"] for head in heads if head["input_dependence"] is not None]
        slope, share = f"{median(head['slope'] for head in heads):+.3f}", _percent(median(shares)) if shares else "-"
        body.append([layer, *(counts[kind] for kind in KINDS), slope, share])
    return markdown_lines(["layer", *KINDS, "median slope", "median input dependence"], body, words=0)
