# %% [markdown]
# # Lab 13: Pipeline parallel
#
# **Question.** Where does the bubble come from?
#
# A model that is too large for one GPU is cut into *stages*, each on a separate GPU. A stage waits for its neighbours:
# this idle time is the *bubble*. You change only the order of the work, and compute the time and the memory of a step
# before it runs.
#
# **Prerequisites.** Lab 09; helpful: labs 01, 03, 04 and 10. **Time.** 60 minutes, without sections called *further*.

# %%
from lablib.labs import lab13

lab13.show(lab13.figure_question())

# %% tags=["parameters"]
backend: str = "sim"  # sim | gloo | nccl
ranks: int = 4  # stages, each on its own GPU, 2 to 8
microbatches: int = 8  # parts of a batch, 1 to 32
real_ranks: int = 2  # stages that run as real processes on this machine, 2 or more
cluster: str = "dgx-h100"  # pcie-a100 | dgx-a100 | dgx-h100 | hgx-h200
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few repeats

# %% [markdown] minutes=7
# ## Stages
#
# A stage holds consecutive layers. Stage 0 reads the text; each stage sends its output, the *activations*, to the next;
# the last computes the loss. Backward goes the other way: each stage sends the gradient of its input to the one before.
# One batch goes through 4 equal stages. Guess: for what share of that time is a stage idle?

# %%
my_guess_one = lab13.guess("share of the time that a stage is idle", None, interactive, "%")

# %%
import torch
import torch.distributed as dist

from lablib import launch, phase
from lablib.models import GPT, next_token_loss
from lablib.pipeline import Costs, read_plan, replay, schedules
from lablib.pipeline.executor import Pipeline, cut

check = lab13.checks_for("13")
check

# %% [markdown]
# The model is a GPT (lab 09): an embedding, *blocks* (its layers), and a *head*, which gives a score to each token of
# the vocabulary. `cut` divides the layers so that the largest stage, counted in FLOPs (operations on numbers), is as
# small as possible. The embedding has almost none, the head more than one block.

# %%
lab13.table_of_stages(ranks, microbatches)

# %% [markdown]
# Now run one batch. A *plan* has a row of actions for each stage; `schedules.gpipe(ranks, 1)` is the plan for one
# batch. `run_plan` does a step of the model by it on the simulated GPUs of `cluster`, with shapes instead of values.
# `measured_costs` reads the seconds of each action from the run; from them `replay` computes the step and its idle
# share.

# %%
one = schedules.gpipe(ranks, 1)
costs = lab13.measured_costs(lab13.run_plan(one, cluster).timeline, one)
lab13.show(lab13.picture(one, costs, "One batch through all stages"))
my_guess_one.reveal(100 * replay(one, costs).bubble_fraction)

# %% [markdown]
# Rank i is the GPU of stage i. F0 is its forward, B0 its backward of batch 0. Backward takes longer: it has twice the
# FLOPs, and writes gradients as large as the weights.

# %% [markdown]
# Below the bars are the *micro-batches* (parts of a batch; here the batch is one) that a stage holds: from F to B it
# keeps the activations that backward needs. The line along the bars is the *critical path*, the chain of actions that
# determines the total time. Only one stage works at a time, so each of p equal stages is idle for 1 - 1/p of the time.

# %% [markdown] minutes=11
# ## Cut the batch
#
# Work on several micro-batches: while stage 1 has the first, stage 0 can begin the second. GPipe runs the forward of
# all micro-batches, then backward of all (Huang et al., 2018). The bubble's share is the idle time of all stages over
# their total time. Guess it.

# %%
my_guess = lab13.guess("bubble of 4 stages and 8 micro-batches", None, interactive, "%")

# %% [markdown]
# The next picture is not a run: here `replay` gets assumed durations, 1 second for F and 2 for B. An action begins when
# its stage is free and its input has arrived.

# %%
gpipe = schedules.gpipe(ranks, microbatches)
lab13.show(lab13.picture(gpipe, title=f"GPipe, {ranks} stages, {microbatches} micro-batches"))
my_guess.reveal(100 * replay(gpipe).bubble_fraction)
print(gpipe)

# %% [markdown]
# The last stage can only begin when the first micro-batch reaches it: the *fill*. When it has ended its last backward,
# the gradient must still go back through all stages: the *drain*. Between the two it never waits. With p stages and m
# micro-batches the step takes (p - 1) F + m (F + B) + (p - 1) B = (m + p - 1)(F + B), and each stage is busy m (F + B).
# So the bubble is (p - 1)/(m + p - 1).

# %% [markdown]
# ### Exercise 1: predict the bubble
#
# That holds for equal stages. Real stages are unequal: the last one has the head. Predict GPipe's bubble for any
# seconds of F and B of each stage; messages take no time. Which stage limits the speed of all forwards? Does the same
# stage limit backward? Stuck? Run `check.bubble.hint()` in a new cell.


# %% tags=["exercise"]
def bubble(forward_s, backward_s, num_microbatches):
    """The bubble of GPipe, a share from 0 to 1: idle over total time, of all stages.

    In double precision, like Python's floats.
    forward_s, backward_s: seconds of each stage for one micro-batch, first stage first.
    """
    ### BEGIN SOLUTION
    passes = (forward_s, backward_s)
    step_s = sum(sum(times) + (num_microbatches - 1) * max(times) for times in passes)
    busy_s = num_microbatches * sum(map(sum, passes))
    return 1 - busy_s / (len(forward_s) * step_s)
    ### END SOLUTION


# %%
lab13.try_out(bubble, [1, 1, 1, 1], [2, 2, 2, 2], 8)  # equal stages: 3/11
lab13.try_out(bubble, [1, 3], [3, 1], 2)  # by hand: 14 seconds, 16 of 28 busy

# %% tags=["check"] points=2
check.bubble(bubble)

# %% [markdown] minutes=11
# ## Memory: one forward, one backward
#
# GPipe holds the activations of all m micro-batches. But the last stage could run the backward of micro-batch 0 as soon
# as its forward is done, and free its memory. *1F1B* does so: a stage first runs forwards, as many as keep the later
# stages busy until its first gradient comes back; then one forward and one backward in turn; and at the end the
# remaining backwards (Narayanan et al., 2019). How many forwards does stage i run first?

# %% [markdown]
# ### Exercise 2: 1F1B
#
# Write the row of one stage as texts, `["F0", "F1", "B0", ...]`. A stage must not hold more than p - i micro-batches,
# and the step must not take longer than GPipe's, for any p and m of at least 1.


# %% tags=["exercise"]
def one_f_one_b(stage, num_stages, num_microbatches):
    """The actions of one stage: "F3" is the forward of micro-batch 3, "B3" its backward."""
    ### BEGIN SOLUTION
    ahead = min(num_stages - 1 - stage, num_microbatches)
    row = [f"F{i}" for i in range(ahead)]
    for i in range(num_microbatches):
        if ahead + i < num_microbatches:
            row.append(f"F{ahead + i}")
        row.append(f"B{i}")
    return row
    ### END SOLUTION


# %%
lab13.try_out(one_f_one_b, 0, 3, 5)  # by hand: F0 F1 F2 B0 F3 B1 F4 B2 B3 B4
lab13.try_out(one_f_one_b, 2, 3, 5)  # the last stage: F0 B0 F1 B1 ...

# %% tags=["check"] points=2
check.one_f_one_b(one_f_one_b)

# %%
one_by_one = schedules.one_f_one_b(ranks, microbatches)
lab13.show(
    lab13.picture(one_by_one, title=f"1F1B, {ranks} stages, {microbatches} micro-batches")
)
for plan, done in ((gpipe, replay(gpipe)), (one_by_one, replay(one_by_one))):
    print(f"{plan.name}: bubble {done.bubble_fraction:.1%}, holds {done.in_flight}")

# %% [markdown]
# The bubble is the same: the last stage works without a pause, between the same fill and the same drain. But stage 0
# holds only p micro-batches for any m. So m can grow until the bubble is small.

# %% [markdown] minutes=16
# ## Run it
#
# A plan is data. One program, the *executor*, runs any plan: each rank does its row, and sends and receives between
# actions. It runs on the simulator, and on real processes. `replay` gets only the duration of each action in the run,
# averaged over the micro-batches, and computes the time of the step.

# %%
run = lab13.run_plan(one_by_one, cluster)
costs = lab13.measured_costs(run.timeline, one_by_one)
expected, happened = replay(one_by_one, costs), lab13.executed(run.timeline, one_by_one)
print(f"replayed: {lab13.format_quantity(expected.makespan_s, 's')}")
print(f"ran:      {lab13.format_quantity(happened.makespan_s, 's')}")
print(f"bubble:   {expected.bubble_fraction:.1%}")

# %% [markdown]
# The two differ a little, because a mean replaces the seconds of each micro-batch. The bubble is larger than
# (p - 1)/(m + p - 1): `cut` made the FLOPs of the stages nearly equal, but the last stage takes longer than its FLOPs
# suggest, because the loss also reads and writes a score for each token of the vocabulary.

# %% [markdown]
# ### Exercise 3: run a row
#
# The library's executor ran the rows above; now write the part of one rank. A message carries numbers, and no autograd
# graph. So each stage has a separate graph, from the tensor that it received to the tensor that it sends. Its backward
# begins with the gradient from the next stage, `y.backward(gradient)`, and ends with the gradient of its input, which
# goes to the stage before. Several micro-batches are *in flight*, between F and B: keep both ends of the graph of each.
#
# You get three functions. `recv(action)` returns what the action needs from a neighbour: for F the input, for B the
# gradient of the output. `stage(action, x)` computes the output. `send(action, tensor)` passes a result on: after F the
# output, after B the gradient of the input. Two ends are special. Stage 0 receives tokens, whole
# numbers without a gradient: after its B it sends nothing. The output of the last stage is its loss, already divided by
# m, so that the losses add up to the mean; its B receives `None`, and `send` only records its loss.


# %% tags=["exercise"]
def run_row(actions, stage, send, recv):
    """Do one rank's row of a plan, and add to `.grad` of the stage's parameters.

    actions: texts such as ["F0", "F1", "B0", ...]; each begins with `recv(action)`.
    stage, send, recv: functions, as described above.
    A tensor is sent without its graph, and not changed later. B frees its micro-batch.
    """
    ### BEGIN SOLUTION
    held = {}
    for action in actions:
        kind, number = action[0], int(action[1:])
        received = recv(action)
        if kind == "F":
            x = received.requires_grad_(received.is_floating_point())
            y = stage(action, x)
            held[number] = x, y
            send(action, y.detach())
        else:
            x, y = held.pop(number)
            y.backward(received)
            if x.grad is not None:
                send(action, x.grad)
    ### END SOLUTION


# %%
lab13.try_out(lab13.run_rows, run_row, gpipe, cluster)
lab13.try_out(lab13.run_rows, run_row, one_by_one, cluster)

# %% tags=["check"] points=3
check.run_row(run_row)

# %% [markdown]
# Your function ran two pipelines: the pictures show each F and B as it happened. Several graphs, one after the other,
# give the gradient of one model, by the chain rule. GPipe and 1F1B take the same time, about as long as the library's
# executor above. But GPipe's stage 0 has all micro-batches in flight, so its peak is higher; both peaks include weights
# and gradients.

# %% [markdown] minutes=5
# ## Fill the bubble
#
# Backward computes two things. The stage before waits for the gradient of the *input*, I. Only the optimizer needs the
# gradient of the *weights*, W. So W can be delayed, into otherwise idle seconds. Take F = I = W = 1. 1F1B idles
# (p - 1)(F + I + W): 9 seconds with 4 stages. Guess how many of them remain when W fills as many as possible, if no
# stage may hold more than stage 0 does with 1F1B, p micro-batches.

# %%
my_guess_idle = lab13.guess("idle time of a stage (1F1B: 9 s)", None, interactive, "s")
split = schedules.zb_h1(ranks, microbatches)

# %%
lab13.show(lab13.picture(split, title=f"ZB-H1, {ranks} stages, {microbatches} micro-batches"))
rows = {}
for plan, done in ((one_by_one, replay(one_by_one)), (split, replay(split))):
    idle = [round(done.makespan_s - busy, 3) for busy in done.busy_s]
    rows[plan.name] = {"step (s)": done.makespan_s, "idle (s)": idle, "holds": done.in_flight}
my_guess_idle.reveal(rows[split.name]["idle (s)"][0])
lab13.in_rows(rows)

# %% [markdown]
# Follow the critical path of *ZB-H1* (Qi et al., 2023). If W is not longer than F or I, the last stage begins after
# (p - 1) F, as before, and never waits. It delays p of its W's, so its last I ends m (F + I) + (m - p) W later. The
# gradient goes back to stage 0 in (p - 1) I, and stage 0 ends with one W. The sum is m
# (F + I + W) + (p - 1)(F + I - W). A stage is busy for the first term, and idle for the second: p - 1 seconds instead
# of 3 (p - 1). Stage 0 holds no more than before; the later stages do. The rest can be filled, too, but costs memory
# ("Further: the rest of the bubble").

# %% [markdown] minutes=8
# ## The bubble simulator
#
# Now try it. Give the last stage more work ("1 1 1 2" in the field of F), slow the messages, set a limit of memory (one
# number, or one for each rank), or choose "your own plan" and type rows. If stages wait for one another in a circle, a
# *deadlock*, the picture shows the circle. *Moment* steps through the plan.

# %%
lab13.bubble_simulator(interactive, stages=ranks, microbatches=microbatches)

# %% [markdown]
# ### Exercise 4: a plan that beats 1F1B
#
# Three stages, four micro-batches, F = I = W = 1. 1F1B takes 18 seconds, and its stages hold 3, 2 and 1 micro-batches.
# ZB-H1 takes 14, and each holds 3:
#
# ```
# rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
# rank 1: F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
# rank 2: F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
# ```
#
# Only the last stage has memory for one more than 1F1B: the limits are 3, 2 and 2. Write a plan that takes at most 15
# seconds, as a text with such lines. A micro-batch is held from F to W. Try it in the simulator above: copy the rows
# to "your own plan", with the limit "3 2 2".


# %% tags=["exercise"]
### BEGIN SOLUTION
my_plan = """
rank 0: F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3
rank 1: F0 F1 I0 W0 F2 I1 W1 F3 I2 W2 I3 W3
rank 2: F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3
"""
### END SOLUTION


# %%
lab13.try_out(lab13.seconds_and_held, my_plan)

# %% tags=["check"] points=2
check.plan(my_plan)

# %% [markdown] tags=["further"] minutes=3
# ## Further: the rest of the bubble
#
# With ZB-H1 stage 0 still idles p - 1 seconds, before its first I. What could it do in this time, and what would that
# cost?

# %%
fuller = schedules.zb_h2(ranks, microbatches)
lab13.show(lab13.picture(fuller, title=f"ZB-H2, {ranks} stages, {microbatches} micro-batches"))
print(f"a step: {replay(split).makespan_s:.0f} s (ZB-H1), {replay(fuller).makespan_s:.0f} s")
print(f"holds: {replay(split).in_flight} (ZB-H1), {replay(fuller).in_flight}")

# %% [markdown]
# *ZB-H2* fills the start as well. Between stage 0's first F and its first I there are p - 1 F's and p - 1 I's of other
# stages. In this time stage 0 does 2 (p - 1) more forwards, 2p - 1 in total: no stage is idle between its first and
# last action. It holds nearly twice as much: zero bubble costs memory.
#
# Yet the step above is no shorter, because the stages begin and end one after another. It is shorter if each stage
# begins its next step without waiting for the others; the paper does so, and undoes a step if its gradients are
# infinite or must be clipped.

# %% [markdown] tags=["further"] minutes=4
# ## Further: a leader board
#
# Each plan, replayed with the limits of exercise 4. Add your own plans, typed as rows; if a plan breaks a rule or a
# limit, the board gives the reason. Can a plan take less than 15 seconds?

# %%
board = {name: schedules.make(name, 3, 4) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")}
if isinstance(my_plan, str):
    board["mine"] = my_plan
lab13.leader_board(board, max_in_flight=(3, 2, 2))

# %% [markdown]
# No plan within these limits takes less. The last stage begins after 2 seconds. It may hold two micro-batches: when F3
# begins, two of the three before must be finished, with their W. So before its last I it does four F, three I and two
# W, and with that I 10 seconds of work. Its last I ends after 2 + 10 seconds, and stage 0's two seconds later; then
# comes a W: 15. (By a search of all plans, the best takes 16 seconds with limits of 3, 2 and 1, 15 with 3, 2 and 3,
# and 14 with 3 on each stage.)

# %% [markdown] tags=["further"] minutes=15
# ## Further: does a plan finish?
#
# Three stages, two micro-batches. Do these rows run to their end? If not, which stages wait for one another in a
# circle? Follow the rows before you look at the picture.

# %%
three_rows = """
rank 0: F0 F1 B0 B1
rank 1: F0 B0 F1 B1
rank 2: F0 F1 B0 B1
"""
lab13.show(lab13.picture(read_plan(three_rows), title="Three rows"))

# %% [markdown]
# Stage 2 runs both forwards before its first backward; stage 1 runs the first backward before its second forward. Each
# waits for the other, and stage 0 for both.

# %% [markdown]
# ### Exercise 5: where it stops
#
# The rows have no I or W, and row i is stage i. F of a stage needs the same F of the stage before, B the same B of the
# next stage; on the last stage B needs its own F. Compute how far each row gets: the replay finds a deadlock in the
# same way.


# %% tags=["exercise"]
def actions_done(rows):
    """Number of actions of each row that run before all are done or no row can go on.

    rows: one list of texts per stage, such as [["F0", "B0"], ["F0", "B0"]].
    """
    ### BEGIN SOLUTION
    done, finished, last = [0] * len(rows), set(), len(rows) - 1
    went_on = True
    while went_on:
        went_on = False
        for stage, row in enumerate(rows):
            while done[stage] < len(row):
                action = row[done[stage]]
                if action[0] == "F":
                    ready = stage == 0 or (stage - 1, action) in finished
                elif stage == last:
                    ready = (stage, "F" + action[1:]) in finished
                else:
                    ready = (stage + 1, action) in finished
                if not ready:
                    break
                finished.add((stage, action))
                done[stage] += 1
                went_on = True
    return done
    ### END SOLUTION


# %%
lab13.try_out(actions_done, [["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]])  # [1, 1]
lab13.try_out(actions_done, [["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]])  # all: [4, 4]

# %% tags=["check"] points=2
check.actions_done(actions_done)

# %% [markdown] tags=["further"] minutes=10
# ## Further: the weight of a micro-batch
#
# The loss of the batch is the *mean* over its tokens, but each micro-batch has its own mean. The sum of m means gives
# gradients m times too large. Adam hides this: it divides by the gradient's size. The library's `step` multiplies the
# loss of each micro-batch by a weight.

# %%
texts = torch.arange(4 * 2 * 17).view(4, 2, 17) * 7 % 64
inputs, targets = list(texts[:, :, :-1]), list(texts[:, :, 1:])


def gradient_of_one():
    alone = GPT(lab13.TINY, seed=0, dtype=torch.float64)
    next_token_loss(alone(torch.cat(inputs)), torch.cat(targets)).backward()
    return float(alone.blocks[0].mlp.up.weight.grad.norm())


def gradient_of_stage_0(inputs, targets, weights):
    whole = GPT(lab13.TINY, seed=0, dtype=torch.float64).to(torch.get_default_device())
    pipeline = Pipeline(
        schedules.one_f_one_b(2, 4), lab13.cut_at(whole, [0, 2]), next_token_loss
    )
    pipeline.step(inputs, targets, weights)
    if dist.get_rank() == 0:
        return float(whole.blocks[0].mlp.up.weight.grad.norm())


wanted = gradient_of_one()
for name, weights in {"weights of 1": [1.0] * 4, "weights of 1/m": [1 / 4] * 4}.items():
    norm = launch(gradient_of_stage_0, inputs, targets, weights, ranks=2).values[0]
    print(f"{name:18s}: norm of a gradient {norm:.6f}, {norm / wanted:.6f} of one GPU's")

# %% [markdown]
# ### Exercise 6: the weight of a micro-batch
#
# 1/m is right if micro-batches have the same number of tokens. In fine-tuning they differ: tokens of the question, and
# the *padding* behind short texts, have no loss. Their target is -100, which PyTorch's cross-entropy leaves out of its
# mean. Give each micro-batch's loss the weight that makes their sum the mean over all tokens that count.


# %% tags=["exercise"]
def loss_weights(targets):
    """One number for each micro-batch: the weight of its mean loss in the loss of the step.

    In double precision, like Python's floats.
    targets: a list of tensors of whole numbers, of any shapes; -100 has no loss.
    Each has at least one token that counts.
    """
    ### BEGIN SOLUTION
    counts = [int((target != -100).sum()) for target in targets]
    return [count / sum(counts) for count in counts]
    ### END SOLUTION


# %%
padded = [torch.tensor([5, 7, -100]), torch.tensor([1, -100, -100])]
lab13.try_out(loss_weights, padded)  # 2 tokens count, and 1: [2/3, 1/3]

# %% tags=["check"] points=1
check.loss_weights(loss_weights)

# %% [markdown] tags=["further"] minutes=16
# ## Further: where to cut
#
# The slowest stage limits the speed, so the cut matters. Below are shares of the FLOPs of the model above: embedding, a
# block, head. Then two cuts, by number of layers and by `cut`, and the bubble of each if B takes twice as long as F:

# %%
model = lab13.meta_model()
layer_flops = [lab13.flops_of(unit, lab13.CONFIG.max_seq_len) for unit in lab13.units_of(model)]
share = [flops / sum(layer_flops) for flops in layer_flops]
by_number = [len(layer_flops) * i // ranks for i in range(ranks)]
rows = {}
for name, parts in {
    "by number": lab13.cut_at(model, by_number),
    "by cost": cut(model, ranks),
}.items():
    of_stage = [
        lab13.flops_of(part, lab13.CONFIG.max_seq_len) / sum(layer_flops) for part in parts
    ]
    plan_costs = Costs(of_stage, [2 * each for each in of_stage])
    done = replay(one_by_one, plan_costs)
    rows[name] = {
        "share of each stage": ", ".join(f"{each:.0%}" for each in of_stage),
        "bubble of 1F1B": f"{done.bubble_fraction:.1%}",
    }
print(
    "embedding, a block, head:",
    ", ".join(f"{each:.1%}" for each in (share[0], share[1], share[-1])),
)
lab13.in_rows(rows)

# %% [markdown]
# ### Exercise 7: split the layers
#
# Cut a row of layers into stages so that the slowest stage takes as little time as possible. Every stage has at least
# one layer.


# %% tags=["exercise"]
def split_layers(costs, num_stages):
    """The number of layers of each stage, in order; they add up to `len(costs)`.

    costs: seconds of each layer, 0 or more. num_stages: 1 to len(costs).
    """
    ### BEGIN SOLUTION
    n = len(costs)
    sums = [sum(costs[:i]) for i in range(n + 1)]
    best = {(0, 0): (0.0, [])}  # (stages, layers) -> seconds of the slowest stage, counts
    for stage in range(1, num_stages + 1):
        for end in range(stage, n + 1):
            options = []
            for begin in range(stage - 1, end):
                if (stage - 1, begin) in best:
                    slowest, counts = best[stage - 1, begin]
                    options.append(
                        (max(slowest, sums[end] - sums[begin]), [*counts, end - begin])
                    )
            best[stage, end] = min(options)
    return best[num_stages, n][1]
    ### END SOLUTION


# %%
lab13.try_out(split_layers, [0, 4, 4, 4, 4, 4, 4, 4, 4, 10], 4)  # slowest 12: 3, 3, 3, 1 is one

# %% tags=["check"] points=2
check.split_layers(split_layers)

# %% [markdown] tags=["further"] minutes=4
# ## Further: several pieces per stage
#
# With v pieces on each stage, assigned in turn, the fill takes 1/v of the time: stage 3 begins when the first of its
# *small* pieces can. *Interleaved* 1F1B divides the idle seconds by v: its bubble is (p - 1)/(vm + p - 1) of the step.
# It sends v times as many messages and holds more (Narayanan et al., 2021). *Breadth-first* runs all micro-batches
# through one piece before the next, which helps ZeRO: each piece is gathered once (Lamy-Poirier, 2022).

# %%
rows = {}
for name in ("1f1b", "interleaved", "breadth-first"):
    for chunks in (1, 2, 4) if name != "1f1b" else (1,):
        plan = schedules.make(name, 4, 8, chunks)
        done = replay(plan, Costs(1 / chunks, 2 / chunks))
        rows[f"{name}, {chunks} per stage"] = {
            "bubble": f"{done.bubble_fraction:.1%}",
            "holds": f"{max(done.in_flight):.2f}",
            "stage 1 sends and receives": 2 * chunks * 8 * 2,
        }
lab13.in_rows(rows)

# %% [markdown] tags=["further"] minutes=5
# ## Further: schedules at equal memory
#
# A fair comparison gives every schedule the same memory. A schedule that would hold too much runs the batch in several
# parts, each with its own bubble.
#
# *V-Half* and *ZB-V* put two pieces of the model on each stage, in a V: the first stage has the first piece and the
# last. *Interleaved* 1F1B assigns small pieces in turn: here 1 to 4 per stage, the number that fits and idles least.
# Take 8 stages and 32 micro-batches. Guess which schedule has the smallest bubble with memory for 8 micro-batches, and
# which with memory for 5.

# %%
my_guess_leaders = lab13.guess(
    "smallest bubble (memory for 8, for 5: two names)", None, interactive
)

# %%
memories = (2, 4, 5, 6, 8, 10, 12, 16, 32)
names = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "v-min", "v-half", "zb-v")
afforded = {memory: lab13.equal_memory(8, 32, memory, names) for memory in memories}
lab13.show(
    lab13.figure_equal_memory(afforded, "Bubble at equal memory: 8 stages, 32 micro-batches")
)
my_guess_leaders.reveal([afforded[memory][0].schedule for memory in (8, 5)])

# %% [markdown]
# ZB-H2 gains nothing over ZB-H1, which needs half the memory: here, too, all stages wait for the last one before the
# next step begins. The V helps: an early piece, which holds activations long, shares a stage with a late piece, which
# holds them briefly, so that all stages hold the same (Qi et al., 2024). And its pieces are half as long, so the fill
# is, too. V-Half is best at 5, ZB-V from 8 on. (*V-Min* needs still less: it is best at 4.)

# %% [markdown]
# Is that fair to 1F1B and ZB-H1, which run in parts at 5? Could they begin with fewer forwards? A micro-batch is on
# stage 0 from its F until its I has come back and its W is done: 8 (F + I) + W = 17 seconds or more. If at most 5 may
# be there at once, at most 5 pass in 17 seconds. That is 15 seconds of work: at least 2 of 17 seconds are idle, 11.8%,
# in any order, with one piece per stage. V-Half idles 9.9%.

# %% [markdown] tags=["further"] minutes=3
# ## Further: all schedules at equal memory, by formula
#
# With F = I = W = 1 a stage works 3m seconds and idles 3 (p - 1) with GPipe and 1F1B, 3 (p - 1)/v with v pieces
# (interleaved, breadth-first), p - 1 with ZB-H1 and ZB-H2, (p - 1)/2 with ZB-V and DualPipe-V (next section), 3
# (p - 1)/2 with V-Half and an even p. With several parts, m is the number of micro-batches of one part; too few
# micro-batches cannot fill ZB-H2's bubble, and the last column includes that. Below, each has memory for 10
# micro-batches, so that interleaved has room for its four pieces.

# %%
rows = {}
for best in lab13.equal_memory(8, 32, 10):
    formula = "none" if best.closed_form is None else f"{best.closed_form:.1%}"
    rows[best.schedule] = {"pieces per stage": best.num_chunks, "parts": best.num_flushes}
    rows[best.schedule] |= {"holds": best.in_flight, "bubble": f"{best.bubble_fraction:.1%}"}
    rows[best.schedule] |= {"by formula": formula}
lab13.in_rows(rows)

# %% [markdown] tags=["further"] minutes=4
# ## Further: DualPipe-V
#
# DeepSeek-V3's DualPipe runs a forward and a backward of different micro-batches as a *pair*: each hides the other's
# *all-to-all*, the exchange of tokens between the ranks of a mixture of experts. Its authors give a bubble of
# (PP/2 - 1)(FB + B - 3W), with FB the seconds of a pair, and PP + 1 activations, for PP = 2p ranks with two copies of
# the weights. DualPipe-V folds it onto p ranks with one copy.
#
# The origin of the terms, for pieces of F, I and W seconds, with W no longer than F and F no longer than I: each stage
# adds F + I - W, as in ZB-H1. It adds another FB - F, since a forward's output waits for the rest of its pair; a W
# fills part of that wait. The sum is FB + I - 2W, and with I = B - W that is FB + B - 3W.
#
# And the activations: a rank has run 2p forwards, each of half its layers, when its first gradient comes. A pair adds
# one more before it frees one: 2p + 1 pieces, the paper's PP + 1. Below, in the first three rows a pair takes as long
# as its parts: nothing is hidden. In the last row one second is hidden.

# %%
for forward_s, input_s, weight_s, pair_s in (
    (1, 1, 1, 3),
    (1, 2, 0.5, 3.5),
    (2, 2, 1, 5),
    (2, 2, 1, 4),
):
    times = {"forward_s": forward_s, "input_s": input_s, "weight_s": weight_s}
    done_s = lab13.replay_pairs(schedules.dualpipe_v(4, 16), Costs(**times), pair_s)
    formula_s = lab13.pairs_bubble_s(4, **times, pair_s=pair_s)
    print(f"F {forward_s}, I {input_s}, W {weight_s}, pair {pair_s}:", end=" ")
    print(f"idle {formula_s:.1f} s by the formula, {max(done_s):.1f} s by replay")
held = replay(schedules.dualpipe_v(4, 16), Costs(0.5)).in_flight
print("micro-batches held:", held, "in pieces:", [2 * each for each in held])

# %% [markdown] tags=["further"] minutes=6
# ## Further: recomputation, dropout, tied weights
#
# The memory of a stage can be reduced in another way: keep only the input, and run forward again in backward (lab 03).
# A model with *dropout* then needs the same random numbers a second time: the executor draws them from a seed for each
# step, piece and micro-batch. (This model has no dropout.) A *tied* head shares its matrix with the embedding, which is
# on another stage: their gradients are summed at the end. Compare "kept" with "recomputed": the same gradient, less
# memory. Tied and not tied are two models, with two gradients.

# %%
texts = torch.arange(4 * 2 * 17).view(4, 2, 17) * 7 % 64
inputs, targets = list(texts[:, :, :-1]), list(texts[:, :, 1:])
norms = {}
for again in (False, True):
    for tied in (False, True):

        def tied_or_not(inputs, targets, again=again, tied=tied):
            shared = lab13.GPTConfig(2, 32, 2, vocab_size=64, max_seq_len=16, tied_head=tied)
            both = GPT(shared, seed=0, dtype=torch.float64).to(torch.get_default_device())
            arguments = {"recompute": again, "seed": 1}
            two = Pipeline(
                schedules.zb_h1(2, 4), lab13.cut_at(both, [0, 2]), next_token_loss, **arguments
            )
            two.step(inputs, targets)
            if dist.get_rank() == 0:
                return float(both.token_embedding.weight.grad.norm())

        launched = launch(tied_or_not, inputs, targets, ranks=2)
        name = f"{'recomputed' if again else 'kept'}, {'tied' if tied else 'two matrices'}"
        peak = lab13.format_quantity(launched.memory.peak_bytes(0), "B")
        norms[name] = {
            "peak of stage 0": peak,
            "gradient of the embedding": f"{launched.values[0]:.9f}",
        }
lab13.in_rows(norms)

# %% [markdown] tags=["further"] minutes=7
# ## Further: predicted and measured
#
# Now two stages on real processes of this computer, connected by *gloo* (lab 09). To *calibrate* is to measure how fast
# they compute and send; it takes half a minute once. `reconcile` predicts the program, runs it several times, and
# compares. A first step, in phase "setup", is a warm-up and is left out: it also finds the shapes of all messages.

# %%
small = lab13.GPTConfig(num_layers=4, d_model=256, num_heads=4, vocab_size=256, max_seq_len=64)


def small_step(batch):
    with phase("setup"):
        device = torch.get_default_device()
        tokens = [torch.zeros(batch, small.max_seq_len, dtype=torch.long, device=device)] * 4
        plan = schedules.one_f_one_b(dist.get_world_size(), 4)
        whole = GPT(small, seed=0).to(device)
        pipeline = Pipeline(plan, cut(whole, plan.num_pieces), next_token_loss)
        pipeline.step(tokens, tokens)
        whole.zero_grad()
        dist.barrier()
    pipeline.step(tokens, tokens)


# %%
real = "nccl" if backend == "nccl" else "gloo"
machine = lab13.this_machine(ranks=real_ranks, backend=real)
flops = 6 * lab13.num_parameters(small) * 16 * 64
batch = lab13.batch_for(machine, 4, flops / real_ranks)  # of a micro-batch; larger on a GPU
there = {"ranks": real_ranks, "backend": real, "cluster": machine, "without": "setup"}
there["fidelity"] = "shapes" if real == "nccl" else "values"  # predict from shapes alone
comparison = lab13.reconcile(small_step, batch, **there, repeats=3 if quick else 7)
lab13.show(comparison.figure())
lab13.print_text(comparison.reading())

# %%
recorded = lab13.recorded_comparison("13")
lab13.print_text(f"{recorded}")

# %% [markdown]
# Open "Numbers of this figure" and find the row "send". Of its 10 messages, 4 bring activations forward and 4 gradients
# back. The other 2 sum the gradient of the embedding over both stages: its matrix is also the head's. The recorded
# makespan is longer than predicted, by more than its noise: which rows are too short?
#
# <details><summary>Answer</summary>
#
# *Exposed* and *idle*: the messages took 5.5 times as long as predicted, and the prediction leaves out the time in
# which Python works between operations.
#
# </details>

# %% [markdown] minutes=2
# ## Summary
#
# - A stage waits until the first micro-batch arrives (fill) and until the last gradient has gone back (drain). With
#   equal stages that is (p - 1)/(m + p - 1) of the step, for GPipe and for 1F1B; unequal stages wait for the slowest.
# - GPipe holds m micro-batches, stage i of 1F1B at most p - i: the same bubble with less memory.
# - Each stage has a separate autograd graph. B begins with the gradient from the next stage, and sends the gradient of
#   its input back; each micro-batch in flight keeps its input and its output.
# - No stage waits for weight gradients, so they fill the bubble. Filling the rest costs memory.
# - The plan and the seconds of its actions determine the time of the step, here to 1%, and the memory of each stage.

# %% [markdown]
# ### Sources
#
# - Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2018, arXiv
#   1811.06965: micro-batches, the bubble (section 2.3).
# - D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019: one forward, one
#   backward (section 3.2); with a flush after each batch: "Memory-Efficient Pipeline-Parallel DNN Training", 2020,
#   arXiv 2006.09503.
# - D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021,
#   arXiv 2104.04473: interleaved 1F1B (section 2.2).
# - J. Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022, arXiv 2211.05953.
# - P. Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241: I and W, ZB-H1, ZB-H2.
# - P. Qi et al., "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362: V-Half, ZB-V.
# - DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437: DualPipe (table 2).
# - The code: `lablib/pipeline`, its plans in `schedules`, the executor in `executor`.

# %%
check
