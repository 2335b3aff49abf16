"""An estimate of the memory of dense implementations, so that calls that do not fit are not started."""

from dape.positional.names import parse

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def dense_bytes(
    impl: str, pass_: str, *, encoding: str, batch: int, heads: int, hidden: int, dtype: str, length: int
) -> float | None:
    """Peak bytes of a dense implementation; None for those with linear memory."""
    name = parse(encoding)
    has_units = bool(name.wrapper) or name.base == "fire"
    planes = _planes(impl, pass_, heads, hidden if has_units else 0, batch)
    # The reference computes half precision in float32; the listings stay in the dtype of their inputs.
    item_bytes = max(ITEM_BYTES[dtype], 4) if impl == "reference" else ITEM_BYTES[dtype]
    return None if planes is None else planes * item_bytes * batch * length**2


def _planes(impl: str, pass_: str, heads: int, hidden: int, batch: int) -> float | None:
    """The number of matrices of batch x length x length that exist at the same time.

    Counted in the code, then adjusted to measurements (float32; 12 heads with 32 and 64 units at 1024 tokens and batch
    1, and the shape of the CHE tasks). The estimate is within 15% of them, or up to 30% above them for ``reference``.
    Short sequences need more: freed memory of their size is not returned to the system.
    """
    bias = heads / batch  # computed once for the whole batch
    # The first layer of the listing reads its input with heads moved last, which can be a view only at batch 1.
    inputs = 2 * heads if batch == 1 else 4 * heads
    match impl, pass_:
        case "appendix", "forward":
            return heads + bias + max(2 * hidden, inputs + hidden)
        case "appendix", "forward_backward":
            return 3 * heads + inputs + 2.5 * bias + 3 * hidden
        case "reference", "forward":
            return heads + bias + max(3 * hidden, 2 * heads)
        case "reference", "forward_backward":
            return 6 * heads + 2.5 * bias + 3 * hidden
        case "static", "forward":
            return 2 * heads + 1.2 * bias
        case "static", "forward_backward":
            return 4 * heads + 2.2 * bias
        case _:
            return None
