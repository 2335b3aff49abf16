"""Result rows, their statistics, and the paper's numbers. Nothing here needs torch.

Examples:
    >>> from dape.results import read_rows
"""

from dape.results.records import Row, append_rows, read_rows

__all__ = ["Row", "append_rows", "read_rows"]
