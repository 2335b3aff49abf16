"""A folder of the transformers library: whether it is one, and of which kind. Neither torch nor the library here."""

from pathlib import Path

from dape.errors import UsageError
from dape.reading import read_json

CONFIG = "config.json"


def model_type(folder: Path) -> str | None:
    """What the folder's config.json calls the model; a folder that holds none is refused."""
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder. A name on the Hugging Face hub is not enough, dape never goes to the "
            f"network: download it first, `hf download {folder} --local-dir DIR`"
        )
    try:
        return read_json(folder / CONFIG).get("model_type")
    except FileNotFoundError:
        raise UsageError(f"{folder}: has no {CONFIG}; give a folder of transformers, as `dape export` writes") from None
    except ValueError as error:
        raise UsageError(str(error)) from error
