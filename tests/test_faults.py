"""The records of faults: what they refuse, each in one sentence, and where they may be used."""

# Wrong arguments are what is tested.
# pyright: reportArgumentType=false

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch.distributed as dist

from lablib import CorruptGradient, DelayStart, DropLink, KillRank, SlowLink, SlowRank, launch


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlowRank(0, 0.0), "factor must be a number above 0"),
        (lambda: SlowRank(0, -2.0), "factor must be a number above 0"),
        (lambda: SlowRank(0, nan), "factor must be a number above 0"),
        (lambda: SlowRank(0, 2.0, from_s=-1.0), "from_s must be 0 or more seconds"),
        (lambda: SlowRank(0, 2.0, from_s=2.0, until_s=2.0), "until_s must come after from_s"),
        (lambda: KillRank(0, at_s=-0.1), "at_s must be 0 or more seconds"),
        (lambda: KillRank(0, at_s=inf), "at_s must be 0 or more seconds"),
        (lambda: DelayStart(0, -1.0), "seconds must be 0 or more seconds"),
        (lambda: SlowLink(0, 1, factor=0), "factor must be a number above 0"),
        (lambda: SlowLink(0, 1), "changes nothing"),
        (lambda: SlowLink(0, 1, latency_s=-1e-6), "latency_s must be 0 or more seconds"),
        (lambda: SlowLink(0, 0, factor=2), "two different ranks"),
        (lambda: SlowLink(factor=2), "a rank or a node, not both"),
        (lambda: SlowLink(0, node=1, factor=2), "a rank or a node, not both"),
        (lambda: SlowLink(b=1, node=1, factor=2), "b is the other end"),
        (lambda: SlowLink(0, 1, factor=2, level="inter"), "b is the other end"),
        (lambda: SlowLink(node=1, factor=2, level="intra"), "those that leave it"),
        (lambda: SlowLink(0, factor=2, level="iner"), "unknown level 'iner': did you mean 'inter'"),
        (lambda: DropLink(2, 2), "two different ranks"),
        (lambda: DropLink(0, 1, at_s=-1), "at_s must be 0 or more seconds"),
        (lambda: CorruptGradient(0, kind="NaN "), "unknown kind of corruption 'NaN ': did you mean 'nan'"),
        (lambda: CorruptGradient(0, step=-1), "step must be a whole number, 0 or more"),
        (lambda: CorruptGradient(0, element=-1), "element must be a whole number, 0 or more"),
        (lambda: CorruptGradient(0, parameter=-1), "parameter must be a whole number, 0 or more"),
        (
            lambda: CorruptGradient(0, parameter=1.5),  # pyright: ignore[reportArgumentType]
            "parameter must be text or a whole number or None",
        ),
        (lambda: CorruptGradient(0, kind="bit flip", bit=-1), "bit must be a whole number, 0 or more"),
        (lambda: CorruptGradient(0, kind="inf", bit=3), 'a bit is for kind="bit flip"'),
        (lambda: SlowRank(True, 2.0), "SlowRank: rank must be a whole number: got True"),
        (lambda: SlowRank(None, 2.0), "SlowRank: rank must be a whole number: got None"),
        (lambda: SlowRank(0, "2"), "SlowRank: factor must be a number: got '2'"),
        (lambda: KillRank(None, 1.0), "KillRank: rank must be a whole number: got None"),
        (lambda: KillRank(0, "soon"), "KillRank: at_s must be a number: got 'soon'"),
        (lambda: DelayStart(None, 1.0), "DelayStart: rank must be a whole number: got None"),
        (lambda: DropLink(None, 1), "DropLink: a must be a whole number: got None"),
    ],
)
def test_a_fault_that_breaks_its_rule_is_refused_in_a_sentence(make: Callable[[], Any], message: str):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "fault",
    [SlowRank(4, 2.0), KillRank(-1, 0.0), DelayStart(7, 1.0), SlowLink(0, 4, factor=2), DropLink(4, 0)]
    + [CorruptGradient(4)],
)
def test_a_rank_outside_the_run_is_refused_with_those_that_exist(fault):
    with pytest.raises(ValueError, match="this run has ranks 0 to 3"):
        launch(dist.get_rank, ranks=4, faults=[fault])


def test_a_node_outside_the_run_is_refused_with_those_that_exist():
    with pytest.raises(ValueError, match="this run has nodes 0 to 1"):
        launch(dist.get_rank, ranks=9, faults=[SlowLink(node=2, factor=2)])


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_real_processes_have_no_faults(backend):
    with pytest.raises(ValueError, match="faults are for the simulator"):
        launch(dist.get_rank, ranks=2, backend=backend, faults=[SlowRank(0, 2.0)])


def test_faults_need_the_clock():
    with pytest.raises(ValueError, match="leave trace=True"):
        launch(dist.get_rank, ranks=2, trace=False, faults=[SlowRank(0, 2.0)])


def test_meta_tensors_have_no_gradient_to_corrupt():
    with pytest.raises(ValueError, match='fidelity="shapes" has none'):
        launch(dist.get_rank, ranks=2, fidelity="shapes", faults=[CorruptGradient(0)])


@pytest.mark.parametrize("twice", [[KillRank(1, 0.1), KillRank(1, 0.2)], [DelayStart(1, 0.1), DelayStart(1, 0.1)]])
def test_a_rank_dies_once_and_starts_once(twice):
    with pytest.raises(ValueError, match="rank 1 has several"):
        launch(dist.get_rank, ranks=2, faults=twice)


def test_what_is_no_list_of_faults_is_refused():
    with pytest.raises(TypeError, match=r"write faults=\[SlowRank"):
        launch(dist.get_rank, ranks=2, faults=SlowRank(0, 2.0))  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="got 'slow'"):
        launch(dist.get_rank, ranks=2, faults=["slow"])  # pyright: ignore[reportArgumentType]
