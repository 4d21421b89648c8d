"""State that a rollout in another trainer leaves for the next: the closed loop, and metrics that look back."""

import json
from collections.abc import Mapping
from pathlib import Path

from openrlhf_cov.models.cov_config import CovConfig
from openrlhf_cov.models.dynamics import EntropyDynamics

# The file of the state in a checkpoint.
STATE_FILE = "openrlhf_cov_state.json"


class ClosedLoop:
    """The controller of ``entropy_target``, which is None without one, and the dynamics of the entropy.

    Args:
        methods: The settings of the methods.
    """

    def __init__(self, methods: CovConfig) -> None:
        self.controller = methods.controller()
        self.dynamics = EntropyDynamics()

    def step(
        self, values: Mapping[str, float], entropy_target: float | None, learning_rate: float
    ) -> dict[str, float]:
        """Move to the next rollout.

        Args:
            values: The metrics of the rollout that has ended.
            entropy_target: The target in nats that was in force for it; None without one.
            learning_rate: The sum of the learning rates of its updates.

        Returns:
            The metrics of controller and dynamics.
        """
        entropy = values["entropy/mean"]
        found = self.dynamics.step(entropy, values["cov/prob_weighted_mean"], values["cov/mean"], learning_rate)
        if self.controller and entropy_target is not None:
            found |= self.controller.step(entropy, entropy_target)
        return found

    def save(self, checkpoint: Path) -> None:
        """Write the state into the folder of a checkpoint."""
        state = {"dynamics": self.dynamics.state_dict()}
        if self.controller:
            state["controller"] = self.controller.state_dict()
        (checkpoint / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, checkpoint: Path) -> None:
        """Restore the state from the folder of a checkpoint; without a state there, do nothing."""
        path = checkpoint / STATE_FILE
        if not path.exists():
            return
        state = json.loads(path.read_text(encoding="utf-8"))
        self.dynamics.load_state_dict(state["dynamics"])
        if self.controller:
            # A checkpoint of a run without a target has no such state; the controller then starts anew.
            self.controller.load_state_dict(state.get("controller"))
