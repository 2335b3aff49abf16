"""``dape evidence``: the hypotheses registered in docs/evidence.md, judged on the runs that exist."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from dape.errors import UsageError
from dape.files import check_writable_folder, write_text


@dataclass(frozen=True, kw_only=True)
class ShowEvidence:
    """Does content matter? Judge the hypotheses of docs/evidence.md by results of several sizes.

    Reads results.jsonl from folders that `dape reproduce bias-ablation --scale night` has written, each with another
    --tokens, --size or --data. Prints a verdict on each hypothesis of docs/evidence.md: yes, no, undecided or
    incomplete.
    """

    folder: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER]...")]
    """Folders of reproductions, or folders of such folders."""
    out: Path | None = None
    """Also write evidence.md and ladder.png/.svg into this folder."""


def run(config: ShowEvidence) -> int:
    from dape.experiments.reproduce.ladder import Ladder, as_markdown, paper_rows
    from dape.results.records import read_rows

    if absent := [folder for folder in config.folder if not folder.is_dir()]:
        raise UsageError(f"{absent[0]}: there is no such folder")
    files = [file for folder in config.folder for file in sorted(folder.glob("**/results.jsonl"))]
    if not files:
        raise UsageError(f"{', '.join(map(str, config.folder))}: no results.jsonl in there")
    if config.out is not None:
        check_writable_folder(config.out, "--out")
    rows = [row for file in files for row in read_rows(file)]
    if not Ladder(rows).rungs:
        raise UsageError(f"{files[0]}: no rows of bias-ablation that say how many tokens were seen")
    ladder = Ladder([*rows, *paper_rows()])
    text = as_markdown(ladder)
    print(text, end="")
    if config.out is not None:
        from dape.report.drawing import save_figure
        from dape.report.ladder import ladder_figure

        config.out.mkdir(parents=True, exist_ok=True)
        write_text(config.out / "evidence.md", text)
        written = save_figure(ladder_figure(ladder), config.out / "ladder")
        print(f"wrote evidence.md, {', '.join(path.name for path in written)} in {config.out}")
    return 0
