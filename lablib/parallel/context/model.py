"""Context parallelism of a plain GPT: cut its sequences over ranks, without changing the model file.

    context = ContextParallel(group, order=zigzag_order, attention=ring_attention)
    replica = DataParallel(context.parallelize(GPT(config)), group, reduce=all_reduce_sum)
    own_tokens, own_targets = context.shard(tokens, targets)          # this rank's part of every sequence
    loss = context.loss(replica(own_tokens), own_targets)             # on every rank, as on one device
    loss.backward()                                                   # gradients as on one device

Except for attention, a transformer works on each token separately, so a rank needs only its own tokens and all weights.
Four things depend on the cut:

    attention    over the keys of all ranks: `ring_attention` or a function with the same arguments
    positions    of this rank's tokens, which with zigzag are not contiguous; in packed documents from 0 in each
    loss         the sum of this rank's tokens over the number of all ranks' tokens: a mean of the ranks' means is
                 wrong where they have unequal numbers
    gradients    each rank has the part of its tokens: sum them over ranks, do not average

With data parallelism in addition, loss and gradients are over the ranks of both axes (`gradient_group`), so replicas
with more counted tokens have more weight.

Cost for n context ranks, in addition to attention and DataParallel (2 (n-1)/n P w bytes): two numbers, the count of
tokens and the loss.
Shapes: B batch, T time, t of it on this rank, D width, V vocabulary.
Source: Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.2; torch's `context_parallel`
(torch 2.13, torch.distributed.tensor.experimental), which also shards buffers and replaces attention.
Simplified: one batch at a time: `shard` sets the tokens for attention and positions until the next call; no dropout.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lablib.models.gpt import GPT, Attention
from lablib.models.llama import GroupedAttention, Llama, rotate
from lablib.parallel.context.order import Documents, Order, document_spans, zigzag_order
from lablib.parallel.context.ring import ring_attention
from lablib.parallel.context.ulysses import ulysses_attention
from lablib.parallel.context.ulysses_and_ring import nested_order
from lablib.parallel.tensor.attention import check_heads
from lablib.parallel.tensor.regions import Group, copy_to_ranks, reduce_from_ranks
from lablib.parallel.tensor.sequence_parallel import own_tokens
from lablib.signature import Count, check_type, checked

IGNORED = -100  # a target that does not count, as in torch's cross_entropy

Attend = Callable[..., Tensor]  # (q, k, v, order, group, *, documents) -> o, as `ring_attention`
MakeOrder = Callable[[int, int], Order]  # (seq_len, num_ranks), as `zigzag_order`


@checked
def check_context(
    seq_len: Count,
    num_heads: Count,
    num_kv_heads: Count,
    num_ranks: Count,
    order: MakeOrder = zigzag_order,
    attention: Attend = ring_attention,
    heads_ranks: Count = 1,
) -> Order:
    """Check sizes before any rank starts, and return the order of the tokens.

    `heads_ranks`: ranks that share heads inside a ring, for `UlyssesRing`; `order` is then the ring's.

    Raises:
        ValueError: a sequence too short for its order, or an order for other tokens or ranks; heads that cannot be
            split over the ranks; heads_ranks that do not divide the ranks.
    """
    if num_ranks % heads_ranks:
        raise ValueError(f"heads_ranks must divide the ranks: got {heads_ranks} of {num_ranks}; try 1.")
    check_heads(num_heads, num_kv_heads, num_ranks if attention is ulysses_attention else heads_ranks)
    ring = num_ranks // heads_ranks
    made = order(seq_len, ring)
    check_type("order: what it returns", made, Order)
    if (made.seq_len, made.num_ranks) != (seq_len, ring):
        raise ValueError(
            f"order must be for the requested tokens and ranks: got one for {made.seq_len} tokens on "
            f"{made.num_ranks} ranks instead of {seq_len} on {ring}; try zigzag_order."
        )
    return nested_order(made, heads_ranks) if heads_ranks > 1 else made


class ContextParallel:
    """The ranks that share every sequence, and the current assignment of tokens to ranks.

    Arguments:
        group: of the ranks; None for all.
        order: makes the assignment of tokens to ranks, for each sequence length.
        attention: `ring_attention` or a function with the same arguments.
        gradient_group: context and data ranks together, over which tokens are counted and gradients summed; None:
            `group`.
    """

    def __init__(
        self,
        group: Group = None,
        order: MakeOrder = zigzag_order,
        attention: Attend = ring_attention,
        gradient_group: Group = None,
    ):
        check_type("ContextParallel: group", group, dist.ProcessGroup | None)
        check_type("ContextParallel: gradient_group", gradient_group, dist.ProcessGroup | None)
        self.group, self.make_order, self.attention = group, order, attention
        self.gradient_group = group if gradient_group is None else gradient_group
        self.order: Order | None = None
        self.documents: Documents | None = None
        self.positions: Tensor | None = None

    def parallelize(self, model: GPT | Llama) -> Any:
        """Replace attention and positions, in place, and return the model. Before `DataParallel`, and `parallelize`.

        ValueError: with Ulysses, heads that cannot be split over the ranks.
        """
        if self.attention is ulysses_attention:
            kv_heads = model.config.kv_heads if isinstance(model, Llama) else model.config.num_heads
            check_heads(model.config.num_heads, kv_heads, dist.get_world_size(self.group))
        for block in model.blocks:
            block.attention = ContextAttention(block.attention, self)  # pyright: ignore
        if isinstance(model, GPT):
            model.position_embedding = ContextPositions(model.position_embedding, self)  # pyright: ignore
        return model

    def shard(
        self, tokens_BT: Int[Tensor, "B T"], *others: Tensor, documents_BT: Int[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, ...]:
        """This rank's part of the tokens and of `others`, such as targets; a view or a copy. Does not communicate.

        Attention and positions use this assignment until the next call.

        Arguments:
            tokens_BT: the same on all ranks of the group.
            others: further tensors [B, T].
            documents_BT: the number of each token's document, below 0 for padding; None: each sequence is one.

        Raises ValueError: a sequence too short for its order, or tensors of another shape.
        """
        for other in (*others, documents_BT):
            if other is not None and other.shape[:2] != tokens_BT.shape:
                shapes = f"{tuple(other.shape)} beside {tuple(tokens_BT.shape)}"
                raise ValueError(f"all tensors must be [B, T], as the tokens: got {shapes}.")
        self.order = self.make_order(tokens_BT.shape[1], dist.get_world_size(self.group))
        tokens = self.order.tokens(dist.get_rank(self.group))
        self.documents, positions = None, torch.tensor([tokens], device=tokens_BT.device)
        if documents_BT is not None:
            self.documents = document_spans(documents_BT.tolist())
            positions = torch.tensor([_places(spans, tokens) for spans in self.documents], device=tokens_BT.device)
        self.positions = positions
        return tuple(self.own(x) for x in (tokens_BT, *others))

    def own(self, x_BT: Float[Tensor, "B T *more"] | Int[Tensor, "B T *more"]) -> Tensor:
        """This rank's part of a tensor that all ranks have for every token."""
        pieces = self._now().pieces[dist.get_rank(self.group)]
        cut = [x_BT[:, piece.start : piece.stop : piece.step] for piece in pieces]
        return cut[0] if len(cut) == 1 else torch.cat(cut, 1)

    def attend(self, q_BHtK: Tensor, k_BHtK: Tensor, v_BHtK: Tensor) -> Tensor:
        """Attention over the tokens of all ranks. Communicates."""
        return self.attention(q_BHtK, k_BHtK, v_BHtK, self._now(), self.group, documents=self.documents)

    def loss(self, logits_BtV: Float[Tensor, "B t V"], targets_Bt: Int[Tensor, "B t"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over the tokens of all ranks, in nats; backward gives this rank's part of the gradient.

        Communicates: two numbers. A target of -100 does not count.
        """
        dtype = torch.promote_types(logits_BtV.dtype, torch.float32)
        scores = logits_BtV.to(dtype).flatten(0, 1)
        own = F.cross_entropy(scores, targets_Bt.flatten(), reduction="sum", ignore_index=IGNORED)
        count = (targets_Bt != IGNORED).sum()
        dist.all_reduce(count, group=self.gradient_group)
        return reduce_from_ranks(own / count.clamp(min=1), self.gradient_group)

    def __deepcopy__(self, memo: dict[int, object]) -> "ContextParallel":
        return self  # a copy of a model uses the same ranks and the same batch

    def _now(self) -> Order:
        if self.order is None:
            raise ValueError("a batch must be cut before the model sees it: call context.shard(tokens, targets) first.")
        return self.order


class ContextAttention(nn.Module):
    """Attention of gpt.py or llama.py over the tokens of all ranks, with the same layers."""

    def __init__(self, attention: Attention, context: ContextParallel):
        super().__init__()
        self.num_heads, self.context = attention.num_heads, context
        self.query, self.key, self.value, self.out = attention.query, attention.key, attention.value, attention.out
        self.rope_base: float | None = None
        self.num_kv_heads, self.d_head = self.num_heads, self.query.in_features // self.num_heads
        if isinstance(attention, GroupedAttention):
            self.num_kv_heads, self.d_head = attention.num_kv_heads, attention.d_head
            self.rope_base = attention.rope_base

    def forward(self, x_BtD: Float[Tensor, "B t D"]) -> Float[Tensor, "B t D"]:
        q_BHtK, k_BGtK, v_BGtK = (
            linear(x_BtD).unflatten(-1, (-1, self.d_head)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if self.rope_base is not None:
            positions_Bt = self.context.positions
            assert positions_Bt is not None
            q_BHtK, k_BGtK = (rotate(x, positions_Bt, self.rope_base) for x in (q_BHtK, k_BGtK))
        return self.out(self.context.attend(q_BHtK, k_BGtK, v_BGtK).transpose(1, 2).flatten(-2))


class ContextPositions(nn.Module):
    """Position embeddings of this rank's tokens, of one weight; sequence parallelism over `tensor_group` cuts them."""

    def __init__(self, embedding: nn.Module, context: ContextParallel, tensor_group: Group = None):
        super().__init__()
        self.weight, self.context, self.tensor_group = embedding.get_parameter("weight"), context, tensor_group

    def forward(self, counted_t: Tensor) -> Float[Tensor, "B t D"]:
        """`counted_t`: 0, 1, ..., local indices from the model, which are not the positions."""
        order, positions_Bt = self.context._now(), self.context.positions
        assert positions_Bt is not None
        longest = order.seq_len
        if self.context.documents is not None:
            longest = max((len(span) for spans in self.context.documents for span in spans), default=0)
        if longest > len(self.weight):
            raise ValueError(
                f"a sequence, or document, must have at most max_seq_len={len(self.weight)} tokens: got {longest}."
            )
        if self.tensor_group is None:
            return F.embedding(positions_Bt, self.weight)
        positions_bt = own_tokens(positions_Bt, -1, self.tensor_group)
        return F.embedding(positions_bt, copy_to_ranks(self.weight, self.tensor_group))


def _places(spans: tuple[range, ...], tokens: list[int]) -> list[int]:
    """The place of each token in its document; 0 in padding."""
    starts = {token: span.start for span in spans for token in span}
    return [token - starts.get(token, token) for token in tokens]
