import json

import numpy as np
import pytest

from dape.errors import UsageError
from dape.evaluation.map_files import STAGES, BiasMaps, read_facts, read_maps, write_maps


def make(length: int = 5) -> BiasMaps:
    generator = np.random.default_rng(0)
    facts = {"samples": [{"id": 1}, {"id": 2}], "layers": [1, 3], "heads": [2], "length": length, "text": "ü"}
    rows = {stage: generator.normal(size=(2, 2, 1, length)) for stage in STAGES}
    images = {stage: np.where(np.tri(3) > 0, generator.normal(size=(2, 1, 3, 3)), np.nan) for stage in STAGES}
    return BiasMaps(facts, rows, images)


def test_there_and_back(tmp_path):
    maps = make()
    (tmp_path / "picture.png").touch()
    write_maps(tmp_path, maps)
    found = read_maps(tmp_path)
    for stage in STAGES:
        assert found.rows[stage].dtype == np.float32
        np.testing.assert_array_equal(found.rows[stage], maps.rows[stage].astype(np.float32))
        np.testing.assert_array_equal(found.images[stage], maps.images[stage].astype(np.float32))
    assert {name: found.facts[name] for name in maps.facts} == maps.facts
    assert found.facts["files"] == ["images.npz", "maps.json", "maps.npz", "picture.png"]
    assert found.lags.tolist() == [4, 3, 2, 1, 0]
    with np.load(tmp_path / "maps.npz", allow_pickle=False) as stored:
        assert set(stored) == {*STAGES, "lags"} and stored["lags"].tolist() == [4, 3, 2, 1, 0]


def test_without_images(tmp_path):
    maps = make()
    write_maps(tmp_path, BiasMaps(maps.facts, maps.rows, None))
    assert read_maps(tmp_path).images is None and not (tmp_path / "images.npz").exists()


def test_infinite_numbers_do_not_enter_json(tmp_path):
    maps = make()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_maps(tmp_path, BiasMaps({**maps.facts, "slope": float("nan")}, maps.rows, None))


def test_another_json_is_not_ours(tmp_path):
    assert read_facts(tmp_path) is None
    for text in ("{", "[1]", json.dumps({"format": "else"})):
        (tmp_path / "maps.json").write_text(text)
        assert read_facts(tmp_path) is None
    with pytest.raises(UsageError, match=r"holds no maps\.json of `dape visualize`"):
        read_maps(tmp_path)


def test_damaged_or_foreign_arrays(tmp_path):
    write_maps(tmp_path, make())
    path = tmp_path / "maps.npz"
    whole = path.read_bytes()
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"maps\.npz: damaged, it is not what was written"):
            read_maps(tmp_path)
    facts = json.loads((tmp_path / "maps.json").read_text())
    facts = {name: value for name, value in facts.items() if name not in ("sha256", "checksum")}
    (tmp_path / "maps.json").write_text(json.dumps(facts))  # as from before there were checksums
    for content in (b"", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"maps\.npz: missing or damaged"):
            read_maps(tmp_path)
    np.savez(path, **dict.fromkeys(STAGES, np.array([{}], dtype=object)))  # would need pickle, which runs code
    with pytest.raises(ValueError, match=r"maps\.npz: missing or damaged"):
        read_maps(tmp_path)
    write_maps(tmp_path, make(length=6))
    (tmp_path / "maps.json").write_text(json.dumps({**facts, "length": 7}))
    with pytest.raises(ValueError, match=r"has shape \(2, 2, 1, 6\) of float32, maps\.json says \(2, 2, 1, 7\)"):
        read_maps(tmp_path)
