"""Run a command for as long as the process that asked for it lives: ``python guard.py FOLDER COMMAND...``.

A compiler is a tree of processes, and a process that dies of a signal can end none of them. So the tree runs under this
program, whose standard input is a pipe that nobody writes to. The pipe ends when the other process closes it or dies;
then every process of the command is killed and FOLDER, where all of them write, is removed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading


def main(folder: str, *command: str) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    abandoned = threading.Event()
    threading.Thread(target=_exit_with, args=(child, abandoned), daemon=True).start()
    os.read(0, 1)
    abandoned.set()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    shutil.rmtree(folder, ignore_errors=True)
    return 1


def _exit_with(child: "subprocess.Popen[bytes]", abandoned: threading.Event) -> None:
    code = child.wait()
    if not abandoned.is_set():  # else what the command has written is still to be removed
        os._exit(max(code, -code))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
