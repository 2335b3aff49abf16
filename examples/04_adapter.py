"""Longer reach for a model that exists: train DAPE into its attention, leave its weights alone, keep it apart.

Here the model is a small Llama that we first train ourselves on 32-token pieces of text; yours comes from
``AutoModelForCausalLM.from_pretrained(folder)``. The command ``dape extend FOLDER`` does all of this and measures it.
"""

import argparse
import copy
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import dape.hf

torch.manual_seed(0)
torch.set_num_threads(1)  # so small a model does not fill more
TEXT = torch.tensor(list(Path(argparse.__file__).read_bytes()))  # bytes as tokens
config = LlamaConfig(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
)
model = LlamaForCausalLM(config)


def pieces(length: int, count: int = 8) -> torch.Tensor:
    starts = torch.randint(len(TEXT) - length, (count,))
    return torch.stack([TEXT[start : start + length] for start in starts])


def train(parameters: Iterable[torch.nn.Parameter], length: int, steps: int, lr: float, adapter: bool = False) -> None:
    optimizer = torch.optim.AdamW(parameters, lr)
    for _ in range(steps):
        tokens = pieces(length)
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if adapter:
            dape.hf.project_(model)  # keeps Kerple's r1 and r2 positive


def loss_at(length: int) -> float:
    with torch.no_grad():
        windows = TEXT[-16 * 600 :].view(16, 600)[:, -length:]  # which end at the same tokens for every length
        logits = model(input_ids=windows).logits[:, -17:-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, -16:].flatten()).item()


train(model.parameters(), 32, steps=200, lr=5e-3)
before = {length: loss_at(length) for length in (32, 512)}
original = copy.deepcopy(model)

dape.hf.extend(model, "dape-kerple", train_length=32)  # changes nothing yet, and freezes the model
assert abs(loss_at(512) - before[512]) < 1e-4
train(dape.hf.adapter_parameters(model), 128, steps=50, lr=1e-2, adapter=True)  # 4 times what it was trained at

count = sum(p.numel() for p in dape.hf.adapter_parameters(model))
for length, loss in before.items():
    print(f"{length} tokens: {loss:.3f} nats before, {loss_at(length):.3f} with an adapter of {count} numbers")
text = model.generate(TEXT[None, :40], max_new_tokens=20, do_sample=False, pad_token_id=0)
print(repr(bytes(text[0, 40:].tolist()).decode(errors="replace")))

with tempfile.TemporaryDirectory() as folder:
    saved = dape.hf.save_adapter(model, Path(folder, "adapter"))
    size = sum(file.stat().st_size for file in saved.iterdir())
    dape.hf.load_adapter(original, saved)
with torch.no_grad():
    same = torch.equal(original(TEXT[None, :200]).logits, model(TEXT[None, :200]).logits)
print(f"saved in {size} bytes and put into the original model, logits are the same: {same}")
assert same
