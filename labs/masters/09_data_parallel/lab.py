# %% [markdown]
# # Lab 09: Data parallel
#
# **Question.** How do gradients hide behind backward?
#
# Several GPUs train one model, each on its own part of the batch, and must average their gradients. You write the
# average, group its messages, send them while backward computes, and predict the time of the step.
#
# **Prerequisites.** Lab 08; helpful: lab 04. **Time.** 59 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab09

lab09.show(lab09.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # replicas, 2 to 8
real_ranks: int = 2  # replicas that run as real processes on this machine, 2 or more
cluster: str = "pcie-a100"  # pcie-a100 | dgx-a100 | dgx-h100 | hgx-h200 | laptop
bucket_mb: float = 2.0  # size of a bucket, in MB
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %%
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist

from lablib import launch, parallel, phase
from lablib.models import GPT, next_token_loss

check = lab09.checks_for("09")
check

# %% [markdown] minutes=4
# ## A model, and a part of the batch for each rank
#
# A small GPT (a language model) learns the source code of Python's standard library; each byte is one *token*.
# *Forward* computes the *loss*, the error of its predictions; *backward* the *gradient*: for each *parameter* of the
# model, how the loss changes with it. There are 3.2 million parameters of 4 bytes. Guess: how large is the gradient?

# %%
my_guess_gradient = lab09.guess("size of the gradient", None, interactive, "MB")

# %%
model = GPT(lab09.CONFIG, seed=0)
gradient_bytes = sum(param.nbytes for param in model.parameters())
print(f"{len(list(model.parameters()))} tensors, {gradient_bytes // 4:,} parameters")
my_guess_gradient.reveal(gradient_bytes / 1e6)

# %% [markdown]
# A *rank* is one process with one GPU. In *data parallel* training each rank holds a *replica*, a full copy of the
# model, and reads its own part of every batch. All ranks shuffle with the same seed, and each takes its slice of that
# order, so no *sequence*, a row of tokens, is read twice.

# %%
parts = lab09.parts_of_batch(ranks, cluster)
for rank, (inputs, _) in enumerate(parts):
    print(f"rank {rank} reads {tuple(inputs.shape)}: {bytes(inputs[0, :48].tolist())}")

# %% [markdown] minutes=5
# ## A prediction
#
# `launch` computes with real numbers on this computer; a *simulator* gives each operation the time that it would take
# on the GPUs of `cluster`. `phase` names a part of a program; "setup" is left out of all times and pictures. The time
# from the first start to the last end is the *makespan*. First one GPU:


# %%
def step_of_one():
    replica, inputs, targets = lab09.prepare(parts)  # in phase "setup"
    next_token_loss(replica(inputs), targets).backward()


alone = launch(step_of_one, ranks=1, cluster=cluster).timeline.without("setup")
print(f"forward and backward of one GPU: {lab09.format_quantity(alone.makespan_s, 's')}")

# %% [markdown]
# n ranks read n times as much text in a step. But then they exchange gradients: each sends at least 2(n-1)/n times
# their bytes, if ranks do the adding (Patarasuk and Yuan, 2009; lab 08). A *link* joins the GPUs: slots of the main
# board (PCIe), or NVLink.

# %%
link = lab09.find_cluster(cluster).intra
sent_bytes = 2 * (ranks - 1) / ranks * gradient_bytes
send_s = sent_bytes / link.bandwidth_bytes_per_s
print(f"{ranks} GPUs, {link.name}: {link.bandwidth_bytes_per_s / 1e9:.3g} GB/s each way")
print(f"sent per rank: {sent_bytes / 1e6:.1f} MB, in {lab09.format_quantity(send_s, 's')}")

# %% [markdown]
# *Scaling efficiency* is the time of a step on one GPU divided by the time on n GPUs, with equally many sequences on
# each: 100% is perfect. Type two guesses: if gradients are exchanged after backward; and if the exchange overlaps with
# backward as well as possible.

# %%
my_guess_naive = lab09.guess("efficiency, exchange after backward", None, interactive, "%")
my_guess_best = lab09.guess("efficiency, best overlap", None, interactive, "%")

# %% [markdown] minutes=6
# ## Average the gradients
#
# The loss is a mean over sequences. So the gradient of the whole batch is the mean of the gradients of its equal
# parts (Goyal et al., 2017, section 3). `dist.all_reduce(x)` replaces `x` on every rank by the sum over all ranks. With
# equal gradients all replicas stay equal.

# %% [markdown]
# ### Exercise 1: average the gradients
#
# Write the step between backward and the *optimizer*, which changes the parameters. The budget: a rank sends 2(n-1)/n
# of the gradient's bytes. Stuck? Run `check.average_gradients.hint()` in a new cell.


# %% tags=["exercise"]
def average_gradients(module):
    """Replace the gradient of every parameter by its mean over all ranks."""
    ### BEGIN SOLUTION
    for param in module.parameters():
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)
    ### END SOLUTION


# %%
trial = {"ranks": ranks, "cluster": cluster}
# One number of the gradient, before and after. Which number must be on the right?
lab09.try_out(lab09.before_and_after, average_gradients, parts, **trial)

# %% tags=["check"] points=2
check.average_gradients(average_gradients)

# %% [markdown] minutes=3
# ## The naive step on a timeline
#
# Now the simulator runs this step in the *naive* way: forward, backward, then one all-reduce for each parameter.


# %%
def averaged_step(average):
    replica, inputs, targets = lab09.prepare(parts)
    next_token_loss(replica(inputs), targets).backward()
    with phase("average"):
        average(replica)


naive_run = launch(averaged_step, parallel.average_gradients, ranks=ranks, cluster=cluster)
naive = naive_run.timeline.without("setup")
lab09.show(naive.figure(ranks=[0, 1], title="Naive: averaged after backward, one by one"))

# %% [markdown]
# Two ranks are drawn; all do the same. F is forward, B backward, C communication, X the division. Each rank has two
# lanes: its compute and, below, `world`, the communication among all ranks. C is *exposed*: the GPU waits for it and
# computes nothing.

# %%
lab09.report("naive", naive, alone)
my_guess_naive.reveal(100 * alone.makespan_s / naive.makespan_s)
print(f"sending alone should take {lab09.format_quantity(send_s, 's')}")

# %% [markdown] minutes=12
# ## One call for each gradient
#
# Communication takes longer than sending the bytes should: each call costs *latency*, as it must be started, and its
# messages cross the links in several rounds. The gradients of vectors (*biases* and *norms*) are tiny. Guess: what
# share of the all-reduces takes at least twice the time of its bytes?

# %%
my_guess_latency = lab09.guess("all-reduces, twice the time or more", None, interactive, "%")

# %%
my_guess_latency.reveal(100 * lab09.share_of_latency(model, cluster, ranks))
lab09.table_of_calls(model, cluster, ranks)

# %% [markdown]
# Latency grows with the number of ranks. Each division takes time, too: it is a *kernel*, an operation of the GPU, of
# a few microseconds.

# %% [markdown]
# ### Exercise 2: plan the buckets
#
# A *bucket* is one buffer for many gradients, which pay latency once. Backward begins at the last layer, so go from the
# last parameter to the first, with one bucket open. Close it when the next gradient does not fit, and open another. A
# gradient larger than a bucket gets a separate bucket.


# %% tags=["exercise"]
def plan_buckets(sizes_bytes, bucket_bytes):
    """A list of buckets, in the order in which they are filled.

    A bucket is a list of parameter indices. Without parameters the list is empty.

    sizes_bytes: bytes of each parameter's gradient, above 0, first one first; not changed.
    bucket_bytes: most bytes of a bucket.
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


# %%
lab09.try_out(plan_buckets, [40, 60, 8, 30, 20], 100)  # by hand: [[4, 3, 2], [1, 0]]

# %% tags=["check"] points=2
check.plan_buckets(plan_buckets)

# %% [markdown]
# To use a plan, gradients are copied into a bucket (*packed*), and one all-reduce averages them all; then each gradient
# becomes a *view*, a part of its bucket's memory. Packing costs memory traffic, so it is useful only if latency costs
# more. (Horovod calls it tensor fusion: Sergeev and Del Balso, 2018. PyTorch fills buckets of 25 MiB.)

# %%
bucket_bytes = int(bucket_mb * 1e6)
params = list(model.parameters())
for number, bucket in enumerate(parallel.plan_buckets(params, bucket_bytes)):
    sizes = [params[i].nbytes for i in bucket]
    print(f"bucket {number}: {len(bucket):2d} gradients, {sum(sizes) / 1e6:.2f} MB")

# %%
in_buckets = partial(parallel.average_gradients_in_buckets, bucket_bytes=bucket_bytes)
bucketed_run = launch(averaged_step, in_buckets, ranks=ranks, cluster=cluster)
bucketed = bucketed_run.timeline.without("setup")
lab09.report("bucketed", bucketed, alone)

# %% [markdown] minutes=16
# ## Ready before backward ends
#
# There are fewer calls, but all are still exposed. Yet most gradients are final long before backward ends, and could be
# sent then. A *hook* is a function that *autograd*, which runs backward, calls when a gradient is final. Guess: of
# which of the model's tensors is the gradient the last to be final?

# %%
kinds = "token embedding, first norm or final norm"
my_guess_last = lab09.guess(f"the last gradient ({kinds})", None, interactive)

# %%
order = []
listener = GPT(lab09.CONFIG, seed=0)
for name, param in listener.named_parameters():
    param.register_post_accumulate_grad_hook(lambda param, name=name: order.append(name))
next_token_loss(listener(parts[0].inputs), parts[0].targets).backward()
print(*order[:3], "...", *order[-3:], sep="\n")
my_guess_last.reveal(order[-1].removesuffix(".weight"))

# %% [markdown]
# The hook receives the *parameter*; its gradient is in `param.grad`. The token embedding comes last. It shares its
# matrix with the *head*, which turns the last layer's output into a score for each token: the head's part of the
# gradient comes first, the embedding's last, and only then is it complete.

# %% [markdown]
# ### Exercise 3: overlap
#
# *Overlap* means communicating while computing (Goyal et al., 2017, section 4; Li et al., 2020). `work =
# dist.all_reduce(x, async_op=True)` starts an all-reduce and returns at once; code after `work.wait()` runs when it has
# ended. Start one for each gradient when it is ready, without buckets. It must work step after step. The budget is in
# simulated seconds.


# %% tags=["exercise"]
def overlap(module):
    """Register hooks that start averaging each gradient during backward.

    Returns a function without arguments, to be called after every backward: it waits for
    all of them and releases them, so that the next step begins with none.
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


# %%
# Two steps on the same text. Both must return the result of exercise 1, on all ranks.
lab09.try_out(lab09.two_steps, overlap, parts, **trial)

# %% tags=["check"] points=3
check.overlap(overlap)

# %% [markdown]
# The library's `DataParallel` does this with buckets: it launches a complete bucket without waiting, and waits for the
# rest when backward ends. All ranks must make the same calls in the same order, so buckets are sent in one fixed order.
#
# How many all-reduces of the buckets listed in "One call for each gradient" end after backward has ended? Think of when
# the last bucket is complete.

# %%
my_guess_late = lab09.guess("all-reduces that end after backward", None, interactive, "count")


# %%
def overlapped_step():
    replica, inputs, targets = lab09.prepare(parts)
    with phase("setup"):
        replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes)
    next_token_loss(replica(inputs), targets).backward()


overlapped_run = launch(overlapped_step, ranks=ranks, cluster=cluster)
overlapped = overlapped_run.timeline.without("setup")
lab09.show(overlapped.figure(ranks=[0, 1], title="Overlapped: sent during backward"))
my_guess_late.reveal(lab09.late_calls(overlapped))

# %% [markdown]
# Now C runs beneath B. The C on the right came too late to be hidden: the last bucket is complete only when backward is
# over, and the lane may still be busy with the one before. Compare the three, and your guess of the best.

# %%
steps = {"naive": naive, "bucketed": bucketed, "overlapped": overlapped}
lab09.report("overlapped", overlapped, alone)
my_guess_best.reveal(100 * alone.makespan_s / overlapped.makespan_s)
lab09.table_of_steps(steps, alone)

# %% [markdown]
# The best stays below 100% mainly because of exposed communication. The rest is packing and division: two short kernels
# for each bucket, which make backward longer.

# %% [markdown] minutes=6
# ## Predict the step
#
# Can the overlapped step be predicted without a cluster? Bucket i is ready `ready_s[i]` seconds after backward's start,
# and its all-reduce takes `bucket_s[i]`. The lane `world` sends one bucket at a time, bucket 0 first, then bucket 1,
# and so on, even if a later one is ready earlier.

# %% [markdown]
# ### Exercise 4: when does the last all-reduce end?
#
# Draw it first for two buckets that are ready after 1 s and 5 s and take 1 s and 2 s; then for two that are ready after
# 1 s and 2 s, and take 4 s and 1 s. Then write the rule for any number of buckets.


# %% tags=["exercise"]
def last_all_reduce_end(ready_s, bucket_s):
    """Seconds from the start of backward to the end of the last all-reduce.

    Two lists of equal length, one bucket or more; not changed.
    """
    ### BEGIN SOLUTION
    end_s = 0.0
    for ready, seconds in zip(ready_s, bucket_s, strict=True):
        end_s = max(end_s, ready) + seconds
    return end_s
    ### END SOLUTION


# %%
lab09.try_out(last_all_reduce_end, ready_s=[1.0, 5.0], bucket_s=[1.0, 2.0])
lab09.try_out(last_all_reduce_end, ready_s=[1.0, 2.0], bucket_s=[4.0, 1.0])

# %% tags=["check"] points=2
check.last_all_reduce_end(last_all_reduce_end)

# %% [markdown]
# With the time of forward, and of backward up to each gradient, on one GPU, this rule predicts the whole step on any
# number of ranks. (The folded "the formula of a step" compares it with the simulator.)

# %% [markdown] minutes=5
# ## Reconcile: predicted and measured
#
# Now the overlapped step on real processes of this computer, connected by the library *gloo* (on GPUs by NCCL). To
# *calibrate* is to measure how fast they compute and send, once, in half a minute. Then the step is predicted, run
# several times, and compared. Guess: in a recording on another machine, which of forward, backward and exposed
# communication was furthest off, in percent?

# %%
my_guess_off = lab09.guess(
    "furthest off in the recording (forward, backward or exposed)", None, interactive
)


# %%
comparison = lab09.reconcile_here(parts, bucket_bytes, real_ranks, backend, 3 if quick else 7)
recorded = lab09.recorded_comparison("09")
my_guess_off.reveal("exposed")  # in the recording
lab09.show(comparison.figure())
lab09.print_text(comparison.reading())

# %% [markdown]
# In the picture a rank is *waiting* until another rank makes the same call, and *idle* when nothing runs. Below, next
# to your numbers, are recorded ones. An error is negative if the prediction is too short. *Noise* is half the spread of
# the runs over their median: an error smaller than the noise has no meaning.

# %%
lab09.print_text(f"{recorded}")
rows = comparison.beside(recorded).loc[["forward", "backward", "exposed", "makespan"]]
rows.map("{:.0f}%".format).replace("nan%", "-")

# %% [markdown]
# In the recording the errors of forward and backward are about their noise. *Exposed* is furthest off, but its noise is
# as large, 50%: four fifths of the sending was predicted to be hidden, so every delay is exposed. Half of the
# difference in makespan is time that the prediction leaves out: one rank waits for the other, and Python works between
# operations. On GPUs NCCL's kernels, which move the bytes, also take some of the GPU's processors and memory bandwidth
# from backward (Rashidi et al., 2021). The simulator leaves this out, so real overlap saves less.

# %% [markdown] tags=["further"] minutes=2
# ## Further: the code of a hook
#
# `DataParallel` has three phases: count ready gradients; launch a complete bucket without waiting; when backward ends,
# wait for the rest. Here is the first, which calls the other two (`queue_callback` calls a function when backward
# ends).

# %%
lab09.show_source(parallel.DataParallel._on_gradient, after=check.overlap)

# %% [markdown] tags=["further"] minutes=2
# ## Further: the formula of a step
#
# This section compares your rule, as a part of a formula for the whole step, with the simulator, which ran every rank.
# The library computes the time of one step of one GPU, operation by operation, and records when each gradient is ready.
# It adds the copies of packing and, if all-reduces overlap, your rule; the other two ways need only a sum.

# %%
lab09.table_of_formulas(model, parts[0], cluster, ranks, bucket_bytes, steps)

# %% [markdown] tags=["further"] minutes=4
# ## Further: efficiency against ranks
#
# This section uses the formula alone, up to 64 GPUs, for this lab's model and for GPT-2 with its 124 million
# parameters. Guess: from which size of a bucket on does overlap save nothing for GPT-2? Then change bucket and batch
# below, and find out.

# %%
my_guess_bucket = lab09.guess(
    "bucket from which overlap saves nothing", None, interactive, "MB"
)

# %%
gpt2 = lab09.profile_of(lab09.GPT2, sequences=8, machine="pcie-a100")
seconds = [lab09.format_quantity(time_s, "s") for time_s in (gpt2.forward_s, gpt2.backward_s)]
print("GPT-2, one GPU, 8 sequences: forward {}, backward {}".format(*seconds))
my_guess_bucket.reveal(gpt2.gradient_bytes / 1e6)  # then there is only one
lab09.explore_scaling(interactive)

# %% [markdown]
# <details><summary>When does overlap save nearly everything, and when nothing?</summary>
#
# With a bucket as large as the whole gradient, the only all-reduce starts when backward is over: nothing is hidden.
# With a large batch backward is long: all but the last bucket are hidden. The last one of GPT-2 is its embedding, 154
# MB: no smaller bucket divides it.
#
# </details>

# %% [markdown] tags=["further"] minutes=12
# ## Further: accumulate, and send once
#
# A batch that does not fit into memory is cut into *micro-batches*. Backward adds to the existing gradient:
# *accumulation*. Only the total must be averaged. `with replica.no_sync():` keeps `DataParallel` from sending. Put
# forward and backward inside: torch's own class decides in forward whether the next backward will send.

# %% [markdown]
# ### Exercise 5: accumulate
#
# Leave in every gradient the mean over all micro-batches of all ranks. `loss_of(replica, micro_batch)` is a loss. Two
# budgets: the bytes of one all-reduce of the gradient, and the memory of one micro-batch at a time.


# %% tags=["exercise"]
def accumulate(replica, loss_of, micro_batches):
    """Accumulate the gradients of a list of equal micro-batches; communicate once.

    The list is not changed.
    """
    ### BEGIN SOLUTION
    num = len(micro_batches)
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / num).backward()
    (loss_of(replica, micro_batches[-1]) / num).backward()
    ### END SOLUTION


# %%
# Try it on single sequences: all ranks must return the result of exercise 1.
def loss_of_part(replica, micro_batch):
    return next_token_loss(replica(micro_batch[0]), micro_batch[1])


def accumulated():
    replica, inputs, targets = lab09.prepare(parts)
    micro_batches = list(zip(inputs.split(1), targets.split(1), strict=True))
    accumulate(parallel.DataParallel(replica), loss_of_part, micro_batches)
    return f"{replica.final_norm.weight.grad[0].item():+.6f}"


lab09.try_out(accumulated, **trial)

# %% tags=["check"] points=2
check.accumulate(accumulate)

# %% [markdown]
# Four micro-batches, with and without `no_sync`: the gradients are equal, since averaging an average changes nothing.
# Only the bytes differ, so the check has a budget.


# %%
def four_micro_batches(is_lazy):
    tiny = GPT(lab09.model_config("tiny", max_seq_len=lab09.SEQ_LEN), seed=0)
    replica, device = parallel.DataParallel(tiny), torch.get_default_device()
    inputs, targets = (tokens.to(device) for tokens in parts[dist.get_rank()])
    for number, micro_batch in enumerate(zip(inputs.split(1), targets.split(1), strict=True)):
        with replica.no_sync() if is_lazy and number < 3 else nullcontext():
            (loss_of_part(replica, micro_batch) / 4).backward()
    return torch.cat([param.grad.flatten() for param in replica.parameters()])


always, lazy = (launch(four_micro_batches, is_lazy, ranks=ranks) for is_lazy in (False, True))
for name, run in [("always", always), ("no_sync", lazy)]:
    calls = [transfer for transfer in run.traffic.transfers if transfer.name == "all_reduce"]
    sent = sum(sum(call.sent_bytes) for call in calls) / ranks
    print(f"{name:8s} all-reduces: {len(calls)}, sent per rank: {sent / 1e6:.3g} MB")
difference = float((always.values[0] - lazy.values[0]).abs().max())
print(f"largest difference between the two gradients: {difference:.0e} (rounding in 32 bits)")

# %% [markdown] tags=["further"] minutes=6
# ## Further: memory
#
# The step also costs memory. Forward has to keep the *activations* for backward: the inputs of its products and
# functions. Guess first: when in a step does a rank use the most memory?

# %%
lab09.show(lab09.figure_memory(naive_run.memory, timeline=naive, rank=0))

# %% [markdown]
# Activations accumulate during forward. Backward frees them, last layer first, and adds gradients. So memory peaks near
# the end of forward. *Other* is temporary memory of backward. Now overlapped: a bucket is a copy. What does that
# change?

# %%
lab09.show(lab09.figure_memory(overlapped_run.memory, timeline=overlapped, rank=0))
rows = {}
for name, run in {
    "naive": naive_run,
    "bucketed": bucketed_run,
    "overlapped": overlapped_run,
}.items():
    held = run.memory.at_peak(0)
    rows[name] = {
        "peak": lab09.format_quantity(run.memory.peak_bytes(0), "B"),
        "in": run.memory.peak_phase(0),
    }
    rows[name]["activations then"] = lab09.format_quantity(held["activation"], "B")
    rows[name]["gradients and buckets then"] = lab09.format_quantity(held["gradient"], "B")
print(
    "by formula parameters, gradients and buckets are",
    f"{4 * lab09.num_parameters(lab09.CONFIG):,} bytes each",
)
lab09.in_rows(rows)

# %% [markdown]
# Nothing at the peak: once a bucket is packed, its gradients become views of it, and their own memory is free again.
# PyTorch's own class keeps both by default: two copies when backward ends. `gradient_as_bucket_view=True` saves the
# second copy in memory; and the copying, too, if `zero_grad(set_to_none=False)` keeps the views. Both classes keep
# their buckets for the next step.

# %% [markdown] tags=["further"] minutes=5
# ## Further: the same gradient
#
# A fast step must also be correct. So compare raw gradients with the gradients of one GPU that reads the whole batch,
# in float64, where rounding is tiny. Weights after some steps of the optimizer Adam are not a good test: Adam divides
# by the gradient's own size, which hides a wrong scale.

# %%
small = lab09.model_config("tiny", max_seq_len=lab09.SEQ_LEN)
METHODS = {
    "no average": lambda replica: replica,
    "overlapped": lambda replica: parallel.DataParallel(replica, bucket_bytes=100_000),
    "torch's own": torch.nn.parallel.DistributedDataParallel,
}


def gradient(wrap, batches_of_ranks):
    replica = GPT(small, seed=0, dtype=torch.float64)
    inputs, targets = batches_of_ranks[dist.get_rank()]
    wrapped = wrap(replica)  # torch's class must outlive backward: it sends from there
    next_token_loss(wrapped(inputs), targets).backward()
    return torch.cat([param.grad.flatten() for param in replica.parameters()])


# %%
whole = [torch.cat(tokens) for tokens in zip(*parts, strict=True)]
expected = launch(gradient, METHODS["no average"], [whole], ranks=1).values[0]
print(f"the largest of {len(expected):,} gradients is {float(expected.abs().max()):.2f}")
for method, wrap in METHODS.items():
    # no timeline is needed
    values = launch(gradient, wrap, parts, ranks=ranks, trace=False).values
    error = max(float((value - expected).abs().max()) for value in values)
    print(f"{method:12s} differs from one GPU by at most {error:.0e}")

# %% [markdown] tags=["further"] minutes=8
# ## Further: two nodes
#
# Between *nodes* (machines) links are slower than inside one. So average in three stages: add up inside each node, so
# that each rank has a *shard*, its part of the sum; all-reduce the shards across nodes; gather the result inside.

# %%
local, num_nodes = 4, 2
two_nodes = lab09.find_cluster(cluster).replace(
    name="two nodes of four", devices_per_node=local
)
across = lab09.GroupNetwork(two_nodes, range(num_nodes * local))
through_a_card = {  # the busiest network card of a node
    "ring": 2 * (num_nodes * local - 1) / (num_nodes * local) * gradient_bytes,
    "hierarchical": 2 * (num_nodes - 1) / num_nodes * gradient_bytes / local,
}
rows = {}
for algorithm, size in through_a_card.items():
    cost = lab09.collective_cost("all_reduce", gradient_bytes, across, algorithm=algorithm)
    rows[algorithm] = {"time": lab09.format_quantity(cost.time_s, "s")}
    rows[algorithm]["sent per rank"] = lab09.format_quantity(cost.sent_bytes[0], "B")
    rows[algorithm]["through the busiest card"] = lab09.format_quantity(size, "B")
lab09.in_rows(rows)

# %% [markdown]
# A single *flat ring* passes the bytes from rank to rank, regardless of nodes: all bytes that leave a node leave
# through one card. (NCCL runs several rings at once, over all cards, and has trees as well.) In the hierarchy each rank
# sends its shard through its own card. The simulator's own all-reduce already uses these stages inside one call, if
# they are faster: the version below is no faster than `DataParallel` alone, but shows its stages.


# %%
def hierarchical_step():
    with phase("setup"):
        average = parallel.HierarchicalAverage(parallel.node_mesh(ranks_per_node=local))
        replica = parallel.DataParallel(
            GPT(lab09.CONFIG, seed=0), bucket_bytes=bucket_bytes, reduce=average
        )
        inputs, targets = (
            tokens.to(torch.get_default_device()) for tokens in parts[dist.get_rank() % ranks]
        )
    next_token_loss(replica(inputs), targets).backward()


run = launch(hierarchical_step, ranks=num_nodes * local, cluster=two_nodes)
step = run.timeline.without("setup")
lab09.show(step.figure(ranks=[0, local], title="Hierarchical: ranks 0 and 4, on two nodes"))

# %% [markdown]
# The ranks form a *mesh*, a grid with the axes node and local. Each rank now has two communication lanes: `mesh_local`
# inside its node, `mesh_node` across. A bucket goes to its next stage when a later bucket is launched, so the stages of
# different buckets overlap, too.

# %% [markdown] tags=["further"] minutes=4
# ## Further: the size of a bucket
#
# The formula of "efficiency against ranks", here against the size of a bucket, first for this lab's model. Small
# buckets pay latency many times; one huge bucket is ready only when backward is over, and hides nothing. Which size is
# best? Does it depend on the number of ranks? Then take GPT-2.

# %%
lab09.explore_buckets(interactive)

# %% [markdown]
# <details><summary>Which size is best?</summary>
#
# For this lab's model, on A100s with PCIe, some 2 MB on 2 to 64 ranks, though small buckets cost more with more ranks.
# GPT-2's line is nearly flat to the left: its embedding, 154 MB, is one bucket at any size, and its time dominates.
#
# </details>

# %% [markdown] minutes=2
# ## Summary
#
# - The mean of the gradients of equal parts is the gradient of the whole batch. Divide once.
# - In an all-reduce each rank sends 2(n-1)/n of the gradient's bytes, in one piece or in many.
# - Buckets reduce the cost of latency. Hooks start them during backward, so that at best only the last one is exposed.
# - One rule, `end = max(end, ready) + seconds`, predicts the step for any number of ranks.

# %% [markdown]
# ### Sources
#
# - S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", Proceedings of the VLDB
#   Endowment 13(12), 2020, arXiv 2006.15704.
# - P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, arXiv 1706.02677.
# - A. Sergeev and M. Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", 2018, arXiv
#   1802.05799.
# - P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal of
#   Parallel and Distributed Computing 69(2), 2009.
# - S. Rashidi et al., "Enabling Compute-Communication Overlap in Distributed Deep Learning Training Platforms",
#   International Symposium on Computer Architecture, 2021, arXiv 2007.00156.
# - The code: `naive.py`, `bucketed.py`, `overlapped.py` and `hierarchical.py` in `lablib/parallel/data`, and
#   `lablib/studies/data_parallel_scaling.py`.

# %%
check
