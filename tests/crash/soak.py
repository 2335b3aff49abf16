"""A long training run whose memory, open files and threads must stay flat: `python -m tests.crash.soak --minutes 120`.

Trains a small model with validation and saving switched on, looks at the process every minute, writes DIR/soak.json and
DIR/soak.png, and stops it with SIGTERM. Exit code 1 if anything grows.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dape.provenance import machine

TRAIN = shlex.split("""
    --encoding dape-kerple --layers 2 --width 32 --heads 4 --train-length 32 --batch 4 --threads 1 --steps 100000000
    --log-every 50 --validate-every 100 --save-every 200 --keep 2
""")
WARM_UP = 0.15
"""Share of the time in which caches fill; it is drawn, not judged."""
LIMITS = {"rss_mb": 10.0, "descriptors": 1.0, "threads": 1.0}
"""Most that each may grow in an hour, by a straight line through what was seen."""

Sample = dict[str, float]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--every", type=float, default=60, help="seconds between two looks")
    parser.add_argument("--out", type=Path, default=Path("results/fuzz"))
    given, flat = parser.parse_args(), False
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dape-soak-") as folder:
        for samples in watched(Path(folder), given.minutes * 60, given.every):
            flat = report(samples, given.out)  # every time: nothing is lost if this is stopped
    return 0 if flat else 1


def report(samples: Sequence[Sample], out: Path) -> bool:
    """Write the figure and the numbers; True if nothing grows."""
    slopes = {name: slope(samples, name) for name in LIMITS}
    flat = {name: abs(slopes[name]) <= most for name, most in LIMITS.items()}
    facts = {"command": ["dape", "train", *TRAIN], **machine(), "per_hour": slopes, "limits": LIMITS, "flat": flat}
    (out / "soak.json").write_text(json.dumps({**facts, "samples": samples}, indent=1) + "\n")
    draw(samples, slopes, out / "soak.png")
    print({"minutes": round(samples[-1]["minute"]), "steps": samples[-1]["step"], "per_hour": slopes}, flush=True)
    return all(flat.values())


def watched(folder: Path, seconds: float, every: float) -> Iterator[list[Sample]]:
    """What the process had at every look so far, from its first checkpoint on. At the end it is asked to stop."""
    run, log, samples = folder / "run", folder / "log.txt", []
    with log.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-m", "dape", "train", *TRAIN, "--out", str(run)], stderr=output)
    try:
        while not last_step(run):
            alive(child, log)
            time.sleep(1)
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            alive(child, log)
            samples.append({"minute": (time.monotonic() - begin) / 60, "step": last_step(run), **look(child.pid)})
            if len(samples) > 2:
                yield samples
            time.sleep(every)
        child.send_signal(signal.SIGTERM)
        assert child.wait(600) == 128 + signal.SIGTERM, log.read_text()
    finally:
        child.kill()
        child.wait()


def alive(child: "subprocess.Popen[bytes]", log: Path) -> None:
    if child.poll() is not None:
        raise SystemExit(f"training ended early, exit code {child.returncode}: {log.read_text()[-2000:]}")


def last_step(run: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*")), default=0)


def look(pid: int) -> Sample:
    process = Path("/proc") / str(pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line)
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def slope(samples: Sequence[Sample], name: str) -> float:
    """Per hour, after the warm-up."""
    late = [s for s in samples if s["minute"] >= WARM_UP * samples[-1]["minute"]]
    hours = np.array([s["minute"] for s in late]) / 60
    return float(np.polyfit(hours, [s[name] for s in late], 1)[0])


def draw(samples: Sequence[Sample], slopes: dict[str, float], path: Path) -> None:
    from matplotlib.figure import Figure

    from dape.report.drawing import our_style, save_figure

    names = {"rss_mb": "resident memory, MB", "descriptors": "open files", "threads": "threads"}
    with our_style():
        figure = Figure(figsize=(6.5, 4.5), layout="constrained")
        rows = figure.subplots(3, 1, sharex=True)
        for axes, (name, title) in zip(rows, names.items(), strict=True):
            values = [s[name] for s in samples]
            axes.plot([s["minute"] for s in samples], values, linewidth=1.2)
            axes.axvspan(0, WARM_UP * samples[-1]["minute"], color="#eeeeee")
            axes.set_ylim(0, 1.2 * max(values))
            axes.set_title(f"{title} ({slopes[name]:+.2f} per hour)", loc="left")
        rows[-1].set_xlabel(f"minutes of training, {samples[-1]['step']:.0f} steps")
    save_figure(figure, path)


if __name__ == "__main__":
    sys.exit(main())
