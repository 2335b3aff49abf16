"""A saved model in programs that have never imported us, by ``trust_remote_code=True``; and as the base of others."""

import json
import subprocess
import sys

import pytest
import torch

pytest.importorskip("transformers")

from tests.hf.model.models import continued, decoder, tiny, tokens
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, pipeline

from dape.data.tokenizer import ByteTokenizer
from dape.hf import DapeConfig, DapeForCausalLM, DapeModel
from dape.hf.convert import wrapped
from dape.hf.remote import MODULE
from dape.hf.tokenizer import save_tokenizer

STRANGER = """
import json, sys, torch
torch.set_num_threads(1)
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, pipeline
folder = sys.argv[1]
assert not any(name.partition(".")[0] == "dape" for name in sys.modules)
config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
text = torch.arange(1, 8)[None]
with torch.no_grad():
    found = {"logits": model(text).logits.tolist(),
             "states": AutoModel.from_pretrained(folder, trust_remote_code=True)(text).last_hidden_state.tolist()}
write = pipeline("text-generation", model=folder, trust_remote_code=True)
found["text"] = write("def ", max_new_tokens=5, do_sample=False, max_length=None)[0]["generated_text"]
model.save_pretrained(sys.argv[2])
print(json.dumps(found))
"""


@pytest.fixture
def exported(folder):
    """As `dape export` writes it."""
    model = wrapped(decoder(tiny(vocabulary=257)), ByteTokenizer())
    path = folder(model)
    save_tokenizer(ByteTokenizer(), path)
    return path, model


def test_the_folder_names_a_module_beside_it(exported):
    path, _ = exported
    named = json.loads((path / "config.json").read_text())["auto_map"]
    assert named == {
        "AutoConfig": "modeling_dape.DapeConfig",
        "AutoModel": "modeling_dape.DapeModel",
        "AutoModelForCausalLM": "modeling_dape.DapeForCausalLM",
    }
    space: dict = {}
    exec((path / MODULE).read_text(), space)
    assert (space["DapeConfig"], space["DapeModel"]) == (DapeConfig, DapeModel)


def test_without_us_the_module_says_what_is_missing(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "dape.hf", None)
    with pytest.raises(ImportError, match=r"computed by the Python package dape.*pip install '/path/to/dape\[hf\]'"):
        exec((exported[0] / MODULE).read_text(), {})


def test_trusted_code_is_ours_and_is_not_copied(exported, tmp_path, monkeypatch):
    path, model = exported
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    assert type(AutoConfig.from_pretrained(path, trust_remote_code=True)) is DapeConfig
    loaded = AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)
    assert type(loaded) is DapeForCausalLM
    loaded.save_pretrained(tmp_path / "again")
    assert [f.name for f in (tmp_path / "again").glob("*.py")] == [MODULE]
    assert (tmp_path / "again" / MODULE).read_text() == (path / MODULE).read_text()
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


@pytest.mark.slow
def test_a_process_that_never_heard_of_us(exported, tmp_path, monkeypatch):
    path, model = exported
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))
    call = [sys.executable, "-c", STRANGER, str(path), str(tmp_path / "again")]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, text = json.loads(done.stdout.splitlines()[-1]), torch.arange(1, 8)[None]
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(found["logits"]), model(text).logits)
        torch.testing.assert_close(torch.tensor(found["states"]), model.model(text).last_hidden_state)
    prompt = AutoTokenizer.from_pretrained(path)("def ", return_tensors="pt")["input_ids"]
    assert found["text"] == "def " + AutoTokenizer.from_pretrained(path).decode(continued(model, prompt, 5)[0])
    assert torch.equal(DapeForCausalLM.from_pretrained(tmp_path / "again")(text).logits, model(text).logits)
    refused = "from transformers import AutoConfig; import sys; AutoConfig.from_pretrained(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", refused, str(path)], capture_output=True, text=True, input="")
    assert done.returncode != 0 and "trust_remote_code=True" in done.stderr


def test_the_base_model(exported):
    path, model = exported
    base = AutoModel.from_pretrained(path)
    assert type(base) is DapeModel is type(model.base_model) and base.head is None
    with torch.no_grad():
        states = base(input_ids=tokens()).last_hidden_state
        assert torch.equal(states, model.base_model(input_ids=tokens()).last_hidden_state)
        assert torch.equal(model.get_output_embeddings()(states), model(tokens()).logits)
    (features,) = pipeline("feature-extraction", model=str(path))("abc")
    with torch.no_grad():
        text = torch.tensor([list(b"abc")])
        torch.testing.assert_close(torch.tensor(features), model.base_model(text).last_hidden_state[0])


def test_a_base_model_becomes_a_whole_one(exported, tmp_path):
    path, model = exported
    AutoModel.from_pretrained(path).save_pretrained(tmp_path / "base")
    whole, report = DapeForCausalLM.from_pretrained(tmp_path / "base", output_loading_info=True)
    assert report["missing_keys"] == {"model.head.weight"} and not report["unexpected_keys"]
    fresh = DapeForCausalLM(model.config)
    assert 0.5 < whole.get_output_embeddings().weight.std() / fresh.get_output_embeddings().weight.std() < 2
    for name, tensor in model.base_model.state_dict().items():
        assert name == "head.weight" or torch.equal(whole.model.state_dict()[name], tensor)


@pytest.mark.parametrize("way", [{}, {"use_cache": False}])
def test_prompts_padded_on_the_right_are_refused_by_name(way):
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, 4:] = 0
    with pytest.raises(ValueError, match=r"padded on the right.*Pad on the left.*padding_side"):
        continued(tiny(), tokens(), attention_mask=mask, **way)
