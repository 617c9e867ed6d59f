"""Orders of a mesh's axes: bytes by closed forms, seconds beside the simulator, and what is refused."""

from functools import partial

import numpy as np
import pytest

from lablib import CLUSTERS, launch
from lablib.hardware import Cluster, Dragonfly, Torus
from lablib.models.published import find_transformer
from lablib.models.transformer import Transformer
from lablib.parallel import ContextSizes, LayerSizes, Mesh, context_sent_bytes, layer_sent_bytes
from lablib.parallel.zero.bytes import TrainingPrecision, zero_sent_bytes
from lablib.plan import IDEAL, Parallel
from lablib.plan.arguments import setup_of
from lablib.plan.step import step_of
from lablib.studies.placement import place, placements
from lablib.studies.placement_bytes import LEVELS, step_calls
from tests.studies.placed_step import PlacedJob, placed_step

GPT = Transformer("gpt", 8, 1024, 16, 8192, 512, tied_head=False)
A100 = CLUSTERS["dgx-a100"]


def sent(model: Transformer | str, mesh: Mesh, axis: str, **options) -> float:
    """Bytes that a mean rank sends on an axis."""
    return sum(place(model, mesh, A100, 16, **options).sent_bytes[axis].values())


# ---- the planner's seconds beside the simulator's ----

JOB = PlacedJob(layers=2, hidden=1024, heads=8, vocab=8192, seq=1024, micro_batches=4)
TRIPLE = Mesh(data=2, pipeline=2, tensor=2)
ORDERS = {  # of nodes of 2 and of 4 ranks: one order of each price
    2: (("data", "pipeline", "tensor"), ("data", "tensor", "pipeline"), ("pipeline", "tensor", "data")),
    4: (("data", "pipeline", "tensor"), ("pipeline", "data", "tensor"), ("tensor", "data", "pipeline")),
}


@pytest.mark.parametrize("per_node", [2, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("name", ["dgx-a100", pytest.param("pcie-a100", marks=pytest.mark.thorough)])
def test_simulated_steps_take_as_long_and_rank_alike(per_node: int, name: str):
    """Step time to 5% (2% is what is seen), and the same order from fast to slow."""
    cluster = CLUSTERS[name].replace(devices_per_node=per_node)
    simulated, predicted = [], []
    for order in ORDERS[per_node]:
        mesh = TRIPLE.reordered(*order)
        run = launch(partial(placed_step, JOB, mesh), ranks=8, cluster=cluster, fidelity="shapes")
        simulated.append(run.timeline.without("setup").makespan_s)
        predicted.append(place(JOB.model, mesh, cluster, 8, **JOB.options()).step_time_s)
    assert predicted == pytest.approx(simulated, rel=0.05)
    assert np.argsort(predicted).tolist() == np.argsort(simulated).tolist()


@pytest.mark.thorough
def test_every_order_ranks_as_simulated():
    """All six, and those that the simulator finds equal are equal."""
    cluster = A100.replace(devices_per_node=2)
    times = {}
    for one in placements(JOB.model, TRIPLE, cluster, 8, **JOB.options()):
        run = launch(partial(placed_step, JOB, one.mesh), ranks=8, cluster=cluster, fidelity="shapes")
        times[one.mesh] = (run.timeline.without("setup").makespan_s, one.step_time_s)
    simulated = [round(a, 9) for a, _ in times.values()]
    assert simulated == sorted(simulated)
    assert len(set(simulated)) == len({round(b, 9) for _, b in times.values()})


def test_bytes_between_ranks_are_those_of_the_simulated_program():
    """Messages exactly; sums to 2%: the loss sums three numbers a token, and a planner cuts all biases."""
    mesh = Mesh(data=2, tensor=2, pipeline=2)
    cluster = A100.replace(devices_per_node=2)
    run = launch(partial(placed_step, JOB, mesh), ranks=8, cluster=cluster, fidelity="shapes")
    placed = place(JOB.model, mesh, cluster, 8, **JOB.options())
    measured, counted = run.traffic.matrix(8), placed.traffic.matrices
    for a, b in [(0, 1), (1, 0), (6, 7)]:  # one stage to the next: nothing else goes there
        assert measured[a, b] == counted["pipeline"][a, b] > 0
    # DDP begins with a broadcast from each group's first rank: the other's bytes are gradients alone.
    for pair, axis in [((4, 0), "data"), ((0, 2), "tensor"), ((1, 3), "tensor")]:
        assert counted[axis][pair] == pytest.approx(measured[pair], rel=0.02), pair


@pytest.mark.parametrize(
    ("model", "mesh", "options"),
    [
        (GPT, Mesh(data=2, pipeline=4, tensor=2), {"zero_stage": 1}),
        (GPT, Mesh(data=2, context=2, tensor=4), {"chunks": 1}),
        ("mixtral-8x7b", Mesh(data=2, expert=4), {"seq_len": 512}),
    ],
)
def test_the_record_of_communications_sends_what_the_matrices_send(model, mesh: Mesh, options):
    """To the byte, on every rank: the picture and the table are of the same traffic."""
    traffic = place(model, mesh, A100, 16, **options).traffic
    whole = np.sum(list(traffic.matrices.values()), axis=0)
    of_ranks = np.zeros(mesh.num_ranks)
    for transfer in traffic.traffic.transfers:
        of_ranks[list(transfer.ranks)] += transfer.sent_bytes
    assert of_ranks == pytest.approx(whole.sum(axis=1), rel=0, abs=0.01)
    assert traffic.traffic.matrix(mesh.num_ranks) == pytest.approx(whole, rel=0, abs=0.01)


# ---- bytes by the closed forms ----


@pytest.mark.parametrize("sequence", [False, True])
def test_the_tensor_axis_sends_what_a_layer_sends(sequence: bool):
    """And S at the embedding and at the head; of a layer without the norms' and biases' gradients (6 D)."""
    layer = LayerSizes(1, 512, 1024, 16)
    each = layer_sent_bytes(layer, 4, sequence=sequence) - 0.75 * 12 * 1024 * 2 * sequence
    ends = 2 * 2 * 0.75 * layer.activation_bytes / 2  # of two stages one has the embedding, one the head
    found = sent(GPT, Mesh(pipeline=2, tensor=4), "tensor", sequence_parallel=sequence)
    assert found == pytest.approx(16 * (4 * each + ends))


def test_recomputation_sends_a_forward_pass_again():
    once, again = (
        sent(GPT, Mesh(data=2, tensor=4), "tensor", recompute=policy, derating=IDEAL) for policy in ("none", "full")
    )
    ends = 2 * 2 * 0.75 * LayerSizes(1, 512, 1024, 16).activation_bytes * 8
    assert (again - ends) / (once - ends) == pytest.approx(1.5)


def test_the_context_axis_sends_what_a_ring_sends():
    each = context_sent_bytes(ContextSizes(1, 512, 16, 16, 64), 4, "ring")
    assert sent(GPT, Mesh(data=2, context=4), "context") == pytest.approx(8 * each * 8)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_data_axis_sends_what_zero_sends(stage: int):
    """Gradients in 4 bytes, parameters in 2; with ZeRO-3 embedding and head are gathered for backward too."""
    setup = setup_of(GPT, A100, Parallel(data=8, zero_stage=stage), 16)
    parameters = step_of(setup).pieces.parameters
    layers = [round(parameters.layer)] * GPT.num_layers
    units = [*layers, round(parameters.embedding), round(parameters.head)]
    expected = zero_sent_bytes(stage, units, 8, TrainingPrecision(2, 4, 4, 8), num_micro_batches=2)
    if stage == 0:
        expected = 2 * 7 * sum(units) / 8 * 4
    assert sent(GPT, Mesh(data=8), "data", zero_stage=stage) == pytest.approx(expected, rel=1e-4)


def test_stages_send_a_message_each_way_for_every_micro_batch():
    size = 512 * 1024 * 2
    assert sent(GPT, Mesh(pipeline=4, data=2), "pipeline") == pytest.approx(2 * 3 / 4 * 8 * size)
    assert sent(GPT, Mesh(pipeline=4, tensor=2), "pipeline") == pytest.approx(2 * 3 / 4 * 16 * size / 2)
    twice = sent(GPT, Mesh(pipeline=4, data=2), "pipeline", chunks=2, schedule="interleaved")
    assert twice == pytest.approx(2 * (2 * 3 + 1) / 4 * 8 * size)
    in_a_v = sent(GPT, Mesh(pipeline=4, data=2), "pipeline", chunks=2, schedule="zb-v")
    assert in_a_v == pytest.approx(4 * 3 / 4 * 8 * size)


def test_experts_get_their_tokens_four_times_a_layer():
    model = find_transformer("mixtral-8x7b")
    found = sent(model, Mesh(data=2, expert=4), "expert", seq_len=512)
    assert found == pytest.approx(3 / 4 * 4 * model.num_layers * 2 * 2 * 512 * model.d_model * 2)


def test_a_tied_table_is_summed_between_the_ends_alone():
    tied = Transformer("gpt", 8, 1024, 16, 8192, 512)
    matrix = place(tied, Mesh(pipeline=4), A100, 16).traffic.matrices["data"]
    assert sorted(map(tuple, np.argwhere(matrix))) == [(0, 3), (3, 0)]
    assert matrix[0, 3] == pytest.approx(8192 * 1024 * 4)


@pytest.mark.parametrize(
    ("model", "mesh", "options"),
    [
        (GPT, Mesh(data=2, pipeline=4, tensor=4), {"zero_stage": 1}),
        (GPT, Mesh(data=2, context=2, tensor=4), {"zero_stage": 3}),
        ("mixtral-8x7b", Mesh(data=2, expert=4, tensor=2), {"zero_stage": 1, "seq_len": 512}),
    ],
)
def test_bytes_do_not_depend_on_the_order_where_algorithms_do_not(model, mesh: Mesh, options):
    """Rings and their hierarchies send as much in every order; only the level changes."""
    totals = [
        {axis: sum(by_level.values()) for axis, by_level in one.sent_bytes.items()}
        for one in placements(model, mesh, A100, 16, **options)
    ]
    assert all(total == pytest.approx(totals[0]) for total in totals)


def test_seconds_of_the_calls_are_the_planners():
    """The list of what is sent, priced group by group, is what the prediction has on its axes."""
    parallel = Parallel(data=4, tensor=4, expert=2, zero_stage=1)
    for model, split in [("mixtral-8x7b", parallel), (GPT, Parallel(data=4, tensor=4, zero_stage=2))]:
        setup = setup_of(model, A100, split, 16, seq_len=512, derating=IDEAL)
        machine, step = setup.machine, step_of(setup)
        spent: dict[str, float] = {"tensor": 0.0, "expert": 0.0, "data": 0.0}
        strides: dict[tuple[str, ...], tuple[int, int]] = {("tensor",): (4, 1), ("expert",): (2, 4), ("data",): (2, 8)}
        for call in step_calls(setup):
            n, stride = strides.get(call.over, (4, 4))
            spent[call.axis] += call.times * machine.collective_s(call.name, call.size_bytes, n, stride)
        for axis, seconds in spent.items():
            # The data axis sends its pieces together, so some latencies are counted more often here.
            assert seconds == pytest.approx(getattr(step, axis).total_s, rel=0.01 if axis == "data" else 1e-9), axis


# ---- levels, and who waits ----


def test_levels_say_where_a_message_goes():
    cluster = A100.replace(devices_per_node=4)
    inside = place(GPT, Mesh(data=4, tensor=4), cluster, 16).sent_bytes
    assert inside["tensor"]["node"] > 0 == inside["tensor"]["rail"] + inside["tensor"]["across"]
    assert inside["data"]["rail"] > 0 == inside["data"]["node"] + inside["data"]["across"]
    outside = place(GPT, Mesh(tensor=4, data=4), cluster, 16).sent_bytes
    assert outside["tensor"]["rail"] == pytest.approx(inside["tensor"]["node"])
    odd = place(GPT, Mesh(data=3, tensor=2), A100.replace(devices_per_node=3), 12).sent_bytes
    assert odd["tensor"]["across"] > 0 and set(odd["tensor"]) == set(LEVELS)


def test_one_waits_for_the_axis_that_is_far():
    near, far = (
        place("gpt3-13b", mesh, A100, 64, zero_stage=1) for mesh in (Mesh(data=8, tensor=8), Mesh(tensor=8, data=8))
    )
    assert far.waits_for == ("tensor", "rail") and near.waits_for[0] in ("tensor", "data")
    assert near.step_time_s < far.step_time_s and "along rails" in far.sentence()
    assert place("gpt2", Mesh(data=1), A100, 1).waits_for == ("", "")


def test_placements_are_all_orders_from_fast_to_slow():
    found = placements("gpt3-13b", Mesh(data=2, pipeline=2, context=1, tensor=8), A100, 64)
    assert len({one.mesh for one in found}) == len(found) == 6
    times = [one.step_time_s for one in found]
    assert times == sorted(times) and found[0].mesh.axes[-1] == "tensor"


@pytest.mark.parametrize(
    "cluster",
    [
        A100.replace(topology=Dragonfly(nodes_per_router=1, routers_per_group=2)),
        CLUSTERS["tpu-v4"].replace(topology=Torus((2, 2, 2))),
    ],
    ids=["dragonfly", "torus"],
)
def test_other_networks_are_priced_too(cluster: Cluster):
    found = placements("gpt3-1.3b", Mesh(data=4, pipeline=2, tensor=4), cluster, 16)
    near, far = (next(one for one in found if one.mesh.axes.index("tensor") == place) for place in (2, 0))
    assert near.step_time_s < far.step_time_s and near.total_s["tensor"] < far.total_s["tensor"]


def test_few_sequences_give_the_node_to_the_data_axis():
    """Half a node of tensor ranks that are two apart, beside data ranks that are neighbours: the rule has an end."""
    few, many = (placements("gpt3-13b", Mesh(data=2, pipeline=2, tensor=8), A100, batch)[0] for batch in (8, 64))
    assert few.mesh.axes[-1] == "data" and many.mesh.axes[-1] == "tensor"


# ---- bad input ----


@pytest.mark.parametrize(
    ("mesh", "options", "words"),
    [
        (Mesh(data=2, tp=4), {}, "rename or drop it"),
        (Mesh(data=2048), {}, "1,024 ranks or fewer"),
        (Mesh(data=2, tensor=3), {}, "tensor"),
        (Mesh(data=2, context=2, expert=2), {}, "leave expert out"),
        (Mesh(data=3), {}, "batch"),
        (Mesh(data=2), {"parallel": Parallel()}, "parallel from the mesh"),
        (Mesh(data=2), {"order": ("data",)}, "order from the mesh"),
        (Mesh(data=2), {"compression": "powersgd"}, "compression"),
        (Mesh(data=2), {"zero_stage": 4}, "zero_stage"),
    ],
)
def test_what_cannot_be_placed_is_one_clear_error(mesh: Mesh, options, words: str):
    model = "mixtral-8x7b" if "expert" in mesh.axes else GPT
    for function in (place, placements):
        with pytest.raises(ValueError, match=words) as raised:
            function(model, mesh, A100, 16, **options)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("mesh", ["data", None, {"data": 2}])
def test_what_is_no_mesh_is_one_clear_error(mesh):
    with pytest.raises(ValueError, match="mesh must be a Mesh"):
        placements(GPT, mesh, A100, 16)
