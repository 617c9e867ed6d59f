"""A tensor of the whole model of which a rank has some boxes, for torch.distributed.checkpoint.

A shard of ZeRO is a run of numbers across parameters; a shard of a mesh is a run of a tensor-parallel shard. Either is
a few boxes of the parameter (lablib/parallel/mesh/checkpoint.py has the picture). A checkpoint that names them by
parameter and place can be read by any other layout: torch's planner finds the saved boxes that overlap the wanted ones.

    w [3, 6]          rank 0 has        rank 1 has             BoxedTensor((3, 6), dtype, [(corner, view), ...])
    a a a a b b       a at (0, 0)       b at (0, 4)
    b b b b b b                         b at (1, 0)            a reader asks for the boxes of another layout
    c c c c c c                         (c on rank 2)

Plain tensors (one box: all of it) and DTensors (one box a rank) are saved and read in the same way by torch, so layouts
mix: a run saved by ZeRO-3 goes on under fully_shard.

Cost: names and places; the views share the memory of the shard.
Legend: a box is its first corner and a view with its sizes, both with the dimensions of the whole tensor.
Source: torch.distributed.checkpoint (torch 2.13): `__create_write_items__`, `__create_chunk_list__` and
`__get_tensor_shard__` are its protocol for sharded tensors, as DTensor has it.
Simplified: no operators: a `BoxedTensor` is only saved and loaded.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from lablib.parallel.mesh.checkpoint import boxes_of_run
from lablib.parallel.zero.shards import FlatLayout
from lablib.torch_compat import make_wrapper

LocalBox = tuple[Sequence[int], Tensor]  # first corner, view


class BoxedTensor(Tensor):
    """The boxes of a tensor on this rank, perhaps none.

    Arguments:
        shape, dtype: of the whole tensor.
        boxes: on this rank; views, which a load fills.
        is_saved: False: another rank saves the same numbers.
    """

    boxes: list[LocalBox]
    is_saved: bool

    @staticmethod
    def __new__(
        cls, shape: Sequence[int], dtype: torch.dtype, boxes: Iterable[LocalBox] = (), is_saved: bool = True
    ) -> "BoxedTensor":
        made = make_wrapper(cls, tuple(shape), dtype=dtype, device="cpu")
        made.boxes, made.is_saved = list(boxes), is_saved
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise TypeError(f"a BoxedTensor is only saved and loaded: got {func}; use the views of its boxes.")

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"BoxedTensor({tuple(self.shape)}, {self.dtype}, boxes at {[tuple(corner) for corner, _ in self.boxes]})"

    # ---- the protocol of torch.distributed.checkpoint ----

    def __create_write_items__(self, fqn: str, tensor: Any) -> list[WriteItem]:
        chunks, properties = self.__create_chunk_list__() if self.is_saved else (), TensorProperties(dtype=self.dtype)
        data = (TensorWriteData(chunk, properties, self.shape) for chunk in chunks)
        kind = WriteItemType.SHARD
        return [WriteItem(MetadataIndex(fqn, one.chunk.offsets), kind, tensor_data=one) for one in data]

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(corner), view.shape) for corner, view in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> Tensor:
        return next(view for corner, view in self.boxes if torch.Size(corner) == index.offset)


def boxed_shard(layout: FlatLayout, rank: int, shard: Tensor) -> dict[str, Tensor]:
    """A tensor like this rank's shard of a flat buffer, as boxes of each parameter of the buffer. Views."""
    pieces = {piece.name: piece for piece in layout.pieces(rank)}
    found: dict[str, Tensor] = {}
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        boxes: list[LocalBox] = []
        if name in pieces:
            _, first, start, numel = pieces[name]
            places = boxes_of_run(shape, first, numel)
            views = shard[start : start + numel].split([torch.Size(box.sizes).numel() for box in places])
            boxes = [(box.corner, view.view(box.sizes)) for box, view in zip(places, views, strict=True)]
        found[name] = BoxedTensor(shape, shard.dtype, boxes)
    return found


@torch.no_grad()
def copy_boxes(to: Tensor, source: Tensor) -> None:
    """Copy a tensor, or the boxes of one with the same boxes."""
    if isinstance(to, BoxedTensor) and isinstance(source, BoxedTensor):
        for (_, view), (_, given) in zip(to.boxes, source.boxes, strict=True):
            view.copy_(given)
    else:
        to.copy_(source)
