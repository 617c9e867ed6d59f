# %% [markdown]
# # Lab 05: Optimizers
#
# **Question.** What does an optimizer's state buy, and what does it cost?
#
# An *optimizer* turns gradients into changes of the weights. Nearly all optimizers keep numbers from step to step,
# their *state*, which takes memory. You will build AdamW, then a whole step of Muon, which keeps half of AdamW's state,
# and compare them by evidence.
#
# **Prerequisites.** Lab 01; helpful: labs 02 and 04. **Time.** 57 minutes, without the folded sections, called
# *further*.

# %%
from lablib.labs import lab05

lab05.show(lab05.figure_question())

# %% tags=["parameters"]
interactive: bool = True  # widgets, or static figures
quick: bool = True  # a short training and few repeats

# %% [markdown] minutes=10
# ## One rate for all
#
# *Stochastic gradient descent* (SGD) subtracts from each weight w its gradient g, the slope of the loss, times a *rate*
# lr: `w = w - lr g`. It has no state. Take a valley of 20 weights: the loss is the sum of `c w^2 / 2`, so each slope is
# c w, with curvatures c from 0.01 to 100. Above which rate does the loss grow without end?

# %%
my_guess_rate = lab05.guess("rate above which the loss grows", None, interactive, "count")

# %%
import math

import pandas as pd
import torch
from torch import nn

from lablib import launch
from lablib.studies import optimizer_experiment as experiment

check = lab05.checks_for("05")
check

# %% [markdown]
# Real models are such valleys, too: gradients differ in size from layer to layer. Here are some of a small GPT, a
# language model, after 20 steps; *rms*, the root of the mean square, is a typical size of the numbers.

# %%
training, looks = experiment.run("adamw", lr=8e-3, weight_decay=0.0, seed=1, num_steps=20)
lab05.gradient_sizes(training.model)

# %% [markdown]
# A rate small enough for the steepest weights hardly moves the others. The valley shows it; its weights start at
# random.

# %%
curvatures = torch.logspace(-2, 2, 20)
start = torch.randn(20, generator=torch.Generator().manual_seed(0))


def valley(make, lr, num_steps=100):
    w, losses = nn.Parameter(start.clone()), []
    optimizer = make([w], lr=lr)
    for _ in range(num_steps):
        losses.append((curvatures * w**2).sum().item() / 2)
        w.grad = curvatures * w.detach()
        optimizer.step()
    return losses if math.isfinite(losses[-1]) else [math.inf]


for lr in (0.001, 0.016, 0.032):
    print(f"SGD at the rate {lr}: loss {valley(torch.optim.SGD, lr)[-1]:.3g} after 100 steps")
my_guess_rate.reveal(2 / curvatures.max())

# %% [markdown]
# A step of SGD multiplies each weight by 1 - lr c: above the rate 2 / 100 the steepest weight grows with every step.
# *Momentum* keeps a decaying sum of past gradients; AdamW keeps a mean of them and a mean of their squares. Each gets
# the best of ten rates: the one with the lowest maximum loss over the last 20 steps. Which of SGD, momentum and AdamW
# is lowest?

# %%
my_guess_lowest = lab05.guess('lowest ("SGD", "momentum" or "AdamW")', None, interactive)

# %%
makers = {"SGD": torch.optim.SGD, "momentum": lab05.momentum, "AdamW": lab05.without_decay}
rates = [0.001 * 2**k for k in range(10)]
curves = {}
for name, make in makers.items():
    curves[name] = min((valley(make, lr) for lr in rates), key=lambda losses: max(losses[-20:]))
    print(f"{name}: at most {max(curves[name][-20:]):.2g} in the last 20 steps")
my_guess_lowest.reveal(min(curves, key=lambda name: max(curves[name][-20:])))
look = {"log_y": True, "title": "A valley: each at its best rate"}
lab05.show(lab05.figure_lines(range(100), curves, "step", "loss", **look))

# %% [markdown]
# Below that rate, SGD needs thousands of steps for the flattest weight: each multiplies it by more than 0.9998. While
# the slopes keep their signs, AdamW's step has about the same size for every weight, steep or flat. That is the benefit
# of its state.

# %% [markdown] minutes=10
# ## AdamW
#
# AdamW keeps, for every weight, running means m of the gradient and v of its square. Both start at 0, so after t steps
# they are too small by a factor of 1 - beta^t. The *bias correction* undoes this; m^ and v^ are the corrected means:
#
#     m = beta1 m + (1 - beta1) g            m^ = m / (1 - beta1^t)
#     v = beta2 v + (1 - beta2) g^2          v^ = v / (1 - beta2^t)
#     w = w - lr lambda w - lr m^ / (sqrt(v^) + eps)
#
# The constant eps only prevents a division by 0. Where a gradient keeps its sign and size, the last term is about lr,
# for any size.

# %% [markdown]
# The term `lr lambda w` is *weight decay*: every weight loses the same share. It is *decoupled* from the gradient. With
# *L2 regularization*, lambda w is added to g instead: divided by the root of v, weights with large gradients would
# hardly decay. The W in AdamW stands for this difference (Loshchilov and Hutter, 2017).

# %% [markdown]
# ### Exercise 1: AdamW
#
# Write one step. On the right side of the formula, w is always the value before the step. Change w in place
# (`w.sub_(...)`), and leave g unchanged. Stuck? Run `check.adamw_step.hint()` in a new cell.


# %% tags=["exercise"]
def adamw_step(w, g, state, lr, betas, eps, decay):
    """One step of AdamW: changes w in place, and the state.

    w, g: tensors of one shape, perhaps transposed. betas: (beta1, beta2). decay: lambda.
    state: dict of "t", the steps so far, and of "m" and "v", tensors like w; initially 0 and
        zeros, or read from a file.
    """
    ### BEGIN SOLUTION
    beta1, beta2 = betas
    state["t"] += 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * g
    state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
    m = state["m"] / (1 - beta1 ** state["t"])
    v = state["v"] / (1 - beta2 ** state["t"])
    w.sub_(lr * decay * w + lr * m / (v.sqrt() + eps))
    ### END SOLUTION


# %%
# Try it. By hand: without decay a first step is lr for both, so 0.9 and 1.1.
def first_step():
    w, g = torch.tensor([1.0, 1.0]), torch.tensor([2.0, -0.001])
    state = {"t": 0, "m": torch.zeros(2), "v": torch.zeros(2)}
    adamw_step(w, g, state, lr=0.1, betas=(0.9, 0.99), eps=1e-8, decay=0.0)
    return w


lab05.try_out(first_step)

# %% tags=["check"] points=3
check.adamw_step(adamw_step)

# %% [markdown]
# The library's version works on lists of tensors: one *batched* (foreach) operator for all weights at once.
# `update_moments` computes m, v and their corrections.

# %%
lab05.show_source(lab05.AdamW.update, after=check.adamw_step)

# %% [markdown] minutes=3
# ## The cost of the state
#
# The weights and gradients of a model with 7 billion parameters take 2 bytes each in 16 bits, so 28 GB. AdamW's m and v
# are kept in 32 bits. Guess: how many GB do they take? Does training fit into a GPU of 80 GB?

# %%
my_guess_GB = lab05.guess("m and v of 7 billion parameters", None, interactive, "GB")


# %% [markdown]
# Here is each optimizer's state for one matrix, found in three ways: counted in its tensors, recorded by the
# simulator, and computed from a formula.
#
# - *LAMB* and *Sophia* keep two means, as AdamW does; *Lion* and *Muon* keep one.
# - *Adafactor* keeps row and column means of the squares, and no m.
# - *Adam8bit* takes one byte per number, *AdamBF16* two.
# - *GaLore* keeps m and v of a projected gradient, here with 64 rows for 256 (`rank=64`); *Q-GaLore* keeps them in 8
#   bits or fewer.
# - *SOAP* keeps two means and four square matrices.


# %%
table = lab05.state_per_parameter(size=256)
my_guess_GB.reveal(7 * table.loc["adamw", "formula"])
print("bytes of state per parameter:")
table

# %% [markdown]
# AdamW's state takes 56 GB, with weights and gradients 84 GB, before any activation and without the master copy of the
# weights (lab 01). Most others need less. You will build Muon next; a folded section builds Adam8bit's state.

# %% [markdown] minutes=11
# ## Muon: the same step in every direction
#
# AdamW treats a matrix as a list of numbers. But a matrix is a sum of *directions*, each an output vector times an
# input vector, times its strength, the *singular value* (`torch.linalg.svdvals`). Here are the strengths in `m`,
# AdamW's mean gradient of one matrix of the small GPT above.

# %%
mlp_up = training.model.get_parameter("blocks.0.mlp.up.weight")
m = training.optimizers[0].state[mlp_up]["exp_avg"]
values_m = torch.linalg.svdvals(m)
print(f"{len(values_m)} directions; strongest over middle: {values_m[0] / values_m[32]:,.0f}")
share = values_m[:5].square().sum() / values_m.square().sum()
print(f"share of the squares in the strongest five: {share:.0%}")

# %% [markdown]
# So a gradient step changes the matrix in a few directions. *Muon* (Jordan et al., 2024) keeps one mean of gradients,
# writes it as U S V^T with the singular values in S, and steps along U V^T, with all singular values 1. *Newton-Schulz*
# finds U V^T without U, S and V, by matrix products alone: divide X by its norm, the root of the sum of squares, then
# repeat
#
#     X = a X + b (X X^T) X + c (X X^T)^2 X
#
# U and V do not change, and each singular value s becomes a s + b s^3 + c s^5.

# %% [markdown]
# Muon takes a, b, c = 3.4445, -4.7750, 2.0315, and five steps. Guess: to which values do the singular values 0.5, 0.05
# and 0.0005 change?

# %%
my_guess_values = lab05.guess("values of 0.5, 0.05 and 0.0005", None, interactive, "count")

# %% [markdown]
# ### Exercise 2: Newton-Schulz
#
# For an m x n matrix with m <= n one step costs 4 m^2 n + 2 m^3 FLOPs (additions and multiplications), if you begin
# with X X^T, which is m x m, and multiply X only once more: the budget is 6 m^2 n. The lines given transpose a tall
# matrix, and the result back. For a matrix of zeros return zeros. You may add up to 1e-7 to the norm.


# %% tags=["exercise"]
def orthogonalize(x, num_steps, coefficients):
    """Divide by the norm, then `num_steps` steps of Newton-Schulz; a new tensor like x.

    x: a matrix, tall or wide; stays unchanged. coefficients: a, b, c.
    Products by torch: their FLOPs are counted. Budget of a step: 6 m^2 n, m the shorter side.
    """
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    ### BEGIN SOLUTION
    x = x / x.norm().clamp(min=1e-30)
    for _ in range(num_steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    ### END SOLUTION
    return x.T if is_tall else x


# %%
# Try it. By hand: the norm is 5, so 0.6 and 0.8 at first; then s / 2 + s^3: 0.516 and 0.912.
x = torch.diag(torch.tensor([3.0, 4.0]))
lab05.try_out(orthogonalize, x, num_steps=1, coefficients=(0.5, 1, 0))

# %% tags=["check"] points=3
check.orthogonalize(orthogonalize)

# %%
lab05.show(lab05.figure_singular_values(*lab05.singular_values(m)))
s, (a, b, c) = torch.tensor([0.5, 0.05, 0.0005]), (3.4445, -4.7750, 2.0315)
for _ in range(5):
    s = a * s + b * s**3 + c * s**5
my_guess_values.reveal(s)

# %% [markdown]
# Values from 0.01 up end between 0.68 and 1.14, near enough to 1. Smaller ones grow up to 3.4-fold per step, and the
# smallest need more steps.

# %% [markdown] minutes=13
# ## A whole step of Muon
#
# Newton-Schulz gives a direction for one matrix. A step also needs a mean, a length, and the right weights. The mean is
# a running mean B of the gradients g, which starts at 0, here without a correction. *Nesterov momentum* adds the
# gradient once more, so that the step reacts sooner (mu is 0.95 in most uses):
#
#     B = mu B + (1 - mu) g
#     N = mu B + (1 - mu) g            with the new B
#     O = U V^T of N                   by Newton-Schulz

# %% [markdown]
# How long is O? The squares of a matrix's numbers have the same sum as the squares of its singular values, and those of
# O are 1. Guess the rms of its numbers for 64 x 256 weights.

# %%
my_guess_rms = lab05.guess("rms of the numbers of O", None, interactive, "count")

# %%
for shape in ((64, 64), (256, 64), (256, 1024), (64, 256)):
    u, _, vh = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    rms = (u @ vh).square().mean().sqrt()
    print(f"{shape}: the rms of U V^T is {rms:.4f}")
my_guess_rms.reveal(rms)

# %% [markdown]
# So at one rate a large matrix would move less than a small one. Liu et al. (2025) multiply O by a *scale*, such that
# the rms of the result is 0.2 for every shape: about what AdamW's step over lr has in practice. Then one rate and one
# decay serve both optimizers. And both are needed: Muon takes the matrices inside the blocks. The embeddings (a row of
# weights for each byte and each position), the output *head*, and vectors such as biases are left to AdamW: by
# experience it is better there, and a vector has only one direction.

# %% [markdown]
# ### Exercise 3: a step of Muon
#
# Write the step of a whole model. A weight w that Muon takes becomes w - lr lambda w - lr scale O; on the right side w
# is the value before the step. Derive the scale from the rms above. The names of weights inside blocks begin with
# "blocks.".


# %% tags=["exercise"]
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    """One step of all weights with a gradient, in place; gradients stay unchanged.

    means: dict, name -> B, only of weights that Muon takes; empty before the first step.
    orthogonalize(x): U V^T of a matrix, tall or wide. decay: lambda.
    adamw(name): does AdamW's step of one weight that has a gradient, with its decay.
    """
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad  # w has param's memory, and no autograd
        ### BEGIN SOLUTION
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
        ### END SOLUTION


# %%
# A few seconds. Of the weights printed only mlp.up.weight is Muon's: an rms of about 0.2.
lab05.try_out(lab05.train_with, muon_step)

# %% tags=["check"] points=3
check.muon_step(muon_step)

# %% [markdown]
# The first step of AdamW has an rms of lr, as in exercise 1; later the signs of gradients vary, and it falls. Muon's
# has about the same size in each step. Both curves use one rate; only the matrices of the blocks step differently.
# Muon keeps half of AdamW's state for them, but its products cost FLOPs. Is it better? One run cannot show that.

# %% [markdown] minutes=7
# ## A fair comparison
#
# Is AdamW beaten? Many published answers compare a tuned new optimizer with an AdamW at a rate that was not tuned (Wen
# et al., 2025). Here the same search was used for all: rates in factors of two, at two decays, extended until the best
# was not at the edge.

# %% [markdown]
# In the final runs of 400 steps the rate grows for 120 steps, then falls. They used five *seeds* that the search did
# not use. A seed sets the first weights and the order of the text, the same for all.
#
# The loss is measured on *held-out* text, on which no run trained, in *nats per byte*: the mean of -ln p, with p the
# model's probability of the next byte.

# %%
results = lab05.recorded_results()
of_adamw = results["adamw"]
lab05.print_trials(results)

# %% [markdown]
# The seeds alone differ by some hundredths. So compare seed by seed. If the differences for n seeds have standard
# deviation s, their *95% interval* is mean +- t s / sqrt(n), with Student's t = 2.78 for n = 5. If it contains 0,
# either may be better: *within noise*. Guess: which of the optimizers end below AdamW, beyond noise?

# %%
lab05.print_text(f"choose among {', '.join(sorted(results))}")
my_guess_better = lab05.guess("below AdamW (some of these names)", None, interactive)

# %%
others = [name for name in results if name != "adamw"]
apart = {name: lab05.difference(results[name].losses, of_adamw.losses) for name in others}
lab05.show(lab05.figure_differences(apart, "adamw"))
better = [name for name, one in apart.items() if not one.is_noise and one.mean < 0]
my_guess_better.reveal(set(better) or "none")

# %% [markdown]
# A line that crosses 0 supports no claim, for any mean: *within noise* does not mean *equal*.
#
# Muon is below AdamW for the same tokens. But in the recording, on a CPU and with small batches, its training step,
# with forward and backward, takes 1.67 times as long: when AdamW is done, is Muon below it, above it, or equal within
# 0.05 nats? (The next curves use 64 held-out sequences, the losses above 256.)

# %%
my_guess_then = lab05.guess('Muon then ("below", "above" or "equal")', None, interactive)

# %%
few = {name: results[name] for name in ("adamw", "muon", "adafactor")}
lab05.show(lab05.figure_loss_curves(few))
then = lab05.loss_when_done(results["muon"], of_adamw)
print(f"when AdamW is done, at {of_adamw.curve[-1]:.3f} nats per byte, Muon is at {then:.3f}")
lead = of_adamw.curve[-1] - then
my_guess_then.reveal("equal" if abs(lead) <= 0.05 else "below" if lead > 0 else "above")

# %% [markdown]
# When AdamW is done, Muon has about the same loss, before its rate has fallen. And this is one small model, one text
# and 400 steps, 1.7 tokens per parameter where 20 are usual. Other studies found that the lead of Muon and SOAP shrinks
# with model size, from 1.4 times AdamW's speed to 1.1 (Wen et al., 2025), or persists (Qiu et al., 2025).

# %% [markdown] tags=["further"] minutes=2
# ## Further: loss for a budget
#
# Now compare loss and memory. A step also holds temporary tensors, such as the root of v for all weights. The *need* of
# an optimizer is both together: the bytes in addition to weights and gradients at the peak of a step. Left and down is
# better; a bar goes from the best to the worst seed. Move the budget.


# %%
def fitting(budget):
    return {k: one for k, one in results.items() if one.needed_bytes_per_parameter <= budget}


label = "Bytes per parameter, without weights and gradients"
budgets = lab05.LogSlider("budget", label, 1.0, 50.0, 50.0)
figure = lab05.figure_loss_and_bytes
lab05.explore(fitting, figure, [budgets], interactive, examples=[{"budget": 8.0}])

# %% [markdown] tags=["further"] minutes=12
# ## Further: eight bits in blocks
#
# A state can be kept in one byte per number. You build this; it shows why large numbers do harm.
#
# A byte has 256 values. To *quantize* a state, divide by a *scale*, the largest |x|, and store for each number its
# *code*, the index of the nearest of 256 values between -1 and 1. These lie densely near 0, because states span many
# orders of magnitude. To read a number, multiply value and scale.

# %%
from lablib.optim import blockwise

values = blockwise.codebook(is_signed=True)
print("of 256 values:", "  ".join(f"{value:.2g}" for value in values[128::16]))
low, median = m.abs()[m != 0].min(), m.abs().median()
print(f"m: {m.numel():,} numbers, {low:.1e} to {m.abs().max():.1e}, median {median:.1e}")

# %% [markdown]
# One *outlier*, a number far larger than all others, sets the scale, and fewer values are left for the others. So the
# state is cut into *blocks* of B numbers, each with its own scale (Dettmers et al., 2021). For an outlier of 1,000
# times the rms, how large is the error of the others, in percent of their norm: with one scale for all 16,384, and with
# blocks of 256?

# %%
my_guess_errors = lab05.guess(
    "error of the others (one scale, blocks of 256)", None, interactive, "%"
)

# %%
outliers = [10.0**power for power in range(7)]
_, errors = found = lab05.block_errors(m, outliers, (64, 256, 2048, m.numel()))
lab05.show(lab05.figure_blocks(*found))
my_guess_errors.reveal(
    [100 * errors[name][3] for name in ("one scale for all", "blocks of 256")]
)
largest = lab05.largest_over_rms(list(training.optimizers[0].state.values()))
print(f"largest number of all states of this training: {largest:.0f} times its tensor's rms")

# %% [markdown]
# With one scale an outlier harms all 16,384; in blocks of 256 it harms only its block. In this small training the
# largest is far below 1,000. Blocks protect against larger ones, at a cost of 4 / B bytes per number.

# %% [markdown]
# ### Exercise 4: quantize a state
#
# Cut x, in the order of `x.flatten()`, into blocks of `block` numbers; the last may be shorter. (Two lines are given.)
# Each has its own scale: the largest |x|, or 1 for a block of zeros. A code is the index of the value nearest to x /
# scale. `torch.bucketize(numbers, borders)` returns for each number how many borders lie below it.


# %% tags=["exercise"]
def quantize_state(x, values, block):
    """Codes, uint8 in the shape of x, and scales, float32, one per block.

    x: float32 of any shape with at least one number; stays unchanged.
    values: up to 256 ascending float32, with 0 and 1; from about -1 where x may be negative,
        otherwise from 0.
    Codes own their memory: a slice of longer ones keeps the padding alive, its `.clone()` does
    not.
    """
    flat = x.flatten()
    rows = nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)  # zeros at the end
    ### BEGIN SOLUTION
    scales = rows.abs().amax(dim=1)
    scales = torch.where(scales > 0, scales, 1.0)
    codes = torch.bucketize(rows / scales[:, None], (values[:-1] + values[1:]) / 2)
    return codes.flatten()[: len(flat)].view(x.shape).to(torch.uint8), scales
    ### END SOLUTION


# %%
# Try it. By hand: codes 4, 1 | 2, 4 | 4 and scales 8 | 0.1 | 3.
few = torch.tensor([-1.0, -0.25, 0.0, 0.25, 1.0])
lab05.try_out(quantize_state, torch.tensor([8.0, -2.1, 0.0, 0.1, 3.0]), few, block=2)

# %% tags=["check"] points=3
check.quantize_state(quantize_state)

# %% [markdown]
# *Adam8bit* reads m and v, adds the gradient, and quantizes them again: 2.03 bytes per parameter at B = 256. The
# library rounds to 16 bits and looks the code up in a table, without a search: sometimes it gets a neighbour of the
# nearest value.

# %%
lab05.show_source(blockwise.quantize, after=check.quantize_state)

# %% [markdown] tags=["further"] minutes=5
# ## Further: reconcile, predicted and measured
#
# A state costs time, too: this section predicts the time of a step, and measures it. Nearly all of it is memory access:
# SGD reads w and g and writes w, 12 bytes per parameter, AdamW at least 28. Muon adds products. Adam8bit reads and
# writes a quarter of AdamW's state. What is the ratio of Adam8bit's step time to AdamW's?

# %%
my_guess_ratio = lab05.guess("Adam8bit's step over AdamW's", None, interactive, "times")

# %%
from lablib import reconcile

width, options = lab05.this_computer()  # larger matrices on a GPU
comparison = reconcile(lab05.steps, width, **options, repeats=3 if quick else 7)
lab05.print_text(comparison.reading())

# %% [markdown]
# Next to it a recorded run with two matrices of 1024 x 1024; its sentence includes the load of that machine:

# %%
recorded = lab05.recorded_comparison("05")
lab05.print_text(f"{recorded}")
seconds = {row["name"]: row["measured_s"] for row in recorded.rows}
my_guess_ratio.reveal(seconds["Adam8bit"] / seconds["AdamW"])
print("a step over AdamW's, and AdamW's in seconds")
lab05.ratios_to_adamw({"here": comparison.table(), "recorded": pd.DataFrame(recorded.rows)})

# %% [markdown]
# The prediction divides the bytes that every operator reads and writes by the bandwidth. Each of AdamW's eight batched
# operators goes through memory again, and coding in 8 bits takes many more: a smaller state is not a faster step. On
# GPUs one *fused* kernel does it in one pass. On the quiet, recorded machine Muon's step is the longest. This is the
# optimizer's step alone; the 1.67 above includes forward and backward.

# %% [markdown] tags=["further"] minutes=3
# ## Further: ten intervals, and a second look
#
# Each interval misses the true difference one time in twenty, so of ten intervals, 0.5 miss on average. At 99.5% each,
# the chance that any of the ten misses is at most one in twenty. Which intervals still exclude 0? And Lion's loss is
# above AdamW's on each seed: would three seeds have shown it?

# %%
wider = 5.598 / 2.776  # t at 99.5% over t at 95%, n = 5
sure = [name for name, one in apart.items() if abs(one.mean) > wider * one.half_width]
print(f"without 0 at 99.5%, {wider:.1f} times as wide:", ", ".join(sure), "of", len(apart))
for n in (3, 5):
    lion, adamw = (dict(list(results[name].losses.items())[:n]) for name in ("lion", "adamw"))
    print(f"{n} seeds:", lab05.difference(lion, adamw).sentence("Lion", "AdamW"))

# %% [markdown]
# The same four exclude 0. After three seeds Lion's interval still contained 0; because of that two more were run, for
# all optimizers. Such a second look makes a false positive likelier than 5%: fix the number of seeds before the first
# run.

# %% [markdown] tags=["further"] minutes=12
# ## Further: choose by a rule
#
# An optimizer within noise of the best may be as good, or it just has a wide interval: the noisiest optimizer would tie
# with all. So compare the largest plausible loss, the upper end of the interval, with a *margin*. Here it is 0.05 nats,
# a fifth of Muon's gain, and about the smallest difference that five seeds can show.

# %%
import statistics

T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # number of seeds -> t


def interval(losses, others):
    """Both ends of the 95% interval of the differences, seed by seed."""
    apart = [a - b for a, b in zip(losses, others, strict=True)]
    half_width = T[len(apart)] * statistics.stdev(apart) / math.sqrt(len(apart))
    return statistics.mean(apart) - half_width, statistics.mean(apart) + half_width


for name in ("adafactor", "sophia"):
    lower, upper = interval(list(results[name].losses.values()), list(of_adamw.losses.values()))
    print(f"{name} less adamw: {lower:+.3f} to {upper:+.3f} nats")

# %% [markdown]
# ### Exercise 5: choose
#
# Of the optimizers within the budget find the *best*, with the lowest mean loss. Another is *as good* if the interval
# of its differences from the best ends at or below `margin`; the best itself counts, too. Among these take the one that
# needs fewest bytes; if several need the same, the one with the lower mean loss.


# %% tags=["exercise"]
def choose_optimizer(losses, need, budget, margin):
    """The name of the optimizer to take; None if none needs at most `budget`.

    losses: dict, name -> list of losses, one per seed, in the same order for all; 2 to 5 seeds.
    need: dict, name -> bytes per parameter. Both stay unchanged. margin: at least 0.
    `interval` above may be used.
    """
    ### BEGIN SOLUTION
    fitting = [name for name in losses if need[name] <= budget]
    if not fitting:
        return None
    best = min(fitting, key=lambda name: statistics.mean(losses[name]))
    good = [name for name in fitting if interval(losses[name], losses[best])[1] <= margin]
    return min(good, key=lambda name: (need[name], statistics.mean(losses[name])))
    ### END SOLUTION


# %%
# Try it. By hand: b less a is 0, 0.02, 0.01: it ends at 0.035, and b needs less.
# And c loses 1 more.
three = {"a": [2.0, 2.1, 2.2], "b": [2.0, 2.12, 2.21], "c": [3.0, 3.1, 3.3]}
sizes = {"a": 8, "b": 4, "c": 1}
lab05.try_out(choose_optimizer, three, sizes, budget=8, margin=0.05)  # b
lab05.try_out(choose_optimizer, three, sizes, budget=8, margin=0.02)  # a
lab05.try_out(choose_optimizer, three, sizes, budget=2, margin=0.05)  # only c fits

# %% tags=["check"] points=2
check.choose_optimizer(choose_optimizer)

# %% [markdown]
# The library's guide follows the same rule and gives its reasons, here for the small model of the recorded trials.

# %%
from lablib.studies.optimizer_choice import choose

for budget in (40.0, 8.0, 5.0):
    one = choose(results, budget)[0]
    lab05.print_text(f"{budget:g} bytes per parameter, {one.name}: {one.reason}")

# %% [markdown] tags=["further"] minutes=6
# ## Further: a guide for your model
#
# The need of a step differs from model to model. The simulator runs two steps with shapes alone, without numbers, and
# its memory tracker records the peak. The example is GPT-2, in which embeddings are a third of the parameters: Muon,
# SOAP, GaLore and 8 bits leave them to AdamW.

# %%
from lablib import phase
from lablib.models import GPT, model_config
from lablib.studies.optimizer_choice import state_of
from lablib.studies.optimizer_trial import kinds, make_optimizers


def second_step(name):
    model = GPT(model_config("gpt2"))
    optimizers = make_optimizers(name, model, lr=1e-3, weight_decay=0.0)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    for step in ("first", "second"):
        with phase(step):
            for optimizer in optimizers:
                optimizer.step()
    return sum(param.numel() for param in model.parameters())


run = launch(second_step, "adamw", ranks=1, fidelity="shapes")
print(f"GPT-2: {run.values[0]:,} parameters")

# %%
gpt2 = {"state": state_of(GPT(model_config("gpt2"), device="meta")), "need of a step": {}}
for name in kinds(1):
    run = launch(second_step, name, ranks=1, fidelity="shapes")
    peak = run.memory.by_phase(0)["peak_bytes"]["second"] / run.values[0]
    gpt2["need of a step"][name] = peak - 8  # 4 for weights, 4 for gradients
print("bytes per parameter")
pd.DataFrame(gpt2).sort_values("need of a step").round(2)

# %% [markdown]
# The losses are still from the small model. Change the budget, and read the reason for each place. An optimizer that
# needs too much is out; steps inside backward (a later section) can reduce the need.

# %%
from lablib.studies.optimizer_choice import choose

my_budget = 7.0  # bytes per parameter, without weights and gradients
places = choose(results, my_budget, needed_bytes_per_parameter=gpt2["need of a step"])
rows = [{"place": one.place or "out", "name": one.name, "why": one.reason} for one in places]
pd.DataFrame(rows).style.hide().set_properties(**{"text-align": "left"})

# %% [markdown] tags=["further"] minutes=3
# ## Further: a part of it live
#
# With `quick`, run the first 50 steps of the 400, on the first of these seeds: still in the warmup, in which the rate
# grows step by step.

# %%
rows = {}
for name in ("adamw", "muon"):
    result, num_steps = results[name], 50 if quick else 400
    _, looks = experiment.run(name, result.lr, result.weight_decay, seed=1, num_steps=num_steps)
    rows[name] = {"live": looks[-1].loss, "mean of 5 seeds": result.curve[num_steps // 50]}
print(f"held-out loss after {num_steps} of 400 steps (nats per byte)")
pd.DataFrame(rows).T.round(3)

# %% [markdown] tags=["further"] minutes=3
# ## Further: a sign and its noise
#
# *Lion* steps by the sign of a mean: lr for every number, unless its mean is 0. So it keeps no v. Does a sign lose the
# information how certain a gradient is? Guess the mean step where the gradient's mean is a tenth of its standard
# deviation.

# %%
my_guess_step = lab05.guess("mean step over lr, at a signal of 0.1", None, interactive, "count")

# %%
from lablib.optim.effects import mean_steps

signals = [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
found = mean_steps(signals, num_steps=400)
lab05.show(lab05.figure_sign_of_noise(*found))
my_guess_step.reveal(found[1]["Lion, measured"][2])

# %% [markdown]
# No: where noise is larger than the signal, the sign varies between + and -, and its mean is proportional to the
# signal, as in Adam. Noise has the effect of v. Lion takes the sign of a mean over many steps, which has less noise
# than one gradient; Adam divides by the noise of one gradient. So Lion's curve lies further left.

# %% [markdown] tags=["further"] minutes=3
# ## Further: the loss of GaLore's projection
#
# *GaLore* (Zhao et al., 2024) keeps Adam's means only for the strongest directions of the gradient, found by a
# decomposition every 200 steps in the paper, every 50 here. The part of a gradient in no kept direction is lost. Guess:
# which share of the squares is lost at rank 16 of 64, with the gradient's own directions, with directions from 20 steps
# ago, and with random ones?

# %%
my_guess_lost = lab05.guess(
    "lost squares (own, 20 steps old, random directions)", None, interactive, "%"
)

# %%
from lablib.optim.effects import lost_shares

weight = "blocks.0.mlp.up.weight"
old = training.model.get_parameter(weight).grad
later, _ = experiment.run("adamw", 8e-3, weight_decay=0.0, seed=1, num_steps=40, look_every=40)
new = later.model.get_parameter(weight).grad
random = torch.randn(new.shape, generator=torch.Generator().manual_seed(0))
sources = {"its own": new, "20 steps old": old, "random": random}
_, lost = found = lost_shares(new, sources, [1, 2, 4, 8, 16, 32, 64])
lab05.show(lab05.figure_projection(*found))
my_guess_lost.reveal([100 * shares[4] for shares in lost.values()])

# %% [markdown]
# This gradient is nearly one direction: its own directions lose less than 1% at any rank. In 20 steps the strongest
# direction has turned: at rank 1 the old direction loses most of the squares, at a quarter of the width (16) an eighth.
# So directions are renewed regularly. The figure shows lost squares of a gradient, not lost progress.

# %% [markdown] tags=["further"] minutes=3
# ## Further: Adafactor's approximation
#
# If the squares of a gradient were a column times a row, their row means R and column means C would determine them all:
# v = R C / mean(R), m + n numbers for m n. Here AdamW's v is compared with this product.

# %%
v = training.optimizers[0].state[mlp_up]["exp_avg_sq"]
guessed = v.mean(dim=1, keepdim=True) * v.mean(dim=0) / v.mean()
factor = (v / guessed).sqrt()
low, middle, high = (float(factor.quantile(share)) for share in (0.05, 0.5, 0.95))
print(f"Adafactor's step over AdamW's: 90% from {low:.2f} to {high:.2f}, middle {middle:.2f}")
print(f"{sum(v.shape):,} numbers kept for {v.numel():,}")

# %% [markdown] tags=["further"] minutes=5
# ## Further: the optimizer in backward
#
# A gradient is needed only until its weight is updated. With a hook on each weight, backward updates it at once and
# frees the gradient (Lv et al., 2023). The peak falls; clipping by the norm of all gradients then needs an extra
# backward before this one.


# %%
from lablib import phase
from lablib.optim.in_backward import step_in_backward
from lablib.optim.lion import Lion


def two_steps(in_backward):
    layers = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(16)))
    if in_backward:
        step_in_backward(lambda params: Lion(params, lr=1e-3), layers.parameters())
    else:
        optimizer = Lion(layers.parameters(), lr=1e-3)
    for name in ("first", "second"):
        with phase(name):
            layers(torch.ones(4, 256)).square().mean().backward()
            if not in_backward:  # otherwise the hooks update the weights and free the gradients
                optimizer.step()
                optimizer.zero_grad()


def peak_of(in_backward):
    peaks = launch(two_steps, in_backward, ranks=1).memory.by_phase(0)["peak_bytes"]
    return f"{peaks['second'] / (16 * 256**2):.2f} bytes per parameter"


# %%
print("gradients of all at once: peak of a step", peak_of(False))
print("each stepped in backward: peak of a step", peak_of(True))

# %% [markdown] tags=["further"] minutes=3
# ## Further: the usual advice
#
# Advice from papers, and results of comparisons under equal tuning. Which of these claims does the figure above
# support? It has limits: batches here are small, and memory was not short.

# %%
from lablib.studies.optimizers import PUBLISHED

for one in PUBLISHED:
    lab05.print_text(f"{one.claim} ({one.source})")

# %%
for name in apart:
    lab05.print_text(apart[name].sentence(name, "adamw"))

# %% [markdown] tags=["further"] minutes=3
# ## Further: conventions
#
# Two codes of the same name may differ: epsilon after the root (AdamW), or inside it; decay times lr (torch), or times
# the schedule alone (the paper); momentum as a mean (torch's Muon) or a sum (torch's SGD). Rates do not carry over. The
# table shows the effect of epsilon's place on a first step; in the third column it is added to the root of v, and the
# sum is corrected for the start at 0:

# %%
eps, rows = 1e-8, {}
for size in (1e-2, 1e-4, 1e-6, 1e-8, 1e-10):
    rows[f"gradient {size:g}"] = {
        "sqrt(v^) + eps": size / (size + eps),
        "sqrt(v^ + eps)": size / math.sqrt(size**2 + eps),
        "(sqrt(v) + eps), corrected": size / (size + eps / math.sqrt(1 - 0.999)),
    }
print("step over lr")
pd.DataFrame(rows).T.map(lambda value: f"{value:.3g}")

# %% [markdown] minutes=3
# ## Summary
#
# - State gives steps of the right size: AdamW's two means for each number, Muon's one mean for each direction.
# - It costs bytes: for a matrix 8 per parameter for AdamW, 4 for Lion and Muon, 2 with one byte per number, almost 0
#   for Adafactor; embeddings left to AdamW add to this.
# - Muon's step: a mean with Nesterov, its directions by products, a scale that fits AdamW's. Embeddings, head and
#   vectors take AdamW.
# - In AdamW, decay is not part of the gradient, and early means are corrected.
# - A comparison needs the same search for all, fresh seeds, and differences seed by seed. Within noise is not equal.

# %% [markdown]
# ### Sources
#
# - D. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", 2014, arXiv 1412.6980.
# - I. Loshchilov and F. Hutter, "Decoupled Weight Decay Regularization", 2017, arXiv 1711.05101.
# - T. Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, arXiv 2110.02861.
# - K. Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, kellerjordan.github.io.
# - J. Liu et al., "Muon is Scalable for LLM Training", 2025, arXiv 2502.16982: section 2.2, the scale and the decay.
# - N. Shazeer and M. Stern, "Adafactor", 2018, arXiv 1804.04235.
# - X. Chen et al., "Symbolic Discovery of Optimization Algorithms" (Lion), 2023, arXiv 2302.06675.
# - J. Zhao et al., "GaLore", 2024, arXiv 2403.03507.
# - K. Lv et al., "Full Parameter Fine-tuning for Large Language Models with Limited Resources", 2023, arXiv 2306.09782.
# - N. Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", 2024, arXiv 2409.11321.
# - Y. You et al. (LAMB), 2019, arXiv 1904.00962; H. Liu et al. (Sophia), 2023, arXiv 2305.14342; Z. Zhang et al.
#   (Q-GaLore), 2024, arXiv 2407.08296.
# - K. Wen et al., "Fantastic Pretraining Optimizers and Where to Find Them", 2025, arXiv 2509.02046.
# - S. Qiu et al., "Hyperparameter Transfer Enables Consistent Gains of Matrix-Preconditioned Optimizers Across
#   Scales", 2025, arXiv 2512.05620.
# - The code: `lablib/optim`.

# %%
check
