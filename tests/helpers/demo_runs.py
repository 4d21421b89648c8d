"""What a training of the demo leaves, without the training."""

import json
from pathlib import Path

# A step: 10 tokens x 256 samples in 4 seconds.
LINE = {
    "step": 3,
    "rollout/reward_mean": 0.25,
    "rollout/response_length_mean": 10.0,
    "rollout/num_samples": 256.0,
    "entropy/mean": 0.5,
    "cov/selected_frac": 0.02,
    "timing/step_total": 4.0,
    "timing/generation": 1.0,
}


def put_lines(folder: Path, *lines: dict) -> Path:
    """Write the metrics of a run; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def put_run(folder: Path, entropy: list[float], accuracy: list[float]) -> Path:
    """Write the metrics of a run with a step for each entropy and training accuracy; the folder."""
    steps = enumerate(zip(entropy, accuracy, strict=True), start=1)
    lines = [{"step": step, "entropy/mean": h, "rollout/reward_mean": r, "reward": r} for step, (h, r) in steps]
    return put_lines(folder, *lines)
