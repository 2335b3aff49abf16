"""``dape bench attention --figure``: the benchmark, and the figure, which a floor above it draws."""

from dape.bench.attention import AttentionBench, run
from dape.bench.records import Results
from dape.bench.runner import say


def bench_attention(config: AttentionBench) -> int:
    """Returns the exit code of :func:`dape.bench.attention.run`."""
    figure = config.figure
    if figure is None:
        return run(config)

    def draw(results: Results) -> None:
        from dape.report.bench import bench_figure
        from dape.report.drawing import save_figure

        save_figure(bench_figure(results), figure)
        say(f"wrote {figure}")

    return run(config, draw)
