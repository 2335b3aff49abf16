"""One table of names: sizes of a model may be given as in dape.build or as in a config.json, in Python and in files."""

import pytest
import yaml

import dape
from dape.cli.settings import as_flags
from dape.cli.train import Train
from dape.config.names import NAMES, other_names
from dape.errors import UsageError
from dape.nn import SelfAttention
from dape.reading import as_record
from dape.training.config import TrainConfig
from dape.training.run import CONFIG, RunConfig

SIZES = {"layers": 2, "width": 24, "heads": 3, "vocabulary": 19, "train_length": 7}


@pytest.mark.parametrize("own, other", [(own, other) for own, *others in NAMES for other in others])
def test_a_decoder_takes_every_name(own, other):
    given = {**SIZES, other: SIZES[own]}
    del given[own]
    assert dape.DecoderConfig(**given) == dape.DecoderConfig(**SIZES) == as_record(dape.DecoderConfig, given)


def test_errors_name_what_was_written():
    with pytest.raises(UsageError, match="`hidden_size` 20 cannot be divided into `num_heads` 3"):
        dape.DecoderConfig(hidden_size=20, num_heads=3).check()
    with pytest.raises(UsageError, match="`num_hidden_layers` must be at least 1, got 0"):
        dape.DecoderConfig(num_hidden_layers=0).check()
    with pytest.raises(UsageError, match="`layers` must be at least 1, got 0"):
        dape.DecoderConfig(layers=0).check()
    with pytest.raises(ValueError, match="num_heads: found 'x', expected a whole number"):
        as_record(dape.DecoderConfig, {"num_heads": "x"})
    with pytest.raises(TypeError, match="hiden_size"):
        dape.DecoderConfig(hiden_size=20)


def test_two_names_of_one_size_are_refused():
    with pytest.raises(ValueError, match="`heads` and `num_heads` are two names of one size"):
        dape.DecoderConfig(heads=2, num_heads=2)


def test_files_are_read_with_both(tmp_path):
    run = RunConfig(model=dape.DecoderConfig(layers=2, width=24, heads=3), train=TrainConfig(), data="x", threads=1)
    run.write(tmp_path)
    saved = yaml.safe_load((tmp_path / CONFIG).read_text())
    assert saved["model"]["width"] == 24, "files keep the names they have always had"
    saved["model"]["hidden_size"] = saved["model"].pop("width")
    (tmp_path / CONFIG).write_text(yaml.safe_dump(saved))
    assert RunConfig.read(tmp_path) == run
    assert as_flags({"model": {"hidden_size": 24, "num_heads": 3}}, Train, "x") == ["--width", "24", "--heads", "3"]


def test_a_layer_takes_every_name():
    made = [SelfAttention(**{name: 24}, num_heads=3, train_length=8) for name in ("model_dim", "width", "hidden_size")]
    assert [layer.out.in_features for layer in made] == [24, 24, 24]
    with pytest.raises(ValueError, match="hidden_size 25 cannot be divided into 3 heads"):
        SelfAttention(hidden_size=25, num_attention_heads=3, train_length=8)


def test_a_name_of_ones_own_means_itself():
    """``DapeConfig`` has both lengths, as two settings."""
    assert "max_position_embeddings" not in other_names(["train_length", "max_position_embeddings"])
