"""What a run says of time and bytes, against brute force: spans lie on whole seconds, so each second can be counted."""

from dataclasses import fields, replace

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.record.memory import Memory
from lablib.record.rank_text import short_ranks
from lablib.run import COMPUTE, Run, Span, Timeline, Traffic, Transfer

STREAMS = (COMPUTE, "comm:world", "comm:dp", "comm:world:send")
PHASES = ("forward", "backward", "setup")


@st.composite
def spans(draw) -> Span:
    """A span between two whole seconds; it may be empty, and may overlap others of its stream."""
    start, duration = draw(st.integers(0, 30)), draw(st.integers(0, 8))
    return Span(
        rank=draw(st.integers(0, 3)),
        stream=draw(st.sampled_from(STREAMS)),
        name=draw(st.sampled_from(["aten.mm", "all_reduce"])),
        phase=draw(st.sampled_from(PHASES)),
        start_s=float(start),
        end_s=float(start + duration),
        flops=float(draw(st.integers(0, 5))),
        size_bytes=float(draw(st.integers(0, 5))),
    )


SPANS = st.lists(spans(), max_size=25)


def seconds(intervals: list[tuple[float, float]]) -> set[int]:
    """The whole seconds that some interval covers."""
    return {second for start, end in intervals for second in range(int(start), int(end))}


def busy(timeline: Timeline, rank: int, *streams: str) -> set[int]:
    return seconds([(s.start_s, s.end_s) for s in timeline.spans if s.rank == rank and s.stream in streams])


# ---- time ----


@given(SPANS, SPANS)
def test_every_second_of_a_rank_is_one_of_four(some, more):
    waits = [replace(s, stream="wait:world") for s in more]
    timeline = Timeline.of([*some, *waits], 4)
    for rank in range(4):
        states = timeline.states(rank)
        compute, communication = busy(timeline, rank, COMPUTE), busy(timeline, rank, *STREAMS[1:])
        waiting = busy(timeline, rank, "wait:world") - compute - communication
        seconds = {name: {t for a, b in found for t in range(int(a), int(b))} for name, found in states.items()}
        assert seconds["busy"] == compute and seconds["exposed"] == communication - compute
        assert seconds["waiting"] == waiting and timeline.waiting_s(rank) == len(waiting)
        everything = sorted(interval for found in states.values() for interval in found)
        assert [a for a, _ in everything] + [timeline.end_s] == [timeline.start_s, *(b for _, b in everything)]
        assert "wait:world" not in timeline.streams(rank)


def test_a_run_that_did_nothing_took_no_time():
    timeline = Timeline.of([], 2)
    assert (timeline.makespan_s, timeline.busy_s(0), timeline.exposed_s(1), timeline.compute_idle_s(1)) == (0, 0, 0, 0)
    assert len(timeline) == 0 and timeline.streams(0) == [] and len(timeline.table()) == 0
    assert timeline.without("setup").makespan_s == 0


# ---- spans ----


@given(SPANS)
def test_a_timeline_is_ordered_by_rank_with_compute_first_and_then_by_start(some):
    def key(span: Span) -> tuple:
        return span.rank, "" if span.stream == "compute" else span.stream, span.start_s

    ordered: list[Span] = []
    for span in some:  # insertion: spans that tie stay in the order in which they were given
        place = sum(key(other) <= key(span) for other in ordered)
        ordered.insert(place, span)
    assert list(Timeline.of(some, 4)) == ordered


@given(
    SPANS,
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from([*STREAMS, "comm"]),
    st.none() | st.sampled_from(PHASES),
)
def test_select_keeps_what_fits_every_given_condition(some, rank, stream, phase):
    timeline = Timeline.of(some, 4)
    expected = [s for s in timeline if rank is None or s.rank == rank]
    if stream == "comm":
        expected = [s for s in expected if s.stream.startswith("comm")]
    elif stream is not None:
        expected = [s for s in expected if s.stream == stream]
    expected = [s for s in expected if phase is None or s.phase == phase]
    assert timeline.select(rank, stream, phase) == expected


@given(SPANS)
def test_streams_are_named_once_compute_first(some):
    timeline = Timeline.of(some, 4)
    for rank in range(4):
        names = timeline.streams(rank)
        assert set(names) == {s.stream for s in some if s.rank == rank} and len(names) == len(set(names))
        assert COMPUTE not in names[1:] and names[COMPUTE in names :] == sorted(names[COMPUTE in names :])


@given(SPANS, st.sampled_from(PHASES))
def test_a_timeline_without_a_phase_starts_at_zero_and_keeps_every_duration(some, phase):
    whole = Timeline.of(some, 4)
    rest = whole.without(phase)
    kept = [s for s in whole if s.phase != phase]
    assert len(rest) == len(kept) and rest.num_ranks == 4
    if kept:
        first = min(s.start_s for s in kept)
        assert min(s.start_s for s in rest) == 0
        assert list(rest) == [replace(s, start_s=s.start_s - first, end_s=s.end_s - first) for s in kept]
        assert rest.makespan_s == max(s.end_s for s in kept) - first
    assert len(whole) == len(some)


@given(SPANS, st.integers(0, 20), st.integers(1, 20))
def test_a_part_of_a_run_counts_the_seconds_between_two_moments(some, first, duration):
    part = Timeline.of(some, 4).between(first, first + duration)
    inside = set(range(first, first + duration))
    assert (part.start_s, part.end_s, part.makespan_s) == (first, first + duration, duration)
    for rank in range(4):
        compute, communication = (
            busy(Timeline.of(some, 4), rank, COMPUTE),
            busy(Timeline.of(some, 4), rank, *STREAMS[1:]),
        )
        assert part.busy_s(rank) == len(compute & inside) and part.busy_s(rank, "comm") == len(communication & inside)
        assert part.exposed_s(rank) == len((communication - compute) & inside)
        assert part.compute_idle_s(rank) == duration - len(compute & inside)
        assert part.idle_s(rank) == duration - len((compute | communication) & inside)


@given(SPANS, st.lists(st.integers(1, 10), min_size=1, max_size=5))
def test_parts_that_follow_each_other_hold_every_span_once_and_add_up_to_the_run(some, durations):
    whole = Timeline.of(some, 4)
    edges = [sum(durations[:i]) for i in range(len(durations) + 1)] + [60]  # the last part reaches past every span
    parts = [whole.between(a, b) for a, b in zip(edges, edges[1:], strict=False)]
    for quantity in ("duration_s", "flops", "size_bytes"):
        total = sum(getattr(s, quantity) for part in parts for s in part)
        assert total == pytest.approx(sum(getattr(s, quantity) for s in whole))
    instants = [s for s in whole if s.duration_s == 0]
    assert sorted((s for part in parts for s in part if s.duration_s == 0), key=repr) == sorted(instants, key=repr)
    assert whole.between(0, 60).spans == whole.spans


@pytest.mark.parametrize("edges", [(1.0, 1.0), (2.0, 1.0), (float("nan"), 1.0)])
def test_a_part_of_a_run_must_begin_before_it_ends(edges):
    with pytest.raises(ValueError, match="begins before it ends"):
        Timeline((), 1).between(*edges)


@given(SPANS)
def test_a_table_has_a_row_for_each_span(some):
    timeline = Timeline.of(some, 4)
    rows = timeline.table().to_dict("records")
    names = [field.name for field in fields(Span)]
    assert rows == [{name: getattr(s, name) for name in names} for s in timeline]


# ---- traffic ----


@st.composite
def transfers(draw) -> Transfer:
    ranks = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)))
    sent = tuple(float(draw(st.integers(0, 100))) for _ in ranks)
    name = draw(st.sampled_from(["all_reduce", "send", "broadcast"]))
    start = float(draw(st.integers(0, 9)))
    return Transfer(draw(st.sampled_from(["world", "dp"])), name, ranks, "ring", 8.0, sent, start, start + 1)


TRANSFERS = st.lists(transfers(), max_size=10)


@given(TRANSFERS)
def test_bytes_that_left_each_rank_add_up_to_those_that_left_all(some):
    traffic = Traffic(tuple(some))
    by_hand = [0.0] * 6
    for transfer in some:
        for place, rank in enumerate(transfer.ranks):
            by_hand[rank] += transfer.sent_bytes[place]
    assert [traffic.sent_bytes(rank) for rank in range(6)] == by_hand
    assert traffic.sent_bytes() == sum(by_hand) and traffic.sent_bytes(99) == 0


@given(TRANSFERS)
def test_a_matrix_of_traffic_has_the_bytes_that_left_each_rank_as_the_sums_of_its_rows(some):
    traffic = Traffic(tuple(some))
    matrix = traffic.matrix(6)
    assert matrix.shape == (6, 6)
    assert matrix.sum(axis=1).tolist() == [traffic.sent_bytes(rank) for rank in range(6)]


def test_where_the_routes_are_not_known_each_rank_sends_to_the_next_of_its_group():
    transfer = Transfer("dp", "all_reduce", (4, 1, 3), "nccl", 8.0, (10.0, 20.0, 0.0), 0.0, 1.0)
    assert transfer.routes == {(4, 1): 10.0, (1, 3): 20.0} and not transfer.is_routed
    send = Transfer("world", "send", (2, 0), "gloo", 8.0, (8.0, 0.0), 0.0, 1.0)
    assert send.routes == {(2, 0): 8.0} and send.is_routed
    barrier = Transfer("world", "barrier", (0, 1), "nccl", 0.0, (0.0, 0.0), 0.0, 1.0)
    assert barrier.routes == {} and barrier.is_routed


def test_routes_are_worked_out_when_somebody_asks_and_once_for_equal_transfers():
    asked = []

    def route():
        asked.append(1)
        return {(0, 1): 5.0, (1, 0): 7.0}

    some = [Transfer("dp", "all_reduce", (0, 1), "ring", 8.0, (5.0, 7.0), 0.0, 1.0, route=route)] * 3
    traffic = Traffic(tuple(some))
    assert traffic.sent_bytes() == 36 and not asked
    assert traffic.matrix().tolist() == [[0, 15], [21, 0]] and len(asked) == 1
    assert some[0].is_routed and Traffic().matrix().shape == (0, 0) and Traffic().matrix(2).sum() == 0
    with pytest.raises(ValueError, match="found rank 1"):
        traffic.matrix(1)


def _one_of_each(size: int) -> None:
    import torch
    import torch.distributed as dist

    rank, n, x = dist.get_rank(), dist.get_world_size(), torch.ones(size)
    dist.all_reduce(x)
    dist.broadcast(x, src=3)
    dist.all_gather([torch.empty(size) for _ in range(n)], x)
    dist.all_to_all_single(torch.empty(n), torch.ones(n))
    pair = dist.new_group([2, 9])
    if rank in (2, 9):
        dist.all_reduce(x, group=pair)
    if rank == 0:
        dist.send(x, dst=5)
    if rank == 5:
        dist.recv(x, src=0)


def test_a_simulated_run_knows_who_sent_how_much_to_whom():
    run = launch(_one_of_each, 4096, ranks=16, cluster="dgx-h100")
    matrix = run.traffic.matrix(16)
    assert matrix.sum(axis=1) == pytest.approx([run.traffic.sent_bytes(rank) for rank in range(16)], rel=1e-12)
    assert all(transfer.is_routed for transfer in run.traffic.transfers) and run.traffic.devices_per_node == 8
    assert matrix[2, 9] >= 4 * 4096 and matrix[0, 5] >= 4 * 4096 and matrix.trace() == 0


@given(TRANSFERS)
def test_calls_are_counted_by_name(some):
    traffic = Traffic(tuple(some))
    counts = {name: traffic.count(name) for name in ("all_reduce", "send", "broadcast")}
    assert sum(counts.values()) == len(traffic) == len(some)
    assert counts["send"] == len([t for t in some if t.name == "send"]) and traffic.count("sned") == 0


@given(TRANSFERS)
def test_the_table_of_traffic_has_a_row_for_each_communication(some):
    table = Traffic(tuple(some)).table()
    columns = ["group", "name", "ranks", "algorithm", "tensor_bytes", "sent_bytes", "start_s", "seconds"]
    assert list(table.columns) == columns and len(table) == len(some)
    assert table["sent_bytes"].tolist() == [sum(t.sent_bytes) for t in some]
    assert table["seconds"].tolist() == [1.0] * len(some)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "3"),
        ((0, 1), "0,1"),
        ((0, 1, 2), "0-2"),
        ((4, 5, 6, 7), "4-7"),
        ((0, 8, 16), "0,8,16"),
        ((2, 1, 0), "2,1,0"),
    ],
)
def test_a_run_of_ranks_is_written_short(ranks, text):
    assert short_ranks(ranks) == text


def test_records_introduce_themselves():
    timeline = Timeline.of([Span(0, COMPUTE, "aten.mm", "forward", 0.0, 0.25)], 2)
    traffic = Traffic((Transfer("world", "all_reduce", (0, 1), "ring", 8.0, (8.0, 8.0), 0.0, 0.1),))
    run = Run([None, None], timeline, traffic, ["", ""], "sim", "dgx-h100")
    assert repr(timeline) == "Timeline(1 span, 2 ranks, makespan 0.25 s)"
    assert repr(traffic) == "Traffic(1 communication, 16 bytes sent)"
    assert repr(run) == "Run(2 ranks on sim (dgx-h100): makespan 0.25 s, 1 communication, 16 bytes sent)"
    assert run.ranks == 2 and "all_reduce" in traffic._repr_html_()


# ---- saved and loaded ----


def test_a_simulated_run_is_the_same_when_it_was_saved_and_loaded(tmp_path):
    def program():
        x = torch.ones(64, 64, requires_grad=True)
        with torch.profiler.record_function("step"):
            (x @ x).sum().backward()
        dist.all_reduce(x.grad)
        if dist.get_rank() < 2:
            dist.send(x.detach(), 1) if dist.get_rank() == 0 else dist.recv(torch.empty(64, 64), 0)
        print("rank", dist.get_rank())

    run = launch(program, ranks=4)
    loaded = Run.load(run.save(tmp_path / "new" / "run.json"))
    for name in ("timeline", "traffic", "memory", "stdout", "backend", "cluster", "wall_s", "notes", "ranks"):
        assert getattr(loaded, name) == getattr(run, name), name
    assert loaded.values == [None] * 4 and loaded.summary().table().equals(replace(run, device=None).summary().table())
    assert loaded.memory.peak_bytes() == run.memory.peak_bytes() > 0


@given(st.lists(st.text(), max_size=3), st.lists(st.integers(0, 2**62), max_size=3))
def test_notes_and_peaks_are_the_same_when_they_were_saved_and_loaded(tmp_path_factory, notes, peaks):
    notes = tuple(notes)
    records = Timeline.of((), 1, notes=notes), Traffic(notes=notes)
    memory = Memory(num_ranks=len(peaks), allocator_peaks=tuple(peaks), run_notes=notes)
    run = Run([None], *records, [""], "nccl", "there", notes=notes, memory=memory)
    assert Run.load(run.save(tmp_path_factory.mktemp("run") / "run.json")) == run


@given(SPANS)
def test_any_spans_are_the_same_when_they_were_saved_and_loaded(tmp_path_factory, made):
    run = Run([1, 2, 3, 4], Timeline.of(made, 4), Traffic(), [""] * 4, "gloo", "here", notes=("a note",))
    loaded = Run.load(run.save(tmp_path_factory.mktemp("run") / "run.json"))
    assert loaded == replace(run, values=[None] * 4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "lablib run 1"}', '{"format": "another"}', "1e999"])
def test_what_is_no_saved_run_is_refused_in_a_sentence(tmp_path, text: str):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"run.json must be a run that save\(\) wrote .*; save it again"):
        Run.load(path)
