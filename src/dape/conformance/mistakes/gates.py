"""Mistakes of forget gates (fox)."""

import torch
from torch import Tensor, nn

from dape.conformance.mistakes.base import Family, Setting

mistake = MISTAKES = Family()


def _logit(s: Setting) -> Tensor:
    """The logits of the gates, [h, t]."""
    assert s.case.entering is not None
    return s.base.w(s.case.entering).T  # pyright: ignore[reportCallIssue]


def _of(s: Setting, rows: Tensor, keys: Tensor) -> Tensor:
    return s.of_bias(rows[:, s.case.q_pos].unsqueeze(-1) + keys[:, s.case.k_pos].unsqueeze(-2))


@mistake("fox", says="the gate of the query is left out and that of the key counts: c must include the token itself")
def gates_of_the_keys(s: Setting) -> Tensor:
    log_f = nn.functional.logsigmoid(_logit(s))
    before = log_f.cumsum(-1) - log_f
    return _of(s, before, -before)


@mistake("fox", says="the gate of the key counts too: the sum must begin after the key, so that its own bias is 0")
def key_forgets_itself(s: Setting) -> Tensor:
    log_f = nn.functional.logsigmoid(_logit(s))
    c = log_f.cumsum(-1)
    return _of(s, c, log_f - c)


@mistake("fox", says="the gates are summed without their logarithm")
def gates_without_logarithm(s: Setting) -> Tensor:
    c = torch.sigmoid(_logit(s)).cumsum(-1)
    return _of(s, c, -c)


@mistake("fox", says="the logarithm is of 1 - f, how much is forgotten; it must be of f, how much is kept")
def keeps_what_it_should_forget(s: Setting) -> Tensor:
    c = nn.functional.logsigmoid(-_logit(s)).cumsum(-1)
    return _of(s, c, -c)


@mistake("fox", says="the gates have no sigmoid: w x + b is summed as it is")
def gates_without_sigmoid(s: Setting) -> Tensor:
    c = _logit(s).cumsum(-1)
    return _of(s, c, -c)
