# %% [markdown]
# # Lab 15: Longer and wider
#
# **Question.** How do GPUs share one long text, or one wide layer?
#
# A text of a million tokens has more activations than a GPU has memory. A model of hundreds of billions of parameters
# may use only a twentieth of them for each token. Two more axes split these: *context*, the tokens of a sequence, and
# *expert*, the many MLPs of a layer. In both, a rank needs data of other ranks in every layer. Can it compute while
# they are sent? The answer decides where the axis may go.
#
# **Prerequisites.** Labs 06 and 14; helpful: lab 04. **Time.** 59 minutes, without the folded sections, called
# *further*.

# %%
from lablib.labs import lab15

lab15.show(lab15.figure_question())

# %% tags=["parameters"]
ranks: int = 4  # ranks that share the sequence of the ring: 2, 4 or 8
cluster: str = "dgx-h100"  # dgx-h100 | dgx-a100 | hgx-h200 | pcie-a100
interactive: bool = True  # widgets, or static figures
quick: bool = True  # the lab is as short either way

# %% [markdown] minutes=16
# ## Long sequences
#
# In attention each token, a *query*, looks at the *keys* of all tokens up to itself, and takes a mean of their *values*
# with weights exp(score) (lab 06). All other parts of a GPT work on each token separately. So cut the sequence: each
# rank has some tokens, and the whole model. It needs only the keys and values of the other ranks.
#
# No rank needs them all at once. *Ring attention* sends them round a ring: in each round a rank works with the keys
# that it has, and sends them on to the next rank at the same time. After n rounds it has used all keys, part by part.
# How are the parts combined into one softmax?

# %%
import torch
import torch.distributed as dist
import torch.nn.functional as F

from lablib import find_cluster, launch, parallel, studies
from lablib.course import show_source, try_out
from lablib.models import GPT, GPTConfig, next_token_loss
from lablib.parallel import Mesh
from lablib.parallel.tensor.regions import with_gradient

check = lab15.checks_for("15")
check

# %% [markdown]
# For each part and each query a rank keeps two things: the mean o of its values, and one number, the *log-sum-exp* l =
# log(sum of exp(score)) over its keys. exp(l) is the weight of the whole part.
#
# ### Exercise 1: merge two attentions
#
# From (o1, l1) of some keys and (o2, l2) of others, make (o, l) of all of them. Scores may be 1000: their exp
# overflows. A query without keys in one part has `l = -inf` there, and o may be any finite number. Every query has keys
# in at least one part. Stuck? Run `check.merge.hint()` in a new cell.


# %% tags=["exercise"]
def merge(o1, l1, o2, l2):
    """Attention over the keys of both parts: a pair (o, l), new tensors.

    o1, o2: [..., t, K]. l1, l2: [..., t].
    """
    ### BEGIN SOLUTION
    weight = torch.sigmoid(l2 - l1)[..., None]
    return o1 + weight * (o2 - o1), torch.logaddexp(l1, l2)
    ### END SOLUTION


# %%
# One query. Part 1: a key of score 0 and value 10. Part 2: two keys of score 0, values 1 and 3.
# The mean of all three is 4.667; l is log 3 = 1.099.
one = torch.tensor([[10.0]]), torch.tensor([0.0])
two = torch.tensor([[2.0]]), torch.tensor([2.0]).log()
try_out(merge, *one, *two)

# %% tags=["check"] points=2
check.merge(merge)

# %%
show_source(parallel.merge_attention, after=check.merge)

# %% [markdown]
# So a rank needs memory only for its own keys and those that pass by, however many ranks there are. In backward the
# keys go round once more, followed by their gradients. Does it work? Compare the library's ring on ranks with one
# device: its output and the gradient of the queries. (Here 4 heads of queries share 2 heads of keys and values,
# *grouped-query attention*: fewer keys to send.)

# %%
draw = torch.Generator().manual_seed(0)
Q, K, V = (torch.randn(1, n, 64, 8, generator=draw, dtype=torch.float64) for n in (4, 2, 2))
Q.requires_grad_()
whole = F.scaled_dot_product_attention(Q, K, V, is_causal=True, enable_gqa=True)
(whole_grad,) = torch.autograd.grad(whole.square().sum(), Q)

# %%
assert ranks in (2, 4, 8), f"ranks must be 2, 4 or 8: got {ranks}."
order = parallel.contiguous_order(64, ranks)  # rank r has the r-th part


def ring():
    here, own = torch.get_default_device(), order.tokens(dist.get_rank())
    q, k, v = (x.detach()[:, :, own].to(here).requires_grad_() for x in (Q, K, V))
    out = parallel.ring_attention(q, k, v, order)
    out.square().sum().backward()
    return out.detach().cpu(), q.grad.cpu()


outputs, gradients = zip(*launch(ring, ranks=ranks).values, strict=True)
print(f"output off by {(torch.cat(outputs, 2) - whole).abs().max().item():.0e}")
print(f"gradient off by {(torch.cat(gradients, 2) - whole_grad).abs().max().item():.0e}")

# %% [markdown]
# So where does the context axis go? It sends keys and values in every layer, but a ring sends them while it computes.
# Take Llama 3 8B on 8 tensor, 4 context and 2 data ranks, sequences of 65,536 tokens, and all six orders of these axes
# from far (between nodes) to near. Which axis must be nearest? How many times as long is a step in the worst order?

# %%
my_guess_near = lab15.guess('nearest ("data", "context" or "tensor")', None, interactive)
my_guess_worst = lab15.guess("worst order over best", None, interactive, "times")

# %%
box, long_step = Mesh(data=2, context=4, tensor=8), {"batch": 2, "seq_len": 65_536}
placed = studies.placements("llama-3-8b", box, cluster, zero_stage=1, **long_step)
my_guess_near.reveal(placed[0].mesh.axes[-1])
my_guess_worst.reveal(placed[-1].step_time_s / placed[0].step_time_s)
for one in placed:
    waits = ", ".join(f"{axis} {1e3 * s:.3g} ms" for axis, s in one.exposed_s.items() if s)
    print(f"{'-'.join(one.mesh.axes)}: {1e3 * one.step_time_s:,.0f} ms, waits for {waits}")

# %% [markdown]
# Tensor belongs inside the node, again; across nodes a step takes up to about twice as long. The ring hides nearly all
# of its messages at any place, so it may go across: its order with data makes no difference. Llama 3 has `Mesh(data,
# pipeline, context, tensor)` in our notation, though it gathers keys instead of sending them round (section 3.3.2).

# %% [markdown] minutes=11
# ## Equal work in a ring
#
# A causal mask makes queries unequal: the last token attends to all keys, the first one only to its own. Suppose that 4
# ranks have a quarter of the sequence each, in order (*contiguous*). How many times as long does attention take as with
# equal work on all ranks?

# %%
my_guess_times = lab15.guess("as long, contiguous on 4 ranks", None, interactive, "times")

# %%
LONG = parallel.ContextSizes(batch=1, seq_len=65_536, heads=32, kv_heads=8, d_head=128)


def attend(order_name):
    order = parallel.order_of(order_name, LONG.seq_len, dist.get_world_size())
    own = order.lengths[dist.get_rank()]
    q, k, v = (
        torch.zeros(1, heads, own, LONG.d_head, dtype=torch.bfloat16, requires_grad=True)
        for heads in (LONG.heads, LONG.kv_heads, LONG.kv_heads)
    )
    out = parallel.ring_attention(q, k, v, order)
    out.backward(torch.zeros_like(out))


SHAPES = {"cluster": cluster, "fidelity": "shapes"}
run = launch(attend, "contiguous", ranks=4, **SHAPES)
machine = find_cluster(cluster)
share_s = studies.fair_share_s(LONG, machine, 4)  # equal work, no rounds
my_guess_times.reveal(run.timeline.makespan_s / share_s)
lab15.show(run.timeline.figure(title=f"Contiguous pieces, {LONG.seq_len} tokens on 4 ranks"))

# %% [markdown]
# Rank 0 waits: its queries may not attend to any of the keys that pass. Counted in pairs of a query and a key, the
# last of n ranks has (2n - 1)/n of the mean: 1.75 for 4, and nearly 2 for many. The rest of the factor is merging,
# and starting kernels in each round.

# %% [markdown]
# ### Exercise 2: an order of equal work
#
# Give each rank equally many tokens, such that all ranks also have equally many pairs of a query and a key: a query at
# position p attends to p + 1 keys. Kernels are faster on few, long runs of tokens: at most two for each rank. `seq_len`
# is a multiple of 2n.


# %% tags=["exercise"]
def even_order(seq_len, n, rank):
    """Positions of the tokens of this rank of n, ascending."""
    ### BEGIN SOLUTION
    c, late = seq_len // (2 * n), 2 * n - 1 - rank
    return [*range(rank * c, (rank + 1) * c), *range(late * c, (late + 1) * c)]
    ### END SOLUTION


# %%
for rank in range(2):
    try_out(even_order, 8, 2, rank)

# %% tags=["check"] points=2
check.even_order(even_order)

# %% [markdown]
# Yours may be *zigzag*, pieces r and 2n - 1 - r of 2n. *Striped*, every n-th token, is nearly as even. How near does
# each come to equal work, the time of 1.00?

# %%
for name in ("contiguous", "zigzag", "striped"):
    run = launch(attend, name, ranks=4, **SHAPES)
    print(f"{name:10} {run.timeline.makespan_s / share_s:.2f} times as long")

# %% [markdown]
# The rest is the cost of rounds: partial results are written, read again and merged, and kernels start again.
# (Keys may also be gathered, or heads exchanged: "Further: other ways to split a sequence".)

# %% [markdown] minutes=25
# ## Experts
#
# That was one long text; now one wide layer. A *mixture of experts* has E MLPs, the experts, instead of one. A small
# matrix, the *router*, gives each token a score for each expert; only the best one (or k) processes it, and the
# expert's output is multiplied by a *weight* computed from that score, so that the router can learn. The model has E
# times the MLP's parameters, and with one expert for each token it computes no more. The experts are spread over
# ranks. So tokens must be sent to them, and back.
#
# In an *all-to-all* a rank sends a different piece to each rank, and gets one from each. Messages must be equally
# large, or their sizes must be sent first. The older way (of the models Switch and GShard) is a fixed number of
# places for each expert, its *capacity*: a token for which no place is left is *dropped*: the expert does not process
# it, and only the residual connection carries it to the next layer. The gradient of an exchange is sent back by
# another exchange.


# %%
def all_to_all(x):
    arrived = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(arrived, x.contiguous())
    return arrived


def exchanged(x):
    """Row block r goes to rank r; block r returned is from rank r. Backward: the reverse."""
    return with_gradient(x, all_to_all, all_to_all)  # lab 12


def sent_by_all():
    own = torch.tensor([10.0 * dist.get_rank() + i for i in range(2)])
    return own.tolist(), exchanged(own).tolist()


# Expected: rank 0 [0.0, 1.0] becomes [0.0, 10.0], rank 1 [10.0, 11.0] becomes [1.0, 11.0].
try_out(sent_by_all, ranks=2)

# %% [markdown]
# ### Exercise 3: tokens to their experts, and back
#
# Expert e has `capacity` places for each rank's tokens, and the first tokens get them. Rank r of n has the E / n
# experts from r E / n on. The budget is two calls of `exchanged`, which pass gradients back. A token without a place
# gets zeros, and places without a token hold zeros. One way: number the tokens of each expert in order,
# `F.one_hot(choice, num_experts).cumsum(0) - 1`; number i of expert e, if i < capacity, goes to row e * capacity + i of
# a box [num_experts * capacity, D]. One exchange sends the box out, the other brings it back.


# %% tags=["exercise"]
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    """weight times the expert's output for each token: [t, D].

    x: [t, D], own tokens. choice: [t], the expert of each, 0 to num_experts - 1.
    weight: [t]. run_experts: this rank's experts, to be called once; takes their tokens,
    [ranks, experts of this rank, capacity, D], and returns the same shape.
    """
    ### BEGIN SOLUTION
    n = dist.get_world_size()
    earlier = F.one_hot(choice, num_experts).cumsum(0) - 1
    number = earlier.gather(1, choice[:, None])[:, 0]
    kept = number < capacity
    place = (choice * capacity + number)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    out = weight[kept, None] * back[place]
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], out)
    ### END SOLUTION


# %%
# Expert 0 on rank 0 adds 100, expert 1 on rank 1 adds 200. Rank 0's tokens 1 and 2 both choose
# expert 1, which has one place for them. Expected: [[201.0], [0.0]] and [[103.0], [204.0]].
def small_mixture():
    rank = dist.get_rank()
    x, choice = torch.tensor([[1.0], [2.0]]) + 2 * rank, torch.tensor([1 - rank, 1])
    out = mixture(x, choice, torch.ones(2), lambda boxes: boxes + 100 * (rank + 1), 2, 1)
    return out.tolist()


try_out(small_mixture, ranks=2)

# %% tags=["check"] points=3
check.mixture(mixture)

# %% [markdown]
# (Much of today's code has no fixed places: it sends the counts first, then that number of rows.)
#
# Experts on several ranks are one more axis of the mesh. It cuts the batch, as data does: ranks along *data* and
# *expert* have different tokens. Take `Mesh(data=2, expert=2)`, with the mean of the 4 ranks' losses as the loss.
# Attention's gradients are summed over 4 ranks and divided by 4. And an expert's gradients? Over how many ranks must
# they be summed after backward, and by which number divided?

# %%
my_guess_experts = lab15.guess("ranks summed over, and divisor", None, interactive, "count")


# %%
def mixture_gradients(is_alone):
    """The gradients of one expert matrix of a small GPT with 4 experts, 2 for a token."""
    box = Mesh(data=2, expert=2)
    gpt = GPT(GPTConfig(4, 16, 4, vocab_size=32, max_seq_len=16), dtype=torch.float64)
    model = parallel.with_experts(gpt, num_experts=4, k=2)
    tokens = (torch.arange(8 * 17) ** 2 % 31).view(8, 17)
    if not is_alone:
        model = parallel.ExpertParallel(box.group("expert")).parallelize(model)
        tokens = tokens.chunk(4)[dist.get_rank()]
    next_token_loss(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    summed = model.blocks[0].mlp.experts.up.grad.clone()
    if not is_alone:
        dist.all_reduce(summed, group=box.group("data"))
    return summed.cpu()


whole = launch(mixture_gradients, True, ranks=1).values[0]
for rank, own in enumerate(launch(mixture_gradients, False, ranks=4).values):
    times = (own / whole[2 * (rank % 2) :][:2]).mean()  # 2 of the 4 experts
    print(f"rank {rank}: summed over data, {times:.6f} times one device's gradient")
my_guess_experts.reveal(lab15.ANSWERS["experts"])  # the ranks along data; the losses

# %% [markdown]
# Two ranks hold a copy of an expert: the sum is over *data*, 2 ranks. But through the exchange each copy has processed
# the tokens of all ranks of its expert group: the sum covers 4 losses, so it is divided by 4. With a division by 2
# training still works: with SGD the experts learn twice as fast; Adam hides it, and clipping uses a wrong norm.

# %% [markdown]
# How much does an expert axis cost? Each rank has 8192 tokens of width 4096, each goes to 2 of 16 experts of hidden
# width 14,336. Must its ranks be inside a node, like tensor's, or may they be across, like data's?

# %%
my_guess_place = lab15.guess(
    'where expert ranks belong ("inside" or "across")', None, interactive
)

# %% [markdown]
# Simulated, one layer in both passes on more and more ranks (*exposed*: not hidden behind compute):

# %%
MOE = parallel.ExpertSizes(tokens=8192, d_model=4096, d_ff=14_336, num_experts=16, k=2)
for n in [1, 2, 4, 8, 16]:
    cost = studies.expert_cost(MOE, machine, n)
    print(f"{n:2}: compute {1e3 * cost.compute_s:.1f}, exposed {1e3 * cost.exposed_s:.2f} ms")
my_guess_place.reveal(lab15.ANSWERS["place"])

# %% [markdown]
# Every layer has two exchanges in forward and two in backward, and nothing is computed during them: their time is
# exposed inside a node too, and several times as long when ranks are on two nodes (16 here, if a node has 8). So,
# like tensor, expert belongs inside the node. If both do not fit, tensor goes first, and expert must hide its
# messages: send one half of the batch while the other is computed (*further*). DeepSeek-V3 has 64 expert ranks on 8
# nodes, and no tensor axis at all.

# %% [markdown] minutes=4
# ## Busy experts
#
# The choice of experts is learned, and nothing makes it even. Recorded: a small GPT with 8 experts, 2 for each token,
# in 400 steps on real text. How many times the mean number of tokens does the busiest expert of the second layer get at
# the end, without balancing? (With 2 of 8 for each token, the maximum is 4 times.)

# %%
my_guess_busiest = lab15.guess("busiest over mean (1 to 4)", None, interactive, "times")

# %%
first = lab15.recorded_expert_runs()["nothing"][0]
counts = [of_step[1] for of_step in first.counts]  # of the second layer
lab15.show(lab15.figure_expert_load(counts, list(first.steps), "Without balancing"))
my_guess_busiest.reveal(max(counts[-1]) / (sum(counts[-1]) / 8))

# %% [markdown]
# Nearly 4 times: almost every token chooses it. All ranks wait for the busiest one, and with a fixed capacity most of
# its tokens are dropped. An *auxiliary loss* (Switch) penalizes uneven choices; DeepSeek-V3 mainly adds a *bias* to
# each expert's score instead, which grows if the expert gets too few tokens and affects only the choice. ("Further:
# balancing" has the loads, dropped choices and losses with both.)

# %% [markdown] tags=["further"] minutes=3
# ## Further: other ways to split a sequence
#
# There are two other ways to split a sequence. *Gather*: every rank first gets all keys (Llama 3 does so: few key-value
# heads make it cheap). *Ulysses* (Jacobs et al., 2023) changes the cut by an all-to-all: from some tokens of all heads
# to all tokens of some heads. Which of the ways is closest to equal shares of the work?

# %%
my_guess_way = lab15.guess('closest ("ring", "gather" or "ulysses")', None, interactive)

# %%
lengths = [8192, 32_768, 131_072, 262_144]
found = studies.context_efficiencies(LONG, machine, 8, lengths)
title = f"Attention on 8 ranks of {cluster}"
lab15.show(lab15.figure_context_times(lengths, found, title))
my_guess_way.reveal(lab15.ANSWERS["way"])

# %% [markdown]
# Ulysses, at every length; but it needs a head for each rank. A ring has no such limit, and hides its messages, but
# needs long pieces. So with more ranks than heads both are combined: Ulysses inside the node, a ring across (Fang and
# Zhao, 2024).

# %% [markdown] tags=["further"] minutes=3
# ## Further: a measured ring
#
# A public benchmark of 2024 ran three rings on 8 H800, with 8,192 tokens on each, and gives the share of the best time
# that each reached. The best is 8 times the time of one GPU for its own 8,192 tokens, as there are 8 times as many
# pairs for each GPU. Counting pairs gives 53% for contiguous, 100% for zigzag and nearly 100% for striped. Which shares
# do you expect in the measurement?

# %%
my_guess_rings = lab15.guess("both passes (zigzag, striped)", None, interactive, "%")

# %%
import pandas as pd

counted, table = studies.counted_efficiencies(), {}
for row in studies.PUBLISHED_RINGS[:2]:
    kind = "forward" if row.forward_only else "both passes"
    predicted = studies.predicted_efficiencies(row)
    for order in counted:
        shares = [counted[order], predicted[order], row.efficiencies[order]]
        table[f"{kind}, {order}"] = [f"{share:.0%}" for share in shares]
both = next(row for row in studies.PUBLISHED_RINGS if not row.forward_only)
my_guess_rings.reveal([100 * both.efficiencies[order] for order in ("zigzag", "striped")])
pd.DataFrame(table, index=["pairs", "predicted", "measured"]).T

# %% [markdown]
# Equal pairs are not enough; the longer the pieces, the less the rest matters. *Predicted* includes this, and the speed
# of the benchmark's kernel. For striped it is too high. We think that this is the reason: striped needs a causal kernel
# in every round, zigzag in one, and such a kernel was slower per pair than a full one.

# %% [markdown] tags=["further"] minutes=5
# ## Further: balancing
#
# The recorded runs with and without balancing: load and dropped choices of the last 50 steps, mean of three seeds and
# two layers, and the held-out loss in nats per byte.

# %%
import pandas as pd

runs = lab15.recorded_expert_runs()
table = {}
for name in ("nothing", "auxiliary loss", "bias"):
    of_name = {"dropless": runs[name], "capacity": runs[f"{name}, capacity"]}
    busiest = [sum(run.imbalance[-5:]) / 5 for run in of_name["dropless"]]
    dropped = [sum(run.dropped[-5:]) / 5 for run in of_name["capacity"]]
    table[name] = {
        "busiest over mean": f"{sum(busiest) / len(busiest):.2f}",
        "dropped, capacity 1.25": f"{sum(dropped) / len(dropped):.0%}",
    }
    for kind, each in of_name.items():
        losses = [run.final_loss for run in each]
        table[name][f"loss, {kind}"] = f"{sum(losses) / len(losses):.2f}"
dense = [run.final_loss for run in runs["dense"]]
print(f"a dense model with the same FLOPs: a loss of {sum(dense) / len(dense):.2f}")
pd.DataFrame(table).T

# %% [markdown]
# Without balancing a capacity of 1.25 times the mean drops four in ten choices. Balance improves speed: without
# dropping it makes the loss slightly worse here, and it improves the loss only if tokens would be dropped. In so short
# a run experts bring hardly any gain over the dense model.

# %% [markdown] tags=["further"] minutes=2
# ## Further: copies of busy experts
#
# If some experts stay busy, for example when a trained model serves, place copies of them on other ranks (DeepSeek's
# EPLB): 8 experts on 4 ranks, with room for 3 on each, packed so that the busiest rank has little. (This is a simple
# rule, not the best one: a rank may get two copies of one expert.)

# %%
loads = counts[-1]
placed_experts = {
    "in order": parallel.place_in_order(8, 4, 3),
    "with copies": parallel.place_balanced(loads, 4, 3),
}
for name, one in placed_experts.items():
    print(f"{name:12} {one.ranks}: busiest rank {one.imbalance(loads):.2f} times the mean")
each = {name: one.rank_loads(loads) for name, one in placed_experts.items()}
lab15.show(lab15.figure_rank_loads(each, title="Tokens of each rank"))

# %% [markdown] tags=["further"] minutes=3
# ## Further: overlap exchange and compute
#
# The four exchanges of a layer wait for each other. Cut the tokens in two halves: send one half while the experts
# process the other. (DeepSeek-V3 does so with two micro-batches when it serves; in training it pairs one's forward with
# the other's backward.) The cost: products of half as many rows.

# %%
import pandas as pd

table = {}
for n in (4, 8, 16):
    for way, parts in {"plain": None, "halves": 2}.items():
        cost = studies.expert_cost(MOE, machine, n, parts=parts)
        row = {"exposed": cost.exposed_s, "layer": cost.time_s}
        table[f"{n} ranks, {way}"] = {k: lab15.format_quantity(v, "s") for k, v in row.items()}
pd.DataFrame(table).T

# %% [markdown]
# On `dgx-h100` halves gain nothing inside a node: less is exposed, but the smaller products lose as much (8 ranks) or
# more (4). Across nodes they are faster.

# %% [markdown] tags=["further"] minutes=4
# ## Further: a small mixture on few GPUs
#
# A mixture of 64 experts, 8 for each token (OLMoE: each token uses 1.3 of 6.9 billion parameters). The dense model with
# the same FLOPs per token has 1.3 billion. Is the mixture as fast? It learns more from each token (its authors needed a
# third of the tokens), but a step has extra costs. On 8 GPUs, what is its speed over the dense model's?

# %%
my_guess_speed = lab15.guess("speed over the dense model's", None, interactive, "times")

# %%
import pandas as pd

compared = studies.against_dense(studies.OLMOE, cluster, [1, 2, 4, 8, 16, 32])
lab15.show(lab15.figure_expert_times(compared, title=f"OLMoE and dense models on {cluster}"))
my_guess_speed.reveal({one.num_gpus: one.speed for one in compared}[8])
table = {}
for one in compared:
    table[f"{one.num_gpus} GPUs"] = {
        "speed, over equal FLOPs": one.speed,
        "over equal parameters": one.speed_over_total,
    }
pd.DataFrame(table).T.map(lambda x: "does not fit" if pd.isna(x) else f"{x:.2f}")

# %% [markdown]
# Three reasons: all parameters have states (16 to 18 bytes each), used or not, so it does not fit on one GPU, and on
# two only with small micro-batches; each expert has few rows, but all its weights must be read; tokens are copied,
# sorted and sent. Its authors measured 0.63 on 128 H100: their plan had no expert axis, so all 6.9 billion were
# gathered for each micro-batch (Muennighoff et al., 2024). Its steps are slower, but it needs fewer steps.

# %% [markdown] tags=["further"] minutes=14
# ## Further: a block for some tokens
#
# If tokens can choose among MLPs, they can also choose none. In a *mixture of depths* (Raposo et al., 2024) a block
# processes only the C tokens of a sequence with the highest scores of its router; the others skip it on the residual
# stream. Then the block costs C / T of its full cost, its attention even less, and its shapes are known in advance.
#
# ### Exercise 4: a block for some tokens
#
# The router learns only if its score multiplies the block's output.


# %% tags=["exercise"]
def some_tokens(x, scores, block, capacity):
    """x + score * block(x) for the `capacity` tokens of highest score, x for all others.

    x: [T, D]. scores: [T]. block: [capacity, D] to [capacity, D]; its tokens must
    be in the order of the sequence. Of equal scores the first is chosen.
    """
    ### BEGIN SOLUTION
    best = torch.sort(scores, descending=True, stable=True).indices[:capacity]
    chosen = best.sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
    ### END SOLUTION


# %%
# Tokens 1 and 3 are chosen: 2 + 2 * 20 = 42, and 4 + 1 * 40 = 44.
four = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
try_out(some_tokens, four, torch.tensor([0.0, 2.0, -1.0, 1.0]), lambda x: 10 * x, 2)

# %% tags=["check"] points=2
check.some_tokens(some_tokens)

# %% [markdown]
# The library's `with_depths` makes such blocks. Train three small GPTs of 4 layers on text: a dense one, one where
# every other block takes an eighth of the tokens, and a dense one with half of the layers. How do their losses order?

# %%
my_guess_loss = lab15.guess('"dense", "depths", "shallow", from low to high', None, interactive)


# %%
import pandas as pd


def block_flops(tokens, d_model=64):
    return 24 * tokens * d_model**2 + 4 * tokens**2 * d_model


SHORT = 64  # tokens of a sequence
layers = {"dense": 4, "depths": 4, "shallow": 2}
models = {
    name: GPT(GPTConfig(number, 64, 4, vocab_size=256, max_seq_len=SHORT), seed=0)
    for name, number in layers.items()
}
parallel.with_depths(models["depths"], capacity=SHORT // 8, every=2)
flops = {name: len(model.blocks) * block_flops(SHORT) for name, model in models.items()}
flops["depths"] = 2 * block_flops(SHORT) + 2 * block_flops(SHORT // 8)
rows, losses = {}, {name: lab15.trained(model, steps=40) for name, model in models.items()}
for name in models:
    last = sum(losses[name][-10:]) / 10
    share = f"{flops[name] / flops['dense']:.0%}"
    rows[name] = {"FLOPs of the blocks": share, "loss, last 10 steps": f"{last:.3f}"}
my_guess_loss.reveal()
pd.DataFrame(rows).T

# %% [markdown]
# So few steps of so small a model show that it learns, not which one is best. (The authors' models reached the loss of
# dense ones for the same training FLOPs, with fewer FLOPs per token.) One difficulty remains. Whether a token is among
# the best of its sequence depends on later tokens, which a model that generates text does not have yet. Give each model
# 64 tokens, then only the first 32 of them: are the 32 predictions the same?

# %%
seen = next(lab15.text_batches())[:, :SHORT]
with torch.no_grad():
    for name, model in models.items():
        off = (model(seen)[:, :32] - model(seen[:, :32])).abs().max().item()
        print(f"{name:8} predictions of the first half differ by {off:.1e}, at most")
scores = torch.randn(SHORT, generator=torch.Generator().manual_seed(0))
best = {t: set(scores[:t].topk(8).indices.tolist()) for t in (32, SHORT)}
lost = sorted(best[32] - best[SHORT])
print(f"8 best of 32: {sorted(best[32])}; no longer among 64: {lost}")

# %% [markdown]
# The dense models agree: a causal mask hides later tokens. With depths they do not. The paper tries two remedies: a
# second loss that pushes the router's scores of chosen tokens above 0, or a small predictor of the choice. Then each
# token is decided by its own score alone.

# %% [markdown] tags=["further"] minutes=30
# ## Further: two of four
#
# In a *2:4 sparse* matrix at most 2 of 4 neighbours in a row are not zero. GPUs of NVIDIA from Ampere on (compute
# capability 8.0) multiply such a matrix by a dense one at up to twice the dense rate. They keep two numbers of each
# four, and a 2-bit index for each. With 2 bytes per number that is 2 x 2 bytes + 4 bits instead of 8 bytes: 9/16.

# %%
from dataclasses import replace
from itertools import product

from lablib import phase
from lablib.hardware import DEVICES

for each in ("V100-32GB-SXM2", "A100-80GB-SXM", "RTX-4090", "H100-80GB-SXM", "B200-SXM"):
    capability = DEVICES[each].compute_capability
    print(f"{each:16} {capability}: {'2:4 sparse' if capability >= (8, 0) else 'dense alone'}")

PAIRS = [row for row in product((0.0, 1.0), repeat=4) if sum(row) == 2]
BLOCKS = [
    block
    for block in product(PAIRS, repeat=4)
    if all(sum(c) == 2 for c in zip(*block, strict=True))
]
print(f"{len(PAIRS)} patterns of a row; {len(BLOCKS)} of 4 x 4 with two in each row and column")


def row_mask(w):
    """1 for the two largest of each four in a row of w [R, C], otherwise 0."""
    groups = w.abs().unflatten(1, (-1, 4))
    return torch.zeros_like(groups).scatter(2, groups.topk(2).indices, 1.0).flatten(1)


def both_ways_mask(w):
    """Of each 4 x 4 block of w the pattern that keeps most: 2:4 in rows and in columns."""
    patterns = torch.tensor(BLOCKS, dtype=w.dtype)
    blocks = w.abs().unflatten(0, (-1, 4)).unflatten(2, (-1, 4)).transpose(1, 2)
    best = torch.einsum("mnij,pij->mnp", blocks, patterns).argmax(-1)
    return patterns[best].transpose(1, 2).flatten(2).flatten(0, 1)


w = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
for name, mask in {"rows": row_mask(w), "rows and columns": both_ways_mask(w)}.items():
    print(f"{name}: keeps {(w.abs() * mask).sum() / w.abs().sum():.1%} of the sum of |w|")
    print(mask[:4, :8].int())

# %% [markdown]
# A linear layer has three products: Y = X W^T, and in backward dX = dY W and dW = dY^T X. The zeros must be along the
# dimension that is summed. That is along W's rows in the first product, and along its columns in the second: only a
# mask for both, a *transposable* one (Hubara et al., 2021), makes both fast. The third has no W: it stays dense, unless
# a gradient is pruned, too (Hu et al., 2024). So which share of a layer's time is saved at most, by two of three
# products at twice the rate? And by the simulator, with GELU between two layers, and the masks made again in each step?

# %%
my_guess_saved = lab15.guess("saved: at most, and simulated", None, interactive, "%")


# %%
import pandas as pd


class Linear24(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        with phase("Y"):
            return x @ w.T

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        with phase("dX"):
            of_x = grad @ w
        with phase("dW"):
            return of_x, grad.T @ x


def mlp_step():
    x, up, down = (
        torch.zeros(shape, dtype=torch.bfloat16, requires_grad=True)
        for shape in [(8192, 4096), (14_336, 4096), (4096, 14_336)]
    )
    out = Linear24.apply(F.gelu(Linear24.apply(x, up)), down)
    out.backward(torch.zeros_like(out))


def seconds_by_product(on):
    seconds = {}
    for span in launch(mlp_step, ranks=1, cluster=on, fidelity="shapes").timeline:
        kind = span.phase if span.phase in ("Y", "dX", "dW") else "GELU, sums"
        seconds[kind] = seconds.get(kind, 0.0) + span.duration_s
    return seconds


gpu = find_cluster(cluster)
twice = {name: 2 * peak for name, peak in gpu.device.peak_flops_per_s.items()}
dense = seconds_by_product(gpu)
fast = seconds_by_product(gpu.replace(device=replace(gpu.device, peak_flops_per_s=twice)))
# In each step: read the weights, 2 bytes each, and write a form of 9/16 for each product.
weights_s = 2 * 14_336 * 4096 * 2 / gpu.device.memory_bandwidth_bytes_per_s
rows = {"dense": dense | {"masks": 0.0}}
rows["2:4 in rows"] = dense | {"Y": fast["Y"], "masks": weights_s * (1 + 9 / 16)}
rows["2:4 in rows and columns"] = rows["2:4 in rows"] | {"dX": fast["dX"]}
rows["2:4 in rows and columns"]["masks"] = weights_s * (1 + 2 * 9 / 16)
whole_s, table = sum(dense.values()), {}
for name, row in rows.items():
    table[name] = {part: lab15.format_quantity(seconds, "s") for part, seconds in row.items()}
    table[name]["saved"] = f"{1 - sum(row.values()) / whole_s:.0%}"
simulated_s = sum(rows["2:4 in rows and columns"].values())
print("at most 33%: half of two thirds")
my_guess_saved.reveal([33.3, 100 * (1 - simulated_s / whole_s)])
pd.DataFrame(table).T

# %% [markdown]
# (The masks' time is their bytes alone; real kernels reach less than twice the rate.) And the loss? A mask that is made
# once and kept works for a trained model that is trained again (Mishra et al., 2021). In training from the start, the
# mask is made from the current weights in each step, and the gradient passes to all weights, also to the masked ones:
# *straight-through*. Then the mask may change to and fro. *SR-STE* (Zhou et al., 2021) also lets masked weights decay.
# Here are all products of the MLPs of a small GPT. Which loss is lowest, which highest?

# %%
my_guess_masked = lab15.guess(
    '"dense", "straight-through", "SR-STE", "kept", from low to high', None, interactive
)

# %%
from torch.nn.utils.parametrize import register_parametrization


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, mask, decay):
        ctx.save_for_backward(w, mask)
        ctx.decay = decay
        return w * mask

    @staticmethod
    def backward(ctx, grad):
        w, mask = ctx.saved_tensors
        return grad + ctx.decay * (1 - mask) * w, None, None


class TwoOfFour(torch.nn.Module):
    def __init__(self, decay=0.0, kept=None):
        super().__init__()
        self.decay, self.kept = decay, kept  # kept: a mask made once; None: again in each step

    def forward(self, w):
        if self.kept is not None:
            return w * self.kept
        return Masked.apply(w, both_ways_mask(w.detach()), self.decay)


def small_gpt(way):
    model = GPT(GPTConfig(2, 64, 4, vocab_size=256, max_seq_len=64), seed=0)
    for linear in [one for block in model.blocks for one in (block.mlp.up, block.mlp.down)]:
        masks = {"straight-through": TwoOfFour(), "SR-STE": TwoOfFour(decay=2e-4)}
        masks["kept"] = TwoOfFour(kept=both_ways_mask(linear.weight.detach()))
        if way != "dense":
            register_parametrization(linear, "weight", masks[way])
    return model


steps = 40 if quick else 400
ways = ["dense", "straight-through", "SR-STE", "kept"]
losses = {way: lab15.trained(small_gpt(way), steps) for way in ways}
means = {
    way: [sum(each[i : i + 10]) / 10 for i in range(0, steps, 10)]
    for way, each in losses.items()
}
look = {"y_unit": "nats per byte", "title": "A small GPT with 2:4 sparse MLPs"}
lab15.show(
    lab15.figure_lines(
        range(10, steps + 1, 10), means, "step", "loss, mean of 10 steps", **look
    )
)
print("last 10 steps:", {way: round(sum(each[-10:]) / 10, 3) for way, each in losses.items()})
my_guess_masked.reveal()

# %% [markdown]
# With 40 steps a mask that follows the weights costs nothing visible (2.91 nats, as dense; differences of 0.01 are
# chance). A mask kept from the first, random weights is worse: 2.94. Long runs decide; Hu et al. train dense at the
# end.

# %% [markdown] minutes=3
# ## Summary
#
# - Parts of an attention are merged by their log-sum-exp, so that keys can go round a ring during compute.
# - A causal mask makes contiguous pieces unequal; zigzag pieces have equal pairs, and the cost of rounds remains.
# - Experts: tokens are sent to them and back. A copy of an expert processes the tokens of its whole group, so its
#   gradient is summed over the copies and divided by the number of all ranks. Experts are busy unequally, and all wait
#   for the busiest one.
# - A ring hides its messages and may go across nodes; exchanges of tokens hide nothing, and belong inside.

# %% [markdown]
# ### Sources
#
# - H. Liu, M. Zaharia, P. Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023, arXiv
#   2310.01889. W. Brandon et al., "Striped Attention", 2023, arXiv 2311.09431. S. Jacobs et al., "DeepSpeed Ulysses:
#   System Optimizations for Enabling Training of Extreme Long Sequence Transformer Models", 2023, arXiv 2309.14509. J.
#   Fang, S. Zhao, "USP: A Unified Sequence Parallelism Approach for Long Context Generative AI", 2024, arXiv
#   2405.07719.
#   The benchmark: zhuzilin/ring-flash-attention, README.md, 2024.
# - M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv 1805.02867: merging.
# - N. Shazeer et al., "Outrageously Large Neural Networks", 2017, arXiv 1701.06538. D. Lepikhin et al., "GShard", 2020,
#   arXiv 2006.16668. W. Fedus, B. Zoph, N. Shazeer, "Switch Transformers: Scaling to Trillion Parameter Models with
#   Simple and Efficient Sparsity", 2021, arXiv 2101.03961: experts, capacity.
# - S. Rajbhandari et al., "DeepSpeed-MoE", 2022, arXiv 2201.05596: the groups over which gradients are averaged.
# - DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437 (the bias; sections 3.2.1 and 3.4.1: overlap of
#   exchange and compute); deepseek-ai/EPLB, README.md, 2025. N. Muennighoff et al., "OLMoE: Open
#   Mixture-of-Experts Language Models", 2024, arXiv 2409.02060 (further). D. Raposo et al., "Mixture-of-Depths:
#   Dynamically Allocating Compute in Transformer-Based Language Models", 2024, arXiv 2404.02258 (further).
# - A. Mishra et al., "Accelerating Sparse Deep Neural Networks", 2021, arXiv 2104.08378: 2:4, its bytes and rates. I.
#   Hubara et al., "Accelerated Sparse Neural Training", 2021, arXiv 2102.08124: transposable masks. A. Zhou et al.,
#   "Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch", 2021, arXiv 2102.04010: SR-STE. Y. Hu et
#   al., "Accelerating Transformer Pre-training with 2:4 Sparsity", 2024, arXiv 2404.01847 (further).
# - Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783: keys gathered, zigzag (section 3.3.2).
# - The code: `lablib/parallel/context`, `lablib/parallel/experts`.

# %%
check
