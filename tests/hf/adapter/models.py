"""Tiny models of every supported architecture, for the tests of adapters."""

import torch
import transformers

from dape.hf import adapter_parameters
from dape.hf.hosts import SUPPORTED

COMMON = {
    "vocab_size": 101,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
FEWER = {"num_key_value_heads": 2}
METHODS = ["dape-kerple", "dape-fire", "kerple", "dape-nope"]
ROTATING = sorted(set(SUPPORTED) - {"gpt2"})


def make(kind: str, **more):
    configs = {
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=101, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None, **more
        ),
        "gpt_neox": lambda: transformers.GPTNeoXConfig(**COMMON, **more),
        "llama": lambda: transformers.LlamaConfig(**COMMON, **FEWER, **more),
        "mistral": lambda: transformers.MistralConfig(**COMMON, **FEWER, **{"sliding_window": None, **more}),
        "qwen2": lambda: transformers.Qwen2Config(**COMMON, **FEWER, **more),
        "qwen3": lambda: transformers.Qwen3Config(**COMMON, **FEWER, head_dim=16, **more),
    }
    torch.manual_seed(3)
    return transformers.AutoModelForCausalLM.from_config(configs[kind]()).eval()


def shake(model) -> None:
    """Adapter weights far from their start, so that it matters."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for p in adapter_parameters(model):
            p.copy_(
                torch.rand(p.shape, generator=generator) * 0.9 + 0.1
                if p.dim() < 2
                else torch.randn(p.shape, generator=generator) / 2
            )


def generate(model, ids, **more):
    return model.generate(ids, max_new_tokens=10, do_sample=False, pad_token_id=0, **more)
