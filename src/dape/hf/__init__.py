"""DAPE inside models of the ``transformers`` library. Needs the extra ``hf``.

``extend`` puts an adapter into a model that exists already; ``save_adapter`` and ``load_adapter`` keep it apart from
the model, in kilobytes. ``DapeForCausalLM`` is our own language model as one of the library's; importing this package
makes it known to ``AutoConfig``, ``AutoModel`` and ``AutoModelForCausalLM``.
"""

from dape.extras import peft_fits, transformers_trouble

if trouble := transformers_trouble("dape.hf"):  # an old one would fail at a name that says nothing
    raise ImportError(trouble)

import transformers

from dape.hf.adapter import Adapter, adapter_of, adapter_parameters, extend, project_, remove
from dape.hf.base import DapeModel
from dape.hf.config import DapeConfig
from dape.hf.files import load_adapter, save_adapter
from dape.hf.model import DapeForCausalLM
from dape.hf.training import ProjectPositions

transformers.AutoConfig.register(DapeConfig.model_type, DapeConfig, exist_ok=True)
transformers.AutoModel.register(DapeConfig, DapeModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(DapeConfig, DapeForCausalLM, exist_ok=True)
if peft_fits():
    from dape.hf import peft_method

    peft_method.register()

__all__ = [
    "Adapter",
    "DapeConfig",
    "DapeForCausalLM",
    "DapeModel",
    "ProjectPositions",
    "adapter_of",
    "adapter_parameters",
    "extend",
    "load_adapter",
    "project_",
    "remove",
    "save_adapter",
]
