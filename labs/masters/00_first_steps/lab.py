# %% [markdown]
# # Lab 00: First steps
#
# **Question.** What does a distributed program look like?
#
# You need no GPU. You will run one program on eight simulated GPUs and on real processes, see which rank works, which
# one waits and how much is sent, and then break it. Run each cell with Shift+Enter, from top to bottom.
#
# **Prerequisites.** None but Python and a little PyTorch. **Time.** 58 minutes, without the folded sections, called
# *further*.

# %%
from lablib.labs import lab00

lab00.show(lab00.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl: a simulated cluster, processes here, or real GPUs
ranks: int = 8  # copies of the program, 2 or more
real_ranks: int = 2  # copies that run as real processes on this machine, 2 or more
cluster: str = "dgx-h100"  # dgx-h100 | dgx-a100 | hgx-h200 | pcie-a100 | laptop: simulated
interactive: bool = True  # sliders to move, or static figures
quick: bool = True  # small matrices

# %% [markdown] minutes=2
# ## A prediction
#
# The cell above holds the settings. A `dgx-h100` is a computer by NVIDIA with eight H100 GPUs. Each of them has
# computed a tensor of 8 MB (a megabyte is a million bytes). They add these tensors, so that in the end every GPU holds
# the sum. How many megabytes does each GPU send? Type your guess: it locks when
# the answer shows, and counts as right within 20%.

# %%
my_guess_mb = lab00.guess("megabytes that each GPU sends", None, interactive, "MB")

# %%
import torch
import torch.distributed as dist

from lablib import launch, phase, reconcile

check = lab00.checks_for("00")
check

# %% [markdown] minutes=1
# ## Exercises
#
# That list is your progress; it is saved. In an exercise replace `raise NotImplementedError("your turn")` by your code.
# The cell below it tries your function, and the next one checks it. Stuck? Run `check.mean_over_ranks.hint()` in a new
# cell, up to three times, then `check.mean_over_ranks.solution()`. To start over, run `lab reset 00` in a terminal.

# %% [markdown] minutes=2
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
# `run.stdout` holds the printed text of each rank, and `run.values` the return values. Nothing in `hello` depends on
# the number of ranks or the machine: it is plain `torch.distributed`, PyTorch's library for programs of many ranks.
#
# Real ranks are processes, often on different machines, so they share no variables. To share data, they must
# communicate.

# %% [markdown] minutes=11
# ## A sum over all ranks
#
# Each rank makes a tensor of one number, its own rank. `all_reduce` adds these tensors. What does each of 8 ranks hold
# afterwards?

# %%
my_guess_sum = lab00.guess("number that rank 1 holds", None, interactive, "count")


# %%
def total():
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x)  # now x is the sum over all ranks
    return x.item()


run = launch(total, ranks=ranks, cluster=cluster, backend=backend)
print("values:", run.values, " expected:", sum(range(ranks)))
my_guess_sum.reveal(run.values[1])

# %% [markdown]
# `all_reduce` is a **collective**: a call that every rank of a **process group** must make. The group here is the
# default one, *world*: all ranks. The result is written into `x` itself, on every rank.
#
# Now to your prediction. A run records its **traffic**: every communication, and the bytes sent by each rank.


# %%
def add_8_mb():
    dist.all_reduce(torch.ones(2_000_000))  # 2 million numbers of 4 bytes


sent_mb = launch(add_8_mb, ranks=8).traffic.sent_bytes(rank=0) / 1e6
my_guess_mb.reveal(sent_mb)

# %% [markdown]
# If each GPU sent its 8 MB to the seven others, it would send 56 MB. The **ring** sends less: each of n ranks passes
# pieces of partial sums to its neighbour, first to add them up, then to distribute the result. Each half sends (n-1)/n
# of the tensor, so both send 2(n-1)/n of it:

# %%
for n in (2, 4, 8):
    sent_mb = launch(add_8_mb, ranks=n).traffic.sent_bytes(rank=0) / 1e6
    print(f"{n} ranks: sent {sent_mb:g} MB, by the formula {2 * (n - 1) / n * 8:g} MB")

# %% [markdown]
# No algorithm on the ranks alone sends less, averaged over ranks. The switch that connects the GPUs of a DGX H100 can
# help: it adds numbers itself.

# %% [markdown]
# **Exercise 1.** Write the mean over ranks, with one `all_reduce`. It must work for any number of ranks and any shape,
# and leave `x` unchanged. The check also counts bytes: each rank sends as many as one `all_reduce` of `x` needs.


# %% tags=["exercise"]
def mean_over_ranks(x):
    """The mean of `x` over all ranks, as a new tensor, on every rank."""
    ### BEGIN SOLUTION
    mean = x.clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()
    ### END SOLUTION


# %%
def try_mean():
    return mean_over_ranks(torch.tensor([1.0, 10.0]) * dist.get_rank())


lab00.try_out(try_mean, ranks=4, cluster=cluster)  # each should return a tensor of 1.5 and 15

# %% tags=["check"] points=1
check.mean_over_ranks(mean_over_ranks)

# %% [markdown] minutes=12
# ## From one rank to another
#
# The other way to communicate is **point to point**: one rank sends, one receives. Here rank 0 sends a note to every
# other rank.


# %%
def notes_to_all():
    note = torch.zeros(1)
    if dist.get_rank() > 0:
        dist.recv(note, src=0)
        return note.item()
    for rank in range(1, dist.get_world_size()):
        dist.send(torch.tensor([10.0 * rank]), dst=rank)


print("values:", launch(notes_to_all, ranks=ranks, cluster=cluster, backend=backend).values)

# %% [markdown]
# All ranks run the same function; `if` selects the code of one rank. Each `send` needs a `recv` on the other side, with
# a tensor of the same size and type to write into. On the simulator both return when the message has arrived: a rank
# can do nothing else during a `send`.

# %% [markdown]
# `dist.isend` begins a send and immediately returns a handle; `handle.wait()` returns when the message has arrived. The
# rank can compute between the two, but must not change the tensor. ("Further: compute during a send" measures the time
# that this saves.)
#
# A rank that both sends and receives starts the two as a **batch**: `dist.batch_isend_irecv` takes a list of
# operations, such as `dist.P2POp(dist.isend, tensor, 3)`, a send to rank 3, or `dist.P2POp(dist.irecv, tensor, 3)`, a
# receive from it, and returns handles to wait for. On GPUs this matters: NCCL runs single messages one after another,
# and a circle of ranks that all send first can wait forever.

# %% [markdown]
# **Exercise 2.** The ranks form a circle. Each sends `x` to its right neighbour, (r + 1) % n for rank r (% is the
# remainder), and returns the tensor of its left neighbour.
#
# Budget (the check measures it): the time of two messages, for any number of ranks from 2 up. It must finish on GPUs
# too, for any size of `x`.


# %% tags=["exercise"]
def pass_to_right(x):
    """Send `x` to the right neighbour; return the tensor of the left one, as a new tensor."""
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inbox = torch.empty_like(x)
    send = dist.P2POp(dist.isend, x, (rank + 1) % world_size)
    receive = dist.P2POp(dist.irecv, inbox, (rank - 1) % world_size)
    for handle in dist.batch_isend_irecv([send, receive]):
        handle.wait()
    return inbox
    ### END SOLUTION


# %%
def try_pass():
    return pass_to_right(torch.tensor([10.0 * dist.get_rank()]))


lab00.try_out(try_pass, ranks=4, cluster=cluster)  # rank 0 should return 30, rank 1 0

# %% tags=["check"] points=2
check.pass_to_right(pass_to_right)

# %% [markdown] minutes=2
# ## One program, three machines
#
# | backend | your program runs on | where |
# |:---|:---|:---|
# | `sim` | a simulated cluster: real values, predicted times | any laptop |
# | `gloo` | a real process for each rank, on the CPU | any machine |
# | `nccl` | a real process for each rank, each with its own GPU | machines with NVIDIA GPUs |
#
# Starting real processes takes some seconds. They stay ready, so the second launch is quick.

# %%
for machine in ("sim", "gloo", "gloo", "nccl"):
    run = lab00.launch_or_error(total, ranks=real_ranks, cluster=cluster, backend=machine)
    if hasattr(run, "values"):
        print(f"{machine}: values {run.values} after {run.wall_s:.3f} s")

# %% [markdown]
# Every backend that could run it returned the same values. The error of a backend that could not run it
# lists the missing parts.
#
# The backends differ in when a call returns. On the simulator `send`, `recv` and `wait()` return when the message has
# arrived; with gloo, a library for CPUs, when this rank's tensor has been sent or received. With NCCL, NVIDIA's library
# for GPUs, they return sooner: the GPU waits.

# %% [markdown] minutes=6
# ## A timeline
#
# Now one step of training. Every rank has weights `w` and its own data `x`. It computes a loss (**forward**) and the
# gradient of `w` (**backward**). Then the ranks add up their gradients. Rank 1 may get `factor` times as many rows.
# (Each rank draws its own weights here, for the time alone; "Further: random numbers, rank by rank" makes them equal.)


# %%
def step(rows, side, factor=1):
    rows = factor * rows if dist.get_rank() == 1 else rows
    w = torch.randn(side, side, requires_grad=True)  # the weights
    x = torch.randn(rows, side)  # this rank's data
    loss = (x @ w).square().mean()  # forward
    loss.backward()  # backward: w.grad
    dist.all_reduce(w.grad)  # communication: the sum of all gradients
    return loss.item()


side = 512 if quick else 1024
even = launch(step, side, side, ranks=ranks, cluster=cluster)
lab00.show_timeline(even, "One step, the same work for all")

# %% [markdown]
# Each rank has two lanes, because a GPU can compute and communicate at the same time. The lower one is named after its
# process group, *world*. Communication is **hidden** while the rank computes, and **exposed** where the upper lane is
# blank.
#
# Now rank 1 gets eight times the data. What will rank 0 do, and how many times as long does the step take?

# %%
my_guess_longer = lab00.guess("times as long", None, interactive, "times")

# %%
run = launch(step, side, side, 8, ranks=ranks, cluster=cluster)
lab00.show_timeline(run, "The same step, rank 1 has more data")
my_guess_longer.reveal(run.timeline.makespan_s / even.timeline.makespan_s)

# %% [markdown]
# Rank 0 waits: the hatched stretch without colour. The collective begins when its last rank arrives, so one slow rank,
# a **straggler**, slows down all. (The step does not take eight times as long: many operations take the same few
# microseconds for more rows, and the all-reduce sends the same bytes.) Among a thousand ranks it is hard to find by
# eye; `run.summary()` names it:

# %%
lab00.print_text(run.summary().sentence())
lab00.seconds_table(run)

# %% [markdown]
# Every second of a rank has one of four kinds: **busy** computing; **exposed**, communicating while it computes
# nothing; **waiting** for a rank that has not arrived; or **idle**. The row "all" is the mean over all ranks. (MFU,
# model FLOPs utilization, is the share of the GPUs' peak speed that was used.) All are predicted seconds of the
# simulated cluster: the same on any laptop.

# %% [markdown] minutes=11
# ## Two ranks swap a number
#
# Two ranks want to swap a number. Read `swap`. Who sends first?


# %%
def swap():
    other = 1 - dist.get_rank()
    inbox = torch.zeros(1)
    dist.recv(inbox, src=other)
    dist.send(torch.ones(1), dst=other)
    return inbox.item()


# %%
my_guess_first = lab00.guess('who sends first (0, 1, "both" or "neither")', None, interactive)

# %%
stopped = lab00.launch_or_error(swap, ranks=2, cluster=cluster)
my_guess_first.reveal("both" if stopped is None else "neither")

# %% [markdown]
# Neither sends. Each waits for a message that the other would send afterwards: a **deadlock**. The simulator
# detects that no rank can continue, and lists for each rank the call that waits, and its line. (A tag is a number that
# distinguishes messages; the default is 0. A send is posted once it has begun.) As a picture:

# %%
lab00.show(lab00.figure_waits(stopped))

# %% [markdown]
# Real processes do not detect a deadlock. They hang until a time limit ends them: with NCCL ten minutes by default,
# with gloo thirty. So try a program on the simulator first.
#
# In the next program only rank 0 should report the mean loss, so the whole report is under `if`. Read it: do
# ranks 1 to 3 wait, or do they finish?


# %%
def broken_report(loss):
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        return f"mean loss {loss.item() / dist.get_world_size():.2f}"


# %%
my_guess_others = lab00.guess('ranks 1 to 3 ("wait" or "finish")', None, interactive)

# %%
error = lab00.launch_or_error(broken_report, torch.tensor(1.0), ranks=4)
my_guess_others.reveal("finish" if "finished" in str(error) else "wait")

# %% [markdown]
# Rank 0 waits for ranks that have finished. (`all_reduce #0` is the first call in its group: calls are counted from 0.)
#
# **Exercise 3.** Fix it: rank 0 returns the text, all others return `None`, and the ranks communicate once. You may
# overwrite `loss`. Budget: the bytes of one `all_reduce`.


# %% tags=["exercise"]
def report(loss):
    """On rank 0 the text "mean loss 1.23", the mean over ranks, 2 decimals; otherwise None."""
    ### BEGIN SOLUTION
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        return f"mean loss {loss.item() / dist.get_world_size():.2f}"
    ### END SOLUTION


# %%
def try_report():
    return report(torch.tensor(1.5 + dist.get_rank()))


lab00.try_out(try_report, ranks=4, cluster=cluster)  # losses 1.5, 2.5, 3.5, 4.5

# %% tags=["check"] points=1
check.report(report)

# %% [markdown]
# Two rules prevent most hangs:
#
# 1. Every rank of a group makes the same collectives, in the same order, with the same shapes. ("Further: how real
#    processes hang" shows the effect of different shapes.)
# 2. Every `recv` has a matching `send`, and not all ranks wait at once. To fix `swap`, start both as a batch, as in
#    exercise 2.

# %% [markdown] minutes=8
# ## Predict, run, reconcile
#
# A prediction has to be compared with a run. You may not have a `dgx-h100`, so we use your machine. First we
# **calibrate**: measure how fast its processes compute and send, and describe it as one more cluster. That takes half a
# minute or more, once: the result is saved. ("Further: the calibration" shows the measurements.)

# %%
real = "gloo" if backend == "sim" else backend
machine = lab00.this_machine(ranks=real_ranks, backend=real)
print(f"{machine.device.name}, measured on {machine.profile['date']}")

# %% [markdown]
# The next program has four layers. `phase` names a part of it, so that it can be left out. The prediction uses the time
# of each operation and of each message. The **makespan** is the time from the launch to the end of the last work. Is
# the predicted makespan too short or too long, and by how many percent?

# %%
my_guess_error = lab00.guess("makespan error (negative: too short)", None, interactive, "%")


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


rows = lab00.batch_for(machine, 512, 6 * 4 * 512**3)  # more on a GPU, to run for about 20 ms
where = {"ranks": real_ranks, "backend": real, "cluster": machine}
where["fidelity"] = "shapes" if real == "nccl" else "values"  # predict from shapes alone
comparison = reconcile(train, 4, rows, 512, **where, without="setup")
lab00.show(comparison.figure(title="Predicted and measured"))
lab00.print_text(comparison.reading())
my_guess_error.reveal(100 * comparison.error)

# %% [markdown]
# `reconcile` ran `train` on the simulated copy of your machine, and on real processes: once to warm up, then five
# times. It draws the median run. An **error** of -30% means: predicted too short by 30 percent. **Noise** is half the
# spread of the runs, as a share of their median; a smaller error is not significant.

# %% [markdown]
# Other programs make measured seconds longer, by an unknown amount. So here is your comparison next to one recorded on
# a quiet machine. (The reading says how many cores other programs kept busy.) Errors and noise are in percent.

# %%
lab00.beside_the_recorded(comparison)

# %% [markdown]
# Read the recorded columns; yours may be too noisy. The errors of `forward` and `backward` are smaller than their
# noise. `idle` and `waiting` are missing from the prediction, an error of -100: Python works between operations, and a
# rank waits for one that is late. Both are part of `makespan`. The all-reduces have more noise than error.

# %% [markdown] tags=["instructor"]
# **For the instructor.** Let the class vote on the prediction (8, 14, 16, 56 MB) before the traffic is shown, and again
# after drawing a ring of four people who pass slips of paper. For the deadlock, have two people shake hands under the
# rule "wait until the other's hand is out". On your own quiet machine, `comparison.save("recorded.json")` writes the
# recorded comparison; put it next to this lab's master.

# %% [markdown] tags=["further"] minutes=6
# ## Further: compute during a send
#
# Here rank 0 multiplies after sending, or while it sends. The message has 16 MB, and NVLink, which connects these GPUs,
# carries 450 GB/s in one direction. How many microseconds does the second run save?

# %%
my_guess_us = lab00.guess(
    "microseconds saved (negative if the run that waits first is shorter)",
    None,
    interactive,
    "µs",
)


# %%
def send_and_multiply(wait_first):
    x = torch.ones(2000, 2000)
    if dist.get_rank() == 1:
        dist.recv(x, src=0)
    else:
        handle = dist.isend(x, dst=1)
        if wait_first:
            handle.wait()  # isend and wait at once: that is send
        product = x @ x
        handle.wait()
        return product.sum().item()


runs = [launch(send_and_multiply, first, ranks=2, cluster=cluster) for first in (True, False)]
waits_us, hides_us = (1e6 * run.timeline.makespan_s for run in runs)
print(f"wait first: {waits_us:.1f} µs; wait last: {hides_us:.1f} µs")
my_guess_us.reveal(waits_us - hides_us)

# %% [markdown]
# The difference is the time of the message, which the product hides. On `dgx-h100` it is 37.5 µs: 16 MB take 35.6 µs at
# 450 GB/s, and the simulator adds a latency of 1.9 µs, the time of the smallest message. (Do not change a tensor
# between `isend` and `wait`.)

# %% [markdown] tags=["further"] minutes=10
# ## Further: random numbers, rank by rank
#
# Which random numbers must be equal on all ranks, and which must differ?
#
# Look at `step` again: every rank calls `torch.randn` for its weights. **Seeding** sets the start of the random
# numbers. How many *different* numbers do 4 ranks draw without a seed, with the same seed, and with the seed plus the
# rank?

# %%
my_guess_draws = lab00.guess("different numbers (in this order)", None, interactive, "count")


# %%
def draw(seeding):
    if seeding == "same seed":
        torch.manual_seed(7)
    if seeding == "seed + rank":
        torch.manual_seed(7 + dist.get_rank())
    return round(torch.rand(1).item(), 4)


ways = "no seed", "same seed", "seed + rank"
drawn = [launch(draw, way, ranks=4).values for way in ways]
print(*zip(ways, drawn, strict=True), sep="\n")
my_guess_draws.reveal([len(set(values)) for values in drawn])

# %% [markdown]
# Without a seed, and with seed + rank, each rank draws different numbers; with one seed, all draw the same.
#
# **Weights** need one seed: ranks that start from different weights train different models. **Noise and dropout**
# (which switches off random parts of a layer) need different ones. And all ranks shuffle their data
# with the **same** seed: each takes its own part of one order, as PyTorch's `DistributedSampler` does. ("Further: the
# order of the data" shows the effect of different seeds.)

# %% [markdown]
# **Exercise 4.** From one `seed`, make weights that are equal on all ranks and data that differ on every rank, without
# sending a byte. For seeds 0 to 999 and up to 32 ranks, all these weights and data must be different tensors; only the
# weights of one seed are equal, on all ranks.


# %% tags=["exercise"]
def weights_and_data(seed):
    """Two tensors of shape (4, 4) from `torch.randn`: all ranks' weights, this one's data."""
    ### BEGIN SOLUTION
    torch.manual_seed(seed)
    weights = torch.randn(4, 4)
    torch.manual_seed(1000 * (seed + 1) + dist.get_rank())
    data = torch.randn(4, 4)
    return weights, data
    ### END SOLUTION


# %%
def try_seeds():
    return [tensor[0, 0].item() for tensor in weights_and_data(3)]


lab00.try_out(try_seeds, ranks=4, cluster=cluster)  # weights equal, data not

# %% tags=["check"] points=2
check.weights_and_data(weights_and_data)

# %% [markdown] tags=["further"] minutes=4
# ## Further: the order of the data
#
# Three ranks shuffle 12 examples, and each takes every third. How many different examples do they train on if each
# shuffles with a different seed, and with the same seed?

# %%
my_guess_examples = lab00.guess(
    "different examples (different seeds, the same seed)", None, interactive, "count"
)


# %%
def my_part(seed_of_rank):
    torch.manual_seed(seed_of_rank[dist.get_rank()])
    order = torch.randperm(12)  # 12 examples, shuffled
    return order[dist.get_rank() :: 3].tolist()  # every third, from my rank on


counts = []
for seeds in ((7, 8, 9), (7, 7, 7)):
    parts = launch(my_part, seeds, ranks=3).values
    counts.append(len(set(sum(parts, []))))
    print(f"seeds {seeds}: {counts[-1]} different examples in {parts}")
my_guess_examples.reveal(counts)

# %% [markdown]
# With different seeds, ranks train on some examples twice and miss others. With one seed, each example is in one part.

# %% [markdown] tags=["further"] minutes=13
# ## Further: something breaks
#
# A correct program can stop as well. Llama 3 405B was trained on 16,384 GPUs. In 54 days the training had 419
# unexpected interruptions: one every three hours.
#
# We let rank 1 die in the middle of a step. Predict: where will each of the others stop?

# %%
healthy = launch(step, side, side, ranks=4, cluster=cluster)
death = lab00.KillRank(1, at_s=healthy.timeline.makespan_s / 2)
broken = lab00.launch_or_error(step, side, side, ranks=4, cluster=cluster, faults=[death])

# %% [markdown]
# They finish their own work, then wait in the `all_reduce`. The simulator names the rank that died. Gloo fails at once.
# With NCCL the others hang until a time limit, and the logs list the ranks that waited: look for the rank that is
# missing there. A cross marks the death:

# %%
lab00.show(broken.run.timeline.figure(title="Rank 1 dies; the others wait for it"))

# %% [markdown]
# A dead rank stops the run; a wrong number does not. The fault below puts one NaN ("not a number") into the gradient of
# rank 2, as a defective chip might. How many of 4 ranks have a finite gradient before the ranks add them up, and after?

# %%
my_guess_finite = lab00.guess(
    "ranks with a finite gradient (before the sum, after the sum)", None, interactive, "ranks"
)


# %%
def finite_gradients():
    layer = torch.nn.Linear(64, 64, bias=False)
    layer(torch.randn(16, 64)).square().mean().backward()
    grad = layer.weight.grad
    before = grad.isfinite().all().item()
    dist.all_reduce(grad)
    return before, grad.isfinite().all().item()


nan = lab00.CorruptGradient(2, kind="nan")
run = launch(finite_gradients, ranks=4, cluster=cluster, faults=[nan])
before, after = (sum(flags) for flags in zip(*run.values, strict=True))
my_guess_finite.reveal([before, after])

# %% [markdown]
# The sum spreads the NaN to every rank. The rank that had it can only be found before the sum.
#
# Another collective shares a value of each rank with all ranks. `dist.all_gather(tensors, x)` fills a list of n
# tensors, all of the shape and type of `x`: the r-th is the `x` of rank r.


# %%
def ask_everybody():
    answers = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(answers, torch.tensor([10.0 * dist.get_rank()]))
    return [answer.item() for answer in answers]


print("values:", launch(ask_everybody, ranks=3, cluster=cluster).values)

# %% [markdown]
# **Exercise 5.** Before the sum, find the ranks with a number that is not finite: NaN, or infinite of either sign.
# Every rank returns the same sorted list, an empty one if all numbers are finite. Leave `grad` unchanged; it may have
# any shape and any floating-point type of 16 bits or more.
#
# Budget: one collective, in which every rank contributes one number.


# %% tags=["exercise"]
def corrupted_ranks(grad):
    """The ranks with a NaN or an infinity in `grad`, as a sorted list, on every rank."""
    ### BEGIN SOLUTION
    is_bad = torch.tensor([0.0 if grad.isfinite().all() else 1.0])
    flags = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(flags, is_bad)
    return [rank for rank, flag in enumerate(flags) if flag.item()]
    ### END SOLUTION


# %%
def try_corrupted():
    number = (1.0, float("nan"), 2.0, float("-inf"))[dist.get_rank()]
    return corrupted_ranks(torch.tensor([[0.0, number]]))


lab00.try_out(try_corrupted, ranks=4, cluster=cluster)  # each should return [1, 3]

# %% tags=["check"] points=2
check.corrupted_ranks(corrupted_ranks)

# %% [markdown] tags=["further"] minutes=4
# ## Further: explore
#
# Move the sliders and watch the timeline. Two questions to start with. On `dgx-h100`, double the rows: what happens to
# the bars, and why? And on which cluster does communication take the largest part of the time?


# %%
def simulate(ranks, rows, factor, cluster):
    faults = [lab00.SlowRank(1, factor)]  # each operation takes `factor` times as long
    return launch(step, rows, 256, ranks=ranks, cluster=cluster, faults=faults).timeline


clusters = ("dgx-h100", "dgx-a100", "pcie-a100", "laptop")
controls = [
    lab00.IntChoice("ranks", "Ranks", (2, 3, 4), 4),
    lab00.IntChoice("rows", "Rows of data on each rank", (32, 64, 128, 256), 128),
    lab00.IntChoice("factor", "Rank 1 takes this many times as long", (1, 2, 4, 8), 1),
    lab00.Choice("cluster", "Cluster", clusters, "dgx-h100"),
]
examples = [{"factor": 8}, {"cluster": "laptop"}]  # shown where there are no widgets
lab00.explore(simulate, lab00.figure_timeline, controls, interactive, examples)

# %% [markdown]
# <details><summary>Answers</summary>
#
# Only the last bar of backward grows, the product that sums over the rows. In the forward product, each number is a sum
# of 256 terms for any number of rows, and a GPU has room for all rows at once. All other operations take about 5 µs,
# the simulator's time of the smallest operation on a GPU.
#
# Communication takes the largest part on `laptop`, where processes exchange messages slowly. Among the GPU clusters it
# is `pcie-a100`, which lacks NVLink.
#
# </details>

# %% [markdown] tags=["further"] minutes=3
# ## Further: the calibration
#
# The measurements of your machine, next to the simulator's values for an H100, from its catalogue of machines. FLOP/s
# are floating-point operations per second; a multiplication and an addition are two of them.

# %%
import pandas as pd

h100 = lab00.find_cluster("dgx-h100")
pd.DataFrame({"here": lab00.speeds(machine), "H100": lab00.speeds(h100)})

# %% [markdown]
# The smallest operation includes its launch; for GPUs the catalogue has a rough 5 µs. A **hop** is one message between
# two ranks in a running collective: NCCL's model uses 1.9 µs over NVLink. Here a hop must wake another process. It was
# measured under the load of that moment, and takes longer on busy cores. NCCL adds some microseconds for the call
# itself; the catalogue counts them as zero.

# %% [markdown] tags=["further"] minutes=5
# ## Further: where the bytes are
#
# Memory is limited too: an H100 has 80 GB. `train` has four layers; their weights are its **parameters**. Predict: when
# does a rank's memory rise, and when does it fall?

# %%
import pandas as pd

num_layers, rows, width = 4, 2 * side, side // 2
run = launch(train, num_layers, rows, width, ranks=ranks, cluster=cluster)
memory = lab00.figure_memory(run.memory, timeline=run.timeline, rank=0)
lab00.show(memory)

# %% [markdown]
# Memory grows in forward: each layer stores a result that backward needs, an **activation**. Backward frees them, layer
# by layer, and stores gradients. So memory is highest soon after backward begins. (`other`, on top, is the data and
# temporary tensors. One activation stays: the program still holds the last `x`.) Which lines of the program allocated
# it?

# %%
lab00.print_text(run.memory.explain(rank=0))

# %% [markdown]
# (`mm` is a matrix product, `threshold_backward` the backward of `relu`; a block is a piece of memory.) Such sizes can
# be computed in advance. In each layer weights and gradients have `width` x `width` numbers of 4 bytes, activations
# `rows` x `width`. At the end of forward there is one more activation: the last product, which `relu` reads while it
# writes its result. Formula next to count; "own peak" is the highest memory of one category:

# %%
weights = num_layers * width**2 * 4
activations = (num_layers + 1) * rows * width * 4
formula = {"parameter": weights, "gradient": weights, "activation": activations}
most = lab00.table(memory).set_index("category")["own peak (B)"]
pd.DataFrame({"formula (B)": formula, "counted (B)": most[list(formula)]})

# %% [markdown]
# They are equal to the byte. With so many rows, the activations are larger than everything else: they grow with the
# data, not with the model alone.

# %% [markdown] tags=["further"] minutes=2
# ## Further: how real processes hang
#
# The simulator detects a deadlock at once. Real processes wait until a time limit. We set two seconds, and get from
# each process the line where it waits:

# %%
hang = lab00.launch_or_error(swap, ranks=2, backend="gloo", timeout_s=2)
print(type(hang).__name__)

# %% [markdown]
# The message shows where each rank is stuck. On a cluster you would collect such lines from every machine.
#
# Another mistake: all ranks make the call, but not the *same* call. Real libraries may hang here, crash, or return
# wrong numbers.


# %%
def mismatch():
    length = 3 if dist.get_rank() == 0 else 4
    dist.all_reduce(torch.ones(length))


wrong = lab00.launch_or_error(mismatch, ranks=ranks, cluster=cluster)
print(type(wrong).__name__)

# %% [markdown] minutes=3
# ## Summary
#
# - A distributed program is one function run by many **ranks**, which share data only by messages.
# - A **collective** needs every rank of its group; `send` needs a `recv`. Where one is missing, the others wait.
# - With the ring, a large `all_reduce` makes each rank send up to twice its tensor, for any number of ranks.
# - The slowest rank sets the pace.
# - Predict, run, reconcile: the error points to costs that the prediction leaves out.
#
# **What next.** Lab 08 builds `all_reduce` from `send` and `recv` and computes its cost. Lab 09 trains a model on many
# ranks and hides the communication behind the backward pass.
#
# To continue here: run this lab on four real processes with `lab run 00 --backend gloo --ranks 4`, or set `cluster` to
# `pcie-a100` above.

# %% [markdown]
# **Sources.**
#
# - PyTorch, *Distributed communication package: torch.distributed*: every call used here, and the time limits.
# - PyTorch, *torch.utils.data*, section DistributedSampler: one order of the data for all ranks.
# - S. Bekman, *Machine Learning Engineering*, and NVIDIA, *H100 Tensor Core GPU*, datasheet: the catalogue's speeds and
#   memory. NVIDIA, NCCL, `src/graph/tuning.cc`: 1.9 µs per hop (ring over NVLink). The 5 µs of an operation are a rough
#   figure, not measured. `find_cluster("dgx-h100").device.source` has the rest.
# - F. Darema, D. George, V. Norton, G. Pfister, "A single-program-multiple-data computational model for EPEX/FORTRAN",
#   Parallel Computing 7(1), 1988: SPMD.
# - P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of Parallel
#   and Distributed Computing 69(2), 2009: the ring, and a proof that ranks alone cannot send less.
# - B. Klenk, N. Jiang, G. Thorson, L. Dennison, "An in-network architecture for accelerating shared-memory
#   multiprocessor collectives", ISCA 2020: switches that add.
# - E. G. Coffman, M. J. Elphick, A. Shoshani, "System deadlocks", ACM Computing Surveys 3(2), 1971.
# - A. Grattafiori et al. (Llama Team, AI @ Meta), "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.4:
#   how often something breaks.

# %%
check
