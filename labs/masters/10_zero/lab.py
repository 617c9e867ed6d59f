# %% [markdown]
# # Lab 10: ZeRO
#
# **Question.** Which rank needs which data, and when?
#
# In data parallel training every GPU holds a copy of everything, and needs most of it only briefly. Which part
# could a GPU do without, and for how long? You build the answer in three stages. What does it save, and cost?
#
# **Prerequisites.** Lab 09; helpful: labs 02, 03, 04 and 05. **Time.** 59 minutes, without sections called *further*.

# %%
from lablib.labs import lab10

lab10.show(lab10.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # replicas, 2 to 8
real_ranks: int = 2  # replicas that run as real processes on this machine, 2 or more
cluster: str = "dgx-a100"  # dgx-a100 | dgx-h100 | hgx-h200 | pcie-a100
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=4
# ## Memory of a replica
#
# A *replica* is a rank's full copy of the model (lab 09). This lab's GPT, with about a hundred million parameters, has
# parameters and gradients in BF16, 2 bytes per number. The optimizer AdamW changes a *master copy* of the parameters in
# FP32, 4 bytes per number, since BF16 would round small changes away (lab 02), and keeps two averages of each gradient
# in FP32 (lab 05). Guess: how many bytes per parameter does a replica hold?

# %%
my_guess_replica = lab10.guess("bytes per parameter of a replica", None, interactive, "B")

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from lablib import parallel, phase
from lablib.models import GPT, next_token_loss

check = lab10.checks_for("10")
check

# %%
simulated = {"ranks": ranks, "cluster": cluster}
runs = {"stage 0": lab10.run_stage(0, **simulated)}
print(f"{lab10.NUM_PARAMS:,} parameters")
held = lab10.held_at_rest(runs["stage 0"])
my_guess_replica.reveal(sum(held.values()) / lab10.NUM_PARAMS)
lab10.table_at_rest(runs)

# %% [markdown]
# The table shows bytes per parameter between backward and `zero_grad`. Parameters: 2 in BF16 and 4 of the master copy.
# Gradients: 2. AdamW's averages: 8. Together 16, on every rank (Rajbhandari et al., 2020, section 3.1, who count the
# master copy as optimizer state: 2 + 2 + 12).

# %% [markdown]
# The run is data parallel training (lab 09), the baseline, called stage 0: an all-reduce averages the gradients, and
# every rank updates everything. It makes two steps; the first is a warm-up, in which AdamW gets its memory. Tensors
# have shapes but no values, and one of the ranks is simulated: all do the same.

# %% [markdown] minutes=2
# ## A prediction
#
# n ranks share the work of one step. Look at the three kinds below, one by one. When does a rank need all of it? When
# would a part be enough, if the rank updates only that part of the parameters? How few bytes per parameter can stay on
# a rank between backward and `zero_grad`? And if so little stays, how many times the bytes of data parallel training
# must a rank send per step?
#
# | kind | bytes per parameter |
# |---|---|
# | parameters in BF16 | 2 |
# | gradients in BF16 | 2 |
# | master copy and averages | 12 |

# %%
print(f"on {ranks} ranks, per rank:")
my_guess_smallest = lab10.guess("least bytes per parameter", None, interactive, "B")
my_guess_times = lab10.guess("sent per step, over data parallel", None, interactive, "times")

# %% [markdown] minutes=3
# ## Cut into pieces
#
# Write all N numbers of the model in one row, and cut the row for n ranks. A rank's piece is its *shard*. N is seldom a
# multiple of n. So every shard has room for N/n numbers, rounded up, and shards are filled one after another: the last
# ones may be shorter, or empty.
#
#     N = 10, n = 4, room for 3      0 1 2 | 3 4 5 | 6 7 8 | 9
#     N = 5,  n = 4, room for 2      0 1   | 2 3   | 4     |
#
# *ZeRO*, the Zero Redundancy Optimizer, has three stages. The next cell shows the bytes that each of them cuts.

# %%
rows = {}
for stage, (whole, cut) in enumerate([(16, 0), (4, 12), (2, 14), (0, 16)]):
    rows[f"stage {stage}"] = {"for all N": whole, "for the shard's N/n": cut}
my_guess_smallest.reveal(16 / ranks)
print("bytes per number")
lab10.in_rows(rows)

# %% [markdown]
# Stage 1 cuts the optimizer's 12 bytes, stage 2 also the gradients' 2, stage 3 also the parameters' 2.

# %% [markdown] minutes=13
# ## Stage 1: each rank updates its shard
#
# After an all-reduce every rank does the same update of all parameters, from n equal copies of the optimizer's state.
# Let each rank update only its shard. Then it needs only the mean gradient of that shard, and afterwards the others'
# new parameters.

# %% [markdown]
# These are two collectives. (Tables call them `reduce_scatter_tensor` and `all_gather_into_tensor`, their older names.)
#
# - *reduce-scatter*: every rank gives n pieces; rank r gets the sum of all ranks' pieces r.
# - *all-gather*: every rank gives one piece; all get all pieces, in the order of the ranks.

# %%
# torch 2.13 gave both a new name.
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def two_halves():
    rank, n = dist.get_rank(), dist.get_world_size()
    full = 10**rank * torch.arange(1, n + 1)  # n pieces of one number each
    piece = torch.empty(1, dtype=full.dtype)
    reduce_scatter(piece, full)  # from full into piece
    gathered = torch.empty_like(full)
    all_gather(gathered, piece)  # from piece into gathered
    return f"has {full.tolist()}, gets {piece.tolist()}, gathers {gathered.tolist()}"


lab10.try_out(two_halves, ranks=4)

# %% [markdown]
# One after the other they are an all-reduce, as in lab 08's ring. In each half a rank sends (n-1)/n of the bytes. Stage
# 1 puts the update between the halves: gradients go through the first, parameters through the second.

# %% [markdown]
# ### Exercise 1: a step of stage 1
#
# `flat` is one tensor with all parameters, its length a multiple of n; in 16 bits, for example. `master` is a copy of
# this rank's shard in higher precision. `optimizer.step()` changes `master` by `master.grad`, which must have the dtype
# of `master`. A collective's output has the dtype of its input. Input and output must not share memory, with one
# exception: the shard may be this rank's own piece of the full tensor. The budget: a rank sends (n-1)/n of `gradient`'s
# bytes, and of `flat`'s. Stuck? Run `check.stage_1_step.hint()` in a new cell.


# %% tags=["exercise"]
def stage_1_step(flat, gradient, master, optimizer):
    """Update this rank's shard by the mean gradient; bring all of `flat` up to date, in place.

    flat: [N], equal on all ranks. gradient: [N], this rank's own, in the dtype of `flat`;
    it may be overwritten. master: a parameter [N/n].
    """
    ### BEGIN SOLUTION
    gradient.div_(dist.get_world_size())
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
    ### END SOLUTION


# %%
# Ranks 0 to 3 have gradients 1, 2, 3 and 4. All must end with 0 - 1.0 * (mean 2.5) everywhere.
def one_step():
    flat = torch.zeros(8)
    master = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    gradient = torch.full((8,), 1.0 + dist.get_rank())
    stage_1_step(flat, gradient, master, torch.optim.SGD([master], lr=1.0))
    return flat.tolist()


lab10.try_out(one_step, ranks=4)

# %% tags=["check"] points=3
check.stage_1_step(stage_1_step)

# %%
runs["stage 1"] = lab10.run_stage(1, **simulated)
lab10.table_at_rest(runs)

# %% [markdown]
# Bytes per parameter, as above. Only the optimizer's part shrinks: the master copy, counted as parameters, from 4 to
# 4/n, and its state from 8 to 8/n. Every rank still has all parameters and gradients.

# %% [markdown] minutes=17
# ## Stage 2: shard gradients
#
# In stage 1 a rank still holds the full gradient until its step, and uses a shard of it. When is the rest needed? Until
# it has been reduced, which is possible in backward, gradient by gradient (lab 09). So reduce-scatter a gradient when
# it is ready, keep the shard, free the rest.

# %% [markdown]
# ### Exercise 2: keep a shard of each gradient
#
# `param.register_post_accumulate_grad_hook(f)` calls `f(param)` when `param.grad` is complete (lab 09); you may wait in
# the hook. Each parameter is cut separately: flatten its gradient, append zeros until n divides its length (`F.pad(x,
# (0, k))` appends k), and reduce-scatter. Setting `param.grad = None` frees a gradient.
#
# A second backward before the step, of another *micro-batch* (lab 04), adds to the shards. The budgets: the bytes of a
# reduce-scatter of each gradient, and peak memory.


# %% tags=["exercise"]
def shard_gradients(module):
    """Register hooks that replace each gradient by this rank's shard of the mean over ranks.

    Returns a dict that backward fills: parameter -> shard, 1-D, of numel/n numbers
    rounded up. `param.grad` is None afterwards. The caller empties it between steps.
    """
    ### BEGIN SOLUTION
    shards = {}

    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        if param in shards:
            shards[param].add_(shard)
        else:
            shards[param] = shard

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
    ### END SOLUTION


# %%
# A weight of 5 numbers on 2 ranks, with gradients 0 1 2 3 4 and 0 10 20 30 40, twice.
# Rank 0 must have twice the mean of 0 1 2 and 0 10 20: 0 11 22; rank 1: 33 44 0.
def two_backwards():
    layer = nn.Linear(5, 1, bias=False)
    shards = shard_gradients(layer)
    for _ in range(2):
        layer(10.0 ** dist.get_rank() * torch.arange(5.0)).backward()
    return shards[layer.weight].tolist(), layer.weight.grad


lab10.try_out(two_backwards, ranks=2)

# %% tags=["check"] points=3
check.shard_gradients(shard_gradients)

# %% [markdown]
# The library's version of what you build, `parallel.Zero`, does this for *buckets*, buffers for many gradients (lab
# 09), and does not wait: one reduce-scatter runs while backward fills the next bucket.

# %% [markdown]
# *Activations*, which backward needs, accumulate in forward (lab 03). Take the most of each kind of memory in a step:
# which kinds are smaller in stage 2 than in stage 0, and which are equal?

# %%
my_guess_equal = lab10.guess(
    "equal (parameter, gradient, optimizer state, activation)", None, interactive
)

# %%
runs["stage 2"] = lab10.run_stage(2, **simulated)
for name in ("stage 0", "stage 2"):
    lab10.show_memory(name, runs[name])
most = lab10.table_of_most({name: runs[name] for name in ("stage 0", "stage 2")})
my_guess_equal.reveal({kind for kind in most if most[kind].nunique() == 1})
most

# %% [markdown]
# F is forward, B backward, C communication, X other compute: here the update. *Exposed* is communication during which
# the GPU computes nothing. A lane of links is named after its group of ranks; `world` is all ranks.
#
# Activations are equal: ZeRO does not cut them, as each rank has its own part of the batch.

# %% [markdown]
# In stage 0 gradients grow all through backward; during the update the optimizer also needs them in FP32: 4 bytes more
# than the 16, at the peak. In stage 2 they stay small, and only a shard is copied.

# %% [markdown] minutes=11
# ## Stage 3: shard parameters
#
# A layer needs only its own parameters while it computes, so cut these too. A *unit* is a part of the model with
# parameters that are gathered and freed together; here each block of the GPT is one. Before a unit computes, its shards
# are gathered; after it, the full parameters are freed.

# %% [markdown]
# But then each unit waits for its gather, unless the gather of the next unit starts before this one computes: it is
# *prefetched*. Then at most two blocks are whole at any time.
#
#     gathers   [0][1  ]  [2  ]  [3  ]
#     compute      [0    ][1    ][2    ][3    ]

# %% [markdown]
# ### Exercise 3: gather ahead
#
# Write the forward. `work = all_gather(full, shard, async_op=True)` starts and returns at once; after `work.wait()` the
# result is ready. A tensor is freed when no name refers to it any more. The budgets: simulated seconds, and peak
# memory, for two units.


# %% tags=["exercise"]
def gather_ahead(shards, compute, x):
    """The output of a chain of units, each gathered once, while the one before computes.

    shards: this rank's shard of each unit, a list of 1-D tensors, not changed. All ranks'
    shards of a unit, one after another, are the unit.
    compute(i, full, x): the output of unit i, from all its parameters and its input.
    """
    ### BEGIN SOLUTION
    n = dist.get_world_size()

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x
    ### END SOLUTION


# %%
# Unit i multiplies by the sum of its numbers, (1 + ... + n) * (i + 1):
# 1 * 10, 10 * 20, 200 * 30.
def three_units():
    own = torch.tensor([1.0 + dist.get_rank()])
    return float(gather_ahead([own, 2 * own, 3 * own], lambda i, full, x: x * full.sum(), 1.0))


lab10.try_out(three_units, ranks=4)

# %% tags=["check"] points=3
check.gather_ahead(gather_ahead)

# %% [markdown] minutes=5
# ## Backward of stage 3
#
# Backward runs the units in reverse. Their parameters were freed, so each unit is gathered again, and again the next
# gather starts ahead. The backward of a unit gives two gradients. The unit before needs the gradient of the input at
# once. The gradient of the parameters is whole, and comes from this rank's batch alone: it is reduce-scattered, and a
# rank keeps its shard of the mean.

# %% [markdown]
# So while unit i computes, two collectives can run: the reduce-scatter of unit i + 1, and the gather of unit i - 1.
#
#     links    [g3][g2]  [r3][g1][r2][g0][r1]  [r0]
#     compute      [b3  ][b2    ][b1    ][b0  ]
#
# Here g is a gather, b a backward, and r a reduce-scatter. You can write this loop in "Further: write the backward of
# stage 3".

# %% [markdown]
# Now stage 3 of the library: with prefetching in a picture, and without it in the table. (A picture's *makespan* is the
# time from its first event to its last.) Which step will be shorter, stage 1's or stage 3's with prefetching?

# %%
my_guess_shorter = lab10.guess('the shorter step ("stage 1" or "stage 3")', None, interactive)

# %%
runs["stage 3"] = lab10.run_stage(3, **simulated)
waiting = lab10.run_stage(3, **simulated, prefetch=False)
lab10.show(lab10.step_of(runs["stage 3"]).figure(title="Stage 3: the next unit is prefetched"))
steps_s = {name: lab10.step_of(runs[name]).makespan_s for name in ("stage 1", "stage 3")}
my_guess_shorter.reveal(min(steps_s, key=steps_s.get))
lab10.table_of_steps({**runs, "stage 3, no prefetch": waiting})

# %% [markdown]
# In stages 1 and 2 the all-gather after the update is exposed. Stage 3 gathers parameters in the next forward, one unit
# ahead: on 4 ranks of `dgx-a100` its step is shorter than stage 1's. With slow links (`pcie-a100`) its second gather,
# in backward, is exposed, and stage 1's step is shorter. Stage 0's optimizer updates everything on every rank, which
# matters with so small a batch.
#
# Now all stages in one picture.

# %%
lab10.show_stages(runs)

# %% [markdown]
# The highest point decides whether a model fits. In stages 2 and 3 this is the peak of activations, which no stage
# cuts, so stage 2 saves much less at its peak than at rest. The change from stage 0 to stage 1 saves most: the
# optimizer has 12 of the 16 bytes.

# %% [markdown] minutes=3
# ## Bytes stored and sent
#
# Memory is as in the table of "Cut into pieces", with the empty room included. How many bytes does a rank send in a
# step? Every all-gather and every reduce-scatter sends (n-1)/n of the full tensor: 2 N bytes for N parameters in BF16.
# Data parallel training, with one all-reduce, sends two full tensors: one of each. How many are they in stage 3?

# %%
my_guess_full = lab10.guess("full tensors that stage 3 sends", None, interactive, "count")

# %%
table = lab10.table_of_bytes(runs, ranks)
my_guess_full.reveal(
    round(2 * float(table["times sent"]["stage 3"]))
)  # less the parameters outside the blocks: see below
my_guess_times.reveal(float(table["times sent"]["stage 3"]))
table

# %% [markdown]
# With one micro-batch in a step, stages 1 and 2 send as much as data parallel training. (With m, stage 2 as in exercise
# 2 reduce-scatters m times; stage 1 can wait for the last.) Stage 3 sends three: parameters in forward, again in
# backward, and gradients. That is half as much again, less the *root*, the parameters outside the blocks, which are
# gathered once. On n ranks 16 bytes per parameter become 16/n. Activations remain, the whole root, and two whole units
# with their gradients.

# %% [markdown] tags=["further"] minutes=15
# ## Further: write the backward of stage 3
#
# The hardest loop of the three stages: two collectives run while a unit computes, and their order decides the time.

# %% [markdown]
# ### Exercise 4: the backward
#
# `reduce_scatter(shard, full, async_op=True)` returns at once, too; `full` must not change before its `wait()`. The
# budgets: bytes sent, simulated seconds, and peak memory: the parameters of two units and the gradients of two.


# %% tags=["exercise"]
def backward_of_units(shards, inputs, backward, grad):
    """Returns (grads, grad): a list of the mean gradient of each shard, and the gradient of the
    first input, which is this rank's own.

    shards: as above. inputs: the input of each unit, which forward kept. Neither is changed.
    grad: the gradient of the last unit's output.
    backward(i, full, x, grad): from all parameters of unit i, its input, and the gradient of
    its output: the gradients of `full`, which you may overwrite, and of x.
    """
    ### BEGIN SOLUTION
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
    ### END SOLUTION


# %%
# The units of exercise 3. The gradient of a number is grad * x, of x grad * the sum.
# Unit 2: 1 * 200 = 200 and 1 * 30 = 30; unit 1: 300 and 600; unit 0: 600 and 6000.
# In the picture only the first gather and the last reduce-scatter are exposed.
def three_units_back():
    own = torch.tensor([1.0 + dist.get_rank()])

    def backward(i, full, x, grad):
        return torch.full_like(full, grad * x), grad * float(full.sum())

    shards, inputs = [own, 2 * own, 3 * own], [1.0, 10.0, 200.0]
    grads, first = backward_of_units(shards, inputs, backward, 1.0)
    return [each.tolist() for each in grads], first


lab10.try_out(three_units_back, ranks=4)
lab10.try_out(lab10.show_backward, backward_of_units, cluster)

# %% tags=["check"] points=3
check.backward_of_units(backward_of_units)

# %% [markdown] tags=["further"] minutes=5
# ## Further: does it fit?
#
# Parameters, gradients and optimizer state together are the *states*. Guess: which is the lowest stage whose states fit
# into GPUs of 80 GB, for 7 billion parameters on 8 GPUs? And for 70 billion on 16?

# %%
my_guess_stages = lab10.guess(
    "lowest stages that fit (7 billion on 8, 70 billion on 16)", None, interactive, "count"
)

# %%
for params, n in [(7e9, 8), (70e9, 8), (70e9, 16)]:
    print(f"{params / 1e9:.0f} billion on {n} GPUs: {lab10.first_that_fits(params, n)}")
my_guess_stages.reveal([1, 3])
lab10.explore_states(interactive)

# %% [markdown]
# Change the precision, too. Which limits do stages 1 and 2 approach with many ranks?

# %% [markdown]
# <details><summary>Which limits?</summary>
#
# Stages 1 and 2 approach the uncut bytes: 4 and 2 per parameter in BF16 with a master copy, within a tenth from 30 and
# 70 ranks on; in FP32 8 and 4. 70 billion on 16 GPUs: little is left for activations.
#
# </details>

# %% tags=["instructor"]
# The numbers of this answer, which the learner's notebook does not show.
for billions, stage, n, gigabytes in [
    (7, 0, 1, 112),
    (7, 1, 8, 38.5),
    (70, 3, 8, 140),
    (70, 3, 16, 70),
]:
    assert lab10.zero_bytes(stage, [billions * 10**9], n).total == gigabytes * 10**9
    print(f"{billions} billion, stage {stage}, {n} ranks: {gigabytes} GB")

# %% [markdown] tags=["further"] minutes=6
# ## Further: bytes of a rank
#
# Now compute the bytes of each rank, with shards that are not full.
#
# ### Exercise 5: bytes of a rank
#
# How many bytes does a rank hold? Do not count the empty room.


# %% tags=["exercise"]
def bytes_of_rank(num_params, ranks, rank, stage):
    """Bytes that `rank` holds from backward to zero_grad, a whole number.

    num_params: N, 0 or more. ranks: n, 1 or more. rank: 0 to n - 1.
    stage: 0 (nothing is cut) to 3.
    """
    ### BEGIN SOLUTION
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * own
    ### END SOLUTION


# %%
for stage in range(4):
    print(f"stage {stage}, 10 numbers on 4 ranks, rank 3:")
    lab10.try_out(bytes_of_rank, 10, 4, 3, stage)  # by hand: 160, 52, 34, 16

# %% tags=["check"] points=2
check.bytes_of_rank(bytes_of_rank)

# %% [markdown] tags=["further"] minutes=9
# ## Further: clip by the global norm
#
# *Clipping* shortens the gradient when its norm, the root of the sum of all squares, exceeds `max_norm` (lab 04). But
# now each rank has a shard of the gradient. If each clips by the norm of its shard, ranks scale by different factors,
# and the direction changes.

# %% [markdown]
# ### Exercise 6: clip by the global norm
#
# Scale this rank's shards, in place, by `max_norm / norm` if the norm of the shards of *all* ranks together exceeds
# `max_norm`; otherwise do not change them. A shard may be empty, and so may all shards of a rank. An inf or NaN in one
# of them must show in the norm on every rank. The budget: one all-reduce of one number.


# %% tags=["exercise"]
def clip_shards(shards, max_norm):
    """Clip by the norm of all ranks' shards together; returns that norm, before clipping.

    shards: a list of one or more 1-D tensors in float64, changed in place. max_norm: above 0.
    """
    ### BEGIN SOLUTION
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


# %%
# Rank 0 has 3, rank 1 has 4: a norm of 5, so for max_norm=1 they must keep 0.6 and 0.8.
def two_shards():
    shard = torch.tensor([3.0 + dist.get_rank()], dtype=torch.float64)
    norm = clip_shards([shard], max_norm=1.0)
    return float(norm), shard.tolist()


lab10.try_out(two_shards, ranks=2)

# %% tags=["check"] points=2
check.clip_shards(clip_shards)

# %% [markdown]
# `Zero.clip_grad_norm_(max_norm)` does this. An inf or NaN on one rank is in the sum, so all ranks see it and can skip
# the step together.

# %% [markdown] tags=["further"] minutes=4
# ## Further: tokens that hide the gathers
#
# Stage 3 needs enough compute to hide its gathers. Compute grows with the tokens of a rank's batch, gathers do not. The
# formula: forward takes the longer of its compute and its gathers, and so does backward. Change the bandwidth of the
# network, then the ranks. Below how many tokens are gathers exposed even with overlap?

# %%
lab10.explore_tokens(interactive)

# %% [markdown]
# <details><summary>How many?</summary>
#
# Below some number of tokens the step takes as long as its gathers and reduce-scatters, even with overlap: about 2,100
# with these settings. It does not depend on the model's size as long as latency is small: both sides grow with the
# parameters. Inside one node (8 ranks) NVLink carries the gathers, which needs some 980, and the network does not
# matter. The rest above 980 doubles when the bandwidth halves: at 10 GB/s the total is 6,400. With many ranks and small
# units latency adds up: 13,000 for 1,024 ranks and a gather for each parameter.
#
# </details>

# %% tags=["instructor"]
# The numbers of this answer: the fewest tokens of a rank's batch that hide stage 3.
for bandwidth, n, grouping, tokens in [
    (5e10, 64, "layer", 2100),
    (5e10, 8, "layer", 980),
    (1e10, 64, "layer", 6400),
    (5e10, 1024, "parameter", 13000),
]:
    fewest = lab10.fewest_tokens(bandwidth, n, grouping)
    assert abs(fewest / tokens - 1) < 0.02, (bandwidth, n, grouping, fewest)
    print(f"{bandwidth:.0e} B/s, {n} ranks, a unit is a {grouping}: {fewest:,.0f} tokens")

# %% [markdown] tags=["further"] minutes=6
# ## Further: predicted and measured
#
# Now stage 3 on real processes of this computer, with a smaller GPT, connected by *gloo* (lab 09). To *calibrate* is to
# measure how fast they compute and send; it takes half a minute once. `reconcile` predicts the program, runs it several
# times, and compares; a step in phase "setup" is a warm-up. Guess: will compute hide the gathers on this machine?

# %%
my_guess_hidden = lab10.guess('compute hides the gathers ("yes" or "no")', None, interactive)


# %%
def small_step(batch):
    with phase("setup"):
        device = torch.get_default_device()
        tokens = torch.zeros(batch, 64, dtype=torch.long, device=device)
        replica = parallel.Zero(GPT(lab10.SMALL, seed=0).to(device), torch.optim.AdamW, 3)
        next_token_loss(replica(tokens), tokens).backward()
        replica.step()
        replica.zero_grad()
        dist.barrier()
    next_token_loss(replica(tokens), tokens).backward()
    with phase("step"):
        replica.step()


comparison = lab10.reconcile_here(small_step, real_ranks, backend, repeats=3 if quick else 7)
lab10.show(comparison.figure())
lab10.print_text(comparison.reading())

# %%
recorded = lab10.recorded_comparison("10")
lab10.print_text(f"{recorded}")
my_guess_hidden.reveal("no")  # in the recording
rows = comparison.beside(recorded).loc[["forward", "backward", "step", "exposed", "makespan"]]
rows.map("{:.0f}%".format).replace("nan%", "-")

# %% [markdown]
# The recording's machine was busy. An error is negative if the prediction is too short. Calls and bytes are equal on
# both sides; seconds are not. In the recording *exposed* is furthest off in percent: gathers that were predicted to be
# hidden are not. Gathers and reduce-scatters took twice as long as predicted, since the processes compute at the same
# time, and most of that is exposed. The prediction also omits the clearing of new memory, which stage 3 allocates and
# frees with every unit. There 31 of 143 ms are exposed, where 4 were predicted: compute does not hide the gathers.

# %% [markdown] tags=["further"] minutes=11
# ## Further: PyTorch's FSDP
#
# PyTorch calls stage 3 *FSDP*, fully sharded data parallel: `fully_shard(module)` makes a unit of a module. Below is
# the same step with both, with values, and with streams as on a GPU: `device="cuda"` is a simulated GPU.


# %%
from functools import partial

from torch.distributed.fsdp import fully_shard


def with_fsdp(model):
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model), torch.optim.SGD(model.parameters(), lr=0.1)


def with_zero(model):
    zero = parallel.Zero(model, partial(torch.optim.SGD, lr=0.1), 3)
    return zero, zero


def step_with(way):
    with phase("setup"):
        device = torch.get_default_device()
        tokens = torch.arange(4 * lab10.SMALL.max_seq_len, device=device).view(4, -1) % 256
        replica, optimizer = way(GPT(lab10.SMALL, seed=0).to(device))
        next_token_loss(replica(tokens), tokens).backward()  # records the order of the units
        optimizer.step()
        optimizer.zero_grad()
    loss = next_token_loss(replica(tokens), tokens)
    loss.backward()
    with phase("step"):
        optimizer.step()
    return float(loss.detach())


rows = {}
for name, way in {"fully_shard": with_fsdp, "Zero, stage 3": with_zero}.items():
    run = lab10.launch(step_with, way, ranks=2, cluster=cluster, device="cuda")
    step = run.timeline.without("setup")
    seconds = {"step": step.makespan_s, "exposed": step.exposed_s(0)}
    rows[name] = {key: lab10.format_quantity(value, "s") for key, value in seconds.items()}
    rows[name] |= {"loss of the second step": f"{run.values[0]:.6f}"}
    lab10.show(step.figure(ranks=[0], title=name))
lab10.in_rows(rows)

# %% [markdown]
# The order of gathers is the same, though FSDP2 starts them earlier, and the loss is the same. (The small B in its
# forward copies a gather's result into place.) There is another difference: FSDP2 cuts each parameter along its first
# dimension, and copies the pieces into one buffer around each collective. `Zero` has one flat buffer per unit, cuts it
# where a shard ends, and copies only gradients. In return each of FSDP2's parameters keeps its shape, its dtype and its
# settings.

# %%
shapes = [
    tuple(param.shape) for param in GPT(lab10.CONFIG, device="meta").blocks[0].parameters()
]
rows = {}
for n in (8, 1000):
    for cost in parallel.compare_layouts(shapes, n):
        padding, copied = (
            lab10.format_quantity(x, "B") for x in (cost.padding_bytes, cost.copied_bytes)
        )
        rows[f"{n} ranks, {cost.layout}"] = {"padding": padding, "copied in a step": copied}
print("one block of this lab's model, in BF16")
lab10.in_rows(rows)

# %% [markdown] tags=["further"] minutes=7
# ## Further: two nodes
#
# Between nodes links are slow, and stage 3 crosses them three times per step. *Hybrid sharding* shards only inside each
# node: gathers stay inside, and only the shards' gradients are averaged across nodes. It costs memory: 16/L bytes per
# parameter for L ranks of a node, for any number of nodes.


# %%
LOCAL, NODES = 4, 2
machine = lab10.find_cluster(cluster)


def two_nodes(link, is_hybrid):
    two = machine.replace(name="two nodes of four", devices_per_node=LOCAL, inter=link)

    def hybrid_program():
        with phase("setup"):
            mesh = parallel.node_mesh(ranks_per_node=LOCAL)
        groups = {"group": mesh.get_group("local"), "replicate_group": mesh.get_group("node")}
        return lab10.program(3, groups if is_hybrid else {})

    simulated = {"ranks": LOCAL * NODES, "cluster": two, "fidelity": "shapes", "simulate": [0]}
    return lab10.launch(hybrid_program, **simulated)


rows = {}
for link in (machine.inter, lab10.Link("Ethernet, 25 Gb/s", 5e-6, 3.125e9)):
    for name, is_hybrid in {"over all ranks": False, "hybrid": True}.items():
        run = two_nodes(link, is_hybrid)
        seconds = {
            "step": lab10.step_of(run).makespan_s,
            "exposed": lab10.step_of(run).exposed_s(0),
        }
        row = {key: lab10.format_quantity(value, "s") for key, value in seconds.items()}
        row["bytes per parameter"] = (
            f"{sum(lab10.held_at_rest(run).values()) / lab10.NUM_PARAMS:.2f}"
        )
        rows[f"{link.name}: {name}"] = row
lab10.in_rows(rows)

# %% [markdown]
# If compute hides the network, hybrid sharding gains nothing and costs memory, and its update takes longer, of 1/L
# instead of 1/n. If the network is the bottleneck, fewer bytes cross it: two thirds here, since 3 (N-1)/N of the node's
# shard, which is 1/L of everything, become 2 (N-1)/N for N nodes.

# %% [markdown] tags=["further"] minutes=4
# ## Further: optimizers that need whole matrices
#
# AdamW works number by number, so it does not matter where a shard ends. Muon (lab 05) makes each matrix's update
# orthogonal, for which it needs the whole matrix; but the gradient is spread over ranks. Three ways: each matrix has an
# *owner*, which gets the whole gradient; or every rank *gathers* all and computes all; or shards are *exchanged*, so
# that each matrix is whole on one rank, and back.

# %%
from lablib.parallel.zero.sharded_muon_cost import muon_cost

blocks = GPT(lab10.CONFIG, device="meta").blocks  # the embeddings stay with AdamW
shapes = [tuple(param.shape) for param in blocks.parameters() if param.ndim == 2]
layout = parallel.FlatLayout(tuple(map(str, range(len(shapes)))), tuple(shapes), ranks)
found = [{piece.name: piece.numel for piece in layout.pieces(rank)} for rank in range(ranks)]
counts = [tuple(of.get(str(i), 0) for of in found) for i in range(len(shapes))]
rows = {}
for way in ("owner", "gather", "exchange"):
    cost = muon_cost(way, shapes, counts)
    rows[way] = {
        "bytes sent per rank": lab10.format_quantity(max(cost.sent_bytes), "B"),
        "FLOPs per rank": lab10.format_quantity(max(cost.flops), "FLOP"),
        "momentum kept per rank": lab10.format_quantity(max(cost.state_numbers), ""),
    }
lab10.in_rows(rows)

# %% [markdown]
# Gathering repeats the same products on every rank. Exchanging sends least, from three ranks on, in stage 3: each rank
# gets its shard of the update, and parameters are gathered in forward anyway. In stages 1 and 2 an all-gather is added,
# which the other two ways do not need. (The bytes are in BF16, without the reduce-scatter of gradients.)

# %% [markdown] tags=["further"] minutes=4
# ## Further: offload the optimizer to the host
#
# *ZeRO-Offload* moves the optimizer's state and its step to the memory and the processor of the host (Ren et al.,
# 2021). Gradient shards go there during backward, parameters come back. The GPU keeps 2 bytes per parameter. When is it
# useful? A formula for 7 billion parameters, a link of 25 GB/s from each GPU to the host, host memory that moves 400
# GB/s for all 8 GPUs of a node, and 2048 tokens on each GPU:

# %%
from lablib.parallel.zero.offload import offload_time

params, tokens, flops_per_s = 7e9, 2048, 150e12
backward_s = 4 * params * tokens / flops_per_s
rows = {}
for n in (1, 8, 64):
    host = {"link_bytes_per_s": 25e9, "host_bytes_per_s": 400e9 / min(n, 8)}  # of each GPU
    time = offload_time(params, n, units=33, backward_s=backward_s, **host)
    rows[f"{n} rank{'s' * (n > 1)}"] = {
        "saved on the GPU": lab10.format_quantity(time.saved_bytes, "B"),
        "step on the host": lab10.format_quantity(time.host_s, "s"),
        "exposed": lab10.format_quantity(time.exposed_s, "s"),
        "forward and backward": lab10.format_quantity(1.5 * backward_s, "s"),
    }
lab10.in_rows(rows)

# %% [markdown]
# The 8 ranks of one node step no faster on the host than one rank alone: they share its memory. On more nodes there are
# more hosts, and each rank's share and saving are smaller. Offload is useful if a model would not fit otherwise.

# %% [markdown] tags=["further"] minutes=8
# ## Further: a checkpoint for other ranks
#
# A shard is a row of numbers, cut regardless of parameters. Saved like that, only the same number of ranks could load
# it. So a shard is also cut where parameters end, and each piece is saved under its parameter's name and place. Below 4
# ranks save in stage 3; 3 ranks go on in stage 1.

# %%
import tempfile

from lablib.parallel.zero.checkpoint import load_checkpoint, save_checkpoint

tiny = lab10.GPTConfig(num_layers=2, d_model=64, num_heads=2, vocab_size=256, max_seq_len=16)
part = (torch.arange(12 * tiny.max_seq_len).view(12, -1) * 7) % 256  # the batch of all ranks


def train(zero, steps):
    for _ in range(steps):
        mine = part.to(torch.get_default_device()).chunk(dist.get_world_size())[dist.get_rank()]
        loss = next_token_loss(zero(mine), mine)
        loss.backward()
        zero.step()
        zero.zero_grad()
    dist.all_reduce(loss := loss.detach() / dist.get_world_size())
    return float(loss)


def make(stage):
    model = GPT(tiny, seed=0, dtype=torch.float64).to(torch.get_default_device())
    return parallel.Zero(model, torch.optim.AdamW, stage)


def four_steps():
    return train(make(3), 4)


def two_and_save(folder):
    zero = make(3)
    train(zero, 2)
    save_checkpoint(zero, folder, step=2)


def load_and_two(folder):
    zero = make(1)
    return f"from step {load_checkpoint(zero, folder)}", train(zero, 2)


with tempfile.TemporaryDirectory() as folder:
    lab10.launch(two_and_save, f"{folder}/saved", ranks=4, trace=False)
    said, loss = lab10.launch(load_and_two, f"{folder}/saved", ranks=3, trace=False).values[0]
whole = lab10.launch(four_steps, ranks=4, trace=False).values[0]
print(f"4 steps in stage 3 on 4 ranks: loss {whole:.12f}")
print(f"{said}, 2 more in stage 1 on 3 ranks: loss {loss:.12f}")

# %% [markdown]
# Both losses agree to rounding: parameters, the optimizer's averages and its count of steps have moved to other ranks.

# %% [markdown] tags=["further"] minutes=18
# ## Further: DTensor, and torch's own checkpoint
#
# What does `fully_shard` make of a parameter? A *DTensor*: this rank's part, with the shape of the whole, a *device
# mesh* (the ranks as a grid with named axes) and one *placement* for each axis of the mesh: `Shard(0)` cuts the first
# dimension, `Replicate()` puts a copy on each rank. With a mesh of two axes `fully_shard` copies along the first and
# cuts along the second: hybrid sharding. Here are 4 ranks in a row, then as 2 nodes of 2. A weight has shape [256, 64]:
# how many rows has a rank's part on each mesh?

# %%
my_guess_local = lab10.guess("rows of a part (4 ranks, 2 x 2 ranks)", None, interactive, "rows")

# %%
import tempfile

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

short = lab10.GPTConfig(num_layers=2, d_model=64, num_heads=2, vocab_size=256, max_seq_len=16)


def sharded(mesh):
    model = GPT(short, seed=0, dtype=torch.float64).to(torch.get_default_device())
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def placements(shape, names):
    kind = torch.get_default_device().type
    model = sharded(init_device_mesh(kind, shape, mesh_dim_names=names))
    weight = model.blocks[0].mlp.up.weight  # a DTensor
    return list(weight.shape), str(weight.placements), list(weight.to_local().shape)


rows_of_part = []
for shape, names in {(4,): ("data",), (2, 2): ("node", "local")}.items():
    found = lab10.launch(placements, shape, names, ranks=4).values[0]
    print(dict(zip(names, shape, strict=True)), "whole {}, {}, a rank has {}".format(*found))
    rows_of_part.append(found[2][0])
my_guess_local.reveal(rows_of_part)

# %% [markdown]
# The call also adds communication to each unit, as in exercise 3 and in the backward of stage 3: a gather before its
# forward, another before its backward if its whole parameters were freed in between, and a reduce-scatter after its
# backward. How many of each does one step make, for 2 blocks and the rest of the model, which is a third unit (the
# *root*)?

# %%
my_guess_calls = lab10.guess("in a step (gathers, reduce-scatters)", None, interactive, "count")


# %%
def one_step(wrap):
    with phase("setup"):
        kind = torch.get_default_device().type
        model = wrap(init_device_mesh(kind, (4,)))
        tokens = torch.arange(16, device=torch.get_default_device()).expand(2, -1)
        next_token_loss(model(tokens), tokens).backward()  # records the order of the units
    next_token_loss(model(tokens), tokens).backward()


run = lab10.launch(one_step, sharded, ranks=4, cluster=cluster, device="cuda")
calls = [span for span in run.timeline.without("setup").select(0, stream="comm")]
for span in calls:
    start, end = (lab10.format_quantity(at_s, "s") for at_s in (span.start_s, span.end_s))
    print(f"{span.phase:9} {span.name:22} {span.size_bytes:9,.0f} B, {start} to {end}")
gathers = sum("gather" in span.name for span in calls)
my_guess_calls.reveal([gathers, len(calls) - gathers])

# %% [markdown]
# The root is not gathered again: FSDP2 by default keeps it from forward to backward, which would need it again at once.
# A block's gather overlaps with the computing of the unit before, and its reduce-scatter with the next unit's.
#
# From the placement of a DTensor follows which part of the whole a rank has. So a checkpoint needs no layout of its
# own: DCP (`torch.distributed.checkpoint`) writes a file for each rank, and a rank that loads reads those parts of all
# files that it needs. Save on 4 ranks; go on with 3.


# %%
def steps_of(model, optimizer, numbers):
    for number in numbers:
        drawn = torch.Generator().manual_seed(number)
        whole = torch.randint(0, 256, (12, 16), generator=drawn)
        parts = whole.to(torch.get_default_device()).chunk(dist.get_world_size())
        mine = parts[dist.get_rank()]
        optimizer.zero_grad()
        loss = next_token_loss(model(mine), mine)
        loss.backward()
        optimizer.step()
    dist.all_reduce(loss := loss.detach() / dist.get_world_size())
    return float(loss)


def go_on(numbers, load="", save=""):
    mesh = init_device_mesh(torch.get_default_device().type, (dist.get_world_size(),))
    model = sharded(mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    if load:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        states = {"model": of_model, "optimizer": of_optimizer}
        dcp.load(states, checkpoint_id=load)  # into these tensors
        loaded = {"model_state_dict": states["model"], "optim_state_dict": states["optimizer"]}
        set_state_dict(model, optimizer, **loaded)
    loss = steps_of(model, optimizer, numbers)
    if save:
        of_model, of_optimizer = get_state_dict(model, optimizer)
        dcp.save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=save)
    return loss


with tempfile.TemporaryDirectory() as folder:
    lab10.launch(go_on, [0, 1], "", folder, ranks=4, trace=False)
    resumed = lab10.launch(go_on, [2, 3], folder, ranks=3, trace=False).values[0]
never_stopped = lab10.launch(go_on, [0, 1, 2, 3], ranks=4, trace=False).values[0]
print(f"4 steps on 4 ranks: loss {never_stopped:.12f}")
print(f"2 on 4 ranks, 2 on 3 ranks: loss {resumed:.12f}")

# %% [markdown]
# The same to rounding: the model, AdamW's averages and its count of steps have moved from 4 parts to 3.

# %% [markdown] minutes=1
# ## Summary
#
# - A replica holds 16 bytes per parameter in mixed precision with AdamW, and n ranks hold the same 16 bytes n times.
# - Stage 1: updating a shard needs only the optimizer's state of that shard. An all-reduce is split into reduce-scatter
#   and all-gather, with the update between them: no more bytes.
# - Stage 2: a full gradient is needed until it has been reduced, in each micro-batch. Stage 3: full parameters are
#   needed while their unit computes; they are gathered twice, so half as many bytes again.
# - Prefetching hides the gathers, and the next unit's backward hides a reduce-scatter, if a rank computes long enough.
#   Activations are not cut.

# %% [markdown]
# ### Sources
#
# - S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
#   SC 2020, arXiv 1910.02054: stages, bytes (section 3.1, figure 1), traffic (section 7).
# - torch 2.13: `torch/distributed/fsdp/_fully_shard`, `torch/distributed/tensor`, `torch/distributed/checkpoint`
#   (further).
# - Y. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023, arXiv 2304.11277:
#   units, prefetching, hybrid sharding.
# - S. Rajbhandari et al., "ZeRO-Infinity: Breaking the GPU Memory Wall for Extreme Scale Deep Learning", SC 2021, arXiv
#   2104.07857: bandwidth against compute (section 4).
# - J. Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, arXiv 2101.06840.
# - K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024,
#   kellerjordan.github.io/posts/muon; J. Liu et al., "Muon is Scalable for LLM Training", 2025, arXiv 2502.16982.
# - The code: `shards.py`, `stage1.py`, `stage2.py`, `stage3.py`, `module.py`, `hybrid.py` and `bytes.py` in
#   `lablib/parallel/zero`, and `lablib/studies/zero_latency.py`.

# %%
check
