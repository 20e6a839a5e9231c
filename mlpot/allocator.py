"""Keep freed memory for the next step.

By default glibc gives large blocks back to the system and takes them anew, and each new page costs a fault: some
1,500 of them a training step of a small model. The command line turns this off for its own process; a library must
not, so scripts call it themselves where they want it.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks up to 32 MiB, and its heap. False where the C library has no such setting."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # musl, for one
    settings = ((_MMAP_THRESHOLD, 1 << 25), (_TRIM_THRESHOLD, (1 << 31) - 1), (_TOP_PAD, 1 << 26))
    return all(mallopt(key, value) == 1 for key, value in settings)
