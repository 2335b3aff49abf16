"""One of the processes of `dape train --processes`: settings as JSON, as :mod:`dape.actions.train` wrote them."""

import sys
from typing import Any

from dape.cli.app import answered
from dape.models.config import DecoderConfig
from dape.reading import as_record, parse_json
from dape.training.config import TrainConfig


def run(text: str) -> int:
    from dape.actions.train import train

    given: dict[str, Any] = parse_json(text)
    model = as_record(DecoderConfig, given.pop("model"), "model")
    config = as_record(TrainConfig, given.pop("train"), "train")
    done = train(given.pop("data"), model=model, train=config, **given)
    return done.exit_code


if __name__ == "__main__":
    sys.exit(answered(lambda: run(sys.argv[1])))
