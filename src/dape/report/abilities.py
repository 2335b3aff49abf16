"""Results of the generated tests: a table per test, with the ability it isolates."""

from collections.abc import Sequence

from dape.report.tables import markdown_table
from dape.results.records import Row
from dape.tasks.abilities.catalogue import ABILITIES

LEARNED = 0.9
"""Accuracy at the training length below which other lengths say nothing about encodings."""


def tests_markdown(rows: Sequence[Row]) -> str:
    parts = []
    for test in dict.fromkeys(row.protocol for row in rows):
        own = [row for row in rows if row.protocol == test]
        isolates = ABILITIES[test].isolates if test in ABILITIES else ""
        parts.append(f"**{test}**, {isolates}\n\n{markdown_table(own, metric='accuracy')}")
    return "\n".join(parts)


def not_learned(rows: Sequence[Row]) -> list[str]:
    """A sentence for each run that does not solve its test at the training length."""
    return [
        f"{row.run} has not learned the test: {100 * row.value:.0f}% at length {row.length}. What it does at greater "
        "lengths says nothing about its encoding; train with more steps"
        for row in rows
        if row.length == row.train_length and row.value < LEARNED
    ]
