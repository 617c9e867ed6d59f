# %% [markdown]
# # Lab 17: What breaks at 3 a.m.?
#
# **Question.** How does a training run survive its failures, and who notices the silent ones?
#
# A run on thousands of GPUs fails every few hours. You write an exact resume, a count of the seconds that failures
# cost, and an alert.
#
# **Prerequisites.** Lab 09; helpful: labs 02, 03 and 04. **Time.** 60 minutes, without *further* sections.

# %%
from lablib.labs import lab17

check = lab17.checks_for("17")
lab17.show(lab17.figure_question())

# %% tags=["parameters"]
ranks: int = 4  # simulated GPUs, 2 to 8
cluster: str = "dgx-h100"  # dgx-a100 | dgx-h100 | hgx-h200
save_s: float = 60.0  # seconds for which a checkpoint stops the training, an assumption
restart_s: float = 600.0  # seconds from a failure to the first step after it, an assumption
interactive: bool = True  # widgets, or static figures
quick: bool = True  # the lab is as short either way

# %% [markdown] minutes=2
# ## A first guess
#
# Llama 3 405B, trained on up to 16,384 GPUs, had 419 unexpected interruptions in 54 days: one every 3.1 hours (Llama
# Team, 2024). A *checkpoint* is a saved state. Saving takes 60 s, a restart 10 minutes. How often would you save, and
# which share of the time is lost to saves, restarts and repeated work?

# %%
my_interval = None  # or two numbers, if you have no fields below
asked = ("between saves, minutes", "lost time, %")
guessed_interval = lab17.guess(asked, my_interval, interactive)
guessed_interval

# %% tags=["instructor"]
guessed_interval.lock(60, 30)

# %% [markdown] minutes=26
# ## Stop and go on
#
# Which state does a run have? Here is a small training. Its loader returns samples in a random order, a new one for
# each epoch, drawn from a separate random number generator, `generator`. The loader's tensors are in the memory of the
# *host*, the computer around the GPU: `"cpu"`.


# %%
import torch
import torch.distributed as dist


class Loader:
    """Batches of 8 samples. Each rank has other samples, in another order."""

    def __init__(self, seed):
        disk = torch.Generator("cpu").manual_seed(dist.get_rank())
        self.data = torch.randn(
            64, 16, generator=disk, device="cpu"
        )  # on disk: the same after a restart
        self.generator = torch.Generator("cpu").manual_seed(seed + 100 * dist.get_rank())
        self.order = torch.empty(0, device="cpu")  # of the samples in this epoch
        self.position = 0  # the next place in it

    def next_batch(self):
        if self.position >= len(self.order):  # a new epoch
            self.order = torch.randperm(64, generator=self.generator, device="cpu")
            self.position = 0
        batch = self.data[self.order[self.position : self.position + 8]]
        self.position += 8
        return batch.to(torch.get_default_device())


# %% [markdown]
# The model has *dropout*, which zeroes random activations; torch's own generator draws them (`torch.get_rng_state` and
# `torch.set_rng_state`; a real GPU has a separate one, in `torch.cuda`). *BatchNorm* keeps running means in *buffers*,
# tensors of a model that are no parameters. A *scheduler* changes the learning rate from step to step, and a *scaler*
# the factor of the loss that FP16 needs. `LossScaler` is lab 02's and `average_gradients` lab 09's: the library's, or
# with `lab run --mine` yours.


# %%
import torch.nn.functional as F
from torch import nn

from lablib.parallel import average_gradients
from lablib.precision import LossScaler, ScaleRule


class Training:
    """A training on one rank; all changing state is in it, or in torch."""

    def __init__(self, seed):
        torch.manual_seed(seed)  # equal weights on all ranks
        hidden = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.1)]
        self.model = nn.Sequential(*hidden, nn.Linear(64, 1))
        torch.manual_seed(seed + dist.get_rank())  # but each has its own dropout
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 200)
        self.scaler = LossScaler(ScaleRule(interval=5))  # doubles after 5 good steps
        self.loader, self.steps = Loader(seed), 0

    def step(self):
        x_BD = self.loader.next_batch()
        loss = F.mse_loss(self.model(x_BD)[:, 0], x_BD.sum(1).sin())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        average_gradients(self.model)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.steps += 1
        return loss.item()


# %% [markdown]
# Now kill a rank. `KillRank(1, at_s)` ends the process of rank 1 at the simulated second `at_s` of a launch, here
# halfway. (`makespan_s` is the time of a whole launch.) How many of the other ranks cannot go on?

# %%
my_guess_waiting = lab17.guess("other ranks that cannot go on", None, interactive, "count")


# %%
from lablib.labs.lab17 import KillRank, launch, try_out


def ten_steps():
    run = Training(seed=1)
    return [run.step() for _ in range(10)]


whole = launch(ten_steps, ranks=ranks, cluster=cluster)
step_s = whole.timeline.makespan_s / 10
try_out(ten_steps, ranks=ranks, cluster=cluster, faults=[KillRank(1, 5 * step_s)])
my_guess_waiting.reveal(ranks - 1)

# %% [markdown]
# They wait in an all-reduce for its part: one dead rank stops all. (On real GPUs `torchrun` notices a process that
# ends, and ends the others; if a rank hangs, they wait until a timeout, by default 10 minutes with NCCL.) So all
# processes start again, and a new process has nothing of the old: it has other random numbers, a new optimizer, and a
# loader at its start.

# %% [markdown]
# ### Exercise 1: exact resume
#
# Write two functions, so that the run goes on as if it had never stopped: the same samples, learning rates, losses and
# weights, to the bit. What does the next step depend on, and the step after the next epoch begins? `model`,
# `optimizer`, `scheduler` and `scaler` have `state_dict()` and `load_state_dict(...)`, a generator `get_state()` and
# `set_state(...)`.

# %% [markdown]
# - Nothing in `saved` may change later: `import copy`, then `copy.deepcopy(...)` copies all of a dict.
# - `resume` leaves `saved` as it was: a checkpoint may be needed twice.
# - No data, no gradients: the check counts bytes. Only tensors, numbers, texts, lists and dicts, as
#   `torch.load(..., weights_only=True)` demands: other objects may run code.
#
# Stuck? Run `check.exact_resume.hint()` in a new cell.


# %% tags=["exercise"]
def save(run):
    """The whole state of `run`, a Training, on this rank: a dict."""
    ### BEGIN SOLUTION
    import copy

    loader, names = run.loader, ("model", "optimizer", "scheduler", "scaler")
    state = {name: getattr(run, name).state_dict() for name in names}
    state |= {"order": loader.order, "position": loader.position, "steps": run.steps}
    state |= {"loader": loader.generator.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return copy.deepcopy(state)
    ### END SOLUTION


def resume(run, saved):
    """Put `saved` into `run`, a new Training with another seed, in a new process."""
    ### BEGIN SOLUTION
    import copy

    saved = copy.deepcopy(saved)
    for name in ("model", "optimizer", "scheduler", "scaler"):
        getattr(run, name).load_state_dict(saved[name])
    run.loader.order, run.loader.position = saved["order"], saved["position"]
    run.loader.generator.set_state(saved["loader"])
    run.steps = saved["steps"]
    torch.set_rng_state(saved["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state(saved["cuda"])
    ### END SOLUTION


# %%
# Six steps, `save`, four steps; and these four again after `resume`: True, if all losses are
# equal to the bit. The check sees more.
try_out(lab17.stop_and_go_on, Training, save, resume, ranks=2)

# %% tags=["check"] points=4
check.exact_resume(save, resume)

# %% [markdown]
# So each rank saves to a file now and then. (A rank may die between two files: all resume from the last step of which
# *all* files are there.) A failure costs the steps since then, and the time of a restart. Saving after every step would
# lose at most one. Why not do that?

# %% [markdown] minutes=14
# ## How often?
#
# Count the seconds of a run. It saves after each `interval_s` seconds of *work*, for `save_s` seconds without training.
# A failure loses all work since the last *finished* save, and costs `restart_s`; a failure in a restart begins it
# again.
#
#     work 10, interval 4, save 1, restart 2, failures at 8 and 9:
#     0 work 4 save 5 work 8 restart 9 restart 11 work 15 save 16 work 18

# %% [markdown]
# ### Exercise 2: seconds of a run
#
# There is no save when the work is done: that is the end.


# %% tags=["exercise"]
def seconds_of_run(work_s, interval_s, save_s, restart_s, failures_s):
    """The second at which the last of `work_s` seconds of work is done.

    failures_s: times of failures in seconds since the start, ascending; perhaps none, and
    perhaps some after the end. All are numbers above 0; save_s and restart_s may be 0.
    """
    ### BEGIN SOLUTION
    now, saved, failures = 0.0, 0.0, list(failures_s)
    while True:
        piece = min(interval_s, work_s - saved)
        is_done = saved + piece >= work_s
        end = now + piece if is_done else now + piece + save_s
        if failures and failures[0] < end:  # also during a restart, which is before `now`
            now = failures.pop(0) + restart_s
        elif is_done:
            return end
        else:
            now, saved = end, saved + piece
    ### END SOLUTION


# %%
try_out(seconds_of_run, 10.0, 4.0, 1.0, 2.0, [8.0, 9.0])  # by hand: 18
try_out(seconds_of_run, 10.0, 4.0, 1.0, 2.0, [])  # by hand: 12

# %% tags=["check"] points=3
check.seconds_of_run(seconds_of_run)

# %% [markdown]
# With random failures, each run is a draw. (A failure is as likely in any second, so the gaps between failures are
# exponential.) Here your function counts three runs of 54 days of *work*, with a failure every 3.1 hours on average.
# Change the interval: where is the least time lost?

# %%
my_save_every_s = 3600.0  # try others
times_s = my_save_every_s, save_s, restart_s
guessed_interval.reveal(lambda *_: try_out(lab17.random_runs, seconds_of_run, *times_s))

# %% [markdown]
# Derive the curve first. Let tau be the seconds of work between saves, delta the seconds of a save, R of a restart, and
# M the mean between failures. Saves cost a share delta / tau. A failure costs half an interval on average, and a
# restart. Write the sum of the shares on paper: at which tau is it least? Then put in the numbers of the first guess.

# %%
my_guess_tau = lab17.guess("tau of the least lost time", None, interactive, "min")

# %%
best = lab17.best_interval(save_s, restart_s)
my_guess_tau.reveal(best[0])
guessed_interval.reveal(lambda *_: guessed_interval.compare(*best))
curve = lab17.figure_intervals
guessed_interval.reveal(lambda tau, _: lab17.show(curve(save_s, restart_s, guessed_s=60 * tau)))

# %% [markdown]
# <details><summary>Answer</summary>
#
# The sum is delta / tau + (tau / 2 + R) / M. Its derivative, -delta / tau^2 + 1 / (2 M), is zero at tau = sqrt(2 delta
# M): Young's interval (1974). R does not matter for it. At the best interval saves and repeated work cost the same.
#
# </details>

# %% [markdown]
# The formula's line is that sum, as a share of the whole time. For long intervals it is too high: where several
# failures fall into one interval, each loses less than half of it. The minimum is flat: half or twice the best interval
# loses about 2% of the time more.

# %% [markdown] minutes=17
# ## Who notices?
#
# Other faults stop nothing. Four runs, each with one fault at step 11 of 20:
#
# - *NaN*: a gradient on rank 1 becomes "not a number".
# - *bit flip*: one becomes about 1e36: a bit of its exponent flips.
# - *slow*: the last rank computes at a third of its speed.
# - *drift*: a weight on rank 1 changes by 0.001.

# %% [markdown]
# The training has no scaler now, as with BF16, so no step is skipped. Four values are monitored: the loss of rank 0,
# the norm of the averaged gradient, the compute time of a step on the slowest rank, and a *hash* of the weights on each
# rank: equal on all ranks only if all bits are. A *sign* is a difference by more than a fifth from a run without
# faults, or hashes that differ. Of the four faults, how many stay hidden from the loss in steps 11 to 20? And from the
# hash?

# %%
my_guess_signs = lab17.guess("hidden from loss, hash (two numbers)", None, interactive, "count")

# %%
signs = lab17.first_signs(lab17.with_faults(Training, ranks, cluster, 10.5 * step_s), steps=20)
my_guess_signs.reveal((signs[["loss", "hash"]] == "no sign").sum())
signs

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three faults are hidden from each. The loss shows NaN alone. The flip's square overflows in Adam's second moment, and
# Adam divides by it: that one weight never moves again, but for weight decay. A slow rank changes no number. The drift
# stays small, and only the hash shows it: NaN and the flip reach all ranks equally. So a run needs several monitors,
# with rules.
#
# </details>

# %% [markdown]
# ### An alert
#
# A made-up step time, once a minute through a night: about 10 s; at 22:40 one long step; from 0:30 to 1:10 a file
# system that is slow in most minutes; from 1:40 to 2:05 a hot GPU; and at 3:12 a *hang*: all ranks wait for a message
# that never comes, and each sample is None. The simplest rule rings at each sample above 12 s: how often?

# %%
my_guess_rings = lab17.guess("rings of the simplest rule", None, interactive, "count")

# %%
samples, limit = lab17.night(), 12.0
lab17.show(lab17.figure_night(samples, limit, {}))
simple = [at_s for at_s, value in samples if value is not None and value > limit]
my_guess_rings.reveal(len(simple))
print(f"the last time at {lab17.clock(simple[-1])}")

# %% [markdown]
# It *flaps*: it rings again and again for one fault, and whoever is called that often stops listening. And it *sleeps*
# during the hang: no value is above the limit. NaN is not above it, either: every comparison with NaN is false.

# %% [markdown]
# ### Exercise 3: an alert that neither flaps nor sleeps
#
# A sample is *bad* if it is None, NaN, or above the limit. A run is bad *since* the first of a row of bad samples. The
# alert rings at the first sample where it has been bad for `hold_s` seconds; then it is silent until the first sample
# where it has been good for `clear_s`, since the first of a row of good samples.

# %% [markdown]
#     limit 12, hold 2, clear 3:  seconds  0  1  2  3  4  5  6  7  8  9 10 11
#                                 samples  9 13 13 13  9 13 13 13  9  9  9  9
#     It rings at 3: bad since 1. Not at 7: good only at 4.
#     From 11 on it may ring again: good since 8.


# %% tags=["exercise"]
def alert(samples, limit, hold_s, clear_s):
    """The times at which it rings, a list.

    samples: pairs (seconds, value), read once, in order, at uneven times.
    hold_s, clear_s: 0 or more.
    """
    ### BEGIN SOLUTION
    rings, is_ringing, bad_since, good_since = [], False, None, None
    for at_s, value in samples:
        if value is None or not value <= limit:
            bad_since, good_since = at_s if bad_since is None else bad_since, None
            if not is_ringing and at_s - bad_since >= hold_s:
                rings.append(at_s)
                is_ringing = True
        else:
            bad_since, good_since = None, at_s if good_since is None else good_since
            if at_s - good_since >= clear_s:
                is_ringing = False
    return rings
    ### END SOLUTION


# %%
example = [9.0, 13.0, 13.0, 13.0, 9.0, 13.0, 13.0, 13.0, 9.0, 9.0, 9.0, 9.0]
try_out(alert, list(enumerate(example)), 12.0, 2, 3)  # by hand: [3]
try_out(alert, [(0, 9.0), (1, None), (2, float("nan")), (3, 13.0)], 12.0, 2, 3)  # by hand: [3]

# %% tags=["check"] points=3
check.alert(alert)

# %% [markdown]
# The same night, with the simple rule and three rules of exercise 3, by the library's answer. Which faults does each
# miss, and how late does it ring for the hang? Change the durations.

# %%
my_rules = [(1, 0), (5, 10), (60, 10)]  # hold_s and clear_s, in minutes: try others
lab17.show(lab17.figure_rules(samples, limit, my_rules))

# %% [markdown]
# All three ignore the one long step. Held for 1 minute and ready at once, the alert flaps. Held for 5 minutes, it rings
# for the hot GPU and the hang, each 5 minutes late, and misses the file system. Held for 60, it misses the hot GPU,
# too: the hang costs 16,384 GPU hours, 33,000 dollars at 2 each. (Prometheus calls the two durations `for` and
# `keep_firing_for`.)

# %% [markdown] tags=["further"] minutes=3
# ## Further: three kills in one run
#
# 60 steps, a checkpoint after every 10, and three kills. Each rank writes a file, with the library's answer to
# exercise 1. The picture has the step that rank 0 reached, against all steps that it computed.

# %%
kills = [KillRank(1, 18 * step_s), KillRank(ranks - 1, 26 * step_s), KillRank(0, 9.5 * step_s)]
train = lab17.train_with_files(Training, ranks)
alone = lab17.train_to_the_end(train, [], ranks, cluster)
log = lab17.train_to_the_end(train, kills, ranks, cluster)
print(f"the same losses, to the bit: {dict(log) == dict(alone)}")
lab17.show(lab17.figure_restarts(log, 60))

# %% [markdown]
# A failure costs at most 10 steps here. (`lab train` saves parts under the names of the whole model: a run may go on
# with another number of ranks.)

# %% [markdown] tags=["further"] minutes=4
# ## Further: faster saves, or fewer failures?
#
# The curve of "How often?" also says which of its inputs is worth improving. Llama 3 reports more than 90% effective
# training time: its saves or restarts must have been faster than assumed here. Which is better, saves in 6 s or half as
# many failures? Predict the time lost at the best interval of each.

# %%
my_guess_losses = lab17.guess("lost: saves in 6 s, half the failures", None, interactive, "%")

# %%
_, quick_saves = lab17.best_interval(6.0, restart_s)
_, few_failures = lab17.best_interval(save_s, restart_s, 2 * lab17.MEAN_S)
my_guess_losses.reveal([quick_saves, few_failures])

# %% [markdown]
# <details><summary>Why?</summary>
#
# Saves and repeated work cost sqrt(2 delta / M): a tenth of delta leaves a third of it, twice the M leaves 0.7.
# Restarts, R / M, do not depend on delta, and are halved with the failures.
#
# </details>

# %% [markdown]
# A machine with more GPUs fails more often. The controls begin with 65,536 GPUs, four times as many as Llama 3 had: a
# failure every 46 minutes. Move them: can faster saves alone bring the time lost at the best interval below 15%?

# %%
lab17.explore_intervals(save_s, restart_s, interactive)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: with saves in 1 s it is 21.5%, as restarts alone cost a fifth of the time. Both must become faster: 5 s for a save
# and 60 s for a restart lose 7.9%. (Change `restart_s` at the top of the lab to see that.)
#
# </details>

# %% [markdown] tags=["further"] minutes=25
# ## Further: a script as it circulates
#
# This training script runs without an error, and eight things in it are wrong. Such lines circulate in real scripts,
# if rarely so many at once. `env` is the environment that `torchrun` sets: here 4 ranks on two nodes.


# %%
from lablib.studies import faulty_script

print(faulty_script.numbered())

# %% [markdown]
# Its configuration is `{"lr": 0.003, "clip": 0.1}`. Recomputing a block in backward (lab 03) should save memory of
# activations. Run it for two steps of two micro-batches. How many of the eight faults show in the timeline, the memory
# and the losses?

# %%
lab17.show(lab17.figure_evidence({}))

# %%
my_guess_seen = lab17.guess("faults in the picture", None, interactive, "count")

# %%
print("two ranks log; no block is recomputed; all ranks have one loss; padding lowers it")
my_guess_seen.reveal(4)

# %% [markdown]
# Here are all eight, measured. Before you read on: which line causes which row?

# %%
lab17.symptom_table({})

# %% [markdown]
# ### Exercise 4: eight repairs
#
# Write a dict of numbers of lines and the texts that replace them, as `{12: "PAD = 0"}`. A text may have several lines,
# and needs no indentation. Imports may be in any line; FP16 remains. The check puts each old line back, alone:
# something must break. It also tries other numbers of ranks and micro-batches.


# %% tags=["exercise"]
# A scale of the loss, a power of two, is undone before clipping.
### BEGIN SOLUTION
repairs = {
    11: 'RECOMPUTE = ["Block"]',
    25: "config = {**DEFAULTS, **given}",
    26: 'rank, num_ranks = int(env["RANK"]), int(env["WORLD_SIZE"])',
    34: """
        from torch.utils.data import DistributedSampler
        sampler = DistributedSampler(texts, num_ranks, rank)
        loader = DataLoader(texts, batch_size=config["batch"], sampler=sampler)
    """,
    42: "loss = F.cross_entropy(logits_BTV.float().flatten(0, 1), labels, ignore_index=PAD)",
    43: '(2.0**16 * loss / config["micro_batches"]).backward()',
    44: "tokens += batch_BT.numel() * num_ranks",
    47: """
        for param in model.parameters():
            param.grad /= 2.0**16
        nn.utils.clip_grad_norm_(model.parameters(), config["clip"])
        optimizer.step()
    """,
}
### END SOLUTION

# %%
try_out(lab17.try_repairs, repairs)

# %% tags=["check"] points=4
check.repairs(repairs)

# %% [markdown]
# No single monitor finds all eight, and none of them is an error. What would have found them *before* the run: a log of
# the configuration as it is used, a count of the recomputed blocks, the indices of the first batch on each rank, and
# the loss of one batch of padding alone.

# %% [markdown] tags=["further"] minutes=14
# ## Further: garbage collection
#
# Python's garbage collector stops a process now and then, each rank at another time. A step waits for the last rank.
# Say that each rank stops in one step of twenty, for the time of a step. With 8 ranks, which share of the steps is
# delayed? And if all ranks stop in the *same* step?

# %%
my_guess_delayed = lab17.guess(
    "delayed steps: separately, together (two numbers)", None, interactive, "%"
)


# %%
def paused_steps(pauses):
    x = torch.zeros(4096, 4096)
    for stops in pauses[dist.get_rank()]:
        for _ in range(10 * (1 + stops)):
            x @ x
        dist.all_reduce(torch.zeros(1))


steps, often = 200, 0.05
dice = torch.Generator("cpu").manual_seed(0)
separately = torch.rand(8, steps, generator=dice, device="cpu") < often
every_20th = torch.arange(steps, device="cpu") % 20 == 0
cases = {"none": separately & False, "separately": separately}
cases["together"] = every_20th.expand(8, steps)

# %%
seconds = {}
for name, pauses in cases.items():
    run = launch(paused_steps, pauses.tolist(), ranks=8, cluster=cluster, fidelity="shapes")
    seconds[name] = run.timeline.makespan_s
table = {name: f"{each / seconds['none'] - 1:+.1%}" for name, each in seconds.items()}
drawn = f"steps in which some rank stops: {separately.any(0).float().mean():.1%} of those drawn"
print(f"longer: {table}; {drawn}; expected: 1 - (1 - q)^n")
my_guess_delayed.reveal([100 * (1 - (1 - often) ** 8), 100 * often])

# %% [markdown]
# A step is fast only if *no* rank stops: with probability (1 - q)^n, 66% for 8 ranks and none in practice for 1,000. So
# large runs turn the automatic collector off, `gc.disable()`, and call `gc.collect()` on all ranks in the same step
# (Megatron-LM: `--manual-gc`; torchtitan: `gc_freq`). Any random pause, of the file system for example, has
# the same effect.

# %% [markdown]
# ### Exercise 5: collect together
#
# Automatic collection is off, so garbage stays until `gc.collect()`. Collecting after every so many steps is too late
# for a rank that makes a lot of it. Write the decision after a step. All ranks collect in the same step, and only
# where some rank has more than `limit_bytes` of garbage. One all-reduce of at most 8 bytes per step is allowed.


# %% tags=["exercise"]
def must_collect(garbage_bytes, limit_bytes):
    """Whether this rank must call gc.collect() now: the same on all ranks, True or False.

    garbage_bytes: of this rank, different on each. limit_bytes: the same on all.
    """
    ### BEGIN SOLUTION
    is_over = torch.tensor(float(garbage_bytes > limit_bytes))
    dist.all_reduce(is_over, op=dist.ReduceOp.MAX)
    return is_over.item() > 0
    ### END SOLUTION


# %%
def one_decision():
    return must_collect([10, 90, 20, 30][dist.get_rank()], 80)


try_out(one_decision, ranks=4)  # True on each

# %% tags=["check"] points=2
check.must_collect(must_collect)

# %% [markdown] tags=["further"] minutes=15
# ## Further: a hang
#
# A well-meant rule: skip a step if its loss is NaN. The loss is NaN on rank 1 alone. How many ranks are done?


# %%
def careful(decide):
    for step in range(3):
        x = torch.ones(4)
        if step == 1 and dist.get_rank() == 1:
            x[0] = torch.nan
        if decide(x.sum()):
            continue  # no gradients of this step
        dist.all_reduce(x)
    return "done"


# %%
my_guess_done = lab17.guess("ranks that are done (of 4)", None, interactive, "count")

# %%
try_out(careful, torch.isnan, ranks=4)
my_guess_done.reveal(1)

# %% [markdown]
# Rank 1 made one call fewer. Its last all-reduce was paired with an earlier one of the others: wrong values, without a
# word. Then the others waited for a call that never came. A hang begins where ranks *disagree*. (For NCCL, PyTorch's
# flight recorder keeps the last calls of each rank.) So ranks must decide together:


# %%
def on_any_rank(loss):
    is_nan = torch.isnan(loss).float()
    dist.all_reduce(is_nan, op=dist.ReduceOp.MAX)
    return is_nan.item() > 0


try_out(careful, on_any_rank, ranks=4)

# %% [markdown]
# Another hang: the wire between two ranks breaks. Who waits? Read the error from its first line, then break another.

# %%
from lablib import DropLink, LinkDownError

my_wire = 0, 1  # try another


def many_steps():
    for _ in range(10):
        dist.all_reduce(torch.ones(2**20))


try:
    launch(many_steps, ranks=4, cluster=cluster, faults=[DropLink(*my_wire, at_s=1e-4)])
except LinkDownError as error:
    print(error)

# %% [markdown]
# All ranks wait, also those with healthy wires, in the same line. The simulator names the link; NCCL would only time
# out, on every rank. So large runs watch the error counters of links, and test all links before they start.

# %% [markdown]
# ### Exercise 6: diagnose a hang
#
# A flight recorder gives, for each rank, its communication calls in order. Find the first place where the ranks
# disagree, and the ranks that differ there from most others. A rank without a call in this place differs, too.

# %% [markdown]
#     calls    rank 0: all_reduce 4 KB, broadcast 1 KB, all_reduce 4 KB
#              rank 1: all_reduce 4 KB, all_reduce 4 KB
#              rank 2: all_reduce 4 KB, broadcast 1 KB, all_reduce 4 KB
#     Place 1: rank 1 differs. In place 2 it has no call, but the cause came before.


# %% tags=["exercise"]
def diagnose(calls):
    """(place, ranks): the first place where ranks disagree, from 0, and those that differ.

    calls: a list for each rank of pairs (operation, bytes), such as ("all_reduce", 4096).
    More than half of the ranks agree in each place. None: all ranks made the same calls.
    """
    ### BEGIN SOLUTION
    for place in range(max(map(len, calls))):
        here = [one[place] if place < len(one) else None for one in calls]
        usual = max(here, key=here.count)
        if differ := [rank for rank, call in enumerate(here) if call != usual]:
            return place, differ
    return None
    ### END SOLUTION


# %%
both, less = [("all_reduce", 4096), ("broadcast", 1024)], [("all_reduce", 4096)]
try_out(diagnose, [both + less, less + less, both + less])  # by hand: (1, [1])
try_out(diagnose, [both, less, both])  # by hand: (1, [1]), as a call is missing

# %% tags=["check"] points=2
check.diagnose(diagnose)

# %% [markdown] tags=["further"] minutes=20
# ## Further: a night with the course's trainer
#
# `lab train` runs the trainer of `lablib.train`, which has none of the eight faults of "Further: a script as it
# circulates". It saves and resumes (exercise 1), skips steps with NaN, and measures the seconds of waiting. Ranks that
# hold the same weights are *replicas*; every few steps it compares them. Here it trains a small GPT for 24 steps on two
# ranks.

# %%
import tempfile

from lablib.train import parse_config
from lablib.train.run import run

SIZES = {
    "num_steps": 24,
    "model": {"num_layers": 1, "d_model": 16, "num_heads": 2, "max_seq_len": 16},
    "data": {"batch_size": 4, "seq_len": 16},
    "monitor": {"every": 8, "communication": True},
}


base = tempfile.TemporaryDirectory()


def production(name, settings, changes=()):
    """As `lab train`; resumes a run of this name. changes: functions that get the trainer."""
    kept = settings["checkpoint"] | {"folder": f"{base.name}/{name}"}
    run(parse_config(SIZES | settings | {"checkpoint": kept}), changes)


# %% [markdown]
# Rank 1 is three times as slow from the middle on. The step of a run like this takes 1.3 ms: which number of the lines
# shows the slow rank?

# %%
from lablib.labs.lab17 import SlowRank

settings = {"checkpoint": {"every": 4}, "health": {"policy": "skip", "drift_every": 8}}
slow = [SlowRank(1, 3.0, from_s=0.016)]
try_out(production, "slow", settings, ranks=2, cluster=cluster, faults=slow)

# %% [markdown]
# Rank 0 waits: its seconds grow, and the loss is the same. Now the disk is full from step 14 on: `RLIMIT_FSIZE` limits
# the bytes of each file that this process writes. From which step does the second launch go on?

# %%
my_guess_disk = lab17.guess("step from which it goes on", None, interactive, "count")

# %%
import resource

soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)


def full_disk(trainer):
    def after(metrics):
        if metrics["step"] == 14:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))

    trainer.on_step.append(after)


try:
    try_out(production, "full disk", settings, [full_disk], ranks=2, cluster=cluster)
finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
try_out(production, "full disk", settings, ranks=2, cluster=cluster)
my_guess_disk.reveal(12)

# %% [markdown]
# The save of step 16 failed, and the one of step 12 is unchanged: a new checkpoint gets its name only when all of its
# files are written. Now the weights of the first layer double on rank 0 after step 10, and the replicas are compared
# every 8 steps. The run stops in step 16. Is its newest checkpoint a good one?


# %%
def drift(trainer):
    def after(metrics):
        if metrics["step"] == 10 and dist.get_rank() == 0:
            with torch.no_grad():
                next(trainer.step.model.parameters()).mul_(2.0)

    trainer.on_step.append(after)


try_out(production, "drift", settings, [drift], ranks=2, cluster=cluster)
try_out(production, "drift", settings, ranks=2, cluster=cluster)

# %% [markdown]
# No: it goes on after step 12 with other losses than above, those of rank 0's wrong weights. The checkpoint of step 12
# was saved before the comparison in step 16, and of replicas rank 0's is saved. How must the two intervals relate?

# %% [markdown]
# ### Exercise 7: settings for a night
#
# Choose four values, for 24 steps, so that each of these nights ends with the losses of a night without faults:
#
# - a rank dies, and at most 6 steps are computed again, with at most 5 saves;
# - weights on rank 0 drift, with at most 5 comparisons;
# - a gradient on rank 1 is NaN: only that step has no update, and at the end the loss is a number.
#
# `keep` is the number of newest checkpoints; the one with the lowest loss is kept, too. The folder has room for two
# checkpoints. `policy` is of steps with NaN: "off", "skip", "roll_back" or "stop".

# %% tags=["exercise"]
### BEGIN SOLUTION
my_settings = {
    "checkpoint": {"every": 5, "keep": 1},
    "health": {"policy": "skip", "drift_every": 5},
}
### END SOLUTION

# %%
try_out(production, "mine", my_settings, ranks=2, cluster=cluster)

# %% tags=["check"] points=3
check.night(my_settings)

# %% [markdown]
# The comparison must come with each save, or before it: `drift_every` divides `every`. Rare saves lose more steps, and
# frequent ones cost time and bytes.

# %% [markdown] minutes=1
# ## Summary
#
# - The state of a run is more than its weights: optimizer, schedule, scaler, place in the data, all generators.
# - Saves and repeated work cost the same at sqrt(2 delta M).
# - A fault may show in one monitor only. No answer and NaN are bad values, too.
# - An alert needs two durations: one to ring, one to be ready again.

# %% [markdown]
# ### Sources
#
# - Llama Team, "The Llama 3 Herd of Models", 2024, arXiv 2407.21783, section 3.3.4 (466 interruptions in 54 days, 419
#   of them unexpected; more than 90% effective training time).
# - J. W. Young, 1974, "A first order approximation to the optimum checkpoint interval", Communications of the ACM
#   17(9).
# - J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
#   Computer Systems 22(3), 2006 (exponential gaps).
# - PyTorch, "Reproducibility", and the documentation of `torch.load` (`weights_only`).
# - Prometheus, "Alerting rules".
# - The code: `lablib/faults.py` and `lablib/labs/lab17.py`.

# %%
check
