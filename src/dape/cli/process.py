"""One of the processes of `dape train --processes` and `dape eval --processes`: arguments as JSON, as
:mod:`dape.actions.train` and :mod:`dape.actions.evaluate` wrote them."""

import sys
from typing import Any

from dape.cli.app import answered
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
    except KeyboardInterrupt:  # whoever started this says so
        return 130
    return 0


def run(what: str, text: str) -> int:
    return {"train": train, "eval": evaluate}[what](parse_json(text))


if __name__ == "__main__":
    sys.exit(answered(lambda: run(*sys.argv[1:])))
