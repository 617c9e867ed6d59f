"""What each operator keeps for backward: read from the graph that autograd has built.

An operator keeps what its derivative needs, and no more:

    y = x w^T       dx = dy w, dw = dy^T x                x and w            y = exp(x)      dx = dy y          y, not x
    y = a + b       da = db = dy                          nothing            y = relu(x)     dx = dy [y > 0]    y
    y = a b         da = dy b, db = dy a                  a and b            y = gelu(x)     dx = dy gelu'(x)   x
    y = softmax(x)  dx = y (dy - sum(dy y))               y                  y = layer_norm(x)  x, mean, 1/std

Nodes of the graph hold these tensors as attributes `_saved_*`, one for each name in torch's derivatives.yaml. Two of
them may be one memory (the output of one operator is the input of the next), and parameters are there anyway:
`activation_bytes` counts each memory once, without them.

Cost: one walk over the graph. Shapes: any.
Source: torch's notes "Autograd mechanics", section "Saved tensors" (torch 2.13); tools/autograd/derivatives.yaml.
Simplified: an operator written as a torch.autograd.Function shows its tensors without their names.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from torch import Tensor

from lablib.signature import checked


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that an operator keeps.

    Attributes:
        operator: the node that keeps it: "AddmmBackward0".
        name: of the operator's argument or result: "mat1", "result".
        shape: of the tensor.
        size_bytes: of its memory, all of it, though the tensor be a view of a part.
        storage: the address of that memory, by which two tensors are known to share it.
        is_parameter: whether the memory is a leaf's that wants a gradient.
    """

    operator: str
    name: str
    shape: tuple[int, ...]
    size_bytes: int
    storage: int
    is_parameter: bool


@checked
def saved_tensors(output: Tensor, parameters: Collection[Tensor] = ()) -> list[SavedTensor]:
    """What backward from `output` will read, from the last operator to the first.

    Arguments:
        output: result of a forward pass; not changed.
        parameters: whose memory is not counted as activation, such as `module.parameters()`.
    """
    owned = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    return [
        _record(node, name, tensor, owned)
        for node in _nodes(output)
        for name, tensor in _kept_by(node)
        if tensor.numel()
    ]


@checked
def activation_bytes(saved: Collection[SavedTensor]) -> int:
    """Bytes that are kept for backward and would not be there without it: each memory once, parameters left out."""
    return sum({tensor.storage: tensor.size_bytes for tensor in saved if not tensor.is_parameter}.values())


def _nodes(output: Tensor) -> Iterator[object]:
    """Every node of the graph, once: breadth first from the output."""
    waiting, seen = [output.grad_fn], set()
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [below for below, _ in node.next_functions]


def _kept_by(node: object) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors that a node keeps."""
    for attribute in dir(node):
        if attribute.startswith("_saved_"):
            value = getattr(node, attribute)
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, Tensor):
                    yield attribute.removeprefix("_saved_"), tensor
    for tensor in getattr(node, "saved_tensors", ()):
        yield "", tensor


def _record(node: object, name: str, tensor: Tensor, owned: set[int]) -> SavedTensor:
    storage = tensor.untyped_storage()
    address = storage.data_ptr()
    return SavedTensor(type(node).__name__, name, tuple(tensor.shape), storage.nbytes(), address, address in owned)
