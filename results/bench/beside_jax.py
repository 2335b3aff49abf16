"""Training steps of CHE beside those of the same model in JAX, in turns: what a noisy machine does, it does to both.

    python -m venv jax-venv && jax-venv/bin/pip install jax dm-haiku optax
    python results/bench/beside_jax.py --jax jax-venv/bin/python

The JAX program is written for this comparison, with the operations of the benchmark's original (haiku, optax;
randomised ALiBi; batch 128, 5 layers, width 256). Each program runs in a process of its own and takes one step when it
is told to.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

SHAPES = {"even_pairs 20": (20, 1), "even_pairs 40": (40, 1), "duplicate_string 20": (20, 40)}
BATCH, WIDTH, HEADS, LAYERS, DROP, POOL = 128, 256, 8, 5, 0.1, 2048


# JAX -----------------------------------------------------------------------------------------------------------------


def jax_step(inputs: int, outputs: int) -> Callable[[], None]:
    import haiku as hk
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    def bias(length):
        """One draw of distances for all rows, half a step nearer on one side."""
        drawn = jax.random.choice(hk.next_rng_key(), jnp.arange(1, POOL), shape=(length - 1,), replace=False)
        far = jnp.sort(drawn).astype(jnp.float32)
        table = jnp.concatenate([far[::-1] - 0.5, jnp.zeros(1), far])
        place = jnp.arange(length)
        slopes = 2.0 ** (-8.0 / HEADS * np.arange(1, HEADS + 1))
        return -table[place[None] - place[:, None] + length - 1][None] * slopes[:, None, None]

    def attend(x):
        q, k, v = (hk.Linear(WIDTH, with_bias=False)(x).reshape(*x.shape[:2], HEADS, -1) for _ in range(3))
        logits = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(WIDTH // HEADS) + bias(x.shape[1])
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(logits), v).reshape(x.shape)
        return hk.Linear(WIDTH, with_bias=False)(y)

    def add(x, y):
        y = hk.dropout(hk.next_rng_key(), DROP, y)
        return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x + y)

    def model(tokens):
        x = hk.Linear(WIDTH, with_bias=False)(tokens) * np.sqrt(WIDTH)
        for _ in range(LAYERS):
            x = add(x, attend(x))
            x = add(x, hk.Linear(WIDTH)(jax.nn.relu(hk.Linear(4 * WIDTH)(x))))
        return hk.Linear(2)(x)[:, -outputs:]

    random = np.random.default_rng(0)
    symbols = np.full((BATCH, inputs + outputs), 2)
    symbols[:, :inputs] = random.integers(0, 2, (BATCH, inputs))
    tokens, targets = jax.nn.one_hot(symbols, 3), jax.nn.one_hot(random.integers(0, 2, (BATCH, outputs)), 2)
    net, optimizer = hk.transform(model), optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-4))
    weights = net.init(jax.random.PRNGKey(0), tokens)

    def loss(weights, key):
        logits = net.apply(weights, key, tokens)
        right = jnp.argmax(logits, -1) == jnp.argmax(targets, -1)
        return jnp.mean(jnp.sum(-targets * jax.nn.log_softmax(logits), -1)), jnp.mean(right)

    @jax.jit
    def update(weights, state, key):
        found, gradients = jax.value_and_grad(loss, has_aux=True)(weights, key)
        changes, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, changes), state, found

    now = [weights, optimizer.init(weights), 0]

    def step() -> None:
        weights, state, found = update(now[0], now[1], jax.random.PRNGKey(now[2]))
        jax.block_until_ready((weights, found))
        now[:] = weights, state, now[2] + 1

    return step


# dape ----------------------------------------------------------------------------------------------------------------


def dape_step(inputs: int, outputs: int) -> Callable[[], None]:
    import numpy as np
    import torch

    from dape.tasks.chomsky.config import CheConfig, Subject
    from dape.training.chomsky import ChomskyTrainer

    task = "even_pairs" if outputs == 1 else "duplicate_string"
    subject = Subject(task=task, method="randomized-alibi", seed=0, lr=1e-4)
    trainer = ChomskyTrainer(Path(tempfile.mkdtemp()), CheConfig(), subject, torch.device("cpu"))
    learned = trainer.task
    sample = learned.examples.sample(np.random.default_rng(0), BATCH, inputs)
    return lambda: trainer.updater.take(learned.batch_of(trainer.model, sample, step=0), step=0) and None


# Turns ---------------------------------------------------------------------------------------------------------------


def serve(make: Callable[[int, int], Callable[[], None]], shape: tuple[int, int]) -> None:
    """A line in, a step, its seconds out."""
    step = make(*shape)
    for _ in range(3):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        print(time.perf_counter() - begin, flush=True)


def compare(name: str, pythons: dict[str, str], rounds: int) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = {who: subprocess.Popen([python, __file__, "--serve", who, name], **pipes) for who, python in pythons.items()}
    for process in both.values():
        while (line := process.stdout.readline().strip()) != "ready":
            if not line and process.poll() is not None:
                sys.exit(f"{process.args} ended with {process.returncode}")
    seconds: dict[str, list[float]] = {who: [] for who in both}
    for _ in range(rounds):
        for who, process in both.items():
            process.stdin.write("\n")
            process.stdin.flush()
            seconds[who].append(float(process.stdout.readline()))
    for process in both.values():
        process.stdin.close()
        process.wait()
    jax, ours = (seconds[who] for who in ("jax", "dape"))
    times = ", ".join(
        f"{who} {1e3 * median(found):.0f} ms (quarter {1e3 * quantiles(found)[0]:.0f}, least {1e3 * min(found):.0f})"
        for who, found in seconds.items()
    )
    ratios = median(a / b for a, b in zip(jax, ours, strict=True)), quantiles(jax)[0] / quantiles(ours)[0]
    ratios = (*ratios, min(jax) / min(ours))
    print(f"{name}: {times}; ratio {ratios[0]:.2f} (first quarters {ratios[1]:.2f}, least {ratios[2]:.2f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jax", default=sys.executable, help="a Python that has jax, dm-haiku and optax")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve({"jax": jax_step, "dape": dape_step}[given.serve[0]], SHAPES[given.serve[1]])
        return
    for name in SHAPES:
        compare(name, {"jax": given.jax, "dape": sys.executable}, given.rounds)


if __name__ == "__main__":
    main()
