"""The folder of an adapter, which belongs to one model, one text and one choice of settings. No torch here."""

import json
from typing import TYPE_CHECKING, Any

from dape.errors import UsageError
from dape.files import write_text
from dape.reading import check_seal, read_json, sealed, unsealed

if TYPE_CHECKING:
    from dape.actions.extend_plan import ExtendOptions
    from dape.data.store import Corpus

SETTINGS = "extend.json"
BEHIND = {
    "data_hash": "the text of `data`",
    "weights_hash": "the weights of `model`",
    "config_hash": "`model`/config.json",
}
"""What may change while its path stays the same."""


def check_out(options: "ExtendOptions", now: dict[str, Any]) -> None:
    """A folder belongs to one adapter: what was measured in it must not be taken for something else."""
    saved = begun_with(options)
    if saved is None:
        if options.out.exists() and any(p.name != ".lock" for p in options.out.iterdir()):
            raise UsageError(f"`out` {options.out}: the folder is not empty and holds no adapter; choose another")
        return
    changed = [_difference(name, saved.get(name), value) for name, value in now.items() if saved.get(name) != value]
    if changed:
        raise UsageError(f"`out` {options.out} was begun with other settings: {'; '.join(changed)}; use another `out`")


def begun_with(options: "ExtendOptions") -> dict[str, Any] | None:
    """The settings that the folder was begun with."""
    path = options.out / SETTINGS
    if not path.is_file():
        return None
    try:
        saved = read_json(path)
        check_seal(saved)
        settings = unsealed(saved)
        foreign = sorted(set(settings) - set(vars(options)) - set(BEHIND))
        if "method" not in settings or foreign:
            what = f"it has {foreign[0]}" if foreign else "it has no method"
            raise ValueError(f"{what}, so these are no settings of `dape extend`")
        return settings
    except ValueError as error:
        raise UsageError(f"{path} is damaged ({error}); use another `out`, or delete this one") from error


def _difference(name: str, before: Any, now: Any) -> str:
    if name in BEHIND:
        noted = f"was {before[:8]}" if isinstance(before, str) else "was not noted by an older dape"
        return f"{BEHIND[name]} changed (sha256 {noted}, now {now[:8]})"
    return f"{name} was {before!r}, now {now!r}"


def settings_of(options: "ExtendOptions") -> dict[str, Any]:
    """Everything the numbers depend on, as it is after being written and read; files by their paths."""
    given = {**vars(options), "model": str(options.model.resolve())}
    return json.loads(json.dumps({n: v for n, v in given.items() if n not in ("out", "device", "threads")}))


def take_out(options: "ExtendOptions", corpus: "Corpus") -> None:
    """For this text and this model, not only for their paths."""
    from dape.hf.weights import folder_hashes

    settings = {**settings_of(options), "data_hash": corpus.hash, **folder_hashes(options.model)}
    check_out(options, settings)
    if (saved := begun_with(options)) and "reach" not in saved:
        settings.pop("reach")
    write_text(options.out / SETTINGS, json.dumps(sealed(settings), indent=2) + "\n")
