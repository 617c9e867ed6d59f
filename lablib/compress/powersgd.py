"""PowerSGD: send two low-rank factors of every gradient matrix, updated by one step of the power method.

A gradient matrix M of m x c is close to a matrix of low rank r: M ~ P Q^T with P of m x r and Q of c x r. The best P
spans the largest singular vectors; a step of the power method approximates it, starting from the last step's Q. Each
factor is linear in M for a fixed other one, so an ordinary all-reduce can sum the factors of ranks:

    1. P = M Q                 all-reduce: the factor of the mean gradient
    2. P = orthonormal(P)      the same on every rank
    3. Q = M^T P               all-reduce to the mean; kept for the next step (warm start)
    4. M = P Q^T               the mean gradient, projected on r directions

Vectors (biases, norms) and matrices that are not larger than two factors are sent uncompressed, in one all-reduce that
overlaps with steps 1 to 3.

Cost for n ranks, a matrix of m x c, 4 bytes each:
    time_s      an all-reduce more (two in turn); 6 r m c FLOPs and 2 r^2 m for the QR decomposition
    peak bytes  4 r (m + c), and 4 r c kept
    sent bytes  2(n-1)/n 4 r (m + c) instead of 2(n-1)/n 4 m c
Shapes: m rows, c columns, r rank; a tensor of more dimensions is a matrix with its first as rows.
Source: Vogels, Karimireddy and Jaggi, "PowerSGD", 2019, arXiv 1905.13727, algorithm 1; error feedback: algorithm 2,
here by `error_feedback.py`.
Simplified: factors are found in 32 bits (or 64). A rank's own message is its projection P P^T M_rank, so
its residual is the part outside r directions; the paper, and torch's hook, subtract the mean's projection, so the
residual also has the rank's difference from the mean. Means, and so updates, are the same.
"""

from collections.abc import Sequence
from itertools import compress

import torch
import torch.distributed as dist
from torch import Tensor

from lablib.compress.lossy_average import Bucket, Exchange, LossyAverage
from lablib.parallel.data.overlapped import all_reduce_average
from lablib.signature import Count, checked


class PowerSGD(LossyAverage):
    """The mean gradient of each matrix, projected on `rank` directions that are updated in each step.

    Arguments:
        rank: of the factors, at least 1.
        seed: of the first Q, the same on all ranks.

    `factors`: index of the bucket -> the Q of each of its compressed matrices [c, r].
    """

    @checked
    def __init__(self, rank: Count = 2, seed: int = 0):
        self.rank, self.seed = rank, seed
        self.factors: dict[int, list[Tensor]] = {}

    def exchange(self, buffer: Tensor, group: dist.ProcessGroup | None, bucket: Bucket) -> Exchange:
        own = buffer.clone()  # tensors that are not compressed are sent in full
        is_thin = [is_compressed(shape, self.rank) for shape in bucket.shapes]
        matrices, own_matrices = (
            [tensor.flatten(1) for tensor in compress(_views(whole, bucket.shapes), is_thin)] for whole in (buffer, own)
        )
        others = [tensor for tensor, is_left in zip(_views(buffer, bucket.shapes), is_thin, strict=True) if not is_left]
        rest = torch.cat([buffer.new_empty(0), *(tensor.flatten() for tensor in others)])
        rest_handle = all_reduce_average(rest, group) if others else None
        if matrices:
            qs = self._last_factors(bucket.index, matrices)
            # 1. P = M Q
            ps = [matrix.to(q.dtype) @ q for matrix, q in zip(matrices, qs, strict=True)]
            flat = torch.cat([p.flatten() for p in ps])
            yield all_reduce_average(flat, group)
            # 2. P = orthonormal(P)
            ps = [torch.linalg.qr(p).Q for p in _views(flat, [p.shape for p in ps])]
            # 3. Q = M^T P
            own_qs = [matrix.to(p.dtype).T @ p for matrix, p in zip(matrices, ps, strict=True)]
            flat = torch.cat([q.flatten() for q in own_qs])
            yield all_reduce_average(flat, group)
            self.factors[bucket.index] = qs = _views(flat, [q.shape for q in own_qs])
            # 4. M = P Q^T
            for matrix, own_matrix, p, q, own_q in zip(matrices, own_matrices, ps, qs, own_qs, strict=True):
                matrix.copy_(p @ q.T)
                own_matrix.copy_(p @ own_q.T)
        if rest_handle is not None:
            yield rest_handle
            for tensor, mean in zip(others, _views(rest, [tensor.shape for tensor in others]), strict=True):
                tensor.copy_(mean)
        return own

    def _last_factors(self, index: int, matrices: list[Tensor]) -> list[Tensor]:
        """The Q of every matrix from the last step; random ones, equal on all ranks, before the first."""
        shapes = [torch.Size((m.shape[1], min(self.rank, *m.shape))) for m in matrices]
        if index not in self.factors:
            generator = torch.Generator().manual_seed(hash((self.seed, index)) % 2**63)
            drawn = [torch.randn(shape, generator=generator, device="cpu", dtype=torch.float64) for shape in shapes]
            kinds = [(matrix.device, torch.promote_types(matrix.dtype, torch.float32)) for matrix in matrices]
            self.factors[index] = [q.to(*kind) for q, kind in zip(drawn, kinds, strict=True)]
        if (kept := [q.shape for q in self.factors[index]]) != shapes:
            raise ValueError(
                f"PowerSGD: bucket {index} must keep its matrices: their factors were {_words(kept)} and would be "
                f"{_words(shapes)}; after a change of buckets, make a new PowerSGD."
            )
        return self.factors[index]


def is_compressed(shape: torch.Size, rank: int) -> bool:
    """Whether two factors of this rank are smaller than the tensor."""
    if len(shape) < 2:
        return False
    rows, columns = shape[0], shape[1:].numel()
    return min(rank, rows, columns) * (rows + columns) < rows * columns


def _views(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    parts = flat.view(-1).split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _words(shapes: Sequence[torch.Size]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes) or "none"
