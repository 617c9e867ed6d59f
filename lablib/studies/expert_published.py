"""Mixtures against dense models as published: tokens per second, tokens saved, and predictions.

    OLMoE        128 H100s, 1.3B active of 6.9B, against a dense 1.3B: 23,600 against 37,500 tokens per second and GPU,
                 0.63 of its speed; the same loss after a third of the tokens, so in half of the time
    DeepSpeed    128 A100s, 1.3B + 128 experts in every second layer (52B), against a dense 6.7B with the same loss
                 after as many tokens: 372 against 70 sequences per second, 5.3 times its speed

So a mixture was slower than the dense model of equal FLOPs, and faster than the one with the same loss. Both are
predicted from the sizes, with software of the time, for micro-batches of 1, 2 and 4 sequences, which are not published:

    OLMoE        0.29, 0.45, 0.74: 0.63 is between 2 and 4. Under ZeRO-3 all 6.9B are gathered for each micro-batch:
                 a smaller one has less compute to hide it. The dense model's rate is 2% too slow to 29% too fast
    DeepSpeed    5.9, 5.2, 4.9 with 8 tensor ranks for the dense model, and full recomputation: the ratio is within 15%,
                 both rates 1.3 to 1.8 times too fast

Cost: some predictions; nothing runs.
Source: Muennighoff et al., "OLMoE", 2024, arXiv 2409.02060, section 4.1.1 and figure 4; "DeepSpeed-MoE for NLG:
Reducing the training cost of language models by 5 times", 2021 (deepspeed.ai, table 2), and Rajbhandari et al., 2022,
arXiv 2201.05596, section 3. The token savings are theirs, for those models and data; nothing here predicts them.
Simplified: OLMoE's batch is assumed to be 1,024 sequences; DeepSpeed's mixture, in every second layer, is modelled as
the upper half of the layers; its plans are not published: assumed data parallel with 128 expert ranks, and for the
dense model 8 tensor ranks.
"""

from dataclasses import dataclass, replace

from lablib.models.transformer import Experts, Transformer
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.signature import Count, checked
from lablib.studies.expert_against_dense import dense_of_equal_flops

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
_NLG = "DeepSpeed-MoE for NLG, 2021: architecture of its models"
NLG_MOE = Transformer(
    "1.3B+MoE-128", 24, 2048, 16, 51200, 2048, experts=Experts(128, 1, 8192, num_dense_layers=12), source=_NLG
)
NLG_DENSE = Transformer("6.7B", 32, 4096, 32, 51200, 2048, source=_NLG)


@dataclass(frozen=True, slots=True)
class PublishedMixture:
    """A mixture and a dense model trained on the same GPUs.

    Attributes:
        mixture, dense: their sizes.
        mixture_rate, dense_rate: tokens per second and GPU.
        saving: tokens that the dense model needs for the same loss, over the mixture's.
        batch: sequences of a step.
        mixture_plan, dense_plan, stack, precision, recompute: settings of the prediction.
    """

    mixture: Transformer
    dense: Transformer
    cluster: str
    num_gpus: int
    mixture_rate: float
    dense_rate: float
    saving: float
    batch: int
    mixture_plan: Parallel
    dense_plan: Parallel
    stack: str
    precision: str
    recompute: str = "none"

    @property
    def speed(self) -> float:
        """The mixture's tokens per second over the dense model's."""
        return self.mixture_rate / self.dense_rate

    @property
    def gain(self) -> float:
        """How many times sooner the mixture reaches the same loss."""
        return self.speed * self.saving


PUBLISHED_MIXTURES = (
    PublishedMixture(
        *(OLMOE, replace(dense_of_equal_flops(OLMOE), name="OLMo-1B"), "dgx-h100", 128),
        *(23_600, 37_500, 3.0, 1024),
        *(Parallel(data=128, zero_stage=3), Parallel(data=128, zero_stage=3)),
        *("torch-compile-2024", "bfloat16"),
    ),
    PublishedMixture(
        *(NLG_MOE, NLG_DENSE, "dgx-a100", 128),
        *(372 * 2048 / 128, 70 * 2048 / 128, 1.0, 512),
        *(Parallel(data=128, expert=128), Parallel(data=16, tensor=8)),
        *("megatron-2021", "float16", "full"),
    ),
)


@checked
def predicted_rates(row: PublishedMixture, micro_batch: Count) -> tuple[float, float]:
    """Predicted tokens per second and GPU of the mixture and of the dense model.

    `micro_batch`: sequences at once, of both; it is not published.
    """
    found = [
        predict(
            *(model, row.cluster, plan, row.batch),
            micro_batch=micro_batch,
            precision=row.precision,
            recompute=row.recompute,
            stack=row.stack,
        ).tokens_per_s_per_gpu
        for model, plan in ((row.mixture, row.mixture_plan), (row.dense, row.dense_plan))
    ]
    return found[0], found[1]
