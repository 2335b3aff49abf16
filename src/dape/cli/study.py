"""``dape study adapters``: compare methods that let a rotary model read longer contexts."""

from dataclasses import dataclass, field

import tyro

from dape.actions.adapters import StudyOptions, study_adapters
from dape.cli.show import show
from dape.experiments.adapters.config import TREATMENTS, StudyConfig
from dape.experiments.executors import Where


@dataclass(frozen=True, kw_only=True)
class StudyAdapters(StudyOptions):
    """Compare adapters, interpolation and fine-tuning for rotary models on longer contexts.

    Trains small Llama models at a short length, applies each treatment to them with the same steps on the same text,
    and measures perplexity far beyond the training length; or, with --task recall, how many values they find by their
    keys. Treatments: {treatments}. Writes results.jsonl, table.md and figures into --out. Finished runs are kept: stop
    at any time and give the same command to continue.
    """

    config: tyro.conf.OmitArgPrefixes[StudyConfig] = field(default_factory=StudyConfig)
    where: tyro.conf.OmitArgPrefixes[Where] = field(default_factory=Where)


StudyAdapters.__doc__ = (StudyAdapters.__doc__ or "").replace("{treatments}", ", ".join(TREATMENTS))


def run(config: StudyAdapters) -> int:
    return show(study_adapters(config, executor=config.where.build(config.jobs)))
