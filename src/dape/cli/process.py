"""One of the processes of `dape train --processes` and `dape eval --processes`.

Its arguments are JSON that :mod:`dape.actions.train` and :mod:`dape.actions.evaluate` wrote.
"""

import sys
from typing import Any

from dape.cli.app import exit_code_of
from dape.models.config import DecoderConfig
from dape.reading import as_record, parse_json
from dape.training.config import TrainConfig


def train(given: dict[str, Any]) -> int:
    from dape.actions.train import train

    model = as_record(DecoderConfig, given.pop("model"), "model")
    config = as_record(TrainConfig, given.pop("train"), "train")
    return train(given.pop("data"), model=model, train=config, **given).exit_code


def evaluate(given: dict[str, Any]) -> int:
    from dape.actions.evaluate import evaluate

    try:
        evaluate(given.pop("run"), **given)
    except KeyboardInterrupt:  # the process that started this one reports it
        return 130
    return 0


def run(what: str, text: str) -> int:
    return {"train": train, "eval": evaluate}[what](parse_json(text))


if __name__ == "__main__":
    sys.exit(exit_code_of(lambda: run(*sys.argv[1:])))
