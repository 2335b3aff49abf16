"""lm-eval's ``hf`` backend around a model in memory: with a window that is given, and a count of what it cuts off."""

import sys
from collections import Counter
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from dape.hf.harness.tasks import Tokens

_Backend: Any = HFLM  # whose decorator hides its type


class Reader(_Backend):
    """Everything is lm-eval's, but that tokens stay tokens and that nothing is lost silently."""

    def __init__(self, model: Any, tokenizer: Any, *, length: int, batch: int) -> None:
        super().__init__(
            model,
            backend="causal",
            tokenizer=tokenizer,
            max_length=length,
            batch_size=batch,
            softmax_dtype="float32",  # as in `dape eval`, whatever the model computes in
        )
        self.scored: Counter[str] = Counter()
        """Tokens by task."""
        self.cut: Counter[str] = Counter()
        """Requests by task that were longer than the window and lost their beginning."""
        self._asking: list[str] = []

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        self._asking = [request.task_name or "" for request in requests]
        try:
            return super().loglikelihood(requests, disable_tqdm=disable_tqdm or not sys.stderr.isatty())
        finally:
            self._asking = []

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        for request in requests:
            self.scored[request.task_name or ""] += len(self.tok_encode(request.args[0]))
        return super().loglikelihood_rolling(requests, disable_tqdm=disable_tqdm or not sys.stderr.isatty())

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if isinstance(context, Tokens) and isinstance(continuation, Tokens):
            return context.ids, continuation.ids
        return super()._encode_pair(context, continuation)

    def _loglikelihood_tokens(self, requests: Any, *args: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        # Windows of rolling perplexity come here too, when nobody asks: they fit, and were counted above.
        for name, (_, context, continuation) in zip(self._asking, requests, strict=False):
            if not continuation:
                raise ValueError(f"{name}: a choice vanishes when it is tokenized together with its question")
            if len(continuation) > self.max_length:
                raise ValueError(
                    f"{name}: {len(continuation)} tokens are to be scored at once, more than the window of "
                    f"{self.max_length}; give greater `lengths`"
                )
            self.scored[name] += len(continuation)
            self.cut[name] += len(context) + len(continuation) > self.max_length + 1
        if not self._asking:
            kwargs["disable_tqdm"] = True  # a bar for every batch
        return super()._loglikelihood_tokens(requests, *args, **kwargs)
