"""Tiny models, and texts from them in the library's way and in ours."""

import torch

from dape import DecoderLM
from dape.hf import DapeConfig, DapeForCausalLM
from dape.models.generate import Sampling, generate

NAMES = ["dape-kerple", "dape-fire", "rope", "alibi", "learned", "cope", "transformer-xl", "dape-v2-kerple"]
SIZES = {"layers": 2, "width": 32, "heads": 4, "vocabulary": 19, "train_length": 16}
RANDOM = "randomized-dape-kerple"


def settings(encoding: str, **others) -> DapeConfig:
    options = {"encoding_options": {"max_positions": 64}} if encoding == "learned" else {}
    return DapeConfig(encoding=encoding, **{**SIZES, **options, **others})


def tiny(encoding: str = "dape-kerple", **others) -> DapeForCausalLM:
    torch.manual_seed(0)
    model = DapeForCausalLM(settings(encoding, **others)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)  # choices are clear, and depend on the context
    return model


def decoder(model: DapeForCausalLM) -> DecoderLM:
    """The same weights in our own model."""
    made = DecoderLM(model.config.for_decoder()).to(model.dtype).eval()
    made.load_state_dict(model.model.state_dict())
    return made


def tokens(rows: int = 2, length: int = 7, seed: int = 1) -> torch.Tensor:
    return torch.randint(1, 19, (rows, length), generator=torch.Generator().manual_seed(seed))


def continued(model: DapeForCausalLM, prompt: torch.Tensor, new: int = 12, **kwargs) -> torch.Tensor:
    kwargs = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0, **kwargs}
    return model.generate(prompt, max_new_tokens=new, **kwargs)[:, prompt.shape[1] :]


def ours(model: DapeForCausalLM, prompt: torch.Tensor, new: int = 12, **kwargs) -> torch.Tensor:
    sampling = kwargs.pop("sampling", Sampling(temperature=0))
    return torch.stack(list(generate(decoder(model), prompt, new, sampling=sampling, **kwargs)), dim=1)
