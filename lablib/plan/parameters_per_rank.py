"""Parameters per rank: of a layer, of the embedding, of the head.

    attention, MLP, shared experts    / t
    routed experts                    / (x e)
    router, norms                     on every rank

    embedding, head                   / t        (learned positions and the final norm on every rank)

Legend: t tensor ranks, e expert ranks, x ranks that share each expert (t, or another number). Gradients of experts are
reduced over fewer ranks, t d c / (x e) of them.

Source: Shoeybi et al., 2019, arXiv 1909.08053, section 3; Lepikhin et al., GShard, 2020, arXiv 2006.16668 (experts).
Simplified: biases and a latent's down-projection are divided by t like the rest; copies of key heads, if there are
fewer heads than ranks, are not counted.
"""

from typing import NamedTuple

from lablib.cost.arrays import Numbers
from lablib.models.transformer import Transformer
from lablib.models.transformer_sizes import LayerParameters, transformer_parameters


class ParametersPerRank(NamedTuple):
    """Parameters on one rank."""

    layer: Numbers  # of an average layer, shared by every rank of the data axis
    expert_layer: Numbers  # of an average layer, shared by the ranks with the same experts
    embedding: Numbers  # the table, its learned positions
    head: Numbers  # the head's matrix and the final norm; of a tied head only the norm
    tied: Numbers  # a tied head's copy of the embedding, on the first and the last stage; 0 for an untied head


def parameters_per_rank(
    model: Transformer, tensor: Numbers, expert: Numbers, expert_tensor: Numbers | None = None
) -> ParametersPerRank:
    """Parameters on one rank of a split model; `expert_tensor` None: as many as `tensor`."""
    expert_tensor = tensor if expert_tensor is None else expert_tensor
    sizes = transformer_parameters(model)
    dense, many = sizes.num_dense_layers / model.num_layers, sizes.num_expert_layers / model.num_layers

    def everywhere(layer: LayerParameters) -> Numbers:
        return (layer.attention + layer.mlp + layer.shared_experts) / tensor + layer.router + layer.norms

    return ParametersPerRank(
        layer=dense * everywhere(sizes.dense_layer) + many * everywhere(sizes.expert_layer),
        expert_layer=many * sizes.expert_layer.experts / (expert_tensor * expert),
        embedding=sizes.embedding / tensor + sizes.positions,
        head=sizes.head / tensor + sizes.final_norm,
        tied=sizes.embedding / tensor * model.tied_head,
    )
