"""Bandwidth sharing of concurrent transfers on a wire: a discrete-event simulation of the network.

A transfer is a *flow*: first its latency, which sharing does not change; then its bytes, which take `transfer_s`
seconds without contention. A wire that carries k flows gives each of them 1/k of its bandwidth, and the fullest wire
limits a flow:

    speed of a flow = 1 / max over its wires of (flows that have bytes on that wire)

    alone      |-latency-|====|
    A          |-latency-|========|           both at half speed until A ends,
    B          |-latency-|========|==|        then B has the whole wire

A message also holds two ports, and messages planned later on the same port (port.py) wait for its end: a collective
that slows it delays them too.

An end is final when no rank can start a transfer before it. So an end is an event in a queue, and the scheduler decides
when virtual time may move to the next one (scheduler.py). If no wire is shared, a flow ends at exactly `start_s +
time_s`.

Source: processor sharing, Kleinrock, "Queueing Systems", volume 2, 1976, section 4.4; fluid flows over links as in
Velho, Schnorr, Casanova, Legrand, "On the validity of flow-level TCP network models for grid and cloud simulations",
ACM TOMACS 23(4), 2013.
Simplified: equal shares. Bandwidth that a flow leaves unused because another of its wires limits it is not given to
other flows, unlike max-min fairness. A flow that starts before the current moment (a rank that polled, or took a
future, while the others continued) has had its wires to itself until then.
"""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lablib.engine.port import Port, first_common_gap
from lablib.engine.wires import WireSets

# Order of events at one moment: ends free wires first, and plans wait for calls that ranks issue at that moment.
_END, _START, _BEGIN, _PLAN = range(4)


@dataclass(slots=True, eq=False)
class Flow:
    """One transfer."""

    start_s: float  # start time; later if a port that it needs is busy
    time_s: float  # seconds without contention, latency included
    transfer_s: float  # the part of `time_s` in which bytes move
    wires: int  # number of its set of wires
    on_end: Callable[[float, float], None]  # called with start and end, once both are final
    ports: tuple[Port, ...] = ()  # the ports that it holds; none for a collective
    _left_s: float = 0  # seconds at full speed until its last byte, at the moment `_since_s`
    _since_s: float = 0
    _share: int = 0  # flows on its fullest wire; 0 while its bytes do not move
    _was_shared: bool = False
    _was_held_up: bool = False  # by another message on one of its ports
    _event: int = -1  # number of its valid event in the queue


class Network:
    """The flows in flight. `advance` moves virtual time to the next event.

    Attributes:
        wires: the sets of wires that flows use.
        now_s: time of the last event.
        events: a heap of (time, kind, turn, number, flow), which includes outdated events.
    """

    def __init__(self) -> None:
        self.wires = WireSets()
        self.now_s: float = 0
        self.events: list[tuple[float, int, int, int, Flow]] = []
        self._num_events = 0
        self._moving: dict[int, list[Flow]] = {}  # flows that move bytes, by set of wires
        self._holders: dict[Port, Flow] = {}
        self._queues: dict[Port, list[Flow]] = {}

    def start(self, flow: Flow) -> None:
        """Add a flow; a later `advance` calls its `on_end`."""
        if flow.ports:
            self._schedule(flow.start_s, _START, flow)
        else:
            self._schedule(flow.start_s + (flow.time_s - flow.transfer_s), _BEGIN, flow)

    def start_in_turn(self, flow: Flow, turn: int) -> None:
        """Add a flow that starts at the first gap of its two ports, once all ranks have reached `start_s`.

        Of flows that could start at the same time, the one with the lowest turn is planned first.
        """
        self._schedule(flow.start_s, _PLAN, flow, turn)

    @property
    def next_s(self) -> float | None:
        """Time of the next event; None if there is none."""
        while self.events and self.events[0][4]._event != self.events[0][3]:
            heapq.heappop(self.events)
        return self.events[0][0] if self.events else None

    @property
    def lets_ranks_go_first(self) -> bool:
        """Whether the next event waits for calls that ranks issue at the same moment."""
        return self.next_s is not None and self.events[0][1] == _PLAN

    def advance(self) -> None:
        """Process the next event, and every other end at the same time."""
        assert self.next_s is not None
        at_s, kind, _, _, flow = heapq.heappop(self.events)
        self.now_s = max(self.now_s, at_s)
        if kind == _PLAN:
            self._plan(flow)
        elif kind == _START:
            self._take_ports(flow, at_s)
        elif kind == _BEGIN:
            self._begin(flow, at_s)
        else:
            over = [flow]
            while self.next_s == at_s and self.events[0][1] == _END:
                over.append(heapq.heappop(self.events)[4])
            self._end(over, at_s)

    def _schedule(self, at_s: float, kind: int, flow: Flow, turn: int = 0) -> None:
        self._num_events += 1
        flow._event = self._num_events
        heapq.heappush(self.events, (at_s, kind, turn, self._num_events, flow))

    # ---- steps of a flow, in order ----

    def _plan(self, flow: Flow) -> None:
        out_port, in_port = flow.ports
        flow.start_s = first_common_gap(out_port, in_port, flow.start_s, flow.time_s)
        for port in flow.ports:
            port.occupy(flow.start_s, flow.start_s + flow.time_s)
        self._schedule(flow.start_s, _START, flow)

    def _take_ports(self, flow: Flow, at_s: float) -> None:
        if at_s + flow.time_s <= self.now_s:
            flow.ports = ()  # it fits into a gap in the past
        busy = next((port for port in flow.ports if port in self._holders), None)
        if busy is not None:
            self._queues.setdefault(busy, []).append(flow)
            flow._was_held_up = True
            return
        for port in flow.ports:
            self._holders[port] = flow
        flow.start_s = at_s
        self._schedule(at_s + (flow.time_s - flow.transfer_s), _BEGIN, flow)

    def _begin(self, flow: Flow, at_s: float) -> None:
        flow._left_s = flow.transfer_s - (self.now_s - at_s)
        if flow._left_s <= 0:  # no bytes, or all of them moved in the past
            self._schedule(flow.start_s + flow.time_s, _END, flow)
            return
        self._moving.setdefault(flow.wires, []).append(flow)
        self._share_out({flow.wires})

    def _end(self, flows: list[Flow], at_s: float) -> None:
        changed = {flow.wires for flow in flows if flow._share}
        for flow in flows:
            if flow._share:
                self._moving[flow.wires].remove(flow)
                if not self._moving[flow.wires]:
                    del self._moving[flow.wires]
        self._share_out(changed)
        for flow in flows:
            self._free_ports(flow, at_s)
        for flow in flows:
            flow.on_end(flow.start_s, at_s)

    def _free_ports(self, flow: Flow, at_s: float) -> None:
        for port in flow.ports:
            del self._holders[port]
            if flow._was_shared or flow._was_held_up:
                port.occupy(flow.start_s, at_s)
        waiting = [held_up for port in flow.ports for held_up in self._queues.pop(port, [])]
        for held_up in sorted(waiting, key=lambda flow: (flow.start_s, flow._event)):
            self._take_ports(held_up, at_s)

    # ---- sharing ----

    def _share_out(self, changed: set[int]) -> None:
        """Recompute the speeds of all flows that share a wire with these sets."""
        for number in sorted(set().union(*(self._moving_rivals(one) for one in changed))):
            share = self._load(number)
            for flow in self._moving[number]:
                if flow._share != share:
                    self._set_share(flow, share)

    def _load(self, number: int) -> int:
        """Flows on the fullest wire of a set; no wire is inspected if the two bounds are equal."""
        others = [rival for rival in self._moving_rivals(number) if rival != number]
        own = self._num_flows([number])
        if not others:
            return own
        # A wire shared with another set has at least these flows, and at most all that share a wire with both.
        at_least = own + max(self._num_flows([other]) for other in others)
        rivals = self.wires.rivals(number)
        at_most = max(self._num_flows(r for r in self._moving_rivals(other) if r in rivals) for other in others)
        if at_least == at_most:
            return at_least
        return self.wires.load(number, tuple((r, self._num_flows([r])) for r in sorted([number, *others])))

    def _num_flows(self, numbers: Iterable[int]) -> int:
        return sum(len(self._moving[number]) for number in numbers)

    def _moving_rivals(self, number: int) -> list[int]:
        rivals = self.wires.rivals(number)
        if len(rivals) < len(self._moving):
            return [rival for rival in rivals if rival in self._moving]
        return [other for other in self._moving if other in rivals]

    def _set_share(self, flow: Flow, share: int) -> None:
        if flow._share:
            flow._left_s = max(0, flow._left_s - (self.now_s - flow._since_s) / flow._share)
        flow._since_s, flow._share = self.now_s, share
        flow._was_shared = flow._was_shared or share > 1
        end_s = self.now_s + flow._left_s * share if flow._was_shared else flow.start_s + flow.time_s
        self._schedule(end_s, _END, flow)
