"""Progress: lines where there is no terminal, nothing if quiet, and the time left once it is known to 30%."""

import pytest

from dape.actions import progress
from dape.actions.progress import ProgressLine, TimeLeft, duration, window_watch
from dape.verbosity import VARIABLE


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_time_left_is_told_once_estimates_agree(clock):
    """The beginning is slow: 60 s for the first hundredth, then a hundredth per second."""
    left = TimeLeft()
    clock[0] = 60.0
    assert left.seconds(0.01) is None
    told = {}
    for done in range(2, 101):
        clock[0] += 1.0
        told[done] = left.seconds(done / 100)
    known = {done: 59 + done + seconds for done, seconds in told.items() if seconds is not None}
    assert 20 < min(known) < 70 and set(known) == set(range(min(known), 101))
    assert all(159 / 1.3 <= whole <= 159 * 1.3 for whole in known.values())


def test_what_was_done_before_is_no_measure(clock):
    left = TimeLeft(0.9)
    told = []
    for step in range(1, 8):
        clock[0] += 10.0
        told.append(left.seconds(0.9 + step / 100))
    assert told[-1] == pytest.approx(30.0)


def test_nothing_is_told_of_work_that_has_not_moved(clock):
    left = TimeLeft()
    for _ in range(9):
        clock[0] += 1.0
        assert left.words(0.0) == ""


@pytest.mark.parametrize(("seconds", "words"), [(3.2, "3 s"), (150, "2 min"), (7200, "2.0 h")])
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_lines_where_there_is_no_terminal(clock, capsys):
    with ProgressLine() as line:
        for second in range(25):
            clock[0] = float(second)
            line.show(f"window {second}")
    assert capsys.readouterr().err.split("\n") == ["window 0", "window 10", "window 20", ""]


def test_quiet_says_nothing_and_verbose_more(clock, capsys, monkeypatch):
    for wanted, lines in (("quiet", 0), ("verbose", 5)):
        monkeypatch.setenv(VARIABLE, wanted)
        line = ProgressLine()
        for second in range(10):
            clock[0] += 1.0
            line.show(f"window {second}")
        assert capsys.readouterr().err.count("\n") == lines


def test_windows_of_long_texts_count_as_much_as_they_have_tokens(monkeypatch):
    shares = []
    line = ProgressLine()
    monkeypatch.setattr(line, "show", lambda text, done: shares.append(round(done, 4)))
    watch = window_watch(line, (64, 192))
    for told in ((64, 4, 4), (192, 2, 4), (192, 4, 4)):
        watch(*told)
    assert shares == [0.25, 0.625, 1.0]
