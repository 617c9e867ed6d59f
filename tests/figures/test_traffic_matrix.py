"""The traffic matrix: its squares are the bytes between ranks, in blocks where ranks are many; its sentence is true."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib import launch
from lablib.cost import GroupNetwork
from lablib.cost.routes import Route
from lablib.figures import describe, figure_traffic_matrix, table
from lablib.hardware import find_cluster
from lablib.run import Traffic, Transfer


def ring(ranks: range, size: float, cluster: str = "dgx-h100") -> Transfer:
    """An all-gather of this many bytes by ring: each rank sends (n-1)/n of them to the next."""
    route = Route("all_gather", "ring", GroupNetwork(find_cluster(cluster), ranks), size)
    sent = (len(ranks) - 1) / len(ranks) * size
    return Transfer("world", "all_gather", tuple(ranks), "ring", size, (sent,) * len(ranks), 0.0, 1.0, route=route)


def send(a: int, b: int, size: float) -> Transfer:
    return Transfer("world", "send", (a, b), "direct", size, (size, 0.0), 0.0, 1.0)


def test_each_square_is_the_bytes_from_its_row_to_its_column():
    traffic = Traffic((ring(range(4), 4e6), send(0, 2, 1e6), send(0, 2, 1e6)))
    figure = figure_traffic_matrix(traffic)
    (heat,) = figure.data
    drawn = np.nan_to_num(np.array(heat.z, dtype=float)) * 1e6
    np.testing.assert_allclose(drawn, traffic.matrix())
    assert heat.colorbar.title.text == "bytes (MB)"
    assert np.isnan(np.array(heat.z, dtype=float)[0, 0]), "nothing sent is no colour"
    assert heat.hovertext[0][2] == "<b>rank 0 to rank 2</b><br>2 MB"
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1]  # rank 0 on top
    rows = table(figure).to_dict("records")
    assert len(rows) == 5 and {"from": "0", "to": "2", "bytes (B)": 2e6} in rows
    assert describe(figure) == (
        "4 ranks send 14 MB to each other over 5 pairs; the most between two, 3 MB, goes from rank 0 to 1."
    )


def test_colours_are_logarithmic_where_sizes_are_far_apart():
    figure = figure_traffic_matrix(Traffic((send(0, 1, 1e3), send(1, 0, 1e9))))
    (heat,) = figure.data
    assert (heat.z[0][1], heat.z[1][0]) == pytest.approx((3, 9))
    assert dict(zip(heat.colorbar.tickvals, heat.colorbar.ticktext, strict=True))[6.0] == "1 MB"


def test_lines_stand_between_nodes_and_the_sentence_says_what_leaves_them():
    figure = figure_traffic_matrix(Traffic((ring(range(24), 24e6),)))  # 8 devices a node
    assert sorted(shape.x0 for shape in figure.layout.shapes if shape.x0 == shape.x1) == [7.5, 15.5]
    assert sorted(shape.y0 for shape in figure.layout.shapes if shape.y0 == shape.y1) == [7.5, 15.5]
    assert describe(figure).endswith("; 12% of the bytes leave their node.")  # 3 of 24 messages
    assert not figure_traffic_matrix(Traffic((send(0, 9, 1.0),))).layout.shapes
    assert len(figure_traffic_matrix(Traffic((send(0, 9, 1.0),)), devices_per_node=4).layout.shapes) == 4


def test_many_ranks_are_drawn_in_blocks_that_keep_every_byte():
    traffic = Traffic((ring(range(1024), 1024e3),))
    figure = figure_traffic_matrix(traffic)
    cells = table(figure)
    assert cells["bytes (B)"].sum() == pytest.approx(traffic.sent_bytes())
    # Blocks are whole nodes: 128 of them. Seven of eight messages stay in theirs.
    inside = cells[cells["from"] == cells["to"]]
    assert len(inside) == 128 and inside["bytes (B)"].sum() == pytest.approx(traffic.sent_bytes() * 7 / 8)
    assert cells["from"].iloc[0] == "0-7" and figure.layout.xaxis.title.text == "to ranks (first of 8)"
    assert describe(figure).endswith("A square stands for 8 x 8 ranks.")
    assert len(figure.to_json()) < 2e6


def test_routes_that_nobody_told_are_drawn_as_a_ring_and_the_sentence_says_so(examples):
    figure = figure_traffic_matrix(examples.some_traffic(), 4)
    # 5 all-reduces of 1.5 MB a rank, a broadcast of 2 and 1 MB, and a send of 3 MB.
    rows = {(row["from"], row["to"]): row["bytes (B)"] for row in table(figure).to_dict("records")}
    assert rows == {("0", "1"): 9.5e6, ("1", "2"): 11.5e6, ("2", "3"): 7.5e6, ("3", "0"): 7.5e6}
    assert "6 of 7 communications (92% of the bytes) do not tell who sent to whom: they are drawn as a ring" in (
        describe(figure)
    )


def test_nothing_sent_is_said():
    assert describe(figure_traffic_matrix(Traffic(), 3)) == "Nothing was sent between the 3 ranks."
    assert describe(figure_traffic_matrix(Traffic())) == "Nothing was sent between ranks."


def test_runs_side_by_side_share_one_scale_of_colours_and_one_bar():
    big, small = Traffic((send(0, 1, 4e6), send(1, 0, 2e6))), Traffic((send(0, 3, 1e6),))
    figure = figure_traffic_matrix({"big": big, "small": small}, 4)
    first, second = figure.data
    assert (first.zmin, first.zmax) == (second.zmin, second.zmax) == (0, 4)
    assert first.showscale and not second.showscale
    assert first.z[0][1] == 4 and second.z[0][3] == 1
    assert [note.text for note in figure.layout.annotations] == ["<b>big</b>", "<b>small</b>"]
    rows = table(figure).to_dict("records")
    assert rows[-1] == {"run": "small", "from": "0", "to": "3", "bytes (B)": 1e6} and len(rows) == 3
    assert "big: 4 ranks send 6 MB" in describe(figure) and "small: 4 ranks send 1 MB" in describe(figure)


@given(st.lists(st.floats(1, 1e12), min_size=1, max_size=4))
def test_equal_colours_are_equal_bytes_in_all_panels(sizes):
    figure = figure_traffic_matrix({f"run {i}": Traffic((send(0, 1, size),)) for i, size in enumerate(sizes)})
    drawn = [np.array(heat.z, dtype=float)[0, 1] for heat in figure.data]
    assert len({(heat.zmin, heat.zmax) for heat in figure.data}) == 1
    for (a, x), (b, y) in itertools.combinations(zip(sizes, drawn, strict=True), 2):
        assert (x == y) == (a == b) or (x < y) == (a < b)


def test_runs_of_other_sizes_have_the_squares_of_the_largest():
    figure = figure_traffic_matrix({"two": Traffic((send(0, 1, 1.0),)), "five": Traffic((send(0, 4, 1.0),))})
    assert figure.layout.xaxis.range == figure.layout.xaxis2.range == (-0.5, 4.5)
    for count in (0, 5):
        with pytest.raises(ValueError, match="1 to 4 runs fit side by side"):
            figure_traffic_matrix({str(i): Traffic() for i in range(count)})


def _shift() -> None:
    import torch
    import torch.distributed as dist

    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = torch.ones(250), torch.empty(250)
    for work in (dist.isend(x, (rank + 1) % n), dist.irecv(y, (rank - 1) % n)):
        assert work is not None
        work.wait()


def test_a_run_draws_its_own_traffic():
    figure = launch(_shift, ranks=4).traffic.figure(title="A shift")
    rows = table(figure).to_dict("records")
    assert rows == [{"from": str(r), "to": str((r + 1) % 4), "bytes (B)": 1000.0} for r in range(4)]
    assert figure.layout.title.text == "A shift"


# ---- in mesh order ----


def test_ranks_of_a_mesh_are_named_by_their_coordinates():
    figure = figure_traffic_matrix(Traffic((send(0, 5, 1e6), send(5, 0, 2e6))), mesh={"data": 2, "tensor": 3})
    (heat,) = figure.data
    assert np.array(heat.z).shape == (6, 6)
    assert list(figure.layout.xaxis.ticktext) == ["0 0", "0 1", "0 2", "1 0", "1 1", "1 2"]
    assert figure.layout.xaxis.title.text == "to rank (data, tensor)"
    assert table(figure).to_dict("records") == [
        {"from": "0 0", "to": "1 2", "bytes (B)": 1e6},
        {"from": "1 2", "to": "0 0", "bytes (B)": 2e6},
    ]
    assert "goes from rank 1 2 to 0 0" in describe(figure)


def test_thin_lines_stand_between_groups_and_others_between_nodes():
    figure = figure_traffic_matrix(
        Traffic((send(0, 7, 1e6),)), devices_per_node=4, mesh={"data": 2, "pipeline": 1, "context": 2, "tensor": 2}
    )
    upright = {shape.x0: shape.line.dash for shape in figure.layout.shapes if shape.x0 == shape.x1}
    assert upright == {1.5: "dot", 3.5: None, 5.5: "dot"}


@given(st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=1, max_size=5).filter(lambda sizes: prod(sizes) <= 1024))
def test_large_meshes_are_drawn_in_blocks_of_whole_groups(sizes: list[int]):
    mesh = {f"axis {i}": size for i, size in enumerate(sizes)}
    num_ranks = prod(sizes)
    figure = figure_traffic_matrix(Traffic((send(0, num_ranks - 1, 1e6),) if num_ranks > 1 else ()), mesh=mesh)
    if not figure.data:
        return
    (heat,) = figure.data
    assert len(heat.z) <= 128 and num_ranks % len(heat.z) == 0
    assert len(figure.layout.xaxis.ticktext) <= 16 or len(figure.layout.xaxis.ticktext) == 1
    assert table(figure)["bytes (B)"].sum() == 1e6


@pytest.mark.parametrize(
    ("mesh", "num_ranks", "message"),
    [
        ({}, None, "a mesh has axes"),
        ({"data": 0}, None, "a mesh has axes"),
        ({"data": 4}, 8, "must have num_ranks ranks"),
        ({"data": 2}, None, "must cover every rank"),
        (None, 3, "must cover every rank"),
    ],
)
def test_a_mesh_of_other_ranks_is_refused(mesh, num_ranks, message: str):
    with pytest.raises(ValueError, match=message):
        figure_traffic_matrix(Traffic((send(0, 3, 1e6),)), num_ranks, mesh=mesh)
