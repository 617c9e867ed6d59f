# %% [markdown]
# # Lab 01: The cost of a step
#
# **Question.** Where do the time and the memory of a training step go?
#
# Before you train a model you want to know how long a step takes, and whether it fits into the GPU. Three counts answer
# both: the *FLOPs* (additions and multiplications) that a step computes, the bytes that it moves, and the bytes that it
# keeps. You count by hand, and compare with a simulator or torch.
#
# **Prerequisites.** Lab 00. **Time.** 58 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab01

lab01.show(lab01.figure_question())

# %% tags=["parameters"]
backend: str = "gloo"  # gloo | nccl: what real processes use on CPUs, on GPUs
cluster: str = "dgx-a100"  # pcie-a100 | dgx-a100 | dgx-h100 | hgx-h200
sequences: int = 8  # of a batch, at least 2
seq_len: int = 1024  # tokens of a sequence, at most 1024
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=10
# ## One step of GPT-2
#
# GPT-2 is a language model of 12 equal *layers* with 124 million *parameters*, the numbers that it learns. It reads
# *tokens*, pieces of words: here a *batch* of 8 *sequences* of 1,024. An A100 computes up to 312e12 FLOPs per second,
# its *peak*, and has 80 GB of memory. How long does a step take, and how many bytes does it hold at most?

# %%
my_guess_s = lab01.guess("time of one step", None, interactive, "s")
my_guess_bytes = lab01.guess("most memory at once", None, interactive, "GB")

# %%
import pandas as pd
import torch

from lablib import launch, phase
from lablib.models import GPT, next_token_loss

check = lab01.checks_for("01")
check

# %%
config, device = lab01.GPT2, lab01.find_cluster(cluster).device
num_params, tokens_of_batch = lab01.num_parameters(config), sequences * seq_len
print(lab01.facts(config, device, tokens_of_batch))

# %% [markdown]
# A step has three parts. *Forward* computes for each token `vocab_size` numbers, the *logits*, and the *loss*, the
# error of the predicted tokens. *Backward* computes the *gradient*: how the loss changes with each parameter. The
# *optimizer*, here AdamW, changes the parameters.

# %% [markdown]
# In *mixed precision* the model computes in bfloat16, with 2 bytes per number. AdamW works on a copy with 4 bytes per
# number, the *master* parameters: `lab01.update` gives it the gradients, and copies the new master parameters into the
# model. `phase` names a part of the program; the setup is left out of all times.


# %%
def usual_loss(model, tokens):
    return next_token_loss(model(tokens), tokens)


def train_step(loss_of=usual_loss, num_sequences=sequences, shape=config):
    with phase("setup"):
        model = GPT(shape, dtype=torch.bfloat16)
        masters = [param.detach().float() for param in model.parameters()]
        optimizer = torch.optim.AdamW(masters, foreach=True)  # all tensors in one call
        lab01.update(model, masters, optimizer)  # AdamW makes its states in its first step
        tokens = torch.zeros(num_sequences, seq_len, dtype=torch.long)
    loss_of(model, tokens).backward()
    with phase("optimizer"):
        lab01.update(model, masters, optimizer)
    return model, optimizer  # the objects that the next step needs


# %% [markdown]
# `launch` runs this on a *simulator*, which gives each operation the time that it would take on the GPU. Its *memory
# tracker* records every allocation. With `fidelity="shapes"` tensors have no numbers: even a large model takes no
# memory here. The *makespan* is the time from the first operation to the last. Which share of it does forward take?

# %%
my_guess_forward = lab01.guess("share of forward", None, interactive, "%")


# %%
def simulate(*arguments):
    return launch(train_step, *arguments, ranks=1, cluster=cluster, fidelity="shapes")


run = simulate()
step = run.timeline.without("setup")
lab01.show(step.figure(title="One step: forward, backward, optimizer"))
shares = lab01.shares(step)
print({name: f"{share:.0%}" for name, share in shares.items()})
my_guess_forward.reveal(100 * shares["forward"])
my_guess_s.reveal(step.makespan_s)

# %% [markdown] minutes=12
# ## FLOPs of a step
#
# In the figure backward takes about twice as long as forward. Why? Count the FLOPs. A product of matrices [M, K] and
# [K, N] has M x N results, each a sum of K products: M N K multiply-adds (*MACs*), so **2 M N K FLOPs**. Nearly all
# FLOPs of a transformer are in such products.

# %% [markdown]
# A batch has B sequences of T tokens, and a token is represented by D numbers: D is the *width*. A layer has two parts.
# *Attention* multiplies all B T tokens by four matrices [D, D]: query, key, value and out.

# %% [markdown]
# In each of H *heads*, of width D / H, the T queries of a sequence are multiplied with its T keys. That gives [T, T]
# *scores*; *softmax* makes each row positive with sum 1, and the rows multiply the values. The *MLP* multiplies by [D,
# F], applies the function *GELU* to each number, and multiplies by [F, D]; F, its hidden width, is 4 D here. Before
# each of the two parts a *norm* scales each token's numbers.

# %% [markdown]
# ### Exercise 1: the FLOPs of a layer
#
# Count the products of one layer's forward pass. Leave out operations on one number or one row at a time: sums, norms,
# softmax, GELU. Count every score, although a token uses only those with itself and with the tokens before it. Stuck?
# Run `check.layer_flops.hint()` in a new cell.


# %% tags=["exercise"]
def layer_flops(batch, seq_len, width, hidden):
    """FLOPs of one layer's forward pass.

    batch: sequences. seq_len: T, tokens of each. width: D. hidden: F.
    """
    ### BEGIN SOLUTION
    rows = batch * seq_len
    attention = 4 * 2 * rows * width * width
    scores = 2 * 2 * batch * seq_len * seq_len * width
    mlp = 2 * 2 * rows * width * hidden
    return attention + scores + mlp
    ### END SOLUTION


# %%
lab01.try_out(layer_flops, batch=1, seq_len=2, width=3, hidden=5)  # by hand: 312

# %% tags=["check"] points=2
check.layer_flops(layer_flops)

# %% [markdown]
# After the layers the model's *head* computes the logits: [B T, D] x [D, V], with V tokens in the vocabulary. Backward
# computes two products for each one in forward: if Y = X W, then the gradient of X is dY W^T, and the gradient of W is
# X^T dY. So **backward takes twice the FLOPs of forward**. Of the formula, torch's counter and the simulator, which
# counts most in backward?

# %%
my_guess_most = lab01.guess(
    "most in backward (formula, torch's counter, simulator or equal)", None, interactive
)

# %%
from torch.utils.flop_counter import FlopCounterMode

shape = lab01.find_transformer(config)
by_formula = float(tokens_of_batch * sum(lab01.forward_flops(shape, seq_len).values()))
tokens = torch.zeros(sequences, seq_len, dtype=torch.long, device="meta")  # shapes only
with FlopCounterMode(display=False) as counted_forward:
    loss = usual_loss(GPT(config, device="meta"), tokens)
with FlopCounterMode(display=False) as counted_backward:
    loss.backward()

# %%
simulated = lab01.flops_by_phase(step)
counted = [float(one.get_total_flops()) for one in (counted_forward, counted_backward)]
rows = {"formula": {"forward": by_formula, "backward": 2 * by_formula}}
rows["torch's counter"] = dict(zip(("forward", "backward"), counted, strict=True))
rows["simulator"] = {name: simulated[name] for name in ("forward", "backward")}
my_guess_most.reveal(max(rows, key=lambda name: rows[name]["backward"]))
lab01.in_table(rows, "FLOP", digits=5)

# %% [markdown]
# One number is larger. A *kernel* is a program that runs on the GPU; one that does the work of several operations is
# *fused*. The simulator's attention is fused, *flash attention*: it does not keep the scores, so its backward
# multiplies queries with keys once more. *Model FLOPs* are the FLOPs that the model needs; *hardware FLOPs* are all
# that are computed.

# %% [markdown] minutes=3
# ## A rule for the FLOPs of a token
#
# In forward, each parameter of a matrix is multiplied once with each token: 2 FLOPs. Backward takes 4. So with N
# parameters a token takes about **6 N FLOPs** (Kaplan et al., 2020). The scores of attention involve no parameters: the
# rule leaves them out. How many times the rule's FLOPs does GPT-3 (175 billion, width 12,288) take with sequences of
# 131,072 tokens?

# %%
my_guess_rule = lab01.guess(
    "FLOPs over the rule's (1 if it is right)", None, interactive, "times"
)

# %%
lengths = [2**exponent for exponent in range(7, 18)]
lab01.show(lab01.figure_over_rule(["gpt2", "gpt3-6.7b", "gpt3-175b"], lengths))
my_guess_rule.reveal(lab01.over_rule("gpt3-175b", 131_072))

# %% [markdown]
# In forward, scores take 4 T D FLOPs per token and layer, matrices 24 D^2. So in large models the error of the rule is
# about T / 6D: a sixth where a sequence is as long as the model is wide. In GPT-2 it is smaller: at 1,024 tokens a
# quarter of its FLOPs are in the head.

# %% [markdown] minutes=5
# ## From FLOPs and bytes to seconds
#
# An operation computes, and it also reads and writes memory; a GPU does both at once. So it takes at least **max(FLOPs
# / peak, bytes / bandwidth)**: the *roofline* (Williams et al., 2009). Which percentage of all operations multiplies
# matrices? And which percentage of the time do all others take?

# %%
my_guess_products = lab01.guess(
    "products of all operations, others of all time", None, interactive, "%"
)

# %%
products = [span for span in step.select(0) if span.flops]
others = [span for span in step.select(0) if not span.flops]
rows = {"products of matrices": lab01.limits(products, device)}
rows["all others"] = lab01.limits(others, device)
calls = len(products) / (len(products) + len(others))
others_time = rows["all others"]["simulated"] / step.makespan_s
my_guess_products.reveal([100 * calls, 100 * others_time])
lab01.in_table(rows, "s")

# %% [markdown]
# All counted FLOPs are in the products. They take longer than FLOPs / peak: the head's reach some 80% of the peak,
# those with a layer's matrices, too small to fill the GPU, 30 to 75%. The others are *limited by memory*: they compute
# little, and wait for bytes. The next figure shows each kind of operation. (`mm` and `addmm` are products, `_to_copy`
# changes the bytes per number.)

# %%
lab01.show(lab01.figure_roofline(step, run.device))

# %% [markdown]
# *Intensity* is FLOPs per byte: left of the bend memory is the limit, right of it arithmetic. Operations without FLOPs
# are left of the dashed line. (A point above the roof, such as `add`, finds its tensors in the *cache*, a small fast
# memory.) A product of few tokens is limited by memory, too: it reads its matrix once for all of them. That is why a
# GPU needs a batch.

# %% [markdown] minutes=8
# ## How well is the GPU used?
#
# *Model FLOPs utilization*, MFU, is the model FLOPs per second over the peak of all GPUs together (Chowdhery et al.,
# 2022, appendix B). It follows from tokens per second, which most publications state. A token takes 6 N FLOPs, and its
# scores take 4 T D in forward in each of L layers, twice that in backward.

# %% [markdown]
# ### Exercise 2: the MFU of a published run
#
# Which share of the peak did a run reach? `tokens_per_s` is the total of all devices.


# %% tags=["exercise"]
def utilization(
    tokens_per_s, num_params, num_layers, width, seq_len, num_devices, peak_flops_per_s
):
    """MFU as a share, such as 0.4. `peak_flops_per_s` is the peak of one device."""
    ### BEGIN SOLUTION
    flops_per_token = 6 * num_params + 12 * num_layers * width * seq_len
    return tokens_per_s * flops_per_token / (num_devices * peak_flops_per_s)
    ### END SOLUTION


# %%
# Megatron-Turing NLG on 2,240 GPUs of the type A100: by PaLM's appendix B, 30.2%.
sizes = {"num_params": 529.6e9, "num_layers": 105, "width": 20480, "seq_len": 2048}
lab01.try_out(
    utilization, tokens_per_s=65_430, **sizes, num_devices=2240, peak_flops_per_s=312e12
)

# %% tags=["check"] points=1
check.utilization(utilization)

# %% [markdown]
# Which MFU does this lab's step reach? `step.makespan_s` is its time, and your function may help.

# %%
my_guess_mfu = lab01.guess("MFU of this lab's step", None, interactive, "%")

# %%
model_flops = lab01.step_flops(shape, tokens_of_batch, seq_len)
mfu = model_flops / step.makespan_s / device.peak("bfloat16")
my_guess_mfu.reveal(100 * mfu)

# %% [markdown]
# (Your function gives slightly more: N includes the position embeddings, which no product uses.) Published, by their
# own count: 46.2% for PaLM 540B on 6,144 TPU v4 (Chowdhery et al., 2022, table 3), 56.3% for a GPT of 1 trillion
# parameters on 512 A100 (Korthikanti et al., 2022, table 5), 43.4% for MPT-70B on 128 H100 (llm-foundry,
# scripts/train/benchmarking).

# %% [markdown] tags=["further"] minutes=3
# ## Further: FLOPs that are computed twice
#
# Instead of keeping a layer's activations one can keep its input and run it forward again in backward:
# *recomputation* (lab 03). The model needs no more FLOPs, but the GPU computes more. *HFU*, hardware FLOPs
# utilization, counts those too.

# %%
gpt3 = lab01.find_transformer("gpt3-175b")
of_the_model = lab01.step_flops(gpt3, 1, 2048)
for recompute in ("none", "selective", "full"):
    ratio = 1 + lab01.recompute_flops(gpt3, 2048, recompute=recompute) / of_the_model
    print(f"{recompute:9s} HFU / MFU = {ratio:.3f}: where HFU is 50%, MFU is {0.5 / ratio:.1%}")

# %% [markdown]
# "Selective" recomputes the scores, "full" whole layers. (The HFU that Korthikanti et al. published double all FLOPs of
# the scores, backward's too: a ratio of 1.027 here.) A run with full recomputation can report a higher utilization than
# a faster one without: so ask which of the two a published number is. The real measure is tokens per second.

# %%
hfu = sum(simulated.values()) / step.makespan_s / device.peak("bfloat16")
print(f"this lab's step (flash attention recomputes the scores): HFU {hfu:.2%}, MFU {mfu:.2%}")

# %% [markdown] minutes=3
# ## Bytes that a step keeps
#
# In mixed precision a parameter takes 2 bytes, and its gradient 2. AdamW holds 4 for the master copy and two *states*
# of 4: running means of the gradient and of its square. That is **2 + 2 + 12 = 16 bytes** per parameter when backward
# ends. The memory tracker sorts its bytes into the same three kinds. For which of them, if any, does it record another
# number?

# %%
my_guess_row = lab01.guess(
    'row that differs ("parameter", "gradient", "optimizer state" or "none")', None, interactive
)

# %%
held, rows = lab01.held_after_backward(run), {}
for name, bytes_each in {"parameter": 2, "gradient": 2, "optimizer state": 12}.items():
    rows[name] = {"bytes per parameter": bytes_each, "formula": bytes_each * num_params}
    rows[name] |= {"tracker": held[name], "difference": held[name] - bytes_each * num_params}
my_guess_row.reveal({name for name in rows if rows[name]["difference"]} or "none")
pd.DataFrame(rows).T

# %% [markdown]
# AdamW also counts its steps: 4 bytes for each tensor of the model. While it works it holds 8 more bytes per parameter,
# the gradient in 4 bytes and a square root: 24 in all, 3 GB. Afterwards gradients are freed, and **14 are kept** from
# step to step. The activations come in addition.

# %% [markdown] minutes=11
# ## Activations that forward keeps for backward
#
# Backward needs values of forward, *activations*. The gradient of a product's matrix is X^T dY, so a product keeps its
# input X. So do GELU and a norm. A sum keeps nothing. Flash attention keeps queries, keys, values and its output. A
# tensor that two operations keep is in memory once.

# %% [markdown]
# The layer, in order: norm; query, key and value; attention; out; *add the layer's input*; norm; up; GELU; down; *add
# the input of this second norm*. The layer's input is another layer's output, and is counted there. So this layer's
# output is counted here: the next norm keeps it.

# %% [markdown]
# ### Exercise 3: the activations of a layer
#
# Count the bytes that one layer keeps, 2 for each number, of tensors of width D and of width F. Leave out tensors with
# one number for each token or head. Attention that is not fused keeps the output of its softmax as well: [T, T] for
# each head of each sequence.


# %% tags=["exercise"]
def activation_bytes(batch, seq_len, width, hidden, heads, keeps_scores):
    """Bytes that one layer keeps. `keeps_scores`: whether attention is not fused."""
    ### BEGIN SOLUTION
    # Of width D: norm, query, key, value, attention, sum, norm, sum.
    # Of width F: GELU's input and output.
    numbers = batch * seq_len * (8 * width + 2 * hidden)
    if keeps_scores:
        numbers += batch * heads * seq_len * seq_len
    return 2 * numbers
    ### END SOLUTION


# %%
tiny = {"batch": 1, "seq_len": 2, "width": 3, "hidden": 5, "heads": 1}
lab01.try_out(activation_bytes, **tiny, keeps_scores=False)  # by hand: 136
lab01.try_out(activation_bytes, **tiny, keeps_scores=True)  # by hand: 144

# %% tags=["check"] points=2
check.activation_bytes(activation_bytes)


# %%
batch = (sequences, seq_len, config.d_model)


def one_layer():
    with phase("setup"):
        layer = GPT(lab01.replace(config, num_layers=1), dtype=torch.bfloat16).blocks[0]
        x = torch.zeros(batch, dtype=torch.bfloat16, requires_grad=True)
    return layer(x)


layer_run = launch(one_layer, ranks=1, cluster=cluster, fidelity="shapes")
kept = layer_run.memory.at(0, layer_run.timeline.end_s)["activation"]
one_tensor = 2 * sequences * seq_len * config.d_model  # bytes
print(f"a layer keeps {kept:,} B: {kept / one_tensor:.2f} tensors of [B, T, D]. And yours:")
lab01.try_out(activation_bytes, *batch, 4 * config.d_model, config.num_heads, False)

# %% [markdown]
# Where F is 4 D these are 16 tensors of 2 bytes per number, **32 bytes for each of B T D**. The rest is small: a norm
# keeps two numbers for each token, flash attention one for each token and head.

# %% [markdown] minutes=4
# ## Where the peak is
#
# In forward, the activations of twelve layers add up. Backward frees them, the last layer's first. So the peak is
# between the two, unless the batch is so small that AdamW holds more. Parameters and states take 1.7 GB then. Which
# other tensors take the most memory?

# %%
kinds = "attention, the MLP or the loss"
my_guess_tensors = lab01.guess(f"the largest other tensors ({kinds})", None, interactive)

# %%
my_guess_bytes.reveal(run.memory.peak_bytes(0) / 1e9)
my_guess_tensors.reveal("the loss")
lab01.show(lab01.figure_memory(run.memory, timeline=step, rank=0))
lab01.largest_at_peak(run)

# %% [markdown]
# The largest belong to the loss, when its backward begins, in the line of code that the figure names. The logits are [B
# T, V], and V is 65 times D. They are converted to 4 bytes for the softmax; its logarithm is kept as an activation.

# %% [markdown]
# Backward makes two gradients of that size, which the memory tracker calls "other". All three are in memory at one
# moment, **12 bytes for each of B T V numbers**. Each is as large as the activations of eight layers. (At the end of
# the figure the optimizer state grows by a third: AdamW's gradients in 4 bytes count as its state.)

# %%
logits = sequences * seq_len * config.vocab_size
peak = run.memory.peak_bytes(0)
print(f"{logits:,} logits; three copies of 4 bytes: {lab01.format_quantity(12 * logits, 'B')}")

# %% [markdown] tags=["further"] minutes=15
# ## Further: a loss in chunks
#
# A token's loss needs only its own V logits. So take the tokens in *chunks*: compute a chunk's logits, add up its
# losses, free them. But autograd, which runs backward, keeps the tensors that backward needs. `checkpoint(f, x, y,
# use_reentrant=False)` computes f(x, y) and keeps only x and y; backward computes f(x, y) again.

# %% [markdown]
# ### Exercise 4: the loss in chunks
#
# `hidden` [B T, D] is the input of the head with the matrix `weight` [V, D]: the logits are `hidden @ weight.T`. Return
# the mean loss of all tokens, computed in the dtype of `hidden`. `tensor.tensor_split(num_chunks)` cuts along the
# tokens into chunks that differ by at most one. The budgets: memory of five times a chunk's logits, and three or four
# products per chunk.


# %%
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


# %% tags=["exercise"]
def chunked_loss(hidden, weight, targets, num_chunks):
    """Mean cross-entropy over all tokens, one chunk after the other.

    Gradients reach hidden and weight. num_chunks: at least 1, and not more than the tokens; no
    chunk has more tokens than their number over num_chunks, rounded up.
    """

    def summed(part, targets_of_part):
        return F.cross_entropy(part @ weight.T, targets_of_part, reduction="sum")

    ### BEGIN SOLUTION
    chunks = zip(hidden.tensor_split(num_chunks), targets.tensor_split(num_chunks), strict=True)
    total = sum(checkpoint(summed, *chunk, use_reentrant=False) for chunk in chunks)
    return total / len(hidden)
    ### END SOLUTION


# %%
hidden = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], requires_grad=True)
weight, targets = torch.eye(4, 2), torch.tensor([0, 1, 2])
print("not in chunks:", F.cross_entropy(hidden @ weight.T, targets).item())
lab01.try_out(chunked_loss, hidden, weight, targets, num_chunks=2)

# %% tags=["check"] points=3
check.chunked_loss(chunked_loss)

# %%
from lablib.memory.linear_cross_entropy import chunked_linear_cross_entropy

lab01.show_source(chunked_linear_cross_entropy, after=check.chunked_loss)

# %% [markdown]
# The library's function does the same, with logits converted to 4 bytes. Now run GPT-2's step with it. By the formula
# the loss holds 12 B T V / chunks bytes, and the peak falls by the rest. By how many percent does the time of the step
# grow with 8 chunks, and with 32?

# %%
my_guess_chunks = lab01.guess(
    "growth of the time (8 chunks, 32 chunks)", None, interactive, "%"
)


# %%
def chunked(num_chunks, loss_in_chunks=chunked_linear_cross_entropy):
    def loss_of(model, tokens):
        head, model.head = model.head, torch.nn.Identity()  # the model without its head
        hidden, model.head = model(tokens).flatten(0, 1), head
        return loss_in_chunks(hidden, head.weight, tokens.flatten(), num_chunks)

    return loss_of


# %%
runs = {1: run} | {num_chunks: simulate(chunked(num_chunks)) for num_chunks in (2, 4, 8, 32)}
rows, grows = {}, {}
for num_chunks, one in runs.items():
    formula = peak - 12 * logits + 12 * logits / num_chunks
    grows[num_chunks] = one.timeline.without("setup").makespan_s / step.makespan_s - 1
    rows[num_chunks] = {"peak": float(one.memory.peak_bytes(0)), "by formula": formula}
    rows[num_chunks]["time of the step"] = f"{grows[num_chunks]:+.0%}"
my_guess_chunks.reveal([100 * grows[8], 100 * grows[32]])
lab01.in_table(rows, "B", index="chunks")

# %% [markdown]
# The memory of the loss falls as 1 / chunks. The cost: the head and the loss run forward once more; each chunk adds a
# gradient [V, D]; and products of few tokens use the GPU less well. A special kernel can keep a chunk's logits on the
# chip, and never write them to memory (Wijmans et al., 2024).

# %% [markdown]
# ### No logits twice
#
# The logits of a chunk give their gradient at once: softmax minus one at the target. So the gradients of `hidden` and
# `weight` can be computed in forward, and no product is computed twice (Hsu et al., 2024). Backward only multiplies by
# the gradient of the loss. The cost: both gradients are in memory from forward on. The gradient of `weight` is in 4
# bytes, so that chunks do not round it; each chunk adds to it.

# %%
from lablib.memory.linear_cross_entropy import FusedLoss, fused_linear_cross_entropy

fused = simulate(chunked(8, fused_linear_cross_entropy))
for name, one in {"chunked": runs[8], "fused": fused}.items():
    time = lab01.format_quantity(one.timeline.without("setup").makespan_s, "s")
    print(f"{name:8s} peak {lab01.format_quantity(one.memory.peak_bytes(0), 'B')}, step {time}")

# %%
lab01.show_source(FusedLoss, after=check.chunked_loss)

# %% [markdown] tags=["further"] minutes=3
# ## Further: will it fit?
#
# The same counts for a larger model: how many sequences fit into the GPU? `gpt2-xl` has 48 layers of width 1,600 and
# 1.56 billion parameters. A *micro-batch* is the set of sequences that goes through the model at once. With your
# formulas: how many sequences of 1,024 tokens does the largest one have?

# %%
my_guess_fit = lab01.guess("largest micro-batch of gpt2-xl", None, interactive, "sequences")

# %%
my_model = "gpt2-xl"  # or "gpt3-6.7b", ...
most = lab01.memory_of_step(my_model, 1024, device=device).largest_micro_batch
my_guess_fit.reveal(most)
lab01.memory_calculator(interactive, my_model, device.name, max(1, min(most, 16)))

# %% [markdown]
# The calculator does this lab's counting for a model from the list, or with your own width and layers. (Its times are
# the rooflines alone, and it leaves 1.3 GB to CUDA and its libraries.) Click on a moment to see the operation.

# %% [markdown]
# <details><summary>And with "Recompute": full?</summary>
#
# Recomputation (lab 03) keeps one tensor of [B, T, D] per layer instead of some 16. The logits and the bytes per
# parameter stay: from a few billion parameters on, the latter alone fill a GPU. Later labs split them over GPUs.
#
# </details>

# %% [markdown] tags=["further"] minutes=3
# ## Further: with dropout, and without flash attention
#
# The well-known count is `s b h (34 + 5 a s / h)` bytes (Korthikanti et al., 2022, section 4.1); s is T, h is D, a are
# heads. Of the 34, 2 are masks of *dropout*, which sets some numbers to zero: this GPT has none. The other term is the
# scores, which flash attention does not keep.

# %%
scores = 5 * config.num_heads * seq_len / config.d_model
print(f"bytes for each of B T D numbers: this layer {2 * kept / one_tensor:.2f};", end=" ")
print(f"by Korthikanti's count 34 + {scores:.0f} = {34 + scores:.0f}")

# %% [markdown] tags=["further"] minutes=24
# ## Further: a real trace
#
# A *profiler* records when each operator begins and ends; the record is a *trace*. Here `torch.profiler` traces a real
# step on the CPU of this computer: GPT-2 with 2 of its 12 layers, one sequence of 256 tokens, numbers of 4 bytes, which
# every CPU can multiply. The simulator runs the same function for the GPU of `cluster`. Products take 75% of the
# simulated step (`dgx-a100`). Guess: which percentage of the real one? And will the real step hold more bytes, fewer,
# or the same? (Lines that begin with USDT are the profiler's own.)

# %%
my_guess_real = lab01.guess("products, share of the real step", None, interactive, "%")
my_guess_held = lab01.guess('bytes held ("more", "fewer" or "same")', None, interactive)

# %%
import json
import tempfile
from collections import Counter
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from lablib import Run
from lablib.figures import figure_reconcile


def cpu_step():
    with phase("setup"):
        model = GPT(lab01.replace(config, num_layers=2))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(1, 256, dtype=torch.long)
        usual_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    usual_loss(model, tokens).backward()
    optimizer.step()


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "trace.json"  # https://ui.perfetto.dev shows such a file
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        cpu_step()
    profiler.export_chrome_trace(str(path))
    real, trace = Run.from_profile(path), json.loads(path.read_text())["traceEvents"]

# %%
simulated_run = launch(cpu_step, ranks=1, cluster=cluster, fidelity="shapes")
both = {"simulated": simulated_run.timeline, "real": real.timeline}
both = {name: one.without("setup") for name, one in both.items()}
labels = (f"simulated, {device.name}", "real, this CPU")
lab01.show(figure_reconcile(*both.values(), labels=labels, normalize=True, title="One step"))
for name, one in both.items():
    length = lab01.format_quantity(one.makespan_s, "s")
    print(f"{name}: {length},", *(f"{part} {n:.0%}" for part, n in lab01.shares(one).items()))

# %% [markdown]
# In a trace operators are nested: `aten::linear` calls `aten::addmm`, which does the work. So the durations of all
# events add up to more than the step. An event's *self time* is its duration without the events directly inside it.
#
# ### Exercise 5: self times
#
# Which operator takes the time? Add up the self times of each name. An operator may call another one of its own name.


# %% tags=["exercise"]
def self_times(events):
    """Name -> sum of the self times of its events.

    events: list of (name, start, end) of one thread, in any order; not changed. Times are in
    microseconds, with fractions; all starts and ends differ. Of two events one is inside the
    other, or they do not overlap.
    """
    ### BEGIN SOLUTION
    times, around = {}, []  # around: the events that are open, outermost first
    for name, start, end in sorted(events, key=lambda event: event[1]):
        while around and around[-1][1] < start:
            around.pop()
        if around:
            times[around[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        around.append((name, end))
    return times
    ### END SOLUTION


# %%
# linear has 10 - 7 = 3 itself, addmm 7 - 2 = 5 and, the second time, 4.
nested = [("copy", 3, 5), ("linear", 0, 10), ("addmm", 2, 9), ("addmm", 11, 15)]
lab01.try_out(self_times, nested)

# %%
# The thread that ran forward: its three longest operators, in microseconds.
ops = [event for event in trace if event.get("cat") == "cpu_op"]
ops = [event for event in ops if event["tid"] == ops[0]["tid"]]
events = [(event["name"], event["ts"], event["ts"] + event["dur"]) for event in ops]
lab01.try_out(lambda: Counter(self_times(events)).most_common(3))

# %% tags=["check"] points=2
check.self_times(self_times)

# %% [markdown]
# `Run.from_profile` has made a timeline of the trace: one span for each outermost operator below autograd. Which
# operators have another share on the CPU than on the GPU?

# %%
seconds = {name: Counter() for name in both}
for name, one in both.items():
    for span in one.select(0):
        seconds[name][span.name.removeprefix("aten.")] += span.duration_s / one.makespan_s
rows = {}
for name, share in seconds["real"].most_common(10):
    rows[name] = {"real": f"{share:.1%}", "simulated": f"{seconds['simulated'][name]:.1%}"}
products = {name: shares["mm"] + shares["addmm"] for name, shares in seconds.items()}
print("products:", {name: f"{share:.0%}" for name, share in products.items()})
my_guess_real.reveal(100 * products["real"])
pd.DataFrame(rows).T

# %%
held, peak_bytes = {}, 0  # address -> bytes
for event in sorted((e for e in trace if e["name"] == "[memory]"), key=lambda e: e["ts"]):
    address, size_bytes = event["args"]["Addr"], event["args"]["Bytes"]
    if size_bytes > 0:
        held[address] = size_bytes
    else:
        held.pop(address, None)
    peak_bytes = max(peak_bytes, sum(held.values()))
print(f"peak of the real step {peak_bytes:,} B,", end=" ")
print(f"of the simulated one {simulated_run.memory.peak_bytes(0):,} B")
more = peak_bytes - simulated_run.memory.peak_bytes(0)
my_guess_held.reveal("more" if more > 0 else "fewer" if more < 0 else "same")

# %% [markdown]
# The bytes are the same: which tensors exist follows from the program, not from the device. The times are not: in our
# measurement two quiet cores took about 190 times as long as the simulated GPU. And the shares moved. GPUs are built
# for products: there they gain most. A CPU's allocator takes new *pages* from the system for each large tensor, and the
# first write to a page is slow. `_foreach_sqrt` and `add` make new tensors: in the same measurement one square root
# took three times as long into new memory as into old. A GPU's allocator keeps its memory. Last, the simulator charges
# softmax and lookups for their bytes alone, while a CPU also needs time to compute them. A trace shows what a machine
# did; only a model of it says why.

# %% [markdown] tags=["further"] minutes=7
# ## Further: reconcile, predicted and measured
#
# Now run a step on real processes of this computer. To *calibrate* is to measure how fast they multiply and move bytes;
# it takes half a minute, once. `reconcile` predicts the step, runs it several times and compares. Two processes train
# independently, because the calibration also measures two. Guess: is the prediction too short or too long, and by which
# factor?

# %%
import torch.distributed as dist

from lablib import reconcile
from lablib.models import GPTConfig

small = GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=256)


def small_step(batch):
    with phase("setup"):
        model = GPT(small)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(batch, 256, dtype=torch.long, device=model.head.weight.device)
        usual_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()  # both begin together
    usual_loss(model, tokens).backward()
    optimizer.step()


machine = lab01.this_machine(ranks=2, backend=backend)
batch = lab01.batch_for(
    machine, 4, 6 * lab01.num_parameters(small) * 4 * 256
)  # larger on a GPU
here = {"ranks": 2, "backend": backend, "cluster": machine, "without": "setup"}
here["fidelity"] = "shapes" if backend == "nccl" else "values"  # predict from shapes alone
comparison = reconcile(small_step, batch, **here, repeats=3 if quick else 7)
lab01.show(comparison.figure())
lab01.print_text(comparison.reading())

# %% [markdown]
# A negative error is a prediction that is too short. *Noise* is half the spread of the few runs over their median: a
# smaller error is not significant, and a machine that is busy all the time is slow without noise. The calibration
# measures matrix products and bandwidth; the prediction for all other operations uses their bytes. It leaves out the
# time that a CPU needs to compute GELU, softmax and AdamW. The next table adds recorded numbers of another machine.
# There forward and backward are predicted too long, by 17% and 23%, and the optimizer too short, by no more than its
# noise:

# %%
recorded = lab01.recorded_comparison("01")
lab01.print_text(f"{recorded}")
parts = ["forward", "backward", "optimizer", "makespan"]
comparison.beside(recorded).loc[parts].map("{:.0f}%".format)

# %% [markdown] tags=["further"] minutes=8
# ## Further: the largest micro-batch that fits
#
# Two moments decide. In the loss's backward the step holds 14 bytes per parameter (there are no gradients yet), and for
# each sequence the activations of all layers and the logits. While AdamW works it holds 24 bytes per parameter, and no
# bytes of the sequences.

# %% [markdown]
# ### Exercise 6: the largest micro-batch
#
# How many sequences at most fit into the memory? As in this lab, F is 4 D, attention is flash attention, and the loss
# is not in chunks. Leave out tensors with one number for each token or head, the input of the first layer, and the
# input of the head.


# %% tags=["exercise"]
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    """The most sequences in a step that never exceeds memory_bytes; 0 if no step fits."""
    ### BEGIN SOLUTION
    if memory_bytes < 24 * num_params:
        return 0
    of_a_sequence = seq_len * (32 * num_layers * width + 12 * vocab_size)
    return (memory_bytes - 14 * num_params) // of_a_sequence
    ### END SOLUTION


# %%
tiny = {"num_params": 10, "num_layers": 1, "width": 2, "seq_len": 3, "vocab_size": 5}
lab01.try_out(largest_micro_batch, memory_bytes=1000, **tiny)  # by hand: 2

# %% tags=["check"] points=2
check.largest_micro_batch(largest_micro_batch)

# %% [markdown]
# Now for the lab's model and GPU. In the memory tracker each sequence takes the same memory, so two runs give the
# largest batch. How much memory does it take, also with one more sequence?

# %%
few = [simulate(usual_loss, n).memory.peak_bytes(0) for n in (8, 9)]
largest = int(8 + (device.memory_bytes - few[0]) // (few[1] - few[0]))
held = {f"{n} sequences": simulate(usual_loss, n) for n in (largest, largest + 1)}
for what, one in held.items():
    print(f"{what}: {lab01.format_quantity(one.memory.peak_bytes(0), 'B', 4)}")
sizes = (num_params, config.num_layers, config.d_model, seq_len, config.vocab_size)
lab01.try_out(largest_micro_batch, device.memory_bytes, *sizes)

# %% [markdown]
# Your result may be one more: it leaves out about half a percent. And real memory is not all available: CUDA and the
# libraries take a gigabyte or so, and an allocator cannot use every gap. (On the other hand a data sheet's GB of memory
# are GiB, 7% more than the GB of this lab: torch sees 79 GiB, 85e9 bytes, of an A100's "80 GB".)

# %% [markdown] tags=["further"] minutes=4
# ## Further: a larger batch
#
# The optimizer's time does not depend on the batch, and products of few tokens do not fill the GPU. So tokens get
# cheaper in larger batches. Guess the share of the GPU's peak that the model's FLOPs reach (*MFU*), with one sequence
# and with 32.

# %%
SEQUENCES = [1, 2, 4, 8, 16, 32]
steps_of = {n: simulate(usual_loss, n).timeline.without("setup") for n in SEQUENCES}
mfus, at_memory = [], []
for n, one in steps_of.items():
    flops = lab01.step_flops(lab01.find_transformer(config), n * seq_len, seq_len)
    mfus.append(flops / one.makespan_s / device.peak("bfloat16"))
    without_s = sum(span.duration_s for span in one.select(0) if not span.flops)
    at_memory.append(without_s / one.makespan_s)
series = {"MFU": mfus, "share of time without FLOPs": at_memory}
look = {"title": "A larger batch", "log_x": True}
lab01.show(lab01.figure_lines(SEQUENCES, series, "batch", "share", "sequences", **look))

# %% [markdown]
# On a real GPU small batches can be slower still. The host (the CPU) launches each kernel, an operation of the GPU,
# while the one before it runs. So launches cost time only where kernels are shorter than a launch. The simulator's host
# takes 3.7 us per launch; Python and PyTorch can take ten times as long. Measured on an H200, GPT-2 with 4 sequences
# took twice its simulated time; with 16 sequences the two agree within 4%.

# %% [markdown] tags=["further"] minutes=4
# ## Further: tokens, days, money
#
# GPT-3 has 174.6 billion parameters and saw 300 billion tokens (Brown et al., 2020, appendix D, which gives 3.14e23
# FLOPs). How many days would 1,024 GPUs of this lab take, at an MFU of 40%? The price of an hour is an example.

# %%
flops = lab01.six_n_d(174.6e9, 300e9)
days = lab01.training_days(flops, num_devices=1024, flops_per_s=0.4 * device.peak("bfloat16"))
print(f"{flops:.3g} FLOPs: {days:.0f} days on 1,024 {device.name}")
print(f"at 2 dollars an hour: {1024 * days * 24 * 2 / 1e6:.1f} million dollars")

# %% [markdown] minutes=2
# ## Summary
#
# - Three counts explain a step: FLOPs and bytes moved give its time, bytes kept show whether it fits.
# - A product [M, K] x [K, N] takes 2 M N K FLOPs; backward needs twice forward; a step about 6 for each parameter and
#   token.
# - An operation takes at least max(FLOPs / peak, bytes / bandwidth). Large products are limited by arithmetic, nearly
#   all other operations by memory. MFU is the model's FLOPs per second over the peak.
# - Mixed precision with AdamW and gradients of 2 bytes takes 16 bytes per parameter, 24 while AdamW works. GPT-2's
#   layer with flash attention keeps 32 bytes for each of B T D.
# - The logits, 12 bytes for each of B T V, can be most of the peak (further: n chunks divide this
#   by n).

# %% [markdown]
# ### Sources
#
# - J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, arXiv 2001.08361.
# - A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022, arXiv 2204.02311.
# - V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, arXiv 2205.05198.
# - S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model for Multicore
#   Architectures", Communications of the ACM 52(4), 2009.
# - T. Dao et al., "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness", 2022, arXiv
#   2205.14135.
# - E. Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", 2024, arXiv 2411.09009.
# - P.-L. Hsu et al., "Liger Kernel: Efficient Triton Kernels for LLM Training", 2024, arXiv 2410.10989.
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165.
# - The code: `transformer_flops.py` and `training_compute.py` in `lablib/models`, `linear_cross_entropy.py` in
#   `lablib/memory`, `op.py` in `lablib/operators`.

# %%
check
