# %% [markdown]
# # Compare encodings on my text
#
# Which positional encoding suits your text, and does it hold beyond the length it was trained on? `dape.compare` trains one small
# model per encoding and seed under the same conditions, then measures perplexity at longer and longer lengths. Here everything
# is tiny, so that it takes seconds: for an answer leave out `layers` to `steps`, and give several seeds.

# %%
from pathlib import Path

import dape

Path("book.txt").write_text(" ".join(f"chapter {n % 11} has {n % 7} pages and {n % 13} pictures." for n in range(4000)))

# %% [markdown]
# Any text file will do, also `.jsonl`, `.parquet`, compressed ones and folders. The end of a single text is held out for the test.

# %%
found = dape.compare(
    "book.txt",
    methods=("rope", "alibi", "dape-alibi"),
    lengths=(32, 64, 128),
    windows=16,
    layers=2,
    width=32,
    heads=4,
    train_length=32,
    batch=8,
    steps=60,
    out="runs/compare",
)
print(found.table())

# %% [markdown]
# Perplexity by length: the first column is what the models were trained on. `found.rows` has every measurement, and
# `found.summary()` says in words what is significant, which needs several seeds.

# %%
found.figure()

# %% [markdown]
# The same in the terminal, with a live table: `dape compare --data book.txt --methods rope alibi dape-alibi --seeds 3`. Once more, with
# another seed: only what is new is trained.

# %%
more = dape.compare(
    "book.txt",
    methods=("rope", "alibi", "dape-alibi"),
    seeds=2,
    lengths=(32, 64, 128),
    windows=16,
    layers=2,
    width=32,
    heads=4,
    train_length=32,
    batch=8,
    steps=60,
    out="runs/compare",
)
print(len(found.rows), "measurements before,", len(more.rows), "now")
