"""No network, for commands that use libraries which would go there."""

import os


def use_offline() -> None:
    """Before the library is imported, which reads it once: a folder is all that is ever needed."""
    os.environ["HF_HUB_OFFLINE"] = "1"
