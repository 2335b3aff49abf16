"""Settings for a process that does nothing but train: not for libraries, which others use in processes of their own.

Memory that a step gives back is kept for the next one. glibc returns large arrays to the system and gets the same pages
again, cleared, a moment later: thousands of page faults in every step, and threads that unmap memory interrupt each
other.
"""

import ctypes
import functools
import platform

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
_LARGEST, _AHEAD = 32 << 20, 64 << 20
"""glibc takes no more than the first; the second is asked for at a time."""


@functools.cache
def keep_freed_memory() -> None:
    """For the rest of the process. Elsewhere than under glibc nothing happens."""
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_ARENA_MAX, 1)  # arenas of threads are given back whatever is set
    mallopt(_MMAP_THRESHOLD, _LARGEST)
    mallopt(_TRIM_THRESHOLD, -1)
    mallopt(_TOP_PAD, _AHEAD)
