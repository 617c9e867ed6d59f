# %% [markdown]
# # Lab 18: Plan, predict, run, reconcile
#
# **Question.** Can you say before a training begins which loss it reaches, how long it takes, and how much memory?
#
# You get a *brief*: bounds of a model, a corpus, a cluster and a budget. You choose a plan, predict numbers and lock
# them. Then you train a small model for real, simulate a step of the large one, and explain the differences.
#
# **Prerequisites.** Labs 01 and 16; helpful: labs 02, 03, 04 and 05. **Time.** 57 minutes, without the report: it is a
# *further* section. A capstone on another brief takes longer: the summary says how.

# %%
from lablib.labs import lab18

check = lab18.checks_for("18")
lab18.show(lab18.figure_question())

# %% tags=["parameters"]
brief: str = "one-billion"  # one-billion | thirteen-billion | long-context
ranks: int = 2  # ranks of the small run, 1 or 2
backend: str = "sim"  # sim | gloo: the small run on simulated ranks, or on processes here
interactive: bool = True  # widgets, or static figures
quick: bool = True  # 60 steps of the small run, or 100

# %% [markdown] minutes=4
# ## The brief
#
# A loss is the mean of -ln p of the next token, in *nats*. A model that gives all tokens of its vocabulary the same
# probability has the logarithm of their number: the small run has 256 bytes as tokens, so it begins near ln 256 =
# 5.5. The figure above has its first 20 steps. Guess its loss at the end, and which share of the GPUs' peak the large
# training uses.

# %%
project = lab18.Capstone(brief, ranks, backend, quick)
project.table()

# %%
my_guess_loss = lab18.guess("loss of the small run", None, interactive, "nats")
my_guess_share = lab18.guess("share of the peak (of the large run)", None, interactive, "%")

# %% [markdown] minutes=10
# ## Which size?
#
# Training N parameters on D tokens takes 6 N D FLOPs (lab 01). A *scaling law* gives the loss that N and D reach,
# with constants fitted to hundreds of trainings (Hoffmann et al., 2022):
#
# > **loss = E + A / N^alpha + B / D^beta**
#
# E is the entropy of the text, which no model goes below. Here E = 1.82, A = 482, alpha = 0.348, B = 2085 and
# beta = 0.366. A larger model learns more from a token, and sees fewer of them for the same budget.

# %% [markdown]
# ### Exercise 1: the size for a budget
#
# GPU hours and the FLOP/s that each GPU achieves give the FLOPs of the budget. Find the size with the least loss
# between two bounds; any search that comes within 1% of the best size is right. Stuck? Run
# `check.size_for_budget.hint()` in a new cell.


# %% tags=["exercise"]
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    """(N, D) with the least loss(N, D) that the budget pays, smallest <= N <= largest.

    loss: a function of parameters and tokens. Along the budget it falls to one minimum, and
        then rises; it may also only fall or only rise.
    """
    ### BEGIN SOLUTION
    flops = gpu_hours * 3600 * flops_per_s
    count = 2000
    sizes = [smallest * (largest / smallest) ** (i / count) for i in range(count + 1)]
    best = min(sizes, key=lambda size: loss(size, flops / (6 * size)))
    return best, flops / (6 * best)
    ### END SOLUTION


# %%
# By hand: 1 GPU hour at 1 FLOP/s is 3600 FLOPs, so N D = 600. N + D is least at N = D = 24.5.
lab18.try_out(size_for_budget, 1.0, 1.0, lambda n, d: n + d, 1.0, 600.0)

# %% tags=["check"] points=2
check.size_for_budget(size_for_budget)

# %% [markdown]
# The figure has the loss of each size for the budget of your brief, if the GPUs achieve 30%, 40% or 50% of their peak
# (the *utilization*). Where the corpus is too small, tokens are repeated, and count less than new ones. How much loss
# does a size cost that is wrong by a factor of two? And 30% instead of 50%?

# %%
lab18.show(project.figure_sizes())

# %% [markdown]
# The minimum is flat. A model of half the best size loses one or two hundredths of a nat, and is cheaper to use
# afterwards. So a size is chosen for its use, and the budget then gives the tokens. 30% of the peak instead of 50%
# loses about three times as much: the plan, which decides the utilization, matters more than the exact size.

# %% [markdown] minutes=12
# ## Where does a curve end?
#
# A forecast from the first steps decides whether a run is worth its budget. After the warmup, losses of one training
# are close to a power of the step t (Kaplan et al., 2020): E + A / t^a. Three numbers are unknown: E, A and a.

# %% [markdown]
# ### Exercise 2: a forecast
#
# Fit the three numbers to all losses that are given, with the least sum of squared differences, and return the loss at
# a later step. For a fixed a the other two are a straight line through the points (1 / t^a, loss): least squares give
# them. Try many values of a: the check allows 0.005 nats, for which steps of 0.01 in a are enough.


# %% tags=["exercise"]
def forecast(steps, losses, at_step):
    """The loss at `at_step`, by E + A / t^a fitted to `losses` at `steps`.

    steps: ascending whole numbers from 1, ten or more. a is between 0.05 and 1.5.
    """
    ### BEGIN SOLUTION
    import numpy as np

    t, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.05, 1.5, 1451):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
    ### END SOLUTION


# %%
# By hand: 2 + 1 / t, so 2.01 at step 100.
lab18.try_out(forecast, list(range(1, 21)), [2 + 1 / t for t in range(1, 21)], 100)

# %% tags=["check"] points=3
check.forecast(forecast)

# %% [markdown]
# Now the recorded beginning of the small run, from the first figure. The learning rate rises in the first six steps
# (*warmup*), which do not follow the law. What does a forecast from steps 7 to 20 say of step 60? Compare it with the
# library's fit, and decide how far you trust it.

# %%
begun = lab18.FIRST_LOSSES
print(f"the library's forecast: {lab18.forecast(range(7, 21), begun[6:], 60):.2f} nats")
lab18.try_out(forecast, list(range(7, 21)), list(begun[6:]), 60)

# %% [markdown] minutes=11
# ## Which plan?
#
# A plan is a list of fields of `lab train`, each a text such as `"parallel.tensor=2"`:
#
# | field | meaning |
# |---|---|
# | `parallel.tensor` | ranks that split each matrix product |
# | `parallel.pipeline` | ranks that split the layers |
# | `parallel.context` | ranks that split each sequence |
# | `parallel.expert` | ranks that split the experts of a mixture-of-experts model |
# | `parallel.zero_stage` | sharded over the replicas: 0 nothing, 1 optimizer state, 2 + gradients, 3 + parameters |
# | `data.micro_batch` | sequences that a replica processes at a time; all of them, if not given |
# | `memory.recompute` | `none`, or `full`: activations are computed again in backward |
#
# A *replica* has tensor x pipeline x context GPUs: with 2 tensor ranks 64 GPUs are 32 replicas. Expert ranks are
# replicas, too: each has its own sequences. *MFU* is the share of the peak that a step achieves.

# %%
plans = {
    "ZeRO-1": ["parallel.zero_stage=1"],
    "two tensor ranks": ["parallel.tensor=2", "parallel.zero_stage=1"],
    "all recomputed": ["parallel.zero_stage=1", "memory.recompute=full"],
}
project.compare(plans)

# %% [markdown]
# ### Exercise 3: a plan
#
# Another job holds most of the memory. For 1.3 billion parameters on 64 H100 (the brief "one-billion"), find a plan in
# at most 20 GB, by the planner, whose step takes at most 25% longer than the best plan of a search in 80 GB. A step has
# 512 sequences. The cell after the exercise prints both bounds. None of the three plans above is within them; several
# very different plans are.

# %% tags=["exercise"]
### BEGIN SOLUTION
my_plan = ["parallel.zero_stage=1", "data.micro_batch=2"]
### END SOLUTION

# %%
lab18.try_out(lab18.priced, my_plan)  # of any plan for this model

# %% tags=["check"] points=2
check.plan(my_plan)

# %% [markdown]
# Take a plan for your brief, perhaps the same one; with `None` it is the lab's. (The plans above go into the report of
# the *further* section.) The steps are as many as a share of the budget pays, by the planner. The rest is a margin: why
# could a step take longer than planned?

# %%
chosen = None  # or a list, such as my_plan
share = 0.7  # of the budget
print(project.choose(chosen, plans, share))
project.compare({"the plan": project.changes})

# %% [markdown] minutes=9
# ## Predict, then run
#
# Predict four numbers before anything runs: seconds of a large step, memory of a GPU in it, loss of the small run at
# its end, milliseconds of a small step. The first two will be compared with the simulator. The planner is one way to
# them, not the only one: it assumes the software of today's large trainings, while the simulator runs this course's
# trainer, operator by operator. Which of the two needs more memory? For the loss you have a forecast.
#
# Three more numbers are computed: GPU hours from your step, the large loss from the law, the small memory
# from a formula.

# %% [markdown]
# The small run computes with real tensors on both backends, so its losses are the same. Its step is measured with this
# machine's clock. With gloo, two processes compute at the same time: a few tens of milliseconds on two free cores. On
# the simulator two ranks take turns, and each operator is also priced: several times as long. Yours is `backend`.

# %% [markdown]
# **Your own code.** Put functions from earlier labs into `own`, and the small run uses them: `"schedule": wsd` (lab
# 04), `"optimizer_step": adamw_step` (05), `"all_reduce": ring_all_reduce` (08) or `"average_gradients":
# average_gradients` (09). Answers that have passed are in `work/mine/`, and are taken from there.

# %%
own = lab18.own_parts()  # or a dict with functions of yours
print("the learner's own code:", ", ".join(own) or "none, so the library's runs")
print(f"backend of the small run: {backend}")

# %%
my_numbers = None  # or four numbers
predicted = lab18.guess(lab18.ASKED, my_numbers, interactive)
predicted

# %% tags=["instructor"]
predicted.lock(0.35, 30, 2.9, 60)

# %% [markdown]
# Now both run. A *band* is the error that a careful prediction may have: a factor of 1.2 in times and memory of the
# large run, a factor of 2 in the small step, 0.2 nats in the small loss.

# %%
predicted.reveal(project.run(own))

# %%
predicted.reveal(project.loss_figure)

# %%
predicted.reveal(lambda *_: project.compare_guesses(my_guess_loss, my_guess_share, predicted))

# %% [markdown]
# <details><summary>Was the forecast right?</summary>
#
# From 14 steps it was about 0.3 nats too low. Losses of neighbouring steps differ by 0.15, since each batch is other
# text; the exponent is hardly determined, and the first steps fall faster than the later ones. A forecast needs longer
# curves, and several of them.
#
# </details>
#
# <details><summary>Why did the simulator need more memory?</summary>
#
# For the lab's own plan of "one-billion" the planner has 24.7 GB, the simulator 34.5 GB: the course's trainer holds
# parameters in 32 bits (2.6 GB more), keeps 16-bit copies of weights and inputs for backward (activations of 5.1 GB
# more), and has more temporary tensors of logits in its loss (2.2 GB more).
#
# </details>
#
# Is the simulated run over the budget? Then choose again with a smaller `share`, and predict again: a new lock removes
# the earlier runs. You have seen one by then, so say so in the report, if you write it.

# %% tags=["instructor"]
# The memory of this answer.
if brief == "one-billion" and chosen is None:
    planned = project.planned(project.changes).memory_table().loc[0] / 1e9
    seen_gb = lab18.capstone.measured(project.report)["memory_bytes"] / 1e9
    assert (f"{planned['peak_bytes']:.1f}", f"{seen_gb:.1f}") == ("24.7", "34.5")
    print(planned, seen_gb)

# %% [markdown] minutes=9
# ## Reconcile
#
# An error has a cause if it can be put into terms: which part of the sum was too large or too small? A step of 0.35 s
# that was predicted as 0.30 s may be right in its products, and wrong in a transfer that was left out.

# %% [markdown]
# ### Exercise 4: an error in terms
#
# The relative error of a sum, predicted / measured - 1, is a sum itself: each term adds its difference over the
# measured total. Return the terms with their shares, largest size first. A term that one side lacks is 0 there.


# %% tags=["exercise"]
def error_terms(predicted, measured):
    """[(name, share), ...] by falling |share|; the shares add up to the relative error.

    predicted, measured: name -> seconds, perhaps with different names; not changed.
    """
    ### BEGIN SOLUTION
    total = sum(measured.values())
    names = dict.fromkeys([*predicted, *measured])
    shares = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in names}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
    ### END SOLUTION


# %%
# By hand: the total is 10; products are 1 too short, the wait of 2 was left out: -0.1 and -0.2.
seen = {"products": 8.0, "wait": 2.0}
lab18.try_out(error_terms, {"products": 7.0}, seen)

# %% tags=["check"] points=2
check.error_terms(error_terms)

# %% [markdown]
# The next table has the planner's step and the simulated one by kind of work: "products", "attention", "other
# kernels" (limited by memory), "communication" that compute does not hide, and "idle": launches, bubbles and waiting.
# In which one are they farthest apart? Which did your own number include?

# %%
my_guess_kind = lab18.guess("kind of work that is farthest off", None, interactive)

# %%
predicted.reveal(lambda *_: my_guess_kind.reveal(project.farthest_kind()))
predicted.reveal(project.terms_table)


# %%
def my_terms(planned, simulated):
    return {name: round(share, 3) for name, share in error_terms(planned, simulated)}


predicted.reveal(lambda *_: lab18.try_out(my_terms, *project.terms()))

# %% [markdown]
# To test a cause, change one input of the plan (`project.compare`): does the term move as you expect? Then say in one
# sentence why your step was too long or too short: name the term, and which of its inputs you had wrong.

# %% [markdown] tags=["further"] minutes=15
# ## Further: the report
#
# A report makes the choices and errors of this lab readable for others. Write its texts: a reason for each choice, an
# explanation for each error beyond its band (by its name in the table of predictions, such as `small_step_s`), and a
# conclusion.
#
# A *finding* is a number that a reader would question, or a missing text. Of 100 points the program gives 60, and an
# instructor 40 for the texts. Change the texts until no finding is left that you can answer.

# %%
my_reasons = {
    "model": "...",
    "precision": "...",
    "optimizer": "...",
    "batch": "...",
    "recomputation": "...",
    "axes": "...",
    "schedule": "...",
}
my_explanations = {"step_s": "...", "memory_bytes": "..."}
my_conclusion = ""
texts = my_reasons, my_explanations, my_conclusion
predicted.reveal(lambda *_: print(project.explain(*texts)))
predicted.reveal(lambda *_: project.judge())

# %% [markdown]
# With a name the report and its page are written into your work folder, next to the reports of others who use this
# machine. The leader board also has three worked examples, one of them weak: which numbers show it?

# %%
my_name = None  # such as "Ada"
print(predicted.reveal(lambda *_: project.save(my_name)))
project.board()

# %% [markdown] minutes=2
# ## Summary
#
# - A budget in GPU hours is a number of FLOPs; a scaling law turns it into a size, tokens and a loss.
# - The optimum in size is flat. The plan decides how many FLOPs an hour has.
# - A prediction counts if it was stated before the run, and its error has a cause.
# - Several plans are good: state why you take yours.
#
# **On your own.** `lab capstone briefs` lists the briefs, `lab capstone new thirteen-billion report.toml` writes a
# report to fill in, and `lab capstone --help` has the next steps.
#
# ### Sources
#
# - Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv 2001.08361, section 5: loss against steps.
# - Hoffmann et al., *Training Compute-Optimal Large Language Models*, 2022, arXiv 2203.15556.
# - Besiroglu et al., *Chinchilla Scaling: A Replication Attempt*, 2024, arXiv 2404.10102: the constants used
#   here. Their standard errors are 26% of A and 62% of B.
# - Muennighoff et al., *Scaling Data-Constrained Language Models*, 2023, arXiv 2305.16264: repeated tokens.

# %%
check
