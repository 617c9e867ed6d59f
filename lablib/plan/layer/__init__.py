"""One transformer layer on one rank of a tensor-parallel group: its passes, and the bytes it keeps for backward.

op.py         an operator, and the price of a list of them         work.py       its passes and bytes
operators.py  the list of a layer                                  ends.py       of embedding, head and loss
parts.py      parts of lists: norm, linear, MLP, sums over ranks   attention.py  attention itself
dispatch.py   the exchange with experts                            ring.py       attention in a ring, of eager torch
adapters.py   memory traffic of LoRA's adapters

A layer is products, attention and the kernels between them. Tensor parallelism (t ranks) gives each rank 1/t of the
heads and of the MLP's hidden width; a row-split product ends in a sum over ranks, so a layer has two all-reduces
forward and two backward, or with sequence parallelism an all-gather and a reduce-scatter instead of each.

    products, forward     [R, D] x [D, (H + 2G) K / t],  [R, H K / t] x [H K / t, D],  [R, D] x [D, F / t] (twice if
                          gated),  [R, F / t] x [F / t, D]
    backward              for the input the transposed product; for the weight one that sums over the R tokens
    attention             B sequences, H / t heads, S queries, T keys
    communication         B S D numbers, twice forward, twice backward, in an all-reduce or in two halves
    experts               instead of the MLP: R k / t tokens of this rank (with sequence parallelism; otherwise R k)
                          to e ranks and back, gathered by the x ranks that share an expert: E / e products in one
                          kernel, over R k x / t rows together, of F / x hidden width

Legend: B sequences of a micro-batch, S tokens of each on this rank (T / c with c context ranks), R = B S, D width,
H and G heads of queries and of keys, K their width, F hidden width, t tensor ranks; E experts, k of them for a token.

Kept for backward (Korthikanti's accounting, arXiv 2205.05198, section 4.1): every product's input, every norm's, the
activation's, masks of one byte; of attention Q, K, V, the output and one number per row (flash), or the scores after
the softmax and, with dropout, their mask and the result (unfused: 2 or 5 bytes per score). For a GPT of `megatron-2021`
with sequence parallelism this is R D (34 + 5 H T / D) / t, equation 4 of the paper. Of experts: the router's input, the
tokens that arrived, both sides of the activation (a token's weight is applied there, so outputs are not kept).

Source: Shoeybi et al., 2019, arXiv 1909.08053; Korthikanti et al., 2022, arXiv 2205.05198; Liu et al., "Ring
Attention", 2023, arXiv 2310.01889; DeepSeek-V2, 2024, arXiv 2405.04434 (MLA); GShard, 2020, arXiv 2006.16668 (experts);
Liu et al., "MoE Parallel Folding", 2025, arXiv 2504.14960 (which ranks share them).
Simplified: the same rank has most tokens in all layers (`Experts.imbalance`), spread evenly over its experts; context
ranks share the causal work evenly (zigzag). With sequence parallelism backward gathers a product's input once more,
which hides behind the input's gradient (section 4.2.2) and is left out.
"""

from lablib.plan.layer import dispatch
from lablib.plan.layer.ends import embedding, head
from lablib.plan.layer.op import Cut, Op, work_of
from lablib.plan.layer.operators import layer
from lablib.plan.layer.work import Sizes, Work

__all__ = ["Cut", "Op", "Sizes", "Work", "dispatch", "embedding", "head", "layer", "work_of"]
