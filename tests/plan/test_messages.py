"""Messages between the stages of a pipeline: as many as the schedule itself has, at the price of the hops they take."""

import pytest

from lablib.hardware import CLUSTERS
from lablib.pipeline import schedules
from lablib.pipeline.messages import sends
from lablib.plan import IDEAL, Parallel, predict

ONE_RANK_NODES = CLUSTERS["perlmutter"].replace(devices_per_node=1)


def seconds(schedule: str, stages: int, chunks: int, micro_batches: int, cluster) -> float:
    """Of the messages that a rank sends, in a model whose message is 2 MiB."""
    found = predict(
        *("gpt3-1.3b", cluster, Parallel(pipeline=stages, chunks=chunks), micro_batches),
        **{"seq_len": 512, "schedule": schedule, "stack": "torch", "derating": IDEAL},
    )
    return found.communication["pipeline"][0]


@pytest.mark.parametrize("stages", [2, 3, 6])
@pytest.mark.parametrize(
    ("schedule", "chunks"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("zb-v", 2)]
)
def test_a_rank_sends_as_many_messages_as_its_schedule_has(schedule, chunks, stages):
    micro_batches = 12
    plan = schedules.make(schedule, stages, micro_batches, chunks)
    most = max(sum(sends(action, plan) is not None for action in actions) for actions in plan.actions)
    one_s = seconds("1f1b", 2, 1, 1, ONE_RANK_NODES)
    found_s = seconds(schedule, stages, chunks, micro_batches, ONE_RANK_NODES)
    assert found_s == pytest.approx(most * one_s, rel=0.01)  # more nodes, a few more switches


def test_half_the_messages_of_a_rank_at_the_edge_of_a_node_stay_inside():
    cluster = CLUSTERS["perlmutter"]  # four ranks a node
    near_s, mixed_s = (seconds("1f1b", stages, 1, 8, cluster) for stages in (4, 8))
    far_s = seconds("1f1b", 8, 1, 8, ONE_RANK_NODES)
    assert near_s < far_s / 2
    assert mixed_s == pytest.approx((near_s + far_s) / 2, rel=0.01)
