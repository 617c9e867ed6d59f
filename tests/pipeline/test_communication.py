"""Messages among the steps: those written at both ends at once cannot hang; the naive ones do, and it is explained."""

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.pipeline import (
    Action,
    CommunicationPlan,
    Costs,
    Exchange,
    Plan,
    check,
    naive_communication,
    replay,
    schedules,
    validate,
    with_communication,
)
from lablib.pipeline.schedules import SCHEDULES, make
from tests.pipeline.drawn_plans import plans

NAMES, SIZES = st.sampled_from(list(SCHEDULES)), st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))


def any_plan(name: str, size: tuple[int, int, int]) -> Plan:
    p, rounds, v = size
    return make(name, p, 2 * p * rounds, v if SCHEDULES[name].takes_chunks else 1)


def runs(plan: CommunicationPlan, blocking_sends: bool) -> bool:
    """Executes a plan message by message through queues, one for each link. A blocking send meets its receive."""
    at, posted, arrived = [0] * len(plan.steps), set(), set()
    links: dict[tuple[int, int, bool], deque] = {}  # from, to, whether it holds sends
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(plan.steps):
            if at[rank] == len(row):
                continue
            step = row[at[rank]]
            if isinstance(step, Exchange) and (rank, at[rank]) not in posted:
                posted.add((rank, at[rank]))
                for message in step.messages:
                    key = (rank, plan.peer(message)) if message.is_send else (plan.peer(message), rank)
                    queues = links.setdefault((*key, message.is_send), deque())
                    queues.append(message)
                moved = True
            for (sender, receiver, is_send), queue in list(links.items()):
                other = links.get((sender, receiver, not is_send))
                while is_send and queue and other:
                    sent, received = queue.popleft(), other.popleft()
                    assert sent.other_end == received
                    arrived |= {sent, received}
            waits = [] if isinstance(step, Action) else [m for m in step.messages if blocking_sends or not m.is_send]
            if all(message in arrived for message in waits):
                at[rank] += 1
                moved = True
    return all(index == len(row) for index, row in zip(at, plan.steps, strict=True))


@given(NAMES, SIZES, st.booleans())
def test_what_is_received_when_it_is_sent_cannot_hang(name, size, batched):
    lowered = with_communication(any_plan(name, size), batched=batched)
    for blocking_sends in (True, False):
        assert validate(lowered, blocking_sends=blocking_sends).findings == ()
        assert runs(lowered, blocking_sends)


@given(
    plan=plans(), seconds=st.lists(st.sampled_from([0, 0, 1, 2.5, 7]), min_size=24, max_size=24), batched=st.booleans()
)
def test_it_cannot_hang_whatever_the_costs_and_a_receive_stands_where_its_rank_is_when_it_is_sent(
    plan, seconds, batched
):
    pieces = plan.num_pieces
    costs = Costs(*(seconds[i * pieces : (i + 1) * pieces] for i in range(4)))
    lowered = with_communication(plan, costs, batched=batched)
    for blocking_sends in (True, False):
        assert validate(lowered, blocking_sends=blocking_sends).findings == ()
        assert runs(lowered, blocking_sends)
    ends = {
        str(action): end_s
        for row, ends_s in zip(plan, replay(plan, costs).end_s, strict=True)
        for action, end_s in zip(row, ends_s.tolist(), strict=True)
    }
    for row in lowered.steps:
        for at, step in enumerate(row):
            if isinstance(step, Exchange):
                for end in (message.other_end for message in step.messages if not message.is_send):
                    makers = (
                        f"{end.stage}{kind}{end.microbatch}" for kind in ("F" if end.carries == "activation" else "BI")
                    )
                    sent_s = next(ends[maker] for maker in makers if maker in ends)
                    assert all(ends[str(each)] <= sent_s for each in row[:at] if isinstance(each, Action))


@given(NAMES, SIZES, st.booleans(), st.booleans())
def test_the_validator_and_an_execution_agree_on_what_hangs(name, size, batched, blocking_sends):
    lowered = naive_communication(any_plan(name, size), batched=batched)
    report = validate(lowered, blocking_sends=blocking_sends)
    if 4 not in report.rules:
        assert report.is_valid == runs(lowered, blocking_sends)


@settings(max_examples=40, deadline=None)
@given(NAMES, SIZES)
def test_each_boundary_between_ranks_is_crossed_twice_by_each_micro_batch(name, size):
    plan = any_plan(name, size)
    crossed = sum(a != b for a, b in zip(plan.rank_of, plan.rank_of[1:], strict=False))
    for lowered in (with_communication(plan), naive_communication(plan)):
        ends = Counter(
            m.is_send for row in lowered.steps for step in row if isinstance(step, Exchange) for m in step.messages
        )
        assert ends[True] == ends[False] == 2 * crossed * plan.num_microbatches
        assert lowered.plan == plan and lowered.name == plan.name


def test_1f1b_with_blocking_sends_hangs_and_the_circle_is_explained():
    plan = naive_communication(schedules.one_f_one_b(2, 4))
    (finding,) = validate(plan).findings
    assert (finding.rule, finding.rank, finding.index, finding.action) == (5, 0, 3, "0SEND_F1")
    assert finding.text == (
        "no rank can continue: "
        "rank 0 waits at step 4, 0SEND_F1, for rank 1 to receive (1RECV_F1, its step 5); "
        "rank 1 waits at step 4, 1SEND_B0, for rank 0 to receive (0RECV_B0, its step 5)"
    )
    with pytest.raises(ValueError, match="1f1b: R5: no rank can continue"):
        check(plan)
    # What mends it: sends that do not wait, or an exchange of the two messages.
    assert validate(plan, blocking_sends=False).is_valid
    assert validate(naive_communication(schedules.one_f_one_b(2, 4), batched=True)).is_valid


def test_1f1b_sends_forward_while_it_receives_a_gradient():
    # By hand: the exchanges of the steady state, in Megatron-LM send_forward_recv_backward and its mirror image.
    plan = naive_communication(schedules.one_f_one_b(2, 3), batched=True)
    assert " ".join(map(str, plan.steps[0])) == (
        "0F0 0SEND_F0 0F1 0SEND_F1+0RECV_B0 0B0 0F2 0SEND_F2+0RECV_B1 0B1 0RECV_B2 0B2"
    )
    assert " ".join(map(str, plan.steps[1])) == (
        "1RECV_F0 1F0 1B0 1SEND_B0+1RECV_F1 1F1 1B1 1SEND_B1+1RECV_F2 1F2 1B2 1SEND_B2"
    )


def test_at_the_bottom_of_a_v_nothing_is_sent():
    text = str(with_communication(schedules.zb_v(2, 3)))
    assert "0SEND_F0" in text and "2SEND_F0" in text and "3SEND_B0" in text and "1SEND_B0" in text
    assert not any(end in text for end in ("1SEND_F", "2RECV_F", "2SEND_B", "1RECV_B"))


def test_with_messages_too_a_rank_can_wait_for_itself():
    plan = CommunicationPlan.parse("turned", ["1F0 0F0 1B0 0B0"], rank_of=(0, 0))
    (finding,) = validate(plan).findings
    assert finding.rule == 5 and finding.text.endswith("from piece 0, its own step 2")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"], "R5: no rank can continue: rank 0 waits at step 2, 0B0"),
        (["0F0 0B0 0B1", "1F0 1B0 1F1 1B1"], "R1: 0F1 is missing"),
    ],
)
def test_a_plan_that_breaks_a_rule_is_not_given_messages(lines, words):
    with pytest.raises(ValueError, match=f"mine: {words}"):
        with_communication(Plan.parse("mine", lines))


def test_steps_read_what_they_wrote():
    plan = with_communication(schedules.one_f_one_b(3, 5))
    lines = [line.split("  ", 1)[1] for line in str(plan).splitlines()]
    assert CommunicationPlan.parse("1f1b", lines) == plan


def test_a_step_that_is_spelt_wrong_is_refused():
    with pytest.raises(ValueError, match="such as 1F0"):
        CommunicationPlan.parse("mine", ["0F0 0SEND_X0 0B0"])


def test_steps_must_be_those_of_the_plan():
    plan = schedules.gpipe(1, 2)
    with pytest.raises(ValueError, match="must be the plan's"):
        CommunicationPlan(plan, (plan.actions[0][:-1],))
