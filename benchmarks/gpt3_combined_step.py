"""A step of GPT-3 175B on 512 simulated A100s by lablib's own combined step, and the planner beside it.

    python benchmarks/gpt3_combined_step.py [--layers 96] [--pipeline 8] [--micro-batches 32]

Data 8, tensor 8 with sequence parallelism, ZeRO-1, 1F1B: the plan that `axis_by_axis` passes on its way, with fewer
micro-batches. `simulate=` runs one rank of each stage; the others are phantoms. The planner is asked for eager torch
without masters and nothing that real machines lose, as this program is eager and the simulator loses nothing.
"""

import argparse
import time
from dataclasses import replace
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

from lablib import launch, phase
from lablib.models import GPTConfig
from lablib.models.transformer import Transformer
from lablib.parallel import Combination, CombinedStep, Mesh
from lablib.plan import IDEAL, STACKS, Parallel, predict


def program(how: Combination) -> None:
    with phase("setup"):
        step = CombinedStep(how, partial(torch.optim.AdamW, lr=1e-4), dtype=torch.bfloat16)
        tokens = torch.zeros(how.batch_size, how.seq_len, dtype=torch.long)
        dist.barrier()
    step(tokens, tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--pipeline", type=int, default=8)
    parser.add_argument("--micro-batches", type=int, default=32)
    options = parser.parse_args()
    layers, pipeline, m = options.layers, options.pipeline, options.micro_batches
    config = GPTConfig(
        num_layers=layers, d_model=12288, num_heads=96, vocab_size=51200, max_seq_len=2048, tied_head=False
    )
    mesh = Mesh(data=8, pipeline=pipeline, tensor=8)
    how = Combination(config, mesh, batch_size=8 * m, seq_len=2048, num_micro_batches=m, sequence_parallel=True)
    began_s = time.perf_counter()
    ranks = [mesh.rank(data=0, pipeline=stage, tensor=0) for stage in range(pipeline)]
    run = launch(program, how, ranks=mesh.num_ranks, cluster="dgx-a100", fidelity="shapes", simulate=ranks)
    summary = run.summary(timeline=run.timeline.without("setup"))
    print(f"simulated in {time.perf_counter() - began_s:.0f} s: {summary.sentence()}")
    sizes = Transformer("gpt3", layers, 12288, 96, 51200, 2048, tied_head=False)
    axes = Parallel(data=8, tensor=8, pipeline=pipeline, zero_stage=1)
    ends_s = max(span.end_s for span in run.timeline.spans if span.phase.split("/")[0] == "setup")
    for name in ("torch", "torch-megatron"):
        stack = replace(STACKS[name], has_master=False)
        plan = predict(sizes, "dgx-a100", axes, 8 * m, stack=stack, derating=IDEAL, order=mesh.axes)
        apart = plan.step_time_s / summary.step_time_s - 1
        print(f"planned, {name}: {plan.step_time_s:.3f} s, {apart:+.1%} of {summary.step_time_s:.3f} s")
        print("   memory of each stage (GB):", ", ".join(f"{size / 1e9:.1f}" for size in plan.stage_bytes))
    held = []
    for rank in ranks:
        times_s, curves = run.memory.curve(rank)
        held.append(np.sum([size[times_s >= ends_s] for size in curves.values()], axis=0).max())
    print("simulated, after setup (GB):", ", ".join(f"{size / 1e9:.1f}" for size in held))


if __name__ == "__main__":
    main()
