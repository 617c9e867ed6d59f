"""Wall time of a step of the pipeline executor beside torch's schedule of the same plan, on real processes (gloo).

    python benchmarks/pipeline_speed.py [--ranks 2] [--repeats 5] [--width 256]

The same small GPT cut in the same places, float32. In every repeat each takes its turn; medians of a step are compared,
on the host's clock. torch's own schedules are those that tests/pipeline/test_torch_schedules.py holds equal to ours,
action by action.
"""

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from lablib import launch
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.pipeline import Plan
from lablib.pipeline.executor import Pipeline, cut
from lablib.pipeline.schedules import make

PAIRS = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-h1": "ScheduleInterleavedZeroBubble",
    "zb-v": "ScheduleZBVZeroBubble",
}


def torchs(plan: Plan, name: str, pieces: Any, inputs: Any, targets: Any) -> Any:
    """A step of torch's schedule."""
    own = [i for i, rank in enumerate(plan.rank_of) if rank == dist.get_rank()]
    stages = [PipelineStage(pieces[i], i, plan.num_pieces, torch.device("cpu")) for i in own]
    kind: Any = getattr(torch_schedules, name)
    is_single = issubclass(kind, torch_schedules.PipelineScheduleSingle)
    schedule = kind(stages[0] if is_single else stages, plan.num_microbatches, loss_fn=next_token_loss)
    given = [torch.cat(inputs)] if 0 in own else []
    expected = {"target": torch.cat(targets)} if plan.num_pieces - 1 in own else {}
    return lambda: schedule.step(*given, **expected)


def program(name: str, width: int, repeats: int) -> dict[str, float]:
    plan = make(name, dist.get_world_size(), 8, 2 if name == "interleaved" else 1)
    tokens = torch.randint(0, 512, (8, 4, 129), generator=torch.Generator().manual_seed(0))
    inputs, targets = list(tokens[..., :-1]), list(tokens[..., 1:])
    config = GPTConfig(8, width, 4, vocab_size=512, max_seq_len=128, tied_head=False)
    pipeline = Pipeline(plan, cut(GPT(config), plan.num_pieces), next_token_loss)
    steps = {
        "torch": torchs(plan, PAIRS[name], cut(GPT(config), plan.num_pieces), inputs, targets),
        "ours": lambda: pipeline.step(inputs, targets),
    }
    taken: dict[str, list[float]] = {each: [] for each in steps}
    for _ in range(repeats + 1):
        for each, step in steps.items():
            dist.barrier()
            began = time.perf_counter()
            step()
            dist.barrier()
            taken[each].append(time.perf_counter() - began)
    return {each: statistics.median(times[1:]) for each, times in taken.items()}  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    print(f"{args.ranks} gloo ranks, seconds of a step of 8 micro-batches, median of {args.repeats}, in turn")
    for name in PAIRS:
        run = launch(program, name, args.width, args.repeats, ranks=args.ranks, backend="gloo", trace=False)
        taken = run.values[0]
        ratio = taken["ours"] / taken["torch"]
        print(f"  {name:12} {taken['ours']:6.3f} s   torch {taken['torch']:6.3f} s   {ratio:.2f} times   target: 1.2")


if __name__ == "__main__":
    main()
