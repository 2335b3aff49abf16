"""DAPE as a method of the peft library: ``peft_type`` DAPE in ``adapter_config.json``.

``PeftModel.from_pretrained(model, folder)`` and ``get_peft_model(model, DapeAdapterConfig(...))`` then work as they do
for LoRA. What is put into the model is what :func:`dape.hf.extend` puts there. Needs the extra ``peft``.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from peft import PeftConfig, PeftType
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.peft_types import register_peft_method
from torch import Tensor, nn

from dape._version import __version__
from dape.hf.adapter import adapter_of, adapter_parameters, extend, inside_of, remove
from dape.hf.attention import PLACE
from dape.hf.files import check_host
from dape.hf.hosts import Host, library_model
from dape.hf.weights import fingerprint
from dape.reading import CHECKSUM, as_record

TYPE = "DAPE"
NO_MERGING = (
    "an adapter of dape cannot be merged: f is a function of the scores of every pair of tokens, and no weight of the "
    "model could hold that. Keep it beside the model; model.unload() takes it out"
)
ONE_ONLY = "a model holds one adapter of dape; load the other one into another copy of the model"
OF_FILES = ("format", "sha256", CHECKSUM)
"""Fields that hold only for the files they were written with."""


@dataclass
class DapeAdapterConfig(PeftConfig):
    """The arguments of :func:`dape.hf.extend`, and what :func:`dape.hf.save_adapter` notes beside them."""

    method: str = field(default="dape-kerple", metadata={"help": "DAPE on a bias (dape-kerple), or a bias (kerple)."})
    options: dict[str, Any] = field(default_factory=dict, metadata={"help": "Of the encoding, such as hidden."})
    zero_init: bool = field(default=True, metadata={"help": "Start as the model without adapter."})
    rope: str = field(default="keep", metadata={"help": "The model's rotation: keep, remove, yarn."})
    factor: float = field(default=1.0, metadata={"help": "With yarn: for up to so many training lengths."})
    train_length: int | None = field(default=None, metadata={"help": "The length the model was trained at."})
    host: dict[str, Any] | None = field(default=None, metadata={"help": "The model it was made for."})
    host_weights: str | None = field(default=None, metadata={"help": "Fingerprint of that model's weights."})
    about: dict[str, Any] = field(default_factory=dict, metadata={"help": "How it was trained."})
    format: int | None = None
    dape: str | None = field(default=None, metadata={"help": "The version that wrote it."})
    sha256: dict[str, str] | None = None
    checksum: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = getattr(PeftType, TYPE)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_dict().items() if name not in OF_FILES}


class _Told(nn.Module, BaseTunerLayer):
    """Tells peft the adapter's name and whether it is on. Our encodings cannot be layers of peft: attention reads them,
    nobody calls them."""

    adapter_layer_names = ("adapters",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.adapters = nn.ModuleDict({name: nn.Identity()})
        self._active_adapter = name


class DapeTuner(BaseTuner):
    """The interface that peft asks of a method, implemented by :mod:`dape.hf.adapter`."""

    prefix = "dape_"
    tuner_layer_cls = _Told
    target_module_mapping: dict[str, list[str]] = {}  # noqa: RUF012 (as peft declares it)

    def inject_adapter(
        self,
        model: nn.Module,
        adapter_name: str,
        autocast_adapter_dtype: bool = True,
        low_cpu_mem_usage: bool = False,
        state_dict: dict[str, Tensor] | None = None,
        **_: Any,
    ) -> None:
        if len(self.peft_config) > 1:
            del self.peft_config[adapter_name]
            raise ValueError(ONE_ONLY)
        config: Any = self.peft_config[adapter_name]
        if config.host is not None:
            check_host(model, as_record(Host, config.host, "adapter_config.json: host"), "this")
        made = extend(
            model,
            config.method,
            zero_init=config.zero_init,
            rope=config.rope,
            factor=config.factor,
            train_length=config.train_length,
            **config.options,
        )
        adapter = adapter_of(made)
        config.train_length, config.host, config.dape = adapter.train_length, asdict(adapter.host), __version__
        config.host_weights = fingerprint(library_model(made))
        self.told = _Told(adapter_name)
        self.set_adapter(adapter_name, inference_mode=config.inference_mode)

    def set_adapter(self, adapter_name: str | list[str], inference_mode: bool = False) -> None:
        names = [adapter_name] if isinstance(adapter_name, str) else adapter_name
        if unknown := sorted(set(names) - set(self.peft_config)):
            raise ValueError(f"there is no adapter {unknown[0]!r}; there is {', '.join(self.peft_config)}")
        for parameter in adapter_parameters(self.model):
            parameter.requires_grad_(not inference_mode)
        self.active_adapter = adapter_name

    def _enable_adapter_layers(self, enabled: bool = True) -> None:
        inside, library = inside_of(self.model), library_model(self.model)
        (inside.switch_on if enabled else inside.switch_off)(library)
        self.told._disable_adapters = not enabled

    def delete_adapter(self, adapter_name: str) -> None:
        del self.peft_config[adapter_name]
        remove(self.model)

    def unload(self) -> nn.Module:
        return remove(self.model)

    def merge_and_unload(self, *args: Any, **kwargs: Any) -> nn.Module:
        raise ValueError(NO_MERGING)

    def merge_adapter(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(NO_MERGING)

    def unmerge_adapter(self) -> None:
        raise ValueError(NO_MERGING)

    def _mark_only_adapters_as_trainable(self, model: nn.Module) -> None:
        """Nothing to do: ``extend`` has done so."""

    def _create_and_replace(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do: peft replaces layer by layer; ours all get their encodings in ``inject_adapter``."""

    # Files: the names of tensors are those in the model, without the name of an adapter -------------------------------

    @classmethod
    def _get_adapter_state_dict(
        cls,
        model: nn.Module,
        config: PeftConfig,
        adapter_name: str,
        state_dict: dict[str, Tensor],
        unwanted_adapter_names: list[str],
    ) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in state_dict.items() if f".{PLACE}." in name}

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        return key

    @classmethod
    def _remap_adapter_state_dict_for_load(
        cls, model: nn.Module, config: PeftConfig, adapter_name: str, state_dict: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        return state_dict


def register() -> None:
    """Make ``peft_type`` DAPE known. peft keeps its methods in an enumeration, which has no place for others."""
    if TYPE in PeftType.__members__:
        return
    member = str.__new__(PeftType, TYPE)
    member._name_, member._value_ = TYPE, TYPE
    type.__setattr__(PeftType, TYPE, member)
    PeftType._member_names_.append(TYPE)
    PeftType._member_map_[TYPE] = member
    PeftType._value2member_map_[TYPE] = member
    register_peft_method(name=TYPE.lower(), config_cls=DapeAdapterConfig, model_cls=DapeTuner, prefix=DapeTuner.prefix)
