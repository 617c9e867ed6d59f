"""Wiring between nodes, drawn from the record of a topology: fat tree, dragonfly, torus."""

from itertools import combinations, product
from math import cos, dist, pi, sin
from typing import Annotated

import plotly.graph_objects as go

from lablib.figures.plans.topology import DrawnLink, Node, figure_topology
from lablib.hardware import Dragonfly, FatTree, Torus
from lablib.signature import Range, checked
from lablib.text.units import plural


@checked
def figure_network(topology: FatTree | Dragonfly | Torus, num_nodes: Annotated[int, Range(ge=1, le=512)]) -> go.Figure:
    """The first nodes of a network, with the switches and links between them; best of a small one: `FatTree(2, 2)`.

    Raises ValueError: a torus that is not flat, or has not this many nodes.
    """
    if isinstance(topology, FatTree):
        things, links, summary = _fat_tree(topology, num_nodes)
    elif isinstance(topology, Dragonfly):
        things, links, summary = _dragonfly(topology, num_nodes)
    else:
        things, links, summary = _torus(topology, num_nodes)
    title = f"{topology.name[0].upper()}{topology.name[1:]} of {plural(num_nodes, 'nodes')}"
    return figure_topology(things, links, title, summary)


Picture = tuple[list[Node], list[DrawnLink], str]


def _fat_tree(topology: FatTree, num_nodes: int) -> Picture:
    """Nodes at the bottom, then one switch per leaf, one per pod, and the core, each centred above its children."""
    leaf_of = [node // topology.nodes_per_leaf for node in range(num_nodes)]
    pod_of = [leaf // topology.leaves_per_pod for leaf in range(leaf_of[-1] + 1)]
    x_leaf = [_mean([node for node in range(num_nodes) if leaf_of[node] == leaf]) for leaf in range(len(pod_of))]
    x_pod = [_mean([x for x, of in zip(x_leaf, pod_of, strict=True) if of == pod]) for pod in range(pod_of[-1] + 1)]
    things = [Node(str(node), node, 0, "node") for node in range(num_nodes)]
    things += [Node(f"L{leaf}", x, 1, "switch") for leaf, x in enumerate(x_leaf)]
    things += [Node(f"P{pod}", x, 2, "switch") for pod, x in enumerate(x_pod)]
    links = [DrawnLink(str(node), f"L{leaf}", "node to leaf") for node, leaf in enumerate(leaf_of)]
    up = topology.nodes_per_leaf / topology.oversubscription  # wires of a leaf over wires of a node
    links += [DrawnLink(f"L{leaf}", f"P{pod}", "leaf to pod", up) for leaf, pod in enumerate(pod_of)]
    if len(x_pod) > 1:
        things.append(Node("C", _mean(x_pod), 3, "switch"))
        links += [DrawnLink(f"P{pod}", "C", "pod to core", topology.leaves_per_pod * up) for pod in range(len(x_pod))]
    far = topology.hops(0, num_nodes - 1)
    summary = (
        f"{plural(num_nodes, 'nodes')} under {len(x_leaf)} leaf switches (L), in {len(x_pod)} pods (P), "
        "joined by the core (C); a link is thicker the more nodes it serves; "
    )
    return things, links, summary + f"from the first node to the last a message passes {far} switches."


def _dragonfly(topology: Dragonfly, num_nodes: int) -> Picture:
    """Groups on a wide circle, each a small circle of routers with nodes outside; one long link per pair of groups."""
    per_router, per_group = topology.nodes_per_router, topology.routers_per_group
    num_routers = -(-num_nodes // per_router)
    num_groups = -(-num_routers // per_group)
    things: list[Node] = []
    links: list[DrawnLink] = []
    for router in range(num_routers):
        group, place = divmod(router, per_group)
        center, angle = 2 * pi * group / num_groups + pi / 2, 2 * pi * place / per_group + pi / 2
        x, y = 4 * cos(center), 4 * sin(center)
        things.append(Node(f"R{router}", x + 0.9 * cos(angle), y + 0.9 * sin(angle), "router"))
        for node in range(router * per_router, min((router + 1) * per_router, num_nodes)):
            spread = angle + 0.5 * (node - router * per_router - (per_router - 1) / 2)
            things.append(Node(str(node), x + 2.4 * cos(spread), y + 2.4 * sin(spread), "node"))
            links.append(DrawnLink(str(node), f"R{router}", "node to router"))
    groups = [range(g * per_group, min((g + 1) * per_group, num_routers)) for g in range(num_groups)]
    links += [DrawnLink(f"R{a}", f"R{b}", "inside a group") for group in groups for a, b in combinations(group, 2)]
    at = {thing.name: (thing.x, thing.y) for thing in things}
    for a, b in combinations(groups, 2):  # the two routers that face each other
        near, far = min(product(a, b), key=lambda ends: dist(at[f"R{ends[0]}"], at[f"R{ends[1]}"]))
        links.append(DrawnLink(f"R{near}", f"R{far}", "between groups"))
    summary = (
        f"{plural(num_nodes, 'nodes')} on {num_routers} routers (R) in {num_groups} groups: all-to-all inside "
        "a group, one long "
    )
    summary += f"link between each two groups; a message passes at most {topology.hops(0, num_nodes - 1)} routers."
    return things, links, summary


def _torus(topology: Torus, num_nodes: int) -> Picture:
    """A grid with rows and columns that close into rings."""
    if len(topology.shape) != 2:
        raise ValueError(f"only a torus of two dimensions can be drawn: got the shape {topology.shape}; try (4, 4).")
    rows, columns = topology.shape
    places = [topology.coordinates(node) for node in range(num_nodes)]
    things = [Node(str(node), column, -row, "node") for node, (row, column) in enumerate(places)]
    links = []
    for node, (row, column) in enumerate(places):
        right, below = row * columns + (column + 1) % columns, (row + 1) % rows * columns + column
        for other, is_wrapped in ((right, column + 1 == columns), (below, row + 1 == rows)):
            if other < num_nodes and other != node:
                links.append(DrawnLink(str(node), str(other), "wrap-around" if is_wrapped else "neighbours"))
    far = max(topology.hops(0, node) for node in range(num_nodes))
    words = f"{plural(num_nodes, 'nodes')} on a grid that closes at its edges; the farthest is {far} hops away."
    return things, links, words


def _mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values)
