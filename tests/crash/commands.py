"""What is killed: every command that works for long, at a setting that takes seconds. All write into ``out``."""

import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MODEL = "--layers 1 --width 16 --heads 2"
LANGUAGE = f"{MODEL} --train-length 8 --batch 4 --log-every 1 --save-every 3 --data ../text.txt"


@dataclass(frozen=True)
class Command:
    flags: str
    """After ``dape NAME``; the folder beside ``out`` is the parent of the working folder."""
    resume: str = ""
    """What replaces the flags once ``begun`` is there; empty: the same command goes on."""
    begun: str = ""
    done: str = ""
    """If this is there, nothing is left to do: the command would refuse to replace it."""
    name: str = ""
    """If it is not that of the entry."""


COMMANDS = {
    "train": Command(
        f"{LANGUAGE} --threads 1 --encoding dape-kerple --steps 60 --validate-every 5 --out out",
        resume="--resume --out out",
        begun="out/config.yaml",
    ),
    "train-fp16": Command(
        f"{LANGUAGE} --threads 1 --encoding randomized-dape-fire --accumulate 2 --precision fp16 --steps 40 --out out",
        resume="--resume --out out",
        begun="out/config.yaml",
        name="train",
    ),
    "train-fsdp": Command(
        f"{LANGUAGE} --processes 2 --parallel fsdp --encoding dape-fire --steps 40 --out out",
        resume="--resume --out out --processes 2 --parallel fsdp",
        begun="out/config.yaml",
        name="train",
    ),
    "prepare": Command("../documents --tokenizer bpe:400 --shard-tokens 20000 --out out"),
    "compare": Command(
        f"{LANGUAGE} --methods alibi dape-alibi --lengths 8 16 --windows 4 --steps 12 --jobs 2 --out out",
    ),
    "compare-resume": Command(
        f"{LANGUAGE} --methods dape-kerple --lengths 8 32 --windows 4 --steps 20 --jobs 1 --out out",
        resume="--resume --out out",
        begun="out/compare.yaml",
        name="compare",
    ),
    "che": Command(
        f"{MODEL} --hidden 4 --tasks even_pairs --methods randomized-alibi,dape-alibi --steps 40 --lr 1e-3 "
        "--seeds 1 --lengths 20 41 --samples 8 --batch 8 --jobs 2 --out out"
    ),
    "probe": Command(
        f"--train {MODEL} --methods alibi dape-alibi --steps 30 --batch 4 --train-length 48 --lengths 48 96 "
        "--samples 4 --test-pairs 2 4 --jobs 2 --out out"
    ),
    "extend": Command(
        "../llama --data ../text.txt --steps 40 --batch 2 --windows 4 --lengths 16 32 --threads 1 --out out"
    ),
    "study adapters": Command(
        f"{MODEL} --train-length 8 --base-steps 30 --base-tokens 32 --steps 30 --tokens 32 --reach 4 --windows 3 "
        "--data ../text.txt --seeds 1 --tuned-at 16 --treatments dape-kerple --jobs 1 --out out"
    ),
    "reproduce": Command("data-adaptive --scale smoke --seeds 1 --data ../text.txt --jobs 2 --out out"),
    "visualize": Command("../run --data ../text.txt --length 16 --samples 1 --window 0 --threads 1 --out out"),
    "export": Command("../run --out out", done="out"),
}


def is_done(entry: str, folder: Path) -> bool:
    return bool(COMMANDS[entry].done) and (folder / COMMANDS[entry].done).exists()


def argv(entry: str, folder: Path) -> list[str]:
    """Of the first start and of every later one."""
    command = COMMANDS[entry]
    again = command.begun and (folder / command.begun).exists()
    return [*(command.name or entry).split(), *shlex.split(command.resume if again else command.flags)]


def make_inputs(folder: Path, dape: Callable[..., object]) -> None:
    """Text, documents, a Llama of the transformers library and a finished run."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 9))) for _ in range(2000)]
    (folder / "text.txt").write_text(" ".join(draw.choices(words, k=20_000)))
    (folder / "documents").mkdir()
    for number in range(60):
        (folder / "documents" / f"{number}.txt").write_text(" ".join(draw.choices(words, k=2000)))
    _make_llama(folder / "llama")
    dape("train", *shlex.split(f"{MODEL} --train-length 8 --steps 3 --data text.txt --out run"))


def _make_llama(folder: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=257, max_position_embeddings=16, **sizes)).save_pretrained(folder)
