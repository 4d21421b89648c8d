"""Python's garbage collector, out of the way while a process imports.

Importing torch, transformers, vLLM and DeepSpeed makes millions of objects that stay; looking through them again and
again takes a quarter of the time.
"""

import gc
import threading

# Seconds after which a process collects again that was never told to.
LONGEST = 60.0


def pause() -> None:
    """Collect no cycles until ``resume``, at most for ``LONGEST`` seconds."""
    gc.disable()
    timer = threading.Timer(LONGEST, gc.enable)
    timer.daemon = True
    timer.start()


def resume() -> None:
    """Collect again, but never look at what is there now: modules stay as long as the process."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
