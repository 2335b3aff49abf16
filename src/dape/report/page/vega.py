"""The plotting library of the page, taken from an installed package: this repository has no copy."""

import contextlib
from importlib.metadata import version

from dape.errors import UsageError
from dape.extras import install_command
from dape.files import cache_folder, write_text


def vega() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script. Bundling takes seconds, so the script is cached."""
    try:
        import vl_convert
    except ImportError:
        raise UsageError(f"a report needs the library vl-convert-python; {install_command('report')}") from None
    kept = cache_folder() / f"vega-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError):
        return kept.read_text(encoding="utf-8")
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    with contextlib.suppress(OSError):  # without a writable cache, bundling only takes its time again
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(kept, script)
    return script
