"""Tokens on their way to experts and back: what one exchange takes, by the software that does it.

R tokens of a rank go to k of E experts each. The experts lie on e ranks, L of them in each of N nodes. Wires inside and
outside nodes work at the same time, and the slower ones decide:

    time = max( alpha + outside / NIC, alpha + inside / NVLink )        the NIC with its topology's taper and switches

    dispatcher   outside                    inside                      a token is sent
    all-to-all   R k (N - 1) / N            R k (L - 1) / e             once for each of its experts (lablib/cost)
    deduplicated R (N - 1) v(N)             R e v(e) (L - 1) / L        once to each node, there once to each rank

v(n) is the chance that one of n equal parts of the experts has one of the k that a token visits, with even routing:

    v(n) = 1 - C(E - E / n, k) / C(E, k)

So 8 of 256 experts on 4 nodes need 2.7 messages per token over the NIC instead of 6. DeepEP and HybridEP do so.

A balanced router for benchmarks (`Stack.routing`) sends token i to experts i k to i k + k - 1 (mod E): neighbours,
which one or two parts have. Of parts of s = E / n experts it visits, in the mean over tokens,

    v(n) n = 1 + (n - E / lcm(s, k)) k / E                  so one part, if k divides s

An exchange that hides behind compute (`Stack.hides_dispatch`) still takes cores from it: a share of its hidden seconds.

Legend: all in rows of D numbers; alpha of the wires, with a collective's call.

Source: DeepSeek-V3, 2024, arXiv 2412.19437, sections 3.2.1 (overlap) and 3.2.2 (once to each node, 20 of 132 cores);
"Scalable Training of Mixture-of-Experts Models with Megatron Core", 2026, arXiv 2603.07685 (dispatchers);
NVIDIA-NeMo/Automodel, components/moe/layers.py, 36044ad (`FakeBalancedGate`).
Simplified: routing is even and independent, no groups of nodes are preferred; weights and places of tokens, a few
bytes each, are not counted; a step of one micro-batch hides its exchanges too.
"""

from lablib.cost.arrays import Numbers, ceil_div, gcd, is_array, maximum, np
from lablib.models.transformer import Experts
from lablib.plan.machine import Machine

_CORES = 20  # communicate while the others compute


def exchange_s(
    machine: Machine, mixture: Experts, rows: Numbers, row_bytes: Numbers, expert: Numbers, stride: Numbers
) -> Numbers:
    """Seconds of one exchange of `rows` tokens per rank, over `expert` ranks, `stride` ranks apart."""
    if machine.stack.is_eager or machine.stack.dispatcher == "alltoall":
        return machine.collective_s("all_to_all", rows * mixture.num_active * row_bytes, expert, stride)
    inside = machine.in_node(expert, stride)
    nodes, share = expert / inside, neighbours_share if machine.stack.routing == "contiguous" else visited_share
    outside_rows = rows * (nodes - 1) * share(mixture, nodes)
    inside_rows = rows * expert * share(mixture, expert) * (1 - 1 / inside)
    # Both are all-to-alls: between ranks in the same place of each node, over the topology; and within a node.
    rail = ceil_div(expert, inside)
    outside_bytes, inside_bytes = (
        sent * row_bytes * n / maximum(n - 1, 1) for sent, n in ((outside_rows, rail), (inside_rows, inside))
    )
    outside_s = machine.collective_s("all_to_all", outside_bytes, rail, stride * inside)
    return maximum(outside_s, machine.collective_s("all_to_all", inside_bytes, inside, stride))


def visited_share(mixture: Experts, parts: Numbers) -> Numbers:
    """v(n): the chance that a token visits one of `parts` equal parts of the experts.

    >>> visited_share(Experts(8, 2, 64), 8), visited_share(Experts(8, 8, 64), 4)
    (0.25, 1.0)
    """
    others = mixture.num_experts * (1 - 1 / parts)
    missed = 1.0
    for i in range(mixture.num_active):
        missed = missed * maximum(others - i, 0.0) / (mixture.num_experts - i)
    return 1 - missed


def neighbours_share(mixture: Experts, parts: Numbers) -> Numbers:
    """v(n) of k neighbours: the share of `parts` equal parts of the experts that a token visits.

    >>> neighbours_share(Experts(256, 8, 64), 8), neighbours_share(Experts(256, 8, 64), 64)
    (0.125, 0.03125)
    """
    k, of_part = mixture.num_active, mixture.num_experts // parts
    of_part = of_part.astype(np.int64) if is_array(of_part) else int(of_part)
    # Ends of parts that are no ends of groups of k.
    inside = parts - mixture.num_experts * gcd(of_part, k) / (of_part * k)
    return (1 + inside * k / mixture.num_experts) / parts


def cores_share(machine: Machine) -> float:
    """The share of a device's cores that an exchange takes from concurrent compute."""
    return min(1.0, _CORES / machine.device.num_cores) if machine.device.num_cores else 0.0
