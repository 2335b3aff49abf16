"""Tokenizers between a checkpoint and a folder of the library, where ``AutoTokenizer`` gives the same ids."""

import json
from pathlib import Path
from typing import Any

from dape.data.tokenizer import END_OF_DOCUMENT, FILE, INFO, ByteTokenizer, LibraryTokenizer, Tokenizer, load_tokenizer
from dape.errors import UsageError
from dape.files import write_text
from dape.hf import checksums
from dape.reading import as_record, parse_json, read_json, reading

SETTINGS = "tokenizer_config.json"


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """``tokenizer.json`` and the library's settings beside it."""
    if isinstance(tokenizer, ByteTokenizer):
        text, eod = byte_level_json(), END_OF_DOCUMENT[0]
    else:
        tokenizer.save(folder)
        text, eod = (folder / FILE).read_text(encoding="utf-8"), read_json(folder / INFO)["eod"]
    # The model was trained on text alone: nothing may be put in front of it, cut off or filled up.
    plain = {**parse_json(text), "post_processor": None, "truncation": None, "padding": None}
    write_text(folder / FILE, json.dumps(plain, ensure_ascii=False))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": eod,
        "pad_token": eod,
        "padding_side": "left",
        # As in training: a text that mentions the end-of-document mark does not end there.
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
    write_text(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")


def open_exported(folder: Path) -> Tokenizer:
    """The tokenizer of a model's folder, whether we or the library wrote it. It must be the one that was saved."""
    tokenizer = _open(folder)
    checksums.verify_tokenizer(folder, tokenizer.fingerprint)
    return tokenizer


def _open(folder: Path) -> Tokenizer:
    if not (folder / FILE).is_file():
        raise UsageError(
            f"{folder} has no {FILE}: save the tokenizer there too, tokenizer.save_pretrained(...), or name one with "
            "`tokenizer`"
        )
    content = read_json(folder / FILE)
    with reading(folder / FILE, "is no tokenizer of the library"):
        if is_byte_level(content):
            return ByteTokenizer()
    if content.get("type") == "bytes" or (folder / INFO).is_file():
        return load_tokenizer(folder)
    text = (folder / FILE).read_text(encoding="utf-8")
    return LibraryTokenizer(text, name=f"file:{folder.resolve().name}", origin=folder / FILE, eod=_end(folder))


def _end(folder: Path) -> str | None:
    """The token that ends a text in the library."""
    token = read_json(folder / SETTINGS).get("eos_token") if (folder / SETTINGS).is_file() else None
    token = token.get("content") if isinstance(token, dict) else token
    return None if token is None else as_record(str, token, f"{folder / SETTINGS}: eos_token")


def byte_level_json() -> str:
    """Bytes as a tokenizer of the library ``tokenizers``: a BPE without merges, ids == bytes, 256 the end."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models, pre_tokenizers

    library = Library(models.BPE(_byte_vocabulary(), []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)  # pyright: ignore[reportAttributeAccessIssue]
    library.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    library.add_special_tokens([END_OF_DOCUMENT[0]])
    return library.to_str()


def _byte_vocabulary() -> dict[str, int]:
    """Byte-level tokenizers write a byte as a printable character: itself, or one from 256 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + index): byte for index, byte in enumerate(unseen)}


def is_byte_level(content: dict[str, Any]) -> bool:
    model = content.get("model") or {}
    added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
    vocabulary = {token: number for token, number in (model.get("vocab") or {}).items() if token not in added}
    same_ids = vocabulary == _byte_vocabulary() and added == {END_OF_DOCUMENT[0]: ByteTokenizer.eod}
    return same_ids and not model.get("merges") and not content.get("normalizer")
