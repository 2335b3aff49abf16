"""``DapeModel``: the network of :class:`dape.DecoderLM` where the transformers library expects one of its own models.

This module only translates: masks and position ids into places, the library's cache into ours, and the library's way of
building models without weights into ours of starting them.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as LibraryCache
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from dape.hf import checksums
from dape.hf.attention import NO_WEIGHTS
from dape.hf.config import DapeConfig
from dape.hf.places import places_of
from dape.models.cache import Cache
from dape.models.decoder import Block, Decoder
from dape.models.init import small_init_
from dape.ops.attention.memory import LagMemory
from dape.positional.base import PositionalEncoding
from dape.positional.randomized import Randomized

MEMORIES = "_dape_lags"
"""The attribute of each layer of the library's cache that holds our tables."""
KINDS = "_dape_features"
"""The attribute that says how a layer's features are stored: the width of the keys in front of them, their number and
dtype."""
LOADED = "_is_hf_initialized"
"""The library's mark on tensors and modules that are initialised already."""
UNDRAWN = (
    "{encoding} draws its positions at random, which all steps of a text must share. Fix one draw around the call:\n"
    "    with model.drawn(LENGTH): model.generate(...)          LENGTH: of prompt and new tokens together"
)


class LibraryStore:
    """One layer of the library's cache, as our decoder asks for it."""

    def __init__(self, cache: LibraryCache, layer: int) -> None:
        self._cache, self._layer = cache, layer
        self.length = int(cache.get_seq_length(layer))
        # A store lives for one call, the library's cache as long as the text.
        self.lags: LagMemory = vars(cache).setdefault(MEMORIES, {}).setdefault(layer, LagMemory())

    def append(self, k: Tensor, v: Tensor, features: Tensor | None = None) -> tuple[Tensor, Tensor]:
        width = k.shape[3]
        if features is not None:
            # As further channels of the keys, which the library reorders, repeats and cuts.
            vars(self._cache).setdefault(KINDS, {})[self._layer] = width, features.shape[-1], features.dtype
            k = torch.cat([k, _as_channels(features, k)], dim=-1)
        k_all, v_all = self._cache.update(k, v, self._layer)
        self.length += k.shape[2]
        # A static cache returns all of its room, the end of which is still empty.
        return k_all[:, :, : self.length, :width], v_all[:, :, : self.length]

    def features(self, last: int | None = None) -> Tensor:
        layer: Any = self._cache.layers[self._layer]
        width, numbers, dtype = vars(self._cache)[KINDS][self._layer]
        kept = layer.keys[:, :, 0 if last is None else self.length - last : self.length, width:]
        return kept.contiguous().view(dtype).transpose(1, 2).flatten(2)[..., :numbers]


def _as_channels(features: Tensor, k: Tensor) -> Tensor:
    """The same bits, viewed in the keys' dtype and divided among their heads."""
    heads, numbers = k.shape[1], features.shape[-1]
    filled = nn.functional.pad(features, (0, -numbers % heads))
    return filled.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous().view(k.dtype)


class DapePreTrainedModel(PreTrainedModel):
    """Files and weights: common to all of our models in the library."""

    config: DapeConfig
    config_class = DapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    # Encodings are handed to the blocks: all of the model lives on one device.
    _no_split_modules = ["DapeModel"]  # noqa: RUF012 (as the library declares it)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False

    # Files -----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As the library's method, after checking that the folder's files are those that were saved."""
        folder = Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or "")
        if folder.is_dir():
            checksums.verify(folder)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> None:
        """As the library's method, which Trainer calls too; then write checksums of what was saved."""
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            checksums.note(Path(save_directory))

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoModel") -> None:
        """Called when ``trust_remote_code`` loaded this class; the library would then save a copy of our source."""

    # Weights ---------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Called at the end of ``__init__``. Weights that exist (not on the device "meta") are initialised already."""
        if not any(tensor.is_meta for tensor in self.state_dict().values()):
            self._mark_started()
        self.post_init()

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Called by the library after loading: what was not in the file starts as in a new model. From then on nothing
        does, whatever becomes of the tensors, which lose their marks in a deep copy or another vocabulary."""
        if getattr(self, LOADED, False):
            return
        missing = {n: t for n, t in self.state_dict(keep_vars=True).items() if not getattr(t, LOADED, False)}
        if missing:
            fresh = type(self)(self.config).state_dict()
            for name, tensor in missing.items():
                tensor.copy_(fresh[name])
        self._mark_started()

    def _mark_started(self) -> None:
        for module in self.modules():
            setattr(module, LOADED, True)

    def _init_weights(self, module: nn.Module) -> None:
        """Called by the library for layers that it makes itself when the vocabulary is resized."""
        if isinstance(module, nn.Linear | nn.Embedding) and not getattr(module, LOADED, False):
            small_init_(module, self.config.width)


class DapeBlock(GradientCheckpointingLayer, Block):
    """A block that the library can recompute in the backward pass (gradient checkpointing)."""


class DapeModel(Decoder, DapePreTrainedModel):
    """The network without its head: tokens in, hidden states out."""

    block = DapeBlock
    _keys_to_ignore_on_load_unexpected = [r"(^|\.)head\.weight$"]  # noqa: RUF012 (of a whole language model)

    def __init__(self, config: DapeConfig, *, head: bool = False) -> None:
        """``head``: with the head of ``DapeForCausalLM``; files keep its weights among those of the network."""
        super().__init__(config)
        self.build(config.for_decoder(), head=head)
        self.gradient_checkpointing = False
        self.drawn: list[PositionalEncoding] | None = None
        self._begin()

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        setattr(value, LOADED, True)
        self.embedding = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LibraryCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        last: int | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """As in the library's own models.

        ``attention_mask`` is 0 at padding, wherever that is. ``position_ids`` may start anew where documents are
        packed, which then do not see each other (without cache). ``last``: hidden states of the last tokens only.
        """
        tokens = _one_of(input_ids, inputs_embeds)
        if _asked(output_attentions, self.config.output_attentions):
            raise ValueError(NO_WEIGHTS)
        cache = self._cache(past_key_values, use_cache, position_ids)
        past = 0 if cache is None else int(cache.get_seq_length())
        seen: list[Tensor] | None = [] if _asked(output_hidden_states, self.config.output_hidden_states) else None
        hidden: Any = self.hidden(
            tokens,
            cache=None if cache is None else Cache([LibraryStore(cache, i) for i in range(self.config.layers)]),
            encodings=self.drawn,
            last=last if seen is None else None,
            places=places_of(attention_mask, position_ids, tokens, past=past, cached=cache is not None),
            seen=seen,
        )
        states: Any = None if seen is None else (*seen, hidden)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache, hidden_states=states)

    def _cache(
        self, given: LibraryCache | None, wanted: bool | None, position_ids: Tensor | None
    ) -> LibraryCache | None:
        """The given cache, a new one if one is wanted, or None: in training a cache would only keep the graph alive."""
        if given is not None and not isinstance(given, LibraryCache):
            raise TypeError(f"past_key_values must be a Cache of transformers, got {type(given).__name__}")
        if self.gradient_checkpointing and self.training:
            if given is not None and int(given.get_seq_length()):
                raise ValueError("gradient checkpointing computes blocks twice, which a cache would store twice")
            return None
        if given is None:
            by_default = self.config.use_cache and not self.training and position_ids is None and not self.undrawn
            if not (by_default if wanted is None else wanted):
                return None
        if self.undrawn:
            raise ValueError(UNDRAWN.format(encoding=self.config.encoding))
        return DynamicCache(config=self.config) if given is None else given

    @property
    def undrawn(self) -> bool:
        return self.drawn is None and isinstance(self.encodings[0], Randomized)


def _asked(here: bool | None, in_config: bool | None) -> bool:
    return bool(in_config if here is None else here)


def _one_of(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    if input_ids is not None and inputs_embeds is None:
        return input_ids
    if inputs_embeds is not None and input_ids is None:
        return inputs_embeds
    raise ValueError("give exactly one of input_ids and inputs_embeds")
