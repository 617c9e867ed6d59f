"""Batch calculator: micro-batch x accumulations x data ranks = global batch, with memory and time.

The same global batch fits a device in several ways, from one sequence at a time to all at once. The picture shows all:
a GPU's peak memory and the step time, as predicted by the planner.
"""

from lablib.batches.batch import BatchSize
from lablib.figures.plans.batch_splits import figure_batch_splits
from lablib.plan import Parallel, predict
from lablib.plan.prediction import Prediction
from lablib.signature import checked
from lablib.widgets.controls import Choice, Control, IntChoice
from lablib.widgets.explore import Exploration, explore

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-2.7b", "llama-3-8b")
CLUSTERS = ("dgx-a100", "dgx-h100")
MOST_SEQUENCES = 64  # in a drawn micro-batch
_EXAMPLES = ({"micro_batch": 16, "num_accumulations": 2}, {"data_ranks": 64, "num_accumulations": 1})


@checked
def batch_calculator(interactive: bool = True) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings."""
    controls: list[Control] = [
        IntChoice("micro_batch", "Micro-batch", (1, 2, 4, 8, 16, 32, 64), 4, "sequences"),
        IntChoice("num_accumulations", "Accumulations", tuple(2**i for i in range(9)), 8),
        IntChoice("data_ranks", "Data ranks", tuple(2**i for i in range(11)), 16, "GPUs"),
        IntChoice("seq_len", "Sequence", (256, 512, 1024), 1024, "tokens"),
        Choice("model", "Model", MODELS, "gpt2-xl"),
        Choice("cluster", "Cluster", CLUSTERS, "dgx-h100"),
    ]
    return explore(_calculated, lambda found: figure_batch_splits(*found), controls, interactive, _EXAMPLES)


@checked
def split_batch(
    model: str, cluster: str, micro_batch: int, num_accumulations: int, data_ranks: int, seq_len: int
) -> list[Prediction]:
    """Predictions for every micro-batch that divides a rank's sequences, up to 64, and the requested one."""
    size = BatchSize(micro_batch, num_accumulations, data_ranks)
    most = max(MOST_SEQUENCES, micro_batch)
    divisors = [m for m in range(1, min(most, size.local_batch) + 1) if size.local_batch % m == 0]
    asked = (model, cluster, Parallel(data=data_ranks), size.global_batch)
    return [predict(*asked, micro_batch=divisor, seq_len=seq_len) for divisor in divisors]


def _calculated(**settings) -> tuple[list[Prediction], int]:
    found = split_batch(**settings)
    return found, [one.micro_batch for one in found].index(settings["micro_batch"])
