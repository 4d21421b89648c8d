"""The closed loop that holds a run at a target entropy: one number of a method, moved once per global step (pure).

Skywork-OR1's coefficient, the weight of positive advantages, adaptive clip-high, REPO-R's zeta and STARE's weights are
this one loop with other numbers, and so is a ratio of Clip-Cov or KL-Cov that follows the entropy.
"""

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Control:
    """A setting that the loop may move: its published step and bounds, or ours where none were published."""

    setting: str
    low: float
    high: float
    step: float
    """Added or subtracted; where the value ``doubles``, its smallest size."""
    doubles: bool = False
    """It is doubled and halved. At the size of a step it changes sign instead, or stays where 0 is out of bounds."""
    raises: int = 1
    """1 if a larger value raises the entropy, -1 if it lowers it."""
    gated: bool = False
    """It counts as 0 after a step whose entropy was not below the target."""
    at_target: int = 0
    """What an entropy of exactly the target counts as: 0, neither above nor below, or 1, above it, as published."""

    def moved(self, value: float, direction: int) -> float:
        """The value one step up (1), down (-1) or where it is (0), within the bounds.

        A value that doubles goes up the ladder ..., -2 step, -step, step, 2 step, ...: twice or half its size.
        """
        if direction == 0:
            return value
        if not self.doubles:
            value += direction * self.step
        elif value * direction > 0:
            value *= 2
        elif abs(value) > self.step:
            value = math.copysign(max(abs(value) / 2, self.step), value)
        else:
            value = direction * self.step
        return self.within(value)

    def within(self, value: float) -> float:
        """The nearest value that the loop can be at."""
        value = min(max(value, self.low), self.high)
        return math.copysign(self.step, value) if self.doubles and 0 < abs(value) < self.step else value


class Controller:
    """Moves the setting of ``control`` from ``start`` by the sign of (target - entropy).

    The entropy is that of the policy before the updates of a global step, exact, over all its tokens; what follows
    from it is applied in the next step. Within ``band`` nats of the target the value stays where it is; at the target
    itself, without a band, it does what the control says.
    """

    def __init__(self, control: Control, start: float, band: float = 0.0) -> None:
        self.control, self.band = control, band
        self._value, self._open = start, True

    @property
    def applied(self) -> dict[str, float]:
        """The setting, and its value in the step to come."""
        return {self.control.setting: self._value if self._open or not self.control.gated else 0.0}

    def step(self, entropy: float, target: float) -> dict[str, float]:
        """The metrics of a step that is over; its entropy moves the value, unless it is not finite."""
        gap = target - entropy
        metrics = {"control/value": self.applied[self.control.setting], "control/gap": gap}
        if math.isfinite(gap):
            direction = 0 if abs(gap) < self.band else (gap > 0) - (gap < 0) or -self.control.at_target
            self._value = self.control.moved(self._value, direction * self.control.raises)
            self._open = gap > 0
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on."""
        return {"setting": self.control.setting, "value": self._value, "open": self._open}

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from ``state_dict``, within the bounds; from the start if that is None or of another setting."""
        if state is not None and state["setting"] == self.control.setting:
            self._value = self.control.within(state["value"])
            self._open = state["open"]
