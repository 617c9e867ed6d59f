"""Costs of the actions of a pipeline: seconds per piece and per message, and bytes held.

Every number is given once for all pieces, or as a sequence with one for each piece: the first holds the embedding, the
last the head and the loss, so they are rarely equal.

    Costs()                                      F = I = W = 1, B = 2, messages free
    Costs(forward_s=[3, 2, 2, 4])                I = W = F, B = 2 F, piece by piece
    Costs(forward_s=1, backward_s=2, send_s=0.1, overlap=False)

Legend: p ranks, v pieces on each, p v pieces in all; a boundary lies between piece i and piece i + 1.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass

from lablib.pipeline.plan import Plan
from lablib.signature import Checked, Fraction, NonNegative

Each = NonNegative | Sequence[NonNegative]  # one number for all, or one for each


@dataclass(frozen=True)
class Costs(Checked):
    """Seconds and bytes of one micro-batch."""

    forward_s: Each = 1.0  # F of a piece
    backward_s: Each | None = None  # B of a piece, input and weights together; None: `input_s` + `weight_s`
    # input_s, weight_s: I and W of a piece; None: half of `backward_s` if given, otherwise `forward_s`
    input_s: Each | None = None
    weight_s: Each | None = None
    # a message between neighbouring pieces on different ranks, in either direction; one number, or one for each of the
    # p v - 1 boundaries
    send_s: Each = 0.0
    # True: messages travel while the ranks compute. False: a message occupies its sender after the action and its
    # receiver before the next (Megatron's blocking calls); sends and receives between two actions happen at the same
    # time.
    overlap: bool = True
    activation_bytes: Each = 1.0  # of a piece and micro-batch, from the start of F to the end of B, or of W
    released_at_input: Fraction = 0.0  # the share of it that is already freed after I
    static_bytes: Each = 0.0  # held by a rank all the time; one number or one for each rank

    def of_pieces(self, plan: Plan) -> "PieceCosts":
        """The costs written out for the pieces of a plan. Raises ValueError if the lengths do not match."""
        pieces = plan.num_pieces
        forward = _each("forward_s", self.forward_s, pieces, "pieces")
        whole = None if self.backward_s is None else _each("backward_s", self.backward_s, pieces, "pieces")
        half = forward if whole is None else [time_s / 2 for time_s in whole]
        inputs = half if self.input_s is None else _each("input_s", self.input_s, pieces, "pieces")
        weights = half if self.weight_s is None else _each("weight_s", self.weight_s, pieces, "pieces")
        if whole is None:
            whole = [i + w for i, w in zip(inputs, weights, strict=True)]
        return PieceCosts(
            forward,
            whole,
            inputs,
            weights,
            _each("send_s", self.send_s, pieces - 1, "boundaries between pieces"),
            _each("activation_bytes", self.activation_bytes, pieces, "pieces"),
            _each("static_bytes", self.static_bytes, plan.num_stages, "ranks"),
        )


@dataclass(frozen=True, slots=True)
class PieceCosts:
    """`Costs` with one entry for each piece (boundary, rank)."""

    forward_s: list[float]
    backward_s: list[float]
    input_s: list[float]
    weight_s: list[float]
    send_s: list[float]
    activation_bytes: list[float]
    static_bytes: list[float]


def _each(name: str, value: Each, count: int, what: str) -> list[float]:
    if not isinstance(value, Sized):
        return [value] * count
    if len(value) != count:
        raise ValueError(f"{name} takes one number, or one for each of the {count} {what}: got {len(value)}")
    return list(value)
