# %% [markdown]
# # Lab 02: Mixed precision
#
# **Question.** Why does FP16 need a loss scale, and BF16 not?
#
# The matrix units of today's large training GPUs multiply 16-bit numbers some 8 times (MI300X) to 31 times (GB300) as
# fast as their other units multiply 32-bit numbers. So nearly all large models are trained in 16 bits. But 16 bits
# represent fewer numbers than 32. Which numbers are lost, and which methods compensate?
#
# **Prerequisites.** Lab 00; helpful: lab 01. **Time.** 58 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab02

lab02.show(lab02.figure_question())

# %% tags=["parameters"]
cluster: str = "dgx-a100"  # dgx-a100 | dgx-h100
interactive: bool = True  # widgets, or static figures
quick: bool = True  # a short training and few repeats

# %% [markdown] minutes=4
# ## The bits of a number
#
# A *floating-point* number has three parts: a *sign*, an *exponent* e and a *mantissa* m. With M bits of mantissa,
# which make a whole number m from 0 to 2^M - 1, a *normal* number is
#
# `(-1)^sign * 2^(e - bias) * (1 + m / 2^M)`
#
# The *bias* is a constant of the format: 127 in FP32 and BF16, 15 in FP16. The exponent gives the two powers of two
# around a number, the mantissa its position between them. BF16 has 7 bits of mantissa. By how many percent is its
# number nearest to 1/3 off?

# %%
my_guess_third = lab02.guess("error of 1/3 in BF16", None, interactive, "%")

# %%
import math

import pandas as pd
import torch
import torch.distributed as dist

from lablib.precision.formats import BF16, E2M1, E4M3, E5M2, FP16, FP32, TF32
from lablib.precision.rounding import round_to

check = lab02.checks_for("02")
check

# %%
for one in (FP32, FP16, BF16):
    kept = float(torch.tensor(1 / 3, dtype=one.dtype))
    off = 100 * abs(3 * kept - 1)
    print(f"{one.name.upper()} {kept:.9f}, off by {off:.1g}%: bits {lab02.bits_of(kept, one)}")
my_guess_third.reveal(off)

# %% [markdown]
# BF16 is the upper half of FP32: it has as many exponent bits and fewer mantissa bits. FP16 has fewer exponent bits and
# more mantissa bits than BF16. So each has an advantage: BF16 *range* (how large and how small), FP16 *precision* (how
# many digits).

# %% [markdown] minutes=3
# ## Properties of the formats
#
# A *format* has a number of exponent bits and a number of mantissa bits; nearly all other properties follow. *Epsilon*
# is the step from 1 to the next number, 2^-M. At the lowest exponent the step no longer shrinks: the *subnormal*
# numbers there have fewer digits the closer they are to zero.

# %%
rows = {}
for one in (FP32, TF32, BF16, FP16, E5M2, E4M3, E2M1):
    powers = (one.epsilon, one.smallest_normal, one.smallest_subnormal)
    powers = [f"2^{math.log2(power):.0f}" for power in powers]
    rows[one.name] = [one.exponent_bits, one.mantissa_bits, *powers, f"{one.largest:,.3g}"]
columns = ["exponent bits", "mantissa bits", "epsilon"]
columns += ["smallest normal", "smallest", "largest"]
pd.DataFrame(rows, columns).T

# %% [markdown]
# E5M2 and E4M3 are the two formats of 8 bits (FP8; Micikevicius et al., 2022), E2M1 has 4 (FP4). E4M3 has no
# infinities, and uses their patterns for larger numbers. TF32: NVIDIA's matrix units, from the A100 on, can read FP32
# numbers with this mantissa, if the program allows it.

# %% [markdown] tags=["further"] minutes=5
# ## Further: range and precision in one picture
#
# The figure shows the step from a number to the next, as a share of the number, at each power of two: low is precise,
# and a line ends where the range ends.

# %%
numbers = [2.0**exponent for exponent in range(-42, 21)]


def relative_step(x, format):
    step = 2.0 ** math.floor(math.log2(max(x, format.smallest_normal))) * format.epsilon
    return step / x if format.smallest_subnormal <= x <= format.largest else math.nan


shown = (FP32, BF16, FP16, E5M2, E4M3, E2M1)
steps = {f.name: [relative_step(x, f) for x in numbers] for f in shown}
labels = ("number", "step, as a share of the number", "", "")
said = "FP16 is finer than BF16 above 2^-17, and ends at 2^-24; BF16 extends further on both."
figure = lab02.figure_lines(
    numbers, steps, *labels, "Range and precision", log_x=True, log_y=True, summary=said
)
for update, powers in (
    (figure.update_xaxes, range(-40, 21, 10)),
    (figure.update_yaxes, range(-24, 1, 4)),
):
    update(
        tickvals=[2.0**power for power in powers], ticktext=[f"2^{power}" for power in powers]
    )
lab02.show(figure)

# %% [markdown] minutes=8
# ## Round by hand
#
# A number between two neighbours of a format must be *rounded* to the nearer one. If both are equally near, hardware
# takes the *even* one, with 0 as its last bit, so that errors do not add up (IEEE 754, section 4.3.1). The upper 16
# bits of an FP32 number are its BF16 neighbour nearer to zero; the lower 16 give the distance from it.

# %% [markdown]
# ### Exercise 1: round to BF16
#
# Work on the bits themselves, as whole numbers (hexadecimal 0x8000 is 2^15). An *infinity* has an exponent of all ones
# and mantissa 0: upper bits 0x7F80, with the sign 0xFF80. A *NaN*, "not a number", has that exponent and another
# mantissa; it must stay a NaN. A number that rounds up beyond the largest becomes an infinity. Do not use
# torch.bfloat16. Stuck? Run `check.bf16_bits.hint()` in a new cell.


# %% tags=["exercise"]
def bf16_bits(bits):
    """The 16 bits of the BF16 numbers nearest to FP32 numbers, ties to even.

    bits: whole numbers (int64) of any shape, 0 to 2^32 - 1: bits of FP32 numbers.
    Returns whole numbers of the same shape, 0 to 2^16 - 1; `bits` stays unchanged.
    """
    ### BEGIN SOLUTION
    upper, lower = bits >> 16, bits & 0xFFFF
    is_up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return torch.where(is_nan, 0x7FC0, upper + is_up)
    ### END SOLUTION


# %%
# Try it. By hand: 0x3f80 (1, which stays), 0x3f80 (halfway, down to the even one), 0x3f82
# (halfway, up to the even one), 0x3f81 (nearer to the upper one).
patterns = torch.tensor([0x3F800000, 0x3F808000, 0x3F818000, 0x3F80C000])
lab02.try_out(lambda: [hex(x) for x in bf16_bits(patterns)])

# %% tags=["check"] points=2
check.bf16_bits(bf16_bits)

# %% [markdown]
# To round up, it is enough to add 1 to the upper bits: a mantissa of all ones carries into the exponent, and the
# largest number becomes an infinity. The library's `round_to(x, format)` rounds to any format: divide by the step,
# round to a whole number, multiply by the step.

# %% [markdown] minutes=8
# ## The range of gradients
#
# Which numbers occur in training? A small GPT, a language model, learns real text in FP32: at each byte (its *tokens*)
# it predicts the next. Its *loss* is minus the logarithm of the predicted probability of the true byte, the mean over
# all tokens of a step. *Backward* computes *gradients*: how the loss changes with each output of a layer
# (*activations*), and from that with each *weight*.

# %% [markdown]
# A mean divides each token's gradient by the number of tokens. The models of GPT-3 used 0.5 million tokens per step and
# more (Brown et al., 2020, table 2.1). Here a step computes 512. To get gradients as small as with 0.5 million, the
# loss is divided by another 1,024; after backward the weights' gradients are multiplied by 1,024, in FP32. (GPUs that
# share the tokens of a step divide by less.)
#
# Guess: which share of the activations' gradients would FP16 round to zero?

# %%
my_guess_fp16 = lab02.guess("gradients rounded to zero", None, interactive, "%")

# %%
watch = lab02.train_on_text(torch.float32, num_steps=10 if quick else 40, watches=True).watch
counts = {"weights": watch.weights, "activations": watch.activations}
formats, axis = (BF16, FP16, E5M2, E4M3), (-45, 20)
lab02.show(lab02.figure_exponents(counts, formats, axis, "Gradients, and the range of formats"))
lost = {one.name: f"{watch.activations.shares(one).lost:.0%}" for one in (FP16, BF16)}
print(f"of the activations' gradients are lost: {lost}")
my_guess_fp16.reveal(100 * watch.activations.shares(FP16).lost)
few = lab02.train_on_text(torch.float32, num_steps=10, tokens_per_step=512, watches=True).watch
print(f"in a mean over 512 tokens FP16 would lose {few.activations.shares(FP16).lost:.0%}")

# %% [markdown]
# A number nearer to zero than to the smallest number of a format is rounded to zero: it *underflows*. (Above half of
# the smallest number it is rounded up: the bars begin there.) Here FP16 loses most of the gradients of activations, and
# keeps the rest in subnormal numbers of few digits. BF16 has FP32's exponents. And no gradient is in the upper half of
# FP16's range. Does this affect training? In the next runs everything is in the format except weights and loss, which
# stay in FP32.

# %%
num_steps = 60 if quick else 200
runs = {"FP32": lab02.train_on_text(torch.float32, num_steps=num_steps)}
runs["BF16"] = lab02.train_on_text(torch.bfloat16, num_steps=num_steps)
runs["FP16"] = lab02.train_on_text(torch.float16, num_steps=num_steps)
lab02.show_losses(runs, "The same run in three formats")
print("zeros among the weights' gradients, in the first and in the last step:")
for name, run in runs.items():
    print(f"  {name} {run.zero_shares[0]:.0%}, {run.zero_shares[-1]:.0%}")

# %% [markdown]
# It does. BF16 learns like FP32. (So it did in the image, speech and language models of Kalamkar et al., 2019, in as
# many iterations.) FP16 falls behind: a gradient that was
# rounded to zero adds nothing to the change of its weight, and the other gradients have few digits. (A *nat* is the
# unit of a loss with the natural logarithm.)

# %% [markdown] minutes=15
# ## Too small for FP16: scale the loss
#
# Backward is linear: a loss that is S times as large has gradients S times as large. On the axis above they all move to
# the right by log2(S), into FP16's range. Before the optimizer changes the weights, the gradients are divided by S in
# FP32, which has the range. This is *loss scaling* (Micikevicius et al., 2017, section 3.2). Look at the histogram
# again: from which S on are less than 1% of the activations' gradients rounded to zero in FP16?

# %%
my_guess_power = lab02.guess("smallest such S (2 to the power of)", None, interactive, "count")

# %% [markdown]
# Now move S. Up to which S is there no overflow? And is there an S for the formats of 8 bits?

# %%
lost = [watch.activations.scaled(power).shares(FP16).lost for power in range(41)]
my_guess_power.reveal(next(power for power in range(41) if lost[power] < 0.01))
lab02.explore_scales(counts, axis, interactive)

# %% [markdown]
# <details><summary>Answers</summary>
#
# FP16 has room for nearly all gradients at S from about 2^16 to 2^24, E5M2 at about 2^24, E4M3 at no S.
#
# </details>

# %% [markdown]
# Gradients change while a model learns. So S follows them (*dynamic* loss scaling). After an *overflow*, a gradient
# that is infinite or NaN, skip the step and halve S. After `interval` steps in a row without overflow, double it and
# count from 0 again, as after an overflow: so S stays as large as possible.

# %% [markdown]
# ### Exercise 2: a loss scaler for several ranks
#
# A *rank* is one process with one GPU. Each may hold a different part of the gradients, so an overflow may occur on one
# rank alone. If only that rank skipped its step, the ranks' models would no longer match. `dist.all_reduce(x,
# op=dist.ReduceOp.MAX)` replaces x on every rank by the largest x of all ranks. The budget of a step: a rank sends at
# most 64 bytes, in at most two calls.


# %% tags=["exercise"]
class LossScaler:
    """A dynamic loss scale. Every rank has one, and calls both methods in each step."""

    def __init__(self, scale, interval):
        self.scale = scale  # S of this step
        self.interval = interval  # steps in a row without overflow after which S doubles
        self.good_steps = 0  # such steps since S last changed

    def unscale(self, gradients):
        """Divide this rank's gradients by S, in place; returns skip.

        gradients: a list of tensors, perhaps empty.
        skip: on all ranks True if any of them finds an infinity or a NaN, otherwise False.
        """
        ### BEGIN SOLUTION
        is_found = any(not gradient.isfinite().all() for gradient in gradients)
        flag = torch.tensor(float(is_found))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        for gradient in gradients:
            gradient.div_(self.scale)
        return bool(flag > 0)
        ### END SOLUTION

    def update(self, skip):
        """Set S and good_steps for the next step. skip: the result of `unscale`."""
        ### BEGIN SOLUTION
        self.good_steps = 0 if skip else self.good_steps + 1
        if skip:
            self.scale /= 2
        elif self.good_steps >= self.interval:
            self.scale, self.good_steps = 2 * self.scale, 0
        ### END SOLUTION


# %%
# Try it: an infinity on rank 1 alone. All ranks must return (True, 512.0, 0).
def one_overflow():
    gradient = torch.tensor([1.0, math.inf if dist.get_rank() == 1 else 2.0])
    scaler = LossScaler(scale=1024.0, interval=2000)
    skip = scaler.unscale([gradient])
    scaler.update(skip)
    return skip, scaler.scale, scaler.good_steps


lab02.try_out(one_overflow, ranks=3)

# %% tags=["check"] points=3
check.LossScaler(LossScaler)

# %% [markdown]
# Now the same run again, with the library's scaler, which has the same rule. S begins large and is doubled often, to
# see it at work.

# %%
RULE = lab02.ScaleRule(initial=2.0**24, interval=4, maximum=2.0**40)
scaler = lab02.LossScaler(RULE)
runs["FP16, scaled"] = lab02.train_on_text(torch.float16, scaler, num_steps=num_steps)
lab02.show_losses(runs, "FP16 with a loss scale")
lab02.show_scales(runs["FP16, scaled"].scales)

# %% [markdown]
# With a scale FP16 learns as well as FP32. The cost of a large S is skipped steps; with 2,000 steps between attempts it
# is small. (S rises above the largest S that fits in the widget: the widget shows the first steps, and later gradients
# are smaller.)

# %% [markdown] tags=["further"] minutes=4
# ## Further: the rule in libraries, and clipping
#
# PyTorch's `torch.amp.GradScaler` has this rule for one rank, with an interval of 2,000 steps. Where every rank holds
# all gradients, their mean over ranks spreads an infinity to every rank; where ranks hold parts (FSDP, sharded data
# parallel), `ShardedGradScaler` checks all ranks. The library DeepSpeed waits 1,000 steps, and S falls only at the
# second overflow (*hysteresis* 2). Here is lablib's rule.

# %%
lab02.show_source(lab02.ScaleRule.after, after=check.LossScaler)

# %% [markdown]
# *Clipping* shortens a gradient with a norm (length) above a limit. It needs true gradients, so unscale first: here is
# a gradient of norm 5, clipped to 1, in either order.

# %%
for order in ("unscale, clip", "clip, unscale"):
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = 1024 * torch.tensor([3.0, 4.0])
    for action in order.split(", "):
        if action == "clip":
            torch.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
        else:
            weight.grad /= 1024
    print(f"{order}: norm {float(weight.grad.norm()):.5f}")

# %% [markdown] minutes=18
# ## Small updates
#
# BF16 needs no S. Its weakness is the mantissa. A weight is a sum of many small updates. Start with a weight of 1 and
# add 0.001 a thousand times, rounded after each update. Which value results? (The
# figure also shows a third way, explained below it.)

# %%
my_guess_weight = lab02.guess(
    "the weight in BF16, rounded to nearest (exactly: 2)", None, interactive, "count"
)

# %%
updates = torch.full((1000,), 0.001)
sums = {"FP32": lab02.running_sum(1.0, updates, FP32).tolist()}
sums["BF16"] = lab02.running_sum(1.0, updates, BF16).tolist()
by_chance = {"rounding": "stochastic", "generator": torch.Generator().manual_seed(0)}
sums["BF16, stochastic"] = lab02.running_sum(1.0, updates, BF16, **by_chance).tolist()
title = "A thousand updates of 0.001"
lab02.show(lab02.figure_lines(range(1, 1001), sums, "update", "weight", title=title))
my_guess_weight.reveal(sums["BF16"][-1])
for one in (BF16, FP16, FP32):
    print(f"in {one} updates of 0.001 are lost from {lab02.stalls_at(0.001, one):,g} on")

# %% [markdown]
# The step from 1 to the next BF16 number is 2^-7, about 0.008: an update of less than half of it is rounded away. There
# are two remedies. *Master weights*: keep the weights in FP32, and give each product a copy in 16 bits. *Stochastic
# rounding*: round up with probability (x - lower) / step, so that the mean of the sum is right (Gupta et al., 2015; the
# line in the figure is one draw). The runs above had master weights, both in FP16 and BF16 (Micikevicius et al., 2017,
# section 3.1): FP16, with three more bits, loses updates as well, from larger weights on.

# %% [markdown]
# ### Exercise 3: one step in mixed precision
#
# Put loss scale and master weights together, on one rank: this is *mixed precision*. The model's parameters are in 16
# bits; each has a master weight in FP32. Forward and backward use the parameters and a loss times `scale`. The update
# is plain *SGD*, stochastic gradient descent: `lr * gradient` is subtracted. Work in FP32 wherever 16 bits would lose a
# number.


# %% tags=["exercise"]
def mixed_step(model, masters, batch, lr, scale):
    """One step of SGD; returns skip, True if a gradient overflowed. Then no weight changes.

    model: `model(batch)` is the loss in FP32; its parameters are in FP16 or BF16, and may hold
        gradients of an earlier step. Call it once.
    masters: list of FP32 tensors, in the order of `model.parameters()`. They and the parameters
        are changed in place; after a step each parameter is its rounded master weight.
    """
    ### BEGIN SOLUTION
    model.zero_grad()
    (scale * model(batch)).backward()
    weights = list(model.parameters())
    gradients = [weight.grad.float() / scale for weight in weights]
    if any(not gradient.isfinite().all() for gradient in gradients):
        return True
    with torch.no_grad():
        for weight, master, gradient in zip(weights, masters, gradients, strict=True):
            master -= lr * gradient
            weight.copy_(master)
    return False
    ### END SOLUTION


# %%
# Try it: a gradient of 2^-26, which FP16 rounds to zero, and updates of 2^-13, a quarter of the
# step below 1. By hand, the FP16 weight after each step: 1, 1 (halfway, to the even one),
# 1 - 2^-11 = 0.99951171875, 0.99951171875.
class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float16))

    def forward(self, slope):
        return (slope * self.weight.float()).sum()


def four_steps():
    line, master, seen = Line(), torch.ones(1), []
    for _ in range(4):
        mixed_step(line, [master], 2.0**-26, lr=2.0**13, scale=2.0**16)
        seen.append(line.weight.item())
    return seen


lab02.try_out(four_steps)

# %% tags=["check"] points=3
check.mixed_step(mixed_step)

# %% [markdown] tags=["further"] minutes=5
# ## Further: savings in memory and time
#
# This section tests a common claim: mixed precision halves memory and makes steps 1.5 to 3 times as fast. Guess for
# GPT-2 (124 million parameters), 8 sequences of 1,024 tokens, one step on one GPU of `cluster`. The optimizer AdamW
# keeps two numbers for each parameter. lablib's simulator computes the time of each operation, but no numbers; *TF32*
# means FP32 with products that may read their inputs in TF32.

# %%
my_guess_memory = lab02.guess(
    "memory in BF16 over FP32's (0.5: half)", None, interactive, "times"
)
my_guess_speedup = lab02.guess("times as fast as FP32 without TF32", None, interactive, "times")

# %%
from lablib import launch

step_s, peak, rows = {}, {}, {}
for one in (FP32, TF32, BF16):
    two_steps = (lab02.training_steps, one, lab02.model_config("gpt2"), 8)
    run = launch(*two_steps, ranks=1, cluster=cluster, fidelity="shapes")  # sizes, no numbers
    step_s[one] = run.timeline.without("warm-up").makespan_s  # of the second of two steps
    peak[one] = run.memory.peak_bytes(0)
    rows[one.name] = lab02.held_at_peak(run) | {"a step (ms)": f"{1000 * step_s[one]:.0f}"}
my_guess_memory.reveal(peak[BF16] / peak[FP32])
my_guess_speedup.reveal(step_s[FP32] / step_s[BF16])
print(f"It is {step_s[TF32] / step_s[BF16]:.1f} times as fast as TF32. Memory at its peak:")
pd.DataFrame(rows).T

# %% [markdown]
# Parameters take more, because there are two copies; the optimizer's two numbers for each stay in FP32. Activations
# shrink, but not by half: the *logits*, a score for each of 50,257 tokens at each position, go to the loss in FP32, 1.6
# GB per copy; "other" is two more copies, in backward. The speedup depends on the meaning of FP32: it is far above 3
# without TF32, and below 1.5 with it. So neither part of the claim holds here.

# %% [markdown] tags=["further"] minutes=6
# ## Further: one product
#
# Speed also depends on the size of the products. V100 and A100 are GPUs of NVIDIA, of 2017 and 2020; a *peak* is the
# highest rate of the matrix units.

# %%
from lablib.hardware import DEVICES
from lablib.precision.product_speed import product_speeds

SIZES = [2**power for power in range(7, 14)]
pairs = (
    ("V100-32GB-SXM2", FP16, FP32),
    ("A100-80GB-SXM", BF16, FP32),
    ("A100-80GB-SXM", BF16, TF32),
)
lines = {}
for gpu, narrow, base in pairs:
    speeds = product_speeds(DEVICES[gpu], narrow, SIZES, base)
    lines[f"{gpu[:4]}, {narrow} over {base}"] = [speed.speedup for speed in speeds]
of_sizes = {
    "x_label": "rows and columns",
    "y_label": "times as fast",
    "x_unit": "",
    "y_unit": "",
}
lab02.show(
    lab02.figure_lines(
        SIZES, lines, **of_sizes, log_x=True, title="A product of square matrices in 16 bits"
    )
)

# %% [markdown]
# Large products gain the ratio of the peaks. Other operations (norms, the loss, the optimizer) gain at most by the
# bytes that they save.

# %% [markdown] tags=["further"] minutes=9
# ## Further: a scale for each block
#
# FP8 and FP4 go further: on the newest GPUs each further halving gives two to three times the speed. They need
# *scales*: x becomes *codes*, numbers of the format, so that code * scale is near x. For FP8 one scale for each tensor
# is often enough. But E2M1 has eight sizes, from 0 to 6, and the largest is 12 times the smallest above 0. A single
# *outlier*, a number much larger than the rest, sets the scale of a whole tensor.

# %%
from lablib.precision.block_scaling import Recipe, quantize

print("all sizes of E2M1:", [x / 2 for x in (0, 1, 2, 3, 4, 6, 8, 12)])
x = torch.randn(1, 128, generator=torch.Generator().manual_seed(0))
x[0, 5] = 60.0  # an outlier
for block in (128, 32, 16):
    # one scale for 1 row and `block` columns
    codes = quantize(x, Recipe("", E2M1, (1, block))).codes
    print(
        f"one scale for {block:3d} numbers:",
        f"{float((codes == 0).float().mean()):.0%} become zero",
    )

# %% [markdown]
# ### Exercise 4: quantize in blocks
#
# *Quantize* x: return codes and scales. Cut the last dimension into blocks of `block` neighbours (it divides evenly; x
# may be a transposed view). A block's scale maps its largest |x| to the format's largest number. `format` may be any
# format. You may use `round_to(x, format)`, the library's rounding, and `format.largest`.


# %% tags=["exercise"]
def quantize_blocks(x, block, format):
    """Codes, in the shape of x, and scales, of shape (..., C / block); both in float32.

    x: float32, shape (..., C); stays unchanged. A block of zeros has scale 1.
    """
    ### BEGIN SOLUTION
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2), scales
    ### END SOLUTION


# %%
# Try it: the second block is a hundred times as large.
# By hand: codes 2, 6, 2, 6, scales 0.5, 50.
lab02.try_out(quantize_blocks, torch.tensor([[1.0, 3.0, 100.0, 300.0]]), block=2, format=E2M1)

# %% tags=["check"] points=2
check.quantize_blocks(quantize_blocks)

# %% [markdown] tags=["further"] minutes=8
# ## Further: outliers and the size of a block
#
# Smaller blocks cost more scales. *MXFP8* and *MXFP4* (OCP, 2023) have blocks of 32, and a scale of 8 bits that is a
# power of two. *NVFP4* has blocks of 16, a scale in E4M3 for each, and one in FP32 for the tensor (NVIDIA, 2025).
# DeepSeek-V3 gives 128 activations in E4M3 one scale, and 128 x 128 weights (DeepSeek-AI, 2024).
#
# Guess: how large must an outlier be before small blocks help E4M3? Then move it.

# %%
from lablib.precision.block_scaling import Recipe, quantize

BLOCKS = [2**power for power in range(3, 11)]
NAMES = {"E4M3 (8 bits)": E4M3, "E2M1 (4 bits)": E2M1}


def errors(outlier, share):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 1024, generator=generator)
    is_outlier = torch.rand(x.shape, generator=generator) < 1 / int(share.split()[-1])
    x = torch.where(is_outlier, outlier * x.sign(), x)

    def error(format, block):
        off = quantize(x, Recipe("", format, (1, block))).dequantize() - x
        return float(off[~is_outlier].square().mean().sqrt())

    return {name: [error(format, block) for block in BLOCKS] for name, format in NAMES.items()}


for name, found in errors(1.0, "1 in 1000").items():
    print(
        f"no outliers, {name}: error {found[0]:.3f} in blocks of 8,",
        f"{found[-1]:.3f} in blocks of 1,024",
    )


# %%
def draw_errors(series):
    labels = ("numbers in a block", "error of the others, relative to their size", "", "")
    return lab02.figure_lines(
        BLOCKS, series, *labels, "Error against block size", log_x=True, log_y=True
    )


sliders = [
    lab02.LogSlider("outlier", "Outliers, times the usual size", 1, 1000, 30),
    lab02.Choice("share", "How many", ("1 in 1000", "1 in 100", "1 in 10"), "1 in 1000"),
]
examples = [{"outlier": 1.0}, {"outlier": 1000.0}]
lab02.explore(errors, draw_errors, sliders, interactive=interactive, examples=examples)

# %% [markdown]
# <details><summary>Do small blocks help E4M3?</summary>
#
# Hardly, for any of these outliers. The numbers of E4M3 span 2^-9 to 448, a factor of 229,376: with an outlier of 30
# the others keep their mantissa in any block. In E2M1 the scale is then 30 / 6 = 5, and numbers below a quarter of it
# are rounded to zero: most numbers of the block.
#
# </details>

# %% [markdown] tags=["further"] minutes=12
# ## Further: reconcile, predicted and measured
#
# Now run forward and backward on this computer, in both formats. `torch.autocast` casts the inputs of products, and
# leaves the model in FP32. To *calibrate* is to measure the speed of this computer; it takes half a minute, once.
# `reconcile` predicts the program, runs it several times, and compares. On a CPU without units for BF16, a
# product in BF16 takes much longer than in FP32.

# %%
from lablib import phase, reconcile
from lablib.models import GPT, GPTConfig, next_token_loss

# small: a CPU without units for BF16 multiplies in it at a fortieth of FP32's rate
gpt_config = GPTConfig(num_layers=2, d_model=256, num_heads=4, vocab_size=256, max_seq_len=256)
dtypes = {"FP32": torch.float32, "BF16": torch.bfloat16}
num_parameters = sum(param.numel() for param in GPT(gpt_config).parameters())
print(f"a GPT of {num_parameters:,} parameters, one sequence of 256 tokens")


# %%


def loss_of(model, tokens, dtype):
    with torch.autocast(tokens.device.type, dtype=dtype, enabled=dtype != torch.float32):
        return next_token_loss(model(tokens), tokens)


def both_formats(batch):
    with phase("setup"):  # a first, slow call of each: this part, by its name, is left out
        device = torch.get_default_device()
        model = GPT(gpt_config, seed=0).to(device)
        tokens = torch.zeros(batch, 256, dtype=torch.long, device=device)
        for dtype in dtypes.values():
            loss_of(model, tokens, dtype).backward()
    for name, dtype in dtypes.items():
        with phase(name):
            loss_of(model, tokens, dtype).backward()


# %%
real = "nccl" if torch.cuda.device_count() else "gloo"
# calibrated for two ranks, as in the other labs; here one runs
here = lab02.this_machine(ranks=2, backend=real)
for name in ("float32", "bfloat16"):
    print(f"products in {name}: {lab02.format_quantity(here.device.peak(name), 'FLOP/s')}")

# %%
my_guess_whole = lab02.guess(
    "forward and backward in BF16: times as fast", None, interactive, "times"
)

# %%
repeats = 3 if quick else 7
there = {"ranks": 1, "backend": real, "cluster": here, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"
batch = lab02.batch_for(here, 2, 6 * num_parameters * 2 * 256)  # larger on a GPU
comparison = reconcile(both_formats, batch, **there, repeats=repeats)
lab02.print_text(comparison.reading())
recorded = lab02.recorded_comparison("02")
lab02.print_text(f"{recorded}")

# %%
ratios = {}
for place, one in (
    ("this computer", comparison.table()),
    ("recorded", pd.DataFrame(recorded.rows)),
):
    seconds = one.set_index("name").loc[list(dtypes), ["predicted_s", "measured_s"]].T
    ratios[place] = (seconds["FP32"] / seconds["BF16"]).rename(
        lambda name: name.removesuffix("_s")
    )
my_guess_whole.reveal(ratios["this computer"]["measured"])
print("FP32's seconds over BF16's:")
pd.DataFrame(ratios).T.round(1)

# %% [markdown]
# First check whether the machine was busy: if FP32 alone took much longer than predicted, other programs used the CPU,
# and the ratios mean little. And the ratio is hard to predict on a CPU. The calibration measures products in each
# format; the faster they are, the more other operations count. Attention's own kernel and gelu (the function between
# two products) are measured in FP32 alone, and the time of autocast's casts is computed from their bytes. The recording
# is older and of a larger GPT (4 layers of width 512), on a CPU with units for BF16: its prediction computed everything
# but products from bytes, and left out a CPU's computing time for them.

# %% [markdown] tags=["further"] minutes=9
# ## Further: which format for which device?
#
# A device multiplies some formats fast, others slowly or not at all. Here are *peaks*, the highest rates of matrix
# units, of four GPUs of NVIDIA (2017, 2020, 2022 and 2024), one of Google's TPUs, and one core of a laptop.

# %%
from lablib.hardware import DEVICES
from lablib.precision.best_format import best_format

SHOWN = (
    "V100-32GB-SXM2",
    "A100-80GB-SXM",
    "H100-80GB-SXM",
    "B200-SXM",
    "TPU-v4",
    "laptop-core",
)
of_devices = pd.DataFrame({name: DEVICES[name].peak_flops_per_s for name in SHOWN})
of_devices.map(lambda peak: "-" if math.isnan(peak) else lab02.format_quantity(peak, "FLOP/s"))

# %% [markdown]
# The library's rule is the fastest format of at least 16 bits; of equally fast ones, the one that needs least. It
# answers the lab's question again: a V100 trains with a loss scale because it lacks BF16.

# %%
for name in SHOWN:
    lab02.print_text(best_format(DEVICES[name]).reason)

# %% [markdown] tags=["further"] minutes=5
# ## Further: the rules of autocast
#
# Under autocast each operator has a rule: inputs go to the *lower* format, to *float32*, to the *widest* among them, or
# are *untouched*. The table is computed: each operator runs on tensors that have a shape and a format, but no numbers.
# Where do GPU and CPU differ?

# %%
from dataclasses import asdict

from lablib.precision.autocast import COUNTERPARTS, autocast_casts

places = {"GPU, FP16": ("cuda", torch.float16), "GPU, BF16": ("cuda", torch.bfloat16)}
places["CPU, BF16"] = ("cpu", torch.bfloat16)
pd.DataFrame({name: autocast_casts(*place) for name, place in places.items()})

# %% [markdown]
# A GPU's rules are the same for both lower formats: products go to the lower one; most other sums, powers, logarithms
# and losses to FP32. A CPU casts the products and the losses, and leaves softmax, norms and sums in their input format.
# Other libraries have other rules, some by layers or for the whole model:

# %%
pd.DataFrame([asdict(one) for one in COUNTERPARTS]).set_index("what").style

# %% [markdown] tags=["further"] minutes=7
# ## Further: training in 4 bits
#
# In backward an error that always has the same sign adds up over the steps. The errors of stochastic rounding are
# random: each is larger, but their mean is zero. A *recipe* sets the format of each factor, the numbers that share a
# scale, and the rounding; NVFP4's uses stochastic rounding for gradients alone.

# %%
from lablib.precision.block_scaling import Recipe, find_recipe, quantize
from lablib.precision.hadamard import hadamard_transform

generator = torch.Generator().manual_seed(0)
x = torch.randn(64, 64, generator=generator)
nvfp4 = find_recipe("nvfp4")
for recipe in (nvfp4, nvfp4.stochastic()):
    seen = [quantize(x, recipe, generator=generator).dequantize() for _ in range(100)]
    tried = (seen[0], torch.stack(seen).mean(0))
    once, mean = (float((value - x).square().mean().sqrt()) for value in tried)
    print(
        f"{recipe.rounding:10s} error of one rounding {once:.3f},",
        f"of the mean of a hundred {mean:.3f}",
    )

# %% [markdown]
# An outlier can also be spread before rounding. A *Hadamard matrix* H has entries 1 and -1, over the square root of its
# size, and H times H transposed is 1. So (A H) (B H)^T = A B^T: both factors of a product may be transformed, and a
# large number becomes many small ones.

# %%
a, b = (torch.randn(64, 256, generator=generator) for _ in range(2))
a[:, 7] *= 50  # a column of outliers
rows = {}
for recipe in (Recipe("one scale", E2M1), Recipe("blocks of 128", E2M1, (1, 128)), nvfp4):
    for size in (1, 16, 128):
        A, B = (quantize(hadamard_transform(m, size), recipe).dequantize() for m in (a, b))
        error = float((A @ B.T - a @ b.T).norm() / (a @ b.T).norm())
        rows.setdefault(recipe.name, {})[f"H of {size}" if size > 1 else "no H"] = (
            f"{error:.1%}"
        )
print("error of a product in E2M1")
pd.DataFrame(rows).T

# %% [markdown]
# Here H helps more if more numbers share a scale. In these blocks of 16 it increases the error: the outlier affects all
# numbers a little. NVFP4's recipe uses it in the weights' gradients alone, where it helped (NVIDIA, 2025, section 4).

# %% [markdown] tags=["further"] minutes=9
# ## Further: a real run in each recipe
#
# A linear layer has three products, one forward and two backward. *Current* scales come from the current tensor;
# *delayed* scales come from earlier steps, which saves a pass over the tensor. Here is the same run of a small GPT in
# several recipes; INT4 uses whole numbers of 4 bits. Each is *emulated*: numbers are rounded, and products computed in
# FP32. That is slow, so the losses were recorded. How far are they from the loss in BF16?

# %%
from lablib.hardware import DEVICES
from lablib.precision.equal_loss import speed_claim
from lablib.precision.quantized_linear import find_linear_recipe
from lablib.precision.recipe_speed import linear_step_time_s
from lablib.studies.precision import excess_losses, recorded_recipe_runs

kept = recorded_recipe_runs()
ends, excess = excess_losses(kept.losses)
lines = {name: excess[name] for name in ("fp32", "fp8_current", "mxfp8", "nvfp4", "int4")}
above = {
    "x_label": "step",
    "y_label": "loss above BF16's",
    "x_unit": "",
    "y_unit": "nats per byte",
}
lab02.show(
    lab02.figure_lines(ends, lines, **above, title="Means of 20 steps, compared with BF16")
)

# %% [markdown]
# FP32 itself differs from BF16 by 0.01: one run of each cannot show smaller differences. INT4 even leads for a while,
# and loses most of its lead: in a short run of a small model noise may look like progress. The loss caused by a recipe
# shows in long runs of large models. So a claim of speed needs two numbers: *throughput*, and *time to equal loss*,
# here to 2.6.

# %%
rows = {}
claims = (
    ("H100-80GB-SXM", "fp8_current"),
    ("H100-80GB-SXM", "fp8_delayed"),
    ("B200-SXM", "nvfp4"),
)
for gpu, name in claims:
    for width in (1024, 8192):
        sizes = {"num_tokens": 8192, "num_inputs": width, "num_outputs": width}
        recipes = (find_linear_recipe(one) for one in (name, "bf16"))
        step_s, bf16_s = (
            linear_step_time_s(DEVICES[gpu], recipe, **sizes) for recipe in recipes
        )
        claim = speed_claim(kept.losses[name], step_s, kept.losses["bf16"], bf16_s, target=2.6)
        values = {"throughput": claim.throughput, "time to equal loss": claim.to_equal_loss}
        row = {key: f"{value:.2f}" for key, value in values.items()}
        rows[f"{gpu[:4]}, {name}, width {width:,}"] = row
print("a linear layer: how many times as fast as in BF16")
pd.DataFrame(rows).T

# %% [markdown]
# Quantizing reads and writes every number once more. So narrow layers gain little or get slower; wide ones keep two
# thirds to four fifths of the ratio of the peaks.

# %% [markdown] minutes=2
# ## Summary
#
# - A format is a range (bits of exponent) and a precision (bits of mantissa).
# - Small gradients fall out of FP16's range: scale the loss, follow the overflows, skip on all ranks together. BF16
#   has the range of FP32.
# - Small updates fall below the precision of 16 bits: keep FP32 master weights, or round stochastically.
# - Mixed precision puts them together: forward and backward in 16 bits, weights and updates in FP32.
# - Further: products get faster and some activations smaller, but not weights or the optimizer's states. FP8 and FP4
#   have little range and precision: use a scale for each tensor, in FP4 for each block.

# %% [markdown]
# ### Sources
#
# - P. Micikevicius et al., "Mixed Precision Training", 2017, arXiv 1710.03740.
# - D. Kalamkar et al., "A Study of BFLOAT16 for Deep Learning Training", 2019, arXiv 1905.12322.
# - S. Gupta et al., "Deep Learning with Limited Numerical Precision", 2015, arXiv 1502.02551.
# - P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, arXiv 2209.05433.
# - Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, 2023.
# - DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437.
# - NVIDIA, "Pretraining Large Language Models with NVFP4", 2025, arXiv 2509.25149.
# - IEEE 754-2019, sections 3 and 4.
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165.
# - The code: `lablib/precision`.

# %%
check
