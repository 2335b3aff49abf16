"""Keep libraries of Hugging Face away from the network."""

import os


def use_offline() -> None:
    """Switch downloads off. Call it before importing transformers, which reads the variable once."""
    os.environ["HF_HUB_OFFLINE"] = "1"
