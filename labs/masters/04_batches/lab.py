# %% [markdown]
# # Lab 04: Batches
#
# **Question.** How large should a batch be, and does it matter how it is cut?
#
# Training goes in *steps*: compute a loss on some text, its *gradient* (how the loss changes with each weight), and
# move the weights against it. The text of one step is the *batch*. You will cut batches between moments, GPUs and
# documents without changing the gradient, and then see what a larger batch buys, and when it no longer buys much.
#
# The lab takes an hour. Folded sections, called *further*, go beyond it.

# %%
import math

import pandas as pd
import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib import launch, phase, reconcile
from lablib.batches import (
    accumulation,
    batch_rules,
    clipping,
    large_batch,
    mup,
    noise_scale,
    packed_attention,
    packing,
    small_runs,
)
from lablib.batches.accumulation import IGNORED, summed_loss
from lablib.batches.small_runs import MODEL, NARROW, SEQ_LEN
from lablib.calibration import this_machine
from lablib.course import checks_for, print_text, recorded_comparison, show_source, try_out
from lablib.data import Batch, batches, cut_documents, documents, load_corpus
from lablib.figures import (
    figure_coordinates,
    figure_lines,
    figure_packing,
    figure_rates,
    figure_schedules,
    figure_steps_law,
    format_quantity,
    show,
)
from lablib.memory.measured_peak import measured_peak_bytes
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import DataParallel
from lablib.precision.loss_scaling import LossScaler
from lablib.widgets import batch_calculator

check = checks_for("04")
check

# %% tags=["parameters"]
ranks: int = 3  # data ranks of the simulated runs, 1 to 6
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=4
# ## One equation
#
# A GPU has room for a few sequences at a time, a *micro-batch*. It can work on several of them, one after another, and
# add up their gradients: *accumulation*. And several GPUs with the same weights, the *data ranks*, can do so side by
# side and add up theirs. Then all take the same step. So
#
# `micro-batch x accumulations x data ranks = global batch`
#
# in sequences; times the length of a sequence it is the tokens of a step. GPT-3 took 3.2 million. Below is a model of
# 1.6 billion parameters on 16 GPUs. The pictures show all ways to cut the same global batch. Which of them holds
# least memory? Which is the fastest? Then give the work to 64 GPUs, with the same global batch.

# %%
batch_calculator(interactive)

# %% [markdown]
# <details><summary>Which?</summary>
#
# One sequence at a time holds least: activations grow with the micro-batch, all else stays. Larger micro-batches are
# a little faster, as products of larger matrices are, until there is no room. More ranks need fewer accumulations for
# the same batch. None of this changes what the model learns, if the gradient stays the same. That is up to you.
#
# </details>

# %% [markdown] minutes=11
# ## A sum over tokens
#
# The loss of a batch is the mean over its N tokens, of what each token's prediction cost. The gradient of a sum is the
# sum of the gradients. So every token adds its own gradient over N, and the sum may be cut anywhere. PyTorch adds by
# itself: `loss.backward()` adds to `param.grad` what it finds there.
#
# Cut a batch into two micro-batches, one of 101 tokens, one of 11. Take the mean loss of each, and the mean of the
# two. How many times as much does a token of the short one now weigh as a token of the long one?

# %%
my_guess_weight = None  # 1 if all tokens weigh the same
print("guess:", my_guess_weight)

# %%
# One number for each token: its loss.
long, short = (torch.ones(tokens, requires_grad=True) for tokens in (101, 11))
((long.mean() + short.mean()) / 2).backward()
weights = {"long": float(long.grad[0]), "short": float(short.grad[0]), "right": 1 / (101 + 11)}
print(", ".join(f"{name} {weight:.4f}" for name, weight in weights.items()))
times = weights["short"] / weights["long"]
print(f"a token of the short one weighs {times:.1f} times as much;", end=" ")
print("you guessed", my_guess_weight)

# %% [markdown]
# This *mean of means* is a real mistake: reported for a widely used trainer in July 2023, with these very numbers, and
# mended in October 2024 (huggingface/transformers, issue 24725, pull request 34191). It hides well. Where all
# micro-batches have as many tokens it is exact. But text differs in length: short sequences are filled up with
# *padding*, which is no token and has no loss. Its targets are -100, `IGNORED`. So micro-batches of the same shape
# have different numbers of tokens.

# %% [markdown]
# ### Exercise 1: accumulate
#
# Make the gradient of the mean over *all* tokens, from micro-batches. Work on one after another, each once, so that
# the activations of only one are in memory. `summed_loss(logits, targets)` is the library's sum of the losses of the
# tokens, without padding. Stuck? Run `check.accumulate.hint()` in a new cell.


# %% tags=["exercise"]
def accumulate(model, micro_batches):
    """Add to each `param.grad` the gradient of the mean loss over all tokens.

    micro_batches: a list of (inputs, targets), each of a shape (B, T) of its own;
    stays as it is. Targets are IGNORED where there is no token, anywhere in a row; some
    micro-batch may have none at all. model(inputs) are the logits, of shape (B, T, V).
    Returns the mean loss, a number.
    """
    ### BEGIN SOLUTION
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        loss = summed_loss(model(inputs), targets) / num_tokens
        loss.backward()
        total += loss.item()
    return total
    ### END SOLUTION


# %%
# Try it. A model that finds two tokens equally likely costs ln 2 = 0.6931 a token.
def even_odds():
    pairs = [
        (torch.zeros(2, 3).long(), torch.zeros(2, 3).long()),
        (torch.zeros(1, 2).long(), torch.tensor([[1, -100]])),
    ]
    logits = torch.zeros(2, requires_grad=True)
    loss = accumulate(lambda inputs: logits.expand(*inputs.shape, 2), pairs)
    return loss, logits.grad  # by hand: six tokens are 0, one is 1: (7/2 - 6) / 7 = -0.357


try_out(even_odds)

# %% tags=["check"] points=3
check.accumulate(accumulate)

# %% [markdown]
# Data ranks are one more way to cut the sum. Only the count changes: N counts the tokens of all ranks, so it takes an
# all-reduce (a sum over ranks that all receive) of one number before the first backward. Here is the library's, with
# ranks, and its gradients of uneven and padded micro-batches on `ranks` ranks, beside those of one batch.

# %%
show_source(accumulation.accumulate, after=check.accumulate)


# %%
def padded(index, num_sequences):
    """A micro-batch of real text, the end of each sequence padding."""
    inputs, targets = next(batches(load_corpus(), num_sequences, SEQ_LEN, seed=index))
    generator = torch.Generator().manual_seed(index)
    ends = torch.randint(5, SEQ_LEN, (num_sequences, 1), generator=generator)
    return Batch(inputs, targets.where(torch.arange(SEQ_LEN) < ends, IGNORED))


micro_batches = [padded(index, 1 + index % 3) for index in range(12)]


def gradient(model):
    return torch.cat([param.grad.flatten() for param in model.parameters()])


def on_all_ranks(accumulate):
    model = DataParallel(GPT(NARROW, dtype=torch.float64))
    accumulate(model, micro_batches[dist.get_rank() :: dist.get_world_size()])
    return gradient(model)


one_device = GPT(NARROW, dtype=torch.float64)
one_batch = Batch(*map(torch.cat, zip(*micro_batches, strict=True)))
accumulation.accumulate(one_device, [one_batch])
whole = gradient(one_device)
for one in (accumulation.accumulate, accumulation.accumulate_mean_of_means):
    mine = launch(on_all_ranks, one, ranks=ranks).values[0]
    off = float((mine - whole).norm() / whole.norm())
    print(f"{one.__name__:24s} off by {off:.0e} of the gradient's length")

# %% [markdown] minutes=9
# ## Documents in blocks
#
# Padding is computed and thrown away. Text comes in *documents*: here the modules of Python's standard library, a token
# being a byte. Take blocks of 16,384 tokens, and cut longer documents. If each piece has a block to itself, what share
# of all computed tokens is padding?

# %%
my_guess_waste = None  # a share such as 0.1
print("guess:", my_guess_waste)

# %%
modules = documents(load_corpus())
pieces = cut_documents(modules, 16_384)
lengths = [len(piece) for piece in pieces]
ways = {"alone": packing.one_per_block(lengths, 16_384)}
ways["first fit"] = packing.first_fit(lengths, 16_384, longest_first=False)
ways["best fit, longest first"] = packing.best_fit(lengths, 16_384)
print(f"{len(modules)} documents, {len(pieces)} pieces; you guessed {my_guess_waste}")
rows = {name: [len(way.blocks), f"{way.waste:.2%}"] for name, way in ways.items()}
pd.DataFrame(rows, index=["blocks", "waste"]).T

# %% [markdown]
# *Packing* puts several documents into one block. *First fit* takes them one after another, each into the first block
# that has room; *best fit* into the block that then has least room left. To begin with the longest leaves the short
# ones to fill gaps. A picture of few documents, in smaller blocks:

# %%
few = [len(module) for module in modules if len(module) < 2000][:40]
drawn = {"alone": packing.one_per_block(few, 2048)}
drawn["best fit, longest first"] = packing.best_fit(few, 2048)
show(figure_packing(drawn))

# %% [markdown]
# But now a document has neighbours. In *attention* a token reads the tokens before it in the block, by the *causal
# mask*: also those of another document. What it learns then depends on chance. Here are ten tokens of three documents,
# and how strongly a loss on document 1 changes each token's value, under the causal mask alone.

# %%
document_of = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, -1]])  # -1: padding
causal = torch.ones(1, 1, 10, 10, dtype=torch.bool).tril()


def reached(mask):
    """Length of the gradient of each token's value, of a loss on document 1."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 10, 8, generator=generator)
    value.requires_grad_()
    read = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    read[0, 0, document_of[0] == 1].square().sum().backward()
    return value.grad.norm(dim=-1).flatten()


print("document ", "     ".join(f"{number:2d}" for number in document_of[0].tolist()))
print("gradient ", "  ".join(f"{length:.3f}" for length in reached(causal).tolist()))

# %% [markdown]
# ### Exercise 2: the document mask
#
# Write the mask under which no gradient crosses a border: a token sees itself and the tokens before it in its own
# document, and nothing else. Padding has the number -1. It must see at least itself: a softmax over nothing is NaN,
# and one NaN reaches every weight.


# %% tags=["exercise"]
def document_mask(documents):
    """True where a token (row) may see another (column).

    documents: whole numbers of shape (B, T), each token's document, -1 for padding, which may
    stand anywhere. Tokens of one document stand together; the numbers are any, in any order.
    Returns booleans of shape (B, 1, T, T).
    """
    ### BEGIN SOLUTION
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]
    ### END SOLUTION


# %%
# Try it: two tokens of document 7, one of document 3, one of padding.
try_out(lambda: document_mask(torch.tensor([[7, 7, 3, -1]])).int()[0, 0].tolist())

# %% tags=["check"] points=2
check.document_mask(document_mask)

# %% [markdown]
# With it, and positions that start at 0 in each document, a packed block gives each document the gradients that it
# would have alone. Scores across borders are computed still, and thrown away. Kernels for *variable length* are told
# where documents end, and leave them out.

# %%
mask = packed_attention.document_mask(document_of)
print("gradient ", "  ".join(f"{length:.3f}" for length in reached(mask).tolist()))
best, sizes = ways["best fit, longest first"], {"num_layers": 12, "d_model": 768}
masked = packed_attention.masked_attention_flops(best, **sizes)
variable = packed_attention.variable_length_attention_flops(best, **sizes)
print(f"all modules: attention of variable length takes {variable / masked:.0%} of the FLOPs")

# %% [markdown] minutes=9
# ## Clip the sum
#
# Now and then a batch has a gradient many times as long as usual, and one step along it undoes many. *Clipping*
# shortens it (Pascanu et al., 2012). All gradients of all parameters together are one vector g; its length is the
# *norm* |g|, the square root of the sum of all squares:
#
# `g <- g * min(1, max_norm / |g|)`
#
# One factor for all: the step becomes shorter and keeps its direction. It belongs after the whole sum. What if each
# parameter is clipped by itself, or each micro-batch?

# %%
model = GPT(MODEL)
parts = [next(batches(load_corpus(), 4, SEQ_LEN, seed=seed)) for seed in range(7)]
parts.append(Batch(*torch.full((2, 4, SEQ_LEN), 255)))  # a broken file: byte 255 alone


def mean_gradient(groups, clip=None):
    """Of all `groups` of micro-batches; each group's is clipped to 1, if asked for."""
    total = 0
    for group in groups:
        model.zero_grad()
        accumulation.accumulate(model, group)
        if clip:
            clip(model.parameters(), max_norm=1.0)
        total = total + gradient(model) / len(groups)
    return total


for name, part in {"text": parts[0], "the broken file": parts[-1]}.items():
    print(f"{name:18s} norm {mean_gradient([[part]]).norm():5.2f}")
g = mean_gradient([parts])
clips = {"all, not clipped": g}
clips["all, clipped"] = mean_gradient([parts], clipping.clip_grad_norm_)
clips["each parameter"] = mean_gradient([parts], clipping.clip_each_by_own_norm_)
clips["each micro-batch"] = mean_gradient([[part] for part in parts], clipping.clip_grad_norm_)
for name, other in clips.items():
    angle = math.degrees(torch.arccos(F.cosine_similarity(g, other, dim=0).clamp(max=1)))
    print(f"{name:18s} norm {other.norm():5.2f}, turned by {angle:2.0f} degrees")

# %% [markdown]
# A *loss scale* (lab 02) makes gradients S times as long, so clip after they are divided by it. The order of a step:
# accumulate all, unscale, clip, step.
#
# Large models do not fit one GPU. Their parameters are *sharded*: each rank holds a part of a matrix and of its
# gradient, a *shard*. Small parameters every rank holds whole, *replicated*, with equal gradients on all.

# %% [markdown]
# ### Exercise 3: clip over shards
#
# All ranks must use the norm of the whole gradient. Squares add up: over the shards of all ranks, and over what is
# replicated once. `dist.all_reduce(x)` replaces the tensor x on every rank by the sum over all ranks. The budget: one
# such call, of at most 64 bytes.


# %% tags=["exercise"]
def clip_shards(shards, replicated, max_norm):
    """Shorten the whole gradient to `max_norm`, if it is longer, in place.

    Every rank calls it. shards: a list of tensors, parts of gradients; perhaps none.
    replicated: a list of gradients that every rank holds whole; perhaps none.
    Returns the norm before, the same on every rank.
    """
    ### BEGIN SOLUTION
    squared = sum((shard.square().sum() for shard in shards), torch.zeros(()))
    dist.all_reduce(squared)
    norm = (squared + sum(one.square().sum() for one in replicated)).sqrt()
    if norm > max_norm:
        for gradient in [*shards, *replicated]:
            gradient.mul_(max_norm / norm)
    return norm
    ### END SOLUTION


# %%
# Try it: shards 2 and 4, replicated 4: the norm is sqrt(4 + 16 + 16) = 6.
# Clipped to 3 all are halved.
def two_shards():
    shard, shared = torch.tensor([2.0 * (dist.get_rank() + 1)]), torch.tensor([4.0])
    return clip_shards([shard], [shared], max_norm=3.0), shard, shared


try_out(two_shards, ranks=2)

# %% tags=["check"] points=3
check.clip_shards(clip_shards)

# %% [markdown] minutes=10
# ## How large? Signal and noise
#
# So the cut does not matter. The size does: a batch is a sample. Its gradient is the true one, G, that of all text,
# plus *noise*, and the mean over B sequences has the less noise the larger B is. With tr(Sigma) for the variance of
# one sequence's gradient, summed over all weights, the expected square is
#
# `E |g_B|^2 = |G|^2 + tr(Sigma) / B`          (signal, and noise)
#
# They are equal at B = tr(Sigma) / |G|^2, the *noise scale* (McCandlish et al., 2018). Below it twice the batch makes a
# step nearly twice as good; far above, twice the work for nearly nothing.

# %% [markdown]
# How can it be measured, without G? The square of one batch's gradient has signal and noise mixed. But accumulation and
# data ranks have two sizes at hand: k parts of b examples each, and their mean, a batch of k b. Two sizes are two
# equations for two unknowns.

# %% [markdown]
# ### Exercise 4: the unbiased estimate
#
# Solve them: the mean of the parts' squares stands for E |g_b|^2, the square of the mean for E |g_kb|^2. *Unbiased*
# means right on average, over all batches that might have been drawn. A single estimate of the signal can be
# negative; leave it so, or the average is no longer right.


# %% tags=["exercise"]
def signal_and_noise(gradients, part_size):
    """Unbiased estimates of |G|^2 and tr(Sigma): two numbers.

    gradients: shape (k, P), k of at least 2: row i is the gradient of part i, a mean over
    `part_size` examples. It stays as it is.
    """
    ### BEGIN SOLUTION
    small, large = part_size, part_size * len(gradients)
    of_small = gradients.square().sum(1).mean()
    of_large = gradients.mean(0).square().sum()
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return of_large - noise / large, noise
    ### END SOLUTION


# %%
# Try it: parts (1, 0) and (3, 4) of one example each.
# By hand: 13 and 8 are the squares, so signal 3, noise 10.
try_out(signal_and_noise, torch.tensor([[1.0, 0.0], [3.0, 4.0]]), part_size=1)

# %% tags=["check"] points=2
check.signal_and_noise(signal_and_noise)

# %% [markdown]
# Is it right? Take a problem whose noise is known: a straight line through 4,096 points in 20 dimensions, where the
# gradient of every point can be computed. The naive way takes the square of the large batch for the signal.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(4096, 20, generator=generator)
y = 0.1 * x.sum(1) + torch.randn(4096, generator=generator)
gradients = -y[:, None] * x  # of each point's squared error / 2, at weights 0
exact = noise_scale.exact_noise(gradients)
estimates, naive = [], []
for _ in range(1000):
    drawn = torch.randint(4096, (4, 8), generator=generator)
    four = gradients[drawn].mean(1)  # 4 parts of 8 points
    estimates.append(noise_scale.estimate_from_parts(four, 8))
    squares, square = four.square().sum(1).tolist(), float(four.mean(0).square().sum())
    naive.append(noise_scale.naive_noise(squares, 8, square))
counts = [50, 100, 200, 400, 700, 1000]
lines = {"exact": [exact.noise_scale] * len(counts)}
for name, some in (("unbiased", estimates), ("naive", naive)):
    lines[name] = [noise_scale.average_noise(some[:count]).noise_scale for count in counts]
labels = {"x_label": "steps averaged", "y_label": "noise scale", "y_unit": "examples"}
show(figure_lines(counts, lines, **labels, title="A noise scale that is known"))

# %% [markdown]
# From batches of 32 the estimate finds a noise scale three times as large; the naive one stays wrong, however long one
# averages. Signal and noise are averaged first and divided then, for a mean of ratios is biased as well.
#
# Now a small GPT on real text (recorded). How does its noise scale move while it learns?

# %%
noise = small_runs.recorded_noise()
steps = [step for step, _, _ in noise]
scales = {"noise scale": [found.noise_scale for _, _, found in noise]}
labels = {"x_label": "step", "y_label": "noise scale", "y_unit": "sequences"}
labels |= {"title": "The noise scale on the way", "log_x": True, "log_y": True}
show(figure_lines(steps, scales, **labels))
print("loss at these steps:", ", ".join(f"{loss:.2f}" for _, loss, _ in noise))

# %% [markdown]
# At first all text says the same (bytes of Python are letters and spaces), and one sequence tells it. What is left to
# learn later is fine, and small beside the noise. So large runs raise the batch on their way:
# DeepSeek-V3 from 3,072 to 15,360 sequences (section 4.2).
#
# What does that mean for steps? The law that follows has a *critical batch*, of the size of the noise scale: there a
# run takes twice the fewest steps, and twice the fewest tokens. With 16 sequences this GPT needed 139 steps to a loss
# of 2.5. How many with 128?

# %%
my_guess_steps = None  # 139 / 8 = 17 if eight times the batch were eight times as good
print("guess:", my_guess_steps)

# %%
measured = small_runs.recorded_steps()
means = {size: sum(some) / len(some) for size, some in measured.items()}
law = noise_scale.fit_steps_law(list(means), list(means.values()))
show(figure_steps_law(measured, law, SEQ_LEN))
print(f"128 sequences: {means[128]:.0f} steps, you guessed {my_guess_steps}")

# %% [markdown]
# Each batch size had the best of several learning rates, and three runs. Going from 16 to 128 saves a third of the
# steps for five times the tokens: worth it where GPUs are many and time is short, a waste where tokens cost. Below 16
# the three runs differ by factors: there the law is not tested well.

# %% [markdown] minutes=7
# ## The rate falls
#
# Noise can also be averaged over time. The *learning rate* is how far a step goes. With a small one many steps make up
# one move, as if their batches were one. So rates begin high, for speed, and end low. (At the very start they climb,
# *warmup*, since the optimizer Adam has not yet seen how large gradients are.) A *cosine* falls all the way, and must
# know the length N of the run from the start. *WSD* (warmup, stable, decay; Hu et al., 2024) falls only at the end.

# %% [markdown]
# ### Exercise 5: WSD
#
# Steps count from 0; W of them are warmup, the last D of N decay. During warmup the factor is (s + 1) / (W + 1): no
# step has 0, and the first after it has 1. In the decay it falls on a straight line, from 1 at s = N - D to 0 at
# s = N, and stays there.


# %% tags=["exercise"]
def wsd(step, num_steps, num_warmup, num_decay):
    """The factor of the peak rate at a step, from 0 up; it may be beyond `num_steps`.

    num_warmup + num_decay is at most num_steps; either may be 0.
    """
    ### BEGIN SOLUTION
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    if step < num_steps - num_decay:
        return 1.0
    return (num_steps - step) / num_decay if step < num_steps else 0.0
    ### END SOLUTION


# %%
# Try it: ten steps, 2 of warmup, 4 of decay.
# By hand: 1/3, 2/3, 1, 1, 1, 1, 1, 3/4, 1/2, 1/4, then 0.
try_out(lambda: [wsd(step, 10, 2, 4) for step in range(11)])

# %% tags=["check"] points=1
check.wsd(wsd)

# %% [markdown]
# Now the small GPT for 400 steps of 16 sequences, under each of four schedules with the same three peaks, and each with
# the same three seeds (recorded). Guess the order at the end, the least loss first.

# %%
my_guess_order = None  # of "constant", "cosine", "linear", "WSD"
print("guess:", my_guess_order)

# %%
runs = small_runs.recorded_schedules()
factors, means = {}, {}
for name, factor in small_runs.SCHEDULES.items():
    factors[name] = [factor(step, 400) for step in range(401)]
    three = zip(*runs[name][2**-8], strict=True)  # of a peak of 2^-8
    means[name] = [(a[0], (a[1] + b[1] + c[1]) / 3) for a, b, c in three if a[0] >= 160]
show(figure_schedules(factors, means, title="Peak 2^-8, loss from step 160 on"))

# %%
rows = {}
for power in (-8, -7, -6):
    ends = {name: [run[-1][1] for run in runs[name][2.0**power]] for name in factors}
    rows[f"2^{power}"] = {name: f"{sum(losses) / 3:.3f}" for name, losses in ends.items()}
    gains = [flat - falls for flat, falls in zip(ends["constant"], ends["WSD"], strict=True)]
    rows[f"2^{power}"]["decay gains, seed by seed"] = ", ".join(f"{one:.3f}" for one in gains)
print("you guessed", my_guess_order)
pd.DataFrame(rows).T.rename_axis("peak rate")

# %% [markdown]
# Until step 320 WSD is the constant run, to the bit. Then it falls, and gains in all nine pairs, most where the rate
# was highest. Cosine and linear are last here: they spend half of a short run on small steps. In long runs WSD and
# cosine come out alike (Hu et al., 2024; Hägele et al., 2024). The use of WSD is another: N need not be known. Decay
# from a saved state of the stable part whenever a model is wanted, and go on from that same state for a longer run.

# %% [markdown] minutes=5
# ## Reconcile: predicted and measured
#
# One step of 16 sequences on this computer, cut in three ways: one micro-batch of 16, four of 4, sixteen of 1.
# `reconcile` predicts seconds and measures them; half a minute once goes into measuring how fast this computer is.
# Bytes: the simulator adds up all tensors; here PyTorch's profiler tells of each. Guess, for sixteen micro-batches
# beside one: how much memory, and how much time?

# %%
my_guess_memory = None  # peak of 16 micro-batches over that of one, such as 0.5
my_guess_time = None  # the same of seconds
print("guesses:", my_guess_memory, "and", my_guess_time)

# %%
sizes = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=128)
cuts = {"1 of 16": 16, "4 of 4": 4, "16 of 1": 1}  # micro-batches, and the sequences of each


def make_model():
    device = torch.get_default_device()
    return GPT(sizes, device=device), torch.zeros(16, 128, dtype=torch.long, device=device)


def backward_of_16(model, tokens, micro_batch):
    for part in tokens.split(micro_batch):
        (next_token_loss(model(part), part) * (len(part) / 16)).backward()


def one_cut(micro_batch):
    backward_of_16(*make_model(), micro_batch)


def all_cuts():
    with phase("setup"):
        model, tokens = make_model()
        backward_of_16(model, tokens, 4)  # a first, slow call
    for name, micro_batch in cuts.items():
        with phase(name):
            backward_of_16(model, tokens, micro_batch)


# %%
real = "nccl" if torch.cuda.is_available() else "gloo"
here = this_machine(ranks=2, backend=real)
there = {"ranks": 1, "backend": real, "cluster": here}
comparison = reconcile(all_cuts, **there, repeats=3 if quick else 7, without="setup")
print_text(comparison.reading())


def peaks():
    return [measured_peak_bytes(one_cut, micro_batch) for micro_batch in cuts.values()]


measured_bytes = launch(peaks, ranks=1, backend=real, trace=False).values[0]
recorded = recorded_comparison("04")
print_text(f"{recorded}")

# %%
tables = {"here": comparison.table(), "recorded": pd.DataFrame(recorded.rows)}
rows = {}
for (name, micro_batch), held in zip(cuts.items(), measured_bytes, strict=True):
    simulated = launch(one_cut, micro_batch, ranks=1, fidelity="shapes").memory
    row = rows[name] = {"bytes, predicted": format_quantity(simulated.peak_bytes(0), "B")}
    row["measured"] = format_quantity(held, "B")
    for place, table in tables.items():
        seconds = table.set_index("name").loc[name]
        row[f"{place}, predicted"] = format_quantity(seconds["predicted_s"], "s")
        row[f"{place}, measured"] = format_quantity(seconds["measured_s"], "s")
print("you guessed", my_guess_memory, "of the memory and", my_guess_time, "times the seconds")
pd.DataFrame(rows).T

# %% [markdown]
# Bytes agree exactly: what is held follows from the program. Sixteen micro-batches hold less than a quarter of
# the memory; weights and their gradients stay, whatever the cut. Seconds are off: other programs take their share of a
# busy machine, and the prediction knows of gelu and norms only the bytes they move. But most of that is in all three,
# so the *ratio* is nearer: micro-batches of one sequence take longer, as smaller products waste more. On a GPU it is
# more.

# %% [markdown] tags=["further"] minutes=6
# ## Further: large batches
#
# A batch k times as large makes k times fewer steps of the same text. How much longer should each be? For plain
# gradient descent the *linear* rule says k times: k small steps are one large one (Goyal et al., 2017). Adam divides
# each gradient by its usual size, and noise makes that size fall as 1 / sqrt(k): the *square-root* rule says sqrt(k)
# (Malladi et al., 2022). LAMB, for large batches, makes the step of each layer a share of its weights' size (You et
# al., 2019). Here are both optimizers on the same 8,192 sequences: 1,024 steps of 8, or 64 of 128. Which is ahead
# where? A ring marks the best rate.

# %%
large = small_runs.recorded_large_batch()
show(figure_rates(large, "batch", title="Loss after the same text"))


# %%
def best_rate(losses):
    """Of the rates with most runs, that with the least mean loss."""
    most = max(map(len, losses.values()))
    rates = [rate for rate in losses if len(losses[rate]) == most]
    return min(rates, key=lambda rate: sum(losses[rate]))


def told(losses):
    spread = f" ({min(losses):.2f} to {max(losses):.2f})" if len(losses) > 1 else ""
    return f"{sum(losses) / len(losses):.2f}{spread}" if losses else "not run"


rows = {}
for name, by_batch in large.items():
    small = best_rate(by_batch[8])
    for size, losses in by_batch.items():
        rates = {"best": best_rate(losses)}
        rates["square root"] = large_batch.square_root_rate(small, 8, size)
        rates["linear"] = large_batch.linear_rate(small, 8, size)
        row = rows[f"{name}, batch {size}"] = {}
        for rule, rate in rates.items():
            row[rule] = f"2^{math.log2(rate):.0f}: {told(losses.get(rate, []))}"
print("best rates, and what the rules make of that of batch 8; losses, ranges of three runs")
pd.DataFrame(rows).T

# %% [markdown]
# Both lose by the larger batch: it has too few steps. At 64 steps of 128 LAMB is ahead by a third of a nat, beyond the
# range of three runs; at batch 8 behind, of one run each. AdamW's best rate doubled from 8 to 32, as the square root
# says, and then fell; LAMB's grew eightfold from 8 to 128, between the two rules. But only the rate was searched. For
# BERT Adam was as good as LAMB once both were tuned as far (Nado et al., 2021).

# %% [markdown] tags=["further"] minutes=5
# ## Further: batches for later tokens
#
# Laws of the best batch were fitted to many small runs: by the loss reached (Kaplan et al., 2020), by the compute
# C = 6 N D of N parameters and D tokens (DeepSeek LLM, 2024), by D alone (Li et al., 2025). They differ in what they
# call best, and by factors; in one thing they agree. Which? The table takes 20 tokens a parameter.

# %%
rows = {}
for billions in (1, 10, 100, 1000, 10_000):
    num_tokens = billions * 1e9
    num_params = num_tokens / 20
    best = {"DeepSeek": batch_rules.deepseek_batch(6 * num_params * num_tokens)}
    best["Step Law"] = batch_rules.step_law_batch(num_tokens)
    words = {name: f"{value:,.0f}" for name, value in best.items()}
    rows[f"{billions:,} billion tokens"] = words
for loss in (4.0, 3.0, 2.0):
    critical = batch_rules.kaplan_critical_batch(loss)
    print(f"Kaplan's critical batch at a loss of {loss}: {critical:,.0f} tokens")
print("best batch, in tokens:")
pd.DataFrame(rows).T

# %% [markdown]
# The batch grows with the length of the training, as the noise scale does. Outside of what was measured, a law is a
# guess.

# %% [markdown] tags=["further"] minutes=6
# ## Further: a rate that stays right
#
# A wider model wants another rate: one step of Adam changes each weight by about the rate, and a unit with twice as
# many inputs moves twice as far. *muP* divides rates and starts by what grows (Yang et al., 2022), so that a rate found
# on a narrow model serves a wide one. The *coordinate check* measures how far activations move in four steps. Flat
# lines are right. Which panel has them?

# %%
show(figure_coordinates(small_runs.recorded_coordinates()))

# %%
show(figure_rates(small_runs.recorded_rates(), title="Loss by rate and width"))

# %% [markdown]
# In the standard parametrization what the blocks change grows with the width, faster than in proportion; under muP it
# stays (scores, products of two things that grow, level off). And the best rate falls with the width, or stays. That
# is a tendency, of few runs: beside it, the standard model at its own best rate is the better one here. muP saves the
# search at full width. Here is the check itself, at two widths.

# %%
one = next(batches(load_corpus(), 8, 33)).inputs
for name, base in (("standard", None), ("mup", NARROW)):
    for growth in (1, 4):
        config = mup.at_width(NARROW, growth)
        moved = mup.coordinate_check(config, base, one)["logits"]
        print(f"{name:8s} width {config.d_model:3d}: logits moved by {moved:.2f}")

# %% [markdown] tags=["further"] minutes=4
# ## Further: accumulate in 16 bits
#
# A sum of many micro-batches is a running sum, as in lab 02. Under `torch.autocast` the weights stay in FP32, and so do
# their gradients. A model whose weights are in BF16 has gradients in BF16: each addition rounds to 8 bits. What does
# that cost, for 64 micro-batches?

# %%
model = GPT(NARROW)
singles = []
for index in range(64):
    model.zero_grad()
    accumulation.accumulate(model, [next(batches(load_corpus(), 2, SEQ_LEN, seed=index))])
    singles.append(gradient(model))
exact_sum, errors = torch.zeros_like(singles[0], dtype=torch.float64), {"FP32": [], "BF16": []}
sums = {"FP32": exact_sum.float(), "BF16": exact_sum.bfloat16()}
for one in singles:
    exact_sum += one.double()
    for name in sums:
        sums[name] += one.to(sums[name].dtype)
        errors[name].append(float((sums[name].double() - exact_sum).norm() / exact_sum.norm()))
labels = {"x_label": "micro-batches", "y_label": "error", "log_x": True, "log_y": True}
show(figure_lines(range(1, 65), errors, **labels, title="A sum of gradients, rounded"))

# %% [markdown]
# So frameworks add up in FP32. And a loss scale leaves the sum as it is, as long as it is the same for all
# micro-batches of a step: unscale once, after the last.

# %%
optimizer, plain = torch.optim.SGD(model.parameters()), None
for scaler in (None, LossScaler()):
    model.zero_grad()
    accumulation.accumulate(model, micro_batches, scaler)
    if scaler:
        scaler.unscale_(optimizer)
    norm = clipping.clip_grad_norm_(model.parameters(), max_norm=0.5)
    name = "with a loss scale" if scaler else "without"
    print(f"{name:18s} norm {norm:.6f}, clipped {gradient(model).norm():.6f}")

# %% [markdown] minutes=1
# ## Summary
#
# - A batch is a sum over tokens: micro-batches, ranks and documents cut it, and no cut changes the gradient, if every
#   token weighs 1 / N. Mean of means does change it.
# - Clip the whole sum, by the norm over all ranks, after unscaling.
# - The noise scale says how large is worthwhile. Above it, tokens are spent for few steps saved. It grows on the way.
# - A falling rate averages noise away. WSD falls only at the end.

# %% [markdown]
# ### Sources
#
# - S. McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, arXiv 1812.06162.
# - R. Pascanu et al., "On the difficulty of training recurrent neural networks", 2012, arXiv 1211.5063.
# - M. Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, arXiv 2107.02027.
# - S. Hu et al., "MiniCPM", 2024, arXiv 2404.06395. A. Hägele et al., 2024, arXiv 2405.18392.
# - P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, arXiv 1706.02677.
# - S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv 2205.10287.
# - Y. You et al., "Large Batch Optimization for Deep Learning", 2019, arXiv 1904.00962 (LAMB).
# - Z. Nado et al., "A Large Batch Optimizer Reality Check", 2021, arXiv 2102.06356.
# - G. Yang et al., "Tensor Programs V", 2022, arXiv 2203.03466 (muP).
# - J. Kaplan et al., 2020, arXiv 2001.08361. DeepSeek-AI, "DeepSeek LLM", 2024, arXiv 2401.02954. H. Li et al., "Step
#   Law", 2025, arXiv 2503.04715.
# - DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437.
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165 (batches of 3.2 million tokens).
# - huggingface/transformers, issue 24725 and pull requests 34191 and 34373.
# - The code: `lablib/batches`.

# %%
check
