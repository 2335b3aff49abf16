"""Run a command, and kill it when the process that started it dies: ``python guard.py FOLDER COMMAND...``.

A compiler is a tree of processes. A process that is killed by a signal cannot end its children, so they run under this
program. Its standard input is a pipe that nobody writes to. When the starting process closes the pipe or dies, all
processes of the command are killed, and FOLDER, where they write, is removed.
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
    if not abandoned.is_set():  # otherwise main() still has to remove the folder
        os._exit(max(code, -code))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
