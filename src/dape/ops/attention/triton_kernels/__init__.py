"""Attention on GPUs, in Triton: lag tables and bias tiles, forward and backward.

Only ``kernels.py`` and the modules that import it (``run.py``, ``verify.py``) need triton. They are imported when a
call runs. The kernels have not run on a GPU yet (see Triton in ../README.md). ``trust.py`` therefore allows them only
after ``verify.py`` has compared them with the definition on the user's GPU.
"""
