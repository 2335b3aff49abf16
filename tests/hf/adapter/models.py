"""Tiny models of every supported architecture, for the tests of adapters."""

import torch
import transformers

from dape.hf import adapter_parameters

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
CORE = ("gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3")
"""For everything but the five guarantees of test_families.py, which every family has."""
ROTATING = sorted(set(CORE) - {"gpt2"})


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
        "gemma": lambda: transformers.GemmaConfig(**COMMON, **FEWER, head_dim=16, **more),
        "gemma2": lambda: transformers.Gemma2Config(**COMMON, **FEWER, head_dim=16, **{"sliding_window": 8, **more}),
        "gemma3_text": lambda: transformers.Gemma3TextConfig(
            **COMMON, **FEWER, head_dim=16, **{"sliding_window": 8, "sliding_window_pattern": 2, **more}
        ),
        "phi3": lambda: transformers.Phi3Config(**COMMON, **FEWER, **{"pad_token_id": 0, "sliding_window": 8, **more}),
        "olmo2": lambda: transformers.Olmo2Config(**COMMON, **FEWER, **more),
        "smollm3": lambda: transformers.SmolLM3Config(**COMMON, **FEWER, **{"pad_token_id": 0, **more}),
        "starcoder2": lambda: transformers.Starcoder2Config(**COMMON, **FEWER, **{"sliding_window": 8, **more}),
        "opt": lambda: transformers.OPTConfig(**COMMON, **{"ffn_dim": 48, "word_embed_proj_dim": 32, **more}),
        "falcon": lambda: transformers.FalconConfig(**COMMON, **{"new_decoder_architecture": False, **more}),
        "bloom": lambda: transformers.BloomConfig(
            vocab_size=101, hidden_size=32, n_layer=2, n_head=4, bos_token_id=None, eos_token_id=None, **more
        ),
        "mpt": lambda: transformers.MptConfig(
            vocab_size=101, n_layers=2, max_seq_len=64, expansion_ratio=2, **{"d_model": 32, "n_heads": 4, **more}
        ),
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
