"""The files: complete, small, intact, what the reference gives, and right by programs that share nothing with it."""

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.thinned import few

import dape
from dape.actions import vectors
from dape.conformance import files
from dape.conformance.make import make

spec = importlib.util.spec_from_file_location("plain", Path(__file__).parent / "plain.py")
plain = importlib.util.module_from_spec(spec)
sys.modules["plain"] = plain
spec.loader.exec_module(plain)
GOLDEN = Path(__file__).parents[1] / "golden"


def test_every_encoding_of_the_catalogue_has_a_small_file():
    assert files.names() == sorted(dape.encodings())
    sizes = [files.path_of(name).stat().st_size for name in files.names()]
    assert max(sizes) < 50_000 and sum(sizes) < 1_000_000


def test_checksums_are_those_of_the_files():
    assert len(vectors.listed()) == len(dape.encodings()) + 1
    assert set(files.sums(files.FOLDER)) == {f"{name}.safetensors" for name in dape.encodings()}


@pytest.mark.parametrize("name", few(3, list(dape.encodings())))
def test_the_reference_still_gives_them(name):
    stored = files.read(name)
    made = make(name)
    assert [case.name for case in stored] == [case.name for case in made]
    assert max(vectors.difference(a, b) for a, b in zip(stored, made, strict=True)) < vectors.ROUNDING


def test_a_file_that_was_changed_is_refused(tmp_path):
    shutil.copytree(files.FOLDER, tmp_path / "v")
    path = files.path_of("kerple", tmp_path / "v")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="SHA-256"):
        files.read("kerple", tmp_path / "v")
    path.write_bytes(content[:100])
    files.write_sums(tmp_path / "v")
    files.sums.cache_clear()
    with pytest.raises(ValueError, match=r"is damaged|is not a file of vectors"):
        files.read("kerple", tmp_path / "v")


def test_inputs_are_exact_in_half_precision():
    for case in files.read("dape-kerple"):
        for tensor in (case.q, case.k, *case.parameters.values()):
            assert torch.equal(tensor, tensor.bfloat16().double()) and torch.equal(tensor, tensor.half().double())


def test_the_description_says_conventions_and_mistakes():
    text = vectors.described("yarn")
    assert "0.1 ln s + 1" in text and "correction range" in text and "lag is i - j" in text


# Programs that share nothing with the reference ----------------------------------------------------------------------


@pytest.mark.parametrize("name", plain.RIGHT)
def test_a_plain_program_gives_the_same_logits_and_gradients(name):
    target, how = plain.RIGHT[name]
    verdict = dape.verify(target, name, tolerance=1e-12, **how)
    assert verdict.right, str(verdict)
    assert {each.case.name for each in verdict.compared if not each.skipped} >= {"short", "long"}
    stored = {case.name: case for case in files.read(name)}["short"].gradients
    assert set(stored) == set(next(each for each in verdict.compared if each.case.name == "short").gradients)


def golden_names(method):
    names = {"base.r1": "kerple_p", "base.r2": "kerple_a"} if "kerple" in method else {}
    if "fire" in method:
        names |= {"base.first.weight": "fire_w1", "base.first.bias": "fire_b1", "base.second.weight": "fire_w2"}
        names |= {"base.second.bias": "fire_b2", "base.c": "fire_c", "base.threshold_multiplier": "fire_Lmult"}
    f = "nope" if "nope" in method else "dape"
    names |= {f"f.{layer}.{what}": f"{f}_{what[0]}{n}" for n, layer in ((1, "first"), (2, "second"))
              for what in ("weight", "bias")}  # fmt: skip
    return names


@pytest.mark.parametrize("method", ["alibi_c", "kerple_c", "fire_c", "nope_c"])
@pytest.mark.parametrize("heads", [8, 12])
def test_the_plain_programs_are_the_authors(method, heads):
    """What the vectors are compared with above is itself compared with the golden numbers, their bias included."""
    with np.load(GOLDEN / f"dape_bias_h{heads}_T16.npz") as file:
        golden = {name: torch.from_numpy(file[name]).double() for name in file.files}
    hidden = int(golden["meta"][3])
    kind = {"alibi": plain.DapeAlibi, "kerple": plain.DapeKerple, "fire": plain.DapeFire, "nope": plain.Dape}
    threshold = golden["fire_L"].item() if "fire" in method else 16
    pe = kind[method[:-2]](heads, 8, threshold, hidden).double()
    names = golden_names(method)
    with torch.no_grad():
        for name, parameter in pe.named_parameters():
            parameter.copy_(golden[names[name]].reshape(parameter.shape))
    out = pe(golden["x"])
    expected = golden[f"out_{method}"]
    assert (out.tril() - expected).abs().max() < 1e-6 * expected.abs().max()
    (out * golden["G"]).tril().sum().backward()
    for name, parameter in pe.named_parameters():
        stored = golden[f"grad_{method}__{names[name]}"]
        assert (parameter.grad.reshape(stored.shape) - stored).abs().max() < 1e-5 * stored.abs().max(), name
