"""``DapeForCausalLM``: our :class:`dape.DecoderLM` where the transformers library expects one of its own models.

The network is DecoderLM itself. This module only translates: masks and position ids into places, the library's cache
into ours, and the library's way of building models without weights into ours of starting them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache as LibraryCache
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from dape.hf import checksums
from dape.hf.attention import NO_WEIGHTS
from dape.hf.config import DapeConfig
from dape.hf.places import places_of
from dape.models.cache import Cache
from dape.models.decoder import DecoderLM
from dape.models.init import small_init_
from dape.ops.attention.memory import LagMemory
from dape.positional.base import PositionalEncoding
from dape.positional.randomized import Randomized

MEMORIES = "_dape_lags"
"""Where the library's cache keeps our tables, per layer."""
LOADED = "_is_hf_initialized"
"""The library's mark on tensors and modules that hold their values already."""


class LibraryStore:
    """One layer of the library's cache, as DecoderLM asks for it."""

    def __init__(self, cache: LibraryCache, layer: int) -> None:
        self._cache, self._layer = cache, layer
        self.length = int(cache.get_seq_length(layer))
        # A store lives for one call, the library's cache as long as the text.
        self.lags: LagMemory = vars(cache).setdefault(MEMORIES, {}).setdefault(layer, LagMemory())

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k_all, v_all = self._cache.update(k, v, self._layer)
        self.length += k.shape[2]
        # A static cache returns all of its room, the end of which is still empty.
        return k_all[:, :, : self.length], v_all[:, :, : self.length]


class DapeForCausalLM(PreTrainedModel, GenerationMixin):
    """A language model with any encoding of `dape list`. Only the definition of attention differs from other models
    of the library, so that its fused implementations are of no use here; ours is chosen by :func:`dape.attention`."""

    config: DapeConfig
    config_class = DapeConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    # Encodings are handed to the blocks: all of the model lives on one device.
    _no_split_modules = ["DecoderLM"]  # noqa: RUF012 (as the library declares it)
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = False
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: DapeConfig) -> None:
        super().__init__(config)
        self.model = DecoderLM(config.for_decoder())
        self.gradient_checkpointing = False
        self._drawn: list[PositionalEncoding] | None = None
        if not any(tensor.is_meta for tensor in self.state_dict().values()):
            self._mark_started()  # by DecoderLM
        self.post_init()

    # Files -----------------------------------------------------------------------------------------------------------

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """As the library's, after a look whether the files of a folder are those that were saved."""
        folder = Path(str(pretrained_model_name_or_path), kwargs.get("subfolder") or "")
        if folder.is_dir():
            checksums.verify(folder)
        return super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)

    def save_pretrained(self, save_directory: Any, is_main_process: bool = True, *args: Any, **kwargs: Any) -> None:
        """As the library's, which Trainer calls too; then the checksums of what was saved."""
        super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
        if is_main_process:
            checksums.note(Path(save_directory))

    # Weights ---------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Called by the library after loading: what was not in the file starts as in a new model. From then on nothing
        does, whatever becomes of the tensors, which lose their marks in a deep copy or another vocabulary."""
        if getattr(self, LOADED, False):
            return
        missing = {n: t for n, t in self.state_dict(keep_vars=True).items() if not getattr(t, LOADED, False)}
        if missing:
            fresh = DecoderLM(self.config.for_decoder()).state_dict()
            for name, tensor in missing.items():
                tensor.copy_(fresh[name.removeprefix("model.")])
        self._mark_started()

    def _mark_started(self) -> None:
        for module in self.modules():
            setattr(module, LOADED, True)

    def _init_weights(self, module: nn.Module) -> None:
        """Called by the library for layers it makes itself, when the vocabulary is resized."""
        if isinstance(module, nn.Linear | nn.Embedding) and not getattr(module, LOADED, False):
            small_init_(module, self.config.width)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.model.config = self.config.for_decoder()
        return embeddings

    def project_(self) -> None:
        """Put constrained parameters of the encodings back into range; call after every optimizer step."""
        self.model.project_()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        assert isinstance(value, nn.Embedding)
        setattr(value, LOADED, True)
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        setattr(new_embeddings, LOADED, True)
        self.model.head = new_embeddings

    # Forward ---------------------------------------------------------------------------------------------------------

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: LibraryCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As in the library's own models.

        ``attention_mask`` is 0 at padding, wherever that is. ``position_ids`` may start anew where documents are
        packed, which then do not see each other (without cache). ``labels`` are shifted by the library's loss.
        """
        tokens = _one_of(input_ids, inputs_embeds)
        if _asked(output_attentions, self.config.output_attentions):
            raise ValueError(NO_WEIGHTS)
        cache = self._cache(past_key_values, use_cache, position_ids)
        past = 0 if cache is None else int(cache.get_seq_length())
        seen: list[Tensor] | None = [] if _asked(output_hidden_states, self.config.output_hidden_states) else None
        last, kept = _rows(logits_to_keep)
        hidden = self.model(
            tokens,
            head=False,
            cache=None if cache is None else Cache([LibraryStore(cache, i) for i in range(self.config.layers)]),
            encodings=self._drawn,
            last=last if seen is None else None,
            places=places_of(attention_mask, position_ids, tokens, past=past, cached=cache is not None),
            recompute=self._gradient_checkpointing_func if self._recomputes else None,
            seen=seen,
        )
        logits: Any = self.model.head(hidden[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocabulary, **kwargs)
        states: Any = None if seen is None else (*seen, hidden)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, hidden_states=states)

    @property
    def _recomputes(self) -> bool:
        return self.gradient_checkpointing and self.training

    def _cache(
        self, given: LibraryCache | None, wanted: bool | None, position_ids: Tensor | None
    ) -> LibraryCache | None:
        """The one given, a new one if it is wanted, or none: in training it would only hold the graph."""
        if given is not None and not isinstance(given, LibraryCache):
            raise TypeError(f"past_key_values must be a Cache of transformers, got {type(given).__name__}")
        if self._recomputes:
            if given is not None and int(given.get_seq_length()):
                raise ValueError("gradient checkpointing computes blocks twice, which a cache would store twice")
            return None
        if given is None:
            by_default = self.config.use_cache and not self.training and position_ids is None and not self._undrawn
            if not (by_default if wanted is None else wanted):
                return None
        if self._undrawn:
            raise ValueError(_UNDRAWN.format(encoding=self.config.encoding))
        return DynamicCache(config=self.config) if given is None else given

    # Generation ------------------------------------------------------------------------------------------------------

    @property
    def _undrawn(self) -> bool:
        return self._drawn is None and isinstance(self.model.encodings[0], Randomized)

    @contextmanager
    def drawn(self, length: int, generator: torch.Generator | None = None) -> Iterator[None]:
        """Fix one draw of randomised positions, for texts of up to ``length`` tokens; other encodings ignore it."""
        self._drawn = self.model.drawn_encodings(length, generator)
        try:
            yield
        finally:
            self._drawn = None

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """``inputs_embeds`` stands here because the library looks for the name."""
        if self._undrawn:
            raise ValueError(_UNDRAWN.format(encoding=self.config.encoding))
        inherited: Any = super()
        return inherited.prepare_inputs_for_generation(input_ids, *args, inputs_embeds=inputs_embeds, **kwargs)

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """The mask as it is: the library would make one of [queries, keys] for a static cache."""
        return attention_mask


_UNDRAWN = (
    "{encoding} draws its positions at random, which all steps of a text must share. Fix one draw around the call:\n"
    "    with model.drawn(LENGTH): model.generate(...)          LENGTH: of prompt and new tokens together"
)


def _asked(here: bool | None, in_config: bool | None) -> bool:
    return bool(in_config if here is None else here)


def _rows(logits_to_keep: int | Tensor) -> tuple[int | None, slice | Tensor]:
    """How many of the last hidden states are needed (None: all), and which of those that are computed."""
    if isinstance(logits_to_keep, int):
        return logits_to_keep or None, slice(-logits_to_keep, None)
    return None, logits_to_keep


def _one_of(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    if input_ids is not None and inputs_embeds is None:
        return input_ids
    if inputs_embeds is not None and input_ids is None:
        return inputs_embeds
    raise ValueError("give exactly one of input_ids and inputs_embeds")
