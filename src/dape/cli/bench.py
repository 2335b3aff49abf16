"""``dape bench attention --figure``. The benchmark may not import ``dape.report``, so the figure is drawn here."""

from dape.bench.attention import AttentionBench, run
from dape.bench.records import Results
from dape.bench.runner import say


def bench_attention(config: AttentionBench) -> int:
    """Run the benchmark, draw its figure if asked for, and return the exit code."""
    figure = config.figure
    if figure is None:
        return run(config)

    def draw(results: Results) -> None:
        from dape.report.bench import bench_figure
        from dape.report.drawing import save_figure

        save_figure(bench_figure(results), figure)
        say(f"wrote {figure}")

    return run(config, draw)
