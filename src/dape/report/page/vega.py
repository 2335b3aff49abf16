"""The plotting library of the page, out of an installed package: nothing of it is kept in this repository."""

import contextlib
from importlib.metadata import version

from dape.errors import UsageError
from dape.extras import install_command
from dape.files import cache_folder, write_text


def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Putting them together takes seconds, so the result is kept."""
    try:
        import vl_convert
    except ImportError:
        raise UsageError(f"a report needs the library vl-convert-python; {install_command('report')}") from None
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return kept.read_text(encoding="utf-8")
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):  # a home that may not be written only costs time
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, script)
    return script
