"""Networks: the picture has the nodes, switches and links that the topology's record describes."""

# plotly makes its properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
import pytest

from lablib.figures import describe, figure_network, table
from lablib.figures.theme import AREAS, TEXTS
from lablib.hardware import Dragonfly, FatTree, Torus
from tests.contrast import contrast


@pytest.mark.parametrize(
    ("topology", "num_nodes", "links", "words"),
    [
        (FatTree(2, 2), 8, {"node to leaf": 8, "leaf to pod": 4, "pod to core": 2}, "passes 5 switches"),
        (FatTree(2, 2), 4, {"node to leaf": 4, "leaf to pod": 2}, ""),  # no core
        (Dragonfly(2, 3), 18, {"node to router": 18, "inside a group": 9, "between groups": 3}, ""),
        (Torus((4, 4)), 16, {"neighbours": 24, "wrap-around": 8}, ""),
    ],
)
def test_every_level_has_its_links(topology, num_nodes, links, words):
    figure = figure_network(topology, num_nodes)
    assert table(figure)["level"].value_counts().to_dict() == links and words in describe(figure)


@pytest.mark.parametrize("oversubscription, thicker", [(1.0, 2.0), (2.0, 1.0)])
def test_a_fat_tree_is_as_thick_above_as_it_serves_nodes(oversubscription, thicker):
    figure = figure_network(FatTree(2, 2, oversubscription=oversubscription), 8)
    width = {trace.name: trace.line.width for trace in figure.data if trace.mode == "lines"}
    assert width["leaf to pod"] == thicker * width["node to leaf"]
    assert width["pod to core"] == 2 * width["leaf to pod"]


def test_a_torus_closes_at_its_edges():
    figure = figure_network(Torus((4, 4)), 16)
    ends = zip(table(figure)["from"], table(figure)["to"], strict=True)
    assert all(Torus((4, 4)).hops(int(a), int(b)) == 1 for a, b in ends)


@pytest.mark.parametrize("topology", [FatTree(2, 2), Dragonfly(1, 3), Torus((2, 3))])
def test_any_number_of_nodes_can_be_drawn(topology):
    for num_nodes in range(1, 7):
        assert figure_network(topology, num_nodes).data


@pytest.mark.parametrize("topology", [FatTree(2, 2), Dragonfly(1, 3), Torus((2, 3))])
def test_a_name_in_its_marker_can_be_read_in_both_themes(topology):
    for trace in figure_network(topology, 6).data:
        if trace.mode == "markers+text":
            ink, fill = trace.textfont.color, trace.marker.color
            assert contrast(ink, fill) >= 4.5
            assert contrast(TEXTS.get(ink, ink), AREAS.get(fill, fill)) >= 4.5


def test_what_cannot_be_drawn_is_said():
    with pytest.raises(ValueError, match="two dimensions"):
        figure_network(Torus((4, 4, 4)), 8)
