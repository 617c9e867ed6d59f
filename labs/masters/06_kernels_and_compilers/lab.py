# %% [markdown]
# # Lab 06: Kernels and compilers
#
# **Question.** Why is a fused kernel faster?
#
# A *kernel* is a function that a GPU runs over whole tensors, with many copies in parallel. It reads numbers from the
# GPU's memory (*HBM*, high-bandwidth memory), calculates on the chip, and writes numbers back. You will count the bytes
# of kernels, and write two: a softmax, and FlashAttention.
#
# **Prerequisites.** Lab 01; Linux, as Triton has no wheels for macOS. **Time.** 59 minutes, without the folded
# sections, called *further*.

# %%
from lablib.labs import lab06

lab06.show(lab06.figure_question())

# %% tags=["parameters"]
interactive: bool = True  # widgets, or static figures
quick: bool = True  # small sizes, a few seconds

# %% [markdown] minutes=8
# ## Bytes of a chain
#
# An *element-wise* operator calculates each number of its result from the numbers at the same place. In *eager*
# PyTorch, where an operator runs as soon as Python reaches it, each one is a separate kernel. Here are four of them in
# a row, on N numbers of 4 bytes:
#
#     a = relu(x)     b = a * 2     c = b + y     out = |c|
#
# Predict before the next cell: how many bytes go through memory, in units of one tensor's 4 N bytes?

# %%
my_guess_tensors = lab06.guess(
    "read and written by all four kernels", None, interactive, "tensors"
)

# %%
import math

import pandas as pd
import torch

from lablib.kernels.jit import jit, tl

h100 = lab06.DEVICES["H100-80GB-SXM"]
check = lab06.checks_for("06")
check

# %%
chain, numel = ["relu", "double", "add", "abs"], 2**24
cost = lab06.chains.unfused_cost(chain, numel, itemsize=4)
tensors = [size_bytes // (4 * numel) for size_bytes in cost.kernel_bytes]
print(f"kernels {cost.kernels}, tensors moved by each {tensors}")
my_guess_tensors.reveal(cost.size_bytes / (4 * numel))

# %% [markdown]
# Every kernel reads its inputs and writes its result: 2, 2, 3 and 2 tensors. A *fused* kernel does the whole chain for
# one number before the next: a, b and c stay in *registers*, on the chip. Guess how many tensors it moves.

# %%
my_guess_fused = lab06.guess(
    "read and written by the fused kernel", None, interactive, "tensors"
)

# %% [markdown]
# Now the simulator counts both: it records each kernel and the bytes that it moves. `run_fused` is declared to it as
# one operator, the result of a compiler for the four.

# %%
rows = {}
for name, run in (("unfused", lab06.chains.run_unfused), ("fused", lab06.chains.run_fused)):
    rows[name] = lab06.simulated(run, chain, numel)
my_guess_fused.reveal(rows["fused"]["tensors moved"])
pd.DataFrame(rows).T

# %% [markdown]
# *Intensity* is FLOPs per byte moved; here each of the four operators counts as one FLOP per number. A *roofline* shows
# the highest rate of a device at each intensity: on the slope memory is the limit, on the flat part arithmetic; between
# them is the *ridge*. The FLOPs here are the same before and after.

# %%
costs = {"unfused": cost, "fused": lab06.chains.fused_cost(chain, numel, itemsize=4)}
for name, one in costs.items():
    took_us = lab06.chains.chain_time_s(one, h100) * 1e6
    print(f"{name}: {one.intensity:.2f} FLOP per byte, {took_us:.0f} us by the cost model")
points = lab06.chains.chain_timeline(costs, h100)
lab06.show(lab06.figure_roofline(points, h100, title="A chain before and after fusing"))

# %% [markdown]
# Both points are on the slope, so seconds follow bytes: 9 tensors against 3. The arithmetic did not get faster. (The
# points are not on the roof itself: large kernels reach 85% of the memory's rate, the dotted line, and 1.3 us pass
# between two kernels. The *host*, the CPU that starts the kernels, costs no time here, since it starts them ahead; a
# *further* section shows when it does.)

# %% [markdown] minutes=6
# ## A kernel and its tiles
#
# *Triton* is a language for kernels, with the syntax of Python. A kernel is written for one *program*; the GPU runs
# many copies of it, in any order. Of a tensor of n numbers, program p takes *tile* p, a block of BLOCK numbers; BLOCK
# is a power of two. If n is not a multiple of BLOCK, the last tile reaches beyond the tensor; a *mask* selects the
# numbers that exist.


# %%
def add_kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: "tl.constexpr"):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # places of this program's tile
    mask = at < n
    x = tl.load(x_ptr + at, mask=mask)
    y = tl.load(y_ptr + at, mask=mask)
    tl.store(z_ptr + at, x + y, mask=mask)


x, y, z = torch.arange(28.0), torch.ones(28), torch.empty(28)
if tl is None:
    print("Triton is missing here (it has no wheels for macOS): kernels are read, not run.")
else:
    with lab06.record_accesses() as launches:
        jit(add_kernel)[(4,)](x, y, z, 28, BLOCK=8)  # 4 programs, interpreted on the CPU
    print(z)

# %% [markdown]
# `x_ptr` points to the beginning of the tensor, so `x_ptr + at` are the places of a tile; `tl.load` reads them into
# registers, `tl.store` writes them. `[(4,)]` starts 4 programs, numbered along axis 0; a `tl.constexpr` is known before
# they run. The *interpreter* runs them one by one on the CPU, and `record_accesses` records every element that a
# program accesses. Programs are numbered from 0. How many numbers does program 3 load, from x and y together?

# %%
my_guess_loaded = lab06.guess("numbers that program 3 loads", None, interactive, "numbers")

# %%
my_guess_loaded.reveal(2 * (28 - 3 * 8))
if tl is not None:
    lab06.show(lab06.figure_tiles(launches[0], program=(3,), vector_width=8))  # in rows of 8
    print("bytes", lab06.hbm_bytes(launches))

# %% [markdown] minutes=8
# ## A fused softmax
#
# Softmax of a row x: subtract the row's maximum, take exp, divide by the sum. As separate operators, max, subtract,
# exp, sum and divide are five kernels, which read and write the row 8 times. (`torch.softmax` is already one kernel.) A
# program that holds a row reads it once and writes it once: 2.
#
# ### Exercise 1: softmax in one kernel
#
# Use one program per row. Rows are contiguous, M numbers each, and BLOCK is at least M. Which value must masked numbers
# have, so that they add nothing? Stuck? Run `check.softmax_kernel.hint()` in a new cell.


# %% tags=["exercise"]
def softmax_kernel(x_ptr, y_ptr, M, BLOCK: "tl.constexpr"):
    """Row `tl.program_id(0)` of y becomes the softmax of that row of x; rows have M numbers.

    `tl.load(pointers, mask=..., other=...)`, `tl.max(v, axis=0)`, `tl.sum(v, axis=0)`,
    `tl.exp(v)`. You may use Python's numbers, also `float(...)`. Each number is read once and
    written once.
    """
    ### BEGIN SOLUTION
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0) * M
    x = tl.load(x_ptr + row + at, mask=at < M, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row + at, e / tl.sum(e, axis=0), mask=at < M)
    ### END SOLUTION


# %%
def softmax_rows(x, block):
    y = torch.full_like(x, -1.0)
    jit(softmax_kernel)[(len(x),)](x, y, x.shape[1], BLOCK=block)
    return y


# 0.09 0.24 0.67; thirds
lab06.try_out(softmax_rows, torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]]), 4)

# %% tags=["check"] points=2
check.softmax_kernel(softmax_kernel)

# %% [markdown] minutes=8
# ## A row longer than a tile
#
# A longer row comes in tiles, and its maximum is known only at the end. For a part of a row keep two numbers: its
# maximum m, and s, the sum of `exp(x - m)` over the part. Two parts with (m1, s1) and (m2, s2) have a common pair. With
# it the row's tiles are joined one by one: *online softmax*.
#
# ### Exercise 2: join two parts
#
# Find the common pair. A part may be empty: m is -inf and s is 0. Maxima may differ by thousands: no exp may overflow.


# %% tags=["exercise"]
def join(m1, s1, m2, s2):
    """The pair (m, s) of both parts together. Four tensors of one shape; they stay unchanged.

    Empty parts, m = -inf and s = 0, may be on either side, or on both: then the pair is also
    -inf and 0.
    """
    ### BEGIN SOLUTION
    m = torch.maximum(m1, m2)
    shift = torch.where(m == -math.inf, 0.0, m)  # -inf less -inf would be nan
    return m, s1 * torch.exp(m1 - shift) + s2 * torch.exp(m2 - shift)
    ### END SOLUTION


# %%
# Try it: of the parts [0, 1] and [3]; m is 3, s is exp(-3) + exp(-2) + 1 = 1.1851.
first, second = torch.tensor([0.0, 1.0]), torch.tensor([3.0])
pairs = [part.max() for part in (first, second)]
sums = [torch.exp(part - part.max()).sum() for part in (first, second)]
lab06.try_out(join, pairs[0], sums[0], pairs[1], sums[1])

# %% tags=["check"] points=2
check.join(join)

# %% [markdown]
# With the row's pair, a second pass over the tiles gives `exp(x - m) / s`. So a long row is read twice; with one pass
# for the maximum and another for the sum it would be three times. If the softmax is only needed for a weighted sum, one
# pass is enough: it can accumulate that sum, too.

# %% [markdown] minutes=22
# ## Attention as that loop
#
# Attention has for each of N tokens a query, a key and a value, D numbers each: the rows of q, k and v. (This is one
# *head*; a model has many in parallel.) It weights values v by the softmax of scores `q k^T / sqrt(D)`, N x N numbers.
# *FlashAttention* (Dao et al., 2022) never writes the scores to memory. In its second version (Dao, 2023) a program
# takes a tile of queries, and loops over tiles of keys and values. For each query it keeps m, s and `o`, the sum of
# `exp(score - m) v`. When m grows, s and o are multiplied by `exp(old m - new m)`, as in `join`. At the end the result
# is `o / s`.

# %% [markdown]
# ### Exercise 3: causal attention in one kernel
#
# *Causal* means: query i sees the keys j <= i. Program p takes the queries from p * BLOCK on; tiles of keys that none
# of them sees are not loaded. A tile of two dimensions has places such as `rows[:, None] * D + columns`, of two
# `tl.arange`; its mask is `rows[:, None] < N`. Loop with Python's `for start in range(...)`; its end may depend on
# `tl.program_id(0)`. `tl.dot(a, b)` is the product of two tiles, on a GPU's matrix units.


# %% tags=["exercise"]
def attend_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: "tl.constexpr", BLOCK: "tl.constexpr"
):
    """A tile of o: queries `tl.program_id(0) * BLOCK` and on, with scores `scale` * q k^T.

    q, k, v, o: N rows of D numbers, contiguous, in float32; D is a power of two, BLOCK need
    not divide N. Each program reads its queries once, the keys and values that they see
    once, and writes its rows of o once.
    Also useful: `tl.full((BLOCK,), x, tl.float32)`, `tl.zeros((BLOCK, D), tl.float32)`,
    `tl.trans(tile)`, `tl.where(mask, a, b)`, `tl.maximum(a, b)`, `tl.max(tile, axis=1)`.
    """
    ### BEGIN SOLUTION
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    o = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        at, is_key = keys[:, None] * D + columns, keys[:, None] < N
        k = tl.load(k_ptr + at, mask=is_key, other=0.0)
        v = tl.load(v_ptr + at, mask=is_key, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(keys <= rows[:, None], scores, -float("inf"))
        new = tl.maximum(m, tl.max(scores, axis=1))
        share, old = tl.exp(scores - new[:, None]), tl.exp(m - new)
        m, s = new, s * old + tl.sum(share, axis=1)
        o = o * old[:, None] + tl.dot(share, v)
    tl.store(o_ptr + own, o / s[:, None], mask=is_row)
    ### END SOLUTION


# %%
def attend(q, k, v, block):
    (N, D), o = q.shape, torch.full_like(q, -1.0)
    grid = (math.ceil(N / block),)
    jit(attend_kernel)[grid](q, k, v, o, N, 1 / math.sqrt(D), D=D, BLOCK=block)
    return o


# Try it: exp of score j is 2^j. Means: 0, (0 + 2) / 3 = 0.667, (0 + 2 + 8) / 7 = 1.429,
# (0 + 2 + 8 + 24) / 15 = 2.267.
values = torch.arange(4.0)[:, None].repeat(1, 4)
lab06.try_out(attend, torch.ones(4, 4), math.log(2) / 2 * values, values, 2)

# %% tags=["check"] points=3
check.attend_kernel(attend_kernel)

# %% [markdown]
# Now its bytes. Standard attention writes and reads the scores, then their softmax: 4 N^2 numbers. The loop reads q and
# writes o once, and reads k and v once for each tile of B queries. (In the version of 2022 the outer loop was over
# keys: q and o were read for each tile of B keys, and o was written.) The count includes all requests of kernels; a
# cache between chip and memory may serve some of them. It has no causal mask, which would halve the reads of k and v.
# Guess: with twice the tokens, by which factor do the bytes grow, of standard attention and of the loop?

# %%
my_guess_growth = lab06.guess(
    "growth of the bytes (standard, the loop)", None, interactive, "times"
)

# %%
sizes = [2**power for power in range(8, 15)]
curves = lab06.attention_bytes(sizes, head_dim=64, tile=128)
look = {"y_unit": "B", "log_x": True, "log_y": True, "title": "Bytes of one head in 16 bits"}
lab06.show(lab06.figure_lines(sizes, curves, "tokens N", "moved", **look))
growth = {name: line[-1] / line[-2] for name, line in curves.items()}
print("at twice the tokens:", {name: f"{factor:.1f} times" for name, factor in growth.items()})
my_guess_growth.reveal([growth["standard"], growth["the loop"]])
pd.DataFrame(curves, sizes).tail(2) / 1e6  # MB

# %% [markdown]
# All grow with N^2, but standard attention as 4 N^2 and the loop as 2 N^2 D / B: here, with B = 128 and D = 64, a
# quarter. Why not a larger B? The four tiles of q, k, v and o, B x D numbers each, must fit into the memory on the
# chip. With room for R numbers B is at most R / 4D, so the bytes are proportional to N^2 D^2 / R.
#
# The loop also saves memory. Standard attention keeps the softmax, N x N numbers, for backward, which adds two
# gradients of that size. The loop keeps one number per query in addition to q, k, v and o: its memory grows with N.
# That is why long texts need such a loop. (The folded "the memory of attention" measures both.)

# %% [markdown] minutes=6
# ## Reconcile: predicted and measured
#
# Now run the chain of the first section on this machine. `torch.compile` reads a function into a *graph* of its
# operators, and a *backend*, by default inductor, writes fused kernels for it. On a CPU inductor needs a C++ compiler
# (`lab doctor` checks this), and its first call takes seconds, about 15 on two cores without a cache on disk. The
# quickest of many calls counts: a new result may get memory pages that the system must provide first, which makes a
# call two or three times as long. Predict the seconds of the fused chain over those of the unfused
# one by bytes alone, then guess the measured ratio.

# %%
my_guess_share = lab06.guess(
    "seconds of the fused chain over the unfused", None, interactive, "times"
)

# %%
here = lab06.this_machine(ranks=2, backend="gloo").device  # calibrated, or a typical laptop
for name, of in (("unfused", lab06.chains.unfused_cost), ("fused", lab06.chains.fused_cost)):
    print(
        f"{name}: {lab06.chains.chain_time_s(of(chain, 2**22, 4), here) * 1e3:.1f} ms predicted"
    )


def four(x, y):
    return torch.abs(torch.relu(x) * 2 + y)


# %%
ways = {"unfused": four} | lab06.compiled(four)  # torch.compile(four), with a C++ compiler
pair = torch.randn(2**22), torch.randn(2**22)
took = {name: lab06.seconds(name, ways[name], pair, 31 if quick else 201) for name in ways}
if "fused" in took:  # otherwise there is no compiler here
    my_guess_share.reveal(took["fused"] / took["unfused"])

# %% [markdown]
# Here are the recorded numbers of another machine that was nearly idle:

# %%
lab06.print_recorded()

# %% [markdown]
# In the recording the predictions are too short, by 6% for the fused chain and 13% for the unfused one, so the ratio is
# close: 0.31 for 3/9. (Runs of the unfused chain lie within 32%, so its 13% mean little.) Extra costs of both nearly
# cancel in the ratio: a CPU reads a line of memory before it writes to it, 1 more tensor for 3 fused and 4 more for 9
# unfused, and 4/13 is 0.31. Bytes predict the ratio only if memory is the limit: a large cache may hold the
# intermediate results, and with an expensive operator, such as tanh, a CPU may be limited by arithmetic.

# %% [markdown] tags=["further"] minutes=4
# ## Further: the memory of attention
#
# This section measures the memory of a step, for one head of one text. torch's `scaled_dot_product_attention` is a loop
# as in exercise 3, called *fused* below. The simulator's *memory tracker* records every allocation; here is the peak of
# forward and backward, in 16 bits.

# %%
from torch.nn.functional import scaled_dot_product_attention

from lablib import launch


def standard(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v


def step(attention, N):
    make = {"dtype": torch.bfloat16, "requires_grad": True}
    q, k, v = (torch.randn(1, 1, N, 64, **make) for _ in range(3))
    attention(q, k, v).sum().backward()


rows = {}
for N in (1024, 4096, 16384):
    for name, attention in (("standard", standard), ("fused", scaled_dot_product_attention)):
        run = launch(step, attention, N, ranks=1, cluster="dgx-h100", fidelity="shapes")
        rows.setdefault(f"{N:,} tokens", {})[f"{name} (MB)"] = run.memory.peak_bytes(0) / 1e6
pd.DataFrame(rows).T.round(1)

# %% [markdown]
# Four times the tokens need about 16 times the memory with scores (three times N x N numbers), four times without.

# %% [markdown] tags=["further"] minutes=4
# ## Further: tiles and waves
#
# A matrix product is also cut in tiles of its output. The GPU's *cores*, which NVIDIA calls SMs (132 on an H100 SXM),
# take one tile each: one *wave*. In the cost model a last tile that reaches beyond the matrix, and a last wave that
# leaves cores idle, take as long as full ones. So time rises in steps. With 4,096 rows and tiles of 256 x 128, four
# waves have 4 x 132 = 528 tiles, 16 x 33: the step ends at a width of 33 x 128 = 4,224. The model takes the best of its
# tiles at each width. *Useful* is the share of a large product's rate that computes the requested output. Which number
# of rows makes its dips deepest?

# %%
from lablib.kernels.tile_quantization import Product, staircase

widths = list(range(1024, 8193, 64))


def sweep(rows, depth):
    return staircase(Product(rows, 4096, depth, "bfloat16", h100), "N", widths)


def draw_steps(steps):
    seconds, useful = [one.time_s for one in steps], [one.useful for one in steps]
    title = "[rows, depth] x [depth, N]"
    return lab06.figure_staircase(widths, "H100", seconds, useful, title)


choices = [lab06.IntChoice("rows", "Rows", (512, 1024, 2048, 4096, 8192), 4096)]
choices += [lab06.IntChoice("depth", "Depth", (256, 1024, 4096), 4096)]
lab06.explore(sweep, draw_steps, choices, interactive=interactive, examples=[{"rows": 1024}])

# %% [markdown]
# <details><summary>Which number of rows?</summary>
#
# 1,024: a wave has 4 x 33 tiles of 256 x 128 there, so the first one ends at 4,224 columns, too. At 4,288 a second,
# nearly empty wave begins, and *useful* drops from 96% to 49% (at a depth of 4,096).
#
# </details>

# %% [markdown] tags=["further"] minutes=3
# ## Further: widths that load slowly
#
# A width may also be slow because of the alignment of its rows: the fast way to load and store takes 16 bytes at once,
# and rows of operands and of the result must be multiples of that. *Alignment* is the share of the rate that is left;
# *useful* is the share of a large product's rate that computes the requested output. Here is the last product of GPT-2,
# as wide as its vocabulary of 50,257. Add other widths.

# %%
from lablib.kernels.tile_quantization import Product, staircase

my_widths = [50257, 50258, 50264, 50304]
steps = staircase(Product(8192, 4096, 768, "bfloat16", h100), "N", my_widths)
rows = [(one.time_s * 1e3, one.useful, one.alignment) for one in steps]
pd.DataFrame(rows, my_widths, ["time (ms)", "useful", "alignment"]).round(2)

# %% [markdown]
# In the model seven unused words make the product more than three times as fast. Its shares for unaligned rows were
# measured on A100s (Anthony et al., 2024). The program nanoGPT uses 50,304; this reportedly made its whole training
# about 25% faster.

# %% [markdown] tags=["further"] minutes=3
# ## Further: a product with a fused epilogue
#
# Operators after a matrix product, here a bias and a GELU, can run on its tile before the tile is written: an
# *epilogue*. It reads only the bias in addition; as a separate kernel it would read the product and write it again.
# (Both columns of tiles read each tile of a, and both rows read b.)

# %%
from lablib.kernels.matmul import matmul
from lablib.kernels.matmul_plan import MatmulTiles

if tl is not None:
    a, b, bias = torch.randn(32, 32), torch.randn(32, 32), torch.randn(32)
    for name, extra in (("plain", ()), ("bias and GELU", (bias, "gelu"))):
        with lab06.record_accesses() as launches:
            matmul(a, b, *extra, tiles=MatmulTiles(16, 16, 16))
        print(f"{name}: {lab06.hbm_bytes(launches)}")

# %% [markdown] tags=["further"] minutes=17
# ## Further: attention's backward
#
# Backward has no stored softmax P. It computes the scores of each tile again, and from them and one number kept per
# query, `lse` = m + log s, the softmax: `P = exp(score - lse)`. Let do be the gradient of o. Then the gradient of P is
# `do v^T`. The gradient of the scores is `P * (do v^T - delta)`, where `delta` is the sum of `do * o` over a row; times
# k, and times `scale`, it is the gradient of q (Dao et al., 2022, appendix B).
#
# ### Exercise 4: the gradient of the queries
#
# Again program p takes the queries from p * BLOCK on, and loops over the keys that they see.


# %% tags=["exercise"]
def dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, N, scale,
    D: "tl.constexpr", BLOCK: "tl.constexpr",
):  # fmt: skip
    """A tile of dq, of queries `tl.program_id(0) * BLOCK` and on; causal, as `attend_kernel`.

    q, k, v, do, dq: N rows of D numbers; lse, delta: N numbers; all contiguous, in float32.
    Each program reads its own rows once, the keys and values that they see once, and writes
    its rows of dq once.
    """
    ### BEGIN SOLUTION
    first = tl.program_id(0) * BLOCK
    rows, columns = first + tl.arange(0, BLOCK), tl.arange(0, D)
    own, is_row = rows[:, None] * D + columns, rows[:, None] < N
    q = tl.load(q_ptr + own, mask=is_row, other=0.0)
    do = tl.load(do_ptr + own, mask=is_row, other=0.0)
    lse = tl.load(lse_ptr + rows, mask=rows < N, other=0.0)
    delta = tl.load(delta_ptr + rows, mask=rows < N, other=0.0)
    dq = tl.zeros((BLOCK, D), tl.float32)
    for start in range(0, first + BLOCK, BLOCK):
        keys = start + tl.arange(0, BLOCK)
        at, is_key = keys[:, None] * D + columns, keys[:, None] < N
        k = tl.load(k_ptr + at, mask=is_key, other=0.0)
        v = tl.load(v_ptr + at, mask=is_key, other=0.0)
        share = tl.exp(tl.dot(q, tl.trans(k)) * scale - lse[:, None])
        share = tl.where(keys <= rows[:, None], share, 0.0)
        dq += tl.dot(share * (tl.dot(do, tl.trans(v)) - delta[:, None]), k)
    tl.store(dq_ptr + own, dq * scale, mask=is_row)
    ### END SOLUTION


# %%
def gradient_of_q(q, k, v, do, block):
    N, D = q.shape
    scores = (q @ k.T / math.sqrt(D)).masked_fill(~torch.ones(N, N).tril().bool(), -math.inf)
    lse, dq = scores.logsumexp(1), torch.full_like(q, -1.0)
    delta = (do * (scores.softmax(1) @ v)).sum(1)
    numbers = (q, k, v, do, lse, delta, dq, N, 1 / math.sqrt(D))
    jit(dq_kernel)[(math.ceil(N / block),)](*numbers, D=D, BLOCK=block)
    return dq


# Try it: keys 0 and log 2, values 0 and 3. Query 0 sees one key: 0. Query 1 has P = 1/3, 2/3,
# o = 2 and the gradient (1/3 * (0 - 2) * 0 + 2/3 * (3 - 2) * log 2) = 0.462.
one, keys = torch.ones(2, 1), torch.tensor([[0.0], [math.log(2)]])
lab06.try_out(gradient_of_q, one, keys, torch.tensor([[0.0], [3.0]]), one, 2)

# %% tags=["check"] points=2
check.dq_kernel(dq_kernel)

# %% [markdown]
# The gradients of k and v need the other loop: a program takes a tile of keys, and loops over the queries that see it.
# So a tile of forward has two products, and backward seven (five in the paper, where one loop adds to dq in memory):
# more FLOPs than standard attention, and fewer bytes.

# %%
from lablib.kernels.attention_bytes import backward_flops, forward_flops
from lablib.kernels.attention_plan import AttentionTiles, equal_lengths

for is_causal in (False, True):
    plan = equal_lengths(1, 4096, 4096, is_causal=is_causal, tiles=AttentionTiles(64, 64))
    ratio = backward_flops(plan, 1, 64) / forward_flops(plan, 1, 64)
    print(
        f"causal {is_causal}: forward {forward_flops(plan, 1, 64) / 1e9:.1f} GFLOPs,",
        f"backward {ratio:g} times that",
    )

# %% [markdown] tags=["further"] minutes=3
# ## Further: norms and the loss
#
# A norm and the loss are chains too. *RMSNorm* divides each row by the root of its mean square. Forward reads x and
# writes the result; backward reads x and the gradient and writes a gradient: 5 tensors, and a little for the gain.
# Cross-entropy combines softmax, logarithm and selection; it reads the scores twice and writes only the gradient: 3.
# The counts:

# %%
from lablib.kernels.cross_entropy import cross_entropy
from lablib.kernels.rms_norm import rms_norm

if tl is not None:
    x, gain = torch.randn(16, 64, requires_grad=True), torch.ones(64, requires_grad=True)
    with lab06.record_accesses() as launches:
        rms_norm(x, gain, tokens=16).sum().backward()  # one program takes all 16 rows
    moved = sum(lab06.hbm_bytes(launches).values())
    print(f"RMSNorm: {len(launches)} kernels move {moved / x.nbytes:.1f} times the bytes of x")
    with lab06.record_accesses() as launches:
        cross_entropy(x, torch.arange(16)).backward()
    moved = sum(lab06.hbm_bytes(launches).values())
    print(
        f"cross-entropy: {len(launches)} kernel moves",
        f"{moved / x.nbytes:.1f} times the bytes of x",
    )

# %% [markdown] tags=["further"] minutes=3
# ## Further: a graph that breaks
#
# Where Python needs a value, the graph ends, and fusing ends too: a *graph break*. Guess: how many graphs does this
# call become?


# %%
def careful(x):
    x = torch.relu(x) * 2
    if x.sum() > 0:
        x = x + 1
    return torch.tanh(x)


my_guess_graphs = lab06.guess("graphs of this call", None, interactive, "graphs")


# %%
from lablib.kernels.graph_breaks import find_graph_breaks

found = find_graph_breaks(careful, torch.randn(8))
my_guess_graphs.reveal(found.graphs)
for one in found.breaks:
    lab06.print_text(f"line {one.line}, `{one.text}`: {one.reason}")

# %% [markdown]
# `if` needs a Python truth value, and so the number itself: the host waits for the device, and the following code is a
# new graph. `torch.where(x.sum() > 0, x + 1, x)` makes the choice on the device, in one graph.


# %%
def mended(x):
    x = torch.relu(x) * 2
    return torch.tanh(torch.where(x.sum() > 0, x + 1, x))


print(find_graph_breaks(mended, torch.randn(8)).graphs, "graph")

# %% [markdown] tags=["further"] minutes=3
# ## Further: compilers side by side
#
# The next cell runs the chain in each installed compiler. TorchScript is torch's older one; `aot_eager` makes graphs,
# with backward in them, and fuses nothing; JAX compiles with XLA. On a CPU neither of the first two fuses this chain,
# so the times show only their overhead. inductor, which fuses, was measured above.

# %%
from lablib.kernels.compilers import compare

numbers = torch.randn(2**16), torch.randn(2**16)
for one in compare(
    four, *numbers, ways=("eager", "torchscript", "aot_eager", "jax"), repeats=3
):
    value = one.skipped or f"{one.first_call_s * 1e3:.1f} ms, then {one.call_s * 1e6:.0f} us"
    equal = "" if one.skipped else f"; equal to eager: {torch.equal(one.value, four(*numbers))}"
    lab06.print_text(f"{one.way}: {value}{equal}")

# %% [markdown] tags=["further"] minutes=3
# ## Further: when the host is the limit
#
# A kernel must also be *launched* by the host (the CPU), which takes a few microseconds. The host launches ahead: a
# kernel starts once it has been launched and the kernel before it has ended. So a long kernel hides the launch of the
# next one; after a short one the GPU waits for the host. A *CUDA graph* launches many kernels at once; a *mega-kernel*
# does the work of all of them in one. Between two kernels the GPU itself takes 1.3 us (Spector et al., 2025, measured
# in a CUDA graph; assumed here for both). Guess: 400 kernels of 2 us, then of 50 us, with 5 us per launch. Where does a
# graph help?

# %%
from lablib.kernels.launch_overhead import cuda_graph, mega_kernel, one_by_one

for kernel_us in (2, 50):
    kernels_s, launch_s, gap_s = [kernel_us * 1e-6] * 400, 5e-6, 1.3e-6
    steps = {
        "one by one": one_by_one(kernels_s, launch_s, gap_s),
        "CUDA graph": cuda_graph(kernels_s, launch_s, gap_s),
        "mega-kernel": mega_kernel(kernels_s, launch_s),
    }
    for name, step in steps.items():
        idle = f"the device idle {step.idle_share:.0%}"
        print(f"kernels of {kernel_us} us, {name}: {step.step_s * 1e3:.2f} ms, {idle}")

# %% [markdown] tags=["further"] minutes=3
# ## Further: compiled again
#
# A compiled function is valid only for inputs like the first; *guards* check this at each call: dtype, sizes, values of
# Python's own numbers. If a guard fails, the function is compiled again; a size that has changed once is variable from
# then on. So the call that is not printed, with 10 numbers, used the version compiled for 9.

# %%
from lablib.kernels.recompiles import find_recompiles

shapes = [(torch.randn(8),), (torch.randn(9),), (torch.randn(10),), (torch.randn(10).double(),)]
for one in find_recompiles(lambda x: torch.relu(x) * 2, shapes):
    lab06.print_text(f"call {one.call}: {one.guards} guards. {one.reason or 'first'}")

# %% [markdown] minutes=1
# ## Summary
#
# - Bytes mostly determine a kernel's time if its intensity is below the device's ridge.
# - Fusing keeps intermediate results on the chip: the same FLOPs, fewer bytes, fewer kernels.
# - Online softmax joins parts of a row by (m, s); FlashAttention is that loop with a product inside. Its memory grows
#   with N, not N^2.
#
# ### Sources
#
# - S. Williams, A. Waterman and D. Patterson, "Roofline", CACM 52(4), 2009.
# - P. Tillet, H. T. Kung and D. Cox, "Triton", MAPL 2019.
# - M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867.
# - T. Dao et al., "FlashAttention", 2022, arXiv 2205.14135; T. Dao, "FlashAttention-2", 2023, arXiv 2307.08691.
# - J. Ansel et al., "PyTorch 2", ASPLOS 2024.
# - Q. Anthony et al., "The Case for Co-Designing Model Architectures with Hardware", 2024, arXiv 2401.14489.
# - A. Karpathy, on nanoGPT and 50,304 tokens, 2023-02-03.
# - B. Spector, J. Juravsky et al., "Look Ma, No Bubbles!", Hazy Research blog, 2025-05-27.
# - NVIDIA, "Matrix Multiplication Background User's Guide", DU-09799-001, 2023.
# - The code: `lablib/kernels`.

# %%
check
