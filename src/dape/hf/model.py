"""``DapeForCausalLM``: our language model as one of the transformers library, which writes texts with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from dape.hf.base import LOADED, UNDRAWN, DapeModel, DapePreTrainedModel
from dape.hf.config import DapeConfig

RIGHT_PADDING = (
    "the prompts are padded on the right (attention_mask ends in 0), so that the text would go on after padding. Pad "
    'on the left: tokenizer.padding_side = "left", and tokenize again'
)


class DapeForCausalLM(DapePreTrainedModel, GenerationMixin):
    """A language model with any encoding of `dape list`. Only the definition of attention differs from other models
    of the library, so that its fused implementations are of no use here; ours is chosen by :func:`dape.attention`."""

    def __init__(self, config: DapeConfig) -> None:
        super().__init__(config)
        self.model = DapeModel(config, head=True)
        self._begin()

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.model.config = self.config
        return embeddings

    def project_(self) -> None:
        """Put constrained parameters of the encodings back into range; call after every optimizer step."""
        self.model.project_()

    def get_output_embeddings(self) -> nn.Linear:
        assert self.model.head is not None
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        setattr(new_embeddings, LOADED, True)
        self.model.head = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """As :class:`DapeModel`, with logits. The library's loss shifts ``labels``."""
        last, kept = _rows(logits_to_keep)
        found = self.model(
            input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            last=last,
            return_dict=True,
        )
        logits: Any = self.get_output_embeddings()(found.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocabulary, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=found.past_key_values, hidden_states=found.hidden_states
        )

    # Generation ------------------------------------------------------------------------------------------------------

    @contextmanager
    def drawn(self, length: int, generator: torch.Generator | None = None) -> Iterator[None]:
        """Fix one draw of randomised positions, for texts of up to ``length`` tokens; other encodings ignore it."""
        self.model.drawn = self.model.drawn_encodings(length, generator)
        try:
            yield
        finally:
            self.model.drawn = None

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        *args: Any,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """``inputs_embeds`` is named because the library looks for it in the signature."""
        if self.model.undrawn:
            raise ValueError(UNDRAWN.format(encoding=self.config.encoding))
        if is_first_iteration and attention_mask is not None and bool((attention_mask[..., -1] == 0).any()):
            raise ValueError(RIGHT_PADDING)
        inherited: Any = super()
        return inherited.prepare_inputs_for_generation(
            input_ids,
            *args,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )

    @staticmethod
    def create_masks_for_generate(*, attention_mask: Tensor | None = None, **_: Any) -> Tensor | None:
        """Keep the mask as it is: for a static cache the library would make one of [queries, keys]."""
        return attention_mask


def _rows(logits_to_keep: int | Tensor) -> tuple[int | None, slice | Tensor]:
    """How many of the last hidden states are needed (None: all), and which of the computed ones are kept."""
    if isinstance(logits_to_keep, int):
        return logits_to_keep or None, slice(-logits_to_keep, None)
    return None, logits_to_keep
