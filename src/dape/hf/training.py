"""What the library's ``Trainer`` has to know of encodings."""

from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dape.positional.base import encodings_in


class ProjectPositions(TrainerCallback):
    """Puts constrained parameters (Kerple's r1 and r2) back into range after every optimizer step, of our models and
    of adapters, whatever is around them (peft): ``Trainer(..., callbacks=[ProjectPositions()])``."""

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        if model is None:
            return
        encodings = encodings_in(model)
        if not encodings:
            raise ValueError(
                f"ProjectPositions: {type(model).__name__} holds no positional encoding of dape; put one in with "
                "dape.hf.extend(model, ...), or leave the callback out"
            )
        for pe in encodings:
            pe.project_()
