# %% [markdown]
# # Lab 04: Batches
#
# **Question.** How large should a batch be, and does it matter how it is cut?
#
# Training goes in *steps*: compute a loss on some text, its *gradient* (how the loss changes with each weight), and
# move the weights against it. The text of one step is the *batch*. You split batches without changing the gradient, and
# measure where the gain of a larger batch ends.
#
# **Prerequisites.** Lab 01; helpful: lab 02. **Time.** 51 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab04

lab04.show(lab04.figure_question())

# %% tags=["parameters"]
ranks: int = 3  # data ranks of the simulated runs, 1 to 6
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=5
# ## One equation
#
# A GPU has room for a few sequences at a time, a *micro-batch*. It can work on several, one after another, and add
# their gradients: *accumulation*. Several GPUs with the same weights, the *data ranks*, can do so in parallel. So
#
# `micro-batch x accumulations x data ranks = global batch`
#
# in sequences. A model of 1.6 billion parameters trains on 16 H100 GPUs with a global batch of 512 sequences of 1,024
# tokens. A *cut* is a choice of the three factors. Of all cuts of this batch that fit, how many times as long as the
# fastest does the slowest take?

# %%
my_guess_cut = lab04.guess("the slowest cut over the fastest", None, interactive, "times")

# %%
import math

import pandas as pd
import torch
import torch.distributed as dist

from lablib import launch, reconcile
from lablib.batches import accumulation, noise_scale
from lablib.batches.accumulation import IGNORED, summed_loss
from lablib.data import Batch, batches, load_corpus
from lablib.models import GPT
from lablib.studies import batches as small_runs
from lablib.studies.batches import MODEL, NARROW, SEQ_LEN

check = lab04.checks_for("04")
check

# %% [markdown]
# Below is this model on its 16 GPUs. *Activations* are tensors that forward keeps for backward,
# *optimizer state* is the data that the optimizer stores for each weight, and MFU is the share of a GPU's peak speed
# that is used. Which cut takes the least memory, which is the fastest? Then give the work to 64 GPUs.

# %%
cuts = lab04.split_batch("gpt2-xl", "dgx-h100", 4, 8, 16, 1024)
times_s = [cut.step_time_s for cut in cuts if cut.fits]
my_guess_cut.reveal(max(times_s) / min(times_s))
lab04.batch_calculator(interactive)

# %% [markdown]
# <details><summary>Answers</summary>
#
# One sequence at a time takes the least memory. It is also the slowest, 1.53 s per step; two at a time take 1.10 s,
# sixteen 0.90 s, because larger matrix products use a GPU better. So the slowest takes 1.7 times as long. More ranks
# need fewer accumulations. None of this affects the model, if the gradient stays the same.
#
# </details>

# %% [markdown] minutes=18
# ## A sum over tokens
#
# The loss of a batch is the mean of the losses of its N tokens. So every token contributes its own gradient over N, and
# the sum may be split anywhere. PyTorch adds automatically: `loss.backward()` adds to `param.grad`.
#
# Cut a batch into two micro-batches, of 100 tokens and of 10. Take the mean loss of each, and the mean of the two. How
# many times as much does a token of the short one weigh now as a token of the long one?

# %%
my_guess_weight = lab04.guess(
    "weight of a short token over a long one", None, interactive, "times"
)

# %%
# One number for each token: its loss.
long, short = (torch.ones(tokens, requires_grad=True) for tokens in (100, 10))
((long.mean() + short.mean()) / 2).backward()
weights = {"long": float(long.grad[0]), "short": float(short.grad[0]), "right": 1 / (100 + 10)}
print(", ".join(f"{name} {weight:.4f}" for name, weight in weights.items()))
my_guess_weight.reveal(weights["short"] / weights["long"])

# %% [markdown]
# This *mean of means* is a real mistake: it was reported for a widely used trainer in July 2023, and first fixed in
# October 2024 (huggingface/transformers, issue 24725, pull requests 34191 and 34373). It is exact if all micro-batches
# have the same number of tokens. But short sequences are filled with *padding*, which is not a token and has no loss:
# its targets are -100, `IGNORED`.

# %% [markdown]
# ### Exercise 1: accumulate
#
# Compute the gradient of the mean over *all* tokens, from micro-batches. Process each once, one after another, so that
# the activations of only one are in memory. A model returns *logits*: for each token, one number for each possible next
# token. `summed_loss(logits, targets)` is the sum of the tokens' losses, without padding. Stuck?
# `check.accumulate.hint()`.


# %% tags=["exercise"]
def accumulate(model, micro_batches):
    """Add to each `param.grad` the gradient of the mean loss over all tokens.

    micro_batches: a list of (inputs, targets), each with its own shape (B, T); stays
    unchanged. Targets are IGNORED where there is no token, anywhere in a row; some
    micro-batch may have no token, but not all of them. model(inputs) are logits, of shape
    (B, T, V). Returns the mean loss, a number.
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
# Try it. If a model gives two tokens equal probability, the loss is ln 2 = 0.6931 per token.
def even_odds():
    pairs = [
        (torch.zeros(2, 3).long(), torch.zeros(2, 3).long()),
        (torch.zeros(1, 2).long(), torch.tensor([[1, -100]])),
    ]
    logits = torch.zeros(2, requires_grad=True)
    loss = accumulate(lambda inputs: logits.expand(*inputs.shape, 2), pairs)
    return loss, logits.grad  # by hand: six tokens are 0, one is 1: (7/2 - 6) / 7 = -0.357


lab04.try_out(even_odds)

# %% tags=["check"] points=3
check.accumulate(accumulate)

# %% [markdown]
# Data ranks are another way to split the sum. Only the count changes: N counts the tokens of all ranks, so it needs an
# *all-reduce* (a sum over ranks that every rank receives) of one number. Here are micro-batches of real text, uneven
# and padded, and the gradient of all of them as one batch, on one device.

# %%
micro_batches = [lab04.padded(index, 1 + index % 3, SEQ_LEN) for index in range(12)]
one_device = GPT(NARROW, dtype=torch.float64)
accumulation.accumulate(one_device, [Batch(*map(torch.cat, zip(*micro_batches, strict=True)))])
whole = lab04.gradient(one_device)
print("tokens:", [accumulation.count_tokens(one.targets) for one in micro_batches])

# %% [markdown]
# Now on `ranks` *simulated* ranks, which compute with real numbers on this computer: each holds a copy of the model
# (`DataParallel` averages the gradients over ranks) and takes its share of the micro-batches, by the library's two
# ways, the exact one and the mean of means. By how much is the second gradient off, in percent of the gradient's
# length?

# %%
my_guess_off = lab04.guess("error of the mean of means", None, interactive, "%")


# %%
from lablib.parallel import DataParallel


def on_all_ranks(accumulate, micro_batches):
    model = DataParallel(GPT(NARROW, dtype=torch.float64))
    accumulate(model, micro_batches[dist.get_rank() :: dist.get_world_size()])
    return lab04.gradient(model)


for one in (accumulation.accumulate, accumulation.accumulate_mean_of_means):
    found = launch(on_all_ranks, one, micro_batches, ranks=ranks).values[0]
    off = float((found - whole).norm() / whole.norm())
    print(f"{one.__name__:24s} off by {100 * off:.2g}% of the gradient's length")
my_guess_off.reveal(100 * off)

# %% [markdown] minutes=18
# ## How large? Signal and noise
#
# The mean of means is off by about a third: these micro-batches have 6 to 106 tokens. With the sum over tokens the cut
# does not matter. The size does: a batch is a sample. Its gradient g_B, with B sequences, is the true gradient G of all
# text, plus *noise*, which is less in the mean over more sequences. With tr(Sigma) for the variance of one sequence's
# gradient, summed over all weights, the expected square is
#
# `E |g_B|^2 = |G|^2 + tr(Sigma) / B`          (signal, and noise)
#
# They are equal at B = tr(Sigma) / |G|^2, the *noise scale* (McCandlish et al., 2018). Far below it, twice the batch
# makes a step nearly twice as good; far above it, twice the batch helps very little.

# %% [markdown]
# How can it be measured without G? The square of one batch's gradient contains both signal and noise. But accumulation
# and data ranks give two sizes: k parts of b examples each, and their mean, a batch of k b. These are two equations for
# two unknowns:
#
# `E |g_b|^2 = |G|^2 + tr(Sigma) / b`
#
# `E |g_kb|^2 = |G|^2 + tr(Sigma) / (k b)`

# %% [markdown]
# ### Exercise 2: the unbiased estimate
#
# Solve the two equations: use the mean of the parts' squares for E |g_b|^2, and the square of the mean for E |g_kb|^2.
# *Unbiased* means right on average over all possible batches. A single estimate of the signal can be negative; keep it,
# or the average is no longer right.


# %% tags=["exercise"]
def signal_and_noise(gradients, part_size):
    """Unbiased estimates of |G|^2 and tr(Sigma): two numbers.

    gradients: shape (k, P), k of at least 2: row i is the gradient of part i, a mean over
    `part_size` examples. It stays unchanged.
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
lab04.try_out(signal_and_noise, torch.tensor([[1.0, 0.0], [3.0, 4.0]]), part_size=1)

# %% tags=["check"] points=2
check.signal_and_noise(signal_and_noise)

# %% [markdown]
# Now both of your functions, on real text: the noise scale of a model that is not trained, from eight parts of 4
# sequences.


# %%
def untrained():
    model, parts = GPT(NARROW), []
    for index in range(8):
        model.zero_grad()
        accumulate(model, [tuple(next(batches(load_corpus(), 4, SEQ_LEN, seed=index)))])
        parts.append(lab04.gradient(model))
    signal, noise = signal_and_noise(torch.stack(parts), part_size=4)
    return f"noise scale: {noise / signal:.2f} sequences"


lab04.try_out(untrained)

# %% [markdown]
# Here is the estimate for a small GPT on real text (recorded: one run, at each step the gradients of 256 sequences).
# How large is the noise scale at step 160?

# %%
my_guess_noise = lab04.guess("noise scale at step 160", None, interactive, "sequences")

# %%
recorded_noise = small_runs.recorded_noise()
steps = [step for step, _, _ in recorded_noise]
scales = [found.noise_scale for _, _, found in recorded_noise]
labels = {"x_label": "step", "y_label": "noise scale", "y_unit": "sequences"}
title = f"The noise scale: {min(scales):.1f} to {max(scales):.0f} sequences"
lines = {"noise scale": scales}
figure = lab04.figure_lines(steps, lines, **labels, title=title, log_x=True, log_y=True)
lab04.show(figure)
my_guess_noise.reveal(scales[-1])

# %% [markdown]
# It falls for ten steps, then rises; at steps 80 and 160 it is the same. A possible reason: at first all sequences have
# similar gradients, and later only fine details are left to learn. Large models train on millions of tokens per step
# (3.2 million: Brown et al., 2020), and may raise the batch during training: DeepSeek-V3 from 3,072 to 15,360 sequences
# (DeepSeek-AI, 2024, section 4.2).

# %% [markdown]
# How does this affect the number of steps? With a constant noise scale, and the best *learning rate* (the size of a
# step) for each batch, a law follows for the steps to a given loss, with two constants, the *fewest steps* and the
# *critical batch*:
#
# `steps = fewest steps x (1 + critical batch / B)`
#
# At B = critical batch a run takes twice the fewest steps, and twice the fewest tokens. The critical batch should be of
# the order of the noise scale.

# %% [markdown]
# With 16 sequences per step this GPT needed 139 steps to a loss of 2.5 on *held-out* text, text outside the training
# data. How many does it need with 128?

# %%
my_guess_steps = lab04.guess(
    "steps with 128 sequences (17 if eight times as good)", None, interactive, "steps"
)

# %%
measured = small_runs.recorded_steps()
mean_steps = {size: sum(some) / len(some) for size, some in measured.items()}
law = noise_scale.fit_steps_law(list(mean_steps), list(mean_steps.values()))
lab04.show(lab04.figure_steps_law(measured, law, SEQ_LEN))
my_guess_steps.reveal(mean_steps[128])
print(f"noise scale {min(scales):.1f} to {max(scales):.0f}, critical batch", end=" ")
print(f"{law.critical_batch:.1f} sequences")
lab04.law_table(law, measured)

# %% [markdown]
# There are three runs for each size, at the best of several rates; steps between two measurements of the loss are
# interpolated. From 16 to 128, the run needs a third fewer steps and five times the tokens: useful if time is short,
# wasteful if tokens are expensive.

# %% [markdown]
# So how large? Near the critical batch a run pays twice the fewest steps and twice the fewest tokens; smaller batches
# cost steps, larger ones tokens. The critical batch is within the range of the noise scale, at a quarter of the last
# value: the noise scale gives only the order of magnitude. Small batches test the law: at 4 and 8 the three runs differ
# by factors of 2 and more, and at 2 the law predicts more steps than in any of the three runs.

# %% [markdown] tags=["further"] minutes=5
# ## Further: a known noise scale
#
# Is the estimate right? Fit a straight line to 4,096 points in 20 dimensions, where the gradient of every point can be
# computed, and so the noise scale. The naive estimate uses the square of the large batch as the signal.

# %%
generator = torch.Generator().manual_seed(0)
x = torch.randn(4096, 20, generator=generator)
y = 0.1 * x.sum(1) + torch.randn(4096, generator=generator)
of_points = -y[:, None] * x  # of each point's squared error / 2, at weights 0
estimates, naive = [], []
for _ in range(1000):
    drawn_points = torch.randint(4096, (4, 8), generator=generator)
    four = of_points[drawn_points].mean(1)  # 4 parts of 8 points
    estimates.append(noise_scale.estimate_from_parts(four, 8))
    squares, square = four.square().sum(1).tolist(), float(four.mean(0).square().sum())
    naive.append(noise_scale.naive_noise(squares, 8, square))

# %%
counts = [50, 100, 200, 400, 700, 1000]
lines = {"exact": [noise_scale.exact_noise(of_points).noise_scale] * len(counts)}
for name, some in (("unbiased", estimates), ("naive", naive)):
    lines[name] = [noise_scale.average_noise(some[:count]).noise_scale for count in counts]
axes = {"x_label": "steps averaged", "y_label": "noise scale", "y_unit": "examples"}
lab04.show(lab04.figure_lines(counts, lines, **axes, title="A known noise scale"))
pd.DataFrame(lines, index=counts).round().astype(int).rename_axis("steps averaged")

# %% [markdown]
# From batches of 32 the estimate finds a noise scale 3.5 times as large, but it takes hundreds of steps. The naive
# estimate stays wrong for any number of steps. Signal and noise are averaged first and then divided, because a mean of
# ratios is biased as well.

# %% [markdown] tags=["further"] minutes=18
# ## Further: clipping, and the cut
#
# Sometimes a batch has a gradient many times as long as usual, and one step along it undoes many. *Clipping* shortens
# it (Pascanu et al., 2012). All gradients together are one vector g; its length is the *norm* |g|:
#
# `g <- g * min(1, max_norm / |g|)`
#
# One factor for all: the step becomes shorter and keeps its direction.


# %%
from lablib.batches import clipping


def mean_gradient(groups, max_norm=math.inf):
    """The mean over groups of micro-batches, each group's gradient clipped."""
    total = 0
    for group in groups:
        clipped_model.zero_grad()
        accumulation.accumulate(clipped_model, group)
        clipping.clip_grad_norm_(clipped_model.parameters(), max_norm)
        total = total + lab04.gradient(clipped_model) / len(groups)
    return total


clipped_model = GPT(MODEL)
text = [next(batches(load_corpus(), 4, SEQ_LEN, seed=seed)) for seed in range(3)]
broken = Batch(*torch.full((2, 4, SEQ_LEN), 255))  # a broken file: byte 255 alone
for name, one in zip(("text", "more", "yet more", "broken"), [*text, broken], strict=True):
    print(f"{name:8s} norm {mean_gradient([[one]]).norm():5.2f}")

# %% [markdown]
# Take these 16 sequences as one batch, and a max_norm of 4.25, above all ordinary norms. Cut them into 4, 2 or 1
# micro-batches; clip the sum of all, or each micro-batch before it is added. Which of the two gets closer to the
# direction of the text alone? Which gives the same step for each cut?

# %%
my_guess_clips = lab04.guess(
    'closer to the text; same for each cut ("the sum" or "each micro-batch")', None, interactive
)

# %%
parts = [text[0], broken, text[1], text[2]]
of_text = mean_gradient([text])
by_cut = {"4 of 4": [[part] for part in parts], "2 of 8": [parts[:2], parts[2:]]}
by_cut["1 of 16"] = [parts]
rows = {}
for name, groups in by_cut.items():
    total = mean_gradient(groups)
    total *= min(1, 4.25 / float(total.norm()))
    each = mean_gradient(groups, max_norm=4.25)
    for way, g in {"the sum": total, "each micro-batch": each}.items():
        row = rows.setdefault(f"clip {way}", {})
        row[name] = f"{g.norm():.2f}, {lab04.angle(g, of_text):.0f} degrees"
my_guess_clips.reveal(["each micro-batch", "the sum"])
print("norm, and angle to the gradient of the text alone:")
pd.DataFrame(rows).T

# %% [markdown]
# If each micro-batch is clipped, the broken file weighs less, and the step is closer to the text. But tokens no longer
# weigh the same, and the step depends on the cut, so on memory and the number of GPUs. If the sum is clipped, every cut
# gives the same step.

# %% [markdown]
# A *loss scale* (lab 02) makes gradients S times as long, so clip after they are divided by it.
#
# Large models do not fit one GPU. Their parameters are *sharded*: each rank holds a part of a matrix and of its
# gradient, a *shard*. Small parameters are *replicated*: every rank holds them whole, with equal gradients.

# %% [markdown]
# ### Exercise 3: clip over shards
#
# All ranks must use the norm of the whole gradient, but each holds only a part of it. `dist.all_reduce(x)` replaces the
# tensor x on every rank by the sum over all ranks. The budget: one such call, of a tensor of at most 64 bytes.


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


lab04.try_out(two_shards, ranks=2)

# %% tags=["check"] points=3
check.clip_shards(clip_shards)

# %% [markdown] tags=["further"] minutes=14
# ## Further: a falling rate
#
# Can noise also be averaged over time? With a small learning rate many steps act like one step with one large batch. So
# rates begin high, for speed, and end low. A *schedule* gives each step's rate as a factor of the highest rate, the
# *peak*. At the start the rate rises, the *warmup*: the optimizer here, Adam, divides each gradient by its usual size,
# and needs some steps to estimate it.

# %% [markdown]
# *Cosine* falls from the warmup to the end, as half a wave; *linear* as a straight line. Both need the length N of the
# run from the start. *WSD* (warmup, stable, decay; Hu et al., 2024) falls only at the end.

# %% [markdown]
# ### Exercise 4: WSD
#
# Steps s count from 0; the first W are warmup, the last D of N are decay. During warmup the factor is (s + 1) / (W +
# 1): no step has 0, and the first step after the warmup has 1. In the decay it falls on a straight line, from 1 at s =
# N - D to 0 at s = N, and stays 0.


# %% tags=["exercise"]
def wsd(step, num_steps, num_warmup, num_decay):
    """The factor of the peak rate at `step`, 0 or more; it may be beyond `num_steps`.

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
lab04.try_out(lambda: [wsd(step, 10, 2, 4) for step in range(11)])

# %% tags=["check"] points=1
check.wsd(wsd)

# %% [markdown]
# Now the small GPT for N = 400 steps of 16 sequences (recorded): a constant rate, cosine, linear, and WSD with a decay
# of D = 80, each with W = 20, at three peaks, and with three seeds. Guess the order at the end, the lowest loss first.

# %%
my_guess_order = lab04.guess(
    "lowest loss first (constant, cosine, linear, WSD)", None, interactive
)

# %%
by_schedule = small_runs.recorded_schedules()
factors, on_the_way = {}, {}
for name, factor in small_runs.SCHEDULES.items():
    factors[name] = [factor(step, 400) for step in range(401)]
    seeds = by_schedule[name][2**-8]  # runs at a peak of 2^-8: (step, loss) each
    late = [point for point in zip(*seeds, strict=True) if point[0][0] >= 160]
    on_the_way[name] = [(point[0][0], sum(loss for _, loss in point) / 3) for point in late]
lab04.show(lab04.figure_schedules(factors, on_the_way, "Peak 2^-8, loss from step 160 on"))

# %%
constant, ends = by_schedule["constant"], {}
for name in ("WSD", "cosine", "linear"):
    pairs = []  # of runs with one peak and seed
    for rate in by_schedule["WSD"]:  # three peaks
        last = [run[-1][1] for run in by_schedule[name][rate]]
        flat = [run[-1][1] for run in constant[rate]]
        pairs += zip(last, flat, strict=True)
        row = ends.setdefault(f"2^{math.log2(rate):.0f}", {"constant": sum(flat) / 3})
        row[name] = sum(last) / 3
    below = sum(last < flat for last, flat in pairs)
    print(f"{name}: below the constant rate in {below} of {len(pairs)} pairs of runs")
table = pd.DataFrame(ends).T
my_guess_order.reveal(table.mean().sort_values().index)
table.round(3).rename_axis("peak rate")

# %% [markdown]
# Until step 320 WSD is bit-identical to the constant run. Then the rate falls, and the loss gets lower in every pair
# (of only three seeds). But cosine and linear end with a higher loss than the constant rate: here it does not pay to
# fall from the start. A possible reason is that half of such a short run then has small steps; that was not tested. In
# long runs WSD and cosine end about equal (Hu et al., 2024; Hägele et al., 2024).

# %% [markdown]
# WSD has another advantage: N need not be known. Start the decay from a saved state of the stable part whenever you
# want a model, and continue from that same state for a longer run.

# %% [markdown] minutes=8
# ## Reconcile: predicted and measured
#
# Forward and backward of 16 sequences on this computer, cut in three ways: one micro-batch of 16, four of 4, sixteen of
# 1, by `lab04.all_cuts`, without an optimizer. The *simulator* runs the same program, and predicts bytes and seconds,
# from the speed of this computer, which takes half a minute to measure, once. Compare sixteen micro-batches with one:
# how many times the memory, and how many times the seconds?

# %%
my_guess_memory = lab04.guess("peak of 16 micro-batches over one's", None, interactive, "times")
my_guess_time = lab04.guess(
    "seconds of 16 micro-batches over one's", None, interactive, "times"
)

# %%
real = "nccl" if torch.cuda.device_count() else "gloo"
here = lab04.this_machine(ranks=2, backend=real)
gpt_config = lab04.config_for(here)
there = {"ranks": 1, "backend": real, "cluster": here, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"
comparison = reconcile(lab04.all_cuts, gpt_config, **there, repeats=3 if quick else 7)
recorded = pd.DataFrame(lab04.recorded_comparison("04").rows)
lab04.print_text(comparison.reading())
seconds = comparison.table().set_index("name")["measured_s"]
my_guess_time.reveal(seconds["16 of 1"] / seconds["1 of 16"])
lab04.seconds_by_cut({"here": comparison.table(), "recorded": recorded})


# %%
measured = launch(lab04.measured_peaks, gpt_config, ranks=1, backend=real, trace=False).values[
    0
]
rows = {}
for (name, size), held in zip(lab04.CUTS.items(), measured, strict=True):
    run = launch(lab04.backward_of_16, gpt_config, size, ranks=1, fidelity="shapes")
    rows[name] = {"predicted (B)": f"{run.memory.peak_bytes(0):,}", "measured (B)": f"{held:,}"}
    rows[name]["of the first"] = f"{held / measured[0]:.2f}"
my_guess_memory.reveal(measured[-1] / measured[0])
pd.DataFrame(rows).T

# %% [markdown]
# Memory follows from the program. Here sixteen micro-batches hold less than a quarter of one's peak. Seconds depend on
# the load of the computer. In the recording on a quiet one, the predictions are 13 to 56 percent too long, and sixteen
# micro-batches took 13 percent longer than one; 56 percent longer was predicted. (The calibration measured two ranks
# that compute at once; here one rank has caches and memory alone.)

# %% [markdown] tags=["further"] minutes=6
# ## Further: large batches
#
# With a batch k times as large, the same text makes k times fewer steps. How much longer should each be? For plain
# gradient descent the *linear* rule says k times: k small steps equal one large one (Goyal et al., 2017). Adam divides
# each gradient by its usual size; if noise dominates, that size falls as 1 / sqrt(k), and the *square-root* rule says
# sqrt(k) (Malladi et al., 2022). LAMB, for large batches, makes the step of each layer a share of its weights' size
# (You et al., 2019).

# %% [markdown]
# Here are LAMB and AdamW (Adam with weight decay; lab 05) on the same 8,192 sequences: 1,024 steps of 8, or 64 of 128.
# Which has the lower loss at which batch? Bars go from the lowest to the highest loss of several runs; a point without
# a bar is one run with unknown scatter. A ring marks each rate that *may be best*: at least one of its runs reaches the
# bar of the lowest rate with several runs. At batch 32 each rate has one run, so only the lowest point has a ring:
# there are too few runs to show other candidates. The loss is in *nats*, the unit of the natural logarithm.

# %%
large = small_runs.recorded_large_batch()
lab04.show(lab04.figure_rates(large, "batch", "Loss after the same text"))
print("the rules start from the lowest rate of batch 8; losses in nats per byte")
lab04.best_rates_by_batch(large)

# %%
for size in (8, 128):
    print(f"batch {size}: {lab04.adamw_and_lamb(large, size)}")

# %% [markdown]
# Both have a higher final loss with the larger batch, which has a sixteenth of the steps. The rings leave a wide range
# of rates. A rule without a ring at 128 is wrong here; a ring does not confirm a rule. And only the rate was searched.
# For BERT Adam was as good as LAMB when both were tuned equally (Nado et al., 2021).

# %% [markdown] tags=["further"] minutes=5
# ## Further: batches for later tokens
#
# Laws of the best batch were fitted to many small runs: as a function of the loss reached (Kaplan et al., 2020), of the
# compute C = 6 N D with N parameters and D tokens (DeepSeek LLM, 2024), or of D alone (Li et al., 2025). They define
# "best" differently, and differ by factors; in one point they agree. Which? The table assumes 20 tokens per parameter.

# %%
from lablib.batches import batch_rules

rows = {}
for billions in (1, 10, 100, 1000, 10_000):
    num_tokens = billions * 1e9
    num_params = num_tokens / 20
    rules = {"DeepSeek": batch_rules.deepseek_batch(6 * num_params * num_tokens)}
    rules["Step Law"] = batch_rules.step_law_batch(num_tokens)
    rows[f"{billions:,} billion tokens"] = {
        name: f"{value:,.0f}" for name, value in rules.items()
    }
for loss in (4.0, 3.0, 2.0):
    critical = batch_rules.kaplan_critical_batch(loss)
    print(f"Kaplan's critical batch at a loss of {loss}: {critical:,.0f} tokens")
print("best batch, in tokens:")
pd.DataFrame(rows).T

# %% [markdown]
# The batch grows with the length of the training, like the noise scale. Outside the measured range, a law is a guess.

# %% [markdown] tags=["further"] minutes=6
# ## Further: a rate for every width
#
# A wider model needs another rate: one step of Adam changes each weight by about the rate, and a unit with twice as
# many inputs moves twice as far. *muP* divides rates and initial weights by the factors that grow (Yang et al., 2022),
# so that a rate found on a narrow model also suits a wide one. The *standard* way is one rate for all, and PyTorch's
# default initial weights. The *coordinate check* measures how far activations move in four steps, by width: flat lines
# are right.

# %%
lab04.show(lab04.figure_coordinates(small_runs.recorded_coordinates()))

# %% [markdown]
# In the standard way the changes of the blocks grow with the width, faster than in proportion; under muP they are
# constant (*scores*, the products of queries and keys in attention, level off). Does the best rate follow? The figure
# shows losses after 120 steps, by rate and width; rings as before mark every rate that may be best.

# %%
by_width = small_runs.recorded_rates()
lab04.show(lab04.figure_rates(by_width, "width", "Loss by rate and width"))
lab04.best_rates_by_width(by_width)

# %% [markdown]
# Read the rings, not the lines: if they are at the same rates for two widths, there is no evidence that the best rate
# moved. In the standard way they moved to the left, under muP they did not. But compare the lowest losses: from width
# 64 on muP's are higher, and they hardly fall with the width. muP transfers only the settings that were searched on the
# narrow model: Yang et al. also search the output's multiplier there; here only the rate was searched.
#
# Here is the check itself, at two widths.

# %%
from lablib.batches import mup

one = next(batches(load_corpus(), 8, 33)).inputs
for name, base in (("standard", None), ("mup", NARROW)):
    for growth in (1, 4):
        wider = mup.at_width(NARROW, growth)
        moved = mup.coordinate_check(wider, base, one)["logits"]
        print(f"{name:8s} width {wider.d_model:3d}: logits moved by {moved:.2f}")

# %% [markdown] tags=["further"] minutes=7
# ## Further: how the library accumulates
#
# Once your check has passed, here is the library's `accumulate`. Three things are new. A *replica* (`DataParallel`) is
# the model on one of several ranks. It sends gradients after a backward, but not within `no_sync`, so once per step. A
# *scaler* holds a loss scale.

# %%
lab04.show_source(accumulation.accumulate, after=check.accumulate)

# %% [markdown]
# A loss scale does not change the sum if it is the same for all micro-batches of a step: unscale once, after the last,
# and then clip.

# %%
from lablib.batches import clipping
from lablib.precision.loss_scaling import LossScaler

scaled_model = GPT(NARROW)
optimizer = torch.optim.SGD(scaled_model.parameters())
for name, scaler in {"without": None, "with a loss scale": LossScaler()}.items():
    scaled_model.zero_grad()
    accumulation.accumulate(scaled_model, micro_batches, scaler)
    if scaler:
        scaler.unscale_(optimizer)
    norm = clipping.clip_grad_norm_(scaled_model.parameters(), max_norm=0.5)
    print(f"{name:18s} norm {norm:.6f}, clipped {lab04.gradient(scaled_model).norm():.6f}")

# %% [markdown]
# A sum of many micro-batches is a running sum, as in lab 02. Under `torch.autocast` the weights stay in FP32, and so do
# their gradients. A model with weights in BF16 has gradients in BF16: each addition rounds to 8 bits. How large is the
# error for 64 micro-batches?

# %%
singles = []
for index in range(64):
    scaled_model.zero_grad()
    accumulation.accumulate(
        scaled_model, [next(batches(load_corpus(), 2, SEQ_LEN, seed=index))]
    )
    singles.append(lab04.gradient(scaled_model))
exact_sum, errors = torch.zeros_like(singles[0], dtype=torch.float64), {"FP32": [], "BF16": []}
sums = {"FP32": exact_sum.float(), "BF16": exact_sum.bfloat16()}
for one in singles:
    exact_sum += one.double()
    for name in sums:
        sums[name] += one.to(sums[name].dtype)
        errors[name].append(float((sums[name].double() - exact_sum).norm() / exact_sum.norm()))
axes = {"x_label": "micro-batches", "y_label": "error", "log_x": True, "log_y": True}
lab04.show(
    lab04.figure_lines(range(1, 65), errors, **axes, title="A sum of gradients, rounded")
)

# %% [markdown]
# So some frameworks add in FP32 for weights in any format. PyTorch does not do this automatically.

# %% [markdown] minutes=2
# ## Summary
#
# - A batch is a sum over tokens: micro-batches and ranks split it. No split changes the gradient, if every token weighs
#   1 / N. Mean of means does change it.
# - The right size depends on noise. Near the critical batch a run takes twice the fewest steps and
#   twice the fewest tokens; far above it more tokens save few steps. The noise scale gives its order; it changes
#   during training; here it was below one sequence in the first ten steps, and rose to 37.
# - Further: clip the whole sum, by the norm over all ranks, after unscaling: then the cut does not matter. A decay of
#   the rate at the end lowered the loss; a decay from the start raised it, in short runs.

# %% [markdown]
# ### Sources
#
# - S. McCandlish et al., "An Empirical Model of Large-Batch Training", 2018, arXiv 1812.06162.
# - R. Pascanu et al., "On the difficulty of training recurrent neural networks", 2012, arXiv 1211.5063.
# - S. Hu et al., "MiniCPM", 2024, arXiv 2404.06395. A. Hägele et al., 2024, arXiv 2405.18392.
# - P. Goyal et al., "Accurate, Large Minibatch SGD", 2017, arXiv 1706.02677.
# - S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022, arXiv 2205.10287.
# - Y. You et al., "Large Batch Optimization for Deep Learning", 2019, arXiv 1904.00962 (LAMB).
# - Z. Nado et al., "A Large Batch Optimizer Reality Check", 2021, arXiv 2102.06356.
# - G. Yang et al., "Tensor Programs V", 2022, arXiv 2203.03466 (muP).
# - J. Kaplan et al., 2020, arXiv 2001.08361. DeepSeek-AI, "DeepSeek LLM", 2024, arXiv 2401.02954. H. Li et al., "Step
#   Law", 2025, arXiv 2503.04715.
# - DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437.
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165.
# - huggingface/transformers, issue 24725, pull requests 34191 (micro-batches) and 34373 (devices).
# - The code: `lablib/batches`.

# %%
check
