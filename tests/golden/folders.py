"""Folders begun by an older version and stopped half-way, with the rows they would have ended with.

``PYTHONPATH=. python -m tests.golden.folders [NAME ...]`` begins them with the code as it is and writes
folders/NAME.tar.xz and folders/ends.json. Those that are here were begun at d62b608, before the redesign;
tests/test_old_folders.py carries them on.
"""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "folders"
ENDS = HERE / "ends.json"
ROOT = Path("/tmp/dape-golden-slriryfz")
"""Folders know the paths of their inputs, so they go on only where they were begun."""
MODEL = "--layers 1 --width 16 --heads 2"
LANGUAGE = f"{MODEL} --train-length 8 --batch 4 --log-every 1 --data ../text.txt"
COMMANDS = {
    "train": f"train {LANGUAGE} --threads 1 --encoding dape-kerple --steps 400 --validate-every 50 --out out",
    "compare": f"compare {LANGUAGE} --methods alibi dape-kerple --lengths 8 32 --windows 4 --steps 300 "
    "--jobs 1 --out out",
    "che": f"che {MODEL} --hidden 4 --tasks even_pairs --methods randomized-alibi,dape-alibi --steps 200 --lr 1e-3 "
    "--seeds 1 --lengths 20 41 --samples 8 --batch 8 --jobs 1 --out out",
    "probe": f"probe --train {MODEL} --methods alibi dape-alibi --steps 150 --batch 4 --train-length 48 "
    "--lengths 48 96 --samples 4 --test-pairs 2 4 --jobs 1 --out out",
    "study": f"study adapters {MODEL} --train-length 8 --base-steps 60 --base-tokens 32 --steps 150 "
    "--tokens 32 --reach 4 --windows 3 --data ../text.txt --seeds 1 --tuned-at 16 --treatments dape-kerple "
    "--jobs 1 --out out",
    "extend": "extend ../llama --data ../text.txt --steps 200 --batch 2 --windows 4 --lengths 16 32 "
    "--threads 1 --out out",
}
RESUME = {"train": "train --resume --out out"}
KEPT_OUT = {".png", ".svg"}


def make_inputs(folder: Path) -> None:
    """Text, and a Llama of the transformers library."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 9))) for _ in range(200)]
    (folder / "text.txt").write_text(" ".join(draw.choices(words, k=4000)))
    os.utime(folder / "text.txt", (0, 0))  # data know when their source was changed; an archive keeps whole seconds
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=16, **sizes)).save_pretrained(folder / "llama")


def argv(name: str, *, again: bool) -> list[str]:
    return shlex.split(RESUME.get(name, COMMANDS[name]) if again else COMMANDS[name])


def ends(folder: Path) -> list[dict[str, Any]]:
    """What the rows of a finished folder say; of a training run, its last losses."""
    results = folder / "results.jsonl"
    if not results.exists():
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{key: line[key] for key in ("step", "loss", "validation_loss") if key in line} for line in lines[-20:]]
    names = ("run", "method", "seed", "length", "metric", "value")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    found = [{**{n: row[n] for n in names}, "place": _place(row)} for row in rows]
    return sorted(found, key=lambda row: json.dumps({n: v for n, v in row.items() if n != "value"}))


def _place(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row["extra"][name] for name in ("depth", "pairs", "task") if name in row["extra"]}


def _record(name: str, folder: Path) -> list[dict[str, Any]]:
    """Begin, stop when its first run is half-way, pack; then carry on to the end."""
    work = folder / name
    work.mkdir()
    with (folder / f"{name}.log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-m", "dape", *argv(name, again=False)], cwd=work, stderr=log)
        while child.poll() is None and not _half_way(work / "out"):
            time.sleep(0.002)
        child.send_signal(signal.SIGTERM)
        assert child.wait(), f"{name} ended before it was stopped"
    with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as archive:
        archive.add(work / "out", "out", filter=lambda item: None if Path(item.name).suffix in KEPT_OUT else item)
    subprocess.run([sys.executable, "-m", "dape", *argv(name, again=True)], cwd=work, check=True)
    return ends(work / "out")


def _half_way(out: Path) -> bool:
    logged = [path.read_text().count("\n") for path in out.rglob("metrics.jsonl")]
    return max(logged, default=0) >= 2 or (out / "untuned.jsonl").exists()


def main(names: Sequence[str]) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    HERE.mkdir(exist_ok=True)
    found = json.loads(ENDS.read_text()) if ENDS.exists() else {}
    ROOT.mkdir()
    make_inputs(ROOT)
    with tarfile.open(HERE / "inputs.tar.xz", "w:xz") as archive:
        for name in ("text.txt", "llama"):
            archive.add(ROOT / name, name)
    for name in names or COMMANDS:
        found[name] = _record(name, ROOT)
        ENDS.write_text(json.dumps(found, indent=1) + "\n")
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    main(sys.argv[1:])
