"""Flows on wires, in exact fractions of a second: against closed forms of processor sharing and a naive fluid."""

from collections.abc import Iterable
from fractions import Fraction
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lablib.engine.network import Flow, Network
from lablib.engine.port import Port

# (start, latency, transfer, wires). Any number does for a second: here fractions, so that equal means equal.
Seconds = Any
Transfer = tuple[Seconds, Seconds, Seconds, str]


def F(numerator: int | float, denominator: int = 1) -> Seconds:
    return Fraction(numerator) / denominator


def run(flows: Iterable[Transfer]) -> list[tuple[Seconds, Seconds]]:
    """(start, end) of every flow, in the order given."""
    network, spans = Network(), {}
    for i, (start, latency, transfer, wires) in enumerate(flows):

        def note(start_s: float, end_s: float, i: int = i) -> None:
            assert i not in spans
            spans[i] = (start_s, end_s)

        number = network.wires.number(frozenset(wires))
        network.start(Flow(start, latency + transfer, transfer, number, note))
    while network.next_s is not None:
        network.advance()
    return [spans[i] for i in range(len(spans))]


def naive_ends(flows: list[Transfer]) -> list[Seconds]:
    """The definition, read aloud: advance all flows together from one change to the next."""
    left = [transfer for *_, transfer, _ in flows]
    begins = [start + latency for start, latency, *_ in flows]
    done: dict[int, Seconds] = {}
    now = F(0)
    while len(done) < len(flows):
        moving = [i for i in range(len(flows)) if i not in done and begins[i] <= now]
        for i in [i for i in moving if left[i] == 0]:
            done[i] = now
            moving.remove(i)
        speed = {i: F(1, max(sum(w in flows[j][3] for j in moving) for w in flows[i][3])) for i in moving}
        changes = [begin for i, begin in enumerate(begins) if i not in done and begin > now]
        changes += [now + left[i] / speed[i] for i in moving]
        if changes:
            step = min(changes) - now
            for i in moving:
                left[i] -= step * speed[i]
            now += step
    return [done[i] for i in range(len(flows))]


# ---- closed forms ----


def test_alone_the_end_is_start_plus_cost_to_the_bit():
    network, spans = Network(), []
    wires = network.wires.number(frozenset("a"))
    start_s, time_s, transfer_s = 0.1, 0.7, 0.3  # 0.1 + (0.7 - 0.3) + 0.3 is another number
    network.start(Flow(start_s, time_s, transfer_s, wires, lambda *span: spans.append(span)))
    while network.next_s is not None:
        network.advance()
    assert spans == [(start_s, start_s + time_s)] and start_s + (time_s - transfer_s) + transfer_s != spans[0][1]


# ---- any flows ----

SECONDS = st.integers(0, 12).map(F)
FLOWS = st.lists(
    st.tuples(
        SECONDS, SECONDS, SECONDS, st.sets(st.sampled_from("abcd"), min_size=1).map(lambda s: "".join(sorted(s)))
    ),
    min_size=1,
    max_size=9,
)


@given(FLOWS)
def test_the_ends_are_those_of_a_naive_fluid(flows: list[Transfer]):
    assert [end for _, end in run(flows)] == naive_ends(flows)


@given(FLOWS, st.randoms(use_true_random=False))
def test_in_floating_point_too_to_the_bit(flows: list[Transfer], random):
    inexact = [(float(s) / 7, float(a) / 7, float(b) / 7, wires) for s, a, b, wires in flows]
    order = list(range(len(flows)))
    random.shuffle(order)
    shuffled = run([inexact[i] for i in order])
    assert [shuffled[order.index(i)] for i in range(len(flows))] == run(inexact)


# ---- who comes late ----


def test_a_flow_told_after_its_time_has_had_its_wires_for_itself_until_now():
    network, spans = Network(), {}
    wires = network.wires.number(frozenset("a"))

    def add(name: str, start: int, transfer: int) -> None:
        network.start(Flow(F(start), F(transfer), F(transfer), wires, lambda *span: spans.update({name: span})))

    add("first", 0, 10)
    network.advance()
    network.advance()
    assert network.now_s == 10 and spans["first"] == (0, 10)
    add("in the past", 2, 5)
    add("until now", 4, 6)
    add("reaching into the future", 4, 8)
    add("in the future", 11, 4)
    while network.next_s is not None:
        network.advance()
    assert spans["in the past"] == (2, 7) and spans["until now"] == (4, 10)
    # 6 of 8 done at 10, one more alone until 11, the last at half speed.
    assert spans["reaching into the future"] == (4, 13) and spans["in the future"] == (11, 16)


# ---- messages, which hold their ports ----


class Wiring:
    """Messages planned through ports, and collectives, on one network."""

    def __init__(self) -> None:
        self.network, self.spans, self.num = Network(), {}, count()
        self.ports: dict[str, Port] = {}

    def message(self, start: int, transfer: int, out_port: str, in_port: str) -> None:
        ports = tuple(self.ports.setdefault(name, Port()) for name in (out_port, in_port))
        self._add(start, transfer, {out_port, in_port}, ports)

    def collective(self, start: int, transfer: int, wires: str) -> None:
        self._add(start, transfer, set(wires), ())

    def _add(self, start: int, transfer: int, wires: set[str], ports: tuple[Port, ...]) -> None:
        name, number = next(self.num), self.network.wires.number(frozenset(wires))
        for port in ports:
            port.occupy(start, start + transfer)
        end = lambda *span: self.spans.update({name: span})  # noqa: E731
        self.network.start(Flow(F(start), F(transfer), F(transfer), number, end, ports))

    def run(self) -> list[tuple[Seconds, Seconds]]:
        while self.network.next_s is not None:
            self.network.advance()
        return [self.spans[i] for i in range(len(self.spans))]


def test_messages_planned_one_after_another_keep_to_the_plan():
    wiring = Wiring()
    wiring.message(0, 10, "a", "b")
    wiring.message(10, 5, "a", "c")
    wiring.message(15, 5, "d", "c")
    assert wiring.run() == [(0, 10), (10, 15), (15, 20)]


def test_a_message_slowed_by_a_collective_pushes_back_those_behind_it():
    wiring = Wiring()
    wiring.message(0, 10, "a", "b")
    wiring.message(10, 5, "a", "c")
    wiring.message(15, 5, "d", "c")
    wiring.message(0, 10, "e", "f")  # not concerned
    wiring.collective(0, 5, "bx")
    # The collective and the first message at half speed until 10; 5 more for the message alone.
    assert wiring.run() == [(0, 15), (15, 20), (20, 25), (0, 10), (0, 10)]
    assert wiring.ports["a"].first_gap(0, 1) == 20


def test_messages_of_one_port_count_as_one_flow_against_a_collective():
    wiring = Wiring()
    for i in range(4):
        wiring.message(5 * i, 5, "a", "bcde"[i])
    wiring.collective(0, 20, "a")
    assert wiring.run() == [(0, 10), (10, 20), (20, 30), (30, 40), (0, 40)]


def test_a_message_needs_both_ports_at_once():
    wiring = Wiring()
    wiring.message(0, 4, "a", "b")
    wiring.message(0, 2, "c", "d")
    wiring.message(4, 2, "c", "b")
    wiring.collective(0, 3, "d")  # c-d until 4: two at half speed
    wiring.collective(0, 3, "b")  # a-b until 7: three at half speed, one alone
    assert wiring.run()[:3] == [(0, 7), (0, 4), (7, 9)]


def test_a_message_of_the_past_does_not_wait_for_one_of_now():
    wiring = Wiring()
    wiring.message(10, 10, "a", "b")
    wiring.network.advance()
    wiring.message(2, 3, "a", "c")
    assert wiring.run() == [(10, 20), (2, 5)]
