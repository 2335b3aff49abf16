"""Multiple-choice questions from a file of JSON Lines. Neither torch nor lm-eval here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dape.errors import UsageError
from dape.files import sha256_of
from dape.reading import parse_json

EXAMPLE = '{"question": "The sky is", "choices": ["blue", "made of tin"], "answer": 0}'


@dataclass(frozen=True)
class Questions:
    name: str
    items: list[dict[str, Any]]
    """question, choices, and answer as the number of the right choice, from 0."""
    hash: str


def read_questions(path: Path) -> Questions:
    try:
        content = path.read_bytes()
        lines = content.decode("utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"`choices` {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"`choices` {path}: is not UTF-8 text ({error})") from error
    items = [_item(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise UsageError(f"`choices` {path}: holds no questions; one per line: {EXAMPLE}")
    return Questions(path.stem, items, sha256_of(content))


def _item(line: str, where: str) -> dict[str, Any]:
    try:
        given = parse_json(line)
    except ValueError as error:
        raise UsageError(f"{where}: is not JSON ({error}); expected {EXAMPLE}") from error
    missing = [name for name in ("question", "choices", "answer") if not isinstance(given, dict) or name not in given]
    if missing:
        raise UsageError(f"{where}: has no {', '.join(missing)}; expected {EXAMPLE}")
    question, choices = given["question"], given["choices"]
    if not isinstance(question, str) or not question.strip():
        raise UsageError(f"{where}: question must be a text, got {question!r}")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise UsageError(f"{where}: choices must be a list of two texts or more, got {choices!r}")
    if len(set(choices)) < len(choices):
        raise UsageError(f"{where}: two choices are the same: {choices!r}")
    return {"question": question, "choices": choices, "answer": _answer(given["answer"], choices, where)}


def _answer(given: Any, choices: list[str], where: str) -> int:
    """By number from 0, or by its text."""
    if isinstance(given, str) and given in choices:
        return choices.index(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < len(choices):
        return given
    raise UsageError(f"{where}: answer must be 0 to {len(choices) - 1} or the text of a choice, got {given!r}")
