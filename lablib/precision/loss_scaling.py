"""Loss scaling: multiply the loss, so that small gradients do not underflow in FP16; divide before the step.

FP16's smallest number is 2^-24, and many gradients are smaller: rounded to zero, they are lost. Backward is linear, so
a loss times S has gradients times S, which are in FP16's range. Divided by S in FP32 they are the true gradients. If S
is too large, some overflow to infinity: the step is skipped, as its gradients are lost, and S is lowered. So S adapts
to the largest gradients of the run:

    overflow                            skip the step; at the last of `hysteresis` overflows, S <- S * backoff
    `interval` steps without overflow   S <- S * growth, at most `maximum`; all of `hysteresis` again

    with hysteresis 1 and no bounds     torch.amp.GradScaler's rule
    with hysteresis 2, interval 1000    DeepSpeed's, with `loss_scale_window`, and `initial_scale_power` 16: S = 2^16

The rule is a pure function of the state (`ScaleRule.after`); `LossScaler` applies it. All ranks must agree: an overflow
on one rank skips the step on all.

Cost: each gradient is read twice and written once, by kernels that take many gradients (torch's foreach functions); a
flag of 4 bytes for each all-reduce of it. Memory: one number per gradient.
Shapes: gradients have their parameters' shapes.
Source: Micikevicius et al., "Mixed Precision Training", 2017, arXiv 1710.03740, section 3.2; the defaults:
torch.amp.GradScaler (torch 2.13) and DeepSpeed's configuration of fp16.
Simplified: gradients in FP32 or FP64 (master gradients), as torch's scaler demands.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.signature import (
    Checked,
    Count,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveFraction,
    Range,
    check_fields,
    check_type,
    checked,
)
from lablib.torch_compat import foreach_mul_, foreach_norm

LARGEST_SCALE = 2.0**24


@dataclass(frozen=True, slots=True)
class ScaleState(Checked):
    """State of a loss scale: the scale, steps in a row without overflow, overflows left until it is lowered."""

    scale: NonNegative
    good_steps: NonNegativeInt
    overflows_left: NonNegativeInt


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """Rule for growing and shrinking a loss scale."""

    initial: Positive = 2.0**16  # the first scale
    growth: Annotated[float, Range(ge=1)] = 2.0  # factor by which it grows; 1 for a static scale
    backoff: PositiveFraction = 0.5  # factor by which it shrinks, at most 1; 1 for a static scale
    interval: Count = 2000  # steps in a row without overflow after which it grows
    hysteresis: Count = 1  # overflows after which it shrinks; growing restores the count
    minimum: float = 0.0  # minimum, maximum: bounds of the scale
    maximum: float = LARGEST_SCALE

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.minimum <= self.initial <= self.maximum:
            raise ValueError(
                f"the scale must start within its bounds: got {self.initial} outside {self.minimum} to {self.maximum}."
            )

    def start(self) -> ScaleState:
        return ScaleState(self.initial, 0, self.hysteresis)

    def after(self, state: ScaleState, overflow: bool) -> ScaleState:
        """The state after one more step."""
        if overflow:
            left = max(state.overflows_left - 1, 0)
            scale = state.scale if left else max(state.scale * self.backoff, self.minimum)
            return ScaleState(scale, 0, left)
        if state.good_steps + 1 < self.interval:
            return ScaleState(state.scale, state.good_steps + 1, state.overflows_left)
        return ScaleState(min(state.scale * self.growth, self.maximum), 0, self.hysteresis)


def static_scale(scale: float) -> ScaleRule:
    """A scale that never changes; a step with overflow is still skipped."""
    return ScaleRule(scale, growth=1.0, backoff=1.0, maximum=max(scale, LARGEST_SCALE))


@checked
def deepspeed_rule(
    initial_scale_power: Annotated[int, Range(ge=-1000, le=1000)] = 16,
    loss_scale_window: int = 1000,
    hysteresis: int = 2,
    min_loss_scale: float = 1.0,
) -> ScaleRule:
    """DeepSpeed's dynamic rule, by the names and the defaults of its configuration; it has no maximum."""
    return ScaleRule(
        2.0**initial_scale_power,
        interval=loss_scale_window,
        hysteresis=hysteresis,
        minimum=min_loss_scale,
        maximum=math.inf,
    )


class LossScaler:
    """Scale losses, unscale gradients, skip steps with overflow; same calls and order as torch.amp.GradScaler.

        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)        # only if something needs true gradients before the step: clipping
        scaler.step(optimizer)
        scaler.update()

    Arguments:
        rule: when the scale grows and shrinks.
        group: ranks that skip together; None: all ranks.
    """

    def __init__(self, rule: ScaleRule | None = None, group: dist.ProcessGroup | None = None):
        self.rule = rule or ScaleRule()
        self.state = self.rule.start()
        self._group = group
        self._overflows: dict[torch.optim.Optimizer, bool] = {}  # unscaled since the last update
        self._stepped: set[torch.optim.Optimizer] = set()

    @property
    def loss_scale(self) -> float:
        return self.state.scale

    def scale(self, loss: Tensor) -> Tensor:
        """The loss, `loss_scale` times as large. In FP16 it may itself overflow: compute losses in FP32."""
        return loss * self.loss_scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> bool:
        """Divide the gradients of an optimizer by the scale, in place; returns whether any overflowed, on any rank.

        Communicates one flag if there are several ranks. RuntimeError: they were unscaled since the last `update`, or
        are in FP16.
        """
        if optimizer in self._overflows:
            raise RuntimeError("unscale_() was called for this optimizer since the last update(); call it once a step.")
        gradients = [
            param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None
        ]
        device = next((grad.device for grad in gradients), None)
        overflow = self._agree(unscale(gradients, self.loss_scale), device)
        self._overflows[optimizer] = overflow
        return overflow

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(...)` with true gradients; skipped if any rank overflowed. RuntimeError: a second step."""
        if optimizer in self._stepped:
            raise RuntimeError("step() was called for this optimizer since the last update(); call update() after it.")
        if optimizer not in self._overflows:
            self.unscale_(optimizer)
        self._stepped.add(optimizer)
        return None if self._overflows[optimizer] else optimizer.step(*args, **kwargs)

    def update(self) -> None:
        """Set the next step's scale, once after the steps of all optimizers. RuntimeError: nothing was unscaled."""
        if not self._overflows:
            raise RuntimeError("update() follows the step of at least one optimizer: call step(optimizer) first.")
        self.state = self.rule.after(self.state, any(self._overflows.values()))
        self._overflows.clear()
        self._stepped.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"rule": asdict(self.rule), **asdict(self.state)}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore state and rule of a saved scaler. ValueError: other entries, such as torch's, or invalid values."""
        expected = self.state_dict()
        _check_entries("a scaler's state", saved, expected)
        _check_entries("a scaler's rule", saved["rule"], expected["rule"])
        rule = ScaleRule(**saved["rule"])
        state = ScaleState(**{name: value for name, value in saved.items() if name != "rule"})
        self.rule, self.state = rule, state  # both, or neither

    def _agree(self, overflow: bool, device: torch.device | None) -> bool:
        """Whether any rank has an overflow; the flag is sent from `device` (None: the default device)."""
        if not dist.is_initialized() or dist.get_world_size(self._group) < 2:
            return overflow
        flag = torch.tensor(float(overflow), device=device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=self._group)
        return bool(flag)


@checked
def unscale(gradients: Iterable[Tensor], scale: Positive) -> bool:
    """Divide gradients by a scale, in place; returns whether any has an infinity or a NaN.

    Raises:
        ValueError: one has whole numbers.
        RuntimeError: one is in FP16, where it would underflow again.
    """
    gradients = list(gradients)
    check_type("unscale: gradients", gradients, list[Tensor])
    inverse, overflow = 1.0 / scale, False
    together: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if not gradient.is_floating_point():
            raise ValueError(
                f"gradients must be floating-point tensors: got {gradient.dtype}; give weights' gradients."
            )
        if gradient.dtype == torch.float16:
            raise RuntimeError("gradients in FP16 underflow again when unscaled; keep master weights in float32.")
        if type(gradient) is Tensor and gradient.layout == torch.strided and gradient.numel():
            together.setdefault((gradient.device, gradient.dtype), []).append(gradient)
            continue
        values = gradient.coalesce().values() if gradient.is_sparse else gradient
        overflow |= not bool(values.isfinite().all())
        gradient.mul_(inverse)
    for same in together.values():  # a few kernels and one synchronization, not three per gradient
        largest = torch.stack(foreach_norm(same, math.inf))
        foreach_mul_(same, inverse)
        overflow |= not bool(largest.isfinite().all())
    return overflow


def _check_entries(what: str, saved: Any, expected: dict[str, Any]) -> None:
    names = saved.keys() if isinstance(saved, dict) else ()
    if names != expected.keys():
        raise ValueError(
            f"{what} has the entries {', '.join(expected)}: got {', '.join(map(str, names)) or 'none'}; "
            "save it with LossScaler.state_dict()."
        )
