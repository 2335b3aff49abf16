# %% [markdown]
# # On a cluster
#
# A comparison is a grid of runs that know nothing of each other. By default they are processes of this machine, `jobs` at a time. An
# `executor` does them elsewhere: on a Ray cluster, or as jobs of Slurm. Here Slurm is submitit's *local* executor, which runs jobs as
# processes of this machine, to try things out (the extra `slurm`); on a cluster leave `cluster="local"` out.

# %%
from pathlib import Path

import dape
from dape.experiments.executors.slurm import Slurm

Path("book.txt").write_text(" ".join(f"chapter {n % 11} has {n % 7} pages and {n % 13} pictures." for n in range(2000)))
small = {"layers": 1, "width": 16, "heads": 2, "train_length": 16, "batch": 4, "steps": 10}
there = Slurm(cluster="local", minutes=30, cpus=1)
grid = {"methods": ("alibi", "dape-alibi"), "seeds": 2, "lengths": (16, 32), "windows": 4}
found = dape.compare("book.txt", out="runs/grid", executor=there, **grid, **small)
print(found.table())

# %% [markdown]
# The folder is the whole truth: every run has its settings, checkpoints and rows there, and whoever sees the folder can go on. A job
# whose time is up saves, is queued again and goes on; whoever gives the same call again does only what has no rows yet, wherever.

# %%
for run in sorted(Path("runs/grid/runs").iterdir()):
    print(run.name, *sorted(file.name for file in run.iterdir() if file.is_file()))

# %%
again = dape.compare("book.txt", out="runs/grid", jobs=2, **grid, **small)
print(again.rows == found.rows)

# %% [markdown]
# In the terminal: `dape compare --executor slurm --partition cpu --minutes 240 --out /shared/runs/compare`, or `--executor ray
# --ray-address HOST:6379`. More on clusters: [Many runs](../scaling-grids.md); on one run in several processes:
# [Several processes](../scaling.md).
