"""One of two ranks that look at folders; ``test_shared_storage.py`` starts them."""

import json
import shutil
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from openrlhf_cov.errors import RunStopped
from openrlhf_cov.trainer.checkpoint.shared_storage import check_restored, check_shared


def share(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def say(check, *args, **settings):
    """What the user is told; None if all is well. The ranks are in step afterwards."""
    try:
        check(*args, share=share, **settings)
        return None
    except RunStopped as stopped:
        return str(stopped)
    finally:
        dist.barrier()


def arrive_late(source, target, stop):
    """As on a file system whose clients see a file some time after it was written."""
    while not stop.is_set():
        time.sleep(0.05)
        for path in source.glob(".shared-*"):
            if not (target / path.name).exists():
                time.sleep(1.5)
                shutil.copy(path, target)


def look(rank, world_size, folder):
    """Write ``<rank>.json``: what this rank was told about each pair of folders ``<name>/<rank>``, and of loads."""
    dist.init_process_group("gloo", f"file://{folder}/store", timedelta(seconds=60), rank=rank, world_size=world_size)
    said, first = {}, rank == 0
    for case in sorted(path for path in folder.iterdir() if path.is_dir()):
        mine = case / str(rank) if (case / "0").exists() else case
        stop = threading.Event()
        if case.name == "late" and rank == 1:
            threading.Thread(target=arrive_late, args=(case / "0", mine, stop), daemon=True).start()
        wait = 20.0 if case.name == "late" else 1.0
        told = say(check_shared, mine, mine / "_actor" / "latest", first=first, wait=wait)
        said[case.name] = told and told.replace(str(mine), str(case))
        stop.set()
    for name, restored in json.loads((folder / "restored.json").read_text()).items():
        said[name] = say(check_restored, Path("/ckpt"), restored[rank])
    (folder / f"{rank}.json").write_text(json.dumps(said))
    dist.destroy_process_group()
