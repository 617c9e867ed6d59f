"""Memory calculator: peak memory of a training step, largest micro-batch, program line at the peak.

Controls: model, device, sequence, micro-batch, precision, optimizer and recomputation. Below: the peak by category and
the whole step. A click on any moment, or on the diamond at the peak, names its operator and the program's line.
"""

from collections.abc import Mapping
from typing import Any

from lablib.figures.run.step_memory import figure_step_memory
from lablib.hardware.devices import DEVICES
from lablib.models.published import TRANSFORMERS
from lablib.models.sizes import GPTConfig
from lablib.signature import checked
from lablib.studies.step_memory import OPTIMIZERS, PRECISIONS, StepMemory, memory_of_step
from lablib.text.units import unit_for
from lablib.widgets.controls import Choice, Control, IntChoice
from lablib.widgets.explore import Exploration, explore

OWN = "own sizes"
HEAD_WIDTH = 64  # of a model with sizes from the controls
_EXAMPLES = (
    {"recompute": "full"},
    {"micro_batch": 16},
    {"model": "llama-2-7b", "seq_len": 4096, "micro_batch": 1, "device": "A100-80GB-SXM"},
)


@checked
def memory_calculator(
    interactive: bool = True, model: str = "gpt2-xl", device: str = "H100-80GB-SXM", micro_batch: int = 4
) -> Exploration:
    """The calculator, to end a cell with; not interactive: its figure at a few settings.

    Arguments are initial values of controls: names of the catalogues, and sequences.
    """

    def without_effect(settings: Mapping[str, Any]) -> set[str]:
        """A model of the catalogue has fixed sizes."""
        return set() if settings["model"] == OWN else {"layers", "d_model"}

    powers = tuple(2**i for i in range(8, 18))
    controls: list[Control] = [
        Choice("model", "Model", (*TRANSFORMERS, OWN), model),
        Choice("device", "Device", tuple(DEVICES), device),
        IntChoice("seq_len", "Sequence", powers, 1024, "tokens"),
        IntChoice(
            "micro_batch", "Micro-batch", (*range(1, 17), 20, 24, 32, 48, 64, 96, 128, 256), micro_batch, "sequences"
        ),
        Choice("precision", "Precision", tuple(PRECISIONS), "16 bits, float32 master"),
        Choice("optimizer", "Optimizer", tuple(OPTIMIZERS), "adamw"),
        Choice("recompute", "Recompute", ("none", "every 4", "every 2", "full"), "none"),
        IntChoice("num_microbatches", "Micro-batches a step", (1, 2), 1),
        IntChoice("layers", "Own: layers", (*range(1, 17), 24, 32, 48, 64, 80, 96, 128), 12),
        IntChoice("d_model", "Own: width", (128, 256, 512, 768, 1024, 1536, 2048, 4096, 8192, 12288), 768),
    ]
    return explore(calculate, figure_step_memory, controls, interactive, _EXAMPLES, explain_point, without_effect)


def calculate(*, model: str, layers: int, d_model: int, seq_len: int, **choices: Any) -> StepMemory:
    """`memory_of_step` of the controls; a model of custom sizes has positions for the sequence, GPT-2's vocabulary."""
    if model != OWN:
        return memory_of_step(model, seq_len, **choices)
    heads = max(1, d_model // HEAD_WIDTH)
    return memory_of_step(GPTConfig(layers, d_model, heads, max_seq_len=seq_len), seq_len, **choices)


def explain_point(step: StepMemory, x: float) -> str:
    """The operator at this position of the figure's time axis."""
    index = step.index_at(x * unit_for(step.end_s, "s").scale * (1 + 1e-9))
    return step.explain(index)
