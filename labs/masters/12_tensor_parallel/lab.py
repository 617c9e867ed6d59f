# %% [markdown]
# # Lab 12: Tensor parallel
#
# **Question.** How do you split one matrix product?
#
# Several GPUs share each layer: each has a piece of each large matrix, and computes its part of each product. You build
# it for an MLP, for attention, and for a norm. Then: how many GPUs can share a layer?
#
# **Prerequisites.** Lab 09; helpful: labs 03 and 10. **Time.** 59 minutes, without sections called *further*.

# %%
from lablib.labs import lab12

lab12.show(lab12.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # ranks that share a layer: 2, 4 or 8
real_ranks: int = 2  # ranks that run as real processes on this machine: 2 or 4
cluster: str = "dgx-h100"  # dgx-h100 | dgx-a100 | hgx-h200 | pcie-a100
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=8
# ## Two ways to cut a product
#
# A *rank* is one process with one GPU. A linear layer computes Y = X W: a row of X for each *token*, a column of W for
# each output; above, 6 tokens of width 8, and 16 outputs (the stronger a square's colour, the larger its number, of
# either sign). W is cut over 4 ranks, by columns or by rows. With one of the two a rank's product is not yet a piece of
# Y: the ranks must first send something. With which?

# %%
my_guess_cut = lab12.guess('cut that must send ("columns" or "rows")', None, interactive)

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib import launch, parallel, phase
from lablib.labs.lab12 import all_reduced, gathered, same, scattered, with_gradient
from lablib.models import GPT

check = lab12.checks_for("12")
check

# %%
X, W = lab12.factors(ranks)
for way in ("columns", "rows"):
    lab12.show_cut(way, X, W, ranks)
my_guess_cut.reveal(lab12.ANSWERS["cut"])

# %% [markdown]
# **By columns**, rank r needs all of X, and gets some columns of Y. **By rows**, it needs only the columns of X that
# match its rows. But its result is as large as Y, and only a *part*, a term of a sum: every number of Y is a sum over
# the width, and Y is the sum of all ranks' parts. On simulated ranks:


# %%
def product(way, x, w):
    rank, n = dist.get_rank(), dist.get_world_size()
    if way == "columns":
        return x @ w.chunk(n, dim=1)[rank]
    part = x.chunk(n, dim=1)[rank] @ w.chunk(n, dim=0)[rank]
    dist.all_reduce(part)  # lab 08: the sum of all ranks' tensors, on all of them
    return part


for way in ("columns", "rows"):
    run = launch(product, way, X, W, ranks=ranks)
    Y = torch.cat(run.values, dim=1) if way == "columns" else run.values[0]
    is_right = torch.allclose(Y.cpu(), X @ W)
    print(f"{way}: equal to X W: {is_right}; a rank sends {run.traffic.sent_bytes(0):g} B")

# %% [markdown]
# Y has 768 B. Such small messages are added up along a *tree* of ranks, and the sum is sent down again (lab 08): the
# line above gives the bytes that rank 0 sends.

# %% [markdown]
# Now an *MLP*, half of a GPT's layer: a matrix `up` from width D to H, usually 4 D, the function GELU on each number
# separately, and a matrix `down` back to D. All n ranks have the same input of N tokens, and all need the whole output.

# %% [markdown]
# Which cut for `up`, and which for `down`? Guess how many *collectives* (calls that all ranks make together, such as an
# all-reduce) forward needs, and then backward, which computes every gradient, including the input's.

# %%
my_guess_calls = lab12.guess("collectives (forward, backward)", None, interactive, "count")

# %%
my_guess_calls.reveal(lab12.ANSWERS["calls"])  # the next section says why

# %% [markdown] minutes=11
# ## An MLP on n ranks
#
# A product by columns gives some columns on each rank, exactly the input of a product by rows. And GELU, which works on
# each number separately, may be between them: gelu(X W_r) is a rank's columns of gelu(X W). If `up` were cut by rows,
# its output would be a sum, and gelu of a sum is not a sum of gelus: a collective would be needed before GELU.
#
#              by columns   gelu on each    by rows           all-reduce
#     rank 0   X up_0       gelu(X up_0)    (...) down_0  \
#     rank 1   X up_1       gelu(X up_1)    (...) down_1   +   Y

# %% [markdown]
# So forward needs one all-reduce, of the output; Y is the same on all ranks. And backward? Every rank has the gradient
# of Y, which is also the gradient of its part: a sum passes it on unchanged. But every rank has used X, each with
# different columns. The gradient of X is the *sum* of their results. (A rank can compute the gradients of its pieces of
# `up` and `down` alone.)

# %% [markdown]
# Megatron-LM calls these two places f and g (Shoeybi et al., 2019): **f**, at the input X, does nothing in forward and
# an all-reduce in backward; **g**, at the output Y, does an all-reduce in forward and nothing in backward. Autograd
# cannot derive that. `with_gradient(x, forward, backward)` returns `forward(x)`, and autograd takes `backward(grad)` as
# its gradient. Two functions for both places: `same` returns its input, `all_reduced` the sum over ranks, a new tensor.

# %%
# An example: x passes unchanged, and its gradient, which is 1, 1, is multiplied by ten.
leaf = torch.ones(2, requires_grad=True)
with_gradient(leaf, same, lambda grad: 10 * grad).sum().backward()
print("gradient:", leaf.grad.tolist())

# %% [markdown]
# ### Exercise 1: an MLP on n ranks
#
# Write it with f and g. All ranks get the same x; `up`, `up_bias` and `down` are this rank's shards, and the ranks may
# have unequal shares h of H. `down_bias` is whole, and the same on all ranks. Every rank must end with the whole
# output, and with one device's gradients: of x, of `down_bias`, and of its own shards. The budget: one all-reduce each
# way. Stuck? Run `check.tensor_mlp.hint()` in a new cell.


# %% tags=["exercise"]
def tensor_mlp(x, up, up_bias, down, down_bias):
    """gelu(x up + up_bias) down + down_bias, on all ranks.

    x: [N, D]. up: [D, h], some columns. up_bias: [h]. down: [h, D], some rows.
    down_bias: [D]. GELU: F.gelu(..., approximate="tanh").
    """
    ### BEGIN SOLUTION
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
    ### END SOLUTION


# %%
# gelu(10) is 10, and so on each of 2 ranks: 10 * 1 + 10 * 1 + 0.5.
# The gradient of x is 2: a 1 from each.
def small_mlp():
    x, one = torch.full((1, 1), 10.0, requires_grad=True), torch.ones(1, 1)
    y = tensor_mlp(x, one, torch.zeros(1), one, torch.full((1,), 0.5))
    y.sum().backward()
    return y.item(), round(x.grad.item(), 3)


lab12.try_out(small_mlp, ranks=2)

# %% tags=["check"] points=3
check.tensor_mlp(tensor_mlp)

# %%
lab12.show_source(parallel.tensor_mlp, after=check.tensor_mlp)

# %% [markdown]
# (In the library names end in sizes: `up_fD` is `up` transposed, [h, D], and B T are the N tokens.) Its MLP, for 4096
# tokens of width 4096, and a naive one: both matrices by columns, with an *all-gather* of every output, which gives all
# ranks' pieces to all of them.

# %%
lab12.table_of_mlp(ranks, cluster)

# %% [markdown]
# One all-reduce each way, of N D numbers: 2 (n-1)/n N D in each (lab 08). It does not depend on H, the number of hidden
# columns: they are never sent. It hardly depends on n: **the bytes sent per rank are constant, while its share of the
# work shrinks.**

# %% [markdown] minutes=17
# ## Attention: heads
#
# The other half of a layer is *attention*. Its *heads* are independent. So queries, keys and values are cut by columns,
# a head's columns together, and the matrix behind them by rows, with f in front and g behind, as in the MLP. So a layer
# has two all-reduces forward and two backward.
#
# Many models have fewer heads of keys and values than of queries: several query heads share one (*grouped queries*).
# Guess: with 16 heads of queries and 2 of keys and values on 4 ranks, how many ranks hold a copy of the same head?

# %%
my_guess_copies = lab12.guess("ranks with a copy of the same head", None, interactive, "ranks")

# %%
my_guess_copies.reveal(4 / lab12.NUM_KV_HEADS)
lab12.table_of_heads(4)

# %% [markdown]
# If two ranks hold a copy of the same head, the copies are one parameter: they must stay equal in training. Each copy
# gets a gradient from the queries of its own rank only.

# %% [markdown]
# Below is the attention of some heads, from their columns of Q, K and V; *causal*: each token uses itself and the
# tokens before it. Consecutive query heads share a head of keys and values: with 4 and 2, query heads 0 and 1 use head
# 0, and query heads 2 and 3 use head 1.


# %%
def attend(query, key, value, width):
    """Causal attention: [N, heads * width] of queries; keys and values may have fewer heads."""
    q, k, v = (one.view(len(one), -1, width).transpose(0, 1) for one in (query, key, value))
    k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)


q, kv = torch.randn(3, 8), torch.randn(3, 4)  # 3 tokens; 4 query heads and 2 of keys, width 2
print("shape of the output:", tuple(attend(q, kv, kv, 2).shape))

# %% [markdown]
# ### Exercise 2: attention on n ranks
#
# A rank holds 1/n of the query heads, in order, and only those heads of keys and values that these use. Decide which;
# take their weights with `take(name, heads)`, once for each name. With p ranks for one head of keys and values, the
# gradients of the copies must be summed over these p ranks: `dist.all_reduce(x, group=group_of(ranks))` sums over a
# list of ranks. The budget: one all-reduce of all ranks each way, and those sums.


# %% tags=["exercise"]
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    """Causal attention on all ranks: the whole output, [N, D], on each.

    x: [N, D], one text, the same on all ranks; a head has D / num_heads columns.
    num_heads is a multiple of n and of num_kv_heads; of n and num_kv_heads one divides the
    other.
    take(name, heads): for "query", "key", "value" the columns [D, ...] of a range of heads; for
    "out" the rows [..., D] of query heads.
    group_of(ranks): the group of a list of ranks.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    ### BEGIN SOLUTION
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads  # query heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
    ### END SOLUTION


# %%
# 4 query heads and 2 of keys, on one rank and on 4. The gradient of a head of keys must be the
# same on each rank that has it, and the gradient of x on all ranks: equal norms.
for n in (1, 4):
    lab12.try_out(lab12.attention_norms, tensor_attention, ranks=n)

# %% tags=["check"] points=3
check.tensor_attention(tensor_attention)

# %% [markdown]
# The sum over the copies is f again, applied to a weight, in a smaller group (the library's
# `shared_key_value_group`). Its bytes are those of the weight, and do not depend on N.

# %% [markdown] minutes=13
# ## Sequence parallel
#
# Between g and the next f are dropout, which sets some numbers to 0 at random, the sum with the layer's input, and a
# *norm*, which scales each token's numbers and multiplies them by a weight, `gain`. (Yours will divide by their root
# mean square; the GPT's LayerNorm first subtracts the mean.) There every rank computes the same. The work is small, but
# backward needs the inputs: these *activations* are kept n times.

# %% [markdown]
# But dropout, sum and norm work on each token separately. So cut the tokens.
#
#     tensor     g: all-reduce            norm on N tokens      f: nothing
#     sequence   g': reduce-scatter       norm on N/n tokens    f': all-gather
#
# A *reduce-scatter* gives each rank its own piece of the sum: `scattered(x)` returns this rank's rows of it, and
# `gathered(x)` the rows of all ranks, in their order. Does this cost more bytes than the all-reduce? (An all-reduce
# consists of which two calls? Lab 08.) And what are f' and g' in backward?


# %%
def both():
    own = torch.tensor([1.0 + dist.get_rank()])
    everything = gathered(own)
    return own.tolist(), everything.tolist(), scattered(everything).tolist()


lab12.try_out(both, ranks=2)

# %% [markdown]
# ### Exercise 3: a norm and an MLP, on cut tokens
#
# x is this rank's tokens; all ranks have equally many. The norm is `F.rms_norm(x, (D,), gain)`. `gain` and `down_bias`
# are whole on every rank. Again all gradients must equal one device's. Some parameters are used *only on a rank's own
# tokens*: which gradients are then only a part? The budget: the bytes of two all-gathers, two reduce-scatters, and the
# sums of these parts.


# %% tags=["exercise"]
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    """This rank's tokens of the MLP of the norm of x; as in exercise 1, except:

    x: [t, D], own tokens. gain: [D], the same on all ranks. Returns [t, D].
    """
    ### BEGIN SOLUTION
    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    normed = F.rms_norm(x, x.shape[1:], gain)
    whole = with_gradient(normed, gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
    ### END SOLUTION


# %%
# 2 ranks have one token each, of width 1: 1 and -1.
# Their outputs: 2 gelu(3) = 5.99 and 2 gelu(-3) = -0.01.
# The gradient of gain is the sum over both tokens, on both ranks: 6.14.
def small_sequence():
    x = torch.full((1, 1), 1.0 - 2 * dist.get_rank())
    gain, one = torch.ones(1, requires_grad=True), torch.ones(1, 1)
    y = sequence_mlp(x, gain, 3 * one, torch.zeros(1), one, torch.zeros(1))
    y.sum().backward()
    return round(y.item(), 2), round(gain.grad.item(), 2)


lab12.try_out(small_sequence, ranks=2)

# %% tags=["check"] points=3
check.sequence_mlp(sequence_mlp)

# %% [markdown]
# In backward the two are swapped: f' gathers tokens, so its backward is a reduce-scatter of their gradients; g' adds
# and scatters, so its backward is an all-gather.

# %% [markdown]
# How much memory is it? For backward a layer keeps: inputs of norms; inputs of *regions* (the parts between f and g);
# queries, keys and values; attention's output; hidden columns before and after GELU; and a few small numbers of norms
# and attention. Which of these will shrink? Which are divided by n already? The table gives the bytes by formula, and
# their sum; its last row is the size in the simulator's *memory tracker* for one layer of a GPT (two layers, less one).

# %%
lab12.table_of_kept(ranks, cluster)

# %% [markdown]
# Inputs of norms and their statistics are now divided by n. Rows for heads and hidden columns were already. One row is
# not: the gathered inputs of regions, which backward needs. (Megatron keeps a rank's own tokens of them and gathers
# again in backward: a *further* section.) Sequence parallel sends no more bytes: 2 (n-1)/n N D became twice (n-1)/n N
# D, except for the few sums of gains and biases.

# %% [markdown] minutes=8
# ## Inside a node, and across
#
# A layer of a large model: width 8192, 4096 tokens. Each rank computes 1/n of its products. It sends 2 (n-1)/n N D
# numbers four times, no fewer with more ranks, and waits for them: that time is *exposed*, the rank computes nothing. A
# node has 8 GPUs, joined by fast links; the network between nodes is several times slower.
#
# How many times faster than on one rank will the layer be on 8 ranks, and on 16?

# %%
lab12.print_links(cluster)
my_guess_faster = lab12.guess("as fast (8 ranks, 16 ranks)", None, interactive, "times")

# %%
faster = lab12.show_times(cluster)
my_guess_faster.reveal([faster[8], faster[16]])

# %% [markdown]
# (The marks: 1/n of one rank's time. Compute is above them since every rank computes all norms and sums, and smaller
# products are less efficient.) This is a formula (`lablib/studies/tensor_time.py`). Does the simulator, which runs the
# program call by call, agree? One layer is again two layers less one:


# %%
lab12.table_of_layer(cluster)

# %% [markdown]
# The simulator agrees within half a percent. On `dgx-h100` 16 ranks take twice the GPUs of 8, and are a fifth faster.
# Which makes the exposed share on 8 ranks clearly smaller: eight times as many tokens, or twice the width? Guess, then
# try both, and a machine without NVLink. (The calculator's 4096 tokens are two sequences of 2048, which need less
# attention than a single one. *2D*, in the sentence below the picture, cuts both factors of each product: see
# *further*.)

# %%
my_guess_share = lab12.guess('smaller by more ("tokens" or "width")', None, interactive)

# %%
lab12.tensor_calculator(interactive)

# %%
my_guess_share.reveal(lab12.ANSWERS["smaller"])

# %% [markdown]
# <details><summary>What helps?</summary>
#
# On 8 ranks of `dgx-h100` 18% of the layer is exposed. More tokens do not help: compute and bytes both grow with them,
# and with 8 times as many it is still 17%. A wider layer does: products grow with the width squared, bytes with the
# width. 26% at 4096 become 11% at 16,384. A slower link matters inside the node, too: 53% on `pcie-a100`. So tensor
# parallelism uses the fastest links, up to the GPUs of a node, and other kinds of parallelism are used across nodes
# (Narayanan et al., 2021, takeaway 1).
#
# </details>

# %% tags=["instructor"]
# The numbers of this answer: the exposed share of a layer on 8 ranks.
for name, width, tokens, percent in [
    ("dgx-h100", 8192, 4096, 18),
    ("dgx-h100", 8192, 32768, 17),
    ("dgx-h100", 4096, 4096, 26),
    ("dgx-h100", 16384, 4096, 11),
    ("pcie-a100", 8192, 4096, 53),
]:
    sizes = parallel.LayerSizes(tokens // 2048, 2048, width, width // 64)
    one = lab12.tensor_layer_time(sizes, lab12.find_cluster(name), 8)
    assert round(100 * one.exposed_s / one.layer_s) == percent, (name, width, tokens)
    print(f"{name}, width {width}, {tokens} tokens: {percent}% exposed")

# %% [markdown] tags=["further"] minutes=11
# ## Further: the vocabulary
#
# The last product of a model and its loss can be cut, too. A GPT ends with its largest product: for each token a
# *logit*, a score, for each of V words. W has V columns, cut over the ranks. So every rank has the logits of its own
# words. Must they be gathered for the loss? They are V numbers per token; the loss of a token is one number.
#
#     loss = log(sum over i of exp(x_i - m)) + m - x_target   m = max over i of x_i
#
# The largest logit m is subtracted first, so that no exp overflows; it is added back after log. Which numbers must be
# sent?

# %% [markdown]
# ### Exercise 4: a loss of cut logits
#
# The budget is three all-reduces of one number per token. Use f and g for gradients: which of the two is a sum over
# ranks? The maximum needs no gradient: use `detach()`; `dist.all_reduce(m, dist.ReduceOp.MAX)` works in place. Ranks
# may have unequal shares, of at least one word.


# %% tags=["exercise"]
def sharded_loss(logits, targets, first):
    """Mean cross-entropy of all tokens, on every rank.

    logits: [N, v], this rank's logits, of words first, ..., first + v - 1.
    targets: [N], the right word of each token, from 0 to V - 1, the same on all ranks.
    """
    ### BEGIN SOLUTION
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    is_here = column == targets - first
    own = shifted.gather(1, column[:, None])[:, 0].where(is_here, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
    ### END SOLUTION


# %%
# 2 ranks, 2 words on each, one token with four equal logits: a loss of log 4 = 1.386.
# The gradient of its logits is 0.25, less 1 at the right word: number 2, the first of rank 1.
def small_loss():
    logits = torch.zeros(1, 2, requires_grad=True)
    loss = sharded_loss(logits, torch.tensor([2]), first=2 * dist.get_rank())
    loss.backward()
    return round(loss.item(), 3), logits.grad.tolist()


lab12.try_out(small_loss, ranks=2)

# %% tags=["check"] points=3
check.sharded_loss(sharded_loss)

# %% [markdown]
# Now with 128,000 words, as in today's models, the library's loss next to one that gathers the logits:

# %%
lab12.table_of_losses(ranks, cluster)

# %% [markdown]
# If gathered, each rank holds several numbers for all words of every token: logits, temporary results of the loss, and
# gradients. If cut, it holds them only for its own words, and for each token three numbers are sent: the maximum, the
# sum and the target's logit.

# %% [markdown] tags=["further"] minutes=3
# ## Further: a whole GPT by a plan
#
# A model can be cut without rewriting it. A *plan* is data: names of layers (`*` matches any one part of a name), and
# how each is cut. Which layers of a GPT of blocks, embeddings and a head would you leave whole?

# %%
my_guess_whole = lab12.guess(
    "layers to leave whole (names, such as attention)", None, interactive
)

# %%
my_guess_whole.reveal()
print("cut layers:")
for pattern, style in parallel.GPT_PLAN.items():
    print(f"{pattern:28} {style}")

# %% [markdown]
# Whole are the norms and the position embedding: few parameters, and little work. `Vocabulary` cuts by words: the head,
# and the embedding, too. `units`: parts that must not be cut, here heads. `SharedInput`: queries, keys and values read
# one tensor, which goes through f once for all three. TENSOR: with f and g. `parallelize` replaces each layer in the
# plan by a cut layer. Compare everything in this lab at once with one device, in float64: the loss, and every gathered
# gradient.


# %%
loss_alone, alone = launch(lab12.gradients, None, ranks=1).values[0]
for way, plan in lab12.PLANS.items():
    loss, found = launch(lab12.gradients, plan, ranks=ranks).values[0]
    off = max(float((found[name] - alone[name]).abs().max()) for name in alone)
    print(f"{way:8} loss {loss:.12f}, one device {loss_alone:.12f}; gradients off by {off:.0e}")

# %% [markdown] tags=["further"] minutes=12
# ## Further: random numbers
#
# Which random numbers must be equal on all ranks, and which must not? Equal: those for whole parameters, for the order
# of the data, and for dropout of tensors that all ranks hold. Different: those for a rank's shard of a weight, and for
# dropout of its own heads and hidden columns; with sequence parallelism, of its own tokens.
#
# Suppose all ranks have the same seed, and each draws its shard of `up`. No collective will raise an error. What
# happens to the model?

# %%
SEED, OUT, IN = 3, 24, 12


def shards_drawn(way):
    draw = parallel.naive_sharded_normal if way == "naive" else parallel.sharded_normal
    return draw((OUT, IN), dim=0, std=1.0, seed=SEED)


pictures = {}
for way, name in {
    "naive": "each rank draws its columns",
    "real": "columns of one draw",
}.items():
    pictures[name] = torch.cat(launch(shards_drawn, way, ranks=ranks).values).T.cpu()
CUTS = {name: (1, ranks) for name in pictures}
title = "A weight, drawn on all ranks with one seed"
lab12.show(
    lab12.figure_matrices(pictures, CUTS, title, "Left: all ranks have the same columns.")
)

# %% [markdown]
# Left, every rank's columns are copies of rank 0's. If the rows of `down` are drawn the same way, they are copies, too.
# Then equal columns get equal gradients, so they *stay* equal: the model has only 1/n of its hidden columns, n times
# each, and its loss falls, but less far. Hugging Face restarted the training of SmolLM3 after a trillion tokens for
# this reason: each tensor-parallel rank had the same seed ("The Smol Training Playbook", 2025). The fix was seed +
# rank. But then the model depends on the number of ranks.

# %% [markdown]
# ### Exercise 5: the shard that one device would draw
#
# A rank's shard is ceil(rows / n) rows, in order; the last ranks have fewer, or none. All shards together must equal
# the matrix that one device draws: `torch.randn(rows, columns, generator=..., dtype=torch.float64)`, from a CPU
# generator with `seed`. Send nothing, do not change torch's global generator, and do not keep the whole matrix in
# memory with a shard.


# %% tags=["exercise"]
def draw_shard(rows, columns, seed):
    """This rank's rows of a matrix [rows, columns] of normal numbers: float64, on the CPU."""
    ### BEGIN SOLUTION
    generator = torch.Generator("cpu").manual_seed(seed)
    like = {"dtype": torch.float64, "device": "cpu"}
    whole = torch.randn(rows, columns, generator=generator, **like)
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].clone()
    ### END SOLUTION


# %%
def five_rows():
    return draw_shard(5, 2, seed=0).shape  # 2 rows, 2 rows, 1, and none


lab12.try_out(five_rows, ranks=4)

# %% tags=["check"] points=2
check.draw_shard(draw_shard)

# %% [markdown]
# `parallel.wrong_draws(model)` finds shards that are equal on all ranks, and whole parameters that are not.

# %% [markdown] tags=["further"] minutes=11
# ## Further: hide communication
#
# Backward of Y = X W computes two products: the gradient of X, which must be summed, and the gradient of W, which need
# not. Compute the gradient of X first, and sum it during the other product (*overlapped*). With sequence parallelism
# the input can be gathered again in backward, during the first product, and need not be kept (*gathered again*).
# Finally, a product of some tokens needs only these tokens: cut product and collective *in chunks*, and send each chunk
# during a product (Wang et al., 2023). By the formula:

# %%
wide, machine, table = lab12.WIDE, lab12.find_cluster(cluster), {}
for way in ("f and g", "overlapped", "sequence", "gathered again", "in chunks"):
    one = lab12.tensor_layer_time(wide, machine, 8, way)
    table[way] = {"compute": one.compute_s, "exposed": one.exposed_s, "layer": one.layer_s}
print(f"one layer on 8 ranks of {cluster}, forward and backward")
lab12.in_rows(table).map(lambda seconds: lab12.format_quantity(seconds, "s"))


# %% [markdown]
# Compute falls, too: *overlapped* sums a gradient in place, while f sums a copy; and with sequence parallelism norms
# and sums cover only own tokens. In chunks, products of an eighth of the tokens are less efficient. On 8 ranks of
# `dgx-h100` that costs more than it hides; on `pcie-a100`, with slower links, chunks are the fastest.

# %% tags=["instructor"]
# The numbers of this text.
for name, fastest in {"dgx-h100": "gathered again", "pcie-a100": "in chunks"}.items():
    ways = ("f and g", "overlapped", "sequence", "gathered again", "in chunks")
    of = {way: lab12.tensor_layer_time(wide, lab12.find_cluster(name), 8, way) for way in ways}
    assert min(of, key=lambda way: of[way].layer_s) == fastest, name
    first, second, third, fourth, last = (of[way].compute_s for way in ways)
    assert first > second > third == fourth and last > first, name
    print(name, {way: lab12.format_quantity(one.layer_s, "s") for way, one in of.items()})

# %% [markdown]
# Now on the simulator, on 4 ranks: one gather, and one product by columns. The formula for n chunks: exposed is (n-1)
# times (time of a message - time of a product).

# %%
from lablib.cost import GroupNetwork, matmul_time_s


def entrance(in_chunks):
    x = torch.zeros(1, wide.seq_len // 4, wide.width, dtype=torch.bfloat16)
    own = torch.zeros(wide.width // 4, wide.width, dtype=torch.bfloat16)
    if in_chunks:
        return parallel.gather_linear(x, own, None).shape
    return parallel.column_linear(x, own, None, region=parallel.SEQUENCE).shape


def exposed_by_formula(machine):
    network = GroupNetwork(machine, range(4))
    message_s = network.ring.time_s(wide.activation_bytes / 4) + machine.collective_overhead_s
    sizes = wide.seq_len // 4, wide.width // 4, wide.width
    alone_s = float(matmul_time_s(*sizes, "bfloat16", machine.device))
    product_s = alone_s / machine.device.step_share + machine.device.queued_s
    return parallel.exposed_chunks_s(product_s, message_s, 4)


# %%
table = {}
for name in ("dgx-h100", "pcie-a100"):
    for way, in_chunks in {"in one piece": False, "in chunks": True}.items():
        run = launch(entrance, in_chunks, ranks=4, cluster=name, fidelity="shapes")
        seconds = {"takes": run.timeline.makespan_s, "exposed": run.timeline.exposed_s(0)}
        if in_chunks:
            seconds["exposed by formula"] = exposed_by_formula(lab12.find_cluster(name))
        row = {key: lab12.format_quantity(value, "s") for key, value in seconds.items()}
        table[f"{name}, {way}"] = row
lab12.show(run.timeline.figure(ranks=[0], title="Gather and multiply, in chunks, on pcie-a100"))
lab12.in_rows(table).fillna("")

# %% [markdown]
# Here chunks are faster on `dgx-h100`, too: on 4 ranks each has twice the tokens and twice the columns of 8 ranks, so
# the smaller products lose little.

# %% [markdown] tags=["further"] minutes=3
# ## Further: two dimensions
#
# The bytes sent per rank are constant, since each product is cut along one dimension. On a grid of q x q = n ranks
# every matrix can be cut along both (*2D tensor parallelism*; Xu et al., 2021): blocks of activations are sent along
# the rows of the grid, blocks of weights along its columns. The activations' bytes then fall with q. The weights' bytes
# do not depend on the number of tokens: so with many tokens 2D sends less.

# %%
print("tokens above which 2D sends less than f and g")
fewest = {}
for width in (4096, 8192, 16384):
    tokens_of = {n: parallel.fewest_tokens_for_2d(width, n) for n in (4, 16, 64)}
    fewest[f"width {width}"] = {f"{n} ranks": f"{most:,.0f}" for n, most in tokens_of.items()}
lab12.in_rows(fewest)

# %% [markdown]
# On 4 ranks that is many tokens at once. On 64 it is less, but 64 ranks are several nodes, and 2D sends many more
# messages, which this count of bytes ignores.

# %% [markdown] tags=["further"] minutes=6
# ## Further: PyTorch's DTensor
#
# PyTorch works the same way: `parallelize_module` takes a plan, and makes parameters *DTensors*, tensors that record
# how they are cut. (Here the logits are gathered; `loss_parallel` would leave them cut.) Are the gradients the same?

# %%
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

TORCHS_PLAN = {
    **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "blocks.*.attention.out": RowwiseParallel(),
    "blocks.*.mlp.up": ColwiseParallel(),
    "blocks.*.mlp.down": RowwiseParallel(),
    "token_embedding": RowwiseParallel(input_layouts=Replicate()),
    "head": ColwiseParallel(output_layouts=Replicate()),
}


# %%
def torchs_gradients(tokens):
    device = torch.get_default_device()
    model = GPT(lab12.TINY, seed=0, dtype=torch.float64).to(device)
    parallelize_module(model, init_device_mesh(device.type, (ranks,)), TORCHS_PLAN)
    lab12.next_token_loss(model(tokens), tokens).backward()
    found = {name: param.grad for name, param in model.named_parameters()}
    is_cut = [name for name, grad in found.items() if isinstance(grad, DTensor)]
    return found | {name: found[name].full_tensor() for name in is_cut}


torchs = launch(torchs_gradients, lab12.TINY_TOKENS, ranks=ranks).values[0]
_, one_device = launch(lab12.gradients, None, ranks=1).values[0]
off = max(
    float((torchs[name].cpu() - one.cpu()).abs().max()) for name, one in one_device.items()
)
print(f"torch's gradients, off by {off:.0e} from one device's")

# %% [markdown] tags=["further"] minutes=9
# ## Further: predicted and measured
#
# Now a step on real processes of this computer, connected by *gloo* (on GPUs by NCCL). `reconcile` predicts the
# program, runs it several times, and compares; for that it measures once, in half a minute, how fast this computer
# computes and sends. Guess: which share of the step will be exposed here, where all bytes go through the memory?

# %%
small = lab12.GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=128)


def small_step(batch):
    with phase("setup"):
        tokens = torch.zeros(batch, 128, dtype=torch.long, device=torch.get_default_device())
        model = parallel.parallelize(GPT(small, seed=0).to(torch.get_default_device()))
        parallel.vocabulary_parallel_loss(model(tokens), tokens, 256).backward()
        model.zero_grad()
        dist.barrier()
    parallel.vocabulary_parallel_loss(model(tokens), tokens, 256).backward()


real = "nccl" if backend == "nccl" else "gloo"
here = lab12.this_machine(ranks=real_ranks, backend=real)
flops = 6 * lab12.num_parameters(small) * 4 * 128
batch = lab12.batch_for(here, 4, flops / real_ranks)  # larger on a GPU
there = {"ranks": real_ranks, "backend": real, "cluster": here, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"  # predict from shapes alone
comparison = lab12.reconcile(small_step, batch, **there, repeats=3 if quick else 7)
lab12.show(comparison.figure())
lab12.print_text(comparison.reading())

# %%
recorded = lab12.recorded_comparison("12")
lab12.print_text(f"{recorded}")
parts_of_a_step = ["forward", "backward", "exposed", "waiting", "idle", "makespan"]
table = comparison.beside(recorded, ["predicted_s", "measured_s"]).loc[parts_of_a_step]
table.columns = [name.replace("_s ", " ") for name in table.columns]
table.map(lambda seconds: lab12.format_quantity(seconds, "s"))

# %% tags=["instructor"]
# The numbers of the text below: measured minus predicted milliseconds, by part.
rows = recorded.table().set_index("name")
lacks = (1000 * (rows["measured_s"] - rows["predicted_s"])).to_dict()
parts = {"compute": ("forward", "backward"), "waiting": ("waiting", "idle")}
found = {name: sum(lacks[part] for part in of) for name, of in parts.items()}
found |= {"exposed": lacks["exposed"], "all": lacks["makespan"]}
stated = {"compute": -8, "waiting": 27, "exposed": 6, "all": 25}
assert {name: round(lack) for name, lack in found.items()} == stated
assert sum(recorded.table().query("kind == 'communication'")["measured_calls"]) == 21
print(found)

# %% [markdown]
# The first five rows add up to the makespan. Calls and bytes are equal on both sides: 21 all-reduces of 4 layers, 2 per
# layer and 1 for the embedding in forward, 3 of the loss, 2 per layer and 1 for the head in backward. Seconds are not:
# the recorded step took 25 ms longer than predicted. Waiting (for the other rank) and idle are 27 ms, of which the
# simulator predicts none: it models neither late ranks nor the time that Python takes between operations. The
# prediction of *exposed* is 6 ms too short, the prediction of compute 8 ms too long.

# %% [markdown] minutes=2
# ## Summary
#
# - A product is cut by columns (input whole, output cut) or by rows (input cut, output a sum). Columns, then rows: one
#   sum forward, g, and one backward, f, at any hidden width.
# - Heads are columns. If several ranks hold one weight, and each computes only a part of its gradient (from its own
#   query heads, or its own tokens), the parts must be summed.
# - Sequence parallel: the all-reduce in two halves, with cut activations between layers instead of n copies. The same
#   bytes.
# - The bytes sent per rank do not shrink with more ranks, so the exposed share grows: use the fastest links, inside a
#   node.

# %% [markdown]
# ### Sources
#
# - M. Shoeybi, M. Patwary, R. Puri, P. LeGresley, J. Casper, B. Catanzaro, "Megatron-LM: Training Multi-Billion
#   Parameter Language Models Using Model Parallelism", 2019, arXiv 1909.08053: columns and rows, f and g, the loss
#   (section 3).
# - J. Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints", 2023,
#   arXiv 2305.13245: grouped queries (section 2.2).
# - V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198:
#   sequence parallelism (section 4.2.2).
# - D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
#   arXiv 2104.04473: tensor parallelism inside a node (takeaway 1).
# - S. Wang et al., "Overlap Communication with Dependent Computation via Decomposition in Large Deep Learning Models",
#   ASPLOS 2023: chunks (further). Q. Xu, S. Li, C. Gong, Y. You, "An Efficient 2D Method for Training Super-Large Deep
#   Learning Models", 2021, arXiv 2104.05343: two dimensions (further).
# - Hugging Face, "The Smol Training Playbook", 2025, chapter "The training marathon": equal seeds (further).
# - The code: `regions.py`, `mlp.py`, `attention.py`, `sequence_parallel.py`, `vocabulary.py`, `plan.py` and `bytes.py`
#   in `lablib/parallel/tensor`, and `lablib/studies/tensor_time.py`.

# %%
check
