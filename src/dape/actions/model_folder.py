"""The type of the model in a folder of transformers. Imports neither torch nor transformers."""

from pathlib import Path

from dape.errors import UsageError
from dape.reading import read_json

CONFIG = "config.json"


def model_type(folder: Path) -> str | None:
    """``model_type`` in the folder's config.json.

    Raises:
        UsageError: if there is no folder or no readable config.json in it.
    """
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: there is no such folder. dape does not download models by their name on the Hugging Face hub; "
            f"download it first: `hf download {folder} --local-dir DIR`"
        )
    try:
        return read_json(folder / CONFIG).get("model_type")
    except FileNotFoundError:
        raise UsageError(
            f"{folder}: has no {CONFIG}; give a folder of transformers, as its save_pretrained writes"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from error
