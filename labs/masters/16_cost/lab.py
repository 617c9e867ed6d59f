# %% [markdown]
# # Lab 16: What would GPT-3 cost?
#
# **Question.** How many days and dollars does it take to train a model that you cannot try?
#
# A run of a thousand GPUs is too expensive to try. But its step is a short sum of terms, and each term can be seen in
# the timeline of a small simulated run. You build that sum, test the planner's longer one on published runs, and then
# search for the cheapest plan.
#
# **Prerequisites.** Labs 01, 10, 12 and 13; helpful: labs 03 and 11. **Time.** 60 minutes, without the folded
# sections, called *further*.

# %%
from lablib.labs import lab16

check = lab16.checks_for("16")
lab16.show(lab16.figure_question())

# %% tags=["parameters"]
cluster: str = "dgx-a100"  # dgx-a100 | dgx-h100 | hgx-h200
days: float = 30.0  # the budget: days until GPT-3 is trained
price: float = 2.0  # dollars per GPU and hour, an assumption
interactive: bool = True  # widgets, or static figures
quick: bool = True  # the lab is as short either way

# %% [markdown] minutes=4
# ## A first guess
#
# GPT-3 has 175 billion parameters and was trained on 300 billion tokens: 3.14e23 FLOPs (Brown et al., 2020). How many
# days would that take on 1,024 A100s, GPUs of 2020? And on 10,000 V100s, GPUs of 2017? Lock two guesses; the section
# "The bill" has the answer.

# %%
my_days = None  # or two numbers, if you have no fields below
guessed_days = lab16.guess(("1,024 A100, days", "10,000 V100, days"), my_days, interactive)
guessed_days

# %% tags=["instructor"]
guessed_days.lock(30, 20)

# %%
at_peak = {}
for gpus, name in ((1024, "dgx-a100"), (10_000, "dgx-v100")):
    peak = gpus * lab16.find_cluster(name).device.peak("float16")
    at_peak[f"{gpus:,} of {name}"] = f"{lab16.GPT3_FLOPS / peak / 86_400:.3g}"
guessed_days.reveal(lab16.in_table({"lower bound: days at the peak": at_peak}))

# %% [markdown]
# The *peak* is the most FLOPs per second that a GPU can do. The share of it that a run reaches is its *utilization*
# (MFU). It depends on the *plan*: how the model and the batch are split over GPUs. Which other work takes time in a
# step?

# %% [markdown] minutes=11
# ## One layer
#
# Start with a slice of GPT-3: 4 of its 96 layers on 64 simulated GPUs. Two *replicas* each process half of the batch
# (lab 09); each is cut into 4 *stages* of one layer (lab 13), and every matrix over 8 *tensor* ranks (lab 12). A
# *micro-batch*, here one sequence of 2,048 tokens, goes through the stages as one piece.

# %%
slice_of_4 = lab16.run_slice(cluster, layers=4)
lab16.show(slice_of_4.figure_layer())

# %%
seen = slice_of_4.stage(1)  # seconds per micro-batch, forward and backward
rate = seen["FLOPs"] / seen["products"]
peak = lab16.find_cluster(cluster).device.peak("bfloat16")
print(f"products reach {lab16.format_quantity(rate, 'FLOP/s')}, {rate / peak:.0%} of the peak")
lab16.in_table({"timeline": seen})

# %% [markdown]
# *Products* are the matrix products. *Other kernels* (norms, GELU, sums) wait for memory. In an *all-reduce*, 8 GPUs
# add up their partial results (lane "tensor"), and compute nothing at that time. Two of these terms follow from sizes
# and the rates of GPU and link.

# %% [markdown]
# ### Exercise 1: two terms of a layer
#
# *Products.* For each token, the matrices of a layer of width D take 24 D^2 FLOPs in forward, the scores of attention 4
# T D; backward takes twice as much (lab 01). The n ranks share them.
#
# *All-reduces.* Two in forward, two in backward, each of tokens x D numbers of 2 bytes. A rank
# sends 2(n-1)/n of these bytes, in 2(n-1) rounds (lab 08). Stuck? Run `check.layer_terms.hint()` in a new cell.


# %% tags=["exercise"]
def layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s):
    """{"products": seconds, "all-reduces": seconds} of a layer, forward and backward.

    tokens: of a micro-batch. width: D. seq_len: T. n: tensor ranks, perhaps 1.
    flops_per_s: the rate of products. bytes_per_s, latency_s: of the link, per round.
    """
    ### BEGIN SOLUTION
    flops = 3 * (24 * width**2 + 4 * seq_len * width) * tokens / n
    sent = 2 * (n - 1) / n * 2 * tokens * width
    all_reduce_s = sent / bytes_per_s + 2 * (n - 1) * latency_s
    return {"products": flops / flops_per_s, "all-reduces": 4 * all_reduce_s}
    ### END SOLUTION


# %%
# By hand: 3 (24 * 4 + 4 * 5 * 2) 2 / 2 = 408 FLOPs, so products take 1 s.
# An all-reduce: 8 B sent, 4 s, and 2 rounds of 3 s; four of them, 40 s.
sizes = {"tokens": 2, "width": 2, "seq_len": 5, "n": 2}
lab16.try_out(layer_terms, **sizes, flops_per_s=408.0, bytes_per_s=2.0, latency_s=3.0)

# %% tags=["check"] points=2
check.layer_terms(layer_terms)

# %% [markdown]
# Now the formula, with the rate of products from above, and the timeline: for 8 tensor ranks, and for a split that has
# not been shown.

# %%
lab16.compare_layers(cluster, rate)

# %% [markdown] minutes=11
# ## A step
#
# The seconds of the other kernels are read from the timeline. So a layer has a price, and a stage is the sum of its
# layers. What is in a whole step? Below, 8 layers in 4 stages, 8 micro-batches in the order 1F1B (lab 13), one rank of
# each stage.

# %%
slice_of_8 = lab16.run_slice(cluster, layers=8)
title = "A step: one GPU of each stage"
lab16.show(slice_of_8.timeline.figure(ranks=slice_of_8.ranks, title=title))
stages_s = [slice_of_8.stage_s(stage) for stage in range(4)]
seconds = {f"stage {stage}": each for stage, each in enumerate(stages_s)}
lab16.in_table({"a micro-batch": seconds | {"two layers": 2 * slice_of_4.stage_s(1)}})

# %% [markdown]
# Stages 1 and 2 take as long as two layers. Stage 0 also has the embedding, and stage 3 the *head*, a product for each
# word of the vocabulary, and the loss: it is the busiest. While the first micro-batch reaches it and the last one
# returns, it is idle: the *bubble*. At the end the two replicas exchange gradients, on the *data axis* (lane "data").

# %% [markdown]
# ### Exercise 2: a step as a sum
#
# *Stage.* The busiest stage processes m micro-batches. *Bubble and messages.* Each *other* stage's time for one
# micro-batch, and a message between all neighbours, there and back. (Exact if the last stage is the busiest in both
# passes, otherwise mostly an upper bound.)
#
# *Data axis* (ZeRO-1, lab 10). A reduce-scatter of gradients, then an all-gather of parameters, 2 bytes for each; with
# r replicas each of them sends (r-1)/r of the bytes in each of the two.


# %% tags=["exercise"]
def step_terms(stages_s, m, message_s, params, replicas, bytes_per_s):
    """Seconds of a step: {"stage": ..., "bubble and messages": ..., "data axis": ...}.

    stages_s: of each stage for one micro-batch, forward and backward. m: micro-batches.
    message_s: one message to a neighbour. params: parameters on a rank.
    """
    ### BEGIN SOLUTION
    slowest, p = max(stages_s), len(stages_s)
    return {
        "stage": m * slowest,
        "bubble and messages": sum(stages_s) - slowest + 2 * (p - 1) * message_s,
        "data axis": 2 * (replicas - 1) / replicas * 2 * params / bytes_per_s,
    }
    ### END SOLUTION


# %%
# By hand: stage 10 * 3 = 30; bubble 1 + 2 + 2 * 2 * 0.5 = 5; data axis 2 * 1/2 * 2 * 8 / 4 = 4.
lab16.try_out(step_terms, [1.0, 3.0, 2.0], 10, 0.5, params=8, replicas=2, bytes_per_s=4.0)

# %% tags=["check"] points=2
check.step_terms(step_terms)

# %%
slice_of_8.compare_terms(cluster)

# %% [markdown]
# The formula leaves out the optimizer, which is short. The timeline's bubble is longer: this program posts a receive
# only when it needs the data, so the busiest stage also waits for a message in each micro-batch.

# %% [markdown]
# The *planner* of this project, `lablib.plan`, is the same sum for the software of real runs, with rates measured on
# real machines. Its *tensor axis* is the all-reduces, *attention* the scores, *launches* the CPU's time to start
# kernels. All 175 billion parameters on 768 GPUs, 1,536 sequences of 2,048 tokens in a step, 6 FLOPs for each parameter
# and token (lab 01): how long does a step take?

# %%
my_guess_step = lab16.guess("a step of GPT-3 on 768 GPUs", None, interactive, "s")

# %%
prices = lab16.Prices(cluster, price)
plan = {"nodes": 96, "tensor": 8, "pipeline": 8, "micro_batch": 1, "recompute": "none"}
my_guess_step.reveal(prices.predict(plan).step_time_s)
lab16.show(prices.predict(plan).figure())

# %% [markdown] minutes=4
# ## Five published runs
#
# Do you trust the planner? Test it on runs that others have measured. *Recompute* "full" runs every layer's forward
# twice, to keep less for backward (lab 03); "selective" only attention. *ZeRO-3* (lab 10) splits parameters over
# replicas, and gathers each layer when it is needed. With 3 *chunks* a stage holds 3 separate groups of layers (lab
# 13).

# %%
runs = lab16.PublishedRuns()
runs.table()

# %% [markdown]
# Predict the utilization of each run, in percent: 6 FLOPs for each parameter and each token of a step, over its seconds
# and over the peak of its GPUs in that precision. Then one percentage that you would use for all: that is the *naive*
# estimate, as on the back of an envelope.

# %%
my_percents = None  # or six numbers
asked = [f"{name}, %" for name in runs.runs]
guessed_percents = lab16.guess([*asked, "one for all, %"], my_percents, interactive)
guessed_percents

# %% tags=["instructor"]
guessed_percents.lock(35, 45, 35, 40, 30, 40)

# %%
guessed_percents.reveal(lambda *_: guessed_percents.compare(*runs.utilizations()))
guessed_percents.reveal(runs.errors)

# %% [markdown]
# <details><summary>Does one percentage fit all runs?</summary>
#
# No. Recomputation, the bubble and exposed messages differ from run to run, and FP8 doubles the peak, but shortens only
# products. A sum of terms fits better.
#
# </details>

# %% [markdown] minutes=13
# ## A plan for a budget
#
# The budget: GPT-3 within `days`, for as few dollars as possible. Find a plan by hand. The figure has the terms of its
# step, and in its title days, dollars and memory. (*Nodes* have 8 GPUs. The GPUs that tensor and pipeline leave are
# replicas.)

# %%
prices.explore(interactive)

# %% [markdown]
# By hand you tried some ten plans. A program can try all; but if one prediction were slow, a simulation or a real run,
# it should leave plans out. The sum helps: no term is negative, so *some of its terms* are a lower bound of the step. A
# plan with a bound above the best step so far need not be tried.
#
# ### Exercise 3: search with a bound
#
# Find the fastest plan. `bound_s(plan)` is cheap, and never above `step_s(plan)`, which is infinite for a plan that is
# impossible or does not fit. The budget: `bound_s` once for each plan, and `step_s` only for plans with a bound below
# the shortest step. In which order must you try them?


# %% tags=["exercise"]
def cheapest(plans, bound_s, step_s):
    """The plan with the shortest step, or None if no step is finite.

    plans: a list of plans, which cannot be compared with <. Not changed.
    """
    ### BEGIN SOLUTION
    best, best_s = None, float("inf")
    bounds = sorted(((bound_s(plan), i) for i, plan in enumerate(plans)))
    for least_s, i in bounds:
        if least_s >= best_s:
            break
        seconds = step_s(plans[i])
        if seconds < best_s:
            best, best_s = plans[i], seconds
    return best
    ### END SOLUTION


# %%
# The bounds are 1, 2 and 4, the steps 5, 3 and 4: the answer is "b", and "c" need not be tried.
bounds, steps = {"a": 1.0, "b": 2.0, "c": 4.0}, {"a": 5.0, "b": 3.0, "c": 4.0}
lab16.try_out(cheapest, list(steps), bounds.get, steps.get)

# %% tags=["check"] points=3
check.cheapest(cheapest)

# %%
prices.try_search(cheapest, nodes=96)  # the bound: layers and bubble, by exercises 1 and 2

# %% [markdown]
# The planner is fast enough to try all: `lablib.plan.search` predicts whole arrays of plans, with more schedules and
# with chunks. Which number of nodes is cheapest? And does ZeRO-3 alone, on replicas without tensor or pipeline, cost
# much more?

# %%
table = {}
for nodes in (24, 48, 96, 192):
    alone = prices.best(nodes, tensor=1, pipeline=1, zero_stage=3)
    table[f"{nodes} nodes"] = prices.bill(prices.best(nodes))
    table[f"{nodes}, ZeRO-3 alone"] = prices.bill(alone)
lab16.in_table(table, rows=True)

# %% [markdown]
# Dollars of the best plan hardly depend on the number of nodes: twice the GPUs take half the days. ZeRO-3 alone is the
# simplest program. It costs more: it recomputes, and with more nodes each GPU has fewer sequences to hide the same
# gathers. Is that so on every machine?

# %% [markdown] minutes=3
# ## What decides?
#
# The best plan again, for 768 GPUs of your cluster, on three machines: a network between nodes that is 20 times slower;
# a quarter of the memory; and a quarter of the batch, which leaves fewer micro-batches to fill the pipeline. How many
# percent does a step take longer *per sequence*, when the planner may choose another plan each time?

# %%
my_guess_machines = lab16.guess(
    "longer: slow network, little memory, small batch (three numbers)", None, interactive, "%"
)

# %%
longer, table = prices.three_machines()
my_guess_machines.reveal(longer)
table

# %% [markdown]
# A slow network costs most: messages are exposed, and the best plan sends fewer bytes between nodes, with fewer
# replicas and more stages. With little memory the planner takes ZeRO-3, recomputation or more stages. A small batch
# leaves a longer bubble and less work to hide messages. (*Further* has controls for any machine.)

# %% [markdown] minutes=11
# ## Why is a plan wrong?
#
# A plan can be wrong in several choices at once. Which of them costs how much?
#
# ### Exercise 4: explain a wrong plan
#
# Compute the explanation: put the choices right one by one, each time the one that makes the step shortest, until the
# plan is the better one. The savings add up to the whole difference. The budget: never price the same plan twice.


# %% tags=["exercise"]
def explain(wrong, better, step_s):
    """[(choice, seconds saved), ...], in the order in which they are put right.

    wrong, better: plans, choice -> value, with the same choices; not changed. Only those that
    differ are in the list. step_s(plan): seconds of a plan, finite.
    """
    ### BEGIN SOLUTION
    plan, now_s, found = dict(wrong), step_s(wrong), []
    left = [name for name in better if wrong[name] != better[name]]
    while left:
        after = {name: step_s({**plan, name: better[name]}) for name in left}
        name = min(after, key=after.get)
        found.append((name, now_s - after[name]))
        plan[name], now_s = better[name], after[name]
        left.remove(name)
    return found
    ### END SOLUTION


# %%
# A step takes a * b seconds. First a, from 15 to 3 s, then b, from 3 to 2 s.
lab16.try_out(explain, {"a": 5, "b": 3}, {"a": 1, "b": 2}, lambda plan: plan["a"] * plan["b"])

# %% tags=["check"] points=3
check.explain(explain)

# %% [markdown]
# A colleague proposes a plan that is much slower than a good one. Four choices differ: 2 tensor ranks (8 are better),
# 32 stages (4), micro-batches of 4 sequences (2), recompute "full" ("none"). In the explanation, how many seconds does
# each save?

# %%
bad = {"nodes": 96, "tensor": 2, "pipeline": 32, "micro_batch": 4, "recompute": "full"}
good = {"nodes": 96, "tensor": 8, "pipeline": 4, "micro_batch": 2, "recompute": "none"}
my_guess_saved = lab16.guess(
    "saved by tensor, pipeline, micro_batch, recompute (four numbers)", None, interactive, "s"
)

# %%
saved, table = prices.explanation(bad, good)
my_guess_saved.reveal([saved[choice] for choice in list(bad)[1:]])
table

# %% [markdown]
# The last column of the answer names the term of the sum that became shorter most. Is it the term that you expected
# from the choice?
#
# <details><summary>Tensor and pipeline</summary>
#
# With 2 tensor ranks there are four times as many replicas, so each has a quarter of the micro-batches, and a long
# pipeline waits: the choice is tensor's, the lost time is in the bubble. With 32 stages there are few replicas, and the
# one head of each serves more micro-batches. So look at the terms; a rule for each choice alone misses this.
#
# </details>

# %% [markdown] minutes=1
# ## The bill
#
# The best plans for the two clusters of the first question, with today's software:

# %%
in_days, table = lab16.first_bills(price)
guessed_days.reveal(lambda *_: guessed_days.compare(*in_days))
guessed_days.reveal(table)

# %% [markdown]
# <details><summary>Published estimates</summary>
#
# They are longer: 34 days on 1,024 A100s, recomputation included (Narayanan et al., 2021), 14.8 days on 10,000 V100s at
# 24.6 TFLOP/s of each (Patterson et al., 2021). The planner's plan for A100s reaches 60% of the peak, more than any of
# the five published runs: it is the best of all plans, on machines that never fail, with kernels that have improved
# since.
#
# </details>

# %% [markdown] tags=["further"] minutes=4
# ## Further: a leader board
#
# Compare your best plan by hand with the plans of others. With a name it is kept in your work folder, next to those of
# others who use this machine. Plans that do not fit, or take too long, do not count.

# %%
my_name = None  # such as "Ada"
# A plan may also have "zero_stage": 3.
my_plan = {"nodes": 96, "tensor": 4, "pipeline": 8, "micro_batch": 1, "recompute": "full"}
prices.leader_board(my_name, my_plan, days)

# %% [markdown] tags=["further"] minutes=22
# ## Further: claims in circulation
#
# Seven claims about large trainings that are passed on without their conditions. Each is recomputed; then comes a
# verdict. **Claim 1:** "GPT-3's state takes more than 300 GB."

# %%
from lablib.plan import Parallel, predict, search

held = {"weights": 2, "weights and gradients": 4, "and Adam, in mixed precision": 16}
lab16.in_table({"GPT-3": {name: f"{175 * each:,} GB" for name, each in held.items()}})

# %% [markdown]
# **Verdict: true, and misleading.** 350 GB are the weights alone, which is enough to *use* the model. A training holds
# eight times as much (lab 10), and activations. **Claim 2:** it ran on "10,000 V100s, 285,000 CPU cores, 800 Gb/s, at
# 3.2 samples per second and GPU, with 78% of memory used."

# %%
best_v100 = lab16.Prices("dgx-v100", price).best(1250, batch=1600, precision="float16")
machine_2020 = lab16.find_cluster("dgx-v100")
sample_flops = lab16.GPT3_FLOPS / 300e9 * 2048
peak_samples = machine_2020.device.peak("float16") / sample_flops
print(f"samples per second and GPU: at the peak {peak_samples:.2g}; the claim is 3.2")
planned = best_v100.batch / best_v100.step_time_s
print(f"the planner's best plan: {planned / best_v100.num_gpus:.2g}, on all GPUs {planned:.0f}")
print(f"its memory: {best_v100.peak_memory_bytes / machine_2020.device.memory_bytes:.0%}")

# %% [markdown]
# **Verdict: in parts.** Microsoft announced 285,000 cores, 10,000 GPUs and 400 Gb/s for each server in May 2020; 800
# counts both directions. 3.2 samples of 2,048 tokens are more than fifty times the peak of a V100; perhaps it was the
# *batch*, 3.2 million tokens. 78% of memory is possible: it depends on the plan. **Claim 3:** "FP8 makes an H100 30 to
# 35% faster."

# %%
table = {}
for model, gpus, batch in (
    ("gpt3-6.7b", 64, 512),
    ("llama-3-70b", 256, 512),
    ("gpt3-175b", 512, 1536),
):
    same = {"gpus": gpus, "context": 1}
    bf16, fp8 = (
        search(model, "dgx-h100", batch, precision=precision, **same).best
        for precision in ("bfloat16", "float8")
    )
    share = bf16.parts["products"] / bf16.step_time_s
    gain = fp8.tokens_per_s / bf16.tokens_per_s - 1
    table[model] = {"products in BF16": f"{share:.0%}", "gain by FP8": f"{gain:+.0%}"}
    table[model]["if only products were twice as fast"] = f"{1 / (1 - share / 2) - 1:+.0%}"
lab16.in_table(table, rows=True)

# %% [markdown]
# **Verdict: true under a condition.** FP8 doubles the rate of products alone. With a share f of the step the gain is 1
# / (1 - f/2) - 1: +30 to 35% means that products take about half. Large dense models on a fast network gain more, small
# or waiting ones less. (The search may find another plan for FP8, and gain more than this.) **Claim 4:** "INT4 gives
# 35% more."

# %%
table = {}
for name in ("dgx-h100", "pcie-a100"):
    rates = {}
    for kind, parts in {"16 bits": (), "INT4 gradients": ("qgZ",)}.items():
        split = Parallel(data=64, zero_stage=3, zero_plus_plus=parts)
        found = predict("gpt3-6.7b", name, split, 64, recompute="full")
        rates[kind] = found.tokens_per_s
    inter = lab16.find_cluster(name).inter.bandwidth_bytes_per_s
    gain = rates["INT4 gradients"] / rates["16 bits"] - 1
    row = {
        "between nodes, each GPU": lab16.format_quantity(inter, "B/s"),
        "gain": f"{gain:+.0%}",
    }
    table[name] = row
lab16.in_table(table, rows=True)

# %% [markdown]
# **Verdict: not for products.** The tensor cores of an H100 have no INT4, so products cannot use it. As a format of
# *messages* (ZeRO++, lab 11) INT4 shortens the exposed part: little on InfiniBand, more than 35% on slow Ethernet.
# **Claim 5:** "Q-GaLore needs 60% less memory."

# %%
params, width, rank = 6.7e9, 4096, 1024
adam = 2 + 2 + 12  # bytes per parameter: weight, gradient, master copy and two states
low_rank = 2 * rank / width + 0.5 * rank / width  # two 8-bit states; a projection in 4 bits
q_galore = 1 + low_rank  # weights in 8 bits; a gradient lives for one layer
table = {}
for activations in (1e9, 30e9, 100e9):
    before, after = params * adam + activations, params * q_galore + activations
    row = {
        "AdamW": lab16.format_quantity(before, "B"),
        "Q-GaLore": lab16.format_quantity(after, "B"),
    }
    table[f"activations {lab16.format_quantity(activations, 'B')}"] = row
    row["less"] = f"{1 - after / before:.0%}"
lab16.in_table(table, rows=True)

# %% [markdown]
# **Verdict: a number without a baseline.** Of the states it saves about 90% against AdamW in mixed precision, less
# against 8-bit Adam; of the whole, any number below that, as activations stay (Zhang et al., 2024: a model of 7 billion
# parameters in 16 GB). **Claim 6:** "ZeRO-3, FP8 and low rank made GPT-3 30% cheaper."

# %%
h100, three, table = lab16.Prices("dgx-h100", price), {"zero_stage": 3}, {}
cases = {"all plans": {}, "ZeRO-3": three, "low rank (GaLore)": {"optimizer": "galore"}}
cases |= {"FP8": {"precision": "float8"}}
cases["all three"] = {**three, "precision": "float8", "optimizer": "galore"}
first = h100.best(96)
for name, fixed in cases.items():
    found = h100.best(96, **fixed)
    table[name] = {"step": f"{found.step_time_s / first.step_time_s - 1:+.0%}"}
    table[name]["memory"] = lab16.format_quantity(found.peak_memory_bytes, "B")
lab16.in_table(table, rows=True)

# %% [markdown]
# **Verdict: one of three.** Cheaper by FP8, on H100s. ZeRO-3 and low rank save memory; where a plan fits without them,
# they cost time. V100s and A100s have no FP8: GPT-3 of 2020 cannot have used it. **Claim 7:** "3 to 10 times faster,
# with 50 to 80% less memory."

# %%
everything = search("gpt3-175b", "dgx-a100", 1536, nodes=96, context=1)
seconds = sorted(everything.plans.step_time_s[everything.order])
print(
    f"{len(seconds):,} plans fit. The median is {seconds[len(seconds) // 2] / seconds[0]:.1f}"
)
print(f"and the slowest {seconds[-1] / seconds[0]:.1f} times the best.")
table, held_bytes = {}, []
for stage in (0, 1, 2, 3):
    found = predict("gpt3-6.7b", "dgx-a100", Parallel(data=64, zero_stage=stage), 512)
    held_bytes.append(found.peak_memory_bytes)
    row = {"memory": lab16.format_quantity(held_bytes[-1], "B"), "step": found.step_time_s}
    table[f"ZeRO-{stage}"] = row | {"less": f"{1 - held_bytes[-1] / held_bytes[0]:.0%}"}
lab16.in_table(table, rows=True)

# %% [markdown]
# **Verdict: against a bad baseline.** 50 to 80% less memory is ZeRO on tens of GPUs, true against none. 3 to 10 times
# faster is true against a bad plan, or against FP32 without tensor cores; against the median plan it is below 3. Ask:
# against which plan, which precision, how many GPUs?

# %% [markdown] tags=["further"] minutes=3
# ## Further: any machine
#
# The section "What decides?" priced three machines; here you set the network, the memory and the batch. Which term
# grows, and when does the plan itself change? The title has the days of the whole training.

# %%
prices.explore_machines(interactive)

# %% [markdown]
# Better values than today's gain little: products remain.

# %% [markdown] tags=["further"] minutes=5
# ## Further: networks
#
# The same H100s on five networks: an island of 72 GPUs on NVLink, a *fat tree* of InfiniBand, RoCE (Ethernet) with 15
# us of latency for a message, a *dragonfly* (groups of routers, all joined) and a torus. On which is ZeRO-3 alone slow?
# And does latency matter for GPT-3?

# %%
from lablib.plan import search
from lablib.widgets.placement_calculator import NETWORKS, network_of

table = {}
for name in NETWORKS:
    same = {"gpus": 576, "context": 1}
    found = search("gpt3-175b", network_of(name), 1152, **same).best
    alone = search(
        "gpt3-175b", network_of(name), 1152, tensor=1, pipeline=1, zero_stage=3, **same
    )
    inter = network_of(name).inter
    row = {
        "latency": inter.latency_s,
        "per GPU": lab16.format_quantity(inter.bandwidth_bytes_per_s, "B/s"),
    }
    row |= {"best": str(found.parallel), "step": found.step_time_s}
    table[name] = row | {"ZeRO-3 alone": alone.best.step_time_s}
lab16.in_table(table, rows=True)

# %% [markdown]
# Bandwidth between nodes decides, not latency: the messages of a large model are long. A good plan sends little between
# nodes; ZeRO-3 alone gathers all parameters for each micro-batch. The dragonfly's links are slower here, and in a torus
# a message crosses many links, which others use at the same time.

# %% [markdown] tags=["further"] minutes=5
# ## Further: other accelerators
#
# 512 of each, the best plan. (The planner uses a chip's peak, memory, bandwidth and links. Less tuned software, such
# as the first for a new chip, does not reach these numbers.)

# %%
from lablib.plan import search

table = {}
for name in ("dgx-a100", "dgx-h100", "hgx-h200", "mi300x", "tpu-v4"):
    found = search("gpt3-175b", name, 1536, gpus=512, context=1).best
    device = lab16.find_cluster(name).device
    row = {
        "memory": lab16.format_quantity(device.memory_bytes, "B"),
        "plan": str(found.parallel),
    }
    row |= {"MFU": f"{found.mfu:.0%}", "step": found.step_time_s}
    table[device.name] = row
lab16.in_table(table, rows=True)

# %% [markdown]
# On GPUs of one generation more memory means fewer stages: less to split, less to send. The TPU has the least memory,
# and takes ZeRO-3. The H200 has the H100's peak, with more and faster memory. Is its prediction right? Two runs of
# Llama 3.1 8B on H200s are published (torchtitan):

# %%
from lablib.plan import predict
from lablib.validation import published_rows, score

table = {}
for run in score([row for row in published_rows() if "titan-h200" in row.id], predict).scored:
    row = {"measured": run.measured.step_time_s, "predicted": run.step_time_s}
    row |= {"memory": lab16.format_quantity(run.measured.memory_bytes, "B")}
    row |= {"predicted memory": lab16.format_quantity(run.memory_bytes, "B")}
    table[f"{run.row.hardware['gpus']} H200"] = row
lab16.in_table(table, rows=True)

# %% [markdown] tags=["further"] minutes=6
# ## Further: a machine that does not exist
#
# A cluster is a TOML file, so you can price machines of the future. Here optical links between nodes, as fast as
# NVLink, and memory with ten times the bandwidth, as computing in memory promises. Guess which of the two saves more,
# then look. What would be needed to halve the step?

# %%
import tempfile
from pathlib import Path

OPTICAL = """[inter]
base = "infiniband-ndr"
name = "optical, assumed"
bandwidth_bytes_per_s = 450e9
latency_s = 1e-6
"""
IN_MEMORY = """[device]
base = "H100-80GB-SXM"
name = "H100, computing in memory"
memory_bandwidth_bytes_per_s = 33e12
"""
machines = {"H100": "", "optical links": OPTICAL, "computing in memory": IN_MEMORY}
machines["both"] = OPTICAL + IN_MEMORY

# %%
table = {}
with tempfile.TemporaryDirectory() as folder:
    for name, text in machines.items():
        file = Path(folder) / "machine.toml"
        file.write_text('base = "dgx-h100"\nunusual = true\n' + text)
        found = lab16.Prices(str(file), price).best(96)
        table[name] = {"step": found.step_time_s, "plan": str(found.parallel)}
        share = found.parts["products"] / found.step_time_s
        table[name]["products"] = f"{share:.0%}"
lab16.in_table(table, rows=True)

# %% [markdown]
# Faster memory saves little: hardly any part of this step waits for memory. Optical links save more, and change the
# plan: compare its axes. But most of a step is products. Only a higher rate of products, or fewer FLOPs, halves it.

# %% [markdown] tags=["further"] minutes=4
# ## Further: energy and money
#
# A GPU at its *thermal design power*, the watts that it may draw. A data center adds cooling and the rest of the
# servers: here half as much again, an assumption. Patterson et al. (2021) estimate 1,287 MWh for GPT-3 on 10,000 V100s,
# from 330 W for each.

# %%
table = {}
for name, name_of, nodes, more in (
    ("10,000 V100", "dgx-v100", 1250, {"batch": 1600, "precision": "float16"}),
    ("1,024 A100", "dgx-a100", 128, {}),
    ("1,024 H100", "dgx-h100", 128, {}),
):
    bill_of = lab16.Prices(name_of, price)
    found = bill_of.best(nodes, **more)
    megawatt_hours = 1.5 * found.energy_j(300e9) / 3.6e9
    row = {"days": bill_of.bill(found)["days"], "energy": f"{megawatt_hours:,.0f} MWh"}
    row["at 0.10 dollars per kWh"] = f"{megawatt_hours * 100 / 1e6:.2g} M dollars"
    table[name] = row | {"GPU hours": f"{found.gpu_hours(300e9) / 1e6:.2g} M"}
lab16.in_table(table, rows=True)

# %% [markdown]
# The energy costs some percent of the rent of the GPUs: the machine is the price. A new generation of GPUs saves
# energy, and a bad plan wastes as much.

# %% [markdown] minutes=2
# ## Summary
#
# - A step is a short sum: products, other kernels, all-reduces; the bubble and messages; the data axis; the optimizer.
# - Each term can be seen in the timeline of a small run, and holds for a model of any size.
# - Some of the terms are a lower bound, so a search can leave plans out, and still find the best.
# - To find why a plan is slow, change one choice at a time and see which term of the sum changes.

# %% [markdown]
# ### Sources
#
# - T. Brown et al., "Language Models are Few-Shot Learners", 2020, arXiv 2005.14165 (table 2.1, table D.1).
# - D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
#   arXiv 2104.04473 (section 5.1: 34 days).
# - D. Patterson et al., "Carbon Emissions and Large Neural Network Training", 2021, arXiv 2104.10350 (table 4).
# - The published runs: Narayanan et al.; V. Korthikanti et al., 2022, arXiv 2205.05198; BigScience's chronicles of the
#   176B model; MosaicML's llm-foundry; torchtitan. Addresses: `published_runs.jsonl` in `lablib/validation`.
# - A. Chowdhery et al., PaLM, 2022, arXiv 2204.02311; Llama Team, Llama 3, 2024, arXiv 2407.21783 (FLOPs).
# - Microsoft, "Microsoft announces new supercomputer, lays out vision for future AI work", 19 May 2020.
# - Z. Zhang et al., "Q-GaLore", 2024, arXiv 2407.08296; G. Wang et al., "ZeRO++", 2023, arXiv 2306.10209.
# - The code: `lablib/plan`, `lablib/validation` and `lablib/labs/lab16.py`.

# %%
check
