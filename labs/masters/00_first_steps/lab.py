# %% [markdown]
# # Lab 00: First steps
#
# **Question.** What does a distributed program look like?
#
# You need Python and a little PyTorch, and no GPU. You will run one program on eight simulated GPUs and on real
# processes. You will see who works, who waits and where the bytes are; you will make it hang, and break it.

# %% [markdown]
# **How to use a lab.** Read from top to bottom, and run each cell with Shift+Enter. Five cells are exercises: replace
# `raise NotImplementedError("your turn")` by your code, run the cell, then run the check below it. Change anything
# you like: a lab cannot be broken for good, since *Kernel > Restart* starts it afresh.

# %%
import tempfile
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist

from lablib import LaunchError, find_cluster, launch, phase, reconcile
from lablib.calibration import this_machine
from lablib.course import checks_for, print_error, print_text
from lablib.faults import CorruptGradient, KillRank, SlowRank
from lablib.figures import figure_memory, figure_timeline, figure_waits, show, table
from lablib.figures.units import format_quantity
from lablib.widgets import Choice, IntChoice, explore

check = checks_for("00")
check

# %% [markdown]
# That list is your progress. It is saved; `lab progress` in a terminal shows that of all labs. If an exercise
# resists, add a cell with `check.mean_over_ranks.hint()`: the first hint nudges, the last one nearly tells.
#
# The next cell holds the settings of this lab. Run it as it is; change it on a second reading.

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 8  # copies of the program, 2 or more
real_ranks: int = 2  # copies that run as real processes on this machine, 2 or more
cluster: str = "dgx-h100"  # dgx-h100 | dgx-a100 | hgx-h200 | pcie-a100 | laptop
interactive: bool = True  # widgets, or static figures
quick: bool = True  # small matrices

# %% [markdown]
# ## A prediction
#
# Eight GPUs train one model together. Each has computed a tensor of 8 MB. They add these up, so that in the end every
# GPU holds the sum. How many megabytes must each GPU send?
#
# Write down a guess before you read on, even if you are unsure: you will remember the answer better.

# %%
my_guess_mb = 8.0  # your guess: megabytes (millions of bytes) that each GPU sends
print(f"Noted: each GPU sends {my_guess_mb:g} MB. The answer comes below the first timeline.")

# %% [markdown]
# ## One program, many ranks
#
# A distributed program is **one** function that runs many times at once. Each running copy has a number, its
# **rank**, from 0 up. The number of copies is the **world size**. The style is called SPMD: single program, multiple
# data.
#
# `launch` starts the copies.


# %%
def hello():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am rank {rank} of {world_size}.")
    return 10 * rank


run = launch(hello, ranks=ranks, cluster=cluster, backend=backend)
print("".join(run.stdout), "\nvalues:", run.values)

# %% [markdown]
# `run.stdout` holds what each rank printed, `run.values` what each returned. Nothing in `hello` says how many ranks
# there are, or on which machine: it is plain `torch.distributed`, PyTorch's library for programs of many ranks. Rank
# 3 differs from rank 4 in one number only.
#
# Ranks share no variables. To share data, they must communicate.


# %%
def total():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)  # now x is the sum over all ranks
    return x.item()


run = launch(total, ranks=ranks, cluster=cluster, backend=backend)
print("values:", run.values, " expected:", sum(range(ranks)))

# %% [markdown]
# `all_reduce` is a **collective**: a call that every rank of a **process group** must make. The group here is the
# default one, called *world*: all ranks. `all_reduce` adds up what the ranks bring (it can also take a maximum, say),
# and leaves the result with each of them, in place.
#
# The other way to communicate is from one rank to another, **point to point**.


# %%
def pass_a_note():
    note = torch.zeros(1)
    if dist.get_rank() == 0:
        dist.send(torch.tensor([42.0]), dst=1)
    if dist.get_rank() == 1:
        dist.recv(note, src=0)  # waits until the message is here
    return note.item()


run = launch(pass_a_note, ranks=ranks, cluster=cluster, backend=backend)
print("values:", run.values)

# %% [markdown]
# A `send` needs a `recv` on the other side, which brings a tensor of the same size and type to write into. Ranks 2
# and above do nothing here. That is typical: all ranks run the same function, and `if rank == ...` gives one of them
# a part of its own.

# %% [markdown]
# ## One program, three machines
#
# | backend | what runs your program | where |
# |:---|:---|:---|
# | `sim` | a simulated cluster: real values, predicted times | any laptop |
# | `gloo` | one real process for each rank, on the CPU | any machine |
# | `nccl` | one real GPU for each rank | machines with NVIDIA GPUs |
#
# `gloo` and `nccl` are libraries that carry messages. Starting real processes takes some seconds.

# %%
for machine in ("sim", "gloo", "nccl"):
    try:
        run = launch(total, ranks=real_ranks, cluster=cluster, backend=machine)
        print(f"{machine}: values {run.values} after {run.wall_s:.3f} s")
    except LaunchError as error:
        print_error(error)

# %% [markdown]
# Every machine that could run it returned the same values. One that could not says what it found and what it needs;
# here the error is caught, so that the notebook goes on. Processes stay ready for the next launch, which is therefore
# quick:

# %%
again = launch(total, ranks=real_ranks, backend="gloo")
print(f"gloo, second launch: values {again.values} after {again.wall_s:.3f} s")

# %% [markdown]
# ## A timeline
#
# Now a program with work in it: one step of training. Every rank has weights `w` and its own data `x`. It computes a
# loss (forward) and the gradient of `w` (backward). Then the ranks add up their gradients. Rank 1 may get `factor`
# times as many rows of data as the others.


# %%
def step(rows, side, factor=1):
    if dist.get_rank() == 1:
        rows = factor * rows
    w = torch.randn(side, side, requires_grad=True)  # the weights
    x = torch.randn(rows, side)  # this rank's data
    loss = (x @ w).square().mean()  # forward
    loss.backward()  # backward: w.grad
    dist.all_reduce(w.grad)  # communication: the sum of all gradients
    return loss.item()


side = 512 if quick else 1024
run = launch(step, side, side, ranks=ranks, cluster=cluster)
shown = range(min(ranks, 4))  # the first ranks do for a picture
show(figure_timeline(run.timeline, shown, title="One step, the same work for all"))

# %% [markdown]
# Each rank has two lanes, because a GPU can compute and communicate at the same time. A lane is called a **stream**:
# a queue of work done in order. The lower one has the name of its process group, *world*. Point at a bar to read what
# it is.
#
# Here nobody waits: all ranks arrive at the `all_reduce` together.
#
# **Before you run the next cell:** rank 1 gets eight times the data. What will ranks 0 and 2 do?

# %%
run = launch(step, side, side, 8, ranks=ranks, cluster=cluster)
show(figure_timeline(run.timeline, shown, title="The same step, rank 1 has more data"))

# %% [markdown]
# They wait. The collective starts when its last rank has come, so one slow rank, a **straggler**, slows down all. The
# pale stretch of a compute lane is idle time. On a thousand ranks nobody finds the straggler by eye; `run.summary()`
# names it:

# %%
summary = run.summary()
print_text(summary.sentence())
seconds = summary.table()[["busy_s", "exposed_s", "waiting_s", "bubble_s"]]
seconds.map(lambda value: format_quantity(value, "s"))

# %% [markdown]
# Every second of a rank is one of four: **busy** computing; **exposed**, communicating while it computes nothing;
# **waiting** for a rank that has not come; or **bubble**, with nothing to do. The last row is the mean. Lab 09 hides
# communication behind the backward pass. (MFU is the share of the GPU's full speed that was used: lab 01.)

# %% [markdown]
# These are predicted seconds of the simulated cluster, not seconds of your computer. They come out the same on any
# laptop, every time:

# %%
twice = [launch(step, side, side, ranks=ranks, cluster=cluster) for _ in range(2)]
for run in twice:
    print("predicted", run.timeline.makespan_s, "s; you waited", format_quantity(run.wall_s, "s"))
print("the same timeline, to the last bit:", twice[0].timeline == twice[1].timeline)

# %% [markdown]
# The **makespan** is the time from the launch to the end of the last piece of work.
#
# A run also keeps a record of its **traffic**: every communication, how it travelled, and how many bytes left the
# ranks.

# %%
columns = ["group", "name", "ranks", "algorithm", "size_bytes", "sent_bytes"]
run.traffic.table()[columns].astype({"size_bytes": int, "sent_bytes": int})

# %% [markdown]
# `size_bytes` is the gradient of one rank; `sent_bytes` is what all ranks sent together. The **algorithm** says who
# sends what to whom. Lab 08 builds these from `send` and `recv`.
#
# Now your prediction: 8 MB on each of eight GPUs.


# %%
def add_8_mb():
    dist.all_reduce(torch.ones(2_000_000))  # 2 million numbers of 4 bytes


sent_mb = launch(add_8_mb, ranks=8).traffic.sent_bytes(rank=0) / 1e6
formula_mb = 2 * (8 - 1) / 8 * 8  # 2 (n-1)/n times 8 MB, for n = 8 ranks
print(f"your guess {my_guess_mb:g} MB, sent {sent_mb:g} MB, by the formula {formula_mb:g} MB")

# %% [markdown]
# If everybody sent its 8 MB to the seven others, it would be 56 MB. The **ring** algorithm sends 2(n-1)/n times the
# tensor, for n ranks: each rank passes on small pieces of partial sums, first to add them up, then to hand out the
# result. That is never more than twice the tensor. For small tensors a **tree** can be quicker: it has fewer steps.

# %% [markdown]
# ## Where the bytes are
#
# Time is one budget, memory the other: an H100 has 80 GB. Backward needs what forward computed. A result that forward
# must keep for it is an **activation**. Here is a step of a model with several layers; `phase` names a part of it.
#
# Predict: when does a rank's memory rise, and when does it fall?


# %%
def train(num_layers, rows, side):
    with phase("setup"):
        layers = [torch.nn.Linear(side, side, bias=False) for _ in range(num_layers)]
        x = torch.randn(rows, side)
    for layer in layers:
        x = layer(x).relu()
    x.mean().backward()
    for layer in layers:
        dist.all_reduce(layer.weight.grad)


num_layers, rows, width = 4, 2 * side, side // 2
run = launch(train, num_layers, rows, width, ranks=ranks, cluster=cluster)
memory = figure_memory(run.memory, timeline=run.timeline, rank=0)
show(memory)

# %% [markdown]
# Forward piles up: each layer leaves an activation. Backward takes the pile down, layer by layer, and leaves
# gradients. The gray on top is the data, and what is needed for a moment only. So memory is highest soon after
# backward begins. Which lines of the program made it?

# %%
print_text(run.memory.explain(rank=0))

# %% [markdown]
# (`threshold_backward` is PyTorch's name for the backward of `relu`.) Such sizes can be known beforehand. In each layer
# weights and gradients have `width` x `width` numbers of 4 bytes, activations `rows` x `width`. One more of these lives
# while `relu` reads the last product. Formula beside count:

# %%
weights = num_layers * width**2 * 4
activations = (num_layers + 1) * rows * width * 4
formula = {"parameter": weights, "gradient": weights, "activation": activations}
most = table(memory).set_index("category")["most (B)"]
pd.DataFrame({"formula (B)": formula, "counted (B)": most[list(formula)]})

# %% [markdown]
# Equal to the byte. With so many rows, the activations outweigh everything else: they grow with the data, not with the
# model alone. Lab 03 shows how to keep fewer of them.

# %% [markdown]
# A run can be saved for Perfetto, a viewer for long traces: open `ui.perfetto.dev` in a browser and drop the file
# there. We write it to a folder that goes away again; choose your own path to keep it.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = run.to_perfetto(Path(folder) / "step.json")
    print(path.name, "holds", len(run.timeline), "bars in", path.stat().st_size, "bytes")

# %% [markdown]
# ## Predict, run, reconcile
#
# A prediction is worth something once it is compared with a run. A `dgx-h100` may not be here, but your machine is.
# First we **calibrate**: measure how fast its processes compute and send, and describe it as one more cluster. That
# takes half a minute, once: the result is kept.

# %%
real = "gloo" if backend == "sim" else backend
machine = this_machine(ranks=real_ranks, backend=real)
print(f"{machine.device.name}, measured on {machine.profile['date']}")

# %% [markdown]
# What was measured, and what the catalogue says of an H100. FLOP/s are floating-point operations in a second; one
# multiplication and one addition are two of them.


# %%
def speeds(cluster):
    device = cluster.device
    rates = [format_quantity(device.peak("float32"), "FLOP/s")]
    rates.append(format_quantity(device.memory_bandwidth_bytes_per_s, "B/s"))
    starts = [device.kernel_overhead_s]
    starts.append(cluster.collective_overhead_s + cluster.intra.latency_s)
    return rates + [format_quantity(time_s, "s") for time_s in starts]


both = {"here": speeds(machine), "H100": speeds(find_cluster("dgx-h100"))}
what = ["matrix products", "memory", "starting an operation", "starting a collective"]
pd.DataFrame(both, index=what)

# %% [markdown]
# Now `reconcile` runs `train` on the simulated copy of your machine and on real processes: once to warm up, then five
# times, since real times vary. It draws the run in the middle. The phase "setup" is left out: drawing random numbers
# is no part of training.

# %%
sizes = (4, 512, 512)  # layers, rows, side
where = {"ranks": real_ranks, "backend": real, "cluster": machine}
comparison = reconcile(train, *sizes, **where, without="setup")
show(comparison.figure())

# %%
parts = comparison.table().set_index("name")
parts = parts[["predicted_s", "measured_s", "error_pct", "noise_pct", "share_pct"]]
parts.map("{:.3g}".format, na_action="ignore")

# %% [markdown]
# An error of -30 percent means: predicted too short by that much. **Noise** is half the spread of the five runs, as a
# share of their median; an error smaller than it says nothing. `share_pct` tells which rows matter: a wrong guess about
# a hundredth of the step does no harm.

# %% [markdown]
# **What explains the errors?** Products of matrices are predicted best; other operations are priced by their bytes
# alone. A message must first wake a process, which takes long on busy cores. Real ranks also start a moment apart, and
# Python works between operations: predicted waiting and idle are zero.
#
# If all rows are off by one factor, your machine was calmer when it was measured, or busier. `lab calibrate --ranks 2`
# in a terminal measures it anew.

# %% [markdown]
# ## Random numbers, rank by rank
#
# Look at `step` again: every rank draws its own weights with `torch.randn`. Are they the same? In a real training run
# they must be: ranks that start from different weights train different models. Let us see what three ways of seeding
# give.


# %%
def draw(seeding):
    if seeding == "same seed":
        torch.manual_seed(7)
    if seeding == "seed + rank":
        torch.manual_seed(7 + dist.get_rank())
    return round(torch.rand(1).item(), 4)


ways = ("no seed", "same seed", "seed + rank")
pd.DataFrame({way: launch(draw, way, ranks=4).values for way in ways}).rename_axis("rank")

# %% [markdown]
# Without a seed, each rank draws its own numbers, as separate processes do. With one seed, all draw the same. So:
#
# - **Weights** at the start: the same seed everywhere.
# - **Data order, noise and dropout** (which switches off random parts of a layer): different on each rank. Otherwise
#   all ranks would learn from the same examples.

# %% [markdown]
# Each simulated rank has a random generator of its own, as a process would. Your notebook's is left alone:

# %%
torch.manual_seed(0)
expected = torch.rand(2)
torch.manual_seed(0)
launch(draw, "same seed", ranks=4)
print("drawn after a launch:", torch.rand(2), "\nwithout the launch:  ", expected)

# %% [markdown]
# ## A deadlock, and its diagnosis
#
# Two ranks want to swap a number. Each first receives, then sends. Read the program and predict: who sends first?


# %%
def swap():
    other = 1 - dist.get_rank()
    inbox = torch.zeros(1)
    dist.recv(inbox, src=other)
    dist.send(torch.ones(1), dst=other)
    return inbox.item()


try:
    launch(swap, ranks=2, cluster=cluster)
except LaunchError as error:
    deadlock = error
    print(type(error).__name__)
    print_error(error)

# %% [markdown]
# Nobody does. Each waits for a message that the other would send afterwards: a **deadlock**. The simulator knows that
# no rank can go on, and says for each what it waits for and in which line. (A tag is a number that tells messages
# apart; 0 unless you give one.) As a picture:

# %%
show(figure_waits(deadlock))

# %% [markdown]
# Real processes know nothing of each other's waiting. They hang until somebody's patience ends: with NCCL that is ten
# minutes by default, with gloo half an hour. We allow two seconds, and ask each process where it stands:

# %%
try:
    launch(swap, ranks=2, backend="gloo", timeout_s=2)
except LaunchError as error:
    print(type(error).__name__)
    print_error(error)

# %% [markdown]
# The lines name where each rank is stuck. (`print_error` leaves out the part inside PyTorch.) On a cluster you
# would collect such lines from every machine. So it pays to try a program on the simulator first.
#
# The other classic: all ranks make the call, but not the *same* call.


# %%
def mismatch():
    length = 3 if dist.get_rank() == 0 else 4
    dist.all_reduce(torch.ones(length))


try:
    launch(mismatch, ranks=ranks, cluster=cluster)
except LaunchError as error:
    print(type(error).__name__)
    print_error(error)

# %% [markdown]
# *Call #0* is the first one of the group. Real libraries may hang here, crash, or return wrong numbers. Two rules
# prevent most of this:
#
# 1. Every rank of a group makes the same collectives, in the same order, with the same shapes.
# 2. For every `recv` somebody sends, and not all wait at once.

# %% [markdown]
# ## Something breaks
#
# A correct program can stop as well. Llama 3 was trained on 16,384 GPUs, and in 54 days something unexpected
# interrupted it 419 times: once in three hours.
#
# We let rank 1 die in the middle of a step. Nobody tells the others. Predict: where will each of them be found?

# %%
sizes = (num_layers, rows, width)
healthy = launch(train, *sizes, ranks=4, cluster=cluster)
death = KillRank(1, at_s=healthy.timeline.makespan_s / 2)
try:
    launch(train, *sizes, ranks=4, cluster=cluster, faults=[death])
except LaunchError as error:
    broken = error
    print(type(error).__name__)
    print_error(error)

# %% [markdown]
# They finish what they can do alone, then stand in their first `all_reduce`. The simulator names the rank that died.
# A real cluster may not: the others hang until a timeout, and the logs are full of ranks that waited. Look for the
# rank that is missing there. The error holds the run as far as it came:

# %%
show(figure_timeline(broken.run.timeline, title="Rank 1 dies; the others wait for it"))

# %% [markdown]
# A death is at least noticed. A wrong number is not. The fault below puts one NaN ("not a number") into the gradient
# of rank 2, as a defective chip might. Are the gradients finite before the ranks add them up, and after?


# %%
def finite_gradients():
    layer = torch.nn.Linear(64, 64, bias=False)
    layer(torch.randn(16, 64)).square().mean().backward()
    grad = layer.weight.grad
    before = grad.isfinite().all().item()
    dist.all_reduce(grad)
    return {"before the sum": before, "after the sum": grad.isfinite().all().item()}


nan = CorruptGradient(2, kind="nan")
run = launch(finite_gradients, ranks=4, cluster=cluster, faults=[nan])
pd.DataFrame(run.values).rename_axis("rank")

# %% [markdown]
# The sum hands the NaN to everybody, and afterwards all ranks look alike. Who had it can be told only before. That is
# exercise 5.

# %% [markdown]
# ## Explore
#
# Move the sliders and watch the timeline. Two questions to start with. On `dgx-h100`, double the rows: why do most
# bars stay as they are? And on which cluster does communication take the largest part of the time?


# %%
def simulate(ranks, rows, factor, cluster):
    faults = [SlowRank(1, factor)]  # each operation of rank 1 takes so many times as long
    return launch(step, rows, 256, ranks=ranks, cluster=cluster, faults=faults).timeline


controls = [
    IntChoice("ranks", "Ranks", (2, 3, 4, 6, 8), 4),
    IntChoice("rows", "Rows of data on each rank", (32, 64, 128, 256), 128),
    IntChoice("factor", "Rank 1 is slower by a factor of", (1, 2, 4, 8), 1),
    Choice("cluster", "Cluster", ("dgx-h100", "dgx-a100", "pcie-a100", "laptop"), "dgx-h100"),
]
examples = [{"factor": 8}, {"cluster": "laptop"}]  # shown where there are no widgets
explore(simulate, figure_timeline, controls, interactive, examples)

# %% [markdown]
# Starting an operation on a GPU takes about 5 microseconds, however small it is, and these are small: the rows hardly
# matter. Communication takes the largest part on `laptop`, whose processes exchange messages slowly. Among the GPUs
# it does so on `pcie-a100`, which lacks NVLink, the fast connection between GPUs.

# %% [markdown] tags=["instructor"]
# **For the instructor.** Let the class vote on the prediction (8, 14, 16, 56 MB) before the timeline, and again after
# drawing a ring of four people who pass slips of paper. For the deadlock, have two people shake hands under the rule
# "wait until the other's hand is out".

# %% [markdown]
# ## Exercise 1: the mean
#
# Write the mean over ranks, with one collective. It must hold for any number of ranks, and leave `x` as it was. The
# check looks at values, and at the bytes that each rank sends: no more than one `all_reduce` needs.


# %% tags=["exercise"]
def mean_over_ranks(x):
    """The mean of `x` over all ranks, as a new tensor, on every rank."""
    ### BEGIN SOLUTION
    mean = x.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
    ### END SOLUTION


# %% tags=["check"] points=1
check.mean_over_ranks(mean_over_ranks)

# %% [markdown]
# ## Exercise 2: pass to the right
#
# The ranks stand in a circle. Each gives `x` to its right neighbour (rank + 1; the last gives to rank 0) and returns
# what its left neighbour gave. If all receive first, nobody ever sends.
#
# Budget: the time of two messages, for any number of ranks. `dist.isend` starts a send and does not wait; call
# `.wait()` on what it returns.


# %% tags=["exercise"]
def pass_to_right(x):
    """Send `x` to the right neighbour; return what came from the left one, as a new tensor."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inbox = torch.empty_like(x)
    sending = dist.isend(x, dst=(rank + 1) % world_size)
    dist.recv(inbox, src=(rank - 1) % world_size)
    sending.wait()
    return inbox
    ### END SOLUTION


# %% tags=["check"] points=2
check.pass_to_right(pass_to_right)

# %% [markdown]
# ## Exercise 3: equal weights, different data
#
# From one `seed`, make weights that are equal on all ranks and data that differ on every rank, without sending a
# byte. Another seed must give other weights and other data. One trap: no rank's data may be the weights' numbers over
# again.


# %% tags=["exercise"]
def weights_and_data(seed):
    """Two random tensors of shape (4, 4): the weights of all ranks, the data of this one."""
    ### BEGIN SOLUTION
    torch.manual_seed(seed)
    weights = torch.randn(4, 4)
    torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
    data = torch.randn(4, 4)
    return weights, data
    ### END SOLUTION


# %% tags=["check"] points=2
check.weights_and_data(weights_and_data)

# %% [markdown]
# ## Exercise 4: mend a deadlock
#
# Only rank 0 shall report the mean loss, so somebody put the whole report under `if rank == 0`. Many a training
# script has hung on this:


# %%
def broken_report(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        return f"mean loss {loss.item() / dist.get_world_size():.2f}"


try:
    launch(broken_report, torch.ones(1), ranks=4)
except LaunchError as error:
    print_error(error)

# %% [markdown]
# Mend it: rank 0 returns the text, all others return `None`, and the ranks communicate once. The check's budget is
# the bytes of one `all_reduce`.


# %% tags=["exercise"]
def report(loss):
    """On rank 0 "mean loss 1.23", for a tensor of one number on each rank; elsewhere None."""
    ### BEGIN SOLUTION
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        return f"mean loss {loss.item() / dist.get_world_size():.2f}"
    ### END SOLUTION


# %% tags=["check"] points=1
check.report(report)

# %% [markdown]
# ## Exercise 5: whose gradient is it?
#
# Before the ranks add up their gradients, find out which of them hold a number that is not finite: NaN, or infinite.
# Every rank returns the same list; an empty one if all is well. It may be more than one rank. The gradient stays as it
# is.
#
# Budget: one collective, and no more than one number from each rank to each.


# %% tags=["exercise"]
def corrupted_ranks(grad):
    """The ranks whose `grad` holds a NaN or an infinity, as a sorted list, on every rank."""
    ### BEGIN SOLUTION
    is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
    flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(flags, is_bad)
    return [rank for rank, flag in enumerate(flags) if flag.item()]
    ### END SOLUTION


# %% tags=["check"] points=2
check.corrupted_ranks(corrupted_ranks)

# %% [markdown]
# ## Summary
#
# - A distributed program is one function run by many **ranks**, which share nothing but messages.
# - A **collective** needs every rank of its group; `send` needs a `recv`. Break that, and the program hangs.
# - The slowest rank sets the pace, and a dead one stops everybody.
# - Memory grows in forward, by activations, and is highest soon after backward begins.
# - Equal weights need equal seeds; data need different ones.
# - Predict, run, reconcile: the gap shows what the prediction leaves out.

# %% [markdown]
# ## What next
#
# Lab 08 builds `all_reduce` from `send` and `recv` and asks what it costs. Lab 09 trains a model on many ranks and
# hides the communication behind the backward pass.
#
# To go on here: run this lab on four real processes with `lab run 00 --backend gloo --ranks 4`, or set `cluster` to
# `pcie-a100` above.

# %% [markdown]
# ## Sources
#
# - PyTorch, *Distributed communication package: torch.distributed*, the documentation of every call used here.
# - F. Darema, D. George, V. Norton, G. Pfister, "A single-program-multiple-data computational model for EPEX/FORTRAN",
#   Parallel Computing 7(1), 1988: SPMD.
# - P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms", JPDC 69(2), 2009: the ring.
# - E. Coffman, M. Elphick, A. Shoshani, "System deadlocks", ACM Computing Surveys 3(2), 1971.
# - Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.4: how often something breaks.
