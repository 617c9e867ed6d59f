# %% [markdown]
# # Lab 09: Data parallel
#
# **Question.** How do gradients hide behind backward?
#
# Several GPUs train one model, each on its own part of the batch. They must agree on the gradient, and agreeing takes
# time. You will build that step in three ways. In the last one the GPUs talk while they compute, and most of the
# talking costs nothing.

# %%
import copy
import inspect
from contextlib import nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import islice

import pandas as pd
import torch
import torch.distributed as dist

from lablib import find_cluster, launch, parallel, phase, reconcile
from lablib.calibration import this_machine
from lablib.cost import GroupNetwork, collective_cost
from lablib.course import checks_for
from lablib.data import batches, load_corpus, train_val_split
from lablib.figures import figure_lines, figure_memory, figure_scaling, format_quantity, show
from lablib.models import GPT, GPTConfig, model_config, next_token_loss, num_parameters
from lablib.widgets import Choice, IntChoice, LogSlider, explore

check = checks_for("09")
check

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # replicas, 2 or more
real_ranks: int = 2  # replicas that run as real processes on this machine, 2 or more
cluster: str = "pcie-a100"  # pcie-a100 | dgx-a100 | dgx-h100 | hgx-h200 | laptop
bucket_mb: float = 2.0  # size of a bucket, in MB
interactive: bool = True  # widgets, or static figures
quick: bool = True  # a short training, a few seconds

# %% [markdown]
# ## Real text
#
# The model will learn from the source code of Python's own standard library: it is on every machine that runs this
# lab. Each byte is one token, so there are 256 of them. The checksum tells whether two machines train on the same
# bytes.

# %%
corpus = load_corpus()
train_text, _ = train_val_split(corpus)
print(f"{corpus.size_bytes:,} bytes from the {corpus.source}\nsha256 {corpus.sha256}\n")
print(corpus.text(40_000, 40_300))

# %% [markdown]
# ## The model and its gradient
#
# A small GPT of four layers. Its *gradient* says for each parameter how the loss changes with it, so it is as large
# as the model. *Backward* is the pass that computes it. *Forward*, before it, computes the loss.

# %%
sequences, seq_len = 4, 64  # one rank's part of a batch
gpt_config = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=seq_len)
model = GPT(gpt_config, seed=0)
gradient_bytes = sum(param.nbytes for param in model.parameters())
num_gradients = len(list(model.parameters()))
print(f"{gradient_bytes // 4:,} parameters in {num_gradients} tensors, 4 bytes each")
print(f"the gradient: {format_quantity(gradient_bytes, 'B')}")

# %% [markdown]
# ## A prediction
#
# A *rank* is one process with one GPU. Each rank holds a *replica*, a full copy of the model, and reads sequences of
# its own: n ranks read n times as much text in a step. But communication makes the step longer. *Scaling efficiency*
# is the time of a step on one GPU divided by that on n. (PCIe links are ordinary ones; NVLink is ten times faster.)

# %%
machine = find_cluster(cluster)
my_guess_naive = 0.9  # your guess: the efficiency if gradients are averaged after backward
my_guess_best = 0.9  # your guess: the efficiency if communication is hidden as well as can be
send_s = 2 * (ranks - 1) / ranks * gradient_bytes / machine.intra.bandwidth_bytes_per_s
print(f"{ranks} GPUs on {machine.intra.name}: sending takes each {format_quantity(send_s, 's')} a step")
print(f"noted: {my_guess_naive:.0%} if averaged after backward, {my_guess_best:.0%} at best")

# %% [markdown]
# ## The mean of the parts is the whole
#
# The loss is a mean over sequences. So the gradient of the whole batch is the mean of the gradients of its equal
# parts. *All-reduce* is the call that sums a tensor over all ranks: `dist.all_reduce(x)` changes `x` in place on every
# rank. Then all replicas take the same step and stay equal.

# %% [markdown]
# ## Exercise 1: average the gradients
#
# Write the step between backward and the optimizer. The budget is what an all-reduce must send: each rank 2(n-1)/n
# times the bytes of the gradient. Stuck? Run `check.average_gradients.hint()` in a new cell.


# %% tags=["exercise"]
def average_gradients(module):
    """Replace the gradient of every parameter by its mean over all ranks, in place."""
    ### BEGIN SOLUTION
    for param in module.parameters():
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)
    ### END SOLUTION


# %% tags=["check"] points=2
check.average_gradients(average_gradients)

# %% [markdown]
# Here is the library's version; the lab uses it from now on, whether you have solved the exercise or not. It divides
# before the sum: in 16 bits the sum of many large numbers can overflow. A *group* is a set of ranks; `None` means all.

# %%
print(inspect.getsource(parallel.average_gradients))

# %% [markdown]
# ## Run it: the naive step
#
# First the batch: every rank reads its own sequences of bytes. Then one step, in the three ways of this lab. A
# *phase* is a part of the program with a name, given by `phase`. What is in phase "setup" is left out of the pictures.

# %%
bucket_bytes = int(bucket_mb * 1e6)
parts = []
for rank in range(ranks):
    stream = batches(train_text, ranks * sequences, seq_len, rank=rank, world_size=ranks)
    part = next(stream)
    parts.append(part)
    print(f"rank {rank} reads {tuple(part.inputs.shape)}: {bytes(part.inputs[0, :48].tolist())}")


# %%
def prepared():
    device = torch.get_default_device()  # the rank's GPU, where there is one
    inputs, targets = parts[dist.get_rank()]
    return GPT(gpt_config, seed=0).to(device), inputs.to(device), targets.to(device)


def one_step(method):
    with phase("setup"):
        replica, inputs, targets = prepared()
        if method == "overlapped":
            replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes)
    next_token_loss(replica(inputs), targets).backward()
    with phase("average"):
        if method == "naive":
            parallel.average_gradients(replica)
        if method == "bucketed":
            parallel.average_gradients_in_buckets(replica, bucket_bytes=bucket_bytes)


def simulate(method, num_ranks=ranks):
    run = launch(one_step, method, ranks=num_ranks, cluster=cluster)
    return run, run.timeline.without("setup")


_, alone = simulate("alone", num_ranks=1)
print(f"a step of one GPU: {format_quantity(alone.makespan_s, 's')}")

# %%
naive_run, naive = simulate("naive")
show(naive.figure(title="Naive: averaged after backward, one by one"))

# %% [markdown]
# The letters: F forward, B backward, C communication, X the division. Under each rank's compute stands `world`, the
# stream that carries the communication of all ranks. All of C is *exposed*: the GPUs compute nothing meanwhile. Look
# at how many calls there are, and how short.

# %%
num_calls = len(naive.select(rank=0, stream="comm"))
print(f"{num_calls} all-reduces, {format_quantity(naive.exposed_s(0), 's')} of exposed communication")
print(naive_run.summary(timeline=naive).sentence())
print(f"efficiency {alone.makespan_s / naive.makespan_s:.0%}; you guessed {my_guess_naive:.0%}")

# %% [markdown]
# *Waiting* is for a rank that comes later, and a *bubble* is time with nothing to do: equal ranks have neither. *MFU*
# is the share of the device's best speed that the step reached. On a large GPU it is small here: this model's products
# of matrices do not fill it.

# %% [markdown]
# ## What holds the bytes
#
# Time is one price, memory is the other: a GPU has so many bytes and no more. Forward has to keep what backward will
# need, the *activations*: the inputs of its products and functions. Here is what rank 0 holds, under its step. Guess
# first: when is it the most?

# %%
show(figure_memory(naive_run.memory, timeline=naive, rank=0))

# %% [markdown]
# Activations pile up all through forward. Backward takes them from the pile, last layer first, and leaves gradients.
# So the most is held near the turn. Averaging adds nothing: it works in place. *Other* is what backward needs for a
# moment.


# %%
def most(run):
    """The most bytes that rank 0 ever held of each category."""
    return {name: int(size_bytes.max()) for name, size_bytes in run.memory.curve(0)[1].items()}


memory = naive_run.memory
print(f"parameters {memory.at_peak(0)['parameter']:,} bytes, gradients in the end {most(naive_run)['gradient']:,}")
print(f"by formula {4 * num_parameters(gpt_config):,} for each: 4 bytes a number")
print(f"peak       {memory.peak_bytes(0):,} bytes, in {memory.peak_phase(0)}")

# %% [markdown]
# ## Many small calls
#
# Every all-reduce costs a fixed time, its *latency*, whatever it carries. In this cluster a small one is nearly all
# latency. How large are the gradients? Most of them are tiny: the biases and the norms of each layer.

# %%
network = GroupNetwork(machine, range(ranks))
counts = pd.Series([param.nbytes for param in model.parameters()]).value_counts().sort_index()
rows = {}
for size, count in counts.items():
    seconds = collective_cost("all_reduce", size, network).time_s
    rows[format_quantity(size, "B")] = {"how many": count, "one all-reduce": format_quantity(seconds, "s")}
    rows[format_quantity(size, "B")]["all of them"] = format_quantity(count * seconds, "s")
pd.DataFrame(rows).T.rename_axis("gradient of")

# %% [markdown]
# ## Exercise 2: plan the buckets
#
# A *bucket* is one buffer that holds many gradients, so that they travel together. Backward goes from the last layer
# to the first. Fill buckets in that order: the last parameter first. A gradient larger than a bucket gets one of its
# own. Use as few buckets as this order allows.


# %% tags=["exercise"]
def plan_buckets(sizes_bytes, bucket_bytes):
    """Lists of parameter indices, one list a bucket, of at most `bucket_bytes` each.

    sizes_bytes: bytes of each parameter, in order of registration: about that of forward.
    """
    ### BEGIN SOLUTION
    buckets, filled_bytes = [], 0
    for index in reversed(range(len(sizes_bytes))):
        if not buckets or filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
    ### END SOLUTION


# %% tags=["check"] points=2
check.plan_buckets(plan_buckets)

# %% [markdown]
# The library's plan for this model. With it, packing copies gradients into the bucket and one all-reduce averages
# them all. Packing costs memory traffic, so it pays only where latency is worse.

# %%
params = list(model.parameters())
plan = parallel.plan_buckets(params, bucket_bytes)
for number, bucket in enumerate(plan):
    size = sum(params[i].nbytes for i in bucket)
    which = f"parameters {bucket[0]} to {bucket[-1]}"
    print(f"bucket {number}: {len(bucket):2d} gradients, {format_quantity(size, 'B')}, {which}")

# %%
print(inspect.getsource(parallel.average_gradients_in_buckets))

# %%
bucketed_run, bucketed = simulate("bucketed")
show(bucketed.figure(title="Bucketed: averaged after backward, a bucket at a time"))

# %% [markdown]
# ## Hooks: hear when a gradient is ready
#
# Fewer calls, and still every one of them is exposed. But the last layer's gradient is final long before backward
# ends. A *hook* is a function that autograd calls at such a moment. This one notes the order.

# %%
order = []
listener = copy.deepcopy(model)
for name, param in listener.named_parameters():
    param.register_post_accumulate_grad_hook(lambda param, name=name: order.append(name))
next_token_loss(listener(parts[0].inputs), parts[0].targets).backward()
print("first:", *order[:4], sep="\n    ")
print("last:", *order[-4:], sep="\n    ")

# %% [markdown]
# Note what the hook receives: the *parameter*, whose gradient is in `param.grad`. An easy mistake is to average `param`
# itself: equal weights stay as they are, the gradients stay different, and nobody notices for a while. The token
# embedding comes last: its matrix is the head's too, so its gradient is complete only at the end.

# %% [markdown]
# ## Exercise 3: overlap
#
# *Overlap* means communicating while computing. `work = dist.all_reduce(x, async_op=True)` starts an all-reduce and
# returns at once; `work.wait()` waits for its end. Start one for each gradient as it gets ready, without buckets. The
# budget is in simulated seconds.


# %% tags=["exercise"]
def overlap(module):
    """Register hooks that start averaging each gradient during backward.

    Returns a function without arguments, to be called after backward: it waits for all of them.
    """
    ### BEGIN SOLUTION
    works = []

    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()

    return finish
    ### END SOLUTION


# %% tags=["check"] points=3
check.overlap(overlap)

# %% [markdown]
# The library's `DataParallel` does this with buckets. Read its three phases: count what is ready; launch a bucket that
# is complete, and do not wait; when backward ends, wait for what is left. Buckets leave in one fixed order: all ranks
# must make the same calls in the same order.

# %%
source = inspect.getsource(parallel.DataParallel)
print(source[source.index("    # ---- 1.") :])

# %%
overlapped_run, overlapped = simulate("overlapped")
show(overlapped.figure(title="Overlapped: a bucket leaves while backward goes on"))

# %% [markdown]
# Now C runs beneath B. What sticks out on the right is the last bucket: it is complete only when backward is over, so
# nothing is left to hide it. Compare the three.

# %%
steps = {"naive": naive, "bucketed": bucketed, "overlapped": overlapped}
runs = {"naive": naive_run, "bucketed": bucketed_run, "overlapped": overlapped_run}
rows = {}
for name, step in steps.items():
    summary = runs[name].summary(timeline=step)
    rows[name] = {
        "all-reduces": len(step.select(rank=0, stream="comm")),
        "step": format_quantity(summary.step_time_s, "s"),
        "communication": format_quantity(summary.communication_s[0], "s"),
        "exposed": format_quantity(summary.exposed_s[0], "s"),
        "efficiency": f"{alone.makespan_s / step.makespan_s:.0%}",
    }
print(f"You guessed {my_guess_naive:.0%} after backward, and {my_guess_best:.0%} at best.")
pd.DataFrame(rows).T

# %% [markdown]
# The best is below 100% for two reasons: the last bucket, and the packing, which makes backward itself longer. This
# model is small: many of its kernels (a kernel is one operation of the GPU) take little more than the microseconds in
# which a kernel starts. So packing weighs more than in a large model. You will change the size further down.

# %% [markdown]
# Overlap has a price in bytes. A bucket is a copy, and it must stay until its all-reduce has ended. How much more than
# the naive step does this one hold at its peak, and where does the peak lie now?

# %%
show(figure_memory(overlapped_run.memory, timeline=overlapped, rank=0))

# %%
rows = {}
for name, run in runs.items():
    held = run.memory.at_peak(0)
    rows[name] = {"peak": format_quantity(run.memory.peak_bytes(0), "B"), "in": run.memory.peak_phase(0)}
    rows[name]["activations then"] = format_quantity(held["activation"], "B")
    rows[name]["gradients and buckets then"] = format_quantity(held["gradient"], "B")
print(f"the gradient {format_quantity(gradient_bytes, 'B')}, and twice that {format_quantity(2 * gradient_bytes, 'B')}")
pd.DataFrame(rows).T

# %% [markdown]
# Overlapped, all buckets are alive when backward ends: the gradients are there twice. "Bucketed" frees the gradients of
# a bucket before it fills the next, so it never holds more than one bucket too much. PyTorch's own class can put the
# gradients into the buckets from the start (`gradient_as_bucket_view=True`), which saves the copy.

# %% [markdown]
# ## All the same gradient
#
# Faster is worth nothing if it is wrong. So compare raw gradients with those of one GPU that reads the whole batch, in
# float64, where rounding is tiny. Not weights after some steps of the optimizer Adam: it divides by the gradient's own
# size, which hides a wrong scale.


# %%
small = model_config("tiny", max_seq_len=64)


def gradient(method):
    replica = wrapped = GPT(small, seed=0, dtype=torch.float64)
    inputs, targets = parts[dist.get_rank()]
    if method == "one GPU":
        inputs, targets = (torch.cat(tokens) for tokens in zip(*parts, strict=True))
    if method == "overlapped":
        wrapped = parallel.DataParallel(replica, bucket_bytes=100_000)
    if method == "torch's own":
        wrapped = torch.nn.parallel.DistributedDataParallel(replica)
    next_token_loss(wrapped(inputs), targets).backward()
    if method == "naive":
        parallel.average_gradients(replica)
    if method == "bucketed":
        parallel.average_gradients_in_buckets(replica, bucket_bytes=100_000)
    return torch.cat([param.grad.flatten() for param in replica.parameters()])


print(f"a smaller model for this: {num_parameters(small):,} parameters, in float64")


# %%
expected = launch(gradient, "one GPU", ranks=1).values[0]
for method in ["no average", "naive", "bucketed", "overlapped", "torch's own"]:
    values = launch(gradient, method, ranks=ranks, trace=False).values
    error = max(float((value - expected).abs().max()) for value in values)
    print(f"{method:12s} differs from one GPU by at most {error:.1e}")
print(f"{'':12s} (the largest gradient is {float(expected.abs().max()):.1e})")

# %% [markdown]
# ## Exercise 4: predict the end
#
# When does the last all-reduce end? Bucket i is ready at `ready_s[i]` and takes `bucket_s[i]`. There is one
# communication stream: it works on one bucket at a time, in order. With this formula you need no cluster to know
# what a cluster would do.


# %% tags=["exercise"]
def last_all_reduce_end(ready_s, bucket_s):
    """Seconds after the start of backward at which the last all-reduce ends."""
    ### BEGIN SOLUTION
    end_s = 0.0
    for ready, seconds in zip(ready_s, bucket_s, strict=True):
        end_s = max(end_s, ready) + seconds
    return end_s
    ### END SOLUTION


# %% tags=["check"] points=2
check.last_all_reduce_end(last_all_reduce_end)

# %% [markdown]
# The library's prediction adds packing to that. It prices one step of one GPU, operation by operation, and notes when
# each gradient is ready. The rest is the formula. Here it stands beside the simulator, which ran every rank.


# %%
def loss_of(module):
    return next_token_loss(module(parts[0].inputs), parts[0].targets)


profile = parallel.profile_step(model, loss_of, machine.device)
print(profile)
for method, step in steps.items():
    predicted_s = parallel.predict_step(profile, machine, ranks, bucket_bytes, method).step_s
    words = [format_quantity(seconds, "s", 4) for seconds in (predicted_s, step.makespan_s)]
    error = predicted_s / step.makespan_s - 1
    print(f"{method:10s}  formula {words[0]}, simulator {words[1]}, error {error:+.2%}")

# %% [markdown]
# ## Accumulate, and send once
#
# A batch that does not fit into memory is cut into *micro-batches*. Each has its own forward and backward, and
# backward adds to the gradient that is already there: *accumulation*. Only the total must be averaged over ranks.
# `with replica.no_sync():` keeps `DataParallel` from sending.

# %% [markdown]
# ## Exercise 5: accumulate
#
# Take all micro-batches of this rank, and leave in every gradient the mean over all micro-batches of all ranks. Call
# `loss_of(replica, micro_batch)` for a loss. Mind the mean, and the budget: the bytes of one all-reduce of the
# gradient, however many micro-batches.


# %% tags=["exercise"]
def accumulate(replica, loss_of, micro_batches):
    """Accumulate the gradients of equal micro-batches; communicate once."""
    ### BEGIN SOLUTION
    num = len(micro_batches)
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / num).backward()
    (loss_of(replica, micro_batches[-1]) / num).backward()
    ### END SOLUTION


# %% tags=["check"] points=2
check.accumulate(accumulate)

# %% [markdown]
# What it saves: four micro-batches, with and without `no_sync`. The gradients are equal, since averaging an average
# changes nothing. Only the bytes tell the two apart, which is why the check has a budget.


# %%
def four_micro_batches(is_lazy):
    replica, inputs, targets = prepared()
    replica = parallel.DataParallel(replica)
    for number, (x, y) in enumerate(zip(inputs.split(1), targets.split(1), strict=True)):
        with replica.no_sync() if is_lazy and number < 3 else nullcontext():
            (next_token_loss(replica(x), y) / 4).backward()
    return torch.cat([param.grad.flatten() for param in replica.parameters()])


always, lazy = (launch(four_micro_batches, is_lazy, ranks=ranks) for is_lazy in (False, True))
for name, run in [("always", always), ("no_sync", lazy)]:
    calls = [transfer for transfer in run.traffic.transfers if transfer.name == "all_reduce"]
    sent = sum(sum(call.sent_bytes) for call in calls) / ranks
    print(f"{name:8s} all-reduces: {len(calls)}, a rank sends {format_quantity(sent, 'B')} a step")
difference = float((always.values[0] - lazy.values[0]).abs().max())
print(f"largest difference between the two gradients: {difference:.1e} (rounding in 32 bits)")

# %% [markdown]
# ## Two nodes: a hierarchy of links
#
# Between *nodes* (machines) the links are slower than inside one. So average in three stages: add up inside each node,
# in shards; all-reduce each shard across nodes; spread the result inside. Each rank then sends only its shard's share
# through the slow link.

# %%
two_nodes = machine.but(name="two nodes of four", devices_per_node=4)
across = GroupNetwork(two_nodes, range(8))
outer_bytes = {  # through the busiest link between nodes
    "ring": 2 * 7 / 8 * gradient_bytes,  # a flat ring over 8 ranks passes everything
    "hierarchical": 2 * 1 / 2 * gradient_bytes / 4,  # two nodes exchange one shard of four
}
rows = {}
for algorithm, size in outer_bytes.items():
    cost = collective_cost("all_reduce", gradient_bytes, across, algorithm=algorithm)
    rows[algorithm] = {"time": format_quantity(cost.time_s, "s")}
    rows[algorithm]["a rank sends"] = format_quantity(cost.sent_bytes[0], "B")
    rows[algorithm]["through the busiest outer link"] = format_quantity(size, "B")
pd.DataFrame(rows).T

# %% [markdown]
# In code, the three stages are a `reduce` for `DataParallel`: how a bucket becomes its mean. Each bucket moves on to
# its next stage when a later one is launched, so the stages of different buckets overlap, too.

# %%
print(inspect.getsource(parallel.HierarchicalAverage._stages))


# %%
def hierarchical_step():
    with phase("setup"):
        average = parallel.HierarchicalAverage(parallel.node_mesh(ranks_per_node=4))
        replica = copy.deepcopy(model)
        replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes, reduce=average)
        inputs, targets = parts[dist.get_rank() % ranks]
    next_token_loss(replica(inputs), targets).backward()


run = launch(hierarchical_step, ranks=8, cluster=two_nodes)
step = run.timeline.without("setup")
show(step.figure(ranks=[0, 4], title="Hierarchical: ranks 0 and 4, on two nodes"))

# %% [markdown]
# The ranks form a *mesh*, a grid with the axes node and local. Each rank now has two communication streams:
# `mesh_local` inside its node, `mesh_node` across. Libraries such as NCCL choose such a route by themselves where it is
# faster. Written out, a stage can be changed: one may compress what goes across.

# %% [markdown]
# ## Train on the text
#
# Everything so far was one step. Now some dozens, with the optimizer *SGD*: each step subtracts a multiple of the
# gradient, smoothed over the last steps (momentum). If the replicas' gradient is that of the whole batch, the loss
# curve of many GPUs is the curve of one.


# %%
def train(num_steps, text=train_text):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with phase("setup"):
        replica = parallel.DataParallel(GPT(small, seed=0).to(torch.get_default_device()))
        optimizer = torch.optim.SGD(replica.parameters(), lr=0.1, momentum=0.9)
    stream = batches(text, 4 * ranks, 64, rank=rank, world_size=world_size)
    losses = []
    for batch in islice(stream, num_steps):
        inputs, targets = (tokens.to(torch.get_default_device()) for tokens in batch)
        loss = next_token_loss(replica(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


print(f"the smaller model again, {num_parameters(small):,} parameters: this takes seconds")


# %%
num_steps = 40 if quick else 400
one = launch(train, num_steps, ranks=1, trace=False).values[0]
run = launch(train, num_steps, ranks=ranks, backend=backend, cluster=cluster, trace=False)
mean = [sum(losses) / ranks for losses in zip(*run.values, strict=True)]
curves = {"one GPU": one, f"{ranks} GPUs, mean over ranks": mean}
title = "One curve: training on the standard library"
show(figure_lines(range(1, num_steps + 1), curves, "step", "loss", y_unit="nats", title=title))
print(f"largest difference: {max(abs(a - b) for a, b in zip(one, mean, strict=True)):.1e} nats")

# %% [markdown]
# Two lines lie on top of each other. The loss starts near ln 256 = 5.5 *nats* (the natural unit of information), that
# of a model that knows nothing of bytes. With other ranks the sums have another order, so the last digits differ, and
# training lets such differences grow slowly.

# %% [markdown]
# Momentum must be kept from step to step: it is *optimizer state*. How many bytes a parameter does training hold then,
# when activations and buckets are left out? Here are two steps, on a few pages: the whole text would hide the rest.

# %%
pages = replace(train_text, tokens=train_text.tokens[:100_000].clone(), size_bytes=100_000)
run = launch(train, 2, pages, ranks=ranks, cluster=cluster)
show(figure_memory(run.memory, timeline=run.timeline.without("setup"), rank=0))

# %%
kept = {"parameter": 4, "gradient": 8, "optimizer state": 4}  # bytes a parameter, by formula
formula = {name: each * num_parameters(small) for name, each in kept.items()}
print(f"optimizer state {most(run)['optimizer state']:,} bytes, formula {formula['optimizer state']:,}")
print(f"gradients and buckets {most(run)['gradient']:,} bytes, formula {formula['gradient']:,}")

# %% [markdown]
# Parameter, gradient, momentum: 12 bytes a parameter, and the buckets 4 more. Adam keeps two numbers where SGD keeps
# one. In the second forward the gradients of the first step are still there, since `zero_grad` stands after it. Before
# it, it would free them sooner.

# %% [markdown]
# ## Reconcile: predicted and measured
#
# Now a step on real processes of this computer; *gloo* is the library that connects them. To predict it, we need this
# computer as a cluster. To *calibrate* is to measure it: how fast its processes compute and send while all are busy.
# That takes half a minute or a bit more the first time, and is kept.

# %%
real = "nccl" if backend == "nccl" else "gloo"
calibrated = this_machine(ranks=real_ranks, backend=real)
speed = format_quantity(calibrated.device.peak("float32"), "FLOP/s")
bandwidth = format_quantity(calibrated.intra.bandwidth_bytes_per_s, "B/s")
print(f"{real_ranks} ranks on {calibrated.profile['machine']}")
print(f"each computes at most {speed} and sends {bandwidth}, while all are busy")

# %% [markdown]
# A first step in phase "setup" warms up memory and caches. `reconcile` predicts the program, runs it several times, and
# compares. Which part do you expect to be predicted best, and which worst?


# %%
def warm_step():
    with phase("setup"):
        replica, inputs, targets = prepared()
        replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes)
        next_token_loss(replica(inputs), targets).backward()
        dist.barrier()
    next_token_loss(replica(inputs), targets).backward()


there = {"ranks": real_ranks, "backend": real, "cluster": calibrated}
comparison = reconcile(warm_step, **there, repeats=3 if quick else 7, without="setup")
show(comparison.figure())

# %%
numbers = comparison.table()
sizes = [f" of {format_quantity(size, 'B')}" if size else "" for size in numbers["size_bytes"]]
numbers.index = pd.Index(numbers["name"] + sizes, name="part")
for side in ("predicted", "measured"):
    numbers[f"{side} (ms)"] = 1e3 * numbers[f"{side}_s"]
numbers["error (%)"], numbers["noise (%)"] = numbers["error_pct"], numbers["noise_pct"]
numbers[["predicted (ms)", "measured (ms)", "error (%)", "noise (%)"]].round(6).map("{:.3g}".format)

# %% [markdown]
# An error is negative where the prediction is too short. *Noise* is half the spread of the runs over their median: an
# error smaller than it says nothing. A row of an all-reduce counts all of its time, hidden or not; forward, backward,
# exposed, waiting and idle add up to the makespan.

# %% [markdown]
# **What explains the errors?** Forward and backward are mostly products of matrices, which a calibration knows best.
# All-reduces are another matter. They were measured while nobody computed; here gloo's threads move the bytes on the
# very cores that run backward, and each message waits until a process is woken. A GPU's links work by themselves.

# %% [markdown]
# Simulated ranks are equally quick, so they do not wait for each other. Real ones do, the more so where processes
# outnumber cores. And the machine is shared: other programs ran while it was calibrated than run now. After such a
# change, `lab calibrate` measures it anew, and longer.

# %% [markdown]
# ## Explore: efficiency against ranks
#
# Now the formula alone, up to 64 GPUs, for this lab's model and for GPT-2 with its 124 million parameters. (On shapes
# without values, with attention in plain operations.) Move the bucket, then the batch. When does overlap save
# everything? When nothing?

# %%
MODELS = {"this lab's (3.2M)": gpt_config, "GPT-2 (124M)": model_config("gpt2", max_seq_len=256)}


@cache
def profile_of(name, sequences, device_of):
    shape = GPT(MODELS[name], device="meta")
    tokens = torch.zeros(sequences, MODELS[name].max_seq_len, dtype=torch.long, device="meta")
    device = find_cluster(device_of).device
    return parallel.profile_step(shape, lambda gpt: next_token_loss(gpt(tokens), tokens), device)


profile_of("GPT-2 (124M)", sequences=8, device_of="pcie-a100")

# %%
NUM_RANKS = [1, 2, 4, 8, 16, 32, 64]


def efficiencies(bucket, sequences, name, machine):
    one, where = profile_of(name, sequences, machine), find_cluster(machine)
    efficiency = partial(parallel.scaling_efficiency, one, where, bucket_bytes=int(bucket))
    return {way: [efficiency(n, method=way) for n in NUM_RANKS] for way in steps}


some = efficiencies(bucket=2e7, sequences=8, name="GPT-2 (124M)", machine="pcie-a100")
pd.DataFrame(some, index=NUM_RANKS).map("{:.1%}".format).rename_axis("ranks")

# %%
explore(
    efficiencies,
    lambda series: figure_scaling(NUM_RANKS, series),
    [
        LogSlider("bucket", "Bucket", 1e4, 1e9, 2e7, unit="B"),
        IntChoice("sequences", "Sequences a rank", (1, 2, 4, 8, 16, 32), 8),
        Choice("name", "Model", tuple(MODELS), "GPT-2 (124M)"),
        Choice("machine", "Cluster", ("pcie-a100", "dgx-a100", "dgx-h100"), "pcie-a100"),
    ],
    interactive=interactive,
    examples=[{"bucket": 1e9}, {"name": "this lab's (3.2M)"}],
)

# %% [markdown]
# ## Explore: the size of a bucket
#
# The same formula the other way round. Small buckets pay latency many times; one huge bucket is ready only when
# backward is over, and hides nothing. Between the two lies a wide valley. Does it move with the number of ranks?

# %%
BUCKETS = [10.0 ** (exponent / 4) for exponent in range(16, 37)]


def step_times(num_ranks, sequences, name, machine):
    one = profile_of(name, sequences, machine)
    predict = partial(parallel.predict_step, one, find_cluster(machine), num_ranks)
    return {
        "bucketed": [predict(int(bucket), "bucketed").step_s for bucket in BUCKETS],
        "overlapped": [predict(int(bucket), "overlapped").step_s for bucket in BUCKETS],
        "one GPU": [one.step_s] * len(BUCKETS),
    }


def draw(series):
    return figure_lines(BUCKETS, series, "bucket", "step", x_unit="B", y_unit="s", log_x=True)


some = step_times(num_ranks=8, sequences=4, name="this lab's (3.2M)", machine="pcie-a100")
shortest_s, best = min(zip(some["overlapped"], BUCKETS, strict=True))
print(f"8 ranks: shortest step {format_quantity(shortest_s, 's')}, with {format_quantity(best, 'B')} buckets")

# %%
explore(
    step_times,
    draw,
    [
        IntChoice("num_ranks", "Ranks", (2, 4, 8, 16, 32, 64), 8),
        IntChoice("sequences", "Sequences a rank", (1, 2, 4, 8, 16, 32), 4),
        Choice("name", "Model", tuple(MODELS), "this lab's (3.2M)"),
        Choice("machine", "Cluster", ("pcie-a100", "dgx-a100", "dgx-h100"), "pcie-a100"),
    ],
    interactive=interactive,
    examples=[{"name": "GPT-2 (124M)"}],
)

# %% [markdown]
# ## Summary
#
# - The mean of equal parts' gradients is the gradient of the whole batch. Divide once.
# - An all-reduce sends 2(n-1)/n of the gradient's bytes a rank, in one piece or in many.
# - Buckets pay latency less often. Hooks start them during backward, so that at best only the last one is
#   exposed.
# - `no_sync` sends once for many micro-batches. A hierarchy spares the slow links.
# - One profile and a formula predict efficiency for any number of ranks.

# %% [markdown]
# ## Sources
#
# - Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB 2020, arXiv 2006.15704.
# - Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv 1706.02677.
# - Sergeev and Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, arXiv 1802.05799.
# - Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2), 2009.
# - The code: `lablib/parallel/naive_data_parallel.py`, `bucketed_data_parallel.py`, `data_parallel.py`,
#   `hierarchical_aggregation.py`, `data_parallel_scaling.py`.

# %%
check
