"""``DapeConfig``: the shape of our language model as the transformers library keeps it, in ``config.json``."""

from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig

from dape.errors import did_you_mean
from dape.hf import checksums
from dape.hf.remote import AUTO_MAP, write_module
from dape.models.config import DecoderConfig
from dape.positional.catalogue import find

_OF_THE_LIBRARY = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "quantization_config",
    "torch_dtype",
    *GenerationConfig._get_default_generation_params(),
}
"""Keys that the library itself writes into a configuration or takes out, beside the fields of its base class."""


@strict
class DapeConfig(PreTrainedConfig):
    """The fields of :class:`dape.DecoderConfig`, and what the library wants to know of a language model.

    ``hidden_size``, ``num_hidden_layers``, ``num_attention_heads`` and ``vocab_size`` are other names of ``width``,
    ``layers``, ``heads`` and ``vocabulary``, and so are those of ``dape.build``. ``max_position_embeddings`` is a hint
    for programs that ask for it, by default the training length; it limits nothing.
    """

    model_type: ClassVar[str] = "dape"
    attribute_map: ClassVar[dict[str, str]] = {
        name: own for name, own in DecoderConfig.other_names.items() if name != "max_position_embeddings"
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    layers: int = 4
    width: int = 128
    heads: int = 8
    vocabulary: int = 257
    encoding: str = "dape-kerple"
    encoding_options: dict[str, Any] | None = None
    train_length: int = 64
    share_encoding: bool | None = None
    max_position_embeddings: int | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_unknown(kwargs)
        for alias in kwargs.keys() & self.attribute_map.keys():  # under its own name its type is checked
            setattr(self, self.attribute_map[alias], kwargs.pop(alias))
        super().__post_init__(**kwargs)
        self.encoding_options = self.encoding_options or {}
        if self.max_position_embeddings is None:
            self.max_position_embeddings = self.train_length
        self.auto_map = dict(AUTO_MAP)

    def _refuse_unknown(self, given: dict[str, Any]) -> None:
        """Refuse unknown fields: the library would keep a misspelt one as an attribute that nobody reads."""
        known = {f.name for f in fields(self)} | set(self.attribute_map)
        for name in given:
            if name in known or name in _OF_THE_LIBRARY or name.startswith("_"):
                continue
            own = ", ".join(sorted(DapeConfig.__annotations__.keys() - _NOT_FIELDS))
            hint = did_you_mean(name, known)
            raise ValueError(f"DapeConfig has no field {name!r}.{hint} Its own fields are {own}")

    def validate_architecture(self) -> None:
        """Called by the library once all types have been checked."""
        for name in ("layers", "width", "heads", "vocabulary", "train_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.width % self.heads:
            raise ValueError(f"width {self.width} cannot be divided into {self.heads} heads of equal width")
        if self.tie_word_embeddings:
            raise ValueError("the output head of this model is not tied to the embeddings; tie_word_embeddings=False")
        find(self.encoding)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As the library's method, with the module that ``auto_map`` names. Checksums in the folder are brought up to
        date."""
        super().save_pretrained(save_directory, *args, **kwargs)
        write_module(Path(save_directory))
        checksums.note_config(Path(save_directory))

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = "AutoConfig") -> None:
        """Called when ``trust_remote_code`` loaded this class; the library would then save a copy of our source."""

    def for_decoder(self) -> DecoderConfig:
        """The same model for :class:`dape.DecoderLM`."""
        shape = {name: getattr(self, name) for name in _SHARED}
        return DecoderConfig(**{**shape, "encoding_options": dict(self.encoding_options or {})})

    @classmethod
    def of(cls, config: DecoderConfig, **others: Any) -> "DapeConfig":
        return cls(**{name: getattr(config, name) for name in _SHARED}, **others)


_NOT_FIELDS = {"model_type", "attribute_map", "keys_to_ignore_at_inference"}
# Recomputing activations is a matter of a training run: here `model.gradient_checkpointing_enable()`.
_SHARED = [f.name for f in fields(DecoderConfig) if f.name != "checkpoint_activations"]
