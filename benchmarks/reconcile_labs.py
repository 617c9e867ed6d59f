"""How far predictions of the programs of labs 00, 08, 09, 12, 13 and 14 are from real runs of them on this machine.

    python benchmarks/reconcile_labs.py [--repeats 7] [--quick] [--real-time] [--out benchmarks/reconcile]

Each program is measured once (`repeats` runs on gloo after one that warms up) and held against two predictions: the
catalogue's `laptop`, and the profile that a calibration makes just before. Writes `results.json` and, between the marks
of README.md, the tables. Prints the load before and after: on a machine that others use, only errors beyond the noise
say anything; there, `--real-time` (reconcile_parts.py) lets the ranks run before every other program.
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reconcile_parts import ahead_of_others, calibrated

from lablib import Cluster, Reconciliation, find_cluster, launch, parallel, phase
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import Mesh
from lablib.pipeline import schedules
from lablib.pipeline.executor import Pipeline, cut
from lablib.record.spent import counted

MARKED = re.compile(r"(?<=<!-- tables -->\n).*?(?=<!-- /tables -->)", re.DOTALL)


def lab_00(num_layers: int, rows: int, side: int) -> None:
    """One step: forward and backward through some layers, the sum of the gradients."""
    with phase("setup"):
        layers = [torch.nn.Linear(side, side, bias=False) for _ in range(num_layers)]
        x = torch.randn(rows, side)
    for layer in layers:
        x = layer(x).relu()
    x.mean().backward()
    for layer in layers:
        assert layer.weight.grad is not None
        dist.all_reduce(layer.weight.grad)


def lab_08(name: str, size: int) -> float:
    """Three all-reduces in a row: torch's own, or one built of sends and receives."""
    x = torch.ones(size)
    for _ in range(3):
        dist.all_reduce(x) if name == "torch" else getattr(parallel, f"{name}_all_reduce")(x)
    return x[0].item()


def lab_09() -> None:
    """One warm step of data parallel training whose buckets are averaged during backward."""
    with phase("setup"):
        config = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=64)
        tokens = torch.randint(256, (4, 65))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        replica = parallel.DataParallel(GPT(config, seed=0), bucket_bytes=2_000_000)
        next_token_loss(replica(inputs), targets).backward()
        dist.barrier()
    next_token_loss(replica(inputs), targets).backward()


def small(length: int) -> GPTConfig:
    return GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=length)


def lab_12() -> None:
    """One warm step, each layer on two ranks."""
    with phase("setup"):
        tokens = torch.zeros(4, 128, dtype=torch.long)
        model = parallel.parallelize(GPT(small(128), seed=0))
        parallel.vocabulary_parallel_loss(model(tokens), tokens, 256).backward()
        model.zero_grad()
        dist.barrier()
    parallel.vocabulary_parallel_loss(model(tokens), tokens, 256).backward()


def lab_13() -> None:
    """One warm step of a pipeline of two stages, four micro-batches."""
    with phase("setup"):
        tokens = [torch.zeros(4, 64, dtype=torch.long)] * 4
        plan = schedules.one_f_one_b(dist.get_world_size(), 4)
        whole = GPT(small(64), seed=0)
        pipeline = Pipeline(plan, cut(whole, plan.num_pieces), next_token_loss)
        pipeline.step(tokens, tokens)
        whole.zero_grad()
        dist.barrier()
    pipeline.step(tokens, tokens)


def lab_14() -> None:
    """One step of two stages, each on two ranks."""
    with phase("setup"):
        combination = parallel.Combination(
            small(128), Mesh(pipeline=2, tensor=2), batch_size=8, seq_len=128, num_micro_batches=4
        )
        step = parallel.CombinedStep(combination, partial(torch.optim.SGD, lr=0.1))
        tokens = torch.zeros(8, 128, dtype=torch.long)
        next_token_loss(GPT(small(128))(tokens), tokens).backward()
        dist.barrier()
    step(tokens, tokens)


def before_others(fn: Callable[..., Any], *args: Any) -> Any:
    """The program, before every other one of the machine."""
    ahead_of_others(True)
    try:
        return fn(*args)
    finally:
        ahead_of_others(False)


PROGRAMS = {
    "lab 00, a step": (lab_00, (4, 512, 512), 2, "setup"),
    "lab 08, torch's all-reduce of 1 MB": (lab_08, ("torch", 250_000), 4, ""),
    "lab 08, ring of 1 MB": (lab_08, ("ring", 250_000), 4, ""),
    "lab 08, tree of 1 MB": (lab_08, ("tree", 250_000), 4, ""),
    "lab 09, a step": (lab_09, (), 2, "setup"),
    "lab 12, a step": (lab_12, (), 2, "setup"),
    "lab 13, a step": (lab_13, (), 2, "setup"),
    "lab 14, a step": (lab_14, (), 4, "setup"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="quick calibrations: rougher figures")
    parser.add_argument("--real-time", action="store_true", help="run before other programs (root)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "reconcile")
    options = parser.parse_args()

    @cache
    def profile(ranks: int) -> Cluster:
        print(f"calibrating for {ranks} ranks, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        return calibrated(ranks, options.quick, options.real_time)

    results = []
    for name, (fn, args, ranks, without) in PROGRAMS.items():
        clusters = {"laptop": find_cluster("laptop"), "calibrated": profile(ranks)}
        load = os.getloadavg()[0]
        real = (before_others, fn) if options.real_time else (fn,)
        runs = [launch(*real, *args, ranks=ranks, backend="gloo") for _ in range(options.repeats + 1)][1:]
        for label, cluster in clusters.items():
            predicted = launch(fn, *args, ranks=ranks, cluster=cluster)
            found = Reconciliation.of(predicted, runs, without)
            print(f"{name}, {label}: {found.sentence()}")
            rows = json.loads(found.table().to_json(orient="records"))
            about = {"program": name, "ranks": ranks, "cluster": label, "load": round(load, 1)}
            results.append(about | {"rows": rows, "operations": by_operation(found)})
    profiles = {ranks: describe(profile(ranks)) for ranks in sorted({ranks for _, _, ranks, _ in PROGRAMS.values()})}
    command = " ".join(["python benchmarks/reconcile_labs.py", *sys.argv[1:]])
    options.out.mkdir(parents=True, exist_ok=True)
    record = {"command": command, "repeats": options.repeats, "profiles": profiles, "results": results}
    (options.out / "results.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    readme = options.out / "README.md"
    readme.write_text(MARKED.sub(lambda _: tables(results, profiles), readme.read_text("utf-8")), "utf-8")


def by_operation(found: Reconciliation) -> dict[str, tuple[float, float]]:
    """Seconds of a mean rank in each operation that takes 1% of the measured compute or more: predicted, measured."""
    seconds: dict[str, list[float]] = {}
    for side, run in enumerate((found.predicted, found.measured)):
        for span in counted(run, found.without).select(stream="compute"):
            seconds.setdefault(span.name, [0.0, 0.0])[side] += span.duration_s / run.ranks
    least_s = 0.01 * sum(measured for _, measured in seconds.values())
    kept = sorted((name for name in seconds if seconds[name][1] >= least_s), key=lambda name: -seconds[name][1])
    return {name: (seconds[name][0], seconds[name][1]) for name in kept}


def describe(cluster: Cluster) -> dict[str, str]:
    """The figures of a profile, for people."""
    device, link = cluster.device, cluster.intra
    figures = {
        "float32 peak": f"{device.peak('float32') / 1e9:.0f} GFLOP/s",
        "memory": f"{device.memory_bandwidth_bytes_per_s / 1e9:.1f} GB/s",
        "cache": f"{device.cache_bytes / 1e6:.0f} MB, {device.cache_bandwidth_bytes_per_s / 1e9:.1f} GB/s",
        "an operation": f"{device.kernel_overhead_s * 1e6:.1f} us",
        "a message": f"{link.latency_s * 1e6:.0f} us + S / {link.bandwidth_bytes_per_s / 1e9:.2f} GB/s",
        "a call": f"{cluster.collective_overhead_s * 1e6:.0f} us",
    }
    return figures | dict(cluster.profile)


def tables(results: list[dict], profiles: dict[int, dict[str, str]]) -> str:
    """Markdown: one table a program, both predictions in it; then the profiles."""
    lines = [""]
    for first, second in zip(results[::2], results[1::2], strict=True):
        lines += [f"### {first['program']} ({first['ranks']} ranks, load {first['load']})", ""]
        lines += ["| part | measured | noise | share | laptop | calibrated |", "|---|--:|--:|--:|--:|--:|"]
        others = {key(row): row for row in second["rows"]}
        for row in first["rows"]:
            other = others[key(row)]
            size = f", {row['size_bytes'] / 1e3:.0f} kB" if row["size_bytes"] else ""
            part = row["name"] if row["kind"] == row["name"] else f"{row['kind']}: {row['name']}{size}"
            words = [ms(row["measured_s"]), percent(row["noise_pct"], ""), percent(row["share_pct"], "")]
            lines.append(f"| {part} | {' | '.join(words)} | {error(row)} | {error(other)} |")
        lines += ["", *operations(first, second), ""]
    names = list(next(iter(profiles.values())))
    lines += ["### The profiles", "", f"| | {' | '.join(f'{ranks} ranks' for ranks in profiles)} |"]
    lines += ["|---|" + "---|" * len(profiles)]
    lines += [f"| {name.replace('_', ' ')} | {' | '.join(p[name] for p in profiles.values())} |" for name in names]
    return "\n".join(lines) + "\n\n"


def operations(first: dict, second: dict) -> list[str]:
    """The table of operations, where computing counts at all."""
    total = next(row for row in first["rows"] if row["kind"] == "makespan")
    if sum(measured for _, measured in first["operations"].values()) < 0.2 * total["measured_s"]:
        return []
    lines = ["| operation | measured | laptop | calibrated |", "|---|--:|--:|--:|"]
    for name, (predicted_s, measured_s) in first["operations"].items():
        lines.append(f"| `{name}` | {ms(measured_s)} | {ms(predicted_s)} | {ms(second['operations'][name][0])} |")
    return lines


def key(row: dict) -> tuple:
    return row["kind"], row["name"], row["group"], row["size_bytes"]


def ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.2f} ms"


def percent(value: float | None, sign: str) -> str:
    return "-" if value is None else f"{value:{sign}.0f}%"


def error(row: dict) -> str:
    """The predicted time and its signed error."""
    return f"{ms(row['predicted_s'])} ({percent(row['error_pct'], '+')})"


if __name__ == "__main__":
    main()
