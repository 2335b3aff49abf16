"""Whether memory that was given back is used again, in a process of its own."""

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, threading, numpy
from dape.che.memory import keep_freed_memory
keep_freed_memory()
def work():
    for _ in range(100):
        [numpy.ones(3 << 17) for _ in range(10)]  # 3 MB each: numpy asks for large pages from 4 MB on
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
before = faults()
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc")
def test_freed_memory_is_kept():
    """The second thread adds 30 MB, 7,680 pages; without, 17,000 to 270,000 page faults were seen."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 12_000
