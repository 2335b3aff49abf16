"""The numbers printed in the DAPE paper (Zheng et al., NeurIPS 2024), as data to compare ours with.

``load("A3")`` reads one table; ``tables/README.md`` explains the columns. Curves that exist only as pictures are left
out. No torch, numpy or pandas.
"""

import csv
from dataclasses import dataclass
from importlib import resources

from dape.results.records import Row

TITLES = {
    "A1": "time of one iteration, six methods, three model sizes",
    "A2": "accuracy on the Chomsky-hierarchy tasks",
    "A3": "perplexity on Arxiv, trained at 512, three seeds",
    "A4": "perplexity on Books3, trained at 128, encodings that read content",
    "A5": "perplexity on Books3, trained at 512, what f sees",
    "A6": "perplexity at 2.7B parameters",
    "A7": "perplexity at 6.7B parameters",
    "prose": "numbers that only the text gives, P1 to P8",
}

STATEMENTS = tuple(f"P{n}" for n in range(1, 9))
PUBLISHED = "published"
"""The protocol of rows that come from the paper."""


@dataclass(frozen=True, kw_only=True)
class Published:
    id: str
    """Table (A3) or statement in the text (P1)."""
    source: str
    """table or prose."""
    dataset: str
    """Corpus or task. Empty if the paper does not state it; ``note`` then says what is likely."""
    model: str
    train_len: int | None
    eval_len: int | None
    method: str
    """Spelled as in `dape list`."""
    variant: str
    """Options of the method that matter, such as the form of DAPE or hidden=4."""
    metric: str
    value: float
    std: float | None
    n_seeds: int | None
    note: str
    """What the paper does not state, or contradicts itself about."""

    def as_row(self) -> Row:
        """The value as a result row, with accuracy from 0 to 1. Fields that Row does not have are in ``extra``."""
        percent = self.metric == "accuracy_percent"
        extra = {"source": f"paper, {self.id}", "dataset": self.dataset, "model": self.model.lower()}
        extra |= {"std": self.std, "n_seeds": self.n_seeds}
        extra |= {"task": self.dataset} if percent else {}
        return Row(
            run=f"paper-{self.id}-{self.dataset or self.model}-{self.method}",
            method=self.method,
            variant=self.variant,
            seed=0,
            train_length=self.train_len or 0,
            length=self.eval_len or 0,
            metric="accuracy" if percent else self.metric,
            value=self.value / 100 if percent else self.value,
            scored_tokens=0,
            protocol=PUBLISHED,
            data_hash="",
            note=self.note,
            extra={name: value for name, value in extra.items() if value not in (None, "")},
        )


def load(name: str) -> list[Published]:
    """All rows of a table, or of one statement of the text (P1), in the paper's order."""
    if name.upper() in STATEMENTS:
        return [row for row in load("prose") if row.id == name.upper()]
    known = {title.lower(): title for title in TITLES}
    if name.lower() not in known:
        raise ValueError(f"the paper has no table {name!r} here. Known: {', '.join(TITLES)}")
    file = resources.files("dape.results.paper") / "tables" / f"{known[name.lower()]}.csv"
    return [_published(line) for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]


def _published(line: dict[str, str]) -> Published:
    numbers = {name: int(line[name]) if line[name] else None for name in ("train_len", "eval_len", "n_seeds")}
    std = float(line["std"]) if line["std"] else None
    return Published(**{**line, **numbers, "value": float(line["value"]), "std": std})  # pyright: ignore[reportArgumentType]
