"""The planner beside the simulator: the step of gpt3_step.py, predicted in closed form and run operator by operator.

Both read lablib/cost, so what is compared is everything else: which operators run, when ranks wait for one another,
which tensors live at the peak. The last line has the two differences that count.
"""

import argparse
import time
from functools import partial

from gpt3_step import GPT3, SMALL, step

from lablib import Run, launch
from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, Parallel, Prediction, predict
from lablib.text.units import format_quantity

NUM_PREDICTIONS = 200


def planned(options: argparse.Namespace, config: dict[str, int]) -> Prediction:
    sizes = (config["layers"], config["hidden"], config["heads"], config["vocab"], config["seq"])
    return predict(
        Transformer("gpt3", *sizes, tied_head=False),
        options.cluster,
        Parallel(tensor=options.tensor, pipeline=options.pipeline, sequence_parallel=False),
        batch=options.micro_batches,
        recompute="full",
        stack="torch-megatron",
        derating=IDEAL,
    )


def print_time(run: Run, prediction: Prediction) -> tuple[float, float]:
    """The step and its two parts on the first rank, which ends last; seconds of the step, simulated and planned."""
    timeline = run.timeline.without("setup")
    steps = [span for span in timeline.spans if span.rank == 0 and span.phase == "optimizer"]
    optimizer_s = max(span.end_s for span in steps) - min(span.start_s for span in steps)
    rows = [
        ("step", timeline.makespan_s, prediction.step_time_s),
        (
            "forward and backward",
            timeline.makespan_s - optimizer_s,
            prediction.step_time_s - prediction.parts["optimizer"],
        ),
        ("optimizer", optimizer_s, prediction.parts["optimizer"]),
    ]
    print(f"{'seconds':24}{'simulated':>12}{'planned':>12}{'difference':>12}")
    for name, simulated_s, planned_s in rows:
        print(f"{name:24}{simulated_s:12.4f}{planned_s:12.4f}{planned_s / simulated_s - 1:+12.2%}")
    return timeline.makespan_s, prediction.step_time_s


def print_memory(run: Run, prediction: Prediction, tensor: int) -> float:
    """Peak of each stage; the largest difference."""
    print(f"{'peak of memory':24}{'simulated':>12}{'planned':>12}{'difference':>12}")
    worst = 0.0
    for stage, planned_bytes in enumerate(prediction.stage_bytes):
        simulated_bytes = run.memory.peak_bytes(stage * tensor)
        off = planned_bytes / simulated_bytes - 1
        worst = max(worst, abs(off))
        held, expected = (format_quantity(size, "B") for size in (simulated_bytes, planned_bytes))
        print(f"{'stage ' + str(stage):24}{held:>12}{expected:>12}{off:+12.2%}")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="dgx-a100")
    parser.add_argument("--tensor", type=int, default=8)
    parser.add_argument("--pipeline", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="a model of toy size")
    options = parser.parse_args()
    config = SMALL if options.small else GPT3
    began_s = time.process_time()
    for _ in range(NUM_PREDICTIONS):
        prediction = planned(options, config)
    planned_cpu_s = (time.process_time() - began_s) / NUM_PREDICTIONS
    program = partial(step, config, options.tensor, options.pipeline, options.micro_batches)
    began_s = time.process_time()
    run = launch(program, ranks=options.tensor * options.pipeline, cluster=options.cluster, fidelity="shapes")
    simulated_cpu_s = time.process_time() - began_s
    simulated_s, planned_s = print_time(run, prediction)
    worst = print_memory(run, prediction, options.tensor)
    print(f"processor time: simulated in {simulated_cpu_s:.0f} s, planned in {planned_cpu_s * 1e3:.2f} ms")
    print(f"step {planned_s / simulated_s - 1:+.2%} (target 5%), memory at worst {worst:.2%} (target 2%)")


if __name__ == "__main__":
    main()
