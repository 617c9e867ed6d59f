"""Casts of torch.autocast: a table computed by running operators under it, and the terms of other libraries.

Parameters stay in FP32. Under autocast each operator has one of four rules for its inputs:

    lower      to the lower dtype: products, which are fast there and sum in FP32 inside
    float32    to FP32: sums of many numbers, and results outside FP16's range (softmax, norms, exponentials, losses)
    widest     all to the widest dtype among them: operators that refuse two dtypes, or mix them silently
    untouched  unchanged: all other operators

The rules differ between devices: a CPU leaves softmax and norms in the lower dtype, a GPU does not. The GPU's rules are
in every build of torch; operators run here on fake tensors, which have a device, a dtype and a shape, but no data.

Cost: some milliseconds for each operator, and no GPU.
Source: torch 2.13, "Automatic Mixed Precision package" (torch.amp), autocast op reference; Keras 3, `DTypePolicy`,
`LossScaleOptimizer` and `Model.compile`; DeepSpeed, "Configuration JSON", fp16, bf16 and torch_autocast.
Simplified: one call of each operator, with inputs of 8 x 8; each device has some dozens of further rules.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lablib.signature import OneOf, checked
from lablib.torch_compat import FakeTensorMode, TorchDispatchMode, to_copy

RULES = ("lower", "float32", "widest", "untouched")
DEVICE_TYPES = ("cpu", "cuda")
LOWER_DTYPES = (torch.bfloat16, torch.float16)


def _classes(x: Tensor) -> Tensor:
    return torch.zeros(len(x), dtype=torch.int64, device=x.device)


# Each with two inputs of 8 x 8; some need only the first.
OPERATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "linear": F.linear,
        "matmul": torch.matmul,
        "conv1d": lambda x, y: F.conv1d(x, y.unsqueeze(2)),
        "scaled_dot_product_attention": lambda x, y: F.scaled_dot_product_attention(x, y, y),
        "softmax": lambda x, y: F.softmax(x, -1),
        "log_softmax": lambda x, y: F.log_softmax(x, -1),
        "cross_entropy": lambda x, y: F.cross_entropy(x, _classes(x)),
        "mse_loss": F.mse_loss,
        "layer_norm": lambda x, y: F.layer_norm(x, (8,), y.select(0, 0)),
        "exp": lambda x, y: x.exp(),
        "log": lambda x, y: x.log(),
        "pow": lambda x, y: x**2,
        "sum": lambda x, y: x.sum(),
        "cumsum": lambda x, y: x.cumsum(0),
        "mean": lambda x, y: x.mean(),
        "add": torch.add,
        "mul": torch.mul,
        "addcmul": lambda x, y: torch.addcmul(x, x, y),
        "cat": lambda x, y: torch.cat([x, y]),
        "gelu": lambda x, y: F.gelu(x),
        "relu": lambda x, y: F.relu(x),
        "dropout": lambda x, y: F.dropout(x, 0.1),
        "embedding": lambda x, y: F.embedding(_classes(x), x),
    }
)


@checked
def autocast_casts(
    device_type: Annotated[str, OneOf(DEVICE_TYPES)] = "cuda",
    dtype: Annotated[torch.dtype, OneOf(LOWER_DTYPES)] = torch.float16,
) -> dict[str, str]:
    """Name -> rule, one of `RULES`, of each of `OPERATORS` under torch.autocast to `dtype`; needs no such device."""
    with FakeTensorMode():
        return {name: find_rule(operator, device_type, dtype) for name, operator in OPERATORS.items()}


def find_rule(operator: Callable[[Tensor, Tensor], Tensor], device_type: str, dtype: torch.dtype) -> str:
    """The rule of an operator, from its results on inputs of both dtypes and of a mixture."""

    def run(*dtypes: torch.dtype) -> tuple[torch.dtype, bool]:
        inputs = (torch.ones(8, 8, device=device_type, dtype=one) for one in dtypes)
        with autocast(device_type, dtype), _Casts() as casts:
            return operator(*inputs).dtype, torch.float32 in casts.dtypes

    wide = torch.float32
    if run(wide, wide)[0] == dtype:
        return "lower"
    if run(dtype, dtype)[0] == wide:
        return "float32"
    try:
        is_widened = run(dtype, wide) == (wide, True)
    except RuntimeError:  # it refuses two dtypes, even under autocast
        is_widened = False
    return "widest" if is_widened else "untouched"


@contextmanager
def autocast(device_type: str, dtype: torch.dtype) -> Iterator[None]:
    """`torch.autocast(device_type, dtype)`, but also enabled without such a device.

    Casts of parameters are not cached: all threads share torch's cache, so one rank would clear it for all.
    """
    before = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
    caches = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(caches)
        torch.set_autocast_enabled(device_type, before[0])
        torch.set_autocast_dtype(device_type, before[1])


class _Casts(TorchDispatchMode):
    """Record the dtypes to which tensors are cast."""

    def __init__(self):
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if func is to_copy and kwargs.get("dtype"):
            self.dtypes.add(kwargs["dtype"])
        return func(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """The names of one concept in three libraries; "-" if a library has none."""

    what: str  # the concept
    torch: str  # torch, keras, deepspeed: its name in each
    keras: str
    deepspeed: str


COUNTERPARTS = (
    Counterpart(
        "forward and backward in FP16",
        'torch.autocast("cuda", torch.float16): operator by operator',
        'policy "mixed_float16": layer by layer, its compute_dtype',
        '"fp16": {"enabled": true}: the whole model is cast',
    ),
    Counterpart(
        "the same in BF16",
        'torch.autocast("cuda", torch.bfloat16)',
        'policy "mixed_bfloat16"',
        '"bf16": {"enabled": true}',
    ),
    Counterpart(
        "operator by operator, by torch's table",
        "torch.autocast",
        "-",
        '"torch_autocast": {"enabled": true, "dtype": "bfloat16"}',
    ),
    Counterpart(
        "weights in FP32",
        "parameters are never cast",
        "variable_dtype, float32 in both mixed policies",
        "the optimizer's copy, unless bf16_master_weights_and_grads",
    ),
    Counterpart(
        "one part that stays in FP32", 'torch.autocast("cuda", enabled=False)', 'dtype="float32" of a layer', "-"
    ),
    Counterpart(
        "a loss scale that follows the run",
        "torch.amp.GradScaler",
        "LossScaleOptimizer; compile adds it under mixed_float16",
        '"loss_scale": 0',
    ),
    Counterpart("its first value", "init_scale, 2^16", "initial_scale, 2^15", "initial_scale_power, 16: 2^16"),
    Counterpart(
        "steps without overflow until it doubles",
        "growth_interval, 2000",
        "dynamic_growth_steps, 2000",
        "loss_scale_window, 1000",
    ),
    Counterpart(
        "a loss scale that does not change",
        "multiply the loss, divide the gradients",
        "loss_scale_factor of the optimizer",
        '"loss_scale": 1024',
    ),
)
