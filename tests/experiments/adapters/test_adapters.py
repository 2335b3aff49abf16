"""``dape study adapters``: its plan, each treatment of a tiny model, and the command."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.texts import random_words

transformers = pytest.importorskip("transformers")

from dape.cli import main  # noqa: E402
from dape.errors import UsageError  # noqa: E402
from dape.experiments.adapters import tasks  # noqa: E402
from dape.experiments.adapters.config import TREATMENTS, StudyConfig, find  # noqa: E402
from dape.experiments.adapters.job import AdapterJob, new_model, treated  # noqa: E402
from dape.experiments.adapters.plan import Run, Study  # noqa: E402
from dape.experiments.adapters.tasks import RecallTask  # noqa: E402
from dape.hf.hosts import scale_rotation  # noqa: E402
from dape.hf.tune import Tuning  # noqa: E402
from dape.report.study import comparison  # noqa: E402
from dape.results.records import Row, read_rows  # noqa: E402
from dape.tasks import answers  # noqa: E402
from dape.tasks.recall.sequences import Sequences  # noqa: E402

TINY = StudyConfig(
    layers=1, width=16, heads=2, train_length=8, base_steps=2, base_tokens=32, steps=2, tokens=32, reach=4, windows=3
)
FLAGS = (
    "--layers 1 --width 16 --heads 2 --train-length 8 --base-steps 2 --base-tokens 32 --steps 2 --tokens 32 --reach 4"
)


def job(**more) -> AdapterJob:
    given = {"treatment": "base", "length": 0, "seed": 0, "base": "", "data": "", "data_hash": "", "device": "cpu"}
    return AdapterJob(config=TINY, threads=1, **{**given, **more})


def study(out: Path, **more) -> Study:
    given = {"treatments": ("yarn", "dape-kerple"), "lengths": (8, 16), "seeds": 2, "data": "/data"}
    return Study(out=out, config=TINY, data_name="text", data_hash="abc", **{**given, **more})


@pytest.fixture
def base(tmp_path) -> Path:
    torch.manual_seed(0)
    new_model(job(), SimpleNamespace(vocabulary=99, begin=lambda model: None)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# The plan ------------------------------------------------------------------------------------------------------------


def test_runs(tmp_path):
    made = study(tmp_path)
    names = [run.name for run in made.runs()]
    assert names[:2] == ["base-seed0", "base-seed1"] == [r.name for r in replace(made, bases_only=True).runs()]
    assert names[2:5] == ["yarn-seed0", "dape-kerple-at8-seed0", "dape-kerple-at16-seed0"] and len(names) == 8
    given = made.job(Run("dape-kerple", 16, 1), threads=2)
    assert given.base.endswith("runs/base-seed1/model") and given.threads == 2
    assert made.effort(Run("yarn", 0, 0)).steps == 0 and set(made.effort(Run("base", 0, 0)).tests) == {8, 16, 32}


def test_a_folder_holds_one_study(tmp_path):
    study(tmp_path / "out").begin()
    study(tmp_path / "out", treatments=("kerple",), seeds=3).begin()
    with pytest.raises(UsageError, match="steps was 2, now 5"):
        replace(study(tmp_path / "out"), config=replace(TINY, steps=5)).begin()


def test_wrong_names():
    with pytest.raises(UsageError, match="Did you mean 'map-kerple'"):
        find("map-kerpel")
    with pytest.raises(UsageError, match="`width` 16 cannot be divided into `heads` 3"):
        replace(TINY, heads=3).check()
    with pytest.raises(UsageError, match="`lr` must be positive"):
        replace(TINY, lr=0.0).check()


# Treatments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [t.name for t in TREATMENTS.values() if not t.scaling and t.rope == "keep" and t.trained != "nothing"]
)
def test_nothing_has_changed_before_training(name, base):
    tokens = torch.randint(0, 99, (2, 20), generator=torch.Generator().manual_seed(0))
    before = transformers.LlamaForCausalLM.from_pretrained(base)(tokens).logits
    after = treated(job(treatment=name, length=16, base=str(base)))
    torch.testing.assert_close(after(tokens).logits, before, atol=1e-5, rtol=1e-5)
    count = sum(p.numel() for p in after.parameters() if p.requires_grad)
    assert (count == after.num_parameters()) == (TREATMENTS[name].trained == "all")


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_is_that_of_the_library(kind, base):
    """As if the model had been loaded with it; by 1 it is none."""
    tokens = torch.randint(0, 99, (2, 30), generator=torch.Generator().manual_seed(0))
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    plain = model(tokens).logits
    scale_rotation(model, kind, 4, 8)
    scaled = model(tokens).logits
    config = transformers.LlamaConfig.from_pretrained(base)
    config.rope_parameters = {
        "rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 8
    }  # fmt: skip
    expected = transformers.LlamaForCausalLM.from_pretrained(base, config=config)(tokens).logits
    torch.testing.assert_close(scaled, expected)
    assert (scaled - plain).abs().max() > 1e-5
    scale_rotation(model, kind, 1, 8)
    torch.testing.assert_close(model(tokens).logits, plain)


@pytest.mark.parametrize("name", ["dape-kerple-yarn", "dape-kerple-no-rope", "yarn-tuned"])
def test_a_study_of_the_own_length_alone_slows_nothing(name, base):
    tokens = torch.randint(0, 99, (2, 8), generator=torch.Generator().manual_seed(0))
    plain = transformers.LlamaForCausalLM.from_pretrained(base)(tokens).logits
    model = treated(replace(job(treatment=name, base=str(base)), config=replace(TINY, reach=1)))
    same = torch.allclose(model(tokens).logits, plain, atol=1e-5)
    assert same == (name != "dape-kerple-no-rope")


@pytest.mark.parametrize("name", ["rerope", "self-extend"])
def test_two_rotations_are_the_model_within_the_window_and_another_beyond(name, base):
    tokens = torch.randint(0, 99, (2, 30), generator=torch.Generator().manual_seed(0))
    model, plain = treated(job(treatment=name, base=str(base))), transformers.LlamaForCausalLM.from_pretrained(base)
    torch.testing.assert_close(model(tokens[:, :4]).logits, plain(tokens[:, :4]).logits, atol=1e-5, rtol=1e-5)
    assert (model(tokens).logits[:, -1] - plain(tokens).logits[:, -1]).abs().max() > 1e-5
    assert not any(p.requires_grad for p in model.parameters())


def test_drope_is_the_model_without_its_rotation(base):
    """One layer then sees a set of tokens: the order of those before the last does not matter."""
    tokens = torch.randint(0, 99, (2, 8), generator=torch.Generator().manual_seed(0))
    swapped = tokens[:, [0, 5, 2, 3, 4, 1, 6, 7]]
    model, plain = treated(job(treatment="drope", base=str(base))), transformers.LlamaForCausalLM.from_pretrained(base)
    torch.testing.assert_close(model(tokens).logits[:, -1], model(swapped).logits[:, -1], atol=1e-6, rtol=1e-5)
    assert (plain(tokens).logits[:, -1] - plain(swapped).logits[:, -1]).abs().max() > 1e-5
    assert all(p.requires_grad for p in model.parameters())


# The command ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(here, tmp_path, monkeypatch) -> list[str]:
    """Runs take place in this process and in a folder of its own; their names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "words.txt").write_text(random_words(300))
    return here


def command(*argv: str, expect: int = 0) -> None:
    flags = [*FLAGS.split(), "--windows", "3", "--data", "words.txt", "--out", "out", "--seeds", "1"]
    assert main(["study", "adapters", *flags, *argv]) == expect


def test_from_text_to_table(here):
    names = ["yarn", "dape-kerple", "map-kerple", "kerple", "fine-tuned", "dape-kerple-no-rope", "yarn-tuned", "drope"]
    names += ["rerope", "self-extend"]
    command("--treatments", *names, "--tuned-at", "16")
    assert here[0] == "base-seed0" and len(here) == 1 + len(names)
    rows = read_rows(Path("out/results.jsonl"))
    assert {row.length for row in rows} == {8, 16, 32} and len(rows) == 3 * len(here)
    by_label = {row.label: row for row in rows if row.length == 32}
    assert set(by_label) == {"rope", "yarn", *names[-2:], *(f"{name} (tuned at 16)" for name in names[1:-2])}
    assert len({row.value for row in by_label.values()}) == len(by_label)
    assert by_label["dape-kerple (tuned at 16)"].extra["trained"] == 230 and by_label["yarn"].extra["trained"] == 0
    assert "dape-kerple (tuned at 16)" in Path("out/table.md").read_text()
    count = len(here)
    command("--treatments", *names, "--tuned-at", "16")
    assert len(here) == count
    command("--treatments", "dape-nope", "--tuned-at", "8")
    assert here[count:] == ["dape-nope-at8-seed0"]
    table = Path("out/table.md").read_text()  # of all that is in the folder
    assert "dape-nope (tuned at 8)" in table and "yarn-tuned (tuned at 16)" in table


def test_untrained_scaling_changes_nothing_at_the_training_length(here):
    command("--treatments", "pi", "yarn")
    values = {(row.label, row.length): row.value for row in read_rows(Path("out/results.jsonl"))}
    assert values["pi", 8] == values["yarn", 8] == values["rope", 8]
    assert values["pi", 32] != values["rope", 32] != values["yarn", 32]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("--treatments yarm", "Did you mean 'yarn'"),
        ("--seeds 0", "--seeds must be at least 1"),
        ("--tuned-at 1", "--tuned-at must be at least 2"),
        ("--width 17", "cannot be divided"),
        ("--task recall", "--train-length 8 is too short for 8 pairs"),
    ],
)
def test_wrong_arguments(argv, words, here, capsys):
    command(*argv.split(), expect=2)
    assert words in capsys.readouterr().err and not Path("out").exists()


# Recall --------------------------------------------------------------------------------------------------------------


RECALL = "--task recall --train-length 25 --pairs 5 --reach 2 --base-steps 3 --seeds 2 --tuned-at 50"


def test_recall_from_pairs_to_table(here, capsys):
    """No text is needed; accuracy at every length, whole and by depth; two seeds make a test of the difference."""
    command(*RECALL.split(), "--treatments", "yarn", "dape-kerple", "map-kerple", "--data", "nowhere.txt", expect=0)
    rows = read_rows(Path("out/results.jsonl"))
    assert {(row.protocol, row.metric, row.tokenizer) for row in rows} == {("mqar", "accuracy", "mqar:32")}
    whole = [row for row in rows if "depth" not in row.extra]
    assert len(whole) == 2 * 4 * 2 and {row.length for row in rows} == {25, 50}
    text = Path("out/table.md").read_text()
    assert "Tuned at 50 tokens:" in text and "| map-kerple |" in text and "points of accuracy" in text
    assert Path("out/curves.png").stat().st_size > 10_000
    said = capsys.readouterr()
    assert "accuracy 25:" in said.err and said.out.count("has not learned the task: 0% at its own length, 25") == 2
    assert "base-seed1 has not learned" in text


def test_recall_lessons_are_for_answers_alone():
    """The loss is that of the values after the keys; a model that knows the task is not given short sequences first."""
    task = RecallTask(replace(TINY, task="recall", train_length=40, pairs=2))
    tuning = Tuning(length=40, steps=10, batch=2, seed=3)
    seen: list[Sequences] = []

    class Model(torch.nn.Module):
        """Certain of the answer at every key that is asked for, undecided elsewhere."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

    def logits(scorer: object, batch: Sequences, generator: object) -> torch.Tensor:
        seen.append(batch)
        return 50.0 * torch.nn.functional.one_hot(torch.from_numpy(batch.answers.copy()), task.vocabulary).float()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "Scorer", lambda model: model)
        patch.setattr(answers, "answer_logits", logits)
        for scratch in (True, False):
            learned = task.lessons(tuning, from_scratch=scratch)
            losses = [learned.batch(Model(), step).loss(0) for step in range(10)]
            assert max(loss.mean.item() for loss in losses) < 1e-6
            assert all(loss.right == loss.answers == loss.count > 0 for loss in losses)
    first, then = ([batch.tokens.shape[1] for batch in part] for part in (seen[:10], seen[10:]))
    assert max(first[:3]) < 30 and max(then[:10]) > 30 and first != then


# The comparison ------------------------------------------------------------------------------------------------------


def row(method: str, seed: int, value: float, metric: str = "perplexity", tuned: int = 16) -> Row:
    return Row(
        run=f"{method}-{seed}", method=method, seed=seed, train_length=8, length=32, metric=metric, value=value,
        scored_tokens=9, protocol="x", data_hash="y", extra={"tuned_at": tuned, "data": "text"},
    )  # fmt: skip


def test_comparison_by_hand():
    """Geometric mean of 4/5 and 9/10 is 0.8485; t of the two logarithms is 2.79, p = 0.219."""
    values = {"dape-kerple": (4.0, 9.0), "kerple": (5.0, 10.0)}
    rows = [row(method, seed, value) for method, both in values.items() for seed, value in enumerate(both)]
    assert "| kerple | -15.1 (p = 0.22) |" in comparison(rows)
    points = [replace(each, metric="accuracy", value=each.value / 10) for each in rows]
    assert "| kerple | -10.0 |" in comparison(points)  # the same difference twice: no test
    assert comparison([r for r in rows if r.method == "kerple"]) == ""
