"""Settings from presets, files and flags: who wins, what is refused, and that no file runs code."""

import contextlib
import shlex
import time
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path

import pytest
import yaml

from dape.cli import app
from dape.cli.commands import COMMANDS
from dape.cli.fields import _read, write_key_values
from dape.cli.settings import as_flags, value_of, with_settings
from dape.cli.train import Train, expand
from dape.config.load import preset_names, read_preset, read_yaml
from dape.errors import UsageError
from dape.reading import parse_yaml
from dape.training.run import RunConfig


def parsed(*argv: str) -> Train:
    """What ``dape train`` would run with."""
    config = app._parse(next(each for each in COMMANDS if each.name == "train"), list(argv))
    assert isinstance(config, Train)
    return config


@pytest.fixture
def settings_file(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "settings.yaml"
        path.write_text(text)
        return str(path)

    return write


# Who wins ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [[], ["--seed=0"]])
def test_tiny_is_what_one_gets(argv):
    config = parsed(*argv)
    assert (config.model.layers, config.model.width, config.model.heads) == (4, 128, 8)
    assert (config.train.steps, config.train.batch, config.train.lr) == (400, 16, 2e-3)


def test_flags_over_files_over_presets(settings_file):
    path = settings_file("model: {layers: 5, width: 96}\ntrain: {steps: 7}\ndata: words\n")
    config = parsed("--preset", "small", "--config", path, "--width", "192", "--seed", "3")
    assert config.model.width == 192  # typed
    assert (config.model.layers, config.train.steps, config.data) == (5, 7, "words")  # in the file
    assert (config.model.heads, config.train.batch, config.train.validate_every) == (6, 64, 500)  # of the preset
    assert (config.train.beta2, config.train.seed) == (0.95, 3)  # by default; typed


@pytest.mark.parametrize("order", ["--width 64 --preset small --config {}", "--preset=small --config={} --width=64"])
def test_the_order_of_the_words_does_not_matter(settings_file, order):
    path = settings_file("model: {width: 96, heads: 3}")
    config = parsed(*shlex.split(order.format(path)))
    assert (config.model.width, config.model.heads, config.model.layers) == (64, 3, 6)


def test_the_last_of_two_counts():
    assert parsed("--preset", "small", "--preset", "tiny").model.layers == 4
    assert parsed("--steps", "3", "--steps", "4").train.steps == 4


def test_options_of_the_encoding(settings_file):
    path = settings_file("model: {encoding: dape-kerple, encoding_options: {hidden: 8, variant: concat}}")
    assert parsed("--config", path).model.encoding_options == {"hidden": 8, "variant": "concat"}
    typed = parsed("--config", path, "--encoding-options", "hidden=16", "variant=add_residual")
    assert typed.model.encoding_options == {"hidden": 16, "variant": "add_residual"}
    assert parsed("--config", path, "--encoding-options").model.encoding_options == {}


def test_switches(settings_file):
    path = settings_file("model: {checkpoint_activations: true, share_encoding: false}\ntrain: {decay_positions: no}")
    config = parsed("--config", path)
    assert config.model.checkpoint_activations is True and config.model.share_encoding is False
    assert config.train.decay_positions is False
    back = parsed("--config", path, "--no-checkpoint-activations", "--share-encoding", "None", "--decay-positions")
    assert back.model.checkpoint_activations is False and back.model.share_encoding is None
    assert back.train.decay_positions is True


def test_numbers_that_yaml_takes_for_text(settings_file):
    assert parsed("--config", settings_file("train: {lr: 6e-4, eps: 1.0e-9}")).train.lr == 6e-4


def test_settings_of_a_run_give_the_same_settings(tmp_path):
    config = parsed("--encoding", "dape-fire", "--encoding-options", "hidden=3", "--lr", "1e-5", "--seed", "4")
    RunConfig(model=config.model, train=config.train, data="words", threads=3).write(tmp_path)
    again = parsed("--config", str(tmp_path / "config.yaml"))
    assert (again.model, again.train, again.data, again.threads) == (config.model, config.train, "words", 3)


# Refused -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {layrs: 3}", "model.layrs is not a setting. Did you mean model.layers?"),
        ("train: {stpes: 3}", "train.stpes is not a setting. Did you mean train.steps?"),
        ("modle: {layers: 3}", "modle is not a setting. Did you mean model?"),
        ("layers: 3", "layers is not a setting"),
        ("train: {zzz: 3}", "train.zzz is not a setting. Known: accumulate, batch,"),
        ("3: 4", "3 is not a setting"),
        ("model: 3", "model must be a section with its own lines, not 3"),
        ("model:", "model must be a section"),
        ("train: [steps, 3]", "train must be a section"),
        ("- model", "must hold sections such as model: and train:"),
        ("just words", "must hold sections"),
        ("", "must hold sections"),
        ("model: {layers: 3", "is not YAML"),
        ("model: !!python/object/apply:os.getcwd []", "is not YAML"),
        ("model: {layers: !!python/name:os.system }", "is not YAML"),
        ("\t- x", "is not YAML"),
    ],
)
def test_files_that_are_refused(settings_file, text, words):
    path = settings_file(text)
    with pytest.raises(UsageError) as error:
        expand(["--config", path])
    assert words in str(error.value) and path in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    for path, words in ((tmp_path / "nowhere.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(UsageError, match=words):
            read_yaml(path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00model")
    with pytest.raises(UsageError, match="is not YAML"):
        read_yaml(tmp_path / "binary.yaml")


@pytest.mark.parametrize(
    ("text", "flag"),
    [
        ("train: {steps: 1.5}", "--steps"),
        ("train: {steps: many}", "--steps"),
        ("train: {lr: fast}", "--lr"),
        ("train: {precision: fp8}", "--precision"),
        ("model: {layers: null}", "--layers"),
        ("model: {encoding_options: 5}", "--encoding-options"),
        ("model: {encoding_options: [hidden]}", "--encoding-options"),
    ],
)
def test_values_of_the_wrong_type(settings_file, capsys, text, flag):
    with pytest.raises(SystemExit) as stop:
        parsed("--config", settings_file(text))
    assert stop.value.code == 2 and flag in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model: {layers: [1, 2]}", "model.layers must be a single value, not [1, 2]"),
        ("model: {encoding: {name: rope}}", "model.encoding must be a single value"),
        ("train: {compile: maybe}", "train.compile must be true or false, not 'maybe'"),
        ("train: {compile: 1}", "train.compile must be true or false, not 1"),
        ("tensorboard: null", "tensorboard must be true or false"),
        ("data: [a, b]", "data must be a single value"),
    ],
)
def test_shapes_of_values_that_are_refused(settings_file, text, words):
    path = settings_file(text)
    with pytest.raises(UsageError) as error:
        expand(["--config", path])
    assert f"{path}: {words}" in str(error.value)


@pytest.mark.parametrize("name", ["tyny", "small.yaml", "../presets/tiny", "Tiny"])
def test_unknown_presets(name):
    with pytest.raises(UsageError, match="There are: tiny, small, 125m, 350m") as error:
        expand(["--preset", name])
    assert ("Did you mean 'tiny'?" in str(error.value)) is (name in ("tyny", "Tiny"))


def test_a_file_may_name_its_preset(settings_file):
    path = settings_file("preset: small\nmodel: {heads: 3}")
    assert (parsed("--config", path).model.layers, parsed("--config", path).model.heads) == (6, 3)
    assert parsed("--config", path, "--preset", "tiny").model.layers == 4  # typed


@pytest.mark.parametrize("text", ["config: other.yaml", "resume: true", "out: somewhere"])
def test_what_belongs_on_the_command_line(settings_file, text):
    with pytest.raises(UsageError, match="belongs on the command line, not in a file"):
        expand(["--config", settings_file(text)])


@pytest.mark.parametrize("words", ["hidden", "=3", "hidden=[1", "hidden={"])
def test_options_that_cannot_be_read(words):
    with pytest.raises(ValueError, match=r"is not NAME=VALUE|cannot read the value"):
        _read([words])


# Parts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"hidden": 16, "rate": 1e-5, "variant": "concat", "on": True, "none": None, "list": [1, 2], "text": "yes"},
        {"number as text": "16", "empty": "", "colon": "a: b", "equals": "a=b", "quote": "it's", "hash": "#x"},
        {"two lines": "a\nb"},
        {"long": list(range(60))},
        {"words": "word " * 40},
    ],
)
def test_options_survive_the_command_line(options):
    assert _read(write_key_values(options)) == options


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--out a", "a"),
        ("--out=a", "a"),
        ("--out a --out b", "b"),
        ("--out=a=b", "a=b"),
        ("--outer a", None),
        ("--out", None),
        ("", None),
    ],
)
def test_value_of(argv, expected):
    assert value_of("--out", argv.split()) == expected


def test_flags_say_what_a_file_says():
    settings = {"data": "words", "train": {"log_every": 3, "compile": True}, "model": {"checkpoint_activations": False}}
    expected = ["--data", "words", "--log-every", "3", "--compile", "--no-checkpoint-activations"]
    assert as_flags(settings, Train, "a file") == expected
    words = with_settings(["--steps", "3"], Train)
    assert words[:2] == ["--preset", "tiny"] and words[-2:] == ["--steps", "3"]


def test_every_setting_can_be_given_in_a_file(settings_file):
    """Whatever is a field can be written down and is understood: a dump of the defaults changes nothing."""
    default = parsed()
    sections = {
        f.name: asdict(getattr(default, f.name)) for f in fields(Train) if is_dataclass(getattr(default, f.name))
    }
    sections["model"].pop("vocabulary")
    again = parsed("--preset", "350m", "--config", settings_file(yaml.safe_dump(sections)))
    assert (again.model, again.train) == (default.model, default.train)


def test_presets_are_listed_smallest_first():
    assert preset_names() == ["tiny", "small", "125m", "350m", "2.7b", "6.7b"]
    assert read_preset("tiny")["model"]["layers"] == 4


# Continuing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(tmp_path) -> Path:
    config = parsed("--preset", "small", "--encoding", "rope", "--seed", "2", "--data", "words")
    RunConfig(model=config.model, train=config.train, data="words", threads=3).write(tmp_path)
    return tmp_path


def test_a_run_continues_with_its_own_settings(begun):
    config = parsed("--resume", "--out", str(begun))
    assert config.resume and config.out == begun and config.data == "words"
    assert (config.model.encoding, config.model.layers, config.train.seed) == ("rope", 6, 2)
    assert parsed("--resume", "--out", str(begun), "--seed", "5").train.seed == 5  # refused later, by check_continues


@pytest.mark.parametrize("argv", ["--preset small", "--preset=tiny", "--config nowhere.yaml"])
def test_a_continued_run_takes_no_other_settings(begun, argv):
    with pytest.raises(UsageError, match="cannot be used with --resume"):
        expand(["--resume", "--out", str(begun), *argv.split()])


@pytest.mark.parametrize(
    ("argv", "words"),
    [([], "--resume needs --out"), (["--out", "nowhere"], "no run to continue .no config.yaml in it")],
)
def test_nothing_to_continue(argv, words):
    with pytest.raises(UsageError, match=words):
        expand(["--resume", *argv])


@pytest.mark.parametrize("text", ["[" * 20_000, "{" * 3000, "{" + ", ".join(f"a{n}: 1" for n in range(20_000)) + "}"])
def test_odd_settings_take_no_time(text):
    """Five seconds for brackets and half a minute for many names, before."""
    begin = time.process_time()
    with contextlib.suppress(ValueError):
        parse_yaml(text)
    assert time.process_time() - begin < 8


def test_names_that_occur_twice_in_settings():
    with pytest.raises(ValueError, match="'a' occurs twice"):
        parse_yaml("{a: 1, b: 2, a: 3}")
