"""Memory that each operator keeps for backward, read from autograd's graph.

An operator keeps what its derivative needs, and no more. With dy the gradient of its result:

    y = x w^T       dx = dy w, dw = dy^T x         x and w          y = exp(x)         dx = dy y           y, not x
    y = a + b       da = db = dy                   nothing          y = relu(x)        dx = dy [y > 0]     y
    y = a b         da = dy b, db = dy a           a and b          y = gelu(x)        dx = dy gelu'(x)    x
    y = softmax(x)  dx = y (dy - sum(dy y))        y                y = layer_norm(x)  see the table     x, mean, 1/std

Nodes of the graph hold these tensors as attributes `_saved_*`, one for each name in torch's derivatives.yaml. Two of
them may share memory (the output of one operator is the input of the next), and parameters are in memory anyway:
`activation_bytes` counts shared memory once, without parameters.

Cost: one walk over the graph. Shapes: any.
Source: torch's notes "Autograd mechanics", section "Saved tensors" (torch 2.13); tools/autograd/derivatives.yaml.
Simplified: tensors packed by a saved-tensor hook (checkpointing, compression, offload) are left out, as reading them
would run the hook; the memory tracker of a launch counts them. An operator written as a torch.autograd.Function lists
all its tensors under the name "tensors".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from lablib.signature import checked
from lablib.torch_compat import storage_id

if TYPE_CHECKING:
    import pandas as pd

_PRODUCT = "da = dy b^T, db = a^T dy"
_ATTENTION = (
    "p = exp(q k^T / sqrt(K) - logsumexp) again; dv = p^T dy, ds = p (dy v^T - sum(dy y)), dq = ds k, dk = ds^T q"
)
# By the node's name without "Backward0". `y` is the operator's result, `dy` its gradient; sums go over the last dim.
DERIVATIVES = {
    "Addmm": "dx = dy w, dw = dy^T x, db = sum of dy over tokens",
    "Mm": _PRODUCT,
    "Bmm": _PRODUCT,
    "Mul": "da = dy b, db = dy a",
    "Div": "da = dy / b, db = -dy a / b^2",
    "Add": "da = db = dy",
    "Exp": "dx = dy y",
    "Tanh": "dx = dy (1 - y^2)",
    "Sigmoid": "dx = dy y (1 - y)",
    "Relu": "dx = dy [y > 0]",
    "Gelu": "dx = dy gelu'(x)",
    "Silu": "dx = dy silu'(x)",
    "Softmax": "dx = y (dy - sum(dy y))",
    "LogSoftmax": "dx = dy - exp(y) sum(dy)",
    "NativeLayerNorm": "z = (x - mean) / std, dz = dy weight; dx = (dz - mean(dz) - z mean(dz z)) / std",
    "NativeDropout": "dx = dy mask / (1 - p)",
    "Embedding": "dw[i] = sum of dy where the token is i",
    "NllLoss": "dx[target] = -dy / tokens",
    "ScaledDotProductFlashAttentionForCpu": _ATTENTION,
    "ScaledDotProductFlashAttention": _ATTENTION,
}


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that an operator keeps."""

    operator: str  # the node that keeps it: "AddmmBackward0"
    name: str  # of the operator's argument or result: "mat1", "result"
    shape: tuple[int, ...]  # of the tensor
    size_bytes: int  # of its whole memory, even if the tensor is a view of a part
    storage: int  # the address of that memory, which is equal for tensors that share it
    is_parameter: bool  # whether the memory is a parameter's

    @property
    def derivative(self) -> str:
        """Why it is kept: the operator's derivative, "" if it is not in `DERIVATIVES`."""
        return DERIVATIVES.get(self.operator.split("Backward")[0], "")


@checked
def saved_tensors(output: Tensor, parameters: Iterable[Tensor] = ()) -> list[SavedTensor]:
    """The tensors saved for backward from `output`, before its backward, from the last operator to the first.

    `parameters`: further tensors that are in memory anyway, such as frozen weights. An `nn.Parameter` that requires a
    gradient is found automatically. ValueError: backward has run and freed the memory.
    """
    nodes = list(_nodes(output))
    leaves = [leaf for node in nodes if isinstance(leaf := getattr(node, "variable", None), nn.Parameter)]
    owned = {storage_id(parameter.untyped_storage()) for parameter in (*parameters, *leaves)}
    try:
        kept = [(node, name, tensor) for node in nodes for name, tensor in _kept_by(node) if tensor.numel()]
    except RuntimeError as error:
        raise ValueError(
            "saved tensors are gone after backward: got a result with a finished backward. Look before backward()."
        ) from error
    return [_record(*each, owned) for each in kept]


@checked
def activation_bytes(saved: Iterable[SavedTensor]) -> int:
    """Bytes kept only for backward: shared memory once, without parameters."""
    return sum({tensor.storage: tensor.size_bytes for tensor in saved if not tensor.is_parameter}.values())


@checked
def table(saved: Iterable[SavedTensor]) -> pd.DataFrame:
    """A row for each saved tensor; `bytes` is 0 if the memory is a parameter's or is in an earlier row."""
    import pandas as pd

    rows, seen = [], set()
    for each in saved:
        is_new = not each.is_parameter and each.storage not in seen
        seen.add(each.storage)
        rows.append((each.operator, each.name, each.shape, each.size_bytes if is_new else 0, each.derivative))
    return pd.DataFrame(rows, columns=["operator", "saves", "shape", "bytes", "derivative"])


def _nodes(output: Tensor) -> Iterator[Any]:
    """Every node of the graph, once: breadth first from the output."""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [below for below, _ in node.next_functions]


def _kept_by(node: Any) -> Iterator[tuple[str, Tensor]]:
    for attribute in dir(node):
        if not attribute.startswith("_raw_saved_"):
            continue
        if any(raw.unpack_hook is not None for raw in _as_list(getattr(node, attribute))):
            continue
        name = attribute.removeprefix("_raw_saved_")
        # A torch.autograd.Function keeps all its tensors under one name.
        for tensor in _as_list(getattr(node, "saved_tensors" if name == "tensors" else f"_saved_{name}")):
            if isinstance(tensor, Tensor):
                yield name, tensor


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else [value]


def _record(node: Any, name: str, tensor: Tensor, owned: set[int]) -> SavedTensor:
    storage = tensor.untyped_storage()
    address = storage_id(storage)
    return SavedTensor(type(node).__name__, name, tuple(tensor.shape), storage.nbytes(), address, address in owned)
