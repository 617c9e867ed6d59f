# %% [markdown]
# # Lab 03: Activation memory
#
# **Question.** What must be kept for backward?
#
# Training computes *forward*, from the input to a loss, and then *backward*, from the loss to the gradients. Backward
# needs numbers that forward has computed. You will see which tensors are kept and why. Then you keep fewer: compute
# them again, or move them away.
#
# **Prerequisites.** Lab 01. **Time.** 59 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab03

lab03.show(lab03.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl: only in "Further: predicted and measured"
real_ranks: int = 2  # processes of that comparison, 2 or more
cluster: str = "dgx-a100"  # dgx-a100 | pcie-a100 | dgx-h100 | hgx-h200
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=9
# ## The tensors that an operator saves
#
# Write dx for the gradient of the loss with respect to x, dy for the gradient with respect to y. Forward computes y =
# exp(x). Which tensor does PyTorch save, to compute dx from dy?

# %%
my_guess_exp = lab03.guess('what exp saves ("x", "y", "both" or "none")', None, interactive)

# %%
import pandas as pd
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lablib import launch
from lablib.memory import checkpointing
from lablib.memory.checkpointing import checkpoint_every, keep_all, peak_bytes
from lablib.models import GPTConfig

check = lab03.checks_for("03")
check

# %% [markdown]
# *Autograd* is the part of PyTorch that computes gradients. During forward it records every operator, and *saves* the
# tensors that the operator's derivative will need. Saved tensors that forward computed are called *activations*. A
# *hook*, a function of ours that autograd calls, gets each tensor when it is saved; a second hook returns it in
# backward.

# %%
x, w = (torch.randn(rows, 8, requires_grad=True) for rows in (4, 8))


def saved_by(operator):
    saved = []

    def note(tensor):
        saved.append(tensor)
        return tensor  # autograd keeps the returned object: here the tensor itself

    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        y = operator(x)
    return lab03.names_of(saved, x=x, y=y, w=w)


my_guess_exp.reveal(saved_by(torch.exp))

# %% [markdown]
# Here dx = dy y: with y saved, backward needs no second exp, and x can be freed. Now six operators: which save their
# input x, their output y, their weight w, several of them, or nothing? Answer in the order of the table, for example
# `nothing, x, xw, ...`, where `xw` means both.
#
# | operator | derivative |
# |---|---|
# | x + 1 | dx = dy |
# | square: x^2 | dx = 2 x dy |
# | relu: max(x, 0) | dx = dy where x > 0, otherwise 0 |
# | softmax | dx = y (dy - sum(dy y)) |
# | gelu: a smooth relu | dx = dy gelu'(x) |
# | linear: x w^T | dx = dy w, dw = dy^T x |

# %%
my_guess_saved = lab03.guess(
    "saved by x + 1, square, relu, softmax, gelu, linear (x, xw, nothing)", None, interactive
)

# %%
OPERATORS = {"x + 1": lambda x: x + 1, "square": lambda x: x**2, "relu": torch.relu}
OPERATORS |= {"softmax": lambda x: x.softmax(dim=-1), "gelu": nn.functional.gelu}
OPERATORS["linear"] = lambda x: nn.functional.linear(x, w)

saves = {name: saved_by(operator) for name, operator in OPERATORS.items()}
my_guess_saved.reveal(saves.values())
pd.DataFrame({"saves": saves}).rename_axis("operator")

# %% [markdown]
# Linear saves w at no cost: parameters stay in memory anyway. Relu could save x, because y > 0 exactly where x > 0. It
# saves y, which the next operator, mostly a linear one, saves as its input: one memory, two users. Gelu's derivative
# cannot be computed from y, so it saves x; and its output stays too, as the input of the next operator.

# %% [markdown] minutes=6
# ## A step of sixteen blocks
#
# Now a real size: sixteen *blocks*, the layers of a GPT. Each has *attention*, in which a token reads the tokens before
# it, and two wide linear layers with a gelu between, the *MLP*. `launch` runs a program on a simulated GPU; with
# `fidelity="shapes"` tensors have no values, so that a large model fits here. `make_chain` makes the blocks and their
# input, in a phase that is left out of times.

# %%
config, sequences = GPTConfig(num_layers=16, d_model=2048, num_heads=16, max_seq_len=1024), 4
input_bytes = sequences * config.max_seq_len * config.d_model * 2  # 2 bytes per number


def step(plan):
    blocks, x = lab03.make_chain(config, sequences, torch.bfloat16)
    checkpointing.run(plan, blocks, x).sum().backward()


print(f"a block's input: b = {lab03.format_quantity(input_bytes, 'B')}")

# %% [markdown]
# `checkpointing.run` runs a chain by a *plan*, which selects the layers to keep; the first plan keeps everything. The
# *memory tracker* of the simulator records each allocation and when it is freed. Which percentage of all memory at the
# peak are activations?

# %%
my_guess_share = lab03.guess("share of activations at the peak", None, interactive, "%")

# %%
GPU = {"ranks": 1, "cluster": cluster, "fidelity": "shapes"}
everything = launch(step, keep_all(16), **GPU)
lab03.show_memory(everything, "All activations are kept")
share = lab03.activations(everything) / everything.memory.peak_bytes(0)
my_guess_share.reveal(100 * share)

# %% [markdown]
# In forward (F) activations grow, block by block. Backward (B) begins with the last block, uses its saved tensors and
# frees them. So activations peak between forward and backward. Here the peak of all memory is there, too: gradients
# grow in backward, but take less than a block frees. Which operators made the activations? We count in units of b.

# %%
unit = config.num_layers * input_bytes  # b for each block
print(f"in all {lab03.activations(everything) / unit:.1f} b in each block")
lab03.made_by(everything, unit)

# %% [markdown]
# `addmm` is a linear layer. Its output is saved by the next operator: attention's three inputs, b each, and gelu's
# input, 4 b. Gelu's result, the input of the next linear layer, is 4 b more. Two layer norms, two sums and attention
# add 5 b. Together a block saves a = 16 b.

# %% [markdown] minutes=9
# ## Compute activations again
#
# *Checkpointing* cuts the chain into segments. Forward keeps only the input of each segment, the *checkpoint*, and
# frees the rest. When backward reaches the segment, it runs the segment's forward once more, this time saving
# everything, and continues.
#
#     forward    F0 F1 | F2 F3               only the inputs of F0 and F2 stay
#     backward   F2 F3 B3 B2 | F0 F1 B1 B0   segments run again in backward
#
# Take all sixteen blocks as one segment. Which percentage of the activations' peak is left?

# %%
my_guess_whole = lab03.guess("peak that is left with one segment", None, interactive, "%")

# %%
whole = launch(step, checkpoint_every(16, k=16), **GPU)
share = lab03.activations(whole) / lab03.activations(everything)
my_guess_whole.reveal(100 * share)
lab03.show_memory(whole, "One segment of all 16 blocks")

# %% [markdown]
# R is the forward that runs again. The first forward saved its input alone, but the peak is the same: when backward
# starts, the whole segment is in memory at once. Segments must be shorter than the chain.

# %% [markdown]
# ### Exercise 1: checkpoint every k layers
#
# `checkpoint(function, x, use_reentrant=False)` returns `function(x)`, and keeps only `x`. `nn.Sequential(*layers)` is
# a module that runs layers one after another. The budgets: the peak of activations exceeds the library's, with the same
# segments, by at most 2% and two inputs; and no layer's forward runs more than twice. Stuck? Run
# `check.run_in_segments.hint()` in a new cell.


# %% tags=["exercise"]
def run_in_segments(layers, k, x):
    """The output of a chain, its segments of `k` layers checkpointed; the last may be shorter.

    layers: a list of modules, which stays unchanged. k: at least 1. x: the chain's input.
    """
    ### BEGIN SOLUTION
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
    ### END SOLUTION


# %%
# Five layers note when they run. By hand, for k=2: 0 1 2 3 4, then 4, 2 3, 0 1.
lab03.try_out(lab03.order_of_runs, run_in_segments, k=2)

# %% tags=["check"] points=3
check.run_in_segments(run_in_segments)

# %%
four = launch(step, checkpoint_every(16, k=4), **GPU)
print(f"{lab03.activations(four) / lab03.activations(everything):.0%} of the activations")
lab03.show_memory(four, "A checkpoint every 4 blocks")

# %% [markdown]
# There are four peaks: each segment runs again, then its activations are freed. The activations of each peak are about
# the same size, but gradients of the parameters grow at the same time. So the last peak is the highest, and total
# memory falls less than activations.

# %% [markdown] minutes=5
# ## How long should a segment be?
#
# A chain has n layers, each with a saved bytes and b bytes of input, and k divides n. When the last segment has run
# again, its k layers hold k a, its own checkpoint included; the other segments hold their checkpoints:
#
#     peak = (n / k - 1) b + k a
#
# A common rule is k = sqrt(n), here 4. Which k gives the lowest peak for our chain, where a = 16 b?

# %%
my_guess_k = lab03.guess("layers of a segment (1, 2, 4, 8 or 16)", None, interactive, "layers")

# %%
plans = {"all kept": keep_all(16)}
plans |= {f"every {k}": checkpoint_every(16, k) for k in (1, 2, 4, 8, 16)}
runs = {name: launch(step, plan, **GPU) for name, plan in plans.items()}

rows, block_bytes = {}, 16 * input_bytes  # a = 16 b
for name, plan in plans.items():
    formula = peak_bytes(plan, [block_bytes] * 16, [input_bytes] * 16)
    words = {"formula": lab03.format_quantity(formula, "B")}
    rows[name] = words | lab03.row_of(runs[name], everything)
my_guess_k.reveal(min((1, 2, 4, 8, 16), key=lambda k: lab03.activations(runs[f"every {k}"])))
pd.DataFrame(rows).T

# %% [markdown]
# One block per segment is best, in memory and in time. (The memory tracker differs from the formula by up to 2 b: it
# counts the chain's own input separately.) The sum is smallest near k = sqrt(n b / a). That is sqrt(n) where a layer
# saves only its input, a = b (Chen et al., 2016). A block saves sixteen times that, so k = sqrt(16 / 16) = 1.

# %% [markdown]
# And the time? Backward takes as long as two forwards: for each product it computes dx and dw. One more forward makes 4
# units instead of 3, or 33% more. It is less here: PyTorch stops the second run as soon as the last saved tensor is
# computed again, so the last product of a segment is never repeated.

# %% [markdown] minutes=16
# ## A checkpoint of our own
#
# To see how `checkpoint` works, here is our own. Inside `forward` autograd is off, so no tensor of the segment is
# saved. `backward` gets dy, detaches x, so that the second graph begins there, computes the segment again, and passes
# dy through it, which also fills the gradients of the segment's parameters. A function `recompute` does the second run.


# %%
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, segment, recompute):
        ctx.save_for_backward(x)
        ctx.segment, ctx.recompute, ctx.rng_state = segment, recompute, torch.get_rng_state()
        return segment(x)

    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.recompute(ctx.segment, x, ctx.rng_state)
        y.backward(dy)
        return x.grad, None, None


def run_plainly(segment, x, rng_state):
    return segment(x)


# %% [markdown]
# *Dropout* sets random elements to zero, and draws from the *random generator*. `lab03.RunningMean` keeps a mean of its
# inputs in a *buffer*, a tensor of the module that is not a parameter. `lab03.one_step` runs forward and
# backward of a small segment with both. Which of these are the same with `run_plainly` as without a checkpoint: the
# gradient, the running mean, the next random number?

# %%
my_guess_right = lab03.guess(
    "the same (gradient, running mean, next random; several or none)", None, interactive
)


# %%
def with_recompute(recompute):
    return lab03.one_step(lambda segment, x: Checkpoint.apply(x, segment, recompute))


plain = lab03.one_step(lambda segment, x: segment(x))
again = with_recompute(run_plainly)
my_guess_right.reveal({name for name in plain if plain[name] == again[name]} or "none")
pd.DataFrame({"no checkpoint": plain, "run plainly": again}).T

# %% [markdown]
# All three are wrong, and there is no error. The second run drew other numbers, so backward went through elements that
# forward had dropped. The running mean moved twice. And the next random numbers differ.

# %% [markdown]
# ### Exercise 2: recompute without a trace
#
# `torch.get_rng_state()` returns the generator's state, a tensor, and `torch.set_rng_state(state)` sets it. (A GPU has
# its own; this runs on the CPU.) `segment.buffers()` iterates over all buffers. After your function there must be no
# trace of the second run. Write to a buffer as `buffer.data.copy_(old)`: autograd may have saved it, and raises an
# error for a saved tensor that changed, but does not track `buffer.data`.


# %% tags=["exercise"]
def recompute(segment, x, rng_state):
    """Run `segment(x)` once, with the random numbers of the first run.

    rng_state: the generator's state before the first run. Afterwards the generator and the
    buffers of the segment have the same state as before this call.
    Returns the segment's output, for backward to go through.
    """
    ### BEGIN SOLUTION
    now, buffers = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, old in zip(segment.buffers(), buffers, strict=True):
        buffer.data.copy_(old)  # autograd may have saved the buffer; .data hides the change
    return y
    ### END SOLUTION


# %%
# Try it: all three must be the same as without a checkpoint.
lab03.try_out(with_recompute, recompute)

# %% tags=["check"] points=3
check.recompute(recompute)

# %% [markdown]
# PyTorch's own checkpoint restores the default generators (`preserve_rng_state=True`). It does not handle buffers,
# counters, prints and other side effects of forward: they happen twice, except after the segment's last saved tensor.

# %%
torchs = lab03.one_step(lambda segment, x: checkpoint(segment, x, use_reentrant=False))
pd.DataFrame({"no checkpoint": plain, "torch's checkpoint": torchs}).T

# %% [markdown] minutes=12
# ## Move activations away
#
# The second way is *offloading*. The machine that contains a GPU, the *host*, has its own memory, connected to the GPU
# by a *link* (PCIe). Activations are copied out during forward, and back in backward, on separate *streams*, lanes that
# run in parallel with the computing. A copy that ends in time is *hidden*; otherwise computing waits for it, and the
# step takes longer. How long does the copy of a block's activations take in our chain?

# %%
forward_s, backward_s = lab03.pass_seconds(everything, 16)
copy_s = block_bytes / lab03.host_link(cluster).bandwidth_bytes_per_s
seconds = {"forward": forward_s, "backward": backward_s, "a copy one way": copy_s}
print({name: lab03.format_quantity(value, "s") for name, value in seconds.items()})

# %% [markdown]
# A copy takes longer than a block's forward, so not all copies can hide. Some can, if copies may queue. The best are
# those of the first blocks: most of forward is still to come, and backward reaches them last.

# %% [markdown]
# Two rules for the copies:
#
# - *Out*, block 0 first, one at a time. A copy starts when its block's forward is over and the link is free. All copies
#   must end by the end of forward: the peak is there.
# - *In*, from the start of backward, one at a time, last block first. A block's copy must be back when its own backward
#   starts.
#
# How many of our 16 blocks can be offloaded by these rules without any delay?

# %%
my_guess_hidden = lab03.guess("offloaded without any delay", None, interactive, "blocks")

# %% [markdown]
# ### Exercise 3: how many copies hide?
#
# Layers may differ. Backward goes from the last to the first, and never waits. By hand: three layers of 2 s forward, 4
# s backward, and copies of 3 s. The first copy leaves at 2 s and ends at 5 s. The second would end at 8 s, but forward
# ends at 6 s. So one hides.


# %% tags=["exercise"]
def num_hidden(forward_s, backward_s, copy_s):
    """The largest m such that the first m layers can be offloaded and no copy delays the step.

    Three lists of equal length, one layer or more, first layer first; they stay unchanged.
    copy_s: seconds of each layer's copy, the same out and in. A copy may end exactly in time.
    """
    ### BEGIN SOLUTION
    num = len(copy_s)
    for m in range(num, 0, -1):
        out_s = 0.0
        for i in range(m):
            out_s = max(out_s, sum(forward_s[: i + 1])) + copy_s[i]
        late = [i for i in range(m) if sum(copy_s[i:m]) > sum(backward_s[i + 1 :])]
        if out_s <= sum(forward_s) and not late:
            return m
    return 0
    ### END SOLUTION


# %%
lab03.try_out(num_hidden, [2.0] * 3, [4.0] * 3, [3.0] * 3)  # by hand: 1
lab03.try_out(num_hidden, [2.0] * 3, [1.0] * 3, [2.0] * 3)  # 1: the way back decides

# %% tags=["check"] points=3
check.num_hidden(num_hidden)

# %%
my_guess_hidden.reveal(hidden := lab03.most_hidden(forward_s, backward_s, copy_s))
lab03.try_out(num_hidden, [forward_s] * 16, [backward_s] * 16, [copy_s] * 16)
lab03.show_offload(hidden + 1, forward_s, backward_s, copy_s)

# %% [markdown]
# The picture has one copy more than can hide: remove the `+ 1`, and run the cell again. The last copy out ends after
# forward. At the peak, between forward and backward, its block is still in memory, so this copy does not lower the
# peak. On the A100s of `dgx-a100` three copies hide, with a fifth of the activations; the way back has
# room, since backward takes longer than forward.

# %% [markdown] tags=["further"] minutes=6
# ## Further: copies in a timeline
#
# This section draws the copies of a small chain. In the *naive* way computing waits for every copy, so a step takes
# extra time, compared with keeping everything. Which share of it does the chain save if copies overlap with computing?

# %%
my_guess_overlap = lab03.guess("extra time that overlap saves", None, interactive, "%")

# %%
from lablib.memory import naive_offload, offload

WAYS = {"all kept": lab03.nullcontext, "naive": naive_offload, "overlapped": offload}


def tiny_step(way):
    blocks, x = lab03.make_chain(lab03.TINY, 1, torch.float32)
    chain = nn.Sequential(*blocks)
    with WAYS[way](list(chain.parameters())):  # these stay on the GPU
        y = chain(x)
    y.sum().backward()


moved = {way: launch(tiny_step, way, ranks=1, cluster=cluster, device="cuda") for way in WAYS}
lab03.show_copies(moved["overlapped"], "Offloaded: copies overlap with computing")

# %%
kept_s, naive_s, overlapped_s = (lab03.step_s(run) for run in moved.values())
my_guess_overlap.reveal(100 * (naive_s - overlapped_s) / (naive_s - kept_s))
pd.DataFrame({way: lab03.row_of(run, moved["all kept"]) for way, run in moved.items()}).T

# %% [markdown]
# `send` copies out, `recv` back. Time in which the GPU waits for a copy is *exposed*. In backward the computing lane
# has gaps, because `offload` fetches only two tensors ahead.

# %% [markdown] tags=["further"] minutes=19
# ## Further: which layers?
#
# Layers of a real chain differ. In a network for images the first layers keep more bytes per operation than the last.
# Then equal segments are not the best. The question becomes: which plan recomputes least, and still fits a budget of
# bytes? A plan is a tuple of *segments*: `Segment(start, stop, is_checkpointed)`.

# %%
from lablib.memory.checkpointing import Segment, recomputed

# %%
costs = [1, 2, 2, 3, 3, 4]  # GFLOPs of each layer's forward
layer_bytes = [24, 24, 16, 16, 12, 12]  # MB saved by each layer, its input included
layer_inputs = [12, 12, 8, 8, 6, 6]  # MB of its input alone
examined = {"all kept": keep_all(6), "every layer": checkpoint_every(6, k=1)}
examined["the first two"] = (Segment(0, 2, True), Segment(2, 6, False))
for name, plan in examined.items():
    needs = peak_bytes(plan, layer_bytes, layer_inputs)
    print(
        f"{name:14s} {needs:5.0f} MB at the peak, {recomputed(plan, costs):4.0f} GFLOPs again"
    )

# %% [markdown]
# ### Exercise 4: the cheapest plan
#
# The peak of a plan: while a segment is in backward, memory holds all of it, and the kept bytes of the segments before
# it. The library computes this: `peak_bytes(plan, layer_bytes, input_bytes)`, and `recomputed(plan, costs)`. A chain
# has up to six layers, so trying all plans is allowed. (There are 2 * 3^5 = 486.)


# %% tags=["exercise"]
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    """The plan, a tuple of segments, that recomputes least, with a peak of at most
    `budget_bytes`; None if no plan fits.

    Three lists of equal length, one layer or more, which stay unchanged.
    """

    ### BEGIN SOLUTION
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest

    sizes = layer_bytes, input_bytes
    fitting = [plan for plan in plans(0) if peak_bytes(plan, *sizes) <= budget_bytes]
    return min(fitting, key=lambda plan: recomputed(plan, costs), default=None)
    ### END SOLUTION


# %%
def short(plan):
    """Segments in short form, and the recomputation and memory of the plan."""
    if not isinstance(plan, list | tuple) or not all(isinstance(one, Segment) for one in plan):
        return plan
    for one in plan:
        print(f"{one.start}-{one.stop - 1} {'again' if one.is_checkpointed else 'kept'}")
    needs = peak_bytes(plan, layer_bytes, layer_inputs)
    return f"{recomputed(plan, costs):.0f} GFLOPs again, {needs:.0f} MB"


# 5 GFLOPs again: how?
lab03.try_out(lambda *given: short(cheapest_plan(*given)), costs, layer_bytes, layer_inputs, 60)

# %% tags=["check"] points=3
check.cheapest_plan(cheapest_plan)

# %% [markdown]
# Trying all plans is not feasible for 24 layers. *Dynamic programming* is: the best plan for a chain consists of best
# plans for its parts, so each part is solved once for each number of bytes (Beaumont et al., 2019, section 4). Its
# segments may contain checkpoints. The table compares equal segments with the optimal plan in the same memory. In this
# model a second run is a whole forward and never stops early, so equal segments take a third more.

# %%
from lablib.memory import optimal_checkpointing

# four of six layers; each keeps half of the last one
stages = [layer // 6 for layer in range(24)]
long_costs = [1.0 + stage for stage in stages]
inputs = [16.0 / 2**stage for stage in stages]
kept = [48.0 / 2**stage for stage in stages]
outputs = [*inputs[1:], inputs[-1]]
chain = [
    optimal_checkpointing.ChainLayer(cost, 2 * cost, whole - given, made)
    for cost, whole, given, made in zip(long_costs, kept, inputs, outputs, strict=True)
]
rows = {}
for k in (1, 2, 3, 4, 6):
    peak = peak_bytes(checkpoint_every(24, k), kept, inputs)
    best = optimal_checkpointing.optimal_plan(chain, peak - inputs[0] + outputs[-1])
    longer = best.time_s / (3 * sum(long_costs)) - 1
    rows[f"every {k}"] = {
        "peak, MB": peak,
        "equal segments": "+33%",
        "optimal plan": f"{longer:+.0%}",
    }
print(f"all kept: {sum(kept):.0f} MB; the columns show the extra computing of a step")
pd.DataFrame(rows).T

# %% [markdown] tags=["further"] minutes=8
# ## Further: predicted and measured
#
# Now a small chain on this computer, in two processes at once: first keeping everything, then with a checkpoint at
# every block. `this_machine` measures the speed of this computer, once, in half a minute; `reconcile` predicts the
# program, runs it, and compares. On the simulated A100 checkpoints made a step about a fifth longer. How much longer is
# it here?

# %%
my_guess_here = lab03.guess("longer with checkpoints here", None, interactive, "%")

# %%
import torch.distributed as dist

from lablib import phase, reconcile
from lablib.models.gpt import Block


def chain_on_this_machine(batch):
    small = GPTConfig(num_layers=4, d_model=256, num_heads=4, max_seq_len=128)
    with phase("setup"):
        device = torch.get_default_device()  # this machine's: no GPU on gloo
        blocks = [Block(small, device, torch.float32) for _ in range(small.num_layers)]
        x = torch.randn(batch, small.max_seq_len, small.d_model, device=device)
        checkpointing.run(checkpoint_every(4, k=1), blocks, x).sum().backward()  # warms up
        dist.barrier()
    for name, plan in {"keep all": keep_all(4), "checkpoint": checkpoint_every(4, k=1)}.items():
        with phase(name):
            checkpointing.run(plan, blocks, x).sum().backward()


real = "nccl" if backend == "nccl" else "gloo"
there = {"ranks": real_ranks, "backend": real}
machine, repeats = lab03.this_machine(**there), 3 if quick else 7
options = there | {"cluster": machine, "repeats": repeats, "without": "setup"}
options["fidelity"] = "shapes" if real == "nccl" else "values"  # predict from shapes alone
batch = lab03.batch_for(machine, 4, 6 * 4 * 12 * 256**2 * 4 * 128)  # larger on a GPU
comparison = reconcile(chain_on_this_machine, batch, **options)
lab03.print_text(comparison.sentence())
lab03.print_text(comparison.reading())

# %%
recorded = lab03.recorded_comparison("03")
lab03.print_text(f"{recorded}")
tables = {"here": comparison.table(), "recorded": recorded.table()}
rows = {where: lab03.longer_by(table) for where, table in tables.items()}
seconds = comparison.table().set_index("name")["measured_s"]
my_guess_here.reveal(100 * (seconds["checkpoint"] / seconds["keep all"] - 1))
pd.DataFrame(rows).T.rename_axis("with checkpoints longer by")

# %% [markdown]
# On a busy machine the seconds are far off, which `reading` reports. Is the *ratio* of the two steps easier to predict?
# Only an error common to both cancels. In the recording both steps were predicted too long, and not by the same factor:
# 26% longer predicted, 37% measured.

# %% [markdown]
# Compare this with *noise*, half the spread of the runs. It is 8% for the step without checkpoints, and 8% of that step
# moves the 37% by 11 points, which is the whole difference. So the recording does not show that the prediction is
# wrong.

# %% [markdown] tags=["further"] minutes=5
# ## Further: choose by operator
#
# The saved tensors of a block differ in the cost of recomputing them. Gelu and the norms are cheap and large; the
# matrix products are expensive. *Selective* checkpointing recomputes only the cheap ones. Which saves more here: to
# recompute attention as one module, or everything but the products?


# %%
from lablib.models.gpt import Attention


def selective_step(kind):
    blocks, x = lab03.make_chain(config, sequences, torch.bfloat16)
    if kind == "attention again":
        blocks = [checkpointing.checkpoint_modules(block, Attention) for block in blocks]
    run = (
        nn.Module.__call__ if kind == "attention again" else checkpointing.checkpoint_operators
    )
    for block in blocks:
        x = run(block, x)
    x.sum().backward()


KINDS = ("attention again", "all but products again")
selective = {"all kept": everything, "every 1": runs["every 1"]}
selective |= {kind: launch(selective_step, kind, **GPU) for kind in KINDS}
rows = {}
for name, run in selective.items():
    share = f"{lab03.activations(run) / lab03.activations(everything):.0%}"
    rows[name] = lab03.row_of(run, everything) | {"activations left": share}
    rows[name]["peak of all memory"] = lab03.format_quantity(run.memory.peak_bytes(0), "B")
pd.DataFrame(rows).T

# %% [markdown]
# Keeping the products, and running the rest again, costs almost no time. Korthikanti et al. (2022) recompute the steps
# between query, key, value and attention's result. Their scores were stored, and with long sequences scores are most of
# the memory and little of the work. Fused attention stores none. Here the whole module runs again, its linear layers
# too: it saves less and takes more time.

# %% [markdown]
# A common claim is "checkpointing saves 75% of memory for 30 to 40% more time". Of *activations* a plan saves nearly
# any share: the longer the chain, the more. Of *all* memory it saves less, because parameters, gradients and the
# optimizer's state stay. A full second forward is 33% more computing: Korthikanti et al. measured 30 to 40% with it.

# %% [markdown] tags=["further"] minutes=5
# ## Further: compress activations
#
# The third way is *compression*. Forward computes with all bits; only the saved activations are rounded to 8 bits, in
# groups of numbers that share a scale and an offset, 8 bytes more. Output and loss are exact; gradients are not. Does a
# quarter of the bytes, compared with 32 bits, cause a visible error?


# %%
from lablib.memory.activation_compression import compressed_activations


def gradient_with(group_size=None):
    torch.manual_seed(0)
    parts = [
        [nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)] for _ in range(3)
    ]
    model = nn.Sequential(*parts[0], *parts[1], *parts[2])
    x, hooks = torch.randn(512, 64), lab03.nullcontext()
    if group_size:
        hooks = compressed_activations(model.parameters(), group_size=group_size)
    with hooks:
        loss = model(x).square().mean()
    loss.backward()
    return torch.cat([param.grad.flatten() for param in model.parameters()])


exact = gradient_with()
rows = {}
for group_size in (16, 64, 256, 1024):
    error = (gradient_with(group_size) - exact).norm() / exact.norm()
    row = {"bytes per number": 1 + 8 / group_size, "error of the gradient": f"{error:.1e}"}
    rows[f"groups of {group_size}"] = row
pd.DataFrame(rows).T

# %% [markdown]
# Small groups round finer and need more scales. The mean of the rounded numbers is exact: rounding goes up or down at
# random. For numbers of two bytes compression saves half, not three quarters, and its passes over memory cost time
# (Chen et al., 2021, use as few as 2 bits).

# %% [markdown] tags=["further"] minutes=6
# ## Further: which way, on which device?
#
# Every way is a point: further down is less memory, further left is less time; a point outside the figure is drawn at
# the edge with its value. *Full recomputation* is a checkpoint at every block. New are checkpoints of the first half,
# offloaded checkpoints, and *micro-batch / 2*: half of the sequences at a time. V100, A100 and H100 are GPUs of 2017,
# 2020 and 2022. First predict: does offloading everything pay, that is, does it take less time than full
# recomputation, at width 1024? And at 8192?

# %%
my_guess_pays = lab03.guess(
    "does it pay (width 1024, width 8192: yes or no)", None, interactive
)

# %%
controls = [
    lab03.IntChoice("width", "Width", (512, 1024, 2048, 4096, 8192, 16384), 2048),
    lab03.IntChoice("num_layers", "Blocks", (4, 8, 16, 32, 64, 96), 16),
    lab03.IntChoice("seq_len", "Tokens per sequence", (256, 1024, 4096, 16384), 1024),
    lab03.Choice("number", "A number takes", ("2 bytes", "4 bytes"), "2 bytes"),
]
examples = [{"width": 1024}, {"width": 8192}]
my_guess_pays.reveal("no, yes")
lab03.explore(lab03.ways_by_device, lab03.figure_time_memory, controls, interactive, examples)

# %% [markdown]
# <details><summary>Does offloading pay?</summary>
#
# With 2 bytes per number, 1024 tokens and 16 blocks it does not pay at width 1024: a step takes 2.8 (V100) to 4.4 times
# (H100) as long. At 8192 it is free on the V100, and costs 9% on the A100 and 21% on the H100. A block's products grow
# with the square of its width, but its saved bytes only with the width. And the faster a GPU is compared with its link,
# the fewer copies hide. With 4 bytes everything hides from width 2048 on: copies double, but products grow even more. A
# checkpoint at every block costs about 22% in all these cases.
#
# </details>

# %% [markdown] minutes=2
# ## Summary
#
# - Backward needs the tensors in the derivative: the input, the output or the weight. The rest is not kept.
# - Activations grow in forward and are freed in backward: without checkpoints the peak is between the two.
# - They can be computed again: (n/k - 1) b + k a bytes instead of n a, for at most a third more computing.
# - The second run must leave no trace: it restores the generator and all buffers.
# - They can be moved: copies hide if there is enough computing at the same time.

# %% [markdown]
# ### Sources
#
# - T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv 1604.06174.
# - V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198.
# - O. Beaumont et al., "Optimal checkpointing for heterogeneous chains: how to train deep neural networks with limited
#   memory", 2019, arXiv 1911.13214.
# - J. Chen et al., "ActNN: Reducing Training Memory Footprint via 2-Bit Activation Compressed Training", 2021, arXiv
#   2104.14129.
# - PyTorch 2.13: "Autograd mechanics", section "Saved tensors", and the page of `torch.utils.checkpoint`.
# - The code: `saved_tensors.py`, `checkpointing.py`, `optimal_checkpointing.py` and `activation_compression.py` in
#   `lablib/memory`.

# %%
check
