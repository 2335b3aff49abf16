"""Describe the held-out text, and warn if it is not representative of the whole."""

import numpy as np

from dape.data.store import Corpus

MOST = 0.5
"""A document with a greater share of the held-out tokens causes a warning."""
FAR = 3.0
"""So does a held-out text that is larger or smaller than requested by this factor."""


def held_out_words(corpus: Corpus) -> str:
    held, documents = corpus.manifest["validation"], corpus.manifest["counts"]["documents"]
    share = held["tokens"] / corpus.manifest["counts"]["tokens"]
    tokens = f"{held['tokens']:,} tokens ({share:.1%})"
    match corpus.manifest["split"]:
        case "given":
            return f"the sources given as `validation`, {tokens}"
        case "tail":
            return f"the end of the text, {tokens}, as it has too few documents to hold out whole ones"
    return f"{held['documents']:,} of {documents:,} documents by content, {tokens}"


def held_out_warnings(corpus: Corpus) -> list[str]:
    """Warnings if documents were held out by content, and a few of them decide what is measured."""
    manifest = corpus.manifest
    if manifest["split"] != "content":
        return []
    share = manifest["validation"]["tokens"] / manifest["counts"]["tokens"]
    asked = manifest.get("validation_share", share)
    sizes = np.diff(corpus.validation.document_ends, prepend=0)
    found = []
    if not asked / FAR <= share <= asked * FAR:
        found.append(f"{share:.1%} of the tokens are held out, {asked:.1%} were asked for")
    if len(sizes) > 1 and sizes.max() > MOST * sizes.sum():
        found.append(f"one of {len(sizes):,} held-out documents is {sizes.max() / sizes.sum():.0%} of their tokens")
    if not found:
        return []
    return [f"{'; '.join(found)}: few documents decide what is measured. Give others as `validation` of `dape prepare`"]
