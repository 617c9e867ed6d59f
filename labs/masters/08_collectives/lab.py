# %% [markdown]
# # Lab 08: Collectives
#
# **Question.** What does an all-reduce cost?
#
# Processes that train copies of one model each compute gradients of their own, and all need the sum. One call delivers
# it, and it can take longer than the computing. You will build that call in three ways, price each with a formula of
# two numbers, and find out which one wins where.

# %%
import inspect
from statistics import median

import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import Code

from lablib import LINKS, DeadlockError, Link, Reconciliation, find_cluster, launch, parallel, reconcile
from lablib.calibration import this_machine
from lablib.cost import GroupNetwork, collective_cost
from lablib.course import checks_for
from lablib.figures import (
    figure_collective_cost,
    figure_lines,
    figure_network,
    figure_timeline,
    figure_traffic,
    figure_traffic_matrix,
    format_quantity,
    show,
)
from lablib.hardware import Dragonfly, FatTree, Torus
from lablib.widgets import Choice, IntChoice, LogSlider, explore

check = checks_for("08")
check

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 8  # number of ranks, 2 or more
cluster: str = "dgx-h100"  # the simulated machine
interactive: bool = True  # widgets, or static figures
quick: bool = True  # fewer sizes, a few seconds

# %% [markdown]
# A *rank* is one process of a distributed program; here each has a GPU of its own. A *collective* is a call that all
# ranks make together. *All-reduce* is the collective that sums: every rank gives a tensor, and every rank gets the sum
# of all of them.


# %%
def program():
    x = torch.full((4,), float(dist.get_rank()))
    dist.all_reduce(x)
    return x


here = {"ranks": ranks, "cluster": cluster, "backend": backend}  # where to run
run = launch(program, **here)
print("rank 0 holds", run.values[0].tolist())
print(f"and 0 + 1 + ... + {ranks - 1} is {sum(range(ranks))}")

# %% [markdown]
# ## Prediction
#
# Guess before you compute; you will meet both guesses again. Eight ranks sum a tensor of 8 MB. How much must each rank
# send at the least, as a multiple of its tensor? And of two algorithms, one with few messages and one with small
# messages, up to which size of tensor do few messages win?

# %%
my_times_sent = 7.0  # times the tensor
my_crossing_bytes = 1e3  # bytes
print(f"My guess: each rank sends {my_times_sent} x 8 MB,")
print(f"and few messages win up to {format_quantity(my_crossing_bytes, 'B')}.")

# %% [markdown]
# ## What one message costs
#
# A message of S bytes takes about **T = α + S β** seconds (Hockney, 1994). The *latency* α passes before the first byte
# arrives. Each byte then takes β, so the *bandwidth* is 1/β. NVLink and PCIe join GPUs inside a machine; InfiniBand and
# RoCE join machines.

# %%
links = [LINKS[name] for name in ("nvlink4", "pcie5", "infiniband-ndr", "roce-100")]
sizes = [2.0**k for k in range(4, 31)]
curves, halves = {}, {}
for link in links:
    alpha, beta = link.latency_s, 1 / link.bandwidth_bytes_per_s
    curves[link.name] = [alpha + size * beta for size in sizes]
    halves[f"α/β of {link.name}"] = alpha / beta
show(figure_collective_cost(sizes, curves, halves, title="One message against its size"))

# %% [markdown]
# A message of α/β bytes spends half of its time waiting. Far below that size all messages cost the same; far above it
# they cost their bytes. Everything in this lab is about which of the two you pay.

# %% [markdown]
# ## Build: first a star
#
# Two calls are enough to build any collective: `dist.send` and `dist.recv`, *point to point* from one rank to another.
# The obvious all-reduce is a star: all ranks send to rank 0, which adds up and sends the sum back.


# %%
def star_all_reduce(tensor):
    """Sum `tensor` over all ranks, in place, through rank 0."""
    others = range(1, dist.get_world_size())
    if dist.get_rank() > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    for other in others:
        part = torch.empty_like(tensor)
        dist.recv(part, other)
        tensor += part
    for other in others:
        dist.send(tensor, other)


print(f"{2 * (ranks - 1)} messages pass through rank 0, each of the whole tensor")


# %% [markdown]
# A small program tries out any all-reduce: random numbers in, their sum out. It returns both, so that we can check one
# against the other. Whole numbers add up exactly, so there the sum must be equal and not just close.


# %%
def summed(all_reduce, size, dtype=torch.float32):
    """What this rank put in, and what it got out."""
    x = (100 * torch.randn(size)).to(dtype)
    before = x.clone()
    all_reduce(x)
    return before, x


run = launch(summed, star_all_reduce, 1_000_000, torch.int64, **here)
total = sum(before for before, _ in run.values)
assert all(torch.equal(after, total) for _, after in run.values)
show(figure_traffic(run.traffic, ranks, title="Star: bytes sent by each rank"))

# %% [markdown]
# The values are right, and the work is unfair: all messages pass through rank 0, one after another, while the other
# links are idle. With twice the ranks it takes twice as long. A good all-reduce keeps all links busy all the time.

# %% [markdown]
# ## Build: a ring
#
# Cut the tensor into n *chunks*, one a rank. In each step rank r sends one chunk to rank r + 1, receives another from
# rank r − 1, and adds it to its own. Ranks are counted in a circle, so the last one sends to rank 0.

# %%
n = 4
steps = range(n - 1)
sends = {f"rank {r} sends": [f"chunk {(r - s) % n}" for s in steps] for r in range(n)}
pd.DataFrame(sends, index=[f"step {s}" for s in steps])

# %% [markdown]
# Follow chunk 0: it starts at rank 0, collects the parts of ranks 1, 2 and 3, and is complete at rank 3. This first
# half is called *reduce-scatter*: the sum is there, scattered over the ranks. In the second half, *all-gather*, the
# complete chunks travel round once more, and everybody keeps a copy.

# %% [markdown]
# There is one trap. `dist.send` returns when the receiver has taken the message. If every rank first sends and then
# receives, nobody ever receives: a *deadlock*. Real machines hang; the simulator says who waits for whom, and where.


# %%
def everybody_sends_first():
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = torch.ones(4), torch.empty(4)
    dist.send(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)


try:
    launch(everybody_sends_first, ranks=3, cluster=cluster)
except DeadlockError as error:
    print(error)

# %% [markdown]
# The cure is to hand over both at once, and then to wait for both. That is `exchange` in
# `lablib/parallel/ring_all_reduce.py`. It names ranks by `group_peer`, their place in the group of ranks taking part
# (`None`: all ranks).

# %%
Code(inspect.getsource(parallel.exchange), language="python")

# %% [markdown]
# With it, the first half of the ring takes six lines. Read it beside the table above: in step s, the i-th rank sends
# chunk i − s and receives chunk i − s − 1. The second half you will write yourself, in exercise 1.

# %%
Code(inspect.getsource(parallel.ring_reduce_scatter), language="python")

# %% [markdown]
# ## Run it
#
# Here is the whole ring, as lablib has it, on sizes that n does and does not divide. `tensor_split` cuts 1001 elements
# into chunks that differ by one, and a single element into one chunk and many empty ones.

# %%
for size in (1000 * ranks, 1001, 1):
    run = launch(summed, parallel.ring_all_reduce, size, torch.int64, **here)
    total = sum(before for before, _ in run.values)
    assert all(torch.equal(after, total) for _, after in run.values)
    print(f"{size:>6} elements: all {ranks} ranks hold the sum")

# %% [markdown]
# ### Equal to the last bit
#
# Floats are rounded after every addition, so (a + b) + c and a + (b + c) may differ in the last bit. A sum of floats is
# defined only together with its order. `dist.all_reduce` on the simulator adds in rank order. In the ring, chunk c
# starts at rank c.


# %%
def in_rank_order(parts):
    """((t0 + t1) + t2) + ..."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def in_ring_order(parts):
    """Chunk c: ((tc + tc+1) + tc+2) + ..., once round the ring."""
    n = len(parts)
    chunks = [part.tensor_split(n) for part in parts]
    travelled = [[chunks[(c + k) % n][c] for k in range(n)] for c in range(n)]
    return torch.cat([in_rank_order(pieces) for pieces in travelled])


for c in range(4):
    print(f"chunk {c} on 4 ranks:", " + ".join(f"t{(c + k) % 4}" for k in range(4)))


# %%
def is_equal_to_the_bit(run, order):
    """Does every rank hold, bit for bit, what one device computes in this order?"""
    expected = order([before for before, _ in run.values])
    return all(torch.equal(after, expected) for _, after in run.values)


torchs = launch(summed, dist.all_reduce, 100_000, ranks=ranks, cluster=cluster)
ring = launch(summed, parallel.ring_all_reduce, 100_000, **here)
assert is_equal_to_the_bit(torchs, in_rank_order)
assert is_equal_to_the_bit(ring, in_ring_order)
print("dist.all_reduce equals the rank order, our ring the ring order, to the bit;")
parts = [before for before, _ in torchs.values]
differ = (in_rank_order(parts) != in_ring_order(parts)).float().mean()
print(f"the two orders differ in the last bits of {differ:.0%} of the elements")

# %% [markdown]
# Neither is more right than the other. But a run that must repeat to the bit needs the same order every time, and
# therefore the same algorithm and the same number of ranks. With two ranks nothing differs, since a + b = b + a.

# %% [markdown]
# ### Equal to the formula
#
# The ring takes 2(n − 1) steps, and in each of them all ranks send S/n bytes at once. So each rank sends 2(n − 1)/n S
# bytes, and the ring takes
#
# > **T = 2 (n − 1) (α + S/n β)**
#
# To see this alone, let the simulated GPUs compute in no time.

# %%
machine = find_cluster(cluster).free_compute()
size_bytes = 8_000_000
run = launch(summed, parallel.ring_all_reduce, size_bytes // 4, ranks=ranks, cluster=machine)
slowest = machine.edge(ranks - 1, 0)  # the link that closes the ring
alpha, beta = slowest.latency_s, 1 / slowest.bandwidth_bytes_per_s
formula_s = 2 * (ranks - 1) * (alpha + size_bytes / ranks * beta)
print(f"simulated {run.timeline.makespan_s:.9g} s, formula {formula_s:.9g} s")

# %% [markdown]
# Once more with other sizes and numbers of ranks, against `lablib.cost.collective_cost`. It holds such formulas, and
# takes the slowest link of the ring where the ranks need a second machine. The simulator knows single messages and
# nothing of formulas; yet the two agree to nine digits and more.


# %%
def compare(algorithm, n, size, machine=machine):
    """One row: an all-reduce of `size` floats, message by message and by its formula."""
    all_reduce = getattr(parallel, f"{algorithm}_all_reduce")
    run = launch(summed, all_reduce, size, ranks=n, cluster=machine)
    cost = collective_cost("all_reduce", 4 * size, GroupNetwork(machine, range(n)), algorithm)
    error = abs(run.timeline.makespan_s / cost.time_s - 1)
    assert error < 1e-9 and abs(run.traffic.sent_bytes(0) / cost.sent_bytes[0] - 1) < 1e-9
    return {
        "ranks": n,
        "tensor": format_quantity(4 * size, "B"),
        "simulated": format_quantity(run.timeline.makespan_s, "s", 4),
        "formula": format_quantity(cost.time_s, "s", 4),
        "relative error": f"{error:.0e}",
        "rank 0 sends": f"{cost.sent_bytes[0] / (4 * size):.3g} x tensor",
    }


counts = (2, 3, 5, 8, 16) if quick else (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
rows = [compare("ring", n, n * each) for n in counts for each in (10, 10_000)]
pd.DataFrame(rows).set_index(["ranks", "tensor"])

# %% [markdown]
# The bytes hardly grow with the ranks: 2(n − 1)/n stays below 2. No all-reduce can send less than the ring (Patarasuk
# and Yuan, 2009): n − 1 parts must reach each sum, and each sum must reach n − 1 ranks.

# %%
print(f"your guess for 8 ranks: {my_times_sent} x the tensor")
for n in (8, 1000):
    ring_sends, star_sends = 2 * (n - 1) / n, n - 1
    print(f"{n:>4} ranks: ring {ring_sends:.4g} x from each, star {star_sends} x from rank 0")

# %% [markdown]
# ## Picture
#
# Below is the 8 MB ring as it happened. Each rank has a lane for what it sends and one for what it receives, and both
# are full from start to end: 2(n − 1) messages each. Its compute lane is empty, since computing takes no time here.

# %%
title = f"Ring all-reduce of 8 MB, {ranks} ranks"
show(figure_timeline(run.timeline, ranks=range(min(ranks, 4)), title=title))

# %% [markdown]
# ## A tree
#
# A tiny tensor costs almost only latency, and the ring pays it 2(n − 1) times. A *tree* has fewer rounds: ranks pair
# up, one of each pair sends its sum to the other and is done. After ⌈log₂ n⌉ rounds (rounded up) rank 0 holds the sum.
# The same rounds backwards bring it to all.

# %%
n = 6
for k in range((n - 1).bit_length()):
    pairs = [(i + 2**k, i) for i in range(0, n - 2**k, 2 ** (k + 1))]
    print(f"round {k}: " + ", ".join(f"{high} sends to {low}" for high, low in pairs))
print("then the same pairs backwards, from rank 0 to everybody")


# %% [markdown]
# Every message is the whole tensor, so the tree takes
#
# > **T = 2 ⌈log₂ n⌉ (α + S β)**
#
# The order of the sum is pairwise: ((t0 + t1) + (t2 + t3)) + (t4 + t5) for six ranks. Both are checked below, to the
# bit and to nine digits.


# %%
def in_tree_order(parts):
    """((t0 + t1) + (t2 + t3)) + ..."""
    while len(parts) > 1:
        parts = [in_rank_order(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


tree = launch(summed, parallel.tree_all_reduce, 100_000, **here)
assert is_equal_to_the_bit(tree, in_tree_order)
rows = [compare("tree", n, n * each) for n in counts for each in (10, 10_000)]
pd.DataFrame(rows).set_index(["ranks", "tensor"])

# %% [markdown]
# Below are both at 1 kB, where the tree is meant to win. Count the messages of rank 0 in each. Notice, too, how long
# the other ranks of the tree have nothing to do: that is why it is no match for the ring on large tensors.

# %%
for all_reduce in (parallel.ring_all_reduce, parallel.tree_all_reduce):
    timeline = launch(summed, all_reduce, 250, ranks=ranks, cluster=machine).timeline
    title = f"{all_reduce.__name__} of 1 kB: {format_quantity(timeline.makespan_s, 's')}"
    show(figure_timeline(timeline, ranks=range(min(ranks, 4)), title=title))

# %% [markdown]
# ## Where they cross
#
# So few messages win for small tensors, and small messages for large ones. Somewhere in between the two take the same
# time. Without algebra that size is found by *bisection*: halve the interval again and again, and keep the half in
# which the winner changes.


# %%
def times(net, size_bytes):
    """Seconds of ring and tree."""
    names = ("ring", "tree")
    return [collective_cost("all_reduce", size_bytes, net, name).time_s for name in names]


def crossing_bytes(net):
    """The size at which ring and tree take the same time; 0 if the tree never wins."""
    low, high = 1.0, 1e12
    for _ in range(60):
        middle = (low * high) ** 0.5
        ring, tree = times(net, middle)
        low, high = (middle, high) if tree < ring else (low, middle)
    return low if low > 1.0 else 0.0


net = GroupNetwork(machine, range(ranks))
print(f"{ranks} ranks of {cluster} cross at {format_quantity(crossing_bytes(net), 'B')}")
print(f"your guess for 8 ranks was {format_quantity(my_crossing_bytes, 'B')}")


# %%
def cost_curves(net):
    """Sizes, seconds of each algorithm, and the crossing: what the figure wants."""
    sizes = [4.0 * 10 ** (k / 4) for k in range(33)]
    curves = {}
    for name in ("ring", "tree", "hierarchical") if net.is_hierarchical else ("ring", "tree"):
        curves[name] = [collective_cost("all_reduce", s, net, name).time_s for s in sizes]
    crossing = crossing_bytes(net)
    return sizes, curves, {"tree = ring": crossing} if crossing else {}


show(figure_collective_cost(*cost_curves(net), title=f"All-reduce on {ranks} ranks, {cluster}"))

# %% [markdown]
# The crossing is in proportion to α/β of the link. A link with more latency, or with more bandwidth, makes few messages
# the better choice for longer. The last column is the same for all links: only the number of ranks is left in it.

# %%
rows = []
for n in (3, 4, 8, 64):
    for link in links:
        one_node = machine.but(intra=link, devices_per_node=n)
        size = crossing_bytes(GroupNetwork(one_node, range(n)))
        half = link.latency_s * link.bandwidth_bytes_per_s
        words = (format_quantity(half, "B"), format_quantity(size, "B"), f"{size / half:.3f}")
        rows.append((n, link.name, *words))
columns = ["ranks", "link", "α/β", "crossing", "crossing / (α/β)"]
pd.DataFrame(rows, columns=columns).set_index(["ranks", "link"])

# %% [markdown]
# What the last column is as a formula of n, you will find in exercise 3. On three ranks the tree has as many rounds as
# the ring has steps (four), and bigger messages: it never wins, so the crossing is 0.

# %% [markdown]
# ## Inside a node, and between nodes
#
# A *node* is one machine with several GPUs. Inside it links are fast; to leave it, bytes pass a network card, or *NIC*,
# some ten times slower. A ring over two nodes crosses between them with almost all of its bytes, twice, through one NIC
# of each.

# %% [markdown]
# *Hierarchical* all-reduce has three phases. Reduce-scatter in each node: each of its L ranks now holds a finished
# chunk of the node's sum. All-reduce of that chunk along the *rails*, the ranks with the same place on each node.
# All-gather in each node.

# %%
nodes = machine.but(devices_per_node=ranks)  # two nodes, each with `ranks` ranks
print("nodes:", [list(range(first, first + ranks)) for first in (0, ranks)])
print("rails:", [[place, place + ranks] for place in range(ranks)])


# %%
def in_hierarchical_order(parts):
    """Ring order in each node, then each chunk in ring order over the nodes."""
    sums = []
    for first in range(0, len(parts), ranks):
        node = parts[first : first + ranks]
        sums.append(in_ring_order(node).tensor_split(ranks))
    return torch.cat([in_ring_order([chunks[c] for chunks in sums]) for c in range(ranks)])


on_both = {"ranks": 2 * ranks, "cluster": nodes}
run = launch(summed, parallel.hierarchical_all_reduce, 100_000, **on_both)
assert is_equal_to_the_bit(run, in_hierarchical_order)
rows = [compare("hierarchical", 2 * ranks, 2 * ranks * k, nodes) for k in (10, 1000, 10_000)]
pd.DataFrame(rows).set_index(["ranks", "tensor"])


# %% [markdown]
# It equals its stated order to the bit, and its formula to nine digits. What is gained? Count the bytes that pass the
# busiest NIC. The hierarchy uses all NICs of a node at once, where the flat ring uses one and leaves the others idle.


# %%
def through_nics(run, machine):
    """Bytes that each rank sends to another node."""
    sent = [0.0] * run.ranks
    for message in run.traffic.transfers:
        source, target = message.ranks
        if machine.node(source) != machine.node(target):
            sent[source] += message.size_bytes
    return sent


rows, traffics = [], {}
for name in ("ring", "tree", "hierarchical"):
    run = launch(summed, getattr(parallel, f"{name}_all_reduce"), 400_000, **on_both)
    traffics[name] = run.traffic
    busiest_bytes, takes_s = max(through_nics(run, nodes)), run.timeline.makespan_s
    rows.append((name, format_quantity(busiest_bytes, "B"), format_quantity(takes_s, "s")))
pd.DataFrame(rows, columns=["algorithm", "busiest NIC sends", "takes"]).set_index("algorithm")

# %% [markdown]
# Who sends to whom? In a *traffic matrix* the row sends to the column, and the lines stand between the nodes. Sketch it
# before you look. How many squares are filled in each row of the ring? In the rows of ranks 0 and 1 of the tree? And
# which squares of the hierarchy lie across the lines?

# %%
for name, traffic in traffics.items():
    title = f"{name}: bytes between ranks"
    show(figure_traffic_matrix(traffic, 2 * ranks, devices_per_node=ranks, title=title))

# %% [markdown]
# The ring fills one square a row. The tree's squares are the whole tensor each, and unequally spread: rank 0 sends to a
# partner in every round, an odd rank only to its neighbour. The hierarchy is a ring in each node, and a diagonal of
# small squares across: every rank has a partner there, and no NIC carries the tensor for all.

# %% [markdown]
# ## Topology: what the wires look like
#
# Between nodes there are switches. How they are wired is the *topology*. It decides how many switches a message passes
# (each adds to α) and how much bandwidth is left when all nodes talk at once (which divides 1/β).

# %% [markdown]
# A *fat tree* has levels of switches. Cut it into two halves: if all nodes of one can talk to the other at full speed,
# it has full *bisection bandwidth*. *Oversubscribed* 4 : 1 means that above the first switch there are wires for a
# quarter of it.

# %%
show(figure_network(FatTree(nodes_per_leaf=2, leaves_per_pod=2), 8))

# %% [markdown]
# A *dragonfly* joins routers all-to-all into groups, and groups by long cables, one for each pair of groups. Few
# switches are passed, but many messages share the long cables.

# %%
show(figure_network(Dragonfly(nodes_per_router=1, routers_per_group=3), 9))

# %% [markdown]
# A *torus* has no switches: every node is wired to its neighbours, and rows and columns close into rings. Neighbours
# have a wire of their own. Messages to others pass through nodes in between and share their wires. TPU pods are built
# in this way, in three dimensions.

# %%
show(figure_network(Torus((4, 4)), 16))

# %% [markdown]
# First the links, with eight ranks each. NVLink and PCIe join eight GPUs of one node; InfiniBand and RoCE (the same
# protocol on Ethernet) join eight nodes of one GPU. Watch the crossing follow α/β, to which a switch adds a little, and
# the 64 MB ring follow the bandwidth.


# %%
def row(name, machine, members):
    """Crossing and times of one network."""
    net = GroupNetwork(machine, members)
    ring_s, tree_s = times(net, 64e6)
    return {
        "network": name,
        "crossing": format_quantity(crossing_bytes(net), "B"),
        "64 MB by ring": format_quantity(ring_s, "s"),
        "64 MB by tree": format_quantity(tree_s, "s"),
    }


networks = {}
for name in ("nvlink4", "pcie5"):
    networks[LINKS[name].name] = machine.but(devices_per_node=8, intra=LINKS[name])
for name in ("infiniband-ndr", "infiniband-hdr", "roce-400", "roce-100"):
    one_switch = machine.but(devices_per_node=1, inter=LINKS[name], topology=FatTree())
    networks[LINKS[name].name] = one_switch
rows = [row(name, one, range(8)) for name, one in networks.items()]
pd.DataFrame(rows).set_index("network")

# %% [markdown]
# Now the wiring: 64 nodes of one GPU with the same InfiniBand NIC. A ring need not follow the numbers of the nodes. On
# the torus, a ring that winds along the wires meets neighbours only; in numerical order some messages take two hops.

# %%
ndr = machine.but(devices_per_node=1, inter=LINKS["infiniband-ndr"])
wirings = {
    "fat tree": FatTree(),
    "fat tree, 4 : 1": FatTree(oversubscription=4.0),
    "dragonfly": Dragonfly(),
    "torus 4 x 4 x 4": Torus((4, 4, 4)),
}
wound, there, back = [], [0, 1, 2, 3], [3, 2, 1, 0]
for z in there:
    for y in back if z % 2 else there:
        wound += [16 * z + 4 * y + x for x in (back if (y + z) % 2 else there)]
rows = [row(name, ndr.but(topology=wiring), range(64)) for name, wiring in wirings.items()]
rows.append(row("torus, along the wires", ndr.but(topology=Torus((4, 4, 4))), wound))
pd.DataFrame(rows).set_index("network")

# %% [markdown]
# A ring goes at the pace of its slowest link, in every step. A tree meets thin wires only in the rounds that use them,
# but with the whole tensor. So the crossing moves down where several rounds go far (4 : 1, torus), and hardly where one
# does (dragonfly). Below, each line passes 1 at its crossing.

# %%
joined = {f"8 x {name}": networks[name] for name in ("NVLink 4", "PCIe 5 x16")}
joined |= {f"64 x {name}": ndr.but(topology=wiring) for name, wiring in wirings.items()}
sizes, ratios = [10_000 * 10 ** (k / 8) for k in range(33)], {}
for name, one in joined.items():
    net = GroupNetwork(one, range(int(name.split()[0])))
    ratios[name] = [ring_s / tree_s for ring_s, tree_s in (times(net, size) for size in sizes)]
labels = {"x_label": "message size", "x_unit": "B", "y_label": "time of ring / time of tree"}
title = "Above 1 the tree is faster, below 1 the ring"
show(figure_lines(sizes, ratios, **labels, log_x=True, log_y=True, title=title))

# %% [markdown]
# ## Reconcile: predicted and measured
#
# Now the same program on real processes of this machine. First the simulated `laptop` cluster stands for them, with a
# latency and a bandwidth from the catalogue. Three all-reduces in a row, so that starting up counts less. `reconcile`
# predicts them, and measures several runs.

# %%
real = "gloo" if backend == "sim" else backend  # gloo: processes on this CPU
real_ranks, real_cluster = min(ranks, 4), "laptop" if real == "gloo" else cluster
there = {"ranks": real_ranks, "backend": real}


def three_times(all_reduce, size):
    x = torch.ones(size)
    for _ in range(3):
        all_reduce(x)
    return x[0].item()


ring, size, repeats = parallel.ring_all_reduce, 250_000, 3 if quick else 9
by_catalogue = reconcile(three_times, ring, size, **there, cluster=real_cluster, repeats=repeats)
assert by_catalogue.predicted.values == by_catalogue.measured.values == [float(real_ranks**3)] * real_ranks
show(by_catalogue.figure())

# %% [markdown]
# The values agree; the times need not (blue bars are the additions). The catalogue's α and 1/β are those of no machine
# in particular. Here processes may outnumber cores, wait for each other to be woken, and share one memory. None of that
# is in α + S β. What remains is to measure both numbers here.


# %%
def measure_s(all_reduce, size):
    """Measured seconds of three all-reduces, from the first span of any rank: the median of several runs."""
    runs = [launch(three_times, all_reduce, size, **there) for _ in range(repeats)]
    return median(run.timeline.without("setup").makespan_s for run in runs)


steps = 3 * 2 * (real_ranks - 1)  # messages one after another in three rings
few, many = 1000 * real_ranks, 500_000 * real_ranks  # messages of 4 kB and of 2 MB
few_s, many_s = measure_s(ring, few) / steps, measure_s(ring, many) / steps
beta = max(many_s - few_s, 1e-9) / (4 * (many - few) / real_ranks)
fitted = Link("fitted", latency_s=few_s, bandwidth_bytes_per_s=1 / beta)
print(f"α {format_quantity(fitted.latency_s, 's')}, 1/β {format_quantity(fitted.bandwidth_bytes_per_s, 'B/s')}")

# %% [markdown]
# Two numbers, fitted to rings of two sizes. To *calibrate* is to do the same with more care: many operations and
# messages of many sizes, while all ranks are busy. lablib does it here in half a minute or a bit more, once: the
# result is kept. How far from yours will its numbers be?

# %%
calibrated = this_machine(**there)
machines = {
    "catalogue": find_cluster(real_cluster),
    "your fit": find_cluster(real_cluster).but(name="fitted", intra=fitted, inter=fitted),
    "calibration": calibrated,
}
links_here = [one.intra for one in machines.values()]
rows = [
    (format_quantity(link.latency_s, "s"), format_quantity(link.bandwidth_bytes_per_s, "B/s")) for link in links_here
]
pd.DataFrame(rows, columns=["α", "1/β"], index=list(machines))

# %% [markdown]
# The test is to predict what was not measured: a ring of a size in between, and a tree. An error of −50% means that the
# prediction took half of the measured time. *Noise* is half the spread of the measured runs over their median: an error
# smaller than it says nothing.

# %%
comparisons, rows = {}, []
for all_reduce in (parallel.ring_all_reduce, parallel.tree_all_reduce):
    name = all_reduce.__name__
    comparisons[name] = reconcile(three_times, all_reduce, size, **there, cluster=calibrated, repeats=repeats)
    for numbers, one in machines.items():
        run = launch(three_times, all_reduce, size, ranks=real_ranks, cluster=one)
        total = Reconciliation.of(run, comparisons[name].repeats).table().set_index("name").loc["makespan"]
        words = [format_quantity(total[side], "s") for side in ("predicted_s", "measured_s")]
        rows.append((name, numbers, *words, f"{total['error_pct']:+.0f}%", f"{total['noise_pct']:.0f}%"))
columns = ["all-reduce", "numbers from", "predicted", "measured", "error", "noise"]
pd.DataFrame(rows, columns=columns).set_index(["all-reduce", "numbers from"])

# %% [markdown]
# Where does the rest come from? Here is the tree, with the calibrated machine above and the real one below. Compare the
# rows: what is predicted of a message, and what of *waiting*, the time in which one rank has called and its partner has
# not?

# %%
show(comparisons["tree_all_reduce"].figure())

# %%
parts = comparisons["tree_all_reduce"].table().set_index("name")
for side in ("predicted", "measured"):
    parts[f"{side} (ms)"] = 1e3 * parts[f"{side}_s"]
parts["error (%)"], parts["noise (%)"] = parts["error_pct"], parts["noise_pct"]
parts[["predicted (ms)", "measured (ms)", "error (%)", "noise (%)"]].round(6).map("{:.3g}".format)

# %% [markdown]
# **What explains the errors?** In a ring all processes work at once and compete for the cores; in a tree most of them
# wait, and each message is quicker. One α stands for both. With fewer cores than ranks, α is mostly the time until a
# process is woken, and gloo's own threads have to be woken too.

# %% [markdown]
# Real ranks are also held up by each other and by whatever else runs on this machine, at another rate while it was
# calibrated than now. That is in none of the three pairs of numbers. A fit holds for what it was fitted to, in the
# place and hour in which it was made.

# %% [markdown]
# ## Explore
#
# Move latency, bandwidth, ranks and wiring, and watch the crossing. Can you find a network on which the tree is better
# even at 10 MB? And one on which the hierarchy is no better than the ring?


# %%
def network(num_ranks, per_node, latency_s, bandwidth, wiring):
    """What the figure needs, for nodes of `per_node` ranks joined by a link of your own."""
    nodes = machine.but(devices_per_node=per_node, intra=LINKS["nvlink4"])
    yours = nodes.but(inter=Link("yours", latency_s, bandwidth), topology=wirings[wiring])
    return cost_curves(GroupNetwork(yours, range(num_ranks)))


explore(
    network,
    lambda found: figure_collective_cost(*found, title="All-reduce on your network"),
    [
        IntChoice("num_ranks", "Ranks", (2, 4, 8, 16, 32, 64), 16),
        IntChoice("per_node", "Ranks on a node (NVLink inside)", (1, 2, 4, 8), 1),
        LogSlider("latency_s", "Network latency α", 1e-6, 1e-3, 4e-6, "s"),
        LogSlider("bandwidth", "Network bandwidth 1/β", 1e9, 1e12, 50e9, "B/s"),
        Choice("wiring", "Wiring between nodes", tuple(wirings), "fat tree"),
    ],
    interactive=interactive,
    examples=[{"latency_s": 4e-5}, {"wiring": "dragonfly", "num_ranks": 64}, {"per_node": 8}],
)

# %% [markdown]
# ## Exercise 1: the ring
#
# Write the whole ring: reduce-scatter, then all-gather. It must work for any number of ranks, any size and any group,
# change `tensor` *in place* (itself, not a copy), send 2(n − 1)/n of it, and take 2(n − 1) steps. `parallel.exchange`
# is yours to use.
#
# Stuck? Write `check.ring_all_reduce.hint()` into a cell of your own.


# %% tags=["exercise"]
def ring_all_reduce(tensor, group=None):
    """Sum `tensor` (contiguous) over the ranks of `group`, in place."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    ### BEGIN SOLUTION
    chunks = tensor.view(-1).tensor_split(n)
    left, right = (rank - 1) % n, (rank + 1) % n
    for step in range(n - 1):  # reduce-scatter
        mine = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(mine)
        parallel.exchange(chunks[(rank - step) % n], right, incoming, left, group)
        mine += incoming
    for step in range(n - 1):  # all-gather
        outgoing, incoming = chunks[(rank - step + 1) % n], chunks[(rank - step) % n]
        parallel.exchange(outgoing, right, incoming, left, group)
    ### END SOLUTION


# %% tags=["check"] points=3
check.ring_all_reduce(ring_all_reduce)

# %% [markdown]
# ## Exercise 2: the tree
#
# Write the tree: up to rank 0, and down again. A small message on n ranks must take no more than 2 ⌈log₂ n⌉ rounds,
# whatever n is, and each of the n − 1 links of the tree may be used only twice: once up, once down.


# %% tags=["exercise"]
def tree_all_reduce(tensor, group=None):
    """Sum `tensor` (contiguous) over the ranks of `group`, in place.

    Name the other rank by its place in the group: `dist.send(x, group_dst=0, group=group)`,
    `dist.recv(y, group_src=0, group=group)`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    ### BEGIN SOLUTION
    strides = [2**k for k in range((n - 1).bit_length())]
    incoming = torch.empty_like(tensor)
    for stride in strides:  # up
        if rank % (2 * stride) == stride:
            dist.send(tensor, group_dst=rank - stride, group=group)
        elif rank % (2 * stride) == 0 and rank + stride < n:
            dist.recv(incoming, group_src=rank + stride, group=group)
            tensor += incoming
    for stride in reversed(strides):  # down
        if rank % (2 * stride) == stride:
            dist.recv(tensor, group_src=rank - stride, group=group)
        elif rank % (2 * stride) == 0 and rank + stride < n:
            dist.send(tensor, group_dst=rank + stride, group=group)
    ### END SOLUTION


# %% tags=["check"] points=3
check.tree_all_reduce(tree_all_reduce)

# %% [markdown]
# ## Exercise 3: the crossing as a formula
#
# Set both formulas equal and solve for S, the size at which
# 2 (n − 1) (α + S/n β) = 2 ⌈log₂ n⌉ (α + S β).
# Careful: your function gets the bandwidth, which is 1/β. Where the tree never wins, the crossing is 0.


# %% tags=["exercise"]
def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
    """The size at which ring and tree take the same time, on n equal links (n is 2 or more)."""
    ### BEGIN SOLUTION
    rounds = (n - 1).bit_length()  # log2 n, rounded up
    return (n - 1 - rounds) * latency_s * bandwidth_bytes_per_s / (rounds - (n - 1) / n)
    ### END SOLUTION


# %% tags=["check"] points=2
check.crossing_size_bytes(crossing_size_bytes)

# %% [markdown]
# ## Exercise 4: the hierarchy
#
# Write the three phases for nodes of `ranks_per_node` ranks each. The network is the thin part: no NIC may send more
# than 2(N − 1)/N · S/L bytes, for N nodes of L ranks. lablib's two halves of a ring are yours to use; both take the
# list of ranks that form the ring.


# %% tags=["exercise"]
def hierarchical_all_reduce(tensor, ranks_per_node):
    """Sum `tensor` (contiguous) over all ranks, in place.

    `parallel.ring_reduce_scatter(chunks, members)` leaves the i-th member with the sum of
    chunk i + 1 (mod n); `parallel.ring_all_gather(chunks, members)` starts from there.
    Both need as many chunks as members.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    place = rank % ranks_per_node
    node = range(rank - place, rank - place + ranks_per_node)
    rail = range(place, n, ranks_per_node)
    chunks = tensor.view(-1).tensor_split(ranks_per_node)
    parallel.ring_reduce_scatter(chunks, node)
    pieces = chunks[(place + 1) % ranks_per_node].tensor_split(len(rail))
    parallel.ring_reduce_scatter(pieces, rail)
    parallel.ring_all_gather(pieces, rail)
    parallel.ring_all_gather(chunks, node)
    ### END SOLUTION


# %% tags=["check"] points=3
check.hierarchical_all_reduce(hierarchical_all_reduce)

# %% [markdown]
# ## Summary
#
# * A message costs α + S β; below α/β bytes you pay for latency, above for bytes.
# * A ring sends the fewest bytes, 2(n − 1)/n S a rank. A tree takes the fewest rounds, 2 ⌈log₂ n⌉.
# * They cross at a size in proportion to α/β. Between nodes, reduce inside first.
# * A sum of floats is defined to the bit only with its order.
#
# A library asks such formulas for every call, and takes the fastest:

# %%
two_nodes, rows = GroupNetwork(nodes, range(2 * ranks)), []
for size in (1e3, 1e5, 1e7, 1e9):
    cost = collective_cost("all_reduce", size, two_nodes, "auto")
    rows.append((format_quantity(size, "B"), cost.algorithm, format_quantity(cost.time_s, "s")))
pd.DataFrame(rows, columns=["tensor", "fastest on two nodes", "takes"]).set_index("tensor")

# %% [markdown]
# ## Sources
#
# * R. Hockney, *The communication challenge for MPP*, Parallel Computing 20, 1994: α and β.
# * R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of collective communication operations in MPICH*, IJHPCA 19(1),
#   2005, doi:10.1177/1094342005051521: rings, trees, and when to use which.
# * P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, JPDC 69(2), 2009,
#   doi:10.1016/j.jpdc.2008.09.002: the ring sends the least.
# * M. Cho et al., *BlueConnect*, MLSys 2019: all-reduce on a hierarchy of links.
# * C. Leiserson, *Fat-trees*, IEEE Transactions on Computers C-34(10), 1985.
# * J. Kim et al., *Technology-driven, highly-scalable dragonfly topology*, ISCA 2008.
# * N. Jouppi et al., *TPU v4*, ISCA 2023, arXiv:2304.01433: a torus of three dimensions.
# * NVIDIA NCCL, `src/graph/tuning.cc`: the latencies used here, and how a library picks ring or tree.
