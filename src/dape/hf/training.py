"""What the library's ``Trainer`` has to know of encodings."""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dape.hf.adapter import project_
from dape.hf.model import DapeForCausalLM


class ProjectPositions(TrainerCallback):
    """Puts constrained parameters (Kerple's r1 and r2) back into range after every optimizer step, of our models and
    of adapters: ``Trainer(..., callbacks=[ProjectPositions()])``."""

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(model, DapeForCausalLM):
            model.project_()
        elif model is not None:
            project_(model)
