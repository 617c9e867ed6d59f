# %% [markdown]
# # Lab 08: Collectives
#
# **Question.** What does an all-reduce cost?
#
# Processes that train copies of one model each compute different gradients, and all need the sum. One call computes it,
# which can take longer than computing the gradients. You will build that call twice, predict its time, and find out
# which way is faster when.
#
# **Prerequisites.** Lab 00. **Time.** 59 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab08

lab08.show(lab08.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 8  # number of ranks, 2 or more
cluster: str = "dgx-h100"  # the simulated machine
interactive: bool = True  # widgets, or static figures
quick: bool = True  # fewer sizes, a few seconds

# %% [markdown] minutes=4
# ## The task
#
# A *rank* is one process of a distributed program, with its own GPU. A *collective* is a call that all ranks make
# together. *All-reduce* is the collective that leaves the sum of all ranks' tensors on every rank. Eight ranks have a
# tensor of 8 MB each. The simplest way: the other seven send theirs to rank 0, which adds them up and sends the sum
# back. How many MB are sent in total? And how many with the best algorithm, if ranks do the adding?

# %%
my_guess_mb = lab08.guess("sent in total, through rank 0", None, interactive, "MB")
my_best_mb = lab08.guess("sent in total, best algorithm", None, interactive, "MB")

# %%
import pandas as pd
import torch
import torch.distributed as dist

from lablib import launch, parallel, reconcile

assert ranks >= 2, f"ranks must be 2 or more, a single rank has no peer: got {ranks}; try 8"
check = lab08.checks_for("08")
check

# %% [markdown]
# `launch` runs a function once on each rank. Here ranks and GPUs are simulated: messages and sums are real, and the
# seconds are computed from the data of a machine, the `cluster`.


# %%
def digits(all_reduce):
    """Rank r contributes 10^r, so that each decimal digit of the sum belongs to one rank."""
    x = torch.full((6,), 10 ** dist.get_rank())
    all_reduce(x)
    return x


summed_digits = launch(digits, dist.all_reduce, ranks=4, cluster=cluster).values
print("ranks 0 and 3 hold", summed_digits[0].tolist(), "and", summed_digits[3].tolist())

# %% [markdown]
# 1111 = 1 + 10 + 100 + 1000: it contains the part of each of the four ranks once. Read it from the right, where rank 0
# has its digit: a digit that is 0 or absent means that the rank is missing; a 2 means that it was added twice.

# %% [markdown] minutes=3
# ## The cost of one message
#
# A *link* carries messages from one GPU to another. A message of S bytes takes about **T = α + S β** seconds (Hockney,
# 1994). The *latency* α passes before the first byte arrives. Each byte then takes β, so the *bandwidth* is 1/β.
# NVLink, inside a machine, has α = 1.9 µs and 1/β = 450 GB/s. (InfiniBand joins machines; NDR is its
# generation of 400 Gb/s.) At which size is half of the time latency?

# %%
my_guess_half = lab08.guess("size at which half is latency", None, interactive, "B")


# %%
def message_s(link, size_bytes):
    """T = α + S β."""
    return link.latency_s + size_bytes / link.bandwidth_bytes_per_s


nvlink, infiniband = lab08.LINKS["nvlink4"], lab08.LINKS["infiniband-ndr"]
lab08.show_message_cost(message_s, nvlink, infiniband)
my_guess_half.reveal(nvlink.latency_s * nvlink.bandwidth_bytes_per_s)

# %% [markdown]
# At α/β bytes (Hockney's n½) a message spends half of its
# time on latency. Far below that size all messages cost the same, α; far above it the bytes dominate, S β. This lab is
# about which of the two you pay.

# %% [markdown] minutes=5
# ## A star
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


here = {"ranks": ranks, "cluster": cluster, "backend": backend}  # where to run
star_run = launch(lab08.summed, star_all_reduce, 2_000_000, **here)
sent_mb = star_run.traffic.sent_bytes() / 1e6
print(f"{sent_mb:g} MB; every rank holds the sum: {lab08.holds_the_sum(star_run.values)}")
my_guess_mb.reveal(2 * (8 - 1) * 8)  # 8 ranks and 8 MB: 7 tensors to rank 0, and 7 back
lab08.show(lab08.figure_traffic(star_run.traffic, ranks, title="Star: bytes sent by each rank"))

# %% [markdown]
# The load is unequal: all 2(n − 1) messages pass through rank 0, one after another, while the other links are idle.
# With twice the ranks rank 0 handles about twice the messages. A good all-reduce keeps all links busy all the time.

# %% [markdown] minutes=12
# ## A ring
#
# Cut the tensor into n *chunks*, one per rank. In each step rank r sends one chunk to rank r + 1, receives another from
# rank r − 1, and adds it to its own. Ranks and chunks are counted *mod n*, as on a clock: after n − 1 comes 0. Here are
# the steps of four ranks. Follow chunk 0: which rank has its complete sum?

# %%
sends = {f"rank {r} sends": [f"chunk {(r - s) % 4}" for s in range(3)] for r in range(4)}
pd.DataFrame(sends, index=["step 0", "step 1", "step 2"])

# %%
my_rank = lab08.guess("rank with the sum of chunk 0 (0 to 3)", None, interactive, "count")


# %%
def scattered():
    x = torch.full((4,), 10 ** dist.get_rank())  # four chunks of one number
    parallel.ring_reduce_scatter(x.tensor_split(4), range(4), None)
    return x.tolist()


chunks = pd.DataFrame(launch(scattered, ranks=4, cluster=cluster).values)
my_rank.reveal(chunks[0].idxmax())
chunks.add_prefix("chunk ").rename_axis("rank")

# %% [markdown]
# The parts of ranks 1, 2 and 3 were added to chunk 0 on its way. This first half is called *reduce-scatter*: it leaves
# the sum scattered over the ranks, chunk r + 1 (mod n) at rank r. In the second half, *all-gather*, the complete chunks
# go round once more, and every rank keeps a copy.

# %% [markdown]
# There is one trap. `dist.send` waits until its receiver calls `recv`. If every rank first sends and then receives,
# no rank ever receives: a *deadlock*. The remedy is to start both messages together, and then to wait for both.
# `parallel.exchange(outgoing, to, incoming, source, group)` does this. A *group* is the set of ranks that take part
# (`None`: all), and *to* and *source* are places in it.

# %% [markdown]
# With it, the first half of the ring is one short loop. Compare it with the table above: in step s, the i-th rank
# sends chunk i − s, receives chunk i − s − 1 and adds it. `ring` lists the ranks in the order of the ring.

# %%
lab08.show_source(parallel.ring_reduce_scatter)

# %% [markdown]
# **Exercise 1.** Write the ring: call `parallel.ring_reduce_scatter`, with `range(n)` as its `ring`; then write the
# all-gather with `parallel.exchange`. The sum must be in `tensor` itself (*in place*) after 2(n − 1) steps of one chunk
# each, for any size, any number of ranks, and any group (pass `group` on). `tensor_split` cuts into *views*: writing to
# a chunk writes to the tensor. Stuck? `check.ring_all_reduce.hint()`.


# %% tags=["exercise"]
def ring_all_reduce(tensor, group=None):
    """Sum `tensor` (contiguous) over the ranks of `group`, in place."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(n)
    ### BEGIN SOLUTION
    parallel.ring_reduce_scatter(chunks, range(n), group)
    for step in range(n - 1):
        outgoing, incoming = chunks[(rank - step + 1) % n], chunks[(rank - step) % n]
        parallel.exchange(outgoing, (rank + 1) % n, incoming, (rank - 1) % n, group)
    ### END SOLUTION


# %%
# Each of four ranks should return six times 1111.
lab08.try_out(digits, ring_all_reduce, ranks=4, cluster=cluster)

# %% tags=["check"] points=3
check.ring_all_reduce(ring_all_reduce)

# %%
lab08.show_source(parallel.ring_all_gather, after=check.ring_all_reduce)

# %% [markdown] minutes=5
# ## The cost of the ring
#
# The ring takes 2(n − 1) steps, and in each of them all ranks send S/n bytes at once. So it takes
#
# > **T = 2 (n − 1) (α + S/n β)**
#
# How many µs are 8 MB on 8 ranks with NVLink? The simulator computes times of single messages and does not use this
# formula. Here the simulated GPUs compute in no time, and all of them are in one machine.

# %%
my_us = lab08.guess("8 MB on 8 ranks (α 1.9 µs, 1/β 450 GB/s)", None, interactive, "µs")


# %%
def ring_s(n, link, size_bytes):
    """T = 2 (n - 1) (α + S/n β)."""
    return 2 * (n - 1) * message_s(link, size_bytes / n)


machine = lab08.find_cluster(cluster).free_compute().replace(devices_per_node=max(64, ranks))
program = lab08.summed, parallel.ring_all_reduce, 250_000 * ranks  # 1 MB per rank
ring = launch(*program, ranks=ranks, cluster=machine).timeline
formula_us = 1e6 * ring_s(ranks, machine.intra, 1_000_000 * ranks)
print(f"{ranks} MB, simulated: {1e6 * ring.makespan_s:.9g} µs, formula: {formula_us:.9g} µs")
my_us.reveal(1e6 * ring_s(8, nvlink, 8e6))
lab08.show(lab08.figure_timeline(ring, ranks=[0, 1], title="Ring all-reduce: two of the ranks"))

# %% [markdown]
# Each rank has a lane for sending and one for receiving (in the *world*, the group of all ranks), and both are full
# from start to end. The cell above and all later ones run lablib's own ring, whether you have solved the exercise or
# not. Are fewer bytes possible than the star's?

# %%
my_best_mb.reveal(2 * (8 - 1) * 8)
for n in (8, 1000):
    total_mb, each_mb, first_mb = 2 * (n - 1) * 8, f"{2 * (n - 1) * 8 / n:.4g}", (n - 1) * 8
    print(f"{n} ranks: {total_mb} MB; ring: {each_mb} from each; star: {first_mb} from rank 0")

# %% [markdown]
# No: for each element, the other n − 1 parts must be sent to the rank that completes its sum, directly or as partial
# sums, and the sum to n − 1 ranks. That is 2(n − 1) S in total, if ranks do the adding. The star sends as many, half of
# them from rank 0. The ring spreads them evenly (Patarasuk and Yuan, 2009).

# %% [markdown] minutes=14
# ## A tree
#
# For a tiny tensor latency is almost the whole cost, and the ring pays it 2(n − 1) times. A *tree* has fewer rounds:
# ranks pair up, and one of each pair sends its sum to the other and is done. After ⌈log₂ n⌉ rounds (rounded up) rank 0
# holds the sum. The same rounds backwards bring it to all.

# %%
for k in range(3):  # log2 6, rounded up; in Python (6 - 1).bit_length()
    pairs = [f"{low + 2**k} sends to {low}" for low in range(0, 6 - 2**k, 2 * 2**k)]
    print(f"round {k}:", ", ".join(pairs))

# %% [markdown]
# In round k the partners are 2ᵏ apart, the *stride*. With six ranks, rank 4 has no partner in round 1.
#
# **Exercise 2.** Write the tree with `dist.send` and `dist.recv`: up to rank 0, and down again, in place. It takes 2
# ⌈log₂ n⌉ rounds for any n, and each of the n − 1 pairs exchanges only two messages: one up, one down.


# %% tags=["exercise"]
def tree_all_reduce(tensor, group=None):
    """Sum `tensor` (contiguous) over the ranks of `group`, in place.

    Name the other rank by its place in the group: `dist.send(x, group_dst=0, group=group)`,
    `dist.recv(y, group_src=0, group=group)`.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    strides = [2**k for k in range((n - 1).bit_length())]
    ### BEGIN SOLUTION
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


# %%
lab08.try_out(digits, tree_all_reduce, ranks=6, cluster=cluster)

# %% tags=["check"] points=3
check.tree_all_reduce(tree_all_reduce)

# %%
lab08.show_source(parallel.tree_all_reduce, after=check.tree_all_reduce)

# %% [markdown]
# Every message is the whole tensor, so the tree takes
#
# > **T = 2 ⌈log₂ n⌉ (α + S β)**
#
# Now both on other numbers of ranks, with a small tensor and a large one. The cell fails unless simulator and formula
# agree to nine digits.


# %%
def tree_s(n, link, size_bytes):
    """T = 2 ceil(log2 n) (α + S β)."""
    return 2 * (n - 1).bit_length() * message_s(link, size_bytes)


both = {"ring": (parallel.ring_all_reduce, ring_s), "tree": (parallel.tree_all_reduce, tree_s)}
num_ranks = (2, 3, 5, 8, 16) if quick else (2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
lab08.table_of_times(both, machine, num_ranks)

# %% [markdown]
# The ring fills both lanes of all ranks. In the tree many ranks wait: of eight the odd ones for two thirds of the time,
# with one message up and one down in six rounds.

# %% [markdown] minutes=7
# ## The crossing
#
# So the tree's few rounds win for a small tensor, and the ring's small messages for a large one. At one size in
# between, both take the same time. Guess it, for eight ranks on NVLink (α 1.9 µs, 1/β 450 GB/s); the answer
# follows exercise 3.

# %%
my_crossing_bytes = lab08.guess("size at which they cross", None, interactive, "B")

# %% [markdown]
# **Exercise 3.** Set both formulas equal, 2 (n − 1) (α + S/n β) = 2 ⌈log₂ n⌉ (α + S β), and solve for S. Your function
# gets the bandwidth, which is 1/β. On two and three ranks the tree never wins: there the solution is 0 by itself.


# %% tags=["exercise"]
def crossing_size_bytes(n, latency_s, bandwidth_bytes_per_s):
    """Size at which ring and tree take the same time, on n equal links (n is 2 or more)."""
    ### BEGIN SOLUTION
    rounds = (n - 1).bit_length()  # log2 n, rounded up
    return (n - 1 - rounds) * latency_s * bandwidth_bytes_per_s / (rounds - (n - 1) / n)
    ### END SOLUTION


# %%
# By hand: 6 + 0.12 S for the ring, 4 + 0.32 S for the tree, so 10.
lab08.try_out(crossing_size_bytes, 4, 1.0, 12.5)

# %% tags=["check"] points=2
check.crossing_size_bytes(crossing_size_bytes)

# %% [markdown]
# `lab08.cost_curves` finds the same size without algebra, by *bisection*: it halves an interval again and again, and
# keeps the half in which the faster algorithm changes.


# %%
found = lab08.cost_curves(
    lambda size: ring_s(8, nvlink, size), lambda size: tree_s(8, nvlink, size)
)
my_crossing_bytes.reveal(found[2]["tree = ring"])
lab08.show(lab08.figure_collective_cost(*found, title="All-reduce of 8 ranks on NVLink"))

# %% [markdown]
# Below the crossing the tree wins, above it the ring. In your formula α/β has a factor that depends only on n: on any
# link the crossing is proportional to α/β.

# %% [markdown] minutes=6
# ## Reconcile: predicted and measured
#
# Now the ring on real processes of this machine, which communicate through gloo, PyTorch's library for CPUs. No
# catalogue lists its α and β, so measure them, with messages of 4 kB, which cost about α, and of 4 MB. How many times
# as long will 1000 times the bytes take?

# %%
my_times = lab08.guess("as long (1: only latency counts)", None, interactive, "times")

# %%
real = "gloo" if backend == "sim" else backend  # gloo: processes on this CPU
there = {"ranks": min(ranks, 4), "backend": real, "repeats": 5 if quick else 15}
# Seconds of one ring step with messages of 4 kB and 4 MB: medians of several rings.
small_s, large_s = (lab08.step_s(floats, **there) for floats in (1000, 1_000_000))
bandwidth = 3_996_000 / max(large_s - small_s, 1e-9)  # 4 MB less 4 kB
print(f"α {lab08.format_quantity(small_s, 's')}, 1/β {lab08.format_quantity(bandwidth, 'B/s')}")
my_times.reveal(large_s / small_s)

# %% [markdown]
# The test is to predict a size that was not measured: messages of 1 MB. An *error* of −50% means that the predicted
# time is half of the measured time. *Noise* is half the spread of the measured runs over their median: an error smaller
# than the noise has no meaning. How large will the error be?

# %%
my_error = lab08.guess("error (negative: too short)", None, interactive, "%", within=10)

# %%
your_machine = lab08.machine_of(small_s, bandwidth, real, cluster)
program = lab08.three_times, parallel.ring_all_reduce, 250_000 * there["ranks"]
comparison = reconcile(*program, **there, without="setup", cluster=your_machine)
my_error.reveal(100 * comparison.error)
lab08.print_text(comparison.reading())
lab08.show(comparison.figure(ranks=[0, 1]))

# %% [markdown]
# Where the measured panel is hatched, a rank was waiting, for others or for the processor. α + S β includes neither.
# Next, the same comparison recorded on another machine. There the *makespan*, the time from the first start to the
# last end, is predicted 44% too long, twice its noise. Four ranks share two cores, and α and β come from other runs.

# %%
recorded = lab08.recorded_comparison("08")
lab08.print_text(f"{recorded.sentence()} {recorded.reading}")

# %% [markdown] minutes=1
# ## Explore
#
# Change latency, bandwidth and ranks, and watch the crossing. Can you find a network on which the tree is faster even
# at 10 MB?
#
# <details><summary>Which network?</summary>
#
# One with a large α/β, for example 64 ranks with α = 100 µs and 1/β = 450 GB/s: α/β is 45 MB, and the crossing is near
# 500 MB.
#
# </details>

# %%
lab08.explore_network(ring_s, tree_s, interactive)

# %% [markdown] minutes=1
# ## Summary
#
# * A message costs α + S β: below α/β bytes mostly latency, above it mostly bytes.
# * If ranks do the adding, every all-reduce sends at least 2(n − 1) S bytes in total. A ring spreads them evenly, 2(n −
#   1)/n S per rank: its busiest rank sends as little as possible.
# * The ring takes 2(n − 1)(α + S/n β), the tree 2 ⌈log₂ n⌉ (α + S β).
# * They cross at a size proportional to α/β. Below it the tree wins, with its few rounds; above it the ring, with its
#   small messages.

# %% [markdown] tags=["further"] minutes=25
# ## Further: fewer rounds than the tree
#
# First the tree at 1 kB. Many ranks are *waiting*: they have called, but their partner has not called yet.

# %%
tree_run = launch(lab08.summed, parallel.tree_all_reduce, 250, ranks=ranks, cluster=machine)
first_ranks = range(min(ranks, 4))
lab08.show(lab08.figure_timeline(tree_run.timeline, ranks=first_ranks, title="Tree of 1 kB"))

# %% [markdown]
# In a tree half of the ranks are done after one round, while both directions of their links are free. Let both partners
# send: after round k, *all* ranks of each group of 2ᵏ⁺¹ hold the group's sum. After log₂ n rounds all ranks hold the
# total, and no way down is needed. This is *recursive doubling* (Thakur, Rabenseifner and Gropp, 2005).


# %%
def recursive_doubling(tensor):
    """Sum `tensor` over all ranks, in place; their number is a power of two."""
    rank, n, stride = dist.get_rank(), dist.get_world_size(), 1
    while stride < n:
        incoming = torch.empty_like(tensor)
        parallel.exchange(tensor, rank ^ stride, incoming, rank ^ stride)
        tensor += incoming
        stride *= 2


# ^ flips one bit: 5 is 101 in binary
print("rank 5's partners:", [5 ^ stride for stride in (1, 2, 4)])
doubled = launch(digits, recursive_doubling, ranks=8, cluster=machine)
print("rank 0 holds", doubled.values[0].tolist())

# %% [markdown]
# It takes log₂ n (α + S β): half the tree's time. But every rank sends log₂ n whole tensors. *Halving-doubling* sends
# less: on the way in, partners exchange only halves of the piece that they still sum, so that each ends with 1/n of the
# tensor, summed; on the way out the pieces are put together again, backwards.

# %%
for stride in (4, 2, 1):
    pairs = [f"{r} and {r ^ stride}" for r in range(8) if r < r ^ stride]
    print(f"stride {stride}, 1/{8 // stride} of the tensor each way:", ", ".join(pairs))
print("then the same pairs backwards")

# %% [markdown]
# Both ways together are 2 log₂ n rounds. Each way sends S/2 + S/4 + ... + S/n = (n − 1)/n S bytes:
#
# > **T = 2 log₂ n α + 2 (n − 1)/n S β**
#
# It has the latency of a tree and the bytes of a ring. Its limits: n must be a power of two; and between machines,
# partners that are far apart share their wires with others, while a ring has only neighbours.

# %% [markdown]
# **Exercise 4.** Write halving-doubling, in place, for a number of ranks that is a power of two and for any size.
# `piece.tensor_split(2)` halves a piece, also one of an odd size; empty messages are allowed. Partners must agree which
# of them keeps which half.


# %% tags=["exercise"]
def halving_doubling_all_reduce(tensor):
    """Sum `tensor` (contiguous) over all ranks, in place; their number is a power of two."""
    rank, n = dist.get_rank(), dist.get_world_size()
    strides = [n >> k for k in range(1, n.bit_length())]  # n/2, ..., 2, 1
    piece = tensor.view(-1)
    ### BEGIN SOLUTION
    halves = []  # (half kept, half given away), from the whole tensor to 1/n of it
    for stride in strides:
        low, high = piece.tensor_split(2)
        kept, given = (high, low) if rank & stride else (low, high)
        incoming = torch.empty_like(kept)
        parallel.exchange(given, rank ^ stride, incoming, rank ^ stride)
        kept += incoming
        halves.append((kept, given))
        piece = kept
    for stride, (kept, given) in zip(reversed(strides), reversed(halves), strict=True):
        parallel.exchange(kept, rank ^ stride, given, rank ^ stride)
    ### END SOLUTION


# %%
lab08.try_out(digits, halving_doubling_all_reduce, ranks=4, cluster=cluster)

# %% tags=["check"] points=3
check.halving_doubling_all_reduce(halving_doubling_all_reduce)

# %% [markdown]
# How much faster is it at 8 MB on eight ranks with NVLink? Here are the formulas; recursive doubling is also simulated.

# %%
formulas = {"ring": ring_s(8, nvlink, 8e6), "tree": tree_s(8, nvlink, 8e6)}
formulas["recursive doubling"] = 3 * message_s(nvlink, 8e6)
formulas["halving-doubling"] = (
    6 * nvlink.latency_s + 2 * 7 / 8 * 8e6 / nvlink.bandwidth_bytes_per_s
)
on_nvlink = {"ranks": 8, "cluster": machine.replace(intra=nvlink)}
doubled_s = launch(lab08.summed, recursive_doubling, 2_000_000, **on_nvlink).timeline.makespan_s
assert abs(doubled_s / formulas["recursive doubling"] - 1) < 1e-9
pd.DataFrame(
    {
        "8 MB on 8 ranks": {
            name: lab08.format_quantity(seconds, "s") for name, seconds in formulas.items()
        }
    }
)

# %% [markdown] tags=["further"] minutes=25
# ## Further: inside a node, and between nodes
#
# A *node* is one machine with several GPUs. Inside it links are fast (`intra`); to leave it (`inter`), bytes pass a
# network card, or *NIC*, some ten times slower. A *flat* ring, one through all ranks regardless of nodes, is as slow as
# its slowest link, and sends nearly twice the tensor out of each node, all of it through one NIC.

# %% [markdown]
# *Hierarchical* all-reduce has three phases. Reduce-scatter in each node: each of its L ranks now holds a finished
# chunk of the node's sum. All-reduce of that chunk along the *rails*, the ranks with the same place on each node.
# All-gather in each node. (BlueConnect: Cho et al., 2019.)

# %%
nodes = machine.replace(devices_per_node=ranks)  # two nodes, each with `ranks` ranks
print("nodes:", [list(range(first, first + ranks)) for first in (0, ranks)])
print("rails:", [[place, place + ranks] for place in range(ranks)])

# %% [markdown]
# `GroupNetwork(cluster, ranks)` contains the links between these ranks, and `collective_cost` the formula of each
# algorithm, with a part for each kind of link; the cell fails unless formula and simulator agree to nine digits. How
# much is gained? Count the bytes that pass the busiest NIC. The hierarchy uses all NICs of a node at once.


# %%
from lablib.cost import GroupNetwork, collective_cost


def through_nics(run, machine):
    """Bytes that each rank sends to another node."""
    sent = [0.0] * run.ranks
    for message in run.traffic.transfers:
        source, target = message.ranks
        if machine.node(source) != machine.node(target):
            sent[source] += message.tensor_bytes
    return sent


two_nodes, tensor_bytes = GroupNetwork(nodes, range(2 * ranks)), 200_000 * ranks
rows, traffics = [], {}
for name in ("ring", "tree", "hierarchical"):
    all_reduce = getattr(parallel, f"{name}_all_reduce")
    run = launch(lab08.summed, all_reduce, tensor_bytes // 4, ranks=2 * ranks, cluster=nodes)
    cost = collective_cost("all_reduce", tensor_bytes, two_nodes, name)
    assert abs(run.timeline.makespan_s / cost.time_s - 1) < 1e-9
    traffics[name] = run.traffic
    words = (max(through_nics(run, nodes)), "B"), (cost.time_s, "s")
    rows.append((name, *(lab08.format_quantity(value, unit) for value, unit in words)))
pd.DataFrame(rows, columns=["algorithm", "busiest NIC sends", "takes"]).set_index("algorithm")

# %% [markdown]
# Which rank sends to which? In a *traffic matrix* the row sends to the column, and the lines separate the nodes. Sketch
# it before you look. How many squares are filled in each row of the ring? In the rows of ranks 0 and 1 of the tree? And
# which squares of the hierarchy are across the lines?

# %%
lab08.show(lab08.figure_traffic_matrix(traffics, 2 * ranks, devices_per_node=ranks))

# %% [markdown]
# The ring fills one square per row. Each of the tree's squares is the whole tensor, and they are unequally spread: rank
# 0 sends to a partner in every round, an odd rank only to its neighbour. The hierarchy is a ring in each node, and a
# diagonal of faint squares across nodes: every rank has a partner on the other node, and no single NIC carries the
# whole tensor.

# %% [markdown]
# NCCL, NVIDIA's library, does not leave the other NICs idle: it runs several rings at once, each through another NIC.
# It uses pairs of trees (*double binary trees*: Sanders, Speck and Träff, 2009), with the tensor cut into pieces that
# are sent one after another.
#
# A *switch* joins many links: a message comes in by one and goes out by another. With a switch that adds, fewer than
# the 2(n − 1) S bytes of the summary are sent: each rank sends its tensor once, and little more. InfiniBand switches do
# this (SHARP: Graham et al., 2016), and so do NVSwitches, which join the GPUs inside a node (NVLink SHARP).

# %% [markdown]
# **Exercise 5.** Write the three phases for nodes of `ranks_per_node` ranks each. The network is the slow part: for N
# nodes of L ranks, no NIC may send more than 2(N − 1)/N · S/L bytes. You may use lablib's two halves of a ring; both
# take the list of ranks that form the ring.


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


# %%
two_by_three = machine.replace(devices_per_node=3)  # two nodes of three ranks
lab08.try_out(digits, lambda x: hierarchical_all_reduce(x, 3), ranks=6, cluster=two_by_three)

# %% tags=["check"] points=3
check.hierarchical_all_reduce(hierarchical_all_reduce)

# %%
lab08.show_source(parallel.hierarchical_all_reduce, after=check.hierarchical_all_reduce)

# %% [markdown]
# A library computes the cost of all algorithms and takes the fastest.

# %%
rows = []
for size_bytes in (1e3, 1e5, 1e7, 1e9):
    cost = collective_cost("all_reduce", size_bytes, two_nodes, "auto")
    rows.append(
        (
            lab08.format_quantity(size_bytes, "B"),
            cost.algorithm,
            lab08.format_quantity(cost.time_s, "s"),
        )
    )
pd.DataFrame(rows, columns=["tensor", "fastest on two nodes", "takes"]).set_index("tensor")

# %% [markdown] tags=["further"] minutes=10
# ## Further: equal to the last bit
#
# Floats are rounded after every addition, so (a + b) + c and a + (b + c) may differ in the last bit. A sum of floats
# depends on its order. `dist.all_reduce` on the simulator adds in rank order. In the ring, chunk c starts at rank c.
# The tree adds neighbours first.


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
def in_tree_order(parts):
    """((t0 + t1) + (t2 + t3)) + ..."""
    while len(parts) > 1:
        parts = [in_rank_order(parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


print("six ranks, tree: ((t0 + t1) + (t2 + t3)) + (t4 + t5)")


# %%
def is_equal_to_the_bit(run, order):
    """Does every rank hold, bit for bit, the sum that one device computes in this order?"""
    expected = order([before for before, _ in run.values])
    return all(torch.equal(after, expected) for _, after in run.values)


torchs = launch(lab08.summed, dist.all_reduce, 100_000, ranks=ranks, cluster=cluster)
assert is_equal_to_the_bit(torchs, in_rank_order)
assert is_equal_to_the_bit(
    launch(lab08.summed, parallel.ring_all_reduce, 100_000, **here), in_ring_order
)
assert is_equal_to_the_bit(
    launch(lab08.summed, parallel.tree_all_reduce, 100_000, **here), in_tree_order
)
print("all three equal their stated order, to the bit")

# %%
parts = [before for before, _ in torchs.values]
for name, order in (("ring", in_ring_order), ("tree", in_tree_order)):
    differ = (in_rank_order(parts) != order(parts)).float().mean()
    print(
        f"rank order and {name} order differ in the last bits of {differ:.0%} of the elements"
    )

# %% [markdown]
# No order is exact. But a run that must be reproducible to the bit needs the same order every time, and therefore the
# same algorithm and the same number of ranks. With two ranks the order does not matter, since a + b = b + a.

# %% [markdown] tags=["further"] minutes=12
# ## Further: topology
#
# Between nodes there are switches. Their wiring is the *topology*. It determines how many *hops* a message makes:
# switches that it passes, or wires if there are no switches. Each hop adds to α. It also determines how much bandwidth
# is left when all nodes send at once, which divides 1/β.

# %% [markdown]
# A *fat tree* has levels of switches (Leiserson, 1985): nodes are attached to a *leaf* (L), leaves are joined into
# *pods* (P), and pods by the *core* (C). The bandwidth of a level grows towards the core. *Oversubscribed* 4 : 1 means
# that the wires above the leaves carry a quarter of the bandwidth of the nodes.

# %%
lab08.show(lab08.figure_network(lab08.FatTree(nodes_per_leaf=2, leaves_per_pod=2), 8))

# %% [markdown]
# A *dragonfly* joins switches (R, *routers*) into groups, with a wire between every two, and groups by long cables, one
# for each pair of groups (Kim et al., 2008). A message passes few switches, but many messages share the long cables.

# %%
lab08.show(lab08.figure_network(lab08.Dragonfly(nodes_per_router=1, routers_per_group=3), 9))

# %% [markdown]
# A *torus* has no switches: every node is wired to its neighbours, and rows and columns close into rings. Messages to
# other nodes pass through the nodes in between and share their wires. Google's TPU v4 machines are such a torus in
# three dimensions; blocks of 4 x 4 x 4 are joined by optical switches that are set once for a job (Jouppi et al.,
# 2023).

# %%
lab08.show(lab08.figure_network(lab08.Torus((4, 4)), 16))

# %% [markdown]
# Here are 64 nodes of one GPU with the same InfiniBand NIC, wired in these ways. A ring need not follow the numbers of
# the nodes. On the torus, a ring that follows the wires sends only to neighbours; in numerical order some messages make
# two or three hops.
#
# `collective_cost` assumes a busy network: each message gets the bandwidth that is left when all nodes send at once,
# for example other jobs on the same wires. Alone on the network, neither ring nor tree would be slowed by 4 : 1: one
# message at a time leaves each leaf.


# %%
from functools import partial

from lablib.cost import GroupNetwork, collective_cost


def cost_s(net, algorithm, size_bytes):
    return collective_cost("all_reduce", size_bytes, net, algorithm).time_s


def on_net(wiring, members):
    """Ring and tree of these nodes of one GPU, as functions of the size."""
    net = GroupNetwork(
        machine.replace(devices_per_node=1, inter=infiniband, topology=wiring), members
    )
    return partial(cost_s, net, "ring"), partial(cost_s, net, "tree")


wound, there_x, back_x = [], [0, 1, 2, 3], [3, 2, 1, 0]
for z in range(4):
    for y in back_x if z % 2 else there_x:
        wound += [16 * z + 4 * y + x for x in (back_x if (y + z) % 2 else there_x)]
wirings = {
    "fat tree": lab08.FatTree(),
    "fat tree, 4 : 1": lab08.FatTree(oversubscription=4.0),
    "dragonfly": lab08.Dragonfly(),
    "torus 4 x 4 x 4": lab08.Torus((4, 4, 4)),
}
on_wiring = {name: on_net(wiring, range(64)) for name, wiring in wirings.items()}
on_wiring["torus, along the wires"] = on_net(lab08.Torus((4, 4, 4)), wound)
rows = []
for name, (ring_on, tree_on) in on_wiring.items():
    found = (lab08.crossing_bytes(ring_on, tree_on), ring_on(64e6), tree_on(64e6))
    rows.append(
        (
            name,
            *(
                lab08.format_quantity(value, unit)
                for value, unit in zip(found, "Bss", strict=True)
            ),
        )
    )
pd.DataFrame(rows, columns=["network", "crossing", "64 MB by ring", "64 MB by tree"]).set_index(
    "network"
)

# %% [markdown]
# On a busy network every step of a ring takes as long as its slowest message. A tree uses slow wires only in some
# rounds, but with the whole tensor. So the crossing moves down if several rounds cross slow wires (4 : 1, torus), and
# hardly if one does (dragonfly).

# %% [markdown] minutes=1
# ## Sources
#
# * R. W. Hockney, *The communication challenge for MPP: Intel Paragon and Meiko CS-2*, Parallel Computing 20(3), 1994,
#   doi:10.1016/S0167-8191(06)80021-9: α and β.
# * R. Thakur, R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in MPICH*, International
#   Journal of High Performance Computing Applications 19(1), 2005, doi:10.1177/1094342005051521: rings, trees,
#   recursive doubling, halving-doubling (there: Rabenseifner's algorithm), and when to use which.
# * P. Patarasuk, X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*, Journal of Parallel
#   and Distributed Computing 69(2), 2009, doi:10.1016/j.jpdc.2008.09.002: the ring sends the least.
# * P. Sanders, J. Speck, J. L. Träff, *Two-tree algorithms for full bandwidth broadcast, reduction and scan*, Parallel
#   Computing 35(12), 2009, doi:10.1016/j.parco.2009.09.001: double binary trees.
# * R. L. Graham et al., *Scalable Hierarchical Aggregation Protocol (SHArP): A Hardware Architecture for Efficient Data
#   Reduction*, COMHPC 2016, doi:10.1109/COMHPC.2016.006: switches that add.
# * M. Cho, U. Finkler, D. Kung, H. Hunter, *BlueConnect: Decomposing All-Reduce for Deep Learning on Heterogeneous
#   Network Hierarchy*, MLSys 2019.
# * C. E. Leiserson, *Fat-Trees: Universal Networks for Hardware-Efficient Supercomputing*, IEEE Transactions on
#   Computers C-34(10), 1985, doi:10.1109/TC.1985.6312192.
# * J. Kim, W. J. Dally, S. Scott, D. Abts, *Technology-Driven, Highly-Scalable Dragonfly Topology*, ISCA 2008,
#   doi:10.1109/ISCA.2008.19.
# * N. Jouppi et al., *TPU v4: An Optically Reconfigurable Supercomputer for Machine Learning with Hardware Support for
#   Embeddings*, ISCA 2023, arXiv:2304.01433: a torus of three dimensions.
# * NVIDIA NCCL, `src/graph/tuning.cc`: how a library picks ring or tree, and the latencies used here. They are the
#   latencies of its ring with its protocol for messages of medium size, LL128; we use them for the tree too, for which
#   NCCL has 1.25 µs (NVLink) and 8.5 µs (network).
# * S. Bekman, *Machine Learning Engineering*, interconnect tables: most bandwidths. S. Jeaugey, *Massively Scale Your
#   Deep Learning Training with NCCL 2.4*, NVIDIA Technical Blog, 2019: NCCL's trees.

# %%
check
