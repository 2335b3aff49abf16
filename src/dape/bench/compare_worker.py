"""One turn of ``dape bench compare``: reads what to time from its argument, prints seconds as JSON.

It runs with the source tree of any commit, and therefore uses ``dape.build`` and ``dape.attention`` only.
"""

import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

dape = importlib.import_module("dape")  # of the commit to time, not of the one this file belongs to


def features_of(pe: Any, x: torch.Tensor) -> dict:
    """The features as an argument of ``attention``, for commits and encodings that have any."""
    features = pe.features(x) if hasattr(pe, "features") else None
    return {} if features is None else {"features": features}


def main(asked: dict) -> None:
    torch.set_num_threads(asked["threads"])
    torch.manual_seed(asked["seed"])
    heads, width, length = asked["heads"], asked["head_dim"], asked["length"]
    shape = (asked["batch"], heads, length, width)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    upstream = torch.randn(shape)
    x = torch.randn(asked["batch"], length, heads * width)
    calls: dict[str, tuple[tuple[torch.Tensor, ...], Callable[[], torch.Tensor]]] = {
        "sdpa": ((), lambda: scaled_dot_product_attention(q, k, v, is_causal=True))
    }
    for name in asked["encodings"]:
        options = {"hidden": asked["hidden"]} if name.startswith("dape-") else {}
        pe = dape.build(name, num_heads=heads, head_dim=width, train_length=length, **options)
        calls[name] = (tuple(pe.parameters()), lambda pe=pe: dape.attention(q, k, v, pe, **features_of(pe, x)))

    def seconds(name: str, pass_: str) -> float:
        parameters, call = calls[name]
        start = time.perf_counter()
        if pass_ == "forward":
            with torch.no_grad():
                call()
        else:
            torch.autograd.grad(call(), [q, k, v, *parameters], upstream, allow_unused=True)
        return time.perf_counter() - start

    found: dict[str, dict[str, list[float]]] = {}
    for pass_ in asked["passes"]:
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(asked["repeats"] + 1):  # the first warms up
            for name in calls:
                taken = seconds(name, pass_)
                if turn:
                    times[name].append(taken)
        found[pass_] = times
    print(json.dumps({"package": dape.__file__, "seconds": found}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
