"""The figures under test: every figure function of the package, drawn once from made-up data."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
from types import ModuleType

import plotly.graph_objects as go
import pytest
import torch

from lablib import figures
from lablib.batches.noise_scale import StepsLaw
from lablib.batches.packing import best_fit
from lablib.data.loading.loader import Loader
from lablib.data.loading.loader_timeline import run_loop
from lablib.errors import DeadlockError, Wait
from lablib.figures import DrawnLink, Node
from lablib.labs import lab02, lab03, lab04, lab05, lab06, lab07, lab11, lab12, lab13, lab14, lab15, lab16
from lablib.memory.ways_to_fit import Way
from lablib.pipeline import Plan, equal_memory, replay
from lablib.pipeline.schedules import make
from lablib.pipeline.simulation import read_plan, simulate
from lablib.precision.exponents import ExponentCounts
from lablib.precision.formats import FORMATS
from lablib.studies.expert_against_dense import AgainstDense
from lablib.studies.optimizers import difference
from tests.figures import examples as made_up


@pytest.fixture(scope="session")
def examples() -> ModuleType:
    return made_up


@pytest.fixture(scope="session")
def all_figures(examples: ModuleType) -> dict[str, go.Figure]:
    """One figure of every kind."""
    step, slower = examples.ddp_step(), examples.ddp_step(slow=1.4, seed=1)
    sizes, ranks = [1e3, 1e5, 1e7, 1e9], [1, 2, 4, 8]
    curves = {"ring": [1e-4, 1e-4, 1e-3, 1e-1], "tree": [1e-5, 5e-5, 4e-3, 4e-1]}
    deadlock = DeadlockError(
        "no rank can go on",
        [Wait(0, "waits in recv from rank 1", for_ranks=(1,)), Wait(1, "waits in recv from rank 0", for_ranks=(0,))],
    )
    nodes = [Node("a", 0.0, 0.0), Node("b", 1.0, 0.0), Node("s", 0.5, 1.0, "switch")]
    links = [DrawnLink("a", "s", "NVLink"), DrawnLink("b", "s", "NVLink")]
    memory, device, plan = examples.some_memory(), examples.DEVICE, examples.some_prediction()
    return {
        "timeline": figures.figure_timeline(step),
        "reconcile": figures.figure_reconcile(step, slower),
        "reconcile normalized": figures.figure_reconcile(step, slower, normalize=True),
        "collective cost": figures.figure_collective_cost(sizes, curves, {"tree = ring": 1e6}),
        "efficiency": figures.figure_scaling(ranks, {"ddp": [1.0, 0.95, 0.9, 0.8]}),
        "traffic": figures.figure_traffic(examples.some_traffic(), 4),
        "traffic matrix": figures.figure_traffic_matrix(examples.some_traffic(), 4, devices_per_node=2),
        "traffic matrix of a mesh": figures.figure_traffic_matrix(
            examples.some_traffic(), devices_per_node=2, mesh={"data": 2, "tensor": 2}
        ),
        "placements": lab14.figure_placements(examples.some_placements(), "orders"),
        "traffic matrices": figures.figure_traffic_matrix(
            {"one": examples.some_traffic(), "the same": examples.some_traffic()}, 4
        ),
        "memory": figures.figure_memory(memory, device=device),
        "allocator": figures.figure_allocator(memory.replay_allocator(capacity_bytes=3 * 2**20)),
        "memory under timeline": figures.figure_memory(memory, step, rank=0),
        "pipeline simulation": figures.figure_pipeline_simulation(simulate(make("zb-h1", 3, 4), None, 2.0), 7.0),
        "pipeline deadlock": figures.figure_pipeline_simulation(simulate(read_plan("F0 B0 F1 B1\nF0 F1 B0 B1"))),
        "pipeline": figures.figure_pipeline(replay(Plan.parse("1f1b", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]))),
        "roofline": figures.figure_roofline(step, device),
        "waterfall": figures.figure_waterfall(plan),
        "communication of a plan": figures.figure_communication(plan),
        "memory of a plan": figures.figure_plan_memory(plan),
        "plans": figures.figure_plans([1.0, 2.0, 0.5], [9e9, 4e9, 99e9], 80e9, ["a", "b", "c"]),
        "waits": figures.figure_waits(deadlock),
        "metrics": figures.figure_metrics(
            [0, 60, 120],
            {"loss": [3.0, 11.0, 12.0], "throughput": [900.0, float("nan"), 400.0]},
            [("loss", "above", 10.0), ("throughput", "below", 500.0)],
            [("loss", "LossAbove", 60.0, float("inf"))],
            units={"loss": "nats", "throughput": "samples/s"},
        ),
        "lines": figures.figure_lines([0, 1, 2], {"loss": [3.0, 2.0, 1.5]}, "step", "loss", y_unit="nats"),
        "time against memory": lab03.figure_time_memory(
            {"A": [Way("keep all", 8e9, 1.0, 3.0), Way("offload", 1e9, 2.5, 3.0)]}
        ),
        "differences of optimizers": lab05.figure_differences(
            {
                "lion": difference({1: 2.0, 2: 2.1}, {1: 2.1, 2: 2.21}),
                "soap": difference({1: 2.0, 2: 2.3}, {1: 2.1, 2: 2.2}),
            },
            "adamw",
        ),
        "equal memory": lab13.figure_equal_memory({m: equal_memory(4, 8, m) for m in (2.0, 4.0, 8.0)}, "bubbles"),
        "loss curves": lab05.figure_loss_curves(examples.some_results()),
        "loss and bytes": lab05.figure_loss_and_bytes(examples.some_results()),
        "loss against bytes": lab11.figure_loss_against_bytes(examples.some_compressed_runs()),
        "loss over H": lab11.figure_loss_over_h(examples.some_compressed_runs()),
        "singular values": lab05.figure_singular_values([0.9, 0.3, 0.01], {1: [1.2, 0.9, 0.03], 5: [0.9, 1.1, 0.8]}),
        "sign of noise": lab05.figure_sign_of_noise([0.01, 0.1, 1.0], {"Lion": [0.1, 0.5, 1]}, {"SGD": [0.01, 0.1, 1]}),
        "blocks": lab05.figure_blocks([1.0, 100.0], {"256": [0.01, 0.02], "all": [0.01, 0.5]}),
        "projection": lab05.figure_projection([1, 2, 4], {"now": [0.5, 0.2, 0.0], "older": [0.8, 0.6, 0.3]}),
        "exponents": lab02.figure_exponents(
            {"weights": ExponentCounts({-30: 10, -20: 60, -9: 30}, zeros=5)},
            [FORMATS["fp16"], FORMATS["bf16"]],
            (-32, 0),
            "exponents",
        ),
        "schedules": lab04.figure_schedules({"WSD": [0.5, 1.0, 1.0]}, {"WSD": [(1, 3.0), (3, 2.5)]}, "schedules"),
        "steps law": lab04.figure_steps_law({4: [290.0, 310.0], 16: [150.0]}, StepsLaw(100.0, 8.0), 10),
        "coordinate check": lab04.figure_coordinates({"muP": {32: [{"logits": 1.0}], 64: [{"logits": 1.1}]}}),
        "rates": lab04.figure_rates({"muP": {32: {0.25: [3.0, 3.2], 0.5: [2.0, 2.4]}}}, "width", "rates"),
        "packing": lab07.figure_packing({"best fit": best_fit([3, 5, 2, 7, 1], 8)}),
        "tiles": lab06.figure_tiles(examples.some_launch()),
        "tensor times": figures.figure_tensor_times(
            examples.layer_times([1, 8, 16], [8e-3, 1e-3, 6e-4], [0.0, 2e-4, 3e-3]), 8
        ),
        "matrices": lab12.figure_matrices(
            {"X": torch.tensor([[1.0, -2.0]]), "W": torch.ones(2, 1)}, {"W": (0, 2)}, "", "Cut."
        ),
        "context times": lab15.figure_context_times(
            [4096, 8192], {"ring": [0.2, 0.9], "ulysses": [0.5, 0.8]}, "attention"
        ),
        "expert load": lab15.figure_expert_load([[1.0, 3.0], [2.0, 2.0]], [0, 1], "experts"),
        "rank loads": lab15.figure_rank_loads({"in order": [3.0, 1.0], "balanced": [2.0, 2.0]}, "ranks"),
        "question": lab16.figure_question(),
        "expert times": lab15.figure_expert_times([AgainstDense(2, None, plan, plan, 99e9)], "mixture"),
        "batch splits": figures.figure_batch_splits([plan]),
        "loading": lab07.figure_loading(
            run_loop(Loader(2, start_s=1.0, batch_bytes=0.5, copy_bytes_per_s=1.0), [2.0] * 6, [1.0] * 6), 12
        ),
        "idle shares": figures.figure_idle_shares(
            [1, 2, 4], {"simulated": [0.3, 0.2, 0.1], "M/M/k/K": [0.4, 0.2, 0.1]}
        ),
        "staircase": lab06.figure_staircase([128, 256, 257], "A100", [1e-5, 1e-5, 2e-5], [0.4, 0.8, 0.4], "stairs"),
        "topology": figures.figure_topology(nodes, links, "Topology", "2 GPUs, 1 switch."),
    }
