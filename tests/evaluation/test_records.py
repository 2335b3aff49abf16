"""Result rows as JSON Lines: nothing is lost on the way, and a crash costs at most the line it cut off."""

import json
import math
from dataclasses import replace

import pytest

from dape.evaluation.records import Row, append_rows, read_rows

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
    assert read_rows(path) == []
    append_rows(path, [PLAIN])
    assert read_rows(path) == [PLAIN]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "not a result row"),
        ("[1, 2]", "not a JSON object"),
        ('{"run": "a"}', "no method, seed, train_length"),
    ],
)
def test_any_other_bad_line_is_refused_with_its_number(tmp_path, line, why):
    path = tmp_path / "results.jsonl"
    path.write_text(f"{PLAIN.as_json()}\n\n{line}\n{FULL.as_json()}\n")
    with pytest.raises(ValueError, match=rf"results\.jsonl, line 3: .*{why}"):
        read_rows(path)
