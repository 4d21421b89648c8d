"""Upstream's strategy, which every actor of a run gets, and the dtypes that it knows."""

from pathlib import Path
from typing import Any

import torch
from openrlhf.utils.deepspeed import DeepspeedStrategy
from openrlhf.utils.utils import convert_to_torch_dtype as upstream_dtype

from openrlhf_cov.trainer.checkpoints import tag_to_restore


class CovStrategy(DeepspeedStrategy):
    """Upstream's, which restores the checkpoint that policy and critic both have."""

    restored: tuple[str, int] | None = None
    """Tag and global step of what this process has loaded."""

    def load_ckpt(self, model: Any, load_dir: str, *args, **kwargs) -> tuple:
        """Upstream's, which gets no tag from its actors."""
        path, states = super().load_ckpt(model, load_dir, tag_to_restore(self.args, Path(load_dir)), *args, **kwargs)
        if path is not None:
            self.restored = Path(path).parent.name, states.get("global_step")
        return path, states


def convert_to_torch_dtype(param_dtype: str) -> torch.dtype:
    """Upstream's, which refuses fp32."""
    return torch.float32 if param_dtype == "fp32" else upstream_dtype(param_dtype)
