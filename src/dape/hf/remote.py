"""What lets a saved model be loaded by a program that has never imported us: ``trust_remote_code=True``.

config.json names classes of a module beside it (``auto_map``). That module is written here, and holds no code of the
model: it imports the installed package, or says how to install it.
"""

from pathlib import Path

from dape._version import __version__
from dape.files import write_text

MODULE = "modeling_dape.py"
AUTO_MAP = {
    "AutoConfig": "modeling_dape.DapeConfig",
    "AutoModel": "modeling_dape.DapeModel",
    "AutoModelForCausalLM": "modeling_dape.DapeForCausalLM",
}
# The import stands inside `try`: of others the library would say itself what is missing, and advise to install whatever
# an index calls by that name.
_TEXT = '''\
"""For transformers with trust_remote_code=True: the classes that config.json names. Written by dape {version}."""

try:
    from dape.hf import DapeConfig, DapeForCausalLM, DapeModel
except ImportError as error:
    raise ImportError(
        "this model is computed by the Python package dape (with its extra hf), which cannot be imported here: "
        f"{{error}}. Install it from a clone of its repository: pip install '/path/to/dape[hf]'"
    ) from error

__all__ = ["DapeConfig", "DapeForCausalLM", "DapeModel"]
'''


def write_module(folder: Path) -> None:
    write_text(folder / MODULE, _TEXT.format(version=__version__))
