"""The line between `fewer serve` and its children, which is their standard input.

A socket pair: the child says `ready` on it, and reads end-of-file when the parent is gone,
however it went. So no child outlives `fewer serve`, not even one that was killed with -9.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

READY = b"ready\n"
ORPHAN_GRACE_S = 15.0
"""An orphan may drain for this long before it ends the hard way."""


class Lifeline:
    """The child's end. Descriptor 0 must be the socket that the parent put there."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        threading.Thread(target=self._watch, name="lifeline", daemon=True).start()

    def ready(self) -> None:
        """Tell the parent that requests can come."""
        with contextlib.suppress(OSError):  # the parent is gone: the thread ends this process
            os.write(self._descriptor, READY)

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # a reset is as good as an end
            while os.read(self._descriptor, 64):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHAN_GRACE_S)
        # The parent made this process the leader of a group of its own: workers go with it.
        os.killpg(os.getpgrp(), signal.SIGKILL)
