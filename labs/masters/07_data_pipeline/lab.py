# %% [markdown]
# # Lab 07: The data pipeline
#
# **Question.** Why is the GPU waiting?
#
# A training loop takes a *batch* (samples for one step), copies it to the *device* (the GPU) and computes a step. If
# batches come too slowly, the most expensive part of the machine does nothing. You will find out why it waits and what
# helps, and deal the samples so that each is used once, also after a stop, in an order that changes.
#
# **Prerequisites.** Lab 00. **Time.** 58 minutes, without the folded sections, called *further*.

# %%
from lablib.labs import lab07

lab07.show(lab07.figure_question())

# %% tags=["parameters"]
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few batches and few repeats

# %% [markdown] minutes=6
# ## The loop as a timeline
#
# First the simplest loop: it loads a batch, then computes with it, in turn. To *load* is to read samples, unpack them
# (*decode*) and collect them in memory of the *host*, the computer that the device belongs to. Here a load takes 250 ms
# and a step 100 ms. Guess: for what fraction of the time does the device wait?

# %%
my_guess_alone = lab07.guess("time that the device waits", None, interactive, "%")

# %%
import torch
from torch.utils.data import DataLoader

from lablib.data.loading.loader import Loader
from lablib.data.loading.loader_timeline import run_loop

check = lab07.checks_for("07")
check

# %%
# A simulated loop: for each batch the seconds of its load and of its step.
alone = run_loop(Loader(workers=0), [0.25] * 8, [0.1] * 8)
lab07.show(lab07.figure_loading(alone, batches=6))
my_guess_alone.reveal(100 * alone.idle_share)

# %% [markdown]
# A time without computing is a *gap*. Here every gap has one cause: the batch is not loaded yet. (F+B is a step's
# computation: forward and backward.) Now *workers*, processes that load in parallel while the device computes.
# Each has at most *prefetch* orders: batches that it is asked to load and that the loop has not taken yet. (In
# torch's `DataLoader`: `num_workers` and `prefetch_factor`.) Here there are two workers. Guess the fraction of the time
# that the device waits in the long run.

# %%
my_guess_workers = lab07.guess(
    "time that the device waits, with workers", None, interactive, "%"
)

# %%
two = run_loop(Loader(workers=2, prefetch=2), [0.25] * 100, [0.1] * 100)
lab07.show(lab07.figure_loading(two, batches=10))
my_guess_workers.reveal(100 * two.idle_share_from(0))  # after the first batch

# %% [markdown]
# Two workers bring a batch every 125 ms on average, and the device needs one every 100 ms. So a fifth of the time is
# lost, and in the long run a larger prefetch changes nothing: a buffer that is emptied faster than it is filled is
# empty at any size.
#
# Two more causes: workers must *start*, here again in every *epoch* (one pass over all samples), and a loaded batch
# must be *copied* to the device.

# %%
starting = Loader(workers=3, start_s=0.2, batch_bytes=500e6)  # 500 MB at 25 GB/s: 20 ms
again = run_loop(starting, [0.25] * 10, [0.1] * 10, epochs=2)  # epochs of 5 batches
lab07.show(lab07.figure_loading(again, batches=10))

# %% [markdown]
# Before an epoch's first step all three follow one another. `persistent_workers=True` keeps
# workers from epoch to epoch, which saves the start but not the epoch's first load. In a long epoch neither counts
# much.

# %% [markdown] minutes=4
# ## Copies
#
# A device works through *streams*, queues of work. The host's memory is usually *pageable*: the system may move it, and
# the loop has to wait for its copy. *Pinned* memory is never moved, so a copy may run while the loop goes on: in the
# stream of the steps, or on a separate stream. Here loads are quick, a step takes 100 ms, a copy C = 40 ms. Guess the
# time per step, copy included, for each of the three.

# %%
my_guess_copies = lab07.guess(
    "time per step (pageable; pinned; pinned, separate stream)", None, interactive, "ms"
)

# %%
times_ms = {}
for copy in lab07.Copy:
    loader = Loader(workers=2, copy=copy, batch_bytes=1e9)  # 1 GB at 25 GB/s: 40 ms
    times_ms[copy.value] = lab07.steady_step_s(loader, 0.05, 0.1) * 1e3
    print(f"{copy.value}: {times_ms[copy.value]:.0f} ms")
lab07.show(lab07.figure_loading(run_loop(loader, [0.05] * 6, [0.1] * 6), batches=6))
my_guess_copies.reveal(times_ms.values())

# %% [markdown]
# A stream does one thing after another, so in the stream of the steps a pinned copy saves nothing here. But it allows a
# separate stream, drawn above, where each copy except the first is hidden behind the step before. (A real pageable copy
# is also slower itself; torch's calls for both are in a *further* section.)

# %% [markdown] minutes=6
# ## Exercise 1: how many workers?
#
# Each load takes L, each copy C, each step S. How often does the device need a batch, if copy and step follow one
# another in one stream, and if copies use a separate stream? How often do k workers bring one? In the long run (*steady
# state*), loading delays nothing if batches come at least as often as the device needs them. A worker that decodes
# keeps a core busy, so their number has a limit, `most`.


# %% tags=["exercise"]
def fewest_workers(load_ms, copy_ms, step_ms, own_stream, most):
    """Fewest workers for which loading delays nothing in steady state; None if more than most.

    load_ms, copy_ms, step_ms: whole numbers of ms, copy_ms at least 0, the others at least 1.
    own_stream: copies use a separate stream. most: at least 1. Returns at least 1.
    """
    ### BEGIN SOLUTION
    busy_ms = max(copy_ms, step_ms) if own_stream else copy_ms + step_ms
    workers = -(-load_ms // busy_ms)
    return workers if workers <= most else None
    ### END SOLUTION


# %%
# Try it. By hand: 250 / 140 is 1.8, so 2; 250 / 100 is 2.5, so 3; 3 are more than 2.
lab07.try_out(fewest_workers, 250, 40, 100, own_stream=False, most=8)
lab07.try_out(fewest_workers, 250, 40, 100, own_stream=True, most=8)
lab07.try_out(fewest_workers, 250, 40, 100, own_stream=True, most=2)

# %% tags=["check"] points=2
check.fewest_workers(fewest_workers)

# %% [markdown] minutes=4
# ## Jitter
#
# Real loads differ: a large image, a busy disk. Such *jitter* is given here as standard deviation over mean; times are
# drawn from a *lognormal* distribution: most are short, a few much longer. One worker loads a batch in 80 ms on
# average, for steps of 100 ms. On average it is fast enough. Guess: for what fraction of the time does the device wait
# at a jitter of 100%, with prefetch 1 and with prefetch 16?

# %%
my_guess_jitter = lab07.guess(
    "time that the device waits (prefetch 1, prefetch 16)", None, interactive, "%", within=2
)

# %%
# (mean seconds of a load, jitter)
loads = [(0.08, 1.0), (0.08, 0.25), (0.125, 1.0)]
waits = lab07.show_waits(loads, num=2000 if quick else 20_000)  # of the first, by prefetch
my_guess_jitter.reveal([100 * waits[prefetch] for prefetch in (1, 16)])

# %% [markdown]
# There are two kinds of waiting. A *buffer* of batches loaded ahead bridges slow loads, at the price of host memory for
# workers x prefetch batches: it removes the waiting that jitter adds. The upper curve is a loader that is too slow on
# average: it ends near 1 - 100 / 125 = 20%, and below that only more workers, or quicker loads, help.

# %% [markdown] minutes=13
# ## Exercise 2: the smallest prefetch
#
# You have measured how long each load takes. How far ahead must a single worker load? With prefetch P:
#
# - batches 0 to P - 1 are ordered at time 0, batch i when batch i - P is *taken*;
# - a load begins when its batch is ordered and the load before has ended;
# - batch i is *due* when the step before has ended; it is taken then or once it is loaded, and its step begins at once.
#
# By hand, P = 1, loads 2, 1, 7, 2 and steps of 4: loads end at 2, 3, 13, 15; batches are taken at 2, 6, 13, 17. Batch 2
# was ordered at 6 and due at 10: the device waits 3. The wait for batch 0 cannot be hidden and does not count.


# %% tags=["exercise"]
def smallest_prefetch(loads, step):
    """Smallest P with which the device never waits after batch 0; None if no P is enough.

    loads: list of whole numbers of ms, 0 or more, at least one; not changed.
    step: ms, at least 1.
    One worker; batches are taken in order. P from 1 to len(loads): more changes nothing.
    """
    ### BEGIN SOLUTION
    from itertools import pairwise

    for prefetch in range(1, len(loads) + 1):
        takes, loaded = [], 0
        for number, load in enumerate(loads):
            ordered = takes[number - prefetch] if number >= prefetch else 0
            loaded = max(loaded, ordered) + load
            takes.append(max(loaded, takes[-1] + step) if takes else loaded)
        if all(after - before == step for before, after in pairwise(takes)):
            return prefetch
    return None
    ### END SOLUTION


# %%
# Try it. By hand: with P = 2 batch 2 is ordered at 2, loaded from 3 to 10, and due at 10.
lab07.try_out(smallest_prefetch, [2, 1, 7, 2], step=4)
lab07.try_out(smallest_prefetch, [3, 4, 4, 4], step=4)  # 1: nothing is ever late
lab07.try_out(smallest_prefetch, [3, 5, 5, 5], step=4)  # None: too slow on average
lab07.try_out(smallest_prefetch, [1, 9, 1, 1, 1, 1], step=4)  # None: slow too early

# %% tags=["check"] points=3
check.smallest_prefetch(smallest_prefetch)

# %% [markdown]
# More orders never make a batch later, so the library uses a binary search: it tries the middle, then the half that
# contains the answer. The k P batches that k workers have loaded ahead last the device k P steps. So a slow load of X
# among many quick ones is hidden by P of about X / (k S), rounded up. No P hides a slow load that comes before the
# workers could get ahead.

# %%
from lablib.data.loading import smallest_prefetch as library

loads_s = lab07.draw_times(0.08, 200, lab07.Jitter.LOGNORMAL, 0.5)
print("200 loads of 80 ms, jitter 50%: prefetch", library.smallest_prefetch(loads_s, 0.1))
lab07.show_source(library.smallest_prefetch, after=check.smallest_prefetch)

# %% [markdown]
# Now change the settings. Find some where workers help and prefetch does not; and some where twice the prefetch helps
# as much as twice the workers, without keeping more cores busy. (Two lines are formulas for queues, of
# constant times, *D/D*, and of exponential times, *M/M/k/K*: Kleinrock, 1975.)

# %%
lab07.loader_calculator(interactive=interactive)

# %% [markdown]
# <details><summary>Which settings?</summary>
#
# For example: with loads of 0.3 s without jitter, steps of 0.1 s and 2 workers the device waits a third of the time at
# any prefetch, and not at all with 4 workers. With loads of 0.1 s, a jitter of 100%, 2 workers and prefetch 1 it waits
# 9%; prefetch 2 leaves 1.4%, 4 workers 0.8%.
#
# </details>

# %% [markdown] minutes=5
# ## Order
#
# A loader must be right as well as fast. Neighbouring batches should differ only by chance, so samples are *shuffled*.
# For files that are read from front to back there is the *shuffle buffer*: it holds b samples, gives out one at random
# and replaces it by the next one of the file. Here 5,000 samples are sorted into ten classes. Guess: how many classes
# does a batch of 50 contain, with b = 1,000 and with 5,000?

# %%
my_guess_classes = lab07.guess(
    "classes in a batch (b = 1,000, b = 5,000; up to 10)", None, interactive, "classes"
)

# %%
from lablib.data.shuffle_buffer import shuffle_buffer

sizes = (1, 100, 1000, 5000)
orders = {f"buffer {size:,}": list(shuffle_buffer(range(5000), size)) for size in sizes}
classes = lab07.show_classes(orders, size=50, per_class=500)  # sample // 500 is its class
my_guess_classes.reveal([classes["buffer 1,000"], classes["buffer 5,000"]])

# %% [markdown]
# A buffer far smaller than the sorted data leaves the data nearly sorted. Reading several files, or *shards*, in turn
# helps, as does a random order of the shards. If samples can be read by number, the whole order is shuffled.
#
# With several *ranks* (processes with a device each) every rank makes the same order from a seed and the epoch's
# number, and takes its part: of W ranks, rank r takes the places r, r + W, and so on. No communication is needed.
# (torch's `DistributedSampler` does this. It does not count epochs: without `sampler.set_epoch(epoch)` before each the
# order never changes.) Guess: if each of 4 ranks shuffled with a different seed, how many of 1,000 samples would no
# rank get?

# %%
my_guess_lost = lab07.guess("of 1,000 that no rank gets", None, interactive, "samples")

# %%
from lablib.data.sharding import count_seen, epoch_order, rank_part

for name, seeds in {"one seed": [0, 0, 0, 0], "a seed for each rank": [0, 1, 2, 3]}.items():
    orders = [epoch_order(1000, seed) for seed in seeds]
    seen = count_seen([rank_part(order, rank, 4) for rank, order in enumerate(orders)], 1000)
    print(f"{name}: {len(seen.lost)} lost, {len(seen.repeated)} more than once")
my_guess_lost.reveal(len(seen.lost))
print(f"by chance 1000 x (1 - 1/4)^4 = {1000 * 0.75**4:.0f}")

# %% [markdown] minutes=13
# ## Exercise 3: stop and go on
#
# A run stops in the middle of an epoch and goes on, perhaps with another number of ranks. It resumes *exactly* if over
# the whole epoch each sample is used once. What must be saved? Not the samples *loaded*: workers are ahead, and batches
# that the loop has not taken are lost. Only the samples that the loop has *used* count.
#
# Each run deals the remaining samples, in the epoch's order: place i to rank i mod W. A rank uses its part from the
# front. Ranks may have used different numbers of samples, and there may have been several runs before. Parts may differ
# by one sample: a loop then pads or drops the last batch.
#
# By hand: order 5 2 7 0 6 1 4 3 and two ranks. Rank 0 has 5, 7, 6, 4 and used three; rank 1 has 2, 0, 1, 3 and used
# one. Remaining, in order: 0 1 4 3.


# %% tags=["exercise"]
def resume(order, runs, ranks):
    """Rest of the epoch, dealt to `ranks` ranks: a list of samples for each rank.

    order: the epoch's samples, each once. runs: the runs so far, the first one first; a run is
    a list with a pair (loaded, used) for each of its ranks: how many samples. Neither is
    changed. A rank gets an empty list if no sample remains for it.
    """
    ### BEGIN SOLUTION
    left = list(order)
    for run in runs:
        used = set()
        for rank, (_, count) in enumerate(run):
            used.update(left[rank :: len(run)][:count])
        left = [sample for sample in left if sample not in used]
    return [left[rank::ranks] for rank in range(ranks)]
    ### END SOLUTION


# %%
# Try it. By hand: 0 1 4 3 for one rank, and 0, 1, 4, 3 dealt to three.
order = [5, 2, 7, 0, 6, 1, 4, 3]
lab07.try_out(resume, order, [[(4, 3), (2, 1)]], 1)
lab07.try_out(resume, order, [[(4, 3), (2, 1)]], 3)
lab07.try_out(resume, order, [[(4, 3), (2, 1)], [(2, 1), (2, 1)]], 1)  # two used 0 and 1

# %% tags=["check"] points=3
check.resume(resume)

# %% [markdown]
# As exercise 3 deals the rest, the library's sampler saves the used places themselves: all before `first`, and the
# later ones in `more`. It does not depend on workers: the loop reports which batches it used. Here two ranks with two
# workers each stop after different numbers of batches, and three ranks go on without workers.

# %%
from lablib.data.resumable_sampler import ResumableSampler, merge_states

data, had, states = torch.arange(40), [], []
for rank, num_batches in enumerate((3, 2)):
    sampler = ResumableSampler(40, 4, rank, world_size=2)
    batches = sampler.used(DataLoader(data, batch_sampler=sampler, num_workers=2))
    had += [next(batches).tolist() for _ in range(num_batches)]
    states.append(sampler.state_dict())
print("saved:", state := merge_states(states))

# %%
rest = []
for rank in range(3):
    sampler = ResumableSampler(40, 4, rank, world_size=3)
    sampler.load_state_dict(state)
    rest += [batch.tolist() for batch in sampler.used(DataLoader(data, batch_sampler=sampler))]
seen = count_seen(had + rest, 40)
print(f"of 40 samples lost: {len(seen.lost)}, more than once: {len(seen.repeated)}")

# %% [markdown] minutes=5
# ## Reconcile: predicted and measured
#
# Now torch's own `DataLoader` on this machine. A load is a sleep of 20 ms in a real worker process, a step a sleep of
# 10 ms in the loop: time measured beyond the prediction is the cost of the DataLoader, and of sleeps that last too
# long. Three settings differ in their workers: none, 1 and 2. The other two have one worker, loads of 8 ms on average
# with a jitter of 100%, and prefetch 1 or 8. A step's time is the mean time from the start of one step to the start of
# the next. Guess which prediction is furthest off, and by how many percent of the measured time.

# %%
my_guess_which = lab07.guess(
    "furthest off (no workers, 1 worker, 2 workers, jitter prefetch 1 or 8)", None, interactive
)
my_guess_off = lab07.guess(
    "error of that prediction (negative: too short)", None, interactive, "%", within=3
)

# %%
table = lab07.table_of_loops(num=40 if quick else 200, repeats=2 if quick else 5)
furthest = table["off, %"].abs().idxmax()
my_guess_which.reveal(furthest.replace(",", ""))
my_guess_off.reveal(table["off, %"][furthest])
lab07.print_text(f"{lab07.recorded_comparison('07')}")
table.round(2)

# %% [markdown]
# A sleep lasts at least as long as asked, and a batch must pass through a queue between processes. The prediction
# includes neither, so the measured time is higher, by about 1 ms per step. One millisecond is a larger part of a short
# step, so the three settings of about 10 ms are furthest off in percent, and close together. With prefetch 1 the
# message to the worker adds time, as the next batch is ordered only when one is taken. On a busy machine waking a
# process takes longer. Real loads also slow each other down, which sleeps do not: ten workers that decode on two cores
# are not as fast as on ten.

# %% [markdown] tags=["further"] minutes=3
# ## Further: copies in torch
#
# This section adds the calls that hide a copy behind a step, and how much a copy takes of it. In torch:
#
# - `DataLoader(..., pin_memory=True)`;
# - the next batch's `.to(device, non_blocking=True)` inside `with torch.cuda.stream(own):`, before this step is waited
#   for;
# - before the batch is used, `torch.cuda.current_stream().wait_stream(own)`, or a step reads a batch that is only
#   partly copied;
# - then `batch.record_stream(torch.cuda.current_stream())`, or its memory may be given to the next copy while a step
#   reads it.
#
# When does it matter? When C is a large part of a step. Suppose that the *link* between host and device carries 25 of
# the 31.5 GB/s that PCIe 4.0 x16 has on paper:

# %%
tokens_us, images_us = (1e6 * size / 25e9 for size in (8192 * 8, 256 * 3 * 224**2 * 4))
print(f"8,192 tokens of 8 bytes: {tokens_us:,.0f} us, and some us for the start of any copy")
print(f"256 images of 3 x 224 x 224 numbers of 4 bytes: {images_us:,.0f} us")

# %% [markdown] tags=["further"] minutes=11
# ## Further: bugs in an order
#
# This section adds a detector for wrong orders, and tries it on torch's sampler.
#
# ### Exercise 4: find the bugs in an order
#
# Bugs in the order raise no error: the loss still falls. They show in the *delivered* samples: the sample numbers that
# each rank got in each epoch. Write a detector for three of them:
#
# - `"lost"`: some epoch has a sample that no rank got;
# - `"repeated"`: in some epoch a sample came more than once, to one rank or to several;
# - `"stale"`: in two epochs, adjacent or not, some rank got the same samples in the same order.


# %% tags=["exercise"]
def order_bugs(delivered, num_samples):
    """Set of the bugs found, from "lost", "repeated", "stale"; empty if there are none.

    delivered: delivered[epoch][rank] is a list of sample numbers, in order; not changed.
    Samples are 0 to num_samples - 1; all epochs have the same ranks; each rank gets two or
    more.
    """
    ### BEGIN SOLUTION
    from collections import Counter

    bugs = set()
    for epoch in delivered:
        counts = Counter(sample for part in epoch for sample in part)
        if len(counts) < num_samples:
            bugs.add("lost")
        if max(counts.values()) > 1:
            bugs.add("repeated")
    for parts in zip(*delivered, strict=True):  # of one rank, epoch by epoch
        if len({tuple(part) for part in parts}) < len(parts):
            bugs.add("stale")
    return bugs
    ### END SOLUTION


# %%
# Try it on torch's DistributedSampler, two ranks, two epochs, without set_epoch.
from torch.utils.data import DistributedSampler

samplers = [DistributedSampler(range(8), num_replicas=2, rank=rank) for rank in range(2)]
delivered = [[list(sampler) for sampler in samplers] for epoch in range(2)]
print(delivered)
lab07.try_out(order_bugs, delivered, 8)
lab07.try_out(order_bugs, [[[0, 1], [2, 3]], [[3, 1], [0, 1]]], 4)  # lost (2), repeated (1)

# %% tags=["check"] points=2
check.order_bugs(order_bugs)

# %% [markdown]
# torch's sampler shuffles from its seed plus the epoch, but does not count epochs: call `sampler.set_epoch(epoch)`
# before each. By default it also *pads*: if the number of samples is not a multiple of the number of ranks, it repeats
# some, so that all ranks have the same number of steps. Ranks add up their gradients in every step: the others would
# wait for a rank with one step fewer.

# %% [markdown] tags=["further"] minutes=4
# ## Further: from text to tokens
#
# Text is loaded as *tokens*, numbers for frequent byte strings. *Byte-pair encoding* merges the most frequent pair of
# neighbours, again and again. Text is encoded once, into a file that is mapped into memory: a load is then a copy of
# some kilobytes. A file made by another tokenizer is refused.

# %%
import tempfile
from pathlib import Path

from lablib.data.text import load_corpus
from lablib.data.token_file import encode_to_file, open_tokens
from lablib.data.tokenizer import corpus_texts, train_tokenizer

texts = corpus_texts(load_corpus("python-stdlib"))[:20]
tokenizer = train_tokenizer(texts, 1000, "python-stdlib")
print(tokenizer, f"{tokenizer.bytes_per_token(texts):.2f} bytes per token")
with tempfile.TemporaryDirectory() as folder:
    encode_to_file(Path(folder) / "tokens.bin", texts, tokenizer)
    tokens = open_tokens(Path(folder) / "tokens.bin", tokenizer)
    print(tokens)
    print(repr(tokenizer.decode(tokens.block(0, 16)[0])))

# %% [markdown] tags=["further"] minutes=24
# ## Further: documents in blocks
#
# Results for padding are computed and discarded. Text comes in *documents*: here the modules of Python's standard
# library, with one token per byte. Take blocks of 16,384 tokens, and cut longer documents into pieces. If each piece
# has its own block, which share of all computed tokens is padding?

# %%
from lablib.batches import packed_attention, packing
from lablib.batches.accumulation import IGNORED, summed_loss
from lablib.data import cut_documents, documents, load_corpus
from lablib.models import GPT
from lablib.studies.batches import NARROW

modules = documents(load_corpus())
pieces = cut_documents(modules, 16_384)
in_order = sorted(len(piece) for piece in pieces)
print(
    f"{len(modules)} documents, {len(pieces)} pieces, of which half are shorter than", end=" "
)
print(f"{in_order[len(pieces) // 2]:,} tokens and {in_order.count(16_384)} fill a block")
my_guess_waste = lab07.guess("share of padding", None, interactive, "%")

# %% [markdown]
# *Packing* puts several documents into one block. *First fit* puts them one after another, each into the first block
# with enough room; *best fit* uses the block that then has the least room left. If the longest come first, the short
# ones fill the gaps.

# %%
lengths = [len(piece) for piece in pieces]
ways = {"alone": packing.one_per_block(lengths, 16_384)}
ways["first fit"] = packing.first_fit(lengths, 16_384, longest_first=False)
ways["best fit, longest first"] = packing.best_fit(lengths, 16_384)
my_guess_waste.reveal(100 * ways["alone"].waste)
rows = {
    name: {"blocks": len(way.blocks), "waste": f"{way.waste:.2%}"} for name, way in ways.items()
}
lab07.in_rows(rows)

# %%
few = [len(module) for module in modules if len(module) < 2000][:40]  # in smaller blocks
drawn = {"alone": packing.one_per_block(few, 2048)}
drawn["best fit, longest first"] = packing.best_fit(few, 2048)
lab07.show(lab07.figure_packing(drawn))

# %% [markdown]
# In *attention* each token reads the *values* of the tokens before it in its block, and its own: the *causal mask*.
# Below is a block of ten tokens, from three documents and padding (-1). A loss is computed on document 1 alone. Which
# of the ten values does its gradient reach?

# %%
document_of = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 2, 2, -1]])
print("document ", "     ".join(f"{number:2d}" for number in document_of[0].tolist()))
my_guess_reached = lab07.guess("places of the values (such as 0, 1)", None, interactive)

# %%
query, key, value = torch.randn(3, 1, 1, 10, 8, generator=torch.Generator().manual_seed(0))
value.requires_grad_()
read = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
read[0, 0, document_of[0] == 1].square().sum().backward()
print("gradient ", "  ".join(f"{row.norm():.3f}" for row in value.grad[0, 0]))
reached = value.grad[0, 0].norm(dim=1).nonzero().flatten()
my_guess_reached.reveal(set(map(str, reached.tolist())))

# %% [markdown]
# It reaches document 1 itself, and all of document 0. So the gradient of a document depends on its neighbours in the
# block, which are there by chance.

# %% [markdown]
# ### Exercise 5: the document mask
#
# Write the mask under which no gradient crosses a border: a token sees only itself and the tokens before it in its own
# document. Padding has the number -1. It must see at least itself: a softmax over an empty set is NaN, and one NaN
# reaches every weight. (torch's `scaled_dot_product_attention` returns 0 there; attention in general does not.)


# %% tags=["exercise"]
def document_mask(documents):
    """True where a token (row) may see another (column).

    documents: whole numbers of shape (B, T), each token's document, -1 for padding, which may
    be anywhere. Tokens of one document are adjacent; numbers may have any size and order.
    Returns booleans of shape (B, 1, T, T).
    """
    ### BEGIN SOLUTION
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]
    ### END SOLUTION


# %%
# Try it: two tokens of document 7, one of document 3, one of padding.
lab07.try_out(lambda: document_mask(torch.tensor([[7, 7, 3, -1]])).int()[0, 0].tolist())

# %% tags=["check"] points=2
check.document_mask(document_mask)

# %% [markdown]
# Does a packed block now give each document the same gradients as alone? Two more conditions must hold. *Targets*: a
# document's last token has no target (IGNORED), because the next token in the block is from another document.
# *Positions*: this GPT adds to each token a vector for its position, so each document counts its positions from 0. The
# library's `fill_blocks` does both.

# %%
texts = [b"x = 1\n", b"y = x + 2\n", b"print(y)\n"]
three = [torch.tensor(list(text)) for text in texts]
blocks = packing.fill_blocks(three, packing.best_fit([len(one) for one in three], 32))
print("document ", *blocks.documents[0].tolist())
print("position ", *blocks.positions[0].tolist())
small = GPT(NARROW, dtype=torch.float64)


def gradient_of(model):
    return torch.cat([param.grad.flatten() for param in model.parameters()])


for one in three:  # each document alone; its last token has no target
    summed_loss(small(one[None, :-1]), one[None, 1:]).backward()
apart = gradient_of(small)
ignored = int((blocks.targets == IGNORED).sum())
print(f"{ignored} of {blocks.targets.numel()} targets are IGNORED: last tokens, and padding")

# %% [markdown]
# Compare the gradient of the block with the gradient of the documents alone; then break each of the three conditions.
# Which one changes the gradient most?

# %%
my_guess_most = lab07.guess(
    'condition that matters most ("mask", "targets" or "positions")', None, interactive
)


# %%
def off_by(blocks, attend):
    small.zero_grad()
    logits = packed_attention.packed_logits(small, blocks, attend)
    summed_loss(logits, blocks.targets).backward()
    return float((gradient_of(small) - apart).norm() / apart.norm())


masked = packed_attention.attend_by_mask(blocks.documents)
following = blocks.tokens.roll(-1, 1).where(blocks.documents >= 0, IGNORED)  # across borders
places = torch.arange(32)[None]
print(f"all three conditions: off by {off_by(blocks, masked):.0e}")
off = {"mask": off_by(blocks, packed_attention.attend_to_all)}  # causal mask alone
off["targets"] = off_by(blocks._replace(targets=following), masked)  # last tokens have some
off["positions"] = off_by(blocks._replace(positions=places), masked)  # within the block
print(*(f"{name} broken: off by {one:.0e}" for name, one in off.items()), sep="\n")
my_guess_most.reveal(max(off, key=off.__getitem__))

# %% [markdown]
# (That order is of this small GPT before any training.) Under the document mask the scores between documents are still
# computed, and discarded. *Kernels* (programs of the GPU) for *variable length* get the ends of the documents, and skip
# these scores. With k equal documents in a block 1/k of the work of attention is left. How much is left here, where
# long pieces fill their blocks?

# %%
my_guess_left = lab07.guess("attention's work that is left", None, interactive, "%")

# %%
best, shape = ways["best fit, longest first"], {"num_layers": 12, "d_model": 768}
by_mask = packed_attention.masked_attention_flops(best, **shape)
by_length = packed_attention.variable_length_attention_flops(best, **shape)
my_guess_left.reveal(100 * by_length / by_mask)  # FLOPs over those of the document mask

# %% [markdown] tags=["further"] minutes=3
# ## Further: formats
#
# Many small files are slow to open, so samples are kept in shards. From `benchmarks/data`, recorded on a 2-core virtual
# machine with files already in memory (the system's *page cache*), for records of 1,000 bytes of text, without
# compression. Processor times are relative to a *memory map*, a file read as if it were an array:
#
# | format | bytes on disk / text | read in order | at random |
# |---|--:|--:|--:|
# | Parquet | 1.03 | 1.5 | 86 |
# | WebDataset (tar) | 2.63 | 12.2 | 3.2 |
# | TFRecord | 1.10 | 3.4 | 3.3 |
# | memory map | 1.05 | 1.0 (3.2 us) | 1.0 (3.3 us) |
#
# To get one record, Parquet reads a group, here of 64 records. In tar each record is two files, each with a header and
# padded to a multiple of 512 bytes. Tar and TFRecord can be read at random only after all headers have been read, which
# gives an *index* of where each record begins. The times include a checksum of each record.

# %%
tokens_s, bytes_each = 100_000, 4  # suppose a GPU takes 100,000 tokens/s, each 4 bytes of text
read_us = 3.2 * 12.2  # WebDataset, the slowest in order, for 1,000 bytes
busy = tokens_s * bytes_each / 1000 * read_us * 1e-6
print(f"one core reads what this GPU takes in {busy:.1%} of the time")

# %% [markdown] tags=["further"] minutes=3
# ## Further: an object store
#
# Over a network each request waits for its first byte. Many requests *in flight* hide that wait, as workers do; large
# requests make it count less. Here is a model of a store with 150 ms to the first byte, 85 MB/s per request and a link
# of 10 Gbit/s.

# %%
from lablib.data.object_store import S3_10_GBIT, in_flight_to_fill, requests_per_second

flights = [1, 2, 4, 8, 16, 32, 64]
sizes = {"1 MB": 10**6, "10 MB": 10**7, "100 MB": 10**8}
rates = {}
for name, size in sizes.items():
    rates[name] = [requests_per_second(S3_10_GBIT, size, flight) * size for flight in flights]
    print(
        f"requests of {name}: {in_flight_to_fill(S3_10_GBIT, size):,} in flight fill the link"
    )
axes = {"x_label": "requests in flight", "y_label": "rate", "y_unit": "B/s", "log_x": True}
axes["title"] = "An object store: rate by requests in flight"
lab07.show(lab07.figure_lines(flights, rates, **axes))

# %% [markdown] tags=["further"] minutes=3
# ## Further: damage
#
# Of many shards some are damaged. A *manifest* lists all shards, with the number of records in each. A reader that
# skips damage silently hides lost records; a reader that ends may stop a cluster for one record. Either way, report and
# count the lost records. Here one byte of a shard is flipped, and another shard is cut off. (If a worker dies, for
# example out of memory, `lablib/data/loading/dead_worker.py` names it, and the epoch goes on where the loop was.)

# %%
import tempfile
from pathlib import Path

from lablib.data.damage import cut_file, flip_byte, read_shards
from lablib.data.formats.catalogue import FORMATS
from lablib.data.formats.records import Record

records = [Record(f"document {number}", b"some text " * 20) for number in range(20)]
with tempfile.TemporaryDirectory() as folder:
    manifest = FORMATS["tfrecord"].write(records, Path(folder), shard_size=5)
    flip_byte(manifest.shards[1].path, 400)
    cut_file(manifest.shards[3].path, 700)
    reading = read_shards(manifest, on_error="skip")
    list(reading)
print(reading)
for loss in reading.losses:
    lab07.print_text(str(loss).replace(folder, "..."))

# %% [markdown] tags=["further"] minutes=3
# ## Further: loaders on other machines
#
# If a machine has too few cores for its GPUs, other machines load. The simulator can run this loop with messages
# between ranks: rank 0 trains, the others send it batches, and a send ends when rank 0 has the batch. A load is 250
# units of work, a step 100; a unit is one small operator.

# %%
from lablib import launch
from lablib.data.loading.loader_ranks import train_with_loader_ranks

for loaders in (1, 2, 3):
    run = launch(train_with_loader_ranks, [250] * 12, 100, ranks=1 + loaders)
    print(
        f"loader ranks: {loaders}, {run.timeline.makespan_s * 1e3:.3g} ms,",
        f"order {run.values[0]}",
    )

# %% [markdown] tags=["further"]
# Three are enough: 250 / 100 = 2.5, as in exercise 1. Only the first load and twelve steps remain.

# %% [markdown] tags=["further"] minutes=6
# ## Further: torchdata
#
# torchdata's `StatefulDataLoader` also has a state: it counts the batches given out. It resumes exactly with the same
# number of workers; with another number it raises an error. Its `StatefulDistributedSampler` needs the same number of
# ranks as before.

# %%
import warnings

from lablib.data.sharding import count_seen

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:
    StatefulDataLoader = None
    print("needs the package torchdata")


def go_on(workers, state, used):
    data = torch.arange(20)
    loader = StatefulDataLoader(data, batch_size=2, shuffle=True, num_workers=workers)
    loader.load_state_dict(state)
    rest = [batch.tolist() for batch in loader]
    return "exact" if count_seen(used + rest, 20).is_exact else "not exact"


# %%
if StatefulDataLoader:
    with warnings.catch_warnings(action="ignore"):  # it uses deprecated functions of torch
        data = torch.arange(20)
        first = StatefulDataLoader(data, batch_size=2, shuffle=True, num_workers=2)
        batches = iter(first)
        used = [next(batches).tolist() for _ in range(4)]
        for workers in (2, 1):
            try:
                print(f"two workers, then {workers}:", go_on(workers, first.state_dict(), used))
            except AssertionError:
                print(f"two workers, then {workers}: an AssertionError")

# %% [markdown] minutes=2
# ## Summary
#
# - The device waits if loading is slower on average: only more workers or quicker loads help. The fewest workers: L
#   divided by the device's time per batch (S + C, or the larger of S and C), rounded up.
# - It waits if loads jitter: batches loaded ahead help, at the price of host memory, if workers can get ahead.
# - It waits for workers that start again in each epoch (keep them), and for copies (pin memory, use a separate stream).
# - One seed on all ranks plus the epoch's number: each sample once, in an order that changes. A wrong order raises no
#   error, so count the samples that the ranks got (further: a detector).
# - To resume exactly, save which samples of the common order the loop has used, and deal the rest again.

# %% [markdown]
# ### Sources
#
# - J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", 2021, arXiv 2007.06775: how much real
#   training waits for data.
# - D. Murray et al., "tf.data: A Machine Learning Data Processing Framework", 2021, arXiv 2101.12127.
# - A. Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data Processing", 2023, arXiv 2210.14826:
#   loaders on other machines.
# - M. Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021, arXiv 2107.02027 (further).
# - L. Kleinrock, "Queueing Systems", volume 1, 1975: the queue M/M/k/K.
# - torch 2.13: `torch/utils/data/dataloader.py` and `distributed.py`.
# - "Best Practices Design Patterns: Optimizing Amazon S3 Performance", AWS, 2019.
# - The code: `lablib/data`, and `packing.py` and `packed_attention.py` in `lablib/batches`.

# %%
check
