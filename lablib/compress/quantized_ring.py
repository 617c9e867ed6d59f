"""A ring all-reduce that quantizes at every hop, and its error, compared with two phases.

In a ring (lablib/parallel/collectives/ring.py) partial sums are sent. With compression, every hop quantizes its
message: the next rank reads it, adds its own part, and quantizes again. A number is rounded n - 1 times in the sum and
once more in the all-gather of the mean. In addition, partial sums grow, and so do the rounding steps.

    independent numbers of size 1 on n ranks, rounded to a relative error q; their sum has size sqrt(n)

    two-phase    n numbers of size 1, then the sum            n q^2 + n q^2                   relative  sqrt(2) q
    ring         partial sums of h = 1 .. n-1, then the sum   (1 + 2 + ... + n-1) q^2 + n q^2          sqrt((n+1) / 2) q

So the relative error of two phases does not depend on n, and the ring's error is sqrt(n) / 2 times larger
(`error_growth` measures both).

Cost: as the ring all-reduce with messages of S_q: 2 (n-1) (alpha + S_q beta), 2 (n-1) S_q sent; n P numbers are
quantized and read piece by piece between the hops, in two phases all at once.
Shapes: buffer [N], pieces [n, P].
Source: Wang et al., "ZeRO++", 2023, arXiv 2306.10209, section 3.3 (why qgZ replaces the ring: quantizing at each hop).
Simplified: for comparison only, without overlap.
"""

from collections.abc import Sequence
from typing import Annotated

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.compress.quantized import Quantizer
from lablib.compress.quantized_all_gather import INT8, quantized_on
from lablib.compress.quantized_all_reduce import in_pieces
from lablib.parallel.collectives.ring import exchange
from lablib.signature import NonNegativeInt, Range, checked


@torch.no_grad()
def quantized_ring_all_reduce(
    buffer: Tensor, group: dist.ProcessGroup | None = None, quantizer: Quantizer = INT8
) -> None:
    """Replace `buffer` by its mean over the ranks, quantizing at every hop. Communicates: 2 (n-1) messages per rank.

    Arguments as in `quantized_all_reduce`. ValueError: numbers that are not floating-point or not finite.
    """
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    if n == 1 or not buffer.numel():
        return
    pieces = in_pieces(buffer, n)
    after, before, numel = (rank + 1) % n, (rank - 1) % n, pieces.shape[1]

    # Reduce-scatter: the received piece is read, added to, and quantized again.
    partial = pieces[rank].float()
    for step in range(n - 1):
        outgoing = quantized_on("a partial sum", partial, quantizer, group).message()
        incoming = torch.empty_like(outgoing)
        exchange(outgoing, after, incoming, before, group)
        read = quantizer.dequantize(quantizer.from_message(incoming, numel))
        partial = read + pieces[(rank - step - 1) % n]

    # All-gather: the means are quantized once, and their codes passed on.
    message = quantized_on("the mean", partial / n, quantizer, group).message()
    means = message.new_empty(n, message.numel())
    for step in range(n):
        means[(rank - step + 1) % n] = message
        if step < n - 1:
            incoming = torch.empty_like(message)
            exchange(message, after, incoming, before, group)
            message = incoming
    found = quantizer.dequantize(quantizer.from_message(means, numel)).flatten()
    buffer.copy_(found[: buffer.numel()].view(buffer.shape))


@checked
@torch.no_grad()
def two_phase_mean(parts: Sequence[Tensor], quantizer: Quantizer = INT8) -> Tensor:
    """The mean as `quantized_all_reduce` finds it, on one device: float32 [N], from one tensor [N] per rank.

    ValueError: no rank, tensors of several sizes, numbers that are not floating-point or not finite.
    """
    n, numel = _sizes(parts)
    if n == 1 or not numel:
        return parts[0].float()
    codes = [_there_and_back(in_pieces(part, n), quantizer) for part in parts]
    # Piece by piece, as on its rank: the order in which torch sums depends on the shape.
    mean = torch.stack([piece.sum(dim=0) for piece in torch.stack(codes, dim=1)]) / n
    return _there_and_back(mean, quantizer).flatten()[:numel]


@checked
@torch.no_grad()
def ring_mean(parts: Sequence[Tensor], quantizer: Quantizer = INT8) -> Tensor:
    """The mean as `quantized_ring_all_reduce` finds it, on one device. Arguments and Raises as in `two_phase_mean`."""
    n, numel = _sizes(parts)
    if n == 1 or not numel:
        return parts[0].float()
    pieces = [in_pieces(part, n) for part in parts]
    sums = torch.empty(pieces[0].shape)
    for piece in range(n):
        partial = pieces[piece][piece].float()
        for hop in range(1, n):
            partial = _there_and_back(partial, quantizer) + pieces[(piece + hop) % n][piece]
        sums[piece] = partial
    return _there_and_back(sums / n, quantizer).flatten()[:numel]


@checked
def error_growth(
    ranks: Sequence[Annotated[int, Range(ge=1, le=256)]],
    quantizer: Quantizer = INT8,
    numel: Annotated[int, Range(ge=1, le=2**16)] = 2**14,
    seed: NonNegativeInt = 0,
) -> dict[str, list[float]]:
    """Relative error of the mean, |found - mean| / |mean| of norms, for each number of ranks, two-phase and in a ring.

    Every rank has different standard normal numbers. Pure; runs without ranks.
    """
    found: dict[str, list[float]] = {"two-phase": [], "ring": []}
    generator = torch.Generator().manual_seed(seed)
    for n in ranks:
        parts = [torch.randn(numel, generator=generator) for _ in range(n)]
        mean = torch.stack(parts).double().mean(dim=0)
        for name, way in (("two-phase", two_phase_mean), ("ring", ring_mean)):
            found[name].append(float((way(parts, quantizer) - mean).norm() / mean.norm()))
    return found


def _sizes(parts: Sequence[Tensor]) -> tuple[int, int]:
    sizes = {part.shape for part in parts}
    if len(sizes) != 1 or any(part.ndim != 1 for part in parts):
        raise ValueError(f"give one tensor [N] per rank, all of one size: got {len(parts)} of {len(sizes)} sizes.")
    return len(parts), parts[0].numel()


def _there_and_back(x: Tensor, quantizer: Quantizer) -> Tensor:
    return quantizer.dequantize(quantizer.quantize(x))
