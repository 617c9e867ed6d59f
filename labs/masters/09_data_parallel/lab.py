# %% [markdown]
# # Lab 09: Data parallel
#
# **Question.** How do gradients hide behind backward?
#
# Several GPUs train one model, each on its own part of the batch. They must average their gradients, which takes time.
# You build that step in three ways. In the last one the GPUs communicate while they compute. How much time does that
# save?
#
# **Prerequisites.** Lab 08; helpful: lab 04. **Time.** 60 minutes, without the folded sections, called *further*.

# %%
import copy
from contextlib import nullcontext
from functools import cache, partial

import pandas as pd
import torch
import torch.distributed as dist

from lablib import find_cluster, launch, parallel, phase, reconcile, studies
from lablib.calibration import batch_for, this_machine
from lablib.cost import GroupNetwork, collective_cost
from lablib.course import checks_for, print_text, recorded_comparison, show_source, try_out
from lablib.data import batches, load_corpus, train_val_split
from lablib.figures import figure_lines, figure_memory, figure_scaling, format_quantity, show
from lablib.models import GPT, GPTConfig, model_config, next_token_loss, num_parameters
from lablib.widgets import Choice, IntChoice, LogSlider, explore

check = checks_for("09")
check

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # replicas, 2 to 8
real_ranks: int = 2  # replicas that run as real processes on this machine, 2 or more
cluster: str = "pcie-a100"  # pcie-a100 | dgx-a100 | dgx-h100 | hgx-h200 | laptop
bucket_mb: float = 2.0  # size of a bucket, in MB
interactive: bool = True  # widgets, or static figures
quick: bool = True  # a short training and few repeats

# %% [markdown] minutes=3
# ## A model, and a part of the batch for each rank
#
# A small GPT (a language model) of four layers learns the source code of Python's standard library, which every machine
# has. Each byte is one *token*. *Forward* computes the *loss*, the error of its prediction of the next token.
# *Backward* computes the *gradient*: for each of the model's numbers, its *parameters*, how the loss changes with it.

# %%
node = find_cluster(cluster).devices_per_node
assert 2 <= ranks <= node, (
    f"ranks must be 2 to {node}, the GPUs of one node of {cluster}: got {ranks}."
)
corpus = load_corpus()
train_text, _ = train_val_split(corpus)
sequences, seq_len = 4, 64  # of one rank's part
gpt_config = GPTConfig(
    num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=seq_len
)
model = GPT(gpt_config, seed=0)
gradient_bytes = sum(param.nbytes for param in model.parameters())
num_gradients = len(list(model.parameters()))
print(f"{gradient_bytes // 4:,} parameters in {num_gradients} tensors, 4 bytes each")
print(f"the gradient is as large as the model: {format_quantity(gradient_bytes, 'B')}")

# %% [markdown]
# A *rank* is one process with one GPU. In *data parallel* training each rank holds a *replica*, a full copy of the
# model, and reads its own part of every batch. All ranks shuffle with the same seed, and each takes its slice of that
# order, so no sequence is read twice.

# %%
parts = []
for rank in range(ranks):
    stream = batches(
        train_text, ranks * sequences, seq_len, seed=0, rank=rank, world_size=ranks
    )
    part = next(stream)
    parts.append(part)
    print(
        f"rank {rank} reads {tuple(part.inputs.shape)}: {bytes(part.inputs[0, :48].tolist())}"
    )

# %% [markdown] minutes=3
# ## A prediction
#
# `launch` computes with real numbers on this computer. A *simulator* gives each operation the time that it would take
# on the GPUs of `cluster`. First one GPU: forward, then backward. `phase` names a part of a program; the phase "setup"
# is left out of every time and picture in this lab. The time from the first start to the last end is the *makespan*.


# %%
def prepare():
    with phase("setup"):
        device = torch.get_default_device()  # the rank's GPU, if there is one
        inputs, targets = parts[dist.get_rank()]
        return GPT(gpt_config, seed=0).to(device), inputs.to(device), targets.to(device)


def step_of_one():
    replica, inputs, targets = prepare()
    next_token_loss(replica(inputs), targets).backward()


alone = launch(step_of_one, ranks=1, cluster=cluster).timeline.without("setup")
print(f"forward and backward of one GPU: {format_quantity(alone.makespan_s, 's')}")

# %% [markdown]
# n ranks read n times as much text in a step. But then they exchange gradients: each sends at least 2(n-1)/n times
# their bytes, if ranks do the adding (Patarasuk and Yuan, 2009; lab 08). A switch that adds, as with NVIDIA's SHARP,
# nearly halves that for many ranks. A *link* joins the GPUs: slots of the main board (PCIe), or NVLink.

# %%
machine = find_cluster(cluster)
sent_bytes = 2 * (ranks - 1) / ranks * gradient_bytes
link = machine.intra
send_s = sent_bytes / link.bandwidth_bytes_per_s
print(
    f"{ranks} GPUs on {link.name},",
    f"{format_quantity(link.bandwidth_bytes_per_s, 'B/s')} each way",
)
print(f"sent per rank: {format_quantity(sent_bytes, 'B')}, in {format_quantity(send_s, 's')}")

# %% [markdown]
# *Scaling efficiency* is the time of a step on one GPU divided by the time on n GPUs: 100% is perfect. Write down two
# guesses.

# %%
# a share such as 0.5: the efficiency if gradients are exchanged after backward
my_guess_naive = None
my_guess_best = None  # the same, if the exchange overlaps with backward as well as possible
print("guesses:", my_guess_naive, "and", my_guess_best)

# %% [markdown] minutes=9
# ## Average the gradients
#
# The loss is a mean over sequences. So the gradient of the whole batch is the mean of the gradients of its equal
# parts (Goyal et al., 2017, section 3). `dist.all_reduce(x)` replaces `x` on every rank by the sum over all ranks. With
# equal gradients all replicas take the same step, and stay equal.

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
# Try it: one number of the gradient on each rank, before and after.
# Which number must be on the right?
def before_and_after():
    replica, inputs, targets = prepare()
    next_token_loss(replica(inputs), targets).backward()
    before = float(replica.final_norm.weight.grad[0])
    average_gradients(replica)
    return f"{before:+.6f} before, {float(replica.final_norm.weight.grad[0]):+.6f} after"


try_out(before_and_after, ranks=ranks, cluster=cluster)

# %% tags=["check"] points=2
check.average_gradients(average_gradients)

# %% [markdown] minutes=3
# ## The naive step on a timeline
#
# Now the simulator runs this step on all ranks in the simplest, the *naive* way: forward, backward, then one all-reduce
# for each parameter. How long will they take together?


# %%
def naive_step():
    replica, inputs, targets = prepare()
    next_token_loss(replica(inputs), targets).backward()
    with phase("average"):
        parallel.average_gradients(replica)


naive_run = launch(naive_step, ranks=ranks, cluster=cluster)
naive = naive_run.timeline.without("setup")
show(naive.figure(ranks=[0, 1], title="Naive: averaged after backward, one by one"))

# %% [markdown]
# All ranks do the same; two are drawn. F is forward, B backward, C communication, X the division. Each rank has two
# lanes: its compute and, below, `world`, the communication among all ranks. C is *exposed*: the GPU waits for it and
# computes nothing. See how many calls there are, and how short they are.


# %%
def report(name, step, guess=None):
    efficiency = alone.makespan_s / step.makespan_s
    num_calls = len(step.select(rank=0, stream="comm"))
    exposed = format_quantity(step.exposed_s(0), "s")
    print(f"{name}: {num_calls} all-reduces, {exposed} of exposed communication")
    print(f"a step takes {format_quantity(step.makespan_s, 's')}, efficiency {efficiency:.0%}")
    if guess is not None:
        print(f"you guessed {guess:.0%}")


report("naive", naive, my_guess_naive)
print(f"sending alone should take {format_quantity(send_s, 's')}")

# %% [markdown] minutes=11
# ## Buckets: fewer calls
#
# Communication takes longer than sending the bytes should (and each division is a kernel of a few microseconds). An
# all-reduce must be started, and its messages cross the links in several rounds: each call costs this *latency*, even
# for few bytes, and it grows with the number of ranks. (Small ones go through a tree, which has fewer rounds.) And most
# gradients are tiny: the gradients of a layer's *biases* and *norms*, its vectors.

# %%
network = GroupNetwork(machine, range(ranks))
counts = pd.Series([param.nbytes for param in model.parameters()]).value_counts().sort_index()
rows = {}
for size, count in counts.items():
    one_s = collective_cost("all_reduce", size, network).time_s
    bytes_s = 2 * (ranks - 1) / ranks * size / link.bandwidth_bytes_per_s
    seconds = {
        "one all-reduce": one_s,
        "its bytes alone": bytes_s,
        "all of this size": count * one_s,
    }
    in_words = {name: format_quantity(value, "s") for name, value in seconds.items()}
    rows[format_quantity(size, "B")] = {"how many": count} | in_words
pd.DataFrame(rows).T.rename_axis("gradient of")

# %% [markdown]
# ### Exercise 2: plan the buckets
#
# A *bucket* is one buffer for many gradients, which pay latency once. (Horovod calls this tensor fusion: Sergeev and
# Del Balso, 2018.) Backward goes from the last layer to the first. So go from the last parameter to the first, with one
# bucket open. Close it only when the next gradient does not fit, and open another. A gradient larger than a bucket gets
# a separate bucket.


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
try_out(plan_buckets, [40, 60, 8, 30, 20], bucket_bytes=100)  # by hand: [[4, 3, 2], [1, 0]]

# %% tags=["check"] points=2
check.plan_buckets(plan_buckets)

# %% [markdown]
# To use a plan, gradients are copied into a bucket (*packed*), and one all-reduce averages them all; then each gradient
# becomes a *view*, a part of its bucket's memory. Packing costs memory traffic, so it is useful only if latency costs
# more. PyTorch's own class fills buckets of 25 MiB. This model's gradient is smaller than 25 MiB, so here buckets are
# smaller, too.

# %%
bucket_bytes = int(bucket_mb * 1e6)
params = list(model.parameters())
for number, bucket in enumerate(parallel.plan_buckets(params, bucket_bytes)):
    size = format_quantity(sum(params[i].nbytes for i in bucket), "B")
    print(
        f"bucket {number}: {len(bucket):2d} gradients, {size},",
        f"parameters {bucket[0]} to {bucket[-1]}",
    )


# %%
def bucketed_step():
    replica, inputs, targets = prepare()
    next_token_loss(replica(inputs), targets).backward()
    with phase("average"):
        parallel.average_gradients_in_buckets(replica, bucket_bytes=bucket_bytes)


bucketed_run = launch(bucketed_step, ranks=ranks, cluster=cluster)
bucketed = bucketed_run.timeline.without("setup")
show(
    bucketed.figure(ranks=[0, 1], title="Bucketed: averaged after backward, a bucket at a time")
)
report("bucketed", bucketed)

# %% [markdown] minutes=16
# ## Overlap: send while backward goes on
#
# There are fewer calls, but all are still exposed. But the last layer's gradient is final long before backward ends. A
# *hook* is a function that *autograd*, which runs backward, calls at such a moment. This one records the order.

# %%
order = []
listener = copy.deepcopy(model)
for name, param in listener.named_parameters():
    param.register_post_accumulate_grad_hook(lambda param, name=name: order.append(name))
next_token_loss(listener(parts[0].inputs), parts[0].targets).backward()
print("first:", *order[:4], sep="\n    ")
print("last:", *order[-4:], sep="\n    ")

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
# Try it: two steps on the same text. Both must return the result of exercise 1, on all ranks.
def two_steps():
    replica, inputs, targets = prepare()
    finish, after = overlap(replica), []
    for _ in range(2):
        replica.zero_grad()
        next_token_loss(replica(inputs), targets).backward()
        finish()
        after.append(f"{float(replica.final_norm.weight.grad[0]):+.6f}")
    return " and ".join(after)


try_out(two_steps, ranks=ranks, cluster=cluster)

# %% tags=["check"] points=3
check.overlap(overlap)

# %% [markdown]
# The library's `DataParallel` does this with buckets. Its three phases: count ready gradients; launch a complete bucket
# without waiting; when backward ends, wait for the remaining buckets. Below is the first, which calls the other two:
# names that begin with `_` are private. `queue_callback` calls a function when backward ends, as in torch's class.
# Buckets are sent in one fixed order, since all ranks must make the same calls in the same order. (PyTorch's first
# bucket takes 1 MiB, so that sending begins early.)

# %%
show_source(parallel.DataParallel._on_gradient, after=check.overlap)


# %%
def overlapped_step():
    replica, inputs, targets = prepare()
    with phase("setup"):
        replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes)
    next_token_loss(replica(inputs), targets).backward()


overlapped_run = launch(overlapped_step, ranks=ranks, cluster=cluster)
overlapped = overlapped_run.timeline.without("setup")
show(overlapped.figure(ranks=[0, 1], title="Overlapped: buckets are sent during backward"))

# %% [markdown]
# Now C runs beneath B. The C on the right came too late to be hidden: the last bucket is complete only when backward is
# over, and the lane may still be busy with the one before. Compare the three, and your second guess.

# %%
steps = {"naive": naive, "bucketed": bucketed, "overlapped": overlapped}
rows = {}
for name, step in steps.items():
    communication_s = sum(
        span.end_s - span.start_s for span in step.select(rank=0, stream="comm")
    )
    seconds = {
        "step": step.makespan_s,
        "communication": communication_s,
        "exposed": step.exposed_s(0),
    }
    rows[name] = {column: format_quantity(value, "s") for column, value in seconds.items()}
    rows[name]["efficiency"] = f"{alone.makespan_s / step.makespan_s:.0%}"
report("at best", overlapped, my_guess_best)
pd.DataFrame(rows).T

# %% [markdown]
# The best stays below 100% for two reasons: exposed communication (the column *exposed*), and packing, which makes
# backward longer by the rest. Packing is expensive here: many *kernels* (operations of the GPU) of this small model
# take little more than the microseconds in which a kernel starts, and so does each copy.

# %% [markdown] minutes=8
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
try_out(last_all_reduce_end, ready_s=[1.0, 5.0], bucket_s=[1.0, 2.0])
try_out(last_all_reduce_end, ready_s=[1.0, 2.0], bucket_s=[4.0, 1.0])

# %% tags=["check"] points=2
check.last_all_reduce_end(last_all_reduce_end)

# %% [markdown]
# The library computes the time of one step of one GPU, operation by operation, and records when each gradient is ready.
# It adds the copies of packing and, if all-reduces overlap, your rule; the other two ways need no rule, only a sum. The
# table compares this formula with the simulator, which ran every rank.


# %%
def loss_of(module):
    return next_token_loss(module(parts[0].inputs), parts[0].targets)


profile = studies.profile_step(model, loss_of, machine.device)
rows = {}
for method, step in steps.items():
    predicted_s = studies.predict_step(profile, machine, ranks, bucket_bytes, method).step_s
    rows[method] = {
        "formula": format_quantity(predicted_s, "s", 4),
        "simulator": format_quantity(step.makespan_s, "s", 4),
    }
    rows[method]["error"] = f"{predicted_s / step.makespan_s - 1:+.2%}"
pd.DataFrame(rows).T

# %% [markdown] minutes=3
# ## Reconcile: predicted and measured
#
# Now a step on real processes of this computer, connected by the library *gloo* (on GPUs by NCCL). To *calibrate* is to
# measure how fast they compute and send; it takes half a minute once. `reconcile` predicts the program, runs it several
# times, and compares; a step in phase "setup" is a warm-up. Guess: which of forward, backward and exposed communication
# is furthest off, in percent?


# %%
def warm_step(times):
    with phase("setup"):
        replica, inputs, targets = prepare()
        inputs, targets = inputs.repeat(times, 1), targets.repeat(times, 1)
        replica = parallel.DataParallel(replica, bucket_bytes=bucket_bytes)
        next_token_loss(replica(inputs), targets).backward()
        dist.barrier()
    next_token_loss(replica(inputs), targets).backward()


real = "nccl" if backend == "nccl" else "gloo"
machine = this_machine(ranks=real_ranks, backend=real)
there = {"ranks": real_ranks, "backend": real, "cluster": machine, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"
flops = 6 * num_parameters(gpt_config) * parts[0].inputs.numel()
times = batch_for(machine, 1, flops)  # repeated on a GPU
comparison = reconcile(warm_step, times, **there, repeats=3 if quick else 7)
show(comparison.figure())
print_text(comparison.reading())

# %% [markdown]
# In the picture a rank is *waiting* until another rank makes the same call, and *idle* when nothing runs. Next to your
# numbers are recorded ones, with the load of their machine. An error is negative if the prediction is too short.
# *Noise* is half the spread of the runs over their median: an error smaller than the noise has no meaning.

# %%
recorded = recorded_comparison("09")
print_text(f"{recorded}")
parts_of_a_step = ["forward", "backward", "exposed", "makespan"]
comparison.beside(recorded).loc[parts_of_a_step].map("{:.0f}%".format).replace("nan%", "-")

# %% [markdown]
# In the recording the errors of forward and backward are about their noise. In percent *exposed* is furthest off:
# nearly all of the sending was predicted to be hidden, and every delay is exposed. Gloo's threads move the bytes on the
# two cores that run backward: in the prediction they take turns. Half of the difference in makespan is time that the
# prediction does not include: one rank waits for the other, and Python works between operations.

# %% [markdown]
# On GPUs overlap is not quite free either. NCCL's kernels, which move the bytes, take some of the GPU's processors and
# memory bandwidth from backward (Rashidi et al., 2021). The simulator does not model this, so real overlap saves less.

# %% [markdown] minutes=3
# ## Explore: efficiency against ranks
#
# Now the formula alone, up to 64 GPUs, for this lab's model and for GPT-2 with its 124 million parameters. Change the
# bucket, then the batch. When does overlap save nearly everything? When nothing?

# %%
MODELS = {
    "this lab's (3.2M)": gpt_config,
    "GPT-2 (124M)": model_config("gpt2", max_seq_len=256),
}


@cache
def profile_of(name, sequences, device_of):
    shape = GPT(MODELS[name], device="meta")  # shapes without values
    tokens = torch.zeros(sequences, MODELS[name].max_seq_len, dtype=torch.long, device="meta")
    device = find_cluster(device_of).device
    return studies.profile_step(shape, lambda gpt: next_token_loss(gpt(tokens), tokens), device)


gpt2 = profile_of("GPT-2 (124M)", sequences=8, device_of="pcie-a100")
forward, backward = format_quantity(gpt2.forward_s, "s"), format_quantity(gpt2.backward_s, "s")
print(f"GPT-2 on one GPU of pcie-a100, 8 sequences: forward {forward}, backward {backward}")

# %%
NUM_RANKS = [1, 2, 4, 8, 16, 32, 64]


def efficiencies(bucket, sequences, name, machine):
    one, where = profile_of(name, sequences, machine), find_cluster(machine)
    efficiency = partial(studies.scaling_efficiency, one, where, bucket_bytes=int(bucket))
    return {way: [efficiency(n, method=way) for n in NUM_RANKS] for way in steps}


controls = [
    LogSlider("bucket", "Bucket", 1e4, 1e9, 2e7, unit="B"),
    IntChoice("sequences", "Sequences per rank", (1, 2, 4, 8, 16, 32), 8),
    Choice("name", "Model", tuple(MODELS), "GPT-2 (124M)"),
    Choice("machine", "Cluster", ("pcie-a100", "dgx-a100", "dgx-h100"), "pcie-a100"),
]
examples = [{"bucket": 1e9}, {"name": "this lab's (3.2M)"}]
draw_scaling = partial(figure_scaling, NUM_RANKS)
explore(efficiencies, draw_scaling, controls, interactive=interactive, examples=examples)

# %% [markdown]
# <details><summary>When does overlap save nearly everything, and when nothing?</summary>
#
# With a bucket as large as the whole gradient, the only all-reduce starts when backward is over: nothing is hidden, and
# overlapped equals bucketed. With a large batch backward is long: all but the last bucket are hidden. The last one of
# GPT-2 is its embedding, 154 MB: no smaller bucket divides it.
#
# </details>

# %% [markdown] tags=["further"] minutes=10
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
    replica, inputs, targets = prepare()
    micro_batches = list(zip(inputs.split(1), targets.split(1), strict=True))
    accumulate(parallel.DataParallel(replica), loss_of_part, micro_batches)
    return f"{float(replica.final_norm.weight.grad[0]):+.6f}"


try_out(accumulated, ranks=ranks, cluster=cluster)

# %% tags=["check"] points=2
check.accumulate(accumulate)

# %% [markdown]
# Four micro-batches, with and without `no_sync`: the gradients are equal, since averaging an average changes nothing.
# Only the bytes differ, so the check has a budget.


# %%
def four_micro_batches(is_lazy):
    replica = parallel.DataParallel(GPT(model_config("tiny", max_seq_len=seq_len), seed=0))
    inputs, targets = (
        tokens.to(torch.get_default_device()) for tokens in parts[dist.get_rank()]
    )
    for number, micro_batch in enumerate(zip(inputs.split(1), targets.split(1), strict=True)):
        with replica.no_sync() if is_lazy and number < 3 else nullcontext():
            (loss_of_part(replica, micro_batch) / 4).backward()
    return torch.cat([param.grad.flatten() for param in replica.parameters()])


always, lazy = (launch(four_micro_batches, is_lazy, ranks=ranks) for is_lazy in (False, True))
for name, run in [("always", always), ("no_sync", lazy)]:
    calls = [transfer for transfer in run.traffic.transfers if transfer.name == "all_reduce"]
    sent = sum(sum(call.sent_bytes) for call in calls) / ranks
    print(f"{name:8s} all-reduces: {len(calls)}, sent per rank: {format_quantity(sent, 'B')}")
difference = float((always.values[0] - lazy.values[0]).abs().max())
print(f"largest difference between the two gradients: {difference:.0e} (rounding in 32 bits)")

# %% [markdown] tags=["further"] minutes=6
# ## Further: memory
#
# The step also costs memory. Forward has to keep the *activations* for backward: the inputs of its products and
# functions. Guess first: when in a step does a rank use the most memory?

# %%
show(figure_memory(naive_run.memory, timeline=naive, rank=0))

# %% [markdown]
# Activations accumulate during forward. Backward frees them, last layer first, and adds gradients. So memory peaks near
# the end of forward. *Other* is temporary memory of backward. Now overlapped: a bucket is a copy. What does that
# change?

# %%
show(figure_memory(overlapped_run.memory, timeline=overlapped, rank=0))
rows = {}
for name, run in {
    "naive": naive_run,
    "bucketed": bucketed_run,
    "overlapped": overlapped_run,
}.items():
    held = run.memory.at_peak(0)
    rows[name] = {
        "peak": format_quantity(run.memory.peak_bytes(0), "B"),
        "in": run.memory.peak_phase(0),
    }
    rows[name]["activations then"] = format_quantity(held["activation"], "B")
    rows[name]["gradients and buckets then"] = format_quantity(held["gradient"], "B")
print(
    "by formula parameters, gradients and buckets are",
    f"{4 * num_parameters(gpt_config):,} bytes each",
)
pd.DataFrame(rows).T

# %% [markdown]
# Nothing at the peak: as soon as a bucket is packed, its gradients become views of it, and their own memory is free
# again. PyTorch's own class keeps both by default, two copies of the gradients when backward ends. Its option
# `gradient_as_bucket_view=True` saves the second copy in memory; and the copying, too, if
# `zero_grad(set_to_none=False)` keeps the views. Both classes keep their buckets for the next step.

# %% [markdown] tags=["further"] minutes=3
# ## Further: the same gradient
#
# A fast step must also be correct. So compare raw gradients with the gradients of one GPU that reads the whole batch,
# in float64, where rounding is tiny. Weights after some steps of the optimizer Adam are not a good test: Adam divides
# by the gradient's own size, which hides a wrong scale.

# %%
small = model_config("tiny", max_seq_len=seq_len)
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

# %% [markdown] tags=["further"] minutes=6
# ## Further: two nodes
#
# Between *nodes* (machines) links are slower than inside one. So average in three stages: add up inside each node, so
# that each rank has a *shard*, its part of the sum; all-reduce the shards across nodes; gather the result inside.

# %%
local, num_nodes = 4, 2
two_nodes = machine.replace(name="two nodes of four", devices_per_node=local)
across = GroupNetwork(two_nodes, range(num_nodes * local))
through_a_card = {  # the busiest network card of a node
    "ring": 2 * (num_nodes * local - 1) / (num_nodes * local) * gradient_bytes,
    "hierarchical": 2 * (num_nodes - 1) / num_nodes * gradient_bytes / local,
}
rows = {}
for algorithm, size in through_a_card.items():
    cost = collective_cost("all_reduce", gradient_bytes, across, algorithm=algorithm)
    rows[algorithm] = {"time": format_quantity(cost.time_s, "s")}
    rows[algorithm]["sent per rank"] = format_quantity(cost.sent_bytes[0], "B")
    rows[algorithm]["through the busiest card"] = format_quantity(size, "B")
pd.DataFrame(rows).T

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
            GPT(gpt_config, seed=0), bucket_bytes=bucket_bytes, reduce=average
        )
        inputs, targets = (
            tokens.to(torch.get_default_device()) for tokens in parts[dist.get_rank() % ranks]
        )
    next_token_loss(replica(inputs), targets).backward()


run = launch(hierarchical_step, ranks=num_nodes * local, cluster=two_nodes)
step = run.timeline.without("setup")
show(step.figure(ranks=[0, local], title="Hierarchical: ranks 0 and 4, on two nodes"))

# %% [markdown]
# The ranks form a *mesh*, a grid with the axes node and local. Each rank now has two communication lanes: `mesh_local`
# inside its node, `mesh_node` across. A bucket goes to its next stage when a later bucket is launched, so the stages of
# different buckets overlap, too.

# %% [markdown] tags=["further"] minutes=4
# ## Further: the size of a bucket
#
# The same formula against the size of a bucket, first for this lab's model. Small buckets pay latency many times; one
# huge bucket is ready only when backward is over, and hides nothing. Which size is best? Does it depend on the number
# of ranks? Then take GPT-2.

# %%
BUCKETS = [10.0 ** (exponent / 4) for exponent in range(16, 37)]


def step_times(num_ranks, sequences, name, machine):
    one = profile_of(name, sequences, machine)
    predict = partial(studies.predict_step, one, find_cluster(machine), num_ranks)
    bucketed_s = [predict(int(bucket), "bucketed").step_s for bucket in BUCKETS]
    overlapped_s = [predict(int(bucket), "overlapped").step_s for bucket in BUCKETS]
    return {
        "bucketed": bucketed_s,
        "overlapped": overlapped_s,
        "one GPU": [one.step_s] * len(BUCKETS),
    }


def draw(series):
    return figure_lines(BUCKETS, series, "bucket", "step", x_unit="B", y_unit="s", log_x=True)


others = [
    IntChoice("num_ranks", "Ranks", (2, 4, 8, 16, 32, 64), 8),
    IntChoice("sequences", "Sequences per rank", (1, 2, 4, 8, 16, 32), 4),
    Choice("name", "Model", tuple(MODELS), "this lab's (3.2M)"),
    controls[-1],
]
examples = [{"num_ranks": 2}, {"name": "GPT-2 (124M)", "sequences": 8}]
explore(step_times, draw, others, interactive=interactive, examples=examples)

# %% [markdown]
# <details><summary>Which size is best?</summary>
#
# For this lab's model, on A100s with PCIe, some 6 MB on 2 ranks and 2 MB on 4 to 64: it hardly changes, though small
# buckets cost more with more ranks. GPT-2's line is nearly flat to the left: its embedding, 154 MB, is one bucket at
# any size, and its time dominates.
#
# </details>

# %% [markdown] minutes=1
# ## Summary
#
# - The mean of the gradients of equal parts is the gradient of the whole batch. Divide once.
# - In an all-reduce each rank sends 2(n-1)/n of the gradient's bytes, in one piece or in many.
# - Buckets reduce the cost of latency. Hooks start them during backward, so that at best only the last one is exposed.
# - One profile and one rule, `end = max(end, ready) + seconds`, predict the step for any number of ranks.

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
