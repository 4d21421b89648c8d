"""Find the programs of this Python environment, whether or not it is activated."""

import os
import sys
from pathlib import Path


def search_path() -> str:
    """Return PATH with the folder of this Python's programs, such as ninja, before all others unless PATH has it.

    PyTorch starts ninja by its name to compile the extensions of DeepSpeed. A Python that was started by its path, as
    in ``.venv/bin/python``, would not find the ninja that was installed with it.
    """
    folders = (os.environ.get("PATH") or os.defpath).split(os.pathsep)
    own = str(Path(sys.executable).parent)
    return os.pathsep.join(folders if own in folders else [own, *folders])
