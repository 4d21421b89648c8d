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
    # Added or subtracted; where the value ``doubles``, its smallest size.
    step: float
    # It is doubled and halved. At the size of a step it changes sign instead, or stays where 0 is out of bounds.
    doubles: bool = False
    # 1 if a larger value raises the entropy, -1 if it lowers it.
    raises: int = 1
    # It counts as 0 after a step whose entropy was not below the target.
    gated: bool = False
    # What an entropy of exactly the target counts as: 0, neither above nor below, or 1, above it, as published.
    at_target: int = 0

    def moved(self, value: float, direction: int) -> float:
        """Return the setting after one step in a direction, within the bounds.

        A value that ``doubles`` is doubled away from 0, and halved toward 0 down to the size of ``step``. There it
        changes its sign. A value of 0 becomes ``step`` or -``step``.

        Args:
            value: The setting now.
            direction: 1 to raise the setting, -1 to lower it, 0 to leave it unchanged.
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
        """Return the nearest value that the loop can be at."""
        value = min(max(value, self.low), self.high)
        return math.copysign(self.step, value) if self.doubles and 0 < abs(value) < self.step else value


@dataclass(frozen=True)
class Gains:
    """The gains of a PI loop for the gap between the target and the entropy."""

    # The setting moves by as much for each nat of the last gap.
    proportional: float
    # The same for each nat of the sum of the gaps before.
    integral: float
    # Largest size of that sum, in nats.
    integral_limit: float = math.inf


def pi_value(control: Control, start: float, gains: Gains, gap: float, integral: float) -> float:
    """Return the setting that a PI loop gives: start + raises * (K_p gap + K_i integral), within the bounds.

    Args:
        control: With the bounds, and the direction in which the setting moves the entropy.
        start: The setting without a gap.
        gains: K_p and K_i.
        gap: Target less entropy, in nats.
        integral: Sum of the gaps of the steps before this one, in nats.

    Reference:
        EntroPIC, arXiv 2511.15248, by ``dp_actor.py`` of its released code: its alpha has the start 0, lowers the
        entropy (raises = -1), and lies in [-1, 1]. There, the sign of the gap is the other one.
    """
    moved = start + control.raises * (gains.proportional * gap + gains.integral * integral)
    return min(max(moved, control.low), control.high)


# Steps in a row at a bound after which a PI loop warns: the sum of the gaps grows on, so that it will overshoot.
STEPS_AT_A_BOUND = 20


class Controller:
    """Moves the setting of ``control`` from ``start`` toward the target entropy, once per global step.

    Without ``gains`` it moves by the sign of (target - entropy); with them by their size, as ``pi_value`` says.

    The entropy is that of the policy before the updates of a global step, exact, over all tokens of its graded
    responses; what follows from it is applied in the next step. Within ``band`` nats of the target the value stays
    where it is; at the target itself, without a band, the sign form does what the control says. A gate is part of the
    sign form alone.
    """

    def __init__(self, control: Control, start: float, band: float = 0.0, gains: Gains | None = None) -> None:
        self.control = control
        self.band = band
        self.gains = gains
        self._start = start
        self._value = start
        self._open = True
        # Of the PI form: the sum of the gaps so far, and the steps in a row that ended at a bound.
        self._integral = 0.0
        self._at_bound = 0

    @property
    def applied(self) -> dict[str, float]:
        """The setting, and its value in the step to come."""
        return {self.control.setting: self._value if self._open or not self.control.gated else 0.0}

    def step(self, entropy: float, target: float) -> dict[str, float]:
        """Move the setting by the entropy of a finished step, and return the metrics of that step.

        Args:
            entropy: Mean entropy over all tokens of the step before its updates, in nats. If it is not finite, the
                setting stays unchanged.
            target: ``--entropy_target`` in this step, in nats.

        Returns:
            ``control/value``, the setting during the step, and ``control/gap``, target less entropy.
        """
        gap = target - entropy
        metrics = {"control/value": self.applied[self.control.setting], "control/gap": gap}
        if math.isfinite(gap) and self.gains:
            self._move_by_gap(self.gains, gap)
        elif math.isfinite(gap):
            self._value = self.control.moved(self._value, self._direction(gap) * self.control.raises)
            self._open = gap > 0
        return metrics

    def _direction(self, gap: float) -> int:
        """Return 1 where the entropy is to rise, -1 where it is to fall, 0 where it is to stay."""
        if abs(gap) < self.band:
            return 0
        if gap == 0:
            return -self.control.at_target
        return 1 if gap > 0 else -1

    def _move_by_gap(self, gains: Gains, gap: float) -> None:
        if abs(gap) >= self.band:
            self._value = pi_value(self.control, self._start, gains, gap, self._integral)
        # The gap of this step acts through the sum from the next step on, as in the released code.
        limit = gains.integral_limit
        # Without a limit the sum grows while the setting is at its bound, and the loop overshoots afterwards.
        self._integral = min(max(self._integral + gap, -limit), limit)
        is_at_bound = self._value in (self.control.low, self.control.high)
        self._at_bound = self._at_bound + 1 if is_at_bound else 0

    @property
    def warning(self) -> str | None:
        """A message in the step in which a PI loop has been at a bound for ``STEPS_AT_A_BOUND`` steps, else None."""
        if self.gains is None or self.gains.integral == 0 or self._at_bound != STEPS_AT_A_BOUND:
            return None
        return (
            f"--entropy_target held --{self.control.setting} at its bound {self._value:g} for {STEPS_AT_A_BOUND} "
            f"steps; the sum of the gaps is {self._integral:.3g} nats and grows on, so the loop will overshoot: give "
            "--entropy_integral_limit, wider bounds or another target"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that the next step depends on."""
        return {
            "setting": self.control.setting,
            "value": self._value,
            "open": self._open,
            "integral": self._integral,
            "at_bound": self._at_bound,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Continue from ``state_dict``, within the bounds; from the start if that is None or of another setting."""
        if state is not None and state["setting"] == self.control.setting:
            self._value = self.control.within(state["value"])
            self._open = state["open"]
            self._integral = state["integral"]
            self._at_bound = state["at_bound"]
