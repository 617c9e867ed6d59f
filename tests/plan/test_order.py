"""Another order of the axes: each group where its ranks lie, and a plan that is otherwise the same."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import CLUSTERS
from lablib.cost import GroupNetwork, collective_cost
from lablib.models import Experts, find_transformer
from lablib.plan import IDEAL, Parallel, predict
from lablib.plan.order import ORDER, PlacedMachine, axis_sizes, placed_machine
from lablib.plan.stack import STACKS
from tests.plan.conftest import Machine

SIZES = st.sampled_from([1, 2, 3, 4])


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine(CLUSTERS["dgx-a100"], STACKS["megatron-core"], IDEAL, "bfloat16")


@pytest.mark.parametrize(
    ("model", "parallel", "batch"),
    [
        ("gpt3-175b", Parallel(data=8, tensor=8, pipeline=8, zero_stage=1), 512),
        ("llama-3-8b", Parallel(data=2, tensor=2, pipeline=2, context=4), 16),
        ("mixtral-8x7b", Parallel(data=4, tensor=4, pipeline=2, expert=2), 16),
        ("mixtral-8x7b", Parallel(data=4, tensor=4, pipeline=2, expert=8, expert_tensor=2), 16),
    ],
)
@pytest.mark.parametrize("stack", ["megatron-core", "torch"])
def test_the_planners_own_order_changes_no_digit(model: str, parallel: Parallel, batch: int, stack: str):
    plain, placed = (predict(model, "dgx-a100", parallel, batch, stack=stack, order=order) for order in (None, ORDER))
    assert plain.step_time_s == placed.step_time_s and plain.communication == placed.communication
    assert plain.memory == placed.memory and plain.notes == ()
    assert "Order of the axes" in placed.notes[0]


@given(
    data=SIZES,
    tensor=st.sampled_from([1, 2, 3, 4, 8]),
    pipeline=SIZES,
    expert=st.sampled_from([1, 2, 3, 8]),
    per_node=st.sampled_from([4, 7, 8, 18]),
    stack=st.sampled_from([STACKS["torch"], replace(STACKS["megatron-core"], dispatcher="deduplicated")]),
    zero_plus_plus=st.sampled_from([(), ("hpZ",)]),
)
def test_nor_does_it_where_groups_do_not_fill_their_nodes(
    data, tensor, pipeline, expert, per_node, stack, zero_plus_plus
):
    cluster = CLUSTERS["dgx-a100"].replace(devices_per_node=per_node)
    sizes = {"num_heads": 24, "num_kv_heads": 24, "d_model": 1536, "d_ff": 6144, "num_layers": 8}
    model = replace(find_transformer("qwen3-30b-a3b"), **sizes, experts=Experts(24, 2, 768))
    stage = 3 if zero_plus_plus and not stack.is_eager else 0
    ways = {"zero_stage": stage, "zero_plus_plus": zero_plus_plus if stage else ()}
    parallel = Parallel(data=data * expert, tensor=tensor, pipeline=pipeline, expert=expert, **ways)
    question = (model, cluster, parallel, 4 * data * expert)
    plain, placed = (predict(*question, seq_len=3072, stack=stack, order=order) for order in (None, ORDER))
    assert plain.step_time_s == pytest.approx(placed.step_time_s, rel=1e-12)


@given(data=SIZES, tensor=SIZES, pipeline=SIZES, context=SIZES, order=st.permutations(ORDER))
def test_every_rank_has_one_place_and_groups_are_those_of_a_mesh(data, tensor, pipeline, context, order):
    from lablib.parallel import Mesh

    parallel = Parallel(data=data, tensor=tensor, pipeline=pipeline, context=context)
    plain = Machine(CLUSTERS["dgx-a100"], STACKS["megatron-core"], IDEAL, "bfloat16")
    placed = placed_machine(plain, parallel, tuple(order))
    assert placed.ranks(parallel.num_ranks, 1) == tuple(range(parallel.num_ranks))
    mesh = Mesh(**{axis: getattr(parallel, axis) for axis in order})
    assert placed.ranks(tensor, 1) == mesh.group_of(0, "tensor")
    assert placed.ranks(context, tensor) == mesh.group_of(0, "context")
    assert placed.ranks(data * context, tensor) == mesh.group_of(0, "data", "context")
    assert placed.ranks(pipeline, parallel.num_ranks // pipeline) == mesh.group_of(0, "pipeline")


def test_a_group_at_no_stride_is_priced_rank_by_rank(machine: Machine):
    parallel = Parallel(data=4, tensor=2, context=2)
    placed = placed_machine(machine, parallel, ("data", "tensor", "context"))
    ranks = placed.ranks(8, 2)
    assert ranks == (0, 1, 4, 5, 8, 9, 12, 13)
    for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        expected = collective_cost(name, 1e8, GroupNetwork(CLUSTERS["dgx-a100"], ranks)).time_s
        assert placed.collective_s(name, 1e8, 8, 2) == pytest.approx(expected, rel=1e-12)
    assert placed.in_node(8, 2) == 4
    assert placed.collective_s("broadcast in turn", 1e8, 8, 2) > 0


def test_ranks_in_a_node_are_counted_where_they_stand(machine: Machine):
    parallel = Parallel(data=4, tensor=8, pipeline=2)
    assert machine.in_node(4, 8) == 1 and machine.in_node(8, 1) == 8 and machine.in_node(2, 1) == 2
    placed = placed_machine(machine, parallel, ("tensor", "pipeline", "data"))
    assert (placed.in_node(8, 1), placed.in_node(4, 8), placed.in_node(2, 32)) == (1, 4, 2)


def test_tensor_ranks_across_nodes_cost_what_their_stride_costs():
    parallel = Parallel(data=8, tensor=8)
    last, first = (
        predict("gpt3-13b", "dgx-a100", parallel, 64, order=order, derating=IDEAL)
        for order in (("data", "tensor"), ("tensor", "data"))
    )
    assert first.communication["tensor"][0] > 5 * last.communication["tensor"][0]
    assert first.communication["data"][0] < last.communication["data"][0]
    assert first.memory == last.memory


def test_in_one_node_no_order_matters():
    parallel = Parallel(data=2, tensor=2, pipeline=2)
    times = {
        predict("gpt3-1.3b", "dgx-a100", parallel, 16, order=order).step_time_s
        for order in permutations(("data", "tensor", "pipeline"))
    }
    assert len(times) == 1


def test_without_messages_only_messages_are_missing(machine: Machine):
    parallel = Parallel(tensor=2, pipeline=4)
    order = ("tensor", "pipeline")
    placed = placed_machine(machine, parallel, order, has_free_messages=True)
    assert isinstance(placed, PlacedMachine)
    assert placed.collective_s("send", 1e6, 4, 2) == 0
    assert placed.collective_s("all_gather", 1e6, 2, 1) == placed_machine(machine, parallel, order).collective_s(
        "all_gather", 1e6, 2, 1
    )


def test_experts_are_a_part_of_the_data_axis():
    parallel = Parallel(data=8, tensor=2, expert=4)
    assert axis_sizes(parallel, has_expert_axis=True) == {
        "pipeline": 1,
        "data": 2,
        "expert": 4,
        "context": 1,
        "tensor": 2,
    }


@pytest.mark.parametrize(
    ("order", "parallel", "words"),
    [
        ("tensor", Parallel(tensor=2), "order is the axes"),
        (("data", "tenser"), Parallel(data=2, tensor=2), "tensor"),
        ((3,), Parallel(), "axis"),
        (("data", "data", "tensor"), Parallel(data=2, tensor=2), "'data' twice"),
        (("tensor",), Parallel(data=2, tensor=2), "with data 2; put data in"),
        (("expert", "context", "data"), Parallel(data=2, expert=2, context=2), "leave expert out"),
        (
            ("expert", "data", "tensor"),
            Parallel(data=2, expert=2, tensor=2, expert_tensor=1),
            "experts that all tensor ranks share",
        ),
    ],
)
def test_an_order_that_cannot_be_is_one_clear_error(order, parallel: Parallel, words: str):
    with pytest.raises(ValueError, match=words):
        predict("mixtral-8x7b", "dgx-a100", parallel, 8, order=order)
