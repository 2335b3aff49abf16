"""``dape.draw`` and ``dape draw``: draw encodings without training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dape.errors import UsageError, check_counts
from dape.experiments.compare import model_for
from dape.files import check_writable_file
from dape.models.config import DecoderConfig
from dape.training.checks import check_encoding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dape.evaluation.effects import Effect
    from dape.positional.base import PositionalEncoding

LENGTHS_OF_TRAINING = 4
LONGEST = 2048
"""Most tokens in a picture: the matrix has a cell for every pair."""
CAPTION = (
    "Logits of attention minus the scores without any encoding, for a sequence of equal tokens: B of an additive "
    "encoding, B + f(A, B) of DAPE; for rotations, how much the similarity of a token to itself falls with distance. "
    "Parameters are as initialised (seed {seed}). {heads} heads of {head_dim}; the dotted line is the training length "
    "of {train_length}. On the right, purple: {draws} draws of randomised positions, from a pool of four lengths; "
    "dashed: positions in order."
)


def draw(
    *encodings: "str | PositionalEncoding",
    length: int | None = None,
    train_length: int = 64,
    heads: int = 8,
    head_dim: int = 32,
    draws: int = 4,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> "Figure":
    """Draw what encodings do to attention: by distance, as a matrix, and at randomised positions.

    Args:
        encodings: names from ``dape.encodings()``, or modules, also trained ones.
        length: tokens; by default 4 training lengths, or one if the encoding supports no more.
        train_length: training length of the encodings given by name.
        heads: number of heads of the encodings given by name.
        head_dim: width of these heads.
        draws: number of draws of randomised positions.
        seed: seed of parameters, tokens and draws.
        options: options of all encodings, ``{"hidden": 16}``, or of one: ``{"dape-kerple.hidden": 16}``.
        out: also write the figure into this file: .png or .svg; a name without ending writes both.

    Returns:
        A figure of matplotlib. A notebook displays it.

    Raises:
        ValueError: for invalid names, sizes and options.

    Example::

        dape.draw("alibi", "kerple", "dape-kerple", out="encodings.png")
    """
    check_draw(encodings, length=length, train_length=train_length, heads=heads, head_dim=head_dim, draws=draws)
    path = None if out is None else _figure_path(Path(out))
    model = DecoderConfig(
        width=heads * head_dim, heads=heads, train_length=train_length, encoding_options=dict(options or {})
    )
    found = [_effect(each, model, length, draws, seed) for each in encodings]
    from dape.actions.found import shown_in_notebooks
    from dape.report.drawing import save_figure
    from dape.report.encodings import encodings_figure

    sizes = {"seed": seed, "heads": heads, "head_dim": head_dim, "train_length": train_length, "draws": draws}
    figure = encodings_figure(found, train_length=train_length, caption=CAPTION.format(**sizes))
    if path is not None:
        save_figure(figure, path)
    return shown_in_notebooks(figure)


def check_draw(encodings: "Sequence[str | PositionalEncoding]", **counts: int | None) -> None:
    """Check the arguments that can be checked without torch."""
    if not encodings:
        raise UsageError("`encodings` is missing: name at least one; `dape list` shows all of them")
    for each in encodings:
        if isinstance(each, str):
            check_encoding(each, "encodings")
    check_counts(**counts)
    if (counts["length"] or 1) > LONGEST:
        raise UsageError(f"`length` {counts['length']}: at most {LONGEST} tokens can be drawn")


def _figure_path(out: Path) -> Path:
    if out.suffix not in ("", ".png", ".svg"):
        raise UsageError(f"`out` {out}: must end in .png or .svg, or have no ending for both")
    check_writable_file(out, "`out`")
    return out


def _effect(
    encoding: "str | PositionalEncoding", model: DecoderConfig, length: int | None, draws: int, seed: int
) -> "Effect":
    """The effect at the given length; by default at 4 training lengths, or at one if the encoding supports no more."""
    import torch

    from dape.evaluation.effects import effect

    name = encoding if isinstance(encoding, str) else _name_of(encoding)
    pe = _built(encoding, model, seed) if isinstance(encoding, str) else encoding
    trained = pe.dims.train_length
    lengths = [length] if length is not None else [LENGTHS_OF_TRAINING * trained, trained]
    failed: Exception | None = None
    for each in lengths:
        try:
            generator = torch.Generator().manual_seed(seed)
            return effect(name, pe, length=min(each, LONGEST), draws=draws, generator=generator)
        except (ValueError, IndexError) as error:
            failed = error
    raise UsageError(f"{name} cannot be drawn at length {lengths[-1]}: {failed}") from failed


def _name_of(pe: "PositionalEncoding") -> str:
    """The name of a module in the catalogue, such as ``dape-kerple``."""
    own = {"DapeV2": "dape-v2"}.get(type(pe).__name__, type(pe).__name__.lower())
    base: Any = getattr(pe, "base", None)
    return own if base is None else f"{own}-{_name_of(base)}"


def _built(name: str, model: DecoderConfig, seed: int) -> "PositionalEncoding":
    import torch

    from dape.positional.build import build

    model = model_for(name, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return build(
                name,
                num_heads=model.heads,
                head_dim=model.head_dim,
                train_length=model.train_length,
                **model.encoding_options,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"{name}: {error}") from error
