"""The README.md of an exported model, written from what its run has measured."""

from pathlib import Path

from dape.positional.names import parse
from dape.results.records import Row, read_rows
from dape.training.checkpoint import Description
from dape.training.run import read_metrics

ROWS = "rows.jsonl"

_CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
tags: [dape, length-extrapolation, {encoding}]
---

# {name}

A language model with the positional encoding `{encoding}`{options}, trained on sequences of {train_length} tokens.
Written by `dape export`, dape {version}.

| | |
|---|---|
{facts}

## Perplexity

{perplexity}

## Use

```python
import dape.hf  # makes the model known to transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

folder = "{name}"  # where this file is
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
prompt = tokenizer("def ", return_tensors="pt")
{generate}
print(tokenizer.decode(text[0]))
```

Without that import: `from_pretrained(folder, trust_remote_code=True)`, and so in programs that know nothing of us
(`pipeline`, `lm_eval --model hf`). Either way the package dape with its extra `hf` computes the model; from a clone:
`pip install '/path/to/dape[hf]'`.

`max_position_embeddings` in config.json is the training length, and a hint only: {reach}
"""


def card(name: str, description: Description, parameters: int, run: Path, version: str) -> str:
    model = description.model
    options = ", ".join(f"{key}={value}" for key, value in model.encoding_options.items())
    return _CARD.format(
        name=name,
        encoding=model.encoding,
        options=f" ({options})" if options else "",
        train_length=model.train_length,
        version=version,
        facts="\n".join(f"| {what} | {value} |" for what, value in _facts(description, parameters, run).items()),
        perplexity=_perplexity(description, run),
        generate=_generate(description),
        reach=_reach(model.encoding),
    )


def _facts(description: Description, parameters: int, run: Path) -> dict[str, str]:
    model, train, data = description.model, description.train, description.data
    seen = description.step * train.batch * model.train_length
    facts = {
        "shape": f"layers: {model.layers}, width: {model.width}, heads: {model.heads}, {parameters:,} parameters",
        "data": f"{data.get('name', 'unknown')} (hash {str(data.get('hash', 'unknown'))[:12]})",
        "tokenizer": f"{data.get('tokenizer', 'unknown')}, {model.vocabulary} ids",
        "training": f"{description.step} steps of {train.batch} sequences, {seen:,} tokens, seed {train.seed}",
        "optimizer": f"AdamW, learning rate {train.lr:g}, weight decay {train.weight_decay:g}, {train.precision}",
    }
    here = [line for line in read_metrics(run) if line.get("step") == description.step]
    losses = [line["validation_loss"] for line in here if line.get("validation_loss") is not None]
    return facts | ({"validation loss at the training length": f"{losses[-1]:.4f} nats"} if losses else {})


def _perplexity(description: Description, run: Path) -> str:
    rows = [r for r in _rows(run) if r.metric == "perplexity" and r.step in (None, description.step)]
    if not rows:
        return f"Not measured: `dape eval RUN --json RUN/{ROWS}` before `dape export` fills this in."
    lines = ["| length | perplexity | scored tokens | protocol | data |", "|---:|---:|---:|---|---|"]
    for row in sorted(rows, key=lambda r: (r.protocol, r.length)):
        scored = f"{row.protocol}, last {row.k}" if row.k else row.protocol
        lines.append(f"| {row.length} | {row.value:.4f} | {row.scored_tokens} | {scored} | {row.data_hash[:12]} |")
    return "\n".join(lines)


def _rows(run: Path) -> list[Row]:
    return read_rows(run / ROWS) if (run / ROWS).is_file() else []


def _generate(description: Description) -> str:
    call = "text = model.generate(**prompt, max_new_tokens=100)"
    if not parse(description.model.encoding).randomized:
        return call
    return f"with model.drawn(104):  # positions of prompt and new tokens, drawn at random once\n    {call}"


def _reach(encoding: str) -> str:
    if parse(encoding).inner == "learned":
        return "learned positions end with their table, longer texts are refused."
    return "no length is refused. How well the model does there, the table says."
