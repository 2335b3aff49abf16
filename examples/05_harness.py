"""A model through lm-evaluation-harness, with and without an adapter. No network, nothing but what is made here.

    python examples/05_harness.py          needs the extra harness: pip install 'dape[harness]'

The model is a tiny Llama with random weights, so its numbers mean little; yours is any folder of transformers. What
``measure`` does is the command ``dape harness FOLDER --choices questions.jsonl --text book.txt --lengths 32 128``.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before the libraries are imported, which read it once

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dape.hf
from dape.cli import main as dape_command
from dape.data.tokenizer import ByteTokenizer
from dape.hf.tokenizer import save_tokenizer
from dape.results import read_rows

QUESTIONS = [
    {"question": "The sky is", "choices": ["blue", "made of tin"], "answer": 0},
    {"question": "Two and two are", "choices": ["seven", "four", "none"], "answer": "four"},
    {"question": "A cat likes to drink", "choices": ["milk", "gravel"], "answer": 0},
]


def make(folder: Path) -> None:
    """A model with its tokenizer, an adapter for it, and questions."""
    config = LlamaConfig(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=256,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    save_tokenizer(ByteTokenizer(), folder / "model")
    dape.hf.extend(model, "dape-kerple", zero_init=False)  # instead of training: it changes something at once
    dape.hf.save_adapter(model, folder / "adapter")
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))


def measure(folder: Path, *more: str) -> None:
    """Questions and text, in windows of one and of four training lengths; the rows go to OUT/rows.jsonl."""
    what = ["--choices", str(folder / "questions.jsonl"), "--text", argparse.__file__]
    how = ["--lengths", "32", "128", "--last-k", "16", "--windows", "8", "--threads", "1", "--out", str(folder / "out")]
    assert dape_command(["harness", str(folder / "model"), *what, *how, *more]) == 0


def main() -> None:
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["DAPE_CACHE"] = str(folder / "cache")
        make(folder)
        measure(folder)
        measure(folder, "--adapter", str(folder / "adapter"))
        rows = read_rows(folder / "out" / "rows.jsonl")
    for row in rows:
        if row.metric == "perplexity":
            print(f"{row.label}, {row.length} tokens: perplexity {row.value:.3f} on {row.scored_tokens} tokens")


if __name__ == "__main__":
    main()
