"""The commands of ``dape``, one entry each.

A command is a dataclass and a function. The fields of the dataclass become flags and their docstrings the help of the
flags; its own docstring is the help of the command, the first line its summary. The function returns the exit code; it
checks the values (``__post_init__`` does not) and raises :class:`dape.errors.UsageError` for invalid ones.
Import torch in functions only: ``dape --help`` imports the modules of all commands.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dape.bench.attention import AttentionBench
from dape.bench.che import CheBench
from dape.bench.che import run as bench_che
from dape.bench.compare import CompareBench
from dape.bench.compare import run as bench_compare
from dape.bench.data import DataBench
from dape.bench.data import run as bench_data
from dape.bench.decode import DecodeBench
from dape.bench.decode import run as bench_decode
from dape.bench.kernels import KernelsBench
from dape.bench.kernels import run as bench_kernels
from dape.bench.memory_by_length import MemoryBench
from dape.bench.memory_by_length import run as bench_memory
from dape.bench.model import ModelBench
from dape.bench.model import run as bench_model
from dape.bench.processes import ProcessesBench
from dape.bench.processes import run as bench_processes
from dape.bench.train import TrainBench
from dape.bench.train import run as bench_train
from dape.cli import (
    che,
    checkpoint,
    compare,
    doctor,
    draw,
    evaluate,
    evidence,
    export,
    extend,
    generate,
    harness,
    mechanism,
    probe,
    report,
    reproduce,
    runs,
    study,
    train,
    verify,
    visualize,
)
from dape.cli.bench import bench_attention
from dape.cli.list_encodings import ListEncodings, list_encodings
from dape.cli.prepare import Prepare, prepare


def same_command(_: object) -> str:
    return "the same command continues where this one stopped"


@dataclass(frozen=True)
class Command:
    name: str
    """The words after ``dape``; the first of two is a group."""
    config: type
    run: Callable[[Any], int]
    examples: Mapping[str, str]
    """Arguments, and what they do. The help begins with the first three."""
    expand: Callable[[list[str]], list[str]] | None = None
    """Puts the flags of presets and settings files before the typed ones."""
    continues: Callable[[Any], str] = lambda _: ""
    """How to continue after an interruption, for the given settings. Empty: nothing is kept."""

    @property
    def words(self) -> list[str]:
        return self.name.split()

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.config) or "").partition("\n")[0]


GROUPS = {
    "bench": "Measure speed and memory on this machine:",
    "checkpoint": "Convert checkpoints.",
    "runs": "Look at existing runs:",
    "study": "Experiments beyond the paper.",
}

COMMANDS = [
    Command(
        "list",
        ListEncodings,
        list_encodings,
        examples={
            "": "all base encodings, and DAPE on each that supports it",
            "kerple": "names that contain kerple, such as dape-v2-kerple",
            "bias": "encodings that use the hook called bias",
            "--all --json": "everything, for another program",
        },
    ),
    Command(
        "draw",
        draw.Draw,
        draw.run,
        examples={
            "alibi kerple dape-kerple": "three encodings side by side, into encodings.png",
            "rope yarn randomized-rope --length 512 --out rotations.svg": "rotations at greater distances",
            "dape-fire --options hidden=16 --seed 3 --out fire.png": "a smaller f, other initial weights",
        },
    ),
    Command(
        "doctor",
        doctor.Doctor,
        doctor.run,
        examples={
            "": "versions, extras, what `auto` takes, and a self-test",
            "--out doctor.txt": "the same as a file, to send with a bug report",
            "--gpu": "check the Triton kernels on this GPU, into dape-doctor.txt and .json",
        },
    ),
    Command(
        "verify",
        verify.Verify,
        verify.run,
        examples={
            "my_package.kerple:Kerple --as kerple": "a class of your own; exit code 1 if its numbers differ",
            "rope.py:attention --as rope --kind attention": "a function (q, k, v)",
            "bias.py:Log --as kerple --names p=r1 a=r2": "parameters with other names",
            "t5.py:bias --as t5 --options bias_scale=one --cases short long": "another convention, two cases only",
        },
    ),
    Command(
        "vectors",
        verify.Vectors,
        verify.run_vectors,
        examples={
            "": "the files and their SHA-256",
            "dape-kerple": "conventions, cases and known mistakes of one encoding",
            "--out vectors": "compute all of them again",
            "--check": "compute all of them again and compare",
        },
    ),
    Command(
        "compare",
        compare.Compare,
        compare.run,
        expand=compare.expand,
        continues=compare.continues,
        examples={
            "": "the demo: seven encodings, trained at 64 tokens, tested up to 2048",
            "--data book.txt --methods alibi dape-alibi --seeds 3": "on your own text, with tests of significance",
            "--methods nope --out runs/compare": "add an encoding to an existing comparison",
            "--resume --out runs/compare": "continue a comparison that was stopped",
        },
    ),
    Command(
        "prepare",
        Prepare,
        prepare,
        continues=same_command,
        examples={
            "book.txt --out book": "one text; its end is held out",
            "papers/ notes.jsonl.zst --tokenizer bpe:8192 --out papers": "documents, and a tokenizer learned from them",
            "stdlib --out stdlib": "the Python standard library, no download",
            "train.txt --validation held-out.txt --out data": "a held-out text of your choice",
            "hf:allenai/c4/realnewslike --out c4": "a data set of the Hugging Face hub (extra `hub`)",
            "--check book": "compare a prepared folder with its checksums",
        },
    ),
    Command(
        "train",
        train.Train,
        train.run,
        expand=train.expand,
        continues=train.continues,
        examples={
            "": "the tiny model with dape-kerple on the default text, into runs/",
            "--encoding rope --seed 1 --steps 1000": "another encoding, seed and number of steps",
            "--resume --out runs/dape-kerple-64-seed0": "continue a run that was stopped",
            "--preset 125m --data arxiv --precision bf16 --accumulate 8": "the paper's model on your own text",
            "--processes 2 --parallel fsdp": "two processes that share batch and model",
        },
    ),
    Command(
        "checkpoint merge",
        checkpoint.MergeCheckpoint,
        checkpoint.run,
        examples={"runs/dape-kerple-64-seed0": "merge the shards that `dape train --parallel fsdp` has written"},
    ),
    Command(
        "eval",
        evaluate.Evaluate,
        evaluate.run,
        examples={
            "runs/dape-kerple-64-seed0 --lengths 64 128 256 512 1024 2048 --last-k 64": "perplexity against length",
            "runs/dape-kerple-64-seed0 --mode same_document --json rows.jsonl": "within documents; keep the rows",
            "runs/dape-kerple-64-seed0 --protocol per_position --lengths 1024": "nats by position",
            "runs/dape-kerple-64-seed0 --lengths 32768 --processes 4": "windows shared: less memory per process",
        },
    ),
    Command(
        "generate",
        generate.Generate,
        generate.run,
        examples={
            "runs/dape-kerple-64-seed0 --prompt 'class Queue' --tokens 500": "far beyond the training length of 64",
            "runs/dape-kerple-64-seed0 --prompt 'import ' --temperature 0": "the most likely token each time",
        },
    ),
    Command(
        "export",
        export.Export,
        export.run_export,
        examples={"runs/dape-kerple-64-seed0 --out model": "for AutoModelForCausalLM.from_pretrained('model')"},
    ),
    Command(
        "import",
        export.Import,
        export.run_import,
        examples={
            "model --out runs/imported": "next: `dape eval runs/imported --data TEXT`, `dape generate runs/imported`"
        },
    ),
    Command(
        "runs list",
        runs.ListRuns,
        runs.list_runs,
        examples={
            "": "everything below ./runs",
            "runs/compare": "the runs of one comparison",
            "--json": "JSON for another program",
        },
    ),
    Command(
        "runs show",
        runs.ShowRun,
        runs.show_run,
        examples={"runs/dape-kerple-64-seed0": "settings, curves of loss and perplexity, sizes"},
    ),
    Command(
        "runs compare",
        runs.CompareRuns,
        runs.compare_runs,
        examples={
            "runs/compare/runs/alibi-seed0 runs/compare/runs/dape-alibi-seed0": "different settings, and the results"
        },
    ),
    Command(
        "runs clean",
        runs.CleanRuns,
        runs.clean_runs,
        examples={
            "": "remove older checkpoints of all runs below ./runs, after asking",
            "runs/compare --weights --yes": "also remove the models of finished runs of a comparison",
            "--dry-run": "only show what would be removed",
        },
    ),
    Command(
        "visualize",
        visualize.Visualize,
        visualize.run,
        examples={
            "runs/dape-kerple-64-seed0": "the paper's bias maps at 4 training lengths, into the run's folder",
            "runs/dape-kerple-64-seed0 --length 1024 --layers 1 4 --samples 8 --window 0": "two layers, no images",
        },
    ),
    Command(
        "mechanism",
        mechanism.Mechanism,
        mechanism.run,
        examples={
            "runs/dape-kerple-64-seed0": "the cost of swapped and frozen content; where f depends on the text",
            "full --against bias-only --length 512 --json mechanism.json": "also: which tokens gain over another model",
        },
    ),
    Command(
        "probe",
        probe.Probe,
        probe.run,
        continues=probe.continues,
        examples={
            "runs/dape-kerple-64-seed0 --lengths 256 1024 --tasks passkey": "find a pass key in held-out text",
            "--train": "train small models to recall pairs, test them up to 32 times their training length",
            "--train --methods rope dape-alibi --seeds 3 --out runs/recall": "other encodings, several seeds",
            "--train --tests core": "four generated tests of one ability each, with five encodings",
            "--train --tests ruler --lengths 64 512 8192 --methods kerple dape-kerple": "a small RULER",
        },
    ),
    Command(
        "che",
        che.Che,
        che.run,
        continues=same_command,
        examples={
            "--budget 5 --tasks even_pairs,missing_duplicate --methods randomized-alibi,dape-alibi": "five minutes",
            "--scale cpu --steps 5000 --lr 1e-3 --stride 20 --tasks reverse --methods paper": "smaller than the paper",
            "--tasks paper --methods paper --seeds 3 --steps 200000 --lr 1e-4,3e-4,5e-4": "the paper's table: days",
            "--show stack_manipulation": "examples of a task",
        },
    ),
    Command(
        "extend",
        extend.Extend,
        extend.run,
        continues=same_command,
        examples={
            "llama-folder --data notes.txt --train-length 512": "an adapter from your text, measured before and after",
            "llama-folder --rope keep --options variant=bias_map": "f(B), a static bias; works best with --rope keep",
            "llama-folder --steps 1000 --length 4096 --out runs/long": "more steps, on longer sequences",
        },
    ),
    Command(
        "harness",
        harness.Harness,
        harness.run,
        examples={
            "model --choices questions.jsonl": "accuracy on multiple-choice questions of your own",
            "model --tests ruler --symbols 64 256 --lengths 2048": "generated questions on needles, variables, words",
            "model --text book.txt --lengths 512 2048 --last-k 256": "the last 256 tokens, as in `dape eval`",
            "llama-folder --adapter runs/longer/adapter --text book.txt --lengths 4096": "a model with its adapter",
            "model --include my-tasks --tasks my_task --lengths 2048 --out runs/harness": "tasks in lm-eval's YAML",
        },
    ),
    Command(
        "study adapters",
        study.StudyAdapters,
        study.run,
        continues=same_command,
        examples={
            "": "seven treatments, three seeds, three lengths: one to two hours on two cores",
            "--treatments dape-kerple map-kerple --tuned-at 256 --seeds 1": "two treatments, one seed, one length",
            "--data sotu --width 256 --heads 8 --layers 6": "prose instead of code, a larger model",
        },
    ),
    Command(
        "reproduce",
        reproduce.Reproduce,
        reproduce.run,
        continues=same_command,
        examples={
            "list": "every experiment of the paper",
            "bias-ablation": "a quick check that it runs: two minutes",
            "seeds --scale cpu": "error bars and significance of eight encodings, about an hour on two cores",
            "baselines --scale paper --data arxiv --dry-run": "only show the cost",
        },
    ),
    Command(
        "evidence",
        evidence.ShowEvidence,
        evidence.run,
        examples={
            "runs/reproduce": "the verdict on each registered hypothesis",
            "results/evidence --out page": "also as Markdown, with a figure",
        },
    ),
    Command(
        "report",
        report.Report,
        report.run,
        examples={
            "runs/compare": "one comparison, into runs/compare/report.html",
            "runs/compare --live": "in the browser while `dape compare` is running",
            "results --out report.html": "all results of a folder in one page",
        },
    ),
    Command(
        "bench attention",
        AttentionBench,
        bench_attention,
        examples={
            "--quick": "a first impression",
            "--encodings all --lengths 2048": "the whole catalogue in one table; ten minutes or more",
            "--lengths 2048 4096 --impls fused appendix sdpa": "beside the paper's listing and attention without DAPE",
            "--encoding dape-fire --json fire.json": "another encoding; keep the results",
            "--lengths 80 --batch 128 --no-causal": "many short sequences, attention in both directions",
        },
    ),
    Command(
        "bench train",
        TrainBench,
        bench_train,
        examples={
            "": "the tiny model at 64 and 128 tokens",
            "--preset 350m-slice --encodings kerple dape-kerple": "what DAPE costs in a larger model",
            "--encodings plain-gpt rope --threads 1 --json rope.json": "this package beside PyTorch's own attention",
        },
    ),
    Command(
        "bench model",
        ModelBench,
        bench_model,
        examples={
            "--quick": "a first impression: a few layers of the 350M model",
            "--json time-cost.json": "the paper's table: six encodings, three sizes, an hour or more on two cores",
            "--sizes 350m --layers 1 6 --rounds 9": "one size, more precise: more layers and more rounds",
            "--sizes 6.7b --minutes 20 --precision bf16 --encodings kerple dape-kerple": "as many rounds as fit",
        },
    ),
    Command(
        "bench decode",
        DecodeBench,
        bench_decode,
        examples={
            "": "six encodings against 1024 and 8192 keys",
            "--lengths 32768 --encodings dape-kerple --threads 1": "one encoding, a longer cache, one core",
        },
    ),
    Command(
        "bench memory",
        MemoryBench,
        bench_memory,
        examples={
            "": "one encoding for every kind of kernel at 1024 to 8192 tokens, forward and backward",
            "--encodings dape-kerple --lengths 32768 --no-backward": "one encoding, longer texts",
        },
    ),
    Command(
        "bench compare",
        CompareBench,
        bench_compare,
        examples={
            "main": "this commit against main, timed in turns",
            "HEAD~3 HEAD --encodings dape-kerple --passes forward --turns 8": "one encoding, more precise",
        },
    ),
    Command(
        "bench data",
        DataBench,
        bench_data,
        examples={
            "": "text as bytes, and as BPE beside the library tokenizers",
            "--bytes-mb 1000 --bpe-mb 32 --json data.json": "more text; keep the results",
        },
    ),
    Command(
        "bench processes",
        ProcessesBench,
        bench_processes,
        examples={
            "": "training in 2 and 4 processes beside one process with threads",
            "--counts 2 --preset tiny --repeats 20": "a smaller model",
        },
    ),
    Command(
        "bench kernels",
        KernelsBench,
        bench_kernels,
        examples={
            "": "the paper's shape, compiled for A100, H100 and MI300",
            "--targets sm_90 --dtype bf16 --heads 16 --head-dim 128": "one GPU, another shape",
        },
    ),
    Command(
        "bench che",
        CheBench,
        bench_che,
        examples={
            "--quick": "three tasks at one length",
            "--threads 2 --json che.json": "all tasks at the paper's shape; keep the results",
            "--width 64 --methods randomized-alibi dape-fire": "the small model of `dape che --scale cpu`",
        },
    ),
]
