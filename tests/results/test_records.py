"""Result rows as JSON Lines: nothing is lost on the way, and a crash costs at most the line it cut off."""

import errno
import importlib
import json
import math
import os
import sys
from dataclasses import replace

import pytest

from dape.results.records import Row, append_rows, read_rows, rows_text

PLAIN = Row(
    run="alibi-seed0",
    method="alibi",
    seed=0,
    train_length=128,
    length=256,
    metric="perplexity",
    value=4.1234567890123,
    scored_tokens=1024,
    protocol="last_k",
    data_hash="abc",
)
FULL = replace(
    PLAIN,
    run="rope-seed1",
    method="rope",
    seed=1,
    k=64,
    windows=2,
    mode="packed",
    step=600,
    tokenizer="byte",
    window_nll=(3.0, 4.5),
    note="über",
    extra={"commit": "1234", "threads": 2},
)


@pytest.mark.parametrize("row", [PLAIN, FULL], ids=["plain", "full"])
def test_a_row_survives_json(row):
    assert Row.from_json(row.as_json()) == row
    assert "\n" not in row.as_json()


def test_fields_at_their_default_are_not_written():
    assert set(json.loads(PLAIN.as_json())) == {
        f for f, v in PLAIN.as_dict().items() if v not in (None, "", (), {})
    } | {"seed"}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_json_cannot_write_is_written_as_text(value):
    """Also within windows; a strict reader, as in other languages, must accept the line."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    line = replace(FULL, value=value, window_nll=(1.5, value)).as_json()
    json.loads(line, parse_constant=refuse)
    back = Row.from_json(line)
    assert repr((back.value, back.window_nll)) == repr((value, (1.5, value)))


def test_unknown_fields_are_kept():
    line = json.dumps({**json.loads(FULL.as_json()), "gpu": "none"})
    assert Row.from_json(line).extra == {"commit": "1234", "threads": 2, "gpu": "none"}


def test_rows_are_appended_to_what_is_there(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    append_rows(path, [PLAIN])
    append_rows(path, [FULL, PLAIN])
    append_rows(path, [])
    assert read_rows(path) == [PLAIN, FULL, PLAIN]
    # As versions read it that do not know of the number:
    given = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.pop("rows", None) for line in given] == [1, 2, None]
    assert [Row.from_json(json.dumps(line)) for line in given] == [PLAIN, FULL, PLAIN]


def cuts(text: str) -> list[int]:
    """Within lines and between them, with and without the line break."""
    return sorted({*range(0, len(text), 97), *(i + d for i, c in enumerate(text) if c == "\n" for d in (-1, 0, 1))})


def test_fewer_rows_than_were_written_are_noticed(tmp_path):
    path, rows = tmp_path / "rows.jsonl", [PLAIN, FULL, PLAIN, FULL]
    whole = rows_text(rows)
    for cut in cuts(whole):
        path.write_text(whole[:cut])
        if cut >= len(whole) - 1:  # without the last line break nothing is lost
            assert read_rows(path) == rows
            continue
        with pytest.raises(
            ValueError, match=r"rows\.jsonl(, which holds no rows|, line 1: says 4 rows and has \d: cut off)"
        ):
            read_rows(path)


def test_rows_that_a_crash_has_cut_off_are_put_in_their_place_again(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [PLAIN] * 200)  # more than is read from the back at once
    before = path.read_bytes()
    append_rows(path, [FULL, PLAIN, FULL])
    whole = path.read_bytes()
    for cut in cuts(whole.decode()[len(before) :]):
        path.write_bytes(whole[: len(before) + cut])
        complete = len(before) + cut >= len(whole) - 1
        assert len(read_rows(path, unfinished=True)) == (203 if complete else 200)
        append_rows(path, [FULL, FULL])
        assert read_rows(path) == [PLAIN] * 200 + [FULL, PLAIN, FULL] * complete + [FULL, FULL]


def test_rows_missing_in_the_middle_are_noticed(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [PLAIN, FULL])
    append_rows(path, [FULL])
    first, _, third = path.read_text().splitlines()
    path.write_text(f"{first}\n{third}\n")
    for unfinished in (False, True):
        with pytest.raises(ValueError, match=r"results\.jsonl, line 1: says 2 rows and has 1: cut off"):
            read_rows(path, unfinished=unfinished)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "results.jsonl"
    append_rows(path, [PLAIN])
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        append_rows(path, [FULL, FULL])
    assert path.read_bytes() == before


@pytest.mark.parametrize("kept", [1, 40, -2], ids=["one byte", "some", "all but the brace"])
def test_a_line_cut_off_by_a_crash_is_left_out_and_replaced(tmp_path, kept):
    path = tmp_path / "results.jsonl"
    append_rows(path, [PLAIN])
    with path.open("a") as file:
        file.write((FULL.as_json() + "\n")[:kept])
    assert read_rows(path) == [PLAIN]
    append_rows(path, [FULL])
    assert read_rows(path) == [PLAIN, FULL]
    assert path.read_text().count("\n") == 2


def test_a_whole_row_without_line_break_is_not_lost(tmp_path):
    """It was read, so somebody may have acted on it."""
    path = tmp_path / "results.jsonl"
    path.write_text(PLAIN.as_json())
    assert read_rows(path) == [PLAIN]
    append_rows(path, [FULL])
    assert read_rows(path) == [PLAIN, FULL]


def test_a_cut_off_line_longer_than_the_piece_read_from_the_back(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [PLAIN])
    with path.open("a") as file:
        file.write(replace(FULL, window_nll=(0.1234567,) * 30_000).as_json()[:-1])
    append_rows(path, [FULL])
    assert read_rows(path) == [PLAIN, FULL]


def test_a_file_that_is_only_a_cut_off_line(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"run": "al')
    assert read_rows(path, unfinished=True) == []
    with pytest.raises(ValueError, match=r"results\.jsonl, which holds no rows"):
        read_rows(path)
    append_rows(path, [PLAIN])
    assert read_rows(path) == [PLAIN]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not a result row"),
        ("[1, 2]", "not a JSON object"),
        ('{"run": "a"}', "no method, seed, train_length"),
        (PLAIN.as_json().replace('"seed": ', '"seed": "x", "was": '), "seed: found 'x', expected a whole number"),
        (
            PLAIN.as_json().replace('"seed": ', f'"seed": 1{"0" * 400}, "was": '),
            "seed: found 1000.*0000, expected a whole",
        ),
        (PLAIN.as_json()[:-1] + ', "extra": 3}', "extra: found 3, expected names and values"),
        (PLAIN.as_json()[:-1] + ', "window_nll": [1, "x"]}', r"window_nll\[1\]: found 'x', expected a number"),
        (PLAIN.as_json()[:-1] + ', "seed": 1}', "'seed' occurs twice"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_any_other_bad_line_is_refused_with_its_number(tmp_path, line, why):
    path = tmp_path / "results.jsonl"
    path.write_text(f"{PLAIN.as_json()}\n\n{line}\n{FULL.as_json()}\n")
    with pytest.raises(ValueError, match=rf"results\.jsonl, line 3: .*{why}"):
        read_rows(path)


@pytest.mark.parametrize(("old", "name"), [("dape.paper", "load"), ("dape.evaluation.records", "read_rows")])
def test_old_names_warn_and_work(old, name):
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match="has moved to dape.results"):
        module = importlib.import_module(old)
    assert callable(getattr(module, name))
