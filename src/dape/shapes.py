"""The project's only legend of axis names, used in every annotation such as ``Float[Tensor, "*b h q k"]``.

===  =============================================================
b    batch
h    query heads (with grouped-query attention, key/value heads are ``g``)
g    key/value heads, each shared by ``h / g`` query heads
t    tokens of a sequence, where queries and keys are the same tokens
q    query rows
k    key columns
d    width of one head
e    width of one head of the values, where it may differ from ``d``
m    width of the model
v    vocabulary: one logit per token id
o    output tokens of a task
D    hidden units of DAPE's f (written ``D`` as in the paper)
n    distinct lags (or positions) of a table
i    members of a batch with positions of their own; 1 if all share them
r    query rows of one block
c    channels of any kind (heads, hidden units, frequencies, classes)
p    a width padded for a kernel, or parts to be summed
s    any shape (``*s``); splits of the keys that are joined later
w    any width
a    rows of a plain matrix product
===  =============================================================

``*x`` is any number of axes, ``#x`` an axis that may be 1 and is then broadcast, a number an axis of that size.
A *lag* is ``i - j``: query position minus key position, positive when the key lies in the past.
The tests check shapes at run time (``tests/test_shapes.py``).
"""
