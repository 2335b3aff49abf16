"""What each process of test_parallel.py does: cases as JSON, what the first one found into a file of JSON."""

import json
import os
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from dape.data.corpora import open_data
from dape.evaluation.context_parallel import SharedWindows
from dape.evaluation.perplexity import Reader
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM
from dape.training.config import TrainConfig
from dape.training.language_model import LanguageModelTrainer
from dape.training.parallel import ALONE, Group, joined
from dape.training.run import RunConfig

TINY = {"layers": 2, "width": 16, "heads": 2, "train_length": 8, "steps": 6, "batch": 8, "save_every": 0, "keep": 9}


def trainer(folder: Path, group: Group, data: str, settings: dict[str, Any]) -> LanguageModelTrainer:
    names = {f.name for f in fields(DecoderConfig)}
    settings = {**TINY, **settings}
    model = DecoderConfig(**{n: v for n, v in settings.items() if n in names})
    config = RunConfig(model=model, train=TrainConfig(**{n: v for n, v in settings.items() if n not in names}),
                       data=data, threads=1)  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    return LanguageModelTrainer(folder, config, open_data(data), device=torch.device("cpu"), group=group)


def steps(of: LanguageModelTrainer, count: int) -> list[float]:
    """Loss and norm of the gradient of every step, then the loss on held-out text."""
    found: list[float] = []
    for _ in range(count):
        done, _ = of.take_step()
        found += [done.loss, done.gradient_norm]
    return [*found, of.validate() or 0.0]


def main(text: str) -> None:
    given = json.loads(text)
    out, data, found = Path(given["out"]), given["data"], {}
    torch.set_num_threads(1)
    modes = dict.fromkeys(case["mode"] for case in given["cases"])
    for mode in modes:
        with joined(mode, torch.device("cpu")) as group:
            for case in given["cases"]:
                if case["mode"] == mode:
                    found[case["name"]] = _case(case, out, data, group)
    if os.environ.get("RANK", "0") == "0":
        (out / "found.json").write_text(json.dumps(found))


def _case(case: dict[str, Any], out: Path, data: str, group: Group) -> list[float]:
    """Some steps, all saved and the rest in a new trainer, if the case says after how many."""
    if "window" in case:
        return window(case, group)
    cut, folder = case.get("save_after", 0), out / case.get("folder", case["name"])
    first = trainer(folder, group, data, case["settings"])
    if not cut:
        return steps(first, case.get("steps", 3))
    steps(first, cut)
    first.save()
    first.wait_for_checkpoint()
    group.barrier()
    return steps(trainer(folder, group, data, case["settings"]), 2)


def window(case: dict[str, Any], group: Group = ALONE) -> list[float]:
    """Nats of the tokens of a window, whose rows the processes share."""
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 11, "train_length": 8}
    model = DecoderLM(DecoderConfig(**shape, **case["settings"])).eval()
    tokens = torch.randint(11, (2, case["window"] + 1))
    reader = Reader() if group.alone else SharedWindows(group)
    return reader.nll(model, tokens, case["window"] - 1, seed=0).flatten().tolist()


def alone(folder: Path, data: str, settings: dict[str, Any], count: int = 3) -> list[float]:
    return steps(trainer(folder, ALONE, data, settings), count)


if __name__ == "__main__":
    main(sys.argv[1])
