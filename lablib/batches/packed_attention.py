"""Attention in packed blocks: a token sees only earlier tokens of its own document.

With only the causal mask the second document of a block sees the first, so training depends on neighbours. Two ways to
separate them:

    document mask      scores of the whole block are computed; scores across a border are set to -inf:
                       mask[i, j] = (j <= i) and (document of j = document of i)
    variable length    each document's attention separately, without scores across borders, as in kernels that take
                       `cu_seqlens`

Positions start at 0 in each document. The rest of a transformer works on each token separately, so a packed block gives
each document the same logits and gradients as alone.

Cost of L layers of width D for documents of l_1, l_2, ... tokens; FLOPs forward, a multiply-add is two:
    document mask      4 L D T^2 for each block; the mask has T^2 bytes for each, unless a kernel computes it
    variable length    4 L D sum l_i^2: for k equal documents that fill a block, k times fewer
A causal kernel computes half of either.
Shapes: B blocks, T tokens of one, H heads of width K, D = H K, V vocabulary.
Source: Krell et al., 2021, arXiv 2107.02027, section 3.2 (mask and positions); Dao, "FlashAttention", 2022, arXiv
2205.14135, and its function flash_attn_varlen_func (`cu_seqlens`).
Simplified: variable length is a loop over documents here, not one kernel.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lablib.batches.packing import PackedBlocks, Packing
from lablib.models import GPT
from lablib.models.gpt import Block
from lablib.signature import checked

# Queries, keys and values [B H T K] -> [B H T K]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


@checked
def document_mask(documents_BT: Int64[Tensor, "B T"]) -> Bool[Tensor, "B 1 T T"]:
    """True where a token (row) may see another (column): for `scaled_dot_product_attention(attn_mask=...)`.

    Padding is a document like any other, so no row is empty: a softmax over nothing would be NaN.
    """
    _check_documents(documents_BT)
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril()[:, None]


@checked
def attend_by_mask(documents_BT: Int64[Tensor, "B T"]) -> Attend:
    """Attention over whole blocks with the document mask."""
    mask_B1TT = document_mask(documents_BT)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask_B1TT)


@checked
def attend_by_length(documents_BT: Int64[Tensor, "B T"]) -> Attend:
    """Causal attention of each document separately. Padding gets zeros."""
    _check_documents(documents_BT)
    spans = [span for row, block in enumerate(documents_BT.tolist()) for span in _spans(row, block)]

    def attend(q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
        y_BHTK = torch.zeros_like(v_BHTK)
        for row, start, stop in spans:
            q, k, v = (x_BHTK[row : row + 1, :, start:stop] for x_BHTK in (q_BHTK, k_BHTK, v_BHTK))
            y_BHTK[row : row + 1, :, start:stop] = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y_BHTK

    return attend


@checked
def attend_to_all(
    q_BHTK: Float[Tensor, "B H T K"], k_BHTK: Float[Tensor, "B H T K"], v_BHTK: Float[Tensor, "B H T K"]
) -> Float[Tensor, "B H T K"]:
    """Naive: causal over the whole block, across borders."""
    return F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)


@checked
def packed_logits(model: GPT, blocks: PackedBlocks, attend: Attend) -> Float[Tensor, "B T V"]:
    """A GPT's forward pass on packed blocks, with their positions and attention. ValueError: over `max_seq_len`."""
    longest = int(blocks.positions.max()) + 1
    if longest > model.config.max_seq_len:
        raise ValueError(
            f"a document must have at most max_seq_len={model.config.max_seq_len} tokens: got {longest}; cut it."
        )
    x_BTD = model.token_embedding(blocks.tokens) + model.position_embedding(blocks.positions)
    for block in model.blocks:
        assert isinstance(block, Block)
        attention, normed_BTD = block.attention, block.attention_norm(x_BTD)
        q_BHTK, k_BHTK, v_BHTK = (
            linear(normed_BTD).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
            for linear in (attention.query, attention.key, attention.value)
        )
        x_BTD = x_BTD + attention.out(attend(q_BHTK, k_BHTK, v_BHTK).transpose(1, 2).flatten(-2))
        x_BTD = x_BTD + block.mlp(block.mlp_norm(x_BTD))
    return model.head(model.final_norm(x_BTD))


@checked
def masked_attention_flops(packing: Packing, num_layers: int, d_model: int) -> int:
    """FLOPs of the attention's scores and values, forward, over whole blocks."""
    return 4 * num_layers * d_model * len(packing.blocks) * packing.block_size**2


@checked
def variable_length_attention_flops(packing: Packing, num_layers: int, d_model: int) -> int:
    """The same for separate documents."""
    return 4 * num_layers * d_model * sum(length**2 for length in packing.lengths)


def _check_documents(documents_BT: Tensor) -> None:
    if documents_BT.ndim != 2 or not documents_BT.numel():
        raise ValueError(
            "documents_BT must be the number of each token's document, [B, T]: "
            f"got shape {tuple(documents_BT.shape)}; try blocks.documents of fill_blocks."
        )


def _spans(row: int, block: list[int]) -> list[tuple[int, int, int]]:
    """(row, start, stop) of each document of a block, without padding."""
    borders = [0, *(t for t in range(1, len(block)) if block[t] != block[t - 1]), len(block)]
    return [(row, start, stop) for start, stop in zip(borders, borders[1:], strict=False) if block[start] >= 0]
