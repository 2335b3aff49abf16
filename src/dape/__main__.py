"""``python -m dape`` is ``dape``."""

import sys

from dape.cli import main

sys.exit(main())
