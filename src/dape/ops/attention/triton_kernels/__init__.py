"""Attention on GPUs, in Triton: lag tables and bias tiles, forward and backward.

Only ``kernels.py`` and what imports it (``run.py``, ``verify.py``) need triton; they are imported when a call runs. See
the section on Triton in ../README.md: nothing here has run on a GPU yet, so ``trust.py`` lets a call use
them only after ``verify.py`` has compared them with the definition on that GPU.
"""
