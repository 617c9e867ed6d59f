# %% [markdown]
# # Lab 16: What would GPT-3 cost?
#
# **Question.** How many days and dollars does it take to train a model that you cannot try?
#
# Nobody tries a run of a thousand GPUs to learn its price. But a step is a short sum of terms, and each of them can be
# seen in the timeline of a small simulated run. You build that sum, test it on published runs, and then search for the
# cheapest plan.
#
# The lab takes an hour. Folded sections, called *further*, go beyond it.

# %%
from lablib.labs.lab16 import (
    GPT3_FLOPS,
    Prices,
    PublishedRuns,
    checks_for,
    figure_question,
    find_cluster,
    format_quantity,
    guess,
    in_table,
    layer_seconds,
    run_slice,
    show,
    show_source,
    step_seconds,
    try_out,
)

check = checks_for("16")
show(figure_question())

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
# days would that take on 1,024 A100s, GPUs of 2020? And on 10,000 V100s, GPUs of 2017? Lock two guesses; the last
# section has the answer.

# %%
my_guess_a100 = None  # days; or type it into the field
my_guess_v100 = None
questions = {"days on 1,024 A100": my_guess_a100, "days on 10,000 V100": my_guess_v100}
guessed_days = guess(questions, interactive)
guessed_days

# %% tags=["instructor"]
guessed_days.lock(30, 20)

# %%
days_at_peak = {}
for gpus, name in ((1024, "dgx-a100"), (10_000, "dgx-v100")):
    device = find_cluster(name).device
    peak = device.peak("float16")
    days_at_peak[device.name] = f"{GPT3_FLOPS / peak / gpus / 86_400:.3g} days at the peak"
guessed_days.reveal(days_at_peak)

# %% [markdown]
# These are lower bounds: no run reaches the *peak*, the most FLOPs per second that a GPU can do. The share that it
# reaches is its *utilization* (MFU). It depends on the *plan*: how the model and the batch are split over GPUs. So:
# what else takes time in a step?

# %% [markdown] minutes=11
# ## One layer
#
# Start with a slice of GPT-3: 4 of its 96 layers on 64 simulated GPUs. Two *replicas* each process half of the batch
# (lab 09); each is cut into 4 *stages* of one layer (lab 13), and every matrix over 8 *tensor* ranks (lab 12). A
# *micro-batch*, here one sequence of 2,048 tokens, passes the stages at once.

# %%
slice_of_4 = run_slice(cluster, layers=4)
show(slice_of_4.figure_layer())

# %%
seen = slice_of_4.stage(1)  # seconds per micro-batch, forward and backward
rate = seen["FLOPs"] / seen["products"]
peak = find_cluster(cluster).device.peak("bfloat16")
print(f"products reach {format_quantity(rate, 'FLOP/s')}, {rate / peak:.0%} of the peak")
in_table({"timeline": seen})

# %% [markdown]
# *Products* are the matrix products. *Other kernels* (norms, GELU, sums) wait for memory. In an *all-reduce*, 8 GPUs
# add up what each has computed; nothing else runs meanwhile. Two of these terms follow from sizes alone.

# %% [markdown]
# ### Exercise 1: two terms of a layer
#
# *Products.* For each token, the matrices of a layer of width D take 24 D^2 FLOPs in forward, the scores of attention 4
# T D; backward takes twice as much (lab 01). The n ranks share them.
#
# *All-reduces.* Two in forward, two in backward, each of one number of 2 bytes for each token and each of D. A rank
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
try_out(layer_terms, **sizes, flops_per_s=408.0, bytes_per_s=2.0, latency_s=3.0)

# %% tags=["check"] points=2
check.layer_terms(layer_terms)

# %%
show_source(layer_seconds, after=check.layer_terms)

# %% [markdown]
# Now the formula and the timeline, for 8 tensor ranks and for a split that has not been shown. The rate of products is
# the one from above.

# %%
link = find_cluster(cluster).intra
wire = link.bandwidth_bytes_per_s, link.latency_s
table = {}
for n in (8, 4):
    table[f"formula, {n} ranks"] = layer_seconds(2048, 12288, 2048, n, rate, *wire)
    table[f"timeline, {n} ranks"] = run_slice(cluster, layers=4, tensor=n).stage(1)
in_table(table)

# %% [markdown] minutes=10
# ## A step
#
# The other kernels we read off. So a layer has a price, and a stage is the sum of its layers. What is in a whole step?
# Below, 8 layers in 4 stages, 8 micro-batches in the order 1F1B (lab 13), one rank of each stage.

# %%
slice_of_8 = run_slice(cluster, layers=8)
title = "A step: one GPU of each stage"
show(slice_of_8.timeline.figure(ranks=slice_of_8.ranks, title=title))

# %%
stages_s = [slice_of_8.stage_s(stage) for stage in range(4)]
two_layers_s = 2 * slice_of_4.stage_s(1)
in_table({"a micro-batch": {f"stage {i}": seconds for i, seconds in enumerate(stages_s)}})

# %% [markdown]
# Stages 1 and 2 take as long as two layers. Stage 0 also has the embedding, and stage 3 the *head*, a product for each
# word of the vocabulary, and the loss: it is the busiest. While the first micro-batch reaches it and the last one
# returns, it waits: the *bubble*. At the end the two replicas exchange gradients, on the *data axis*.

# %% [markdown]
# ### Exercise 2: a step as a sum
#
# The busiest stage processes m micro-batches. The bubble: each *other* stage's time for one micro-batch (exact if the
# last stage is the busiest, otherwise an upper bound), and a message between all neighbours, there and back. The data
# axis (ZeRO-1, lab 10): a reduce-scatter of gradients, then an all-gather of parameters, 2 bytes for each; in each of
# the two a replica sends (r-1)/r of the bytes.


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
try_out(step_terms, [1.0, 3.0, 2.0], 10, 0.5, params=8, replicas=2, bytes_per_s=4.0)

# %% tags=["check"] points=2
check.step_terms(step_terms)

# %%
inter_bytes_per_s = find_cluster(cluster).inter.bandwidth_bytes_per_s
message_s = 2 * 2048 * 12288 / inter_bytes_per_s
params = (2 * 12 * 12288**2 + 51_200 * 12288) / 8  # 2 layers and the head, on 8 ranks
formula = step_seconds(stages_s, 8, message_s, params, 2, inter_bytes_per_s)
print(f"the timeline's step: {format_quantity(slice_of_8.timeline.makespan_s, 's')}")
in_table({"formula": formula, "timeline": slice_of_8.terms()})

# %% [markdown]
# The terms are there. The timeline's bubble is longer: this program posts a receive only when it needs the data, so the
# busiest stage also waits for a message in each micro-batch. The optimizer we read off.
#
# The *planner* of this project, `lablib.plan`, is the same sum for the software of real runs, with rates measured on
# real machines. It runs nothing. All of GPT-3 on 768 GPUs, with 1,536 sequences in a step:

# %%
prices = Prices(cluster, price)
plan = {"nodes": 96, "tensor": 8, "pipeline": 8, "micro_batch": 1, "zero_stage": 1}
plan["recompute"] = "selective"
show(prices.predict(plan).figure())

# %% [markdown] minutes=8
# ## Five published runs
#
# Do you trust the sum? Test it on runs that others have measured. *Recompute* "full" runs every layer's forward twice,
# to keep less for backward (lab 03); "selective" only attention. *ZeRO-3* (lab 10) splits parameters over replicas, and
# gathers each layer when it is needed.

# %%
runs = PublishedRuns()
runs.table()

# %% [markdown]
# Predict the utilization of each run, in percent: 6 N T FLOPs (N parameters, T tokens of a step) over its seconds and
# over the peak of its GPUs in the precision of column *in*. Then one percentage that you would use for all: that is the
# *naive* estimate, as on the back of an envelope.

# %%
my_percents = [None, None, None, None, None]  # in the order of the table; or the fields
my_percent_for_all = None
asked = {f"{name}, %": own for name, own in zip(runs.names, my_percents, strict=True)}
guessed_percents = guess({**asked, "all of them, %": my_percent_for_all}, interactive)
guessed_percents

# %% tags=["instructor"]
guessed_percents.lock(35, 45, 35, 40, 30, 40)

# %%
guessed_percents.reveal(runs.errors(guessed_percents))

# %% [markdown]
# Recomputation, the bubble and exposed messages differ from run to run. So no single percentage fits, and a sum of
# terms does. Five runs prove little; here are the mean errors of all 296 rows that this project has (`lab validate`).
# The naive estimate takes half of the peak.

# %%
runs.all_errors()

# %% [markdown] minutes=12
# ## A plan for a budget
#
# The budget: GPT-3 within `days`, for as few dollars as possible. Find a plan by hand. The figure has the terms of its
# step, and in its title days and dollars. (*Nodes* have 8 GPUs. The GPUs that tensor and pipeline leave are replicas.)

# %%
prices.explore(interactive)

# %% [markdown]
# Enter your best plan. With a name it is kept in your work folder, next to those of others on this machine. Plans that
# do not fit, or take too long, do not count.

# %%
my_name = None  # such as "Ada"
my_plan = {"nodes": 96, "tensor": 4, "pipeline": 8, "micro_batch": 1, "zero_stage": 1}
my_plan["recompute"] = "full"  # none, selective or full
prices.leader_board(my_name, my_plan, days)

# %% [markdown]
# By hand you tried some ten plans. A program can try all; but if one prediction were slow, a simulation or a real run,
# it must leave most out. The sum helps: every term is positive, so *some of its terms* are a lower bound of the step. A
# plan whose bound is above the best step found so far need not be tried.

# %% [markdown]
# ### Exercise 3: search with a bound
#
# Find the fastest plan. `bound_s(plan)` is cheap, and never above `step_s(plan)`; both are infinite for plans that are
# impossible. The budget: `bound_s` once for each plan, and `step_s` only for plans with a bound below the shortest
# step. In which order must you try them?


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
try_out(cheapest, list(steps), bounds.get, steps.get)

# %% tags=["check"] points=3
check.cheapest(cheapest)

# %%
plans, tried = prices.plans(nodes=96), []


def priced(plan):
    tried.append(plan)
    return prices.seconds(plan)


print(f"{len(plans)} plans for 768 GPUs; the bound: layers and bubble, by exercises 1 and 2")
try_out(cheapest, plans, prices.least_seconds, priced)
print(f"priced: {len(tried)}")

# %% [markdown]
# Half of the plans is a modest saving: most of a step is products, which all plans have. (The planner is fast enough to
# try all: `lablib.plan.search` predicts whole arrays of plans, with more schedules and pieces.) Which number of nodes
# is cheapest? And does ZeRO-3 alone, on replicas without tensor or pipeline, cost much more?

# %%
alone = {"tensor": 1, "pipeline": 1, "zero_stage": 3}
table = {}
for nodes in (24, 48, 96, 192):
    table[f"{nodes} nodes"] = prices.bill(prices.best(nodes))
    table[f"{nodes}, ZeRO-3 alone"] = prices.bill(prices.best(nodes, **alone))
in_table(table, rows=True)

# %% [markdown]
# Dollars hardly depend on the number of nodes, as long as the batch feeds them: twice the GPUs take half the days.
# ZeRO-3 alone is the simplest program, and costs only some percent to some tenths more here. Is that so on every
# machine?

# %% [markdown] minutes=4
# ## What decides?
#
# The best plan again, for 768 GPUs, on machines that you make: the network between nodes, the memory of a GPU, and the
# batch, which decides how many micro-batches hide the bubble. For each control: which way makes the step slower, and
# which term grows? When does the plan itself change?

# %%
prices.explore_machines(interactive)

# %% [markdown]
# <details><summary>Answer</summary>
#
# A slow network lengthens the data axis and the messages of stages; the best plan keeps more inside the node. Little
# memory forces recomputation or more stages. A small batch leaves few micro-batches: the bubble and the data axis are
# then a larger share. Faster than today's, none of the three gains much: products remain.
#
# </details>

# %% [markdown] minutes=8
# ## Why is a plan wrong?
#
# A colleague proposes a plan that takes more than twice as long as the best one. Four of its choices differ: 2 tensor
# ranks (8 are better), 32 stages (4), micro-batches of 4 sequences (2), recompute "full" ("none"). Put *one* right: how
# many seconds of a step do you save, for each of them?

# %%
better = {"nodes": 96, "zero_stage": 1, "tensor": 8, "pipeline": 4, "micro_batch": 2}
better["recompute"] = "none"
wrong = {**better, "tensor": 2, "pipeline": 32, "micro_batch": 4, "recompute": "full"}
my_seconds = [None, None, None, None]  # in the order of `named`; or the fields
named = ("tensor", "pipeline", "micro_batch", "recompute")
asked = {f"{name} right saves, s": own for name, own in zip(named, my_seconds, strict=True)}
guessed_seconds = guess(asked, interactive)
guessed_seconds

# %% tags=["instructor"]
guessed_seconds.lock(10, 10, 2, 10)

# %% [markdown]
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
try_out(explain, {"a": 5, "b": 3}, {"a": 1, "b": 2}, lambda plan: plan["a"] * plan["b"])

# %% tags=["check"] points=3
check.explain(explain)

# %%
guessed_seconds.reveal(prices.explanation(wrong, better))

# %% [markdown]
# The last column names the term of the sum that became shorter. With 2 tensor ranks there are four times as many
# replicas, so each has a quarter of the micro-batches, and a long pipeline waits: the remedy is in one choice, the loss
# in another term. That is why a plan is explained by its terms, and not by rules.

# %% [markdown] minutes=2
# ## The bill
#
# The best plans for the two clusters of the first question, with today's software:

# %%
a100, v100 = Prices("dgx-a100", price), Prices("dgx-v100", price)
table = {"1,024 A100": a100.bill(a100.best(128))}
table["10,000 V100"] = v100.bill(v100.best(1250, batch=1600, precision="float16"))
print(guessed_days)
guessed_days.reveal(in_table(table, rows=True))

# %% [markdown]
# Published estimates are longer: 34 days on 1,024 A100s with the software of 2021 (Narayanan et al.), 14.8 days on
# 10,000 V100s at 24.6 TFLOP/s of each (Patterson et al., 2021). The planner's plans are tuned, on machines that never
# fail; kernels have improved since.

# %% [markdown] minutes=1
# ## Summary
#
# - A step is a short sum: products, other kernels, all-reduces; the bubble and messages; the data axis; the optimizer.
# - Each term can be seen in the timeline of a small run, and holds for a model of any size.
# - Some of the terms are a lower bound, so cost is a search that leaves most plans out.
# - A plan is wrong by a term. Change one choice at a time to find it.
