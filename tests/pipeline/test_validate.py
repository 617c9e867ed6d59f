"""Every break of a rule is found, under that rule's number, and explained."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.pipeline import Action, CommunicationPlan, Kind, Plan, check, peak_in_flight, schedules, validate
from lablib.pipeline.deadlock import find_deadlock
from lablib.pipeline.schedules import SCHEDULES, make

PLANS = [make(name, 3, 6, 2 if schedule.takes_chunks else 1) for name, schedule in SCHEDULES.items()]
PLACES = st.tuples(st.sampled_from(PLANS), st.integers(0, 2), st.integers(0, 10**6), st.integers(0, 10**6))


def with_row(plan: Plan, rank: int, actions) -> Plan:
    rows = list(plan.actions)
    rows[rank] = tuple(actions)
    return replace(plan, actions=tuple(rows))


def parse(*lines: str, rank_of=None) -> Plan:
    return Plan.parse("mine", lines, rank_of)


# ---- mutations of every schedule


@given(PLACES)
def test_a_dropped_action_breaks_r1(place):
    plan, rank, at, _ = place
    row = list(plan.actions[rank])
    dropped = row.pop(at % len(row))
    (finding,) = [each for each in validate(with_row(plan, rank, row)).findings if each.index is None]
    assert (finding.rule, finding.rank) == (1, rank)
    # The half that is left over says that the other is missing.
    assert finding.action == str(dropped) and "missing" in finding.text


@given(PLACES)
def test_a_duplicated_action_breaks_r1(place):
    plan, rank, at, to = place
    row = list(plan.actions[rank])
    again = row[at % len(row)]
    row.insert(to % (len(row) + 1), again)
    findings = [each for each in validate(with_row(plan, rank, row)).findings if each.rule == 1]
    assert [(each.rank, each.action) for each in findings] == [(rank, str(again))]
    assert findings[0].index == max(index for index, action in enumerate(row) if action == again)


@given(PLACES)
def test_an_action_before_what_it_needs_of_its_own_piece_breaks_r3(place):
    plan, rank, at, _ = place
    row = list(plan.actions[rank])
    later = [index for index, action in enumerate(row) if action.kind is not Kind.F]
    second = later[at % len(later)]
    action = row[second]
    before = replace(action, kind=Kind.I if action.kind is Kind.W else Kind.F)
    first = row.index(before)
    row[first], row[second] = row[second], row[first]
    report = validate(with_row(plan, rank, row))
    assert report.rules == (3,)
    assert (rank, first, str(action)) in [(each.rank, each.index, each.action) for each in report.findings]


@given(PLACES)
def test_any_two_actions_swapped_are_caught_or_still_run(place):
    plan, rank, at, to = place
    row = list(plan.actions[rank])
    at, to = at % len(row), to % len(row)
    row[at], row[to] = row[to], row[at]
    swapped = with_row(plan, rank, row)
    assert set(validate(swapped).rules) <= {3, 5}
    assert validate(swapped).is_valid == runs(swapped)


def runs(plan: Plan) -> bool:
    """Whether everything can be done in some order: tries every rank again and again, by the definition."""
    rows, done = [list(row) for row in plan.actions], set()
    last = plan.num_pieces - 1

    def can(action: Action) -> bool:
        stage, kind, m = action.stage, action.kind, action.microbatch
        if kind is Kind.F:
            return stage == 0 or ("F", stage - 1, m) in done
        if kind is Kind.W:
            return ("I", stage, m) in done
        return ("F", stage, m) in done and (stage == last or ("I", stage + 1, m) in done)

    while any(row and can(row[0]) for row in rows):
        for row in rows:
            if row and can(row[0]):
                action = row.pop(0)
                done.add(("I" if action.kind is Kind.B else str(action.kind), action.stage, action.microbatch))
    return not any(rows)


@given(PLACES)
def test_an_action_on_another_rank_breaks_r2(place):
    plan, rank, at, to = place
    row, other = list(plan.actions[rank]), (rank + 1) % 3
    moved = row.pop(at % len(row))
    target = list(plan.actions[other])
    target.insert(to % (len(target) + 1), moved)
    report = validate(with_row(with_row(plan, rank, row), other, target))
    assert [(each.rule, each.rank, each.action) for each in report.findings] == [(2, other, str(moved))]
    assert f"piece {moved.stage} is on rank {rank}" in str(report)


# ---- each rule by hand


def test_a_valid_plan_says_so_and_passes_the_check():
    plan = schedules.one_f_one_b(2, 4)
    assert validate(plan).is_valid and str(validate(plan)) == "1f1b keeps every rule."
    check(plan)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("0F0", "0B0 is missing: rank 0 never does it"),
        ("0F0 0I0", "0W0 is missing"),
        ("0F0 0W0", "0I0 is missing"),
        ("0B0", "0F0 is missing"),
        ("0F0 0B0 0B0", "0B0 is done 2 times: step 3 of rank 0 does it again"),
        ("0F0 0B0 0I0 0W0", "0I0, step 3 of rank 0, repeats a backward: it is B, or I and W, never both"),
    ],
)
def test_r1_counts(row, words):
    report = validate(parse(row))
    assert 1 in report.rules and words in str(report)


def test_r1_knows_how_many_micro_batches_there_are():
    plan = replace(parse("0F0 0B0 0F1 0B1"), num_microbatches=1)
    assert {each.rule for each in validate(plan).findings} == {1}
    assert "there is no micro-batch 1: the plan has 1" in str(validate(plan))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (replace(parse("0F0 0B0"), num_stages=2), "the plan is for 2 ranks and has actions for 1"),
        (parse("0F0 0B0", rank_of=(3,)), "piece 0 is on rank 3: there are 1"),
        (parse("0F0 0B0 7F0", rank_of=(0,)), "step 3 of rank 0, 7F0, is at no piece: the model has 1"),
    ],
)
def test_r2_knows_the_ranks_and_the_pieces(plan, words):
    assert validate(plan).rules == (2,) and words in str(validate(plan))


def test_r3_says_what_stands_before_what():
    report = validate(parse("0F0 0W0 0I0"))
    assert str(report.findings[0]) == "R3: 0W0, step 2 of rank 0, comes before 0I0, its step 3"


def test_r5_names_the_circle_of_ranks_that_wait():
    # Rank 0 wants the gradient of micro-batch 1 first, rank 1 gives that of micro-batch 0 first, once both are there.
    plan = parse("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")
    (finding,) = validate(plan).findings
    assert (finding.rule, finding.rank, finding.index, finding.action) == (5, 0, 1, "0B0")
    assert finding.text == (
        "no rank can continue: "
        "rank 0 waits at step 2, 0B0, for the gradient of micro-batch 0 from piece 1, rank 1's step 3; "
        "rank 1 waits at step 2, 1F1, for the activation of micro-batch 1 from piece 0, rank 0's step 3"
    )


def test_r5_knows_a_rank_that_waits_for_itself():
    plan = parse("1F0 0F0 1B0 0B0", rank_of=(0, 0))
    (finding,) = validate(plan).findings
    assert finding.text.endswith("1F0, for the activation of micro-batch 0 from piece 0, its own step 2")


def test_r5_names_the_circle_and_not_who_waits_behind_it():
    plan = parse("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F0 2F1 2B0 2B1")
    (finding,) = validate(plan).findings
    waiting = [part.split(" waits")[0].split(": ")[-1] for part in finding.text.split("; ")]
    assert waiting == ["rank 1", "rank 2"]


def test_a_wait_for_what_nobody_does_is_the_end_of_a_chain():
    chain = find_deadlock(parse("0F0 0B0 0B1", "1F0 1B0 1F1 1B1"))
    assert [(wait.rank, wait.on_rank) for wait in chain] == [(0, 1), (1, None)]
    assert str(chain[1]) == (
        "rank 1 waits at step 3, 1F1, for the activation of micro-batch 1 from piece 0, which no rank ever does"
    )


def test_limits_are_one_for_all_ranks_or_one_for_each():
    with pytest.raises(ValueError, match="one for each of the 2 ranks: got 3 numbers"):
        validate(schedules.gpipe(2, 2), max_in_flight=[1, 2, 3])


def test_r6_says_which_action_is_one_too_many():
    plan = schedules.gpipe(2, 4)
    report = validate(plan, max_in_flight=3)
    assert report.rules == (6,) and [each.rank for each in report.findings] == [0, 1]
    assert str(report.findings[0]) == "R6: rank 0 holds 4 activations after step 4, 0F3: it may hold 3"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_r6_allows_the_peak_and_nothing_less(plan):
    peak = peak_in_flight(plan)
    assert validate(plan, max_in_flight=peak).is_valid
    assert validate(plan, max_in_flight=max(peak)).is_valid
    for rank in range(3):
        less = [each - (rank == at) for at, each in enumerate(peak)]
        (finding,) = validate(plan, max_in_flight=less).findings
        assert (finding.rule, finding.rank) == (6, rank)


def test_the_check_raises_the_first_findings_and_counts_the_rest():
    plan = with_row(schedules.gpipe(2, 4), 0, ())
    with pytest.raises(ValueError, match=r"^gpipe: R1: 0F0 is missing.* \(and 5 more: see validate\)$"):
        check(plan)


# ---- R4, with messages


GOOD = ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        pytest.param(["0F0 0RECV_B0 0B0", GOOD[1]], "has no other end: rank 0 never does 0SEND_F0", id="no send"),
        pytest.param([GOOD[0], "1F0 1B0 1SEND_B0"], "has no other end: rank 1 never does 1RECV_F0", id="no receive"),
        pytest.param([GOOD[0] + " 0RECV_B0", GOOD[1]], "is there a second time", id="twice"),
        pytest.param([GOOD[0] + " 1SEND_B0", GOOD[1]], "is of piece 1, which is on rank 1", id="not its piece"),
        pytest.param([GOOD[0] + " 0SEND_B0", GOOD[1]], "goes to piece -1", id="below the first"),
        pytest.param(
            [GOOD[0], GOOD[1] + " 1SEND_F0"], "goes to piece 2: the model has pieces 0 to 1", id="past the last"
        ),
        pytest.param(
            ["0SEND_F0 0F0 0RECV_B0 0B0", GOOD[1]], "sends a result that is not computed before it", id="sent too soon"
        ),
        pytest.param(
            [GOOD[0], "1F0 1RECV_F0 1B0 1SEND_B0"], "needs 1RECV_F0, which does not come before", id="too late"
        ),
    ],
)
def test_r4_finds_what_is_wrong_with_a_message(lines, words):
    assert validate(CommunicationPlan.parse("good", GOOD)).is_valid
    report = validate(CommunicationPlan.parse("bad", lines))
    assert report.rules == (4,) and words in str(report)


def test_r4_has_a_link_receive_in_the_order_of_sending():
    first = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1"
    plan = CommunicationPlan.parse("crossed", [first, "1RECV_F1 1RECV_F0 1F0 1F1 1B0 1SEND_B0 1B1 1SEND_B1"])
    (finding,) = validate(plan).findings
    assert (finding.rule, finding.rank, finding.index, finding.action) == (4, 1, 0, "1RECV_F1")
    assert "receives in another order than rank 0 sends: 0SEND_F0 comes first" in finding.text


def test_r4_sends_nothing_within_a_rank():
    plan = CommunicationPlan.parse("alone", ["0F0 0SEND_F0 1RECV_F0 1F0 1B0 0B0"], rank_of=(0, 0))
    assert "goes to piece 1 on the same rank" in str(validate(plan))
