"""What lm-eval has to say, once."""

import contextlib
import logging
import sys
from collections.abc import Iterator

INTENDED = ("`pretrained`", "Truncating")
"""It warns of models that are in memory already, and of each text that is cut, which ``Reader.cut`` counts."""


@contextlib.contextmanager
def said_once(level: int = logging.WARNING) -> Iterator[None]:
    """Messages of that level or more on standard error, but not the same one for every request."""
    logger = logging.getLogger("lm_eval")
    handler = logging.StreamHandler(sys.stderr)
    seen: set[tuple[str, int]] = set()

    def is_new(record: logging.LogRecord) -> bool:
        place = (record.pathname, record.lineno)
        new = place not in seen and not any(words in record.getMessage() for words in INTENDED)
        seen.add(place)
        return new

    handler.addFilter(is_new)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
