"""A replay does what one can draw by hand: when each action runs, who idles, what is held, and who waits for ever."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline.costs import Costs
from lablib.pipeline.plan import Action, Kind, Plan
from lablib.pipeline.replay import replay

ONE_EACH = Plan.parse("one each", ["0F0 0B0", "1F0 1B0"])


def steps(plan: Plan, costs: Costs | None = None) -> dict[str, tuple[float, float]]:
    """Of each action, by its name, when it ran."""
    return {span.name: (span.start_s, span.end_s) for span in replay(plan, costs).timeline}


def test_one_micro_batch_goes_down_and_up():
    assert steps(ONE_EACH) == {"0F0": (0, 1), "1F0": (1, 2), "1B0": (2, 4), "0B0": (4, 6)}
    found = replay(ONE_EACH)
    assert found.makespan_s == 6 and found.busy_s == (3, 3) and found.bubble_fraction == 0.5


def test_blocking_messages_hold_up_both_ends_and_overlapping_ones_neither():
    plan = Plan.parse("two", ["0F0 0F1 0B0 0B1", "1F0 1F1 1B0 1B1"])
    free = steps(plan, Costs(send_s=0.5))
    assert free["0F1"] == (1, 2) and free["1F1"] == (2.5, 3.5) and free["1B1"] == (5.5, 7.5)
    held = steps(plan, Costs(send_s=0.5, overlap=False))
    # Rank 0 sends for half a second; rank 1 receives the second micro-batch while it could compute.
    assert held["0F1"] == (1.5, 2.5) and held["1F1"] == (3, 4)
    # B0 does not wait for a message on rank 1, and B1 waits until that of B0 is sent.
    assert held["1B0"] == (4, 6) and held["1B1"] == (6.5, 8.5)


def test_what_is_sent_and_received_between_two_actions_goes_at_the_same_time():
    """1F1B: rank 0 sends F1 and receives the gradient of F0 in one exchange."""
    plan = Plan.parse("1f1b", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
    found = steps(plan, Costs(forward_s=1, backward_s=1, send_s=0.25, overlap=False))
    assert found["1B0"] == (2.25, 3.25) and found["0F1"] == (1.25, 2.25)
    assert found["0B0"] == (3.5, 4.5) and found["1F1"] == (3.5, 4.5)


def test_pieces_on_one_rank_send_nothing_to_each_other():
    plan = Plan.parse("vee", ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"], rank_of=[0, 1, 1, 0])
    found = steps(plan, Costs(send_s=10))
    assert found["1F0"] == (11, 12) and found["2F0"] == (12, 13) and found["3F0"] == (23, 24)


def test_a_rank_holds_a_micro_batch_from_forward_to_the_end_of_backward():
    plan = Plan.parse("two", ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"])
    found = replay(plan, Costs(activation_bytes=[10, 100], static_bytes=[5, 7]))
    assert found.in_flight == (2, 1) and found.peak_bytes == (25, 107)
    times_s, size_bytes = found.memory[0]
    assert times_s.tolist() == [0, 0, 1, 6, 9] and size_bytes.tolist() == [5, 15, 25, 15, 5]


def test_what_the_input_gradient_releases_is_free_before_the_weights_are_done():
    plan = Plan.parse("split", ["0F0 0I0 0F1 0W0 0I1 0W1"])
    held = replay(plan, Costs(activation_bytes=8, released_at_input=0.75)).memory[0][1]
    assert held.tolist() == [0, 8, 2, 10, 8, 2, 0]
    assert replay(plan).in_flight == (2,)


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(1, 9)] * 3), min_size=1, max_size=5),
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_action_starts_when_its_rank_is_free_and_what_it_needs_is_there(times, m, send_s, overlap):
    p = len(times)
    row = [f"F{j}" for j in range(m)] + [action for j in range(m) for action in (f"I{j}", f"W{j}")]
    plan = Plan.parse("all forward first", [" ".join(f"{rank}{a}" for a in row) for rank in range(p)])
    f, i, w = zip(*times, strict=True)
    found = steps(plan, Costs(forward_s=f, input_s=i, weight_s=w, send_s=send_s, overlap=overlap))
    for rank, actions in enumerate(plan):
        free = 0.0
        for before, action in zip((None, *actions), actions, strict=False):
            came = {
                "F": found[f"{rank - 1}F{action.microbatch}"][1] + send_s if rank else 0.0,
                "I": found[f"{rank + 1}I{action.microbatch}"][1] + send_s if rank < p - 1 else 0.0,
                "W": 0.0,
            }
            sends = before is not None and {"F": rank < p - 1, "I": rank > 0, "W": False}[before.kind]
            receives = {"F": rank > 0, "I": rank < p - 1, "W": False}[action.kind]
            gap = send_s if not overlap and before is not None and (sends or receives) else 0
            start, end = found[str(action)]
            assert start == max(free + gap, came[action.kind])
            assert end - start == {"F": f, "I": i, "W": w}[action.kind][rank]
            free = end


def test_a_deadlock_names_who_waits_for_whom():
    plan = Plan.parse("mine", ["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"])
    with pytest.raises(ValueError, match="'mine' cannot be carried out") as error:
        replay(plan)
    first = "rank 0 waits at step 2, 0B0, for the gradient of micro-batch 0 from piece 1, rank 1's step 3"
    second = "rank 1 waits at step 2, 1F1, for the activation of micro-batch 1 from piece 0, rank 0's step 3"
    assert f"{first}; {second}." in str(error.value)


def test_a_wait_for_oneself_and_for_nobody_are_told_apart():
    with pytest.raises(ValueError, match="rank 0 waits at step 1, 0B0, .* its own step 2"):
        replay(Plan.parse("backward first", ["0B0 0F0"]))
    with pytest.raises(ValueError, match="rank 1 waits at step 1, 1F0, .* no rank ever does"):
        replay(Plan.parse("lost", ["0F1", "1F0"]))


def test_a_piece_or_a_micro_batch_that_the_plan_has_not_is_refused():
    plan = Plan("mine", 1, 2, ((Action(0, Kind.F, 2), Action(0, Kind.F, 5)),), (0,))
    with pytest.raises(ValueError, match="a micro-batch of the plan is between 0 and 1: got 2 to 5"):
        replay(plan)
    with pytest.raises(ValueError, match="a piece of the plan is between 0 and 0: got 3 to 3"):
        replay(Plan("mine", 1, 1, ((Action(3, Kind.F, 0),),), (0,)))


def test_a_plan_without_actions_takes_no_time():
    found = replay(Plan("nothing", 2, 0, ((), ()), (0, 1)))
    assert found.makespan_s == 0 and found.bubble_fraction == 0 and found.in_flight == (0, 0)


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"weight_s": [1, 2, 3]}, "weight_s takes one number, or one for each of the 2 pieces: got 3"),
        ({"send_s": [1, 2]}, "send_s takes one number, or one for each of the 1 boundaries between pieces: got 2"),
        ({"static_bytes": [1]}, "static_bytes takes one number, or one for each of the 2 ranks: got 1"),
    ],
)
def test_costs_that_cannot_be_are_refused(costs, message):
    with pytest.raises(ValueError, match=message):
        replay(ONE_EACH, Costs(**costs))


def test_an_array_of_numbers_is_a_list_of_them():
    array: Any = np.array([1.0, 3.0])
    assert Costs(array).of_pieces(ONE_EACH) == Costs([1.0, 3.0]).of_pieces(ONE_EACH)


def test_backward_and_its_halves_follow_from_each_other():
    pieces = Costs(forward_s=3, backward_s=8).of_pieces(ONE_EACH)
    assert (pieces.backward_s, pieces.input_s, pieces.weight_s) == ([8, 8], [4, 4], [4, 4])
    pieces = Costs(forward_s=3, input_s=2, weight_s=1).of_pieces(ONE_EACH)
    assert pieces.backward_s == [3, 3]
    assert Costs(forward_s=3).of_pieces(ONE_EACH).backward_s == [6, 6]
