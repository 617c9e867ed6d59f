"""Mixture of depths: a block processes the C tokens of each sequence with the highest router weights.

In a mixture of experts every token chooses experts, at the same cost. Here a block chooses tokens. The dispatch is the
same, with every *sequence* as an expert of C slots that all its tokens choose; tokens of least weight are dropped
(`SCORE`). A dropped token only continues in the residual stream.

    x_0 .. x_T  ->  router: a number r_t each  ->  the C highest, in order  ->  block  ->  x_t + r_t (block(x)_t - x_t)
                                                   the others                      ->  x_t

The factor r_t lets gradients reach the router. The block's attention is only among the chosen tokens.

Whether a token
is among the C highest depends on later tokens. In training that is allowed; generation of text needs a learned
threshold (section 3.5 of the source).

Cost of a block for a sequence: 24 C D^2 + 4 C^2 D FLOPs forward instead of 24 T D^2 + 4 T^2 D; the router 2 T D.
Shapes: B sequences, T tokens of each, C of them chosen, D width.
Source: Raposo et al., "Mixture-of-Depths", 2024, arXiv 2404.02258, equation 1 and sections 3.2 to 3.4 (expert choice,
an eighth of the tokens in every other block).
Simplified: no threshold for generation; positions are embedded at the input, so a block needs none.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lablib.models.gpt import GPT
from lablib.parallel.experts.dispatch import SCORE, Permutation, combine, dispatch, sort_by_expert
from lablib.parallel.experts.routing import Routing
from lablib.signature import Count, checked


@checked
def choose_tokens(weights_BT: Float[Tensor, "B T"], capacity: Count) -> Permutation:
    """The `capacity` tokens of highest weight of each sequence, in sequence order; ties go to the first.

    ValueError: weights that are not a matrix; a capacity above T.
    """
    if weights_BT.ndim != 2:
        raise ValueError(f"weights must be [B, T]: got {tuple(weights_BT.shape)}; give the weights of each sequence.")
    batch, length = weights_BT.shape
    if capacity > length:
        raise ValueError(
            f"capacity must be at most the tokens of a sequence: got {capacity} of {length}; try capacity={length}."
        )
    sequences_N1 = torch.arange(batch * length, device=weights_BT.device).div(length, rounding_mode="floor")[:, None]
    weights_N1 = weights_BT.reshape(-1, 1)
    of_all_NE = weights_N1.expand(-1, batch)
    # Every sequence has T choices, an even load, so counts are known without reading values.
    routing = Routing(sequences_N1, weights_N1, of_all_NE, of_all_NE, is_balanced=True)
    return sort_by_expert(routing, capacity, SCORE)


class MixtureOfDepths(nn.Module):
    """A block that processes the tokens its router chooses; `forward(x_BTD)`.

    Arguments:
        block: [B, C, D] to [B, C, D], with its residual sum inside; not copied.
        capacity: C.
        router_D: the router's weights.
    """

    @checked
    def __init__(self, block: nn.Module, capacity: Count, router_D: Float[Tensor, " D"]):
        super().__init__()
        self.block, self.capacity = block, capacity
        self.router = nn.Parameter(router_D)

    def forward(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        weights_BT = x_BTD @ self.router
        permutation = choose_tokens(weights_BT, self.capacity)
        x_BCD = dispatch(x_BTD.flatten(0, 1), permutation).unflatten(0, (len(x_BTD), -1))
        said_MD = (self.block(x_BCD) - x_BCD).flatten(0, 1)
        return x_BTD + combine(said_MD, permutation, weights_BT.reshape(-1, 1)).view_as(x_BTD)


@checked
def with_depths(model: GPT, capacity: Count, *, every: Count = 2, seed: int = 0) -> GPT:
    """Make some blocks process only `capacity` tokens of each sequence, in place, and return the model.

    Arguments:
        capacity: tokens C of a sequence for such a block, at most the sequence length.
        every: 1 for all blocks; 2 for every other one, beginning with the second.
        seed: of the routers' first weights, N(0, 0.02).

    Raises ValueError: a capacity above the model's `max_seq_len`; too few blocks for `every`.
    """
    longest = model.config.max_seq_len
    if capacity > longest:
        raise ValueError(f"capacity must be at most max_seq_len={longest}: got {capacity}; try {max(1, longest // 8)}.")
    if every > len(model.blocks):
        raise ValueError(
            f"every must be at most the number of blocks: got {every} of {len(model.blocks)}; try every=1."
        )
    generator = torch.Generator("cpu").manual_seed(seed)
    for index in range(every - 1, len(model.blocks), every):
        like = model.token_embedding.weight
        router = torch.empty(model.config.d_model, dtype=torch.float64, device="cpu")
        if like.device.type != "meta":
            router.normal_(0.0, 0.02, generator=generator)
        block = model.blocks[index]
        model.blocks[index] = MixtureOfDepths(block, capacity, router.to(like.device, like.dtype)).train(block.training)
    return model
