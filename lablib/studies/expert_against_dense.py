"""Speed of a mixture of experts against dense models of equal FLOPs or parameters, by number of GPUs.

By FLOPs alone a mixture is as fast as the dense model of equal FLOPs per token. In practice it is slower, for three
reasons, all of them worse on few GPUs:

    states     every parameter has 16 or 18 bytes of states, active or not: on few GPUs the mixture does not fit, or
               only with small micro-batches, with recomputation or with ZeRO-3
    few rows   of a micro-batch of t tokens each expert gets t e k / E rows, a few hundred where the dense MLP has t:
               its weights are read from memory for so few rows (below), and more expert ranks bring more rows
    constants  tokens are copied k times, sent and sorted; optimizer and sums of gradients cover all parameters

A product of r rows does 2 r FLOPs for each weight of w bytes that it reads: below r = w R / (2 M) rows, reading takes
longer than the product (295 rows on an H100 in 16 bits). So the mixture's step is longer, and it pays if it needs that
many times fewer tokens for the same loss (`pays`). This number is not predicted here, as no planner predicts a loss.
OLMoE on 128 H100s had 0.63 of the tokens per second of a dense 1.3B, and its loss after a third of the tokens.

Cost: some hundred predictions for each number of GPUs; nothing runs.
Legend: E experts, k active per token, e expert ranks, t tokens of a rank's micro-batch, w bytes per number, R FLOP/s of
a device, M bytes per second of its memory.
Source: Fedus et al., "Switch Transformers", 2021, arXiv 2101.03961, section 2.1 (as many FLOPs); Gale et al.,
"MegaBlocks", 2022, arXiv 2211.15841 (grouped products); "Scalable Training of Mixture-of-Experts Models with Megatron
Core", 2026, arXiv 2603.07685 (walls of memory, communication and compute); OLMoE: Muennighoff
et al., 2024, arXiv 2409.02060, section 4.1.1 and figure 4; prices: lablib/plan.
Simplified: even routing; the router's FLOPs are not given to the dense model; plans of one pipeline stage, no context
axis, the best of each model with the same software.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lablib.hardware import Cluster
from lablib.hardware.catalogue import find_cluster
from lablib.models.published import find_transformer
from lablib.models.transformer import Experts, Transformer
from lablib.plan.prediction import Prediction
from lablib.plan.search import search
from lablib.signature import Count, Positive, checked

OLMOE = Transformer(
    *("OLMoE-1B-7B", 16, 2048, 16, 50304, 4096),
    d_ff=8192,
    activation="swiglu",
    positions="rotary",
    norm="rms",
    has_bias=False,
    tied_head=False,
    experts=Experts(64, 8, 1024),
    source="Muennighoff et al. 2024, arXiv 2409.02060, figure 4 and appendix B",
)
_ONE_STAGE: Mapping[str, Any] = {"pipeline": 1, "context": 1, "schedule": "1f1b", "chunks": 1}


@dataclass(frozen=True)
class AgainstDense:
    """The fastest plans that fit on some GPUs; None if no plan fits."""

    num_gpus: int
    # mixture, active, total: plans of the mixture, of the dense model with equal FLOPs per token, with equal parameters
    mixture: Prediction | None
    active: Prediction | None
    total: Prediction | None
    least_bytes: float  # bytes per GPU of the mixture's smallest plan
    rows: float | None = None  # tokens per expert and micro-batch in the mixture's plan; None without a plan

    @property
    def speed(self) -> float | None:
        """Tokens per second: the mixture's over the dense model's of equal FLOPs."""
        return _over(self.mixture, self.active)

    @property
    def speed_over_total(self) -> float | None:
        """The same over the dense model of equal parameters."""
        return _over(self.mixture, self.total)

    @property
    def extra_s(self) -> dict[str, float]:
        """The mixture's extra seconds: each part of the step minus the same part of `active`. Empty if one is None."""
        if not (self.mixture and self.active):
            return {}
        return {part: time_s - self.active.parts[part] for part, time_s in self.mixture.parts.items()}

    @checked
    def pays(self, saving: Positive) -> bool:
        """Whether the mixture reaches the loss first, if it needs so many times fewer tokens than `active`.

        `saving`: tokens that the dense model needs for the same loss, over the mixture's. Not predicted here.
        """
        return self.mixture is not None and (self.speed is None or self.speed * saving > 1)


@checked
def against_dense(
    model: str | Transformer,
    cluster: str | Cluster,
    num_gpus: Sequence[Count],
    sequences_a_gpu: Count = 16,
    **others: Any,
) -> list[AgainstDense]:
    """The mixture, and both dense models, on each number of GPUs.

    Arguments:
        model: one with experts.
        sequences_a_gpu: per step; more GPUs take a larger batch.
        others: as for `lablib.plan.search`: stack, precision, seq_len, micro_batch, recompute, ...

    Raises ValueError: a model without experts; and as `search`.
    """
    mixture, cluster = find_transformer(model), find_cluster(cluster)
    dense = dense_of_equal_flops(mixture), dense_of_equal_parameters(mixture)
    compared = []
    for n in num_gpus:
        options: Any = {"gpus": n, **_ONE_STAGE, **others}
        found = [search(one, cluster, n * sequences_a_gpu, **options) for one in (mixture, *dense)]
        fastest, active, total = (one.best if len(one.order) else None for one in found)
        possible = found[0].plans.peak_memory_bytes[found[0].plans.is_possible]
        least_bytes = float(possible.min()) if len(possible) else float("inf")
        rows = None
        if fastest:  # tokens of its expert ranks, and of the ranks that cut it
            split = fastest.parallel
            tokens = fastest.micro_batch * fastest.seq_len * split.expert_tensor_ranks // split.tensor
            rows = rows_of_an_expert(mixture, tokens, split.expert)
        compared.append(AgainstDense(n, fastest, active, total, least_bytes, rows))
    return compared


@checked
def dense_of_equal_flops(model: Transformer) -> Transformer:
    """The dense model of equal FLOPs per token: an MLP as wide as the active experts.

    Raises ValueError: a model without experts.
    """
    experts = _experts_of(model)
    return _dense(model, (experts.num_active + experts.num_shared) * experts.d_ff, "FLOPs")


@checked
def dense_of_equal_parameters(model: Transformer) -> Transformer:
    """The dense model of equal parameters, all active: an MLP as wide as all experts. Raises as above."""
    experts = _experts_of(model)
    return _dense(model, (experts.num_experts + experts.num_shared) * experts.d_ff, "parameters")


@checked
def rows_of_an_expert(model: Transformer, tokens: int, expert_ranks: int = 1) -> float:
    """Tokens per expert of one micro-batch, with even routing: t e k / E.

    Arguments:
        tokens: t, of the micro-batch of one rank.
        expert_ranks: e, each with as many tokens.
    """
    experts = _experts_of(model)
    return tokens * expert_ranks * experts.num_active / experts.num_experts


def _experts_of(model: Transformer) -> Experts:
    if model.experts is None:
        raise ValueError(f"the model must have experts: got {model.name!r}; give one with experts=Experts(...).")
    return model.experts


def _dense(model: Transformer, width: int, what: str) -> Transformer:
    """All layers with the mean width of expert layers and dense ones."""
    dense, mixed = model.num_layers - model.num_expert_layers, model.num_expert_layers
    mean = round((dense * model.hidden_size + mixed * width) / model.num_layers)
    return replace(model, name=f"{model.name}, dense, as many {what}", d_ff=mean, experts=None)


def _over(one: Prediction | None, other: Prediction | None) -> float | None:
    return one.tokens_per_s / other.tokens_per_s if one and other else None
