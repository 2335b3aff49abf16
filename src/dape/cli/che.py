"""``dape che``: the Chomsky-hierarchy benchmark. Loads torch only when it runs."""

import sys
from dataclasses import dataclass, field

import tyro

from dape.actions.chomsky import ChomskyOptions, chomsky
from dape.cli.show import show
from dape.experiments.executors import Where
from dape.fitting import to_terminal
from dape.tasks.chomsky.catalogue import find

SHOWN = (3, 8, 13)


@dataclass(frozen=True, kw_only=True)
class Che(ChomskyOptions):
    """Train on algorithmic tasks of lengths 1 to 40, test at 41 to 500: the Chomsky-hierarchy benchmark.

    Trains a model for every task, method, learning rate and seed. The rate is picked by accuracy at lengths 1 to 40;
    the score is the mean accuracy at greater lengths. Writes results.jsonl, table.md (with the paper's numbers),
    lengths.png/.svg and scores.png/.svg into --out. Finished runs are kept: stop at any time and give the same command
    to continue, or add tasks, methods and seeds. The paper's settings take days on a CPU; --budget reduces them and
    prints what it has reduced.
    """

    show: str | None = None
    """Only print examples of this task."""
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


def run(config: Che) -> int:
    if config.show is not None:
        return show_examples(config.show, config.compat)
    return show(chomsky(config, executor=config.where.build(config.jobs)))


def show_examples(name: str, compat: str) -> int:
    """Print examples of a task as questions and answers."""
    import numpy as np

    entry = find(name)
    task = entry.load("deepmind" if compat == "deepmind" else "")
    about = (sys.modules[type(task).__module__].__doc__ or "").strip()
    print(f"{entry.name} ({entry.level}; guessing gives {100 * entry.chance:.0f}%)\n")
    for paragraph in about.split("\n\n"):
        print(to_terminal(" ".join(paragraph.split()), indent=""), end="\n\n")
    generator = np.random.default_rng(0)
    for length in SHOWN:
        sample = task.sample(generator, 2, length)
        for inputs, targets, mask in zip(sample.inputs, sample.targets, sample.mask, strict=True):
            question = " ".join(task.inputs[token] for token in inputs)
            answer = " ".join(task.outputs[token] for token in targets[mask])
            print(to_terminal(f"length {length:2}:  {question}  ->  {answer}", indent=" " * 12))
    print(f"\nAt length 40 a model reads {task.input_length(40)} tokens and writes {task.output_length(40)}.")
    return 0
