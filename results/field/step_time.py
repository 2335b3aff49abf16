"""Processor time of a training step for each encoding of the comparison: one thread, median of 15 steps after 5 that
are left out. It does not count the time that other programs took."""

import json
import statistics
import sys
import time

import torch

from dape.actions.compare import FIELD
from dape.models.config import DecoderConfig
from dape.models.decoder import DecoderLM

torch.set_num_threads(1)
found = {}
for name in FIELD:
    torch.manual_seed(0)
    model = DecoderLM(
        DecoderConfig(layers=2, width=64, heads=4, vocabulary=257, encoding=name, train_length=64)
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    times = []
    for _ in range(20):
        tokens = torch.randint(257, (16, 65))
        begin = time.process_time()
        loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.process_time() - begin)
    found[name] = round(1e3 * statistics.median(times[5:]), 1)
    print(name, found[name], file=sys.stderr)
json.dump(found, sys.stdout, indent=1)
