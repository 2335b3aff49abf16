"""The project's only legend of axis names, used in every annotation such as ``Float[Tensor, "*b h q k"]``.

===  =============================================================
b    batch
h    query heads (with grouped-query attention, key/value heads are ``g``)
t    tokens of a sequence, where queries and keys are the same tokens
q    query rows
k    key columns
d    width of one head
m    width of the model
D    hidden units of DAPE's f (written ``D`` as in the paper)
n    distinct lags (or positions) of a table
===  =============================================================

A *lag* is ``i - j``: query position minus key position, positive when the key lies in the past.
"""
