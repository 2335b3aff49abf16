"""Ctrl-C and SIGTERM: the first asks, the second insists, and everything is as before afterwards."""

import os
import signal
import subprocess
import sys

import pytest

from dape.training.interrupt import Interruption, signals_as_interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_the_second_interrupts(capsys, number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interruption() as stop:
        assert not stop() and stop.exit_code == 0
        os.kill(os.getpid(), number)
        assert stop() and stop.exit_code == 128 + number
        shown = capsys.readouterr()
        assert shown.out == "" and "stopping after this step and saving; once more to stop at once" in shown.err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


CLOSED_TERMINAL = """
import os, pathlib, pty, sys, time
child, terminal = pty.fork()
if child == 0:
    from dape.training.interrupt import Interruption
    with Interruption() as stop:
        print("ready", flush=True)
        while not stop():
            print("step", flush=True)
            time.sleep(0.05)
        print("saving", flush=True)
        pathlib.Path(sys.argv[1]).write_text("saved")
    os._exit(0)
while b"ready" not in os.read(terminal, 100):
    pass
os.close(terminal)
os.waitpid(child, 0)
"""


def test_a_closed_terminal_is_no_reason_not_to_save(tmp_path):
    """Whatever is said to it from then on would be an error; here each step says something."""
    subprocess.run([sys.executable, "-c", CLOSED_TERMINAL, str(tmp_path / "file")], check=True, timeout=60)
    assert (tmp_path / "file").read_text() == "saved"


def test_handlers_are_put_back_after_an_error():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with pytest.raises(ValueError, match="wrong"), Interruption():
        raise ValueError("wrong")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_as_interrupts(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), signals_as_interrupts():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ignored_signals_stay_ignored(number):
    """As with nohup, and for what a script starts in the background."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interruption() as stop, signals_as_interrupts():
            os.kill(os.getpid(), number)
            assert not stop()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_signal_during_a_step_lets_it_finish_and_saves_it(make_trainer, monkeypatch):
    trainer = make_trainer(save_every=0)
    real = trainer.task.loss_of

    def loss_of(*args):
        if trainer.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    trainer.task.loss_of = loss_of
    with Interruption() as stop:
        assert trainer.run(watch=lambda progress: None, stop=stop) is False
    assert trainer.step == 3 and stop.exit_code == 143
    assert [path.name for path in (trainer.folder / "checkpoints").iterdir()] == ["step-00000003"]
