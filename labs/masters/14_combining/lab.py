# %% [markdown]
# # Lab 14: Combining them
#
# **Question.** Which axis goes where?
#
# Labs 09, 10, 12 and 13 each split one thing over GPUs: the batch, the optimizer's state, matrices, layers. Most runs
# of 100 billion parameters and more combine several. Then every GPU is in several groups, and some groups must
# communicate over slow wires. Which ones? You place them.
#
# **Prerequisites.** Labs 10, 12 and 13; helpful: labs 01, 03 and 04. **Time.** 60 minutes, without the folded sections,
# called *further*.

# %%
from lablib.labs import lab14

lab14.show(lab14.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
real_ranks: int = 4  # ranks that run as real processes on this machine, an even number
cluster: str = "dgx-h100"  # dgx-h100 | dgx-a100 | hgx-h200 | pcie-a100
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=9
# ## Meshes
#
# GPT-3 has 175 billion parameters. In mixed precision with Adam each takes 16 bytes (lab 10): 2.8 TB. A GPU has 80 GB.
# What can be split over GPUs?
# | axis | splits | sends | lab |
# |---|---|---|---|
# | data | the batch | gradients | 09, 10 |
# | pipeline | the layers | activations between stages | 13 |
# | tensor | each matrix | activations inside layers | 12 |
# | context | each sequence | keys and values | 15 |
# | expert | experts, which are MLPs | tokens | 15 |

# %% [markdown]
# With three kinds of splitting, the ranks form a box with three *axes*, a *mesh*. Each rank has a *coordinate* on each
# axis. The coordinates form the rank's number like the digits of a decimal number: the last axis has the units. Here 2
# x 2 x 2 ranks:

# %%
import itertools
import math

import torch
import torch.distributed as dist

from lablib import launch, parallel
from lablib.parallel import Mesh

check = lab14.checks_for("14")
mesh = Mesh(data=2, pipeline=2, tensor=2)
lab14.in_rows({f"rank {rank}": mesh.coordinates(rank) for rank in range(8)}).T

# %% [markdown]
# A *group* along an axis has the ranks that differ only in that coordinate. Ranks 0 and 1 are a tensor group: they
# share the matrices of the same layers, for the same part of the batch. Ranks 0 and 4 have equal weights, and different
# data: a data group. Which ranks does rank 5 communicate with?
#
# ### Exercise 1: the groups of a mesh
#
# Find all groups along one axis. Stuck? Run `check.groups.hint()` in a new cell.


# %% tags=["exercise"]
def groups(sizes, axis):
    """All groups along `axis`, each an ascending list of ranks; in any order.

    sizes: axis -> size, such as {"data": 2, "pipeline": 2, "tensor": 2}; the last axis
        has the units.
    """
    ### BEGIN SOLUTION
    axes, num_ranks = list(sizes), math.prod(sizes.values())
    stride = math.prod(sizes[each] for each in axes[axes.index(axis) + 1 :])
    firsts = [r for r in range(num_ranks) if r // stride % sizes[axis] == 0]
    return [[first + i * stride for i in range(sizes[axis])] for first in firsts]
    ### END SOLUTION


# %%
# Expected: [0, 2, 4], [1, 3, 5]
lab14.try_out(groups, {"data": 3, "tensor": 2}, "data")

# %% tags=["check"] points=2
check.groups(groups)

# %%
for axis in mesh.axes:
    print(f"{axis:9} {mesh.groups(axis)}, {mesh.stride(axis)} apart")

# %% [markdown]
# So rank 5 communicates with 1 (data), 7 (pipeline) and 4 (tensor). In a program on ranks, `mesh.group("tensor")` makes
# the process group; torch has `torch.distributed.device_mesh`.

# %% [markdown] minutes=16
# ## One step on all axes
#
# One step combines four labs: the batch is cut in two (09), the layers run as two stages with 1F1B (13), matrices are
# cut in two (12), and the data ranks share the optimizer's state (ZeRO-1, 10). And the gradient is *clipped*,
# shortened if its norm (its length) is above a limit: for this all ranks need the norm of the *whole* gradient.
#
# No rank has the whole gradient, and some of its numbers are on several ranks. A matrix has different parts on the
# ranks of its tensor group; the weight of a layer norm is whole on each of them, and still counts once. Data ranks
# have copies if their gradients were averaged (09), and different parts if they were reduce-scattered (ZeRO, 10).
#
# ### Exercise 2: the norm of the whole gradient
#
# The budget: each rank makes at most two calls, and sends at most 64 bytes, for any number of ranks.


# %% tags=["exercise"]
def whole_norm(gradients, mesh):
    """The norm of the model's gradient, the same on every rank: the root of the sum of squares.

    gradients: list of pairs (this rank's gradient, names of axes such as ["pipeline",
        "tensor"]), perhaps empty. Ranks with other coordinates on one of these axes have other
        parts, or other gradients; ranks with the same coordinates on all of them have copies.
        Gradients may be in 16 bits; they stay unchanged.
    mesh: `mesh.coordinates(rank)` is axis -> coordinate, `mesh.sizes` axis -> size.
    """
    ### BEGIN SOLUTION
    total = torch.zeros(1, dtype=torch.float64)
    for gradient, axes in gradients:
        copies = math.prod(size for axis, size in mesh.sizes.items() if axis not in axes)
        total += gradient.double().square().sum() / copies
    dist.all_reduce(total)
    return total.sqrt()
    ### END SOLUTION


# %%
# Try it: a matrix whose halves, 3 and 4, are on two tensor ranks; a weight of 12, on both.
# All are also on 2 data ranks. The norm is the root of 9 + 16 + 144: 13.
def four_ranks():
    box = Mesh(data=2, tensor=2)
    half = torch.tensor([3.0 + box.coordinates(dist.get_rank())["tensor"]])
    return whole_norm([(half, ["tensor"]), (torch.tensor([12.0]), [])], box)


lab14.try_out(four_ranks, ranks=4)

# %% tags=["check"] points=3
check.whole_norm(whole_norm)

# %% [markdown]
# `Combination` holds the sizes, and refuses one that does not divide, before any rank starts. `CombinedStep` is the
# step of one rank: it runs the code of those four labs together. Do eight ranks give the same result as one device?
# Three steps of SGD in float64, with clipping:

# %%
alone, whole = launch(lab14.three_steps, Mesh(data=1), ranks=1).values[0]
together, found = launch(lab14.three_steps, mesh, ranks=8).values[5]  # of rank 5
off = max(float((found[name].cpu() - whole[name].cpu()).abs().max()) for name in whole)
for number, (one, all_) in enumerate(zip(alone, together, strict=True)):
    print(f"step {number}: loss {one[0]:.12f} on one device, {all_[0]:.12f} on eight")
    print(f"        norm {one[1]:.12f},               {all_[1]:.12f}")
print(f"parameters of rank 5's whole model off by {off:.0e} at most")

# %% [markdown]
# Losses, norms and parameters are one device's, except for rounding: an axis does not change the result of another.
# Now a realistic model: 16 layers of width 4096, sequences of 2048 tokens, 16 of them in a batch, in bfloat16 with
# ZeRO-1; 2 data x 2 pipeline x 4 tensor ranks, 4 micro-batches. On which axis does a rank send most bytes in a step?
# Guess also the ratio of most to fewest bytes.

# %%
my_guess_axis = lab14.guess("most bytes (data, pipeline or tensor)", None, interactive)
my_guess_factor = lab14.guess("most over fewest bytes", None, interactive, "times")

# %%
large_mesh = Mesh(data=2, pipeline=2, tensor=4)
run = lab14.run_on(large_mesh, cluster)  # CombinedStep on the simulator
step_s = run.timeline.without("setup").makespan_s
print(f"a step of 16 ranks takes {lab14.format_quantity(step_s, 's')}")
by_axis = lab14.sent_by_axis(run, large_mesh)
total = by_axis["sent in total (B)"]
my_guess_axis.reveal(total.idxmax())
my_guess_factor.reveal(total.max() / total.min())
by_axis.map("{:,}".format)

# %% [markdown]
# These are calls of rank 0. Tensor sends most, 50 times as much as pipeline: it sums activations in every layer, for
# every micro-batch. Data sends gradients to the rank that has their optimizer state, and the new parameters back
# (ZeRO-1); pipeline only the activations at a stage's end. But bytes are not seconds: some are sent while a rank
# computes.

# %% [markdown] minutes=17
# ## The order of the axes
#
# Inside a node links are fast, between nodes they are slow. Rank r is on node r // 8, if a node has 8 ranks. So the
# order of the axes decides which ranks share a node: the last axis has neighbours, the first has ranks that are far
# apart. In a ring (lab 08) a rank sends to the next one of its group, and the last to the first.
#
# ### Exercise 3: the order of the axes
#
# Bytes that stay inside a node are cheap. So, given the bytes that a rank sends along each axis in a step, find the
# order in which the fewest bytes cross between nodes. (A pipeline's last stage sends nothing to the first; treat it
# as a ring anyway. And a library may add up inside each node first, so that less crosses; here every ring is flat.)


# %% tags=["exercise"]
def best_order(sizes, sent, per_node):
    """Names of the axes, the farthest apart first, the units last.

    sizes: axis -> ranks. sent: axis -> bytes that each rank sends to the next of its group.
    per_node: ranks on a node. `Mesh(**sizes).groups(axis)` may be used.
    """

    ### BEGIN SOLUTION
    def crossing(order):
        box, total = Mesh(**{axis: sizes[axis] for axis in order}), 0.0
        for axis in order:
            for group in box.groups(axis):
                for a, b in zip(group, group[1:] + group[:1], strict=True):
                    total += sent[axis] * (a // per_node != b // per_node)
        return total

    return min(itertools.permutations(sizes), key=crossing)
    ### END SOLUTION


# %%
# Two nodes of 2: with b last, b's messages stay inside a node, and only a's cross.
lab14.try_out(best_order, {"b": 2, "a": 2}, {"a": 1.0, "b": 5.0}, 2)

# %% tags=["check"] points=3
check.best_order(best_order)

# %% [markdown]
# The order with the fewest bytes need not be the fastest: a message may be hidden behind compute, and its latency
# counts, too. Order the axes of the model above by hand: 16 ranks, two nodes of 8. Which axis do you put first, so that
# it crosses nodes? (In the picture: each GPU has its own network card; a *rail* joins the cards with the same number on
# all nodes.)

# %%
my_guess_first = lab14.guess(
    "first axis of the fastest order (data, pipeline or tensor)", None, interactive
)

# %%
placed = lab14.placed_on(cluster, large_mesh)  # the fastest first
lab14.show(lab14.figure_placements(placed, title=f"16 ranks on {cluster}"))
my_guess_first.reveal(placed[0].mesh.axes[0])
for one in placed:
    lab14.print_text(one.sentence())

# %% [markdown]
# Here the order with the fewest bytes is also the fastest. Orders with the same first axis take nearly the same time:
# with two nodes only the *first* axis crosses nodes. (The bytes are fewer than exercise 3 counts, and differ from the
# run above: this software adds up inside each node first, splits pipeline's messages over the tensor ranks, and adds
# up gradients in 32 bits.)
#
# The seconds are from the *planner*: formulas for the software of large runs on real machines, with kernels and wires
# below their peak speed. The simulator runs our own program, on a machine that always reaches its peak. Do they agree
# on which order is faster?

# %%
table = {}
for one in placed[::2]:
    simulated_s = lab14.run_on(one.mesh, cluster).timeline.without("setup").makespan_s
    table[", ".join(one.mesh.axes)] = {"planner": one.step_time_s, "simulator": simulated_s}
lab14.in_rows(table).map(lambda seconds: lab14.format_quantity(seconds, "s"))

# %% [markdown]
# They agree on the order of these three, not on every second: the planner's software also hides some of tensor's
# messages. The order alone costs a quarter to a third. **The axis that sends most, and cannot hide it, goes inside the
# node; an axis that sends little, or can hide it, goes across.**
#
# (Llama 3, which sends gradients during backward, has data farthest.) In the field below, order the axes by hand, from
# far to near. Then change the wires. How much does the worst order cost on rails, and how much on an *island*, 72 GPUs
# all joined by NVLink? Solid lines separate nodes, dotted lines the groups of the last axis.

# %%
lab14.placement_calculator(interactive)

# %% [markdown]
# <details><summary>Answer</summary>
#
# On rails a step takes 895 ms with tensor last and 1,871 ms with tensor first, 2.1 times as long: here tensor has 8
# ranks, each on another node. On the island all orders take 784 ms: all wires are equally fast.
#
# </details>

# %% tags=["instructor"]
# The numbers of this answer.
from lablib.widgets.placement_calculator import placed_mesh

for wires, order, milliseconds in [
    ("rails: 8 NICs a node", "data, pipeline, tensor", 895),
    ("rails: 8 NICs a node", "tensor, pipeline, data", 1871),
    ("NVLink island of 72", "data, pipeline, tensor", 784),
    ("NVLink island of 72", "tensor, pipeline, data", 784),
]:
    one = placed_mesh(wires, "gpt3-13b", 4, 8, 2, 1, 1, order)
    assert abs(one.step_time_s * 1e3 / milliseconds - 1) < 0.005, (wires, order)
    print(one.sentence())

# %% [markdown] minutes=16
# ## A plan for 175 billion
#
# GPT-3 with 18 bytes per parameter (gradients are added up in 32 bits here), on 512 A100 of 80 GB, eight on a node;
# 1,536 sequences in a step. Add an axis only if a number requires it. Tensor comes first: how many ranks share a
# layer? How many stages are then needed until the model fits? And how many replicas use the rest? The stages divide
# GPT-3's 96 layers, and the product of the three sizes is 512. (In the table that follows, rows 2 to 4 answer, and
# rows 5 to 7 refine the plan.)

# %%
my_guess_sizes = lab14.guess(
    "size of the axis (tensor, pipeline, data)", None, interactive, "ranks"
)

# %%
from lablib.plan import Parallel, axis_by_axis, predict

steps = axis_by_axis("gpt3-175b", "dgx-a100", batch=1536, gpus=512)
rows = enumerate(steps, 1)
table = {f"{number}. {one.axis}": lab14.plan_row(one.prediction) for number, one in rows}
sizes = [steps[1].parallel.tensor, steps[2].parallel.pipeline, steps[3].parallel.data]
my_guess_sizes.reveal(sizes)
lab14.in_rows(table)

# %%
for number, one in enumerate(steps, 1):
    lab14.print_text(f"{number}. {one.axis}: {one.reason}")

# %% [markdown]
# ZeRO-1 frees memory and sends the same bytes (lab 10). That memory allows half the stages, which makes the bubble
# smaller. With two pieces of the model on each stage, assigned in turn (*chunks*; the schedule is called
# *interleaved*), the pipeline fills in half the time, and the bubble halves again (lab 13, *further*).
#
# But does a run of this size need three axes? ZeRO-3 alone splits all states over the 512 GPUs, and gathers each layer
# when it is needed (lab 10); with full recomputation (lab 03) it fits. How long does its step take, as a multiple of
# the last row's?

# %%
my_guess_zero = lab14.guess("step of ZeRO-3 over the last row's", None, interactive, "times")

# %%
zero_3, table, times = Parallel(data=512, zero_stage=3), {}, []
for size, again in ((1, "none"), (1, "full"), (3, "none"), (3, "full")):
    one = predict("gpt3-175b", "dgx-a100", zero_3, 1536, micro_batch=size, recompute=again)
    table[f"ZeRO-3, micro-batch {size}, recompute {again}"] = lab14.plan_row(one)
    if one.fits:
        times.append(one.step_time_s / steps[-1].step_time_s)
my_guess_zero.reveal(min(times))
lab14.in_rows(table)

# %% [markdown]
# 1.07, with one axis and no bubble. It depends on the batch: with 1,536 sequences each GPU has three, and takes them
# as one micro-batch. With three micro-batches of one sequence, weights are gathered three times as often: 46.5 s
# instead of 41.1 s. With fewer sequences per GPU, a micro-batch of three is not possible.
#
# ### Exercise 4: a faster plan
#
# The seven rows went step by step, and all have micro-batches of one sequence. Beat them: the same model, GPUs and
# batch, in at most 97% of the last row's time. Before each try, say which of these it changes and how: memory, bubble,
# or rate of the products. More than one plan does it.


# %% tags=["exercise"]
def faster_plan():
    """Axes of 512 GPUs, and a dict of settings of `predict`: some of micro_batch, recompute,
    schedule.

    Such as `Parallel(data=16, tensor=8, pipeline=4, zero_stage=1)` and `{"micro_batch": 1}`.
    chunks: pieces of a stage; pipeline * chunks divides the 96 layers. With chunks=2 and more
    the schedule is "interleaved", with 2 also "zb-v" (lab 13, further). recompute: "none",
    "selective" (a part of each layer) or "full". The plan fits into memory.
    """
    ### BEGIN SOLUTION
    axes = Parallel(data=8, tensor=8, pipeline=8, chunks=12, zero_stage=1)
    return axes, {"micro_batch": 4, "schedule": "interleaved"}
    ### END SOLUTION


# %%
def price(plan):
    axes, settings = plan
    return predict("gpt3-175b", "dgx-a100", axes, 1536, **settings).sentence()


lab14.try_out(lambda: price(faster_plan()))

# %% tags=["check"] points=2
check.faster_plan(faster_plan)

# %% [markdown]
# Is the planner right? The fifth row's plan ran as a program, `CombinedStep`, on 512 simulated ranks, with a sixth of
# the batch and an ideal machine: 7.44 s. The planner predicts 7.69 s for it. (The run takes some minutes:
# `benchmarks/gpt3_combined_step.py`.)

# %% tags=["instructor"]
# The numbers of this text.
from dataclasses import replace

from lablib.models.transformer import Transformer
from lablib.plan import IDEAL, STACKS

fifth, mesh_512 = steps[4], Mesh(data=8, pipeline=8, tensor=8)
assert (fifth.axis, fifth.parallel.zero_stage) == ("ZeRO-1", 1)
sizes = Transformer("gpt3", 96, 12288, 96, 51200, 2048, tied_head=False)
axes = Parallel(data=8, pipeline=8, tensor=8, zero_stage=1)
eager = replace(STACKS["torch"], has_master=False)
like = {"stack": eager, "derating": IDEAL, "order": mesh_512.axes}
seconds = predict(sizes, "dgx-a100", axes, 8 * 32, **like).step_time_s
assert f"{seconds:.1f}" == "7.7", seconds
print(f"{seconds:.3f} s")

# %% [markdown] tags=["further"] minutes=4
# ## Further: a common table, checked
#
# You may have seen a table like this: data parallel scales with 85 to 95% and saves no memory, model parallel with 75
# to 85% and saves 60 to 80%, pipeline with 80 to 90% and 40 to 60%, ZeRO-2 with 80 to 90% and 50 to 75%, ZeRO-3 with 70
# to 80% and 75 to 90%, FSDP with 85 to 95% and 60 to 80%. It names neither the model nor the number of ranks. Which
# rows hold for a model of 13 billion parameters on 2 to 64 ranks? (FSDP's full sharding *is* ZeRO-3.)

# %%
from lablib import studies

rows = studies.strategies("gpt3-13b", cluster)
for verdict in studies.strategy_verdicts(rows):
    lab14.print_text(verdict.sentence())

# %% [markdown]
# Only one claim holds for all numbers of ranks: data parallel saves nothing. Every other range holds for some or none.
# (*Gathered once*: weights stay whole from forward to backward.) *Efficiency* is the throughput of n ranks over n times
# the throughput of one, as if one had enough memory, with the same number of sequences for each; above 100% since ZeRO
# splits the optimizer's work. *Saved* is the saved share of the fullest rank's memory: 1 - 1/n of the split part, so it
# depends on n. A range without a model, a batch and wires has no meaning. Try others: "llama-3-8b", "pcie-a100".

# %% [markdown] tags=["further"] minutes=6
# ## Further: a checkpoint for another mesh
#
# A run stops on 4 ranks and continues on 2. Each rank has saved pieces of the whole model's tensors, with their
# positions; a rank that loads reads the pieces that overlap its own. One step on each of three meshes, a checkpoint
# after each:

# %%
import tempfile
from functools import partial

from lablib.parallel.mesh.checkpoint import load_checkpoint, save_checkpoint

MESHES = Mesh(pipeline=2, tensor=2), Mesh(tensor=2), Mesh(data=2)


adam = partial(torch.optim.AdamW, lr=1e-2)


def train(mesh, number, folder, loads, saves):
    step = lab14.small_step(mesh, adam)
    if loads:
        load_checkpoint(step, f"{folder}/{number - 1}")
    batch = lab14.TEXT[number].to(torch.get_default_device())
    report = step(batch[:, :-1], batch[:, 1:])
    if saves:
        save_checkpoint(step, f"{folder}/{number}", num_steps=number + 1)
    return report.loss.item()


with tempfile.TemporaryDirectory() as folder:
    for number, each in enumerate(MESHES):
        last = number == len(MESHES) - 1
        run = launch(train, each, number, folder, number > 0, not last, ranks=each.num_ranks)
        print(f"{str(each):36} step {number}: loss {run.values[0]:.12f}")


def all_alone():
    step = lab14.small_step(Mesh(data=1), adam)
    batches = lab14.TEXT.to(torch.get_default_device())
    return [step(batch[:, :-1], batch[:, 1:]).loss.item() for batch in batches]


losses = ", ".join(f"{loss:.12f}" for loss in launch(all_alone, ranks=1).values[0])
print("one device, without a stop:", losses)

# %% [markdown] tags=["further"] minutes=8
# ## Further: predicted and measured
#
# Now a combined step on real processes of this computer, connected by *gloo* (on GPUs by NCCL). `reconcile` predicts
# the program, runs it several times, and compares; for that it measures once, in half a minute, how fast this computer
# computes and sends.

# %%
from functools import partial

from lablib import phase, reconcile
from lablib.calibration import batch_for, this_machine
from lablib.course import recorded_comparison
from lablib.models import GPT, GPTConfig, next_token_loss, num_parameters

assert real_ranks % 2 == 0, f"real_ranks must be even: got {real_ranks}."
real = "nccl" if backend == "nccl" else "gloo"
here = this_machine(ranks=real_ranks, backend=real)
small = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=128)
batch_size = batch_for(here, 8, 6 * num_parameters(small) * 8 * 128)  # larger on GPUs
REAL = parallel.Combination(
    small,
    Mesh(pipeline=2, tensor=real_ranks // 2),
    batch_size=batch_size,
    seq_len=128,
    num_micro_batches=4,
)


def small_step():
    with phase("setup"):
        step = parallel.CombinedStep(REAL, partial(torch.optim.SGD, lr=0.1))
        shape = (batch_size, REAL.seq_len)
        tokens = torch.zeros(shape, dtype=torch.long, device=torch.get_default_device())
        model = GPT(REAL.config).to(torch.get_default_device())
        next_token_loss(model(tokens), tokens).backward()  # warm-up
        dist.barrier()
    step(tokens, tokens)


there = {"ranks": real_ranks, "backend": real, "cluster": here, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"
comparison = reconcile(small_step, **there, repeats=3 if quick else 7)
lab14.show(comparison.figure())
lab14.print_text(comparison.reading())

# %%
recorded = recorded_comparison("14")
lab14.print_text(f"{recorded}")

# %% [markdown]
# Four processes share two cores there. In the prediction they take turns, too, but at other moments: a pass that waits
# for a core in its middle is predicted two to five times as long as measured. So read the makespan, which is off by a
# tenth, and not the rows. Calls and bytes are the same on both sides.

# %% [markdown] minutes=2
# ## Summary
#
# - A mesh gives each rank a coordinate on each axis. A group has the ranks that differ in one coordinate; their
#   distance is the product of the sizes after its axis.
# - Axes are independent: loss, gradients and norm equal one device's. For the norm each number counts once: divide its
#   square by the number of ranks with a copy.
# - The order of axes is a placement. Last, inside the node: the axis that sends most and cannot hide it, tensor. First,
#   across: axes that send little or can hide it, pipeline and data.
# - Add an axis only if a number requires it: ZeRO-3 alone is a rival, as long as each GPU has enough sequences.

# %% [markdown]
# ### Sources
#
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165: GPT-3's sizes.
# - D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
#   arXiv 2104.04473: data, pipeline and tensor together, which inside a node (section 3).
# - Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783: four axes and their order
#   (section 3.3.2).
# - S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020, arXiv
#   1910.02054: ZeRO-3.
# - The code: `mesh.py` and `step.py` in `lablib/parallel/mesh`, and `lablib/studies/placement.py`.

# %%
check
