"""ZeRO-3 against Megatron's three axes, as published in 2021, with predictions of the twelve runs.

Narayanan et al. trained GPT-3 and a model of 530 billion parameters both ways, on 384 to 2240 A100s, with a fixed
batch: more GPUs, fewer sequences on each. PTD-P keeps its rate. ZeRO-3 falls to a third: the bytes that a rank gathers
are constant, and the compute that could hide them halves.

Three predictions for each run:

    planner        lablib.plan.predict, software of its time: layers prefetched, every NIC of a node in use
    hidden         max(compute, communication)      zero_latency.py: one gather per parameter, in one ring through one
    exposed        compute + communication          NIC of each node; compute is the planner's

The planner is within 4% of PTD-P, and 19 to 59% too fast for ZeRO-3: it gathers a layer at once. In all six rows of
ZeRO-3 the measured time is between hidden and exposed (37% too fast at worst, and 27% too slow): gathers of single
parameters in one ring would explain it. From 768 to 1536 GPUs a step is no shorter, as only compute was halved.

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM", SC21, arXiv
2104.04473, table 2: from memory; its two columns, TFLOP/s and days, agree by the paper's equation 4 (tests). Gathers by
parameter and in one ring are our interpretation of the numbers: the paper states neither.
Simplified: full recomputation; 1F1B without interleaving for PTD-P, which the paper leaves open; no accumulation.
"""

from dataclasses import dataclass

from lablib.hardware.catalogue import find_cluster
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.models.transformer_flops import megatron_step_flops
from lablib.plan.parallel import Parallel
from lablib.plan.predict import predict
from lablib.studies.zero_latency import zero3_time

TOKENS = 300e9  # of the column of days


@dataclass(frozen=True, slots=True)
class PublishedStep:
    """A row of the table."""

    model: str
    model_parallel: int  # ranks that share a replica: 1 is ZeRO-3, others PTD-P
    batch: int  # batch, gpus, micro_batch: sequences of a step, GPUs, and sequences of a micro-batch on one rank
    gpus: int
    micro_batch: int
    tflops: float  # TFLOP/s of a GPU, with recomputation
    days: float  # for 300 billion tokens

    @property
    def is_zero3(self) -> bool:
        return self.model_parallel == 1

    @property
    def step_s(self) -> float:
        """Seconds of a step, by the paper's own FLOPs (equation 3)."""
        model = find_transformer(self.model)
        flops = megatron_step_flops(self.batch, 2048, model.num_layers, model.d_model, model.vocab_size)
        return flops / (self.tflops * 1e12 * self.gpus)


_GPT3, _530B = "megatron-175b", "megatron-529.6b"
ROWS = (
    PublishedStep(_GPT3, 1, 1536, 384, 4, 144, 90),
    PublishedStep(_GPT3, 1, 1536, 768, 2, 88, 74),
    PublishedStep(_GPT3, 1, 1536, 1536, 1, 44, 74),
    PublishedStep(_530B, 1, 2560, 640, 4, 138, 169),
    PublishedStep(_530B, 1, 2240, 1120, 2, 98, 137),
    PublishedStep(_530B, 1, 2240, 2240, 1, 48, 140),
    PublishedStep(_GPT3, 96, 1536, 384, 1, 153, 84),
    PublishedStep(_GPT3, 96, 1536, 768, 1, 149, 43),
    PublishedStep(_GPT3, 96, 1536, 1536, 1, 141, 23),
    PublishedStep(_530B, 280, 2240, 560, 1, 171, 156),
    PublishedStep(_530B, 280, 2240, 1120, 1, 167, 80),
    PublishedStep(_530B, 280, 2240, 2240, 1, 159, 42),
)


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A row and its predictions, in seconds per step. `hidden_s` and `exposed_s` are for ZeRO-3, otherwise None."""

    row: PublishedStep
    measured_s: float
    planner_s: float
    hidden_s: float | None
    exposed_s: float | None


def compared() -> tuple[ComparedStep, ...]:
    """Every row with its predictions. A table: `pd.DataFrame(compared())`."""
    return tuple(_compare(row) for row in ROWS)


def _compare(row: PublishedStep) -> ComparedStep:
    model, cluster = find_transformer(row.model), find_cluster("dgx-a100")
    tensor = 1 if row.is_zero3 else 8
    pipeline = row.model_parallel // tensor
    parallel = Parallel(row.gpus // row.model_parallel, tensor, pipeline, zero_stage=3 if row.is_zero3 else 0)
    prediction = predict(
        model,
        cluster,
        parallel,
        row.batch,
        micro_batch=row.micro_batch,
        precision="float16",
        recompute="full",
        stack="megatron-2021",
    )
    measured_s, planner_s = row.step_s, prediction.step_time_s
    if not row.is_zero3:
        return ComparedStep(row, measured_s, planner_s, None, None)
    compute_s = planner_s - prediction.communication["data"][1]
    communication_s = _by_parameter_s(model, row.gpus)
    return ComparedStep(row, measured_s, planner_s, max(compute_s, communication_s), compute_s + communication_s)


def _by_parameter_s(model: Transformer, ranks: int) -> float:
    """Seconds of ZeRO-3's collectives for Megatron's tensors one by one; queries, keys and values are one matrix."""
    width, vocab_size = model.d_model, model.vocab_size
    matrices = [out * inner * width**2 for out, inner in ((3, 1), (1, 1), (4, 1), (1, 4))]
    vectors = [out * width for out in (3, 1, 4, 1)] + 4 * [width]
    ends = [vocab_size * width, model.max_seq_len * width, width, width]
    units = model.num_layers * (matrices + vectors) + ends
    return zero3_time(units, find_cluster("dgx-a100"), ranks, algorithm="ring").step_s
