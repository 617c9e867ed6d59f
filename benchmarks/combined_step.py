"""One step of GPT-3 175B by `CombinedStep` on many simulated H100s: host seconds, the step, and the planner's.

    python benchmarks/combined_step.py [--data 4] [--layers 96] [--micro-batches 16] [--whole] [--cast]

Tensor 8 with sequence parallelism, pipeline 16 with 1F1B, ZeRO-1 over data, BF16 by autocast over FP32 parameters,
clipping, AdamW. `simulate=` runs one replica's 128 ranks; those of other replicas are taken to do the same at the same
time. `--whole` runs every rank.
"""

import argparse
import resource
import time
from functools import partial

import torch
import torch.distributed as dist

from lablib import launch, phase
from lablib.models import model_config
from lablib.parallel import Combination, CombinedStep, Mesh
from lablib.plan import IDEAL, Parallel, predict

TENSOR, PIPELINE = 8, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=int, default=4)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--micro-batches", type=int, default=16)
    parser.add_argument("--whole", action="store_true", help="run every rank: nobody is a phantom")
    parser.add_argument("--cast", action="store_true", help="parameters in BF16 and no autocast, as the planner has it")
    options = parser.parse_args()
    config = model_config("gpt3-175b", num_layers=options.layers)
    mesh = Mesh(data=options.data, pipeline=PIPELINE, tensor=TENSOR)
    batch = options.data * options.micro_batches
    how = Combination(
        config,
        mesh,
        batch,
        config.max_seq_len,
        num_micro_batches=options.micro_batches,
        sequence_parallel=True,
        uneven_vocabulary="pad",
        autocast=None if options.cast else torch.bfloat16,
    )

    def program() -> None:
        with phase("setup"):
            dtype = torch.bfloat16 if options.cast else torch.float32
            step = CombinedStep(how, partial(torch.optim.AdamW, lr=1e-4, foreach=True), max_norm=1.0, dtype=dtype)
            dist.barrier()
        tokens = torch.zeros(batch, config.max_seq_len, dtype=torch.int64)
        step(tokens, tokens)

    replica = TENSOR * PIPELINE
    run = launch(program, ranks=mesh.num_ranks, fidelity="shapes", simulate=None if options.whole else range(replica))
    host_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    began_s = time.perf_counter()
    summary = run.summary(timeline=run.timeline.without("setup"))
    print(summary.sentence())
    peaks = [run.memory.peak_bytes(rank) / 1e9 for rank in range(0, replica, TENSOR)]
    print(f"memory: {min(peaks):.1f} to {max(peaks):.1f} GB a rank, stage 0 {peaks[0]:.1f}, the last {peaks[-1]:.1f}")
    print(
        f"{mesh.num_ranks:,} ranks, {len(run.timeline.ranks):,} of them run, in {run.wall_s:.0f} s with {host_gb:.1f} "
        f"GB of this machine; {len(run.timeline):,} spans; summary in {time.perf_counter() - began_s:.0f} s"
    )
    axes = Parallel(data=options.data, tensor=TENSOR, pipeline=PIPELINE, zero_stage=1)
    for stack in ("torch", "megatron-core"):  # operators one by one, of a model cast to BF16; fused ones
        plan = predict(config, "dgx-h100", axes, batch, derating=IDEAL, stack=stack)
        print(f"the planner, {stack}: {plan.step_time_s:.2f} s; simulated {summary.step_time_s:.2f} s")


if __name__ == "__main__":
    main()
