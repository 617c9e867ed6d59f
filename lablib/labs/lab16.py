"""Lab 16: a slice of GPT-3 on the simulator, plans with a price, a leader board; the one import of its notebook."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from math import inf
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import torch
import torch.distributed as dist

from lablib import parallel
from lablib.course import checks_for, guess, try_out
from lablib.course.places import find_labs_folder, work_folder
from lablib.course.progress import progress_path
from lablib.figures import figure_waterfall, show
from lablib.figures.chart import ROWS, Axis, Panel, chart, points
from lablib.hardware import find_cluster
from lablib.hardware.cluster import Cluster
from lablib.launch import launch
from lablib.models.sizes import GPTConfig
from lablib.phases import phase
from lablib.plan import Parallel, Prediction, predict, search
from lablib.plan.search_result import bound_by
from lablib.record.timeline import Span, Timeline
from lablib.studies import PublishedRuns
from lablib.text.files import parse_json, read_text, write_text
from lablib.text.units import format_quantity
from lablib.widgets import Choice, IntChoice, LogSlider, explore

GPT3_TOKENS, GPT3_FLOPS = 300e9, 3.14e23  # Brown et al., 2020, arXiv 2005.14165, table D.1
BATCH, SEQ_LEN, WIDTH, VOCABULARY = 1536, 2048, 12288, 51_200  # sequences of a step: 3.1 million tokens
RATE = 0.85  # of the peak: a bit above the products in the timeline of a layer, for a lower bound
Plan = Mapping[str, Any]


def in_table(columns: Mapping[str, Mapping[str, Any]], rows: bool = False) -> pd.DataFrame:
    """Name -> values as a table, a column each or a row each; numbers are seconds, without FLOPs."""
    table = pd.DataFrame(columns).drop(index="FLOPs", errors="ignore")
    table = table.map(lambda each: each if isinstance(each, str) else format_quantity(each, "s"), na_action="ignore")
    return table.fillna("").T if rows else table.fillna("")


TRAININGS = {  # FLOPs as published: Brown et al. as above; arXiv 2204.02311 (PaLM); arXiv 2407.21783 (Llama 3)
    "GPT-3 2.7B, 2020": 4.77e21,
    "GPT-3 13B, 2020": 2.31e22,
    "GPT-3 175B, 2020": GPT3_FLOPS,
    "PaLM 540B, 2022": 2.53e24,
    "Llama 3 405B, 2024": 3.8e25,
}


def figure_question() -> go.Figure:
    """FLOPs of published trainings, and the question."""
    names, flops = list(TRAININGS), list(TRAININGS.values())
    ticks = {10.0**n: f"1e{n}" for n in range(21, 27)}
    across = Axis("training", "FLOP", log=True, ticks=ticks, span=(1e21, 1e26))
    panel = Panel(across, ROWS, [points(0, "trainings", flops, names, size=14)])
    sentence = f"How many GPUs, days and dollars is that? GPT-3 175B took {GPT3_FLOPS:.3g} FLOPs."
    return chart("What would GPT-3 cost?", panel, sentence, {"model": names, "FLOPs": flops}, showlegend=False)


@dataclass(frozen=True)
class Slice:
    """A simulated step of some of GPT-3's layers; seconds are of the first rank of each stage."""

    timeline: Timeline
    ranks: tuple[int, ...]
    num_micro_batches: int

    def stage(self, number: int) -> dict[str, float]:
        """Seconds of one micro-batch on a stage, forward and backward, and its FLOPs."""
        seconds = {"products": 0.0, "all-reduces": 0.0, "other kernels": 0.0, "FLOPs": 0.0}
        for span in self.timeline.select(self.ranks[number]):
            if span.phase.startswith(("forward ", "backward ")) and (span.is_compute or span.name == "all_reduce"):
                kind = "all-reduces" if not span.is_compute else "products" if span.flops else "other kernels"
                seconds[kind] += span.duration_s / self.num_micro_batches
                seconds["FLOPs"] += span.flops / self.num_micro_batches
        return seconds

    def stage_s(self, number: int) -> float:
        """Seconds of one micro-batch on a stage."""
        return sum(seconds for name, seconds in self.stage(number).items() if name != "FLOPs")

    def terms(self) -> dict[str, float]:
        """The step on the busiest stage, as a sum."""
        stages = [self.stage_s(number) for number in range(len(self.ranks))]
        spans = [s for s in self.timeline.select(self.ranks[stages.index(max(stages))]) if not s.is_waiting]
        calls = ("reduce_scatter_tensor", "all_gather_into_tensor")
        data = sum(s.duration_s for s in spans if s.name in calls)
        optimizer = sum(s.duration_s for s in spans if s.is_compute and s.phase in ("reduce", "optimizer"))
        busy = self.num_micro_batches * max(stages)
        waits = self.timeline.makespan_s - busy - data - optimizer
        return {"stage": busy, "bubble and messages": waits, "data axis": data, "optimizer": optimizer}

    def compare_terms(self, cluster: str) -> pd.DataFrame:
        """The terms of the step of 8 layers, by formula and in the timeline."""
        bytes_per_s = find_cluster(cluster).inter.bandwidth_bytes_per_s
        params = (2 * 12 * WIDTH**2 + VOCABULARY * WIDTH) / 8  # 2 layers and the head, on 8 ranks
        stages_s, message_s = [self.stage_s(number) for number in range(4)], 2 * SEQ_LEN * WIDTH / bytes_per_s
        formula = step_seconds(stages_s, self.num_micro_batches, message_s, params, 2, bytes_per_s)
        print(f"the timeline's step: {format_quantity(self.timeline.makespan_s, 's')}")
        return in_table({"formula": formula, "timeline": self.terms()})

    def figure_layer(self) -> go.Figure:
        """Forward and backward of a micro-batch on the second stage, without the wait between them."""
        rank, spans = self.ranks[1], self.timeline.select(self.ranks[1])
        shown, now_s = [], 0.0
        for part in ("forward 1F4", "backward 1B4"):
            own = [s for s in spans if s.phase == part and (s.is_compute or s.name == "all_reduce")]
            start_s = min(s.start_s for s in own)
            shown += [replace(s, start_s=s.start_s - start_s + now_s, end_s=s.end_s - start_s + now_s) for s in own]
            now_s = max(s.end_s for s in shown)
        alone = Timeline.of(shown, self.timeline.num_ranks, simulated=self.timeline.simulated)
        return alone.figure(ranks=[rank], title="One layer on one GPU: forward, then backward")


@cache
def run_slice(cluster: str, layers: int, tensor: int = 8, num_micro_batches: int = 8) -> Slice:
    """Simulate a step of some of GPT-3's layers: 2 replicas of 4 stages, each on `tensor` GPUs; ZeRO-1."""
    config = GPTConfig(layers, WIDTH, 96, vocab_size=VOCABULARY, max_seq_len=SEQ_LEN, tied_head=False)
    mesh = parallel.Mesh(data=2, pipeline=4, tensor=tensor)
    how = parallel.Combination(config, mesh, 2 * num_micro_batches, SEQ_LEN, num_micro_batches=num_micro_batches)

    def program() -> None:
        with phase("setup"):
            step = parallel.CombinedStep(how, partial(torch.optim.AdamW, lr=1e-4), dtype=torch.bfloat16)
            tokens = torch.zeros(how.batch_size, SEQ_LEN, dtype=torch.long)
            dist.barrier()
        step(tokens, tokens)

    ranks = tuple(mesh.rank(data=0, pipeline=stage, tensor=0) for stage in range(4))
    run = launch(program, ranks=mesh.num_ranks, cluster=cluster, fidelity="shapes", simulate=ranks)
    spans = [_by_axis(span, mesh) for span in run.timeline.without("setup")]
    timeline = Timeline.of(spans, run.timeline.num_ranks, simulated=run.timeline.simulated)
    return Slice(timeline, ranks, num_micro_batches)


def _by_axis(span: Span, mesh: parallel.Mesh) -> Span:
    """The span with its stream named after the axis: "comm:tensor" for "comm:8-15"; a pipeline has two directions."""
    if span.is_compute:
        return span
    kind, group = span.stream.split(":")[:2]
    if "," not in group:
        return replace(span, stream=f"{kind}:{'all ranks' if group == 'world' else 'tensor'}")
    first, second = map(int, group.split(",")[:2])
    is_pipeline = second - first == mesh.stride("pipeline")
    return replace(span, stream=f"{kind}:pipeline:{span.name[:4]}" if is_pipeline else f"{kind}:data")


def layer_seconds(
    tokens: int, width: int, seq_len: int, n: int, flops_per_s: float, bytes_per_s: float, latency_s: float
) -> dict[str, float]:
    """Seconds of one layer, forward and backward, on one of n tensor ranks."""
    matrices, scores, rounds = 24 * width**2, 4 * seq_len * width, 2 * (n - 1)
    round_s = 2 * tokens * width / n / bytes_per_s + latency_s
    return {"products": 3 * tokens * (matrices + scores) / n / flops_per_s, "all-reduces": 4 * rounds * round_s}


def compare_layers(cluster: str, flops_per_s: float) -> pd.DataFrame:
    """Terms of a layer by formula and in the timeline, on 8 and on 4 tensor ranks."""
    table, link = dict[str, Any](), find_cluster(cluster).intra
    for n in (8, 4):
        rates = flops_per_s, link.bandwidth_bytes_per_s, link.latency_s
        table[f"formula, {n} ranks"] = layer_seconds(SEQ_LEN, WIDTH, SEQ_LEN, n, *rates)
        table[f"timeline, {n} ranks"] = run_slice(cluster, layers=4, tensor=n).stage(1)
    return in_table(table)


def step_seconds(
    stages_s: Sequence[float], m: int, message_s: float, params: float, replicas: int, bytes_per_s: float
) -> dict[str, float]:
    """Seconds of one step, as a sum."""
    busiest, boundaries = max(stages_s), len(stages_s) - 1
    waits_s = sum(stages_s) - busiest + 2 * boundaries * message_s
    call_s = (1 - 1 / replicas) * 2 * params / bytes_per_s
    return {"stage": m * busiest, "bubble and messages": waits_s, "data axis": 2 * call_s}


TENSOR, PIPELINE, MICRO, RECOMPUTE = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32), (1, 2, 4), ("none", "selective", "full")
CHOICES = ("nodes", "tensor", "pipeline", "micro_batch", "recompute")


@dataclass(frozen=True)
class Prices:
    """Plans for GPT-3 on a cluster, priced by the planner, at dollars per GPU and hour.

    A plan has nodes, tensor, pipeline, micro_batch, recompute and perhaps zero_stage (1); replicas take the other GPUs.
    """

    cluster: str | Cluster
    dollars: float

    def predict(self, plan: Plan) -> Prediction:
        """Time and memory of a step. Raises ValueError if the plan is impossible."""
        if set(plan) - {"zero_stage"} != {*CHOICES}:
            raise ValueError(f"a plan has {', '.join(CHOICES)}, and perhaps zero_stage: got {', '.join(plan)}.")
        counts = [plan[name] for name in CHOICES[:3]]
        if not all(isinstance(count, int) and count > 0 for count in counts):
            raise ValueError(f"nodes, tensor and pipeline are whole numbers above 0: got {counts}; try [96, 4, 8].")
        gpus, within = plan["nodes"] * find_cluster(self.cluster).devices_per_node, plan["tensor"] * plan["pipeline"]
        if gpus % within:
            raise ValueError(f"tensor x pipeline must divide the {gpus} GPUs: got {within}; try 64")
        split = Parallel(gpus // within, plan["tensor"], plan["pipeline"], zero_stage=plan.get("zero_stage", 1))
        more = {"micro_batch": plan["micro_batch"], "recompute": plan["recompute"]}
        return predict("gpt3-175b", self.cluster, split, BATCH, **more)

    def seconds(self, plan: Plan) -> float:
        """Seconds of a step; infinite if the plan is impossible or does not fit."""
        try:
            found = self.predict(plan)
        except ValueError:
            return inf
        return found.step_time_s if found.fits else inf

    def least_seconds(self, plan: Plan) -> float:
        """Products, all-reduces and bubble of the layers alone; infinite if the axes do not divide."""
        where, n, p = find_cluster(self.cluster), plan["tensor"], plan["pipeline"]
        gpus, sequences = plan["nodes"] * where.devices_per_node, plan["micro_batch"]
        m, rest = divmod(BATCH * n * p, gpus * sequences)
        if rest or gpus % (n * p):
            return inf
        rates = RATE * where.device.peak("bfloat16"), where.intra.bandwidth_bytes_per_s
        layer = layer_seconds(sequences * SEQ_LEN, WIDTH, SEQ_LEN, n, *rates, latency_s=0.0)
        again = 4 / 3 if plan["recompute"] == "full" else 1
        stage_s = 96 / p * (again * layer["products"] + layer["all-reduces"])
        return sum(step_seconds([stage_s] * p, m, 0.0, 0.0, 1, 1.0).values())

    def plans(self, nodes: int) -> list[Plan]:
        """All plans of the exercise, with ZeRO-1."""
        axes = product((nodes,), TENSOR, PIPELINE, MICRO, RECOMPUTE)
        return [dict(zip(CHOICES, each, strict=True)) for each in axes]

    def try_search(self, cheapest: Callable[..., Any], nodes: int) -> None:
        """Run a learner's `cheapest` on all plans, and print how many it priced."""
        plans, tried = self.plans(nodes), list[Plan]()
        try_out(cheapest, plans, self.least_seconds, lambda plan: (tried.append(plan), self.seconds(plan))[1])
        print(f"priced: {len(tried)} of {len(plans)} plans")

    def best(self, nodes: int, batch: int = BATCH, **fixed: Any) -> Prediction:
        """The fastest plan of `lablib.plan.search`. Raises ValueError if none fits."""
        return search("gpt3-175b", self.cluster, batch, nodes=nodes, context=1, **fixed).best

    def bill(self, found: Prediction) -> dict[str, str]:
        """Plan, use of the peak, days and dollars for GPT-3's tokens."""
        hours = found.gpu_hours(GPT3_TOKENS)
        row = {"plan": str(found.parallel), "MFU": f"{found.mfu:.0%}", "days": f"{hours / found.num_gpus / 24:.3g}"}
        return row | {"dollars": f"{self.dollars * hours / 1e6:.3g}M", "most in": bound_by(found)}

    def explore(self, interactive: bool) -> Any:
        """Choose a plan by hand: the waterfall of its step, with days and dollars."""

        def draw(found: Prediction) -> go.Figure:
            row, memory = self.bill(found), format_quantity(found.peak_memory_bytes, "B")
            fits = "" if found.fits else ": does not fit"
            return figure_waterfall(found, f"{row['days']} days, {row['dollars']} dollars, {memory} per GPU{fits}")

        controls = [
            IntChoice("nodes", "Nodes of 8 GPUs", (24, 48, 96, 192), 96),
            IntChoice("tensor", "Tensor ranks", TENSOR, 4),
            IntChoice("pipeline", "Stages", PIPELINE, 8),
            IntChoice("micro_batch", "Sequences of a micro-batch", MICRO, 1),
            IntChoice("zero_stage", "ZeRO stage", (0, 1, 3), 1),
            Choice("recompute", "Recompute", RECOMPUTE, "full"),
        ]
        return explore(lambda **plan: self.predict(plan), draw, controls, interactive, [{"tensor": 1}])

    def best_on(self, network: float = 1.0, memory: float = 1.0, batch: int = BATCH) -> Prediction:
        """The fastest plan of 96 nodes, with so many times the cluster's network and memory."""
        machine = find_cluster(self.cluster)
        link = replace(machine.inter, bandwidth_bytes_per_s=machine.inter.bandwidth_bytes_per_s * network)
        device = replace(machine.device, memory_bytes=machine.device.memory_bytes * memory)
        return replace(self, cluster=machine.replace(inter=link, device=device)).best(96, batch)

    def three_machines(self) -> tuple[list[float], pd.DataFrame]:
        """Percent by which a sequence takes longer with a slow network, little memory, a small batch; best plans."""
        cases = {"today": {}, "slow network": {"network": 0.05}, "little memory": {"memory": 0.25}}
        found = {name: self.best_on(**case) for name, case in (cases | {"small batch": {"batch": BATCH // 4}}).items()}
        today, rows, longer = found["today"].tokens_per_s, {}, []
        for name, one in found.items():
            longer.append(100 * (today / one.tokens_per_s - 1))
            rows[name] = {"longer": f"{longer[-1]:+.0f}%", "plan": str(one.parallel), "most in": bound_by(one)}
        return longer[1:], in_table(rows, rows=True)

    def explore_machines(self, interactive: bool) -> Any:
        """The best plan of 96 nodes as the network, the memory and the batch change."""
        controls = [
            LogSlider("network", "Network between nodes, times", 0.02, 10, 1.0),
            LogSlider("memory", "Memory of a GPU, times", 0.25, 5, 1.0),
            IntChoice("batch", "Sequences of a step", (384, 768, 1536, 3072, 6144), BATCH),
        ]

        def draw(found: Prediction) -> go.Figure:
            return figure_waterfall(found, f"The best plan for this machine: {self.bill(found)['days']} days")

        return explore(self.best_on, draw, controls, interactive, [{"network": 10}, {"batch": 4 * BATCH}])

    def explanation(self, wrong: Plan, better: Plan) -> tuple[dict[str, float], pd.DataFrame]:
        """Choices put right one by one, the most saving first: seconds saved, and the term that becomes shorter."""
        plan, now, rows, saved = dict(wrong), self.predict(wrong), {}, dict[str, float]()
        while left := [name for name in better if plan[name] != better[name]]:
            after = {name: self.predict({**plan, name: better[name]}) for name in left}
            name = min(left, key=lambda choice: after[choice].step_time_s)
            gains = {part: seconds - after[name].parts[part] for part, seconds in now.parts.items()}
            term = max(gains, key=lambda part: gains[part])
            saved[name] = now.step_time_s - after[name].step_time_s
            row = {"from, to": f"{plan[name]}, {better[name]}", "saves": saved[name]}
            row |= {"step then": after[name].step_time_s, "mostly in": f"{term}, {format_quantity(gains[term], 's')}"}
            rows[name], plan[name], now = row, better[name], after[name]
        return saved, in_table(rows, rows=True)

    def leader_board(self, name: str | None, plan: Plan, days: float) -> pd.DataFrame:
        """Enter a plan under a name, and show all entries by dollars, each predicted again. None: nothing is saved.

        The file is `16_leader_board.json` in the work folder; with `LAB_PROGRESS=off` there is none.
        """
        path = work_folder(find_labs_folder()) / "16_leader_board.json"
        entries: dict[str, Any] = parse_json(read_text(path)) if path.is_file() else {}
        entries[name or "(no name)"] = {"cluster": self.cluster, "plan": dict(plan)}
        self.predict(plan)  # an impossible plan is an error, and is not saved
        if name and progress_path():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(entries, indent=1) + "\n")
        rows = {}
        for who, entry in entries.items():
            found = replace(self, cluster=entry["cluster"]).predict(entry["plan"])
            late = found.gpu_hours(GPT3_TOKENS) / found.num_gpus > 24 * days
            counts = "no: does not fit" if not found.fits else "no: too late" if late else "yes"
            rows[who] = {"GPUs": str(found.num_gpus), **self.bill(found), "counts": counts}
        order = sorted(rows, key=lambda who: (rows[who]["counts"] != "yes", float(rows[who]["dollars"][:-1])))
        return in_table({who: rows[who] for who in order}, rows=True)


def first_bills(dollars: float) -> tuple[list[float], pd.DataFrame]:
    """Days and bills of the best plans for the clusters of the first guess."""
    a100, v100 = Prices("dgx-a100", dollars), Prices("dgx-v100", dollars)
    rows = {"1,024 A100": a100.bill(a100.best(128))}
    rows["10,000 V100"] = v100.bill(v100.best(1250, batch=1600, precision="float16"))
    return [float(row["days"]) for row in rows.values()], in_table(rows, rows=True)
