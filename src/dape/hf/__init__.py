"""DAPE inside models of the ``transformers`` library. Needs the extra ``hf``: ``pip install 'dape[hf]'``.

``extend`` puts an adapter into a model that exists already; ``save_adapter`` and ``load_adapter`` keep it apart from
the model, in kilobytes.
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError("dape.hf needs the transformers library: pip install 'dape[hf]'") from error

from dape.hf.adapter import Adapter, adapter_of, extend, project_, remove
from dape.hf.files import load_adapter, save_adapter

__all__ = ["Adapter", "adapter_of", "extend", "load_adapter", "project_", "remove", "save_adapter"]
