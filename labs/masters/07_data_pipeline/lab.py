# %% [markdown]
# # Lab 07: The data pipeline
#
# **Question.** Why is the GPU waiting?
#
# A training loop takes a *batch* (samples for one step), copies it to the *device* (the GPU) and computes a step. Where
# batches come too slowly, the most expensive part of the machine does nothing. You will find out why it waits and what
# helps, and make sure that what arrives is right: every sample once, in an order that changes, also after a stop.
#
# The lab takes an hour. Folded sections, called *further*, go beyond it.

# %%
import pandas as pd
import torch
from torch.utils.data import DataLoader, DistributedSampler

from lablib.course import checks_for, print_text, show_source, try_out
from lablib.data.loading.loader import Copy, Jitter, Loader, draw_times
from lablib.data.loading.loader_timeline import run_loop, steady_step_s
from lablib.figures import figure_idle_shares, figure_lines, show
from lablib.labs import lab07

check = checks_for("07")
check

# %% tags=["parameters"]
interactive: bool = True  # widgets, or static figures
quick: bool = True  # few batches and few repeats

# %% [markdown] minutes=6
# ## The loop as a timeline
#
# First the plainest loop: it loads a batch, then computes with it, in turn. To *load* is to read samples, unpack
# them (*decode*) and collect them in memory of the *host*, the computer that the device belongs to. Here a load takes
# 250 ms and a step 100. Guess: for which part of the time does the device wait?

# %%
my_guess_alone = None  # percent
print("guess:", my_guess_alone)

# %%
# A simulated loop: for each batch the seconds of its load and of its step.
alone = run_loop(Loader(workers=0), [0.25] * 8, [0.1] * 8)
show(lab07.figure_loading(alone, batches=6))
print("you guessed", my_guess_alone, "percent")

# %% [markdown]
# Each second without computing is in a *gap*, and has a cause; here always that the batch is not loaded. (F+B is a
# step's computation: forward and backward.) Now *workers*, processes that load side by side while the device computes.
# Each has at most *prefetch* orders: batches that it is to load, or has loaded and nobody took. (In torch's
# `DataLoader`: `num_workers` and `prefetch_factor`.) Here two workers. Guess the part of waiting in the long run.

# %%
my_guess_workers = None  # percent
print("guess:", my_guess_workers)

# %%
two = run_loop(Loader(workers=2, prefetch=2), [0.25] * 100, [0.1] * 100)
show(lab07.figure_loading(two, batches=10))
print(f"after the first batch the device waits {two.idle_share_from(0):.0%} of the time")
print("you guessed", my_guess_workers, "percent")

# %% [markdown]
# Two workers bring a batch every 125 ms on average, and the device needs one every 100. So a fifth is lost,
# and in the long run a larger prefetch changes nothing: a store emptied faster than it is filled is empty, however
# large.
#
# Two more causes: workers must *start*, here anew in every *epoch* (one pass over all samples), and a loaded batch must
# be *copied* to the device.

# %%
starting = Loader(workers=3, start_s=0.2, batch_bytes=500e6)  # 500 MB at 25 GB/s: 20 ms
again = run_loop(starting, [0.25] * 10, [0.1] * 10, epochs=2)  # epochs of 5 batches
show(lab07.figure_loading(again, batches=10))

# %% [markdown]
# Which gap has which cause? Before an epoch's first step all three follow one another. `persistent_workers=True` keeps
# workers from epoch to epoch, which saves the start; the epoch's first load stays. Where an epoch is long, neither
# counts much.

# %% [markdown] minutes=4
# ## Copies
#
# A device works through *streams*, queues of work. The host's memory is usually *pageable*: the system may move it, and
# the loop has to wait for its copy. *Pinned* memory stays where it is, so a copy may run while the loop goes on: in the
# stream of the steps, or on a stream of its own. Here loads are quick, a step takes 100 ms, a copy C = 40. Guess the
# time a step, copy included, each way.

# %%
my_guess_copies = None  # three numbers, in ms: pageable; pinned; pinned, own stream
print("guess:", my_guess_copies)

# %%
for copy in Copy:
    loader = Loader(workers=2, copy=copy, batch_bytes=1e9)  # 1 GB at 25 GB/s: 40 ms
    print(f"{copy.value}: {steady_step_s(loader, 0.05, 0.1) * 1e3:.0f} ms")
show(lab07.figure_loading(run_loop(loader, [0.05] * 6, [0.1] * 6), batches=6))
print("you guessed", my_guess_copies)

# %% [markdown]
# A stream does one thing after another, so in the steps' own stream a pinned copy saves nothing here. It allows the
# stream of its own, drawn above, where each copy but the first hides behind the step before. (A real pageable copy is
# also slower itself.) In torch:
#
# - `DataLoader(..., pin_memory=True)`;
# - the next batch's `.to(device, non_blocking=True)` inside `with torch.cuda.stream(own):`, before this step is waited
#   for;
# - before the batch is used, `torch.cuda.current_stream().wait_stream(own)`, or a step reads a batch that is half
#   there;
# - then `batch.record_stream(torch.cuda.current_stream())`, or its memory may go to the next copy while a step reads
#   it.
#
# When does it matter? When C is a good part of a step. Say the *link* between host and device carries 25 of the 31.5
# GB/s that PCIe 4.0 x16 has on paper:

# %%
batches = {"8,192 tokens of 8 bytes": 8192 * 8}
batches["256 images, 3 x 224 x 224 numbers of 4 bytes"] = 256 * 3 * 224**2 * 4
for name, size_bytes in batches.items():
    print(f"{name}: {size_bytes / 25e9 * 1e6:,.0f} us, and some us for the start of any copy")

# %% [markdown] minutes=5
# ## Exercise 1: how many workers?
#
# Each load takes L, each copy C, each step S. The device needs a batch every S + C where copy and step follow one
# another; on a stream of its own a copy runs beside a step, and the slower of the two decides. With k workers a batch
# comes every L / k. In the long run (*steady state*), loading delays nothing if that is no longer. A worker
# that decodes keeps a core busy, so their number has a limit, `most`.


# %% tags=["exercise"]
def fewest_workers(load_ms, copy_ms, step_ms, own_stream, most):
    """The fewest workers for which loading delays nothing in steady state; None if over most.

    load_ms, copy_ms, step_ms: whole numbers of ms, copy_ms at least 0, the others at least 1.
    own_stream: copies have a stream of their own. most: at least 1. At least 1 is returned.
    """
    ### BEGIN SOLUTION
    busy_ms = max(copy_ms, step_ms) if own_stream else copy_ms + step_ms
    workers = -(-load_ms // busy_ms)
    return workers if workers <= most else None
    ### END SOLUTION


# %%
# Try it. By hand: 250 / 140 is 1.8, so 2; 250 / 100 is 2.5, so 3; 3 are more than 2.
try_out(fewest_workers, 250, 40, 100, own_stream=False, most=8)
try_out(fewest_workers, 250, 40, 100, own_stream=True, most=8)
try_out(fewest_workers, 250, 40, 100, own_stream=True, most=2)

# %% tags=["check"] points=2
check.fewest_workers(fewest_workers)

# %% [markdown] minutes=6
# ## Jitter
#
# Real loads differ: a large image, a busy disk. Such *jitter* is given here as standard deviation over mean; times are
# drawn from a *lognormal* distribution: most are short, a few much longer. One worker loads, in 80 ms on average, for
# steps of 100. On average it is fast enough. Guess: for which part of the time does the device wait at a jitter of
# 100%, with prefetch 1 and with prefetch 16?

# %%
my_guess_jitter = None  # two percentages
print("guess:", my_guess_jitter)

# %%
prefetches, num = [1, 2, 4, 8, 16, 32], 2000 if quick else 20_000


def waits(load_s, spread):
    loads_s = draw_times(load_s, num, Jitter.LOGNORMAL, spread)
    runs = [run_loop(Loader(1, prefetch), loads_s, [0.1] * num) for prefetch in prefetches]
    return [run.idle_share_from(0) for run in runs]


shares = {}
for load_s, spread in [(0.08, 0.25), (0.08, 1.0), (0.125, 1.0)]:
    shares[f"load {load_s * 1e3:.0f} ms, jitter {spread:.0%}"] = waits(load_s, spread)
show(figure_idle_shares(prefetches, shares, title="One worker, steps of 100 ms"))
print("you guessed", my_guess_jitter)

# %% [markdown]
# Two kinds of waiting. A *buffer* of batches loaded ahead carries over slow loads, at the price of host memory, workers
# x prefetch batches: it takes away what jitter adds. The upper curve is a loader too slow on average: it ends near
# 1 - 100 / 125 = 20%, and below that only more workers, or quicker loads, help.

# %% [markdown] minutes=13
# ## Exercise 2: the smallest prefetch
#
# You have measured how long each load takes. How far ahead must the one worker load? With prefetch P:
#
# - batches 0 to P - 1 are ordered at time 0, batch i when batch i - P is *taken*;
# - a load begins when its batch is ordered and the load before has ended;
# - batch i is *due* when the step before has ended; it is taken then or once it is loaded, and its step begins at once.
#
# By hand, P = 1, loads 2, 1, 7, 2 and steps of 4: loads end at 2, 3, 13, 15; batches are taken at 2, 6, 13, 17. Batch 2
# was ordered at 6 and due at 10: the device waits 3. Nothing hides the wait for batch 0: it does not count.


# %% tags=["exercise"]
def smallest_prefetch(loads, step):
    """The least P with which the device never waits after batch 0; None: no P is enough.

    loads: list of whole numbers of ms, 0 or more, at least one; stays as it is.
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
try_out(smallest_prefetch, [2, 1, 7, 2], step=4)
try_out(smallest_prefetch, [3, 4, 4, 4], step=4)  # 1: nothing is ever late
try_out(smallest_prefetch, [3, 5, 5, 5], step=4)  # None: too slow on average
try_out(smallest_prefetch, [1, 9, 1, 1, 1, 1], step=4)  # None: slow before it could be ahead

# %% tags=["check"] points=3
check.smallest_prefetch(smallest_prefetch)

# %% [markdown]
# More orders never make a batch later, so the library searches by halves: it tries the middle, then the half where the
# answer must be. The k P batches that k workers have loaded ahead last the device k P steps. So a slow load of X among
# many quick ones is hidden by P of about X / (k S), rounded up; unless it comes before the workers could get ahead:
# that no P hides.

# %%
from lablib.data.loading import smallest_prefetch as library

loads_s = draw_times(0.08, 200, Jitter.LOGNORMAL, 0.5)
print("200 loads of 80 ms, jitter 50%: prefetch", library.smallest_prefetch(loads_s, 0.1))
show_source(library.smallest_prefetch, after=check.smallest_prefetch)

# %% [markdown]
# Now turn the knobs. Find settings where workers help and prefetch does not; and some where twice the prefetch does as
# much as twice the workers, without keeping further cores busy. Two lines are formulas: for constant times (*D/D*, as
# in *deterministic*), and for *exponential* ones, whose deviation equals their mean (*M/M/k/K*, the name of that
# queue). In that queue the steps jitter, too, and any free worker takes the next order; torch's take turns, as ours
# do.

# %%
from lablib.widgets import loader_calculator

loader_calculator(interactive=interactive)

# %% [markdown] minutes=6
# ## Order
#
# Neighbouring batches should differ only by chance, so samples are *shuffled*. Where files are read from front to back,
# a *shuffle buffer* does it: it holds b samples, gives out one at random and takes the next of the file in its place.
# Here 5,000 samples lie sorted into ten classes. Guess: how many classes has a batch of 50, with b = 1,000 and with
# 5,000?

# %%
my_guess_classes = None  # two numbers, up to 10
print("guess:", my_guess_classes)

# %%
from lablib.data.shuffle_buffer import shuffle_buffer

classes = {}
for size in (1, 100, 1000, 5000):
    order = list(shuffle_buffer(range(5000), size))
    parts = [order[first : first + 50] for first in range(0, 5000, 50)]
    classes[f"buffer {size:,}"] = [len({sample // 500 for sample in part}) for part in parts]
told = [
    f"{name} {sum(line) / 100:.1f} ({min(line)} to {max(line)})"
    for name, line in classes.items()
]
labels = {
    "x_label": "batch",
    "y_label": "classes in a batch of 50",
    "title": "Through a shuffle buffer",
}
labels["summary"] = f"Classes in a batch, mean: {'; '.join(told)}."
show(figure_lines(range(100), classes, **labels))
print("you guessed", my_guess_classes)

# %% [markdown]
# A buffer far smaller than what was sorted leaves it nearly sorted. Reading several files, or *shards*, in turn helps,
# as does a random order of the shards. Where samples can be read by number, the whole order is shuffled.
#
# With several *ranks* (processes with a device each) every rank makes the same order from a seed and the epoch's
# number, and takes its part: of W ranks, rank r the places r, r + W, and so on. Nobody communicates. Guess: if each of
# 4 ranks shuffled with a seed of its own, how many of 1,000 samples would no rank get?

# %%
my_guess_lost = None  # of 1,000
print("guess:", my_guess_lost)

# %%
from lablib.data.sharding import count_seen, epoch_order, rank_part

for name, seeds in {"one seed": [0, 0, 0, 0], "a seed for each rank": [0, 1, 2, 3]}.items():
    orders = [epoch_order(1000, seed) for seed in seeds]
    seen = count_seen([rank_part(order, rank, 4) for rank, order in enumerate(orders)], 1000)
    print(f"{name}: {len(seen.lost)} lost, {len(seen.repeated)} more than once")
print(f"you guessed {my_guess_lost}; by chance 1000 x (1 - 1/4)^4 = {1000 * 0.75**4:.0f}")

# %% [markdown] minutes=7
# ## Exercise 3: what is wrong with this order?
#
# Bugs of order raise no error: the loss falls all the same. They show in what was *delivered*: the sample numbers
# that each rank got in each epoch. Write a detector of three of them:
#
# - `"lost"`: in some epoch a sample came to no rank;
# - `"repeated"`: in some epoch a sample came more than once, to one rank or to several;
# - `"stale"`: in two epochs, neighbours or not, some rank got the same samples in the same order.


# %% tags=["exercise"]
def order_bugs(delivered, num_samples):
    """The set of what is wrong: of "lost", "repeated", "stale"; empty if nothing is.

    delivered: delivered[epoch][rank] is a list of sample numbers, in order; stays as it is.
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
# Try it on torch's DistributedSampler, two ranks, two epochs. What does this loop forget?
samplers = [DistributedSampler(range(8), num_replicas=2, rank=rank) for rank in range(2)]
delivered = [[list(sampler) for sampler in samplers] for epoch in range(2)]
print(delivered)
try_out(order_bugs, delivered, 8)
try_out(order_bugs, [[[0, 1], [2, 3]], [[3, 1], [0, 1]]], 4)  # lost (2), repeated (1)

# %% tags=["check"] points=2
check.order_bugs(order_bugs)

# %% [markdown]
# torch's sampler shuffles from its seed plus the epoch, but does not count epochs: call `sampler.set_epoch(epoch)`
# before each. By default it also *pads*: where samples do not divide by the ranks, some come twice, so that all ranks
# have as many steps. Ranks add up their gradients in every step: one with a step fewer would leave the others waiting.

# %% [markdown] minutes=8
# ## Exercise 4: stop and go on
#
# A run stops in the middle of an epoch and goes on, perhaps with other ranks. Exactly means: over the whole epoch each
# sample is used once. What must be saved? Not what was *loaded*: workers are ahead, and batches that nobody took are
# gone. What counts is what the loop has *used*.
#
# Each run deals what is left, in the epoch's order: place i to rank i mod W. A rank uses its part from the front. Ranks
# may have got differently far, and there may have been several runs before. Parts may differ by one sample: a loop then
# pads or drops the last batch.
#
# By hand: order 5 2 7 0 6 1 4 3 and two ranks. Rank 0 has 5, 7, 6, 4 and used three; rank 1 has 2, 0, 1, 3 and used
# one. Left, in order: 0 1 4 3.


# %% tags=["exercise"]
def resume(order, runs, ranks):
    """What each of `ranks` ranks gets of the rest of the epoch: a list of lists of samples.

    order: the epoch's samples, each once. runs: the runs so far, the first one first; a run is
    a list with a pair (loaded, used) for each of its ranks: how many samples. Both stay as they
    are. A rank for which nothing is left gets an empty list.
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
try_out(resume, order, [[(4, 3), (2, 1)]], 1)
try_out(resume, order, [[(4, 3), (2, 1)]], 3)
try_out(resume, order, [[(4, 3), (2, 1)], [(2, 1), (2, 1)]], 1)  # then two ranks used 0 and 1

# %% tags=["check"] points=3
check.resume(resume)

# %% [markdown]
# The library's sampler keeps the used places themselves: all before `first`, and of the later ones those in `more`.
# Workers do not matter to it: the loop says what it had. Here two ranks with two workers each stop after different
# numbers of batches, and three ranks go on without workers.

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
show_source(ResumableSampler.load_state_dict, after=check.resume)

# %% [markdown] minutes=4
# ## Reconcile: predicted and measured
#
# Now torch's own `DataLoader` on this machine. A load is a sleep of 20 ms in a real worker process, a step a sleep of
# 10 ms in the loop: what is measured beyond the prediction is what the DataLoader costs, and sleeps that last too long.
# The last two settings have one worker and loads of 8 ms with a jitter of 100%. A step's time is the mean from the
# start of one step to the start of the next. Guess which prediction is furthest off, and by how many percent of what is
# measured.

# %%
my_guess_off = None  # no, 1 or 2 workers, jitter with prefetch 1 or 8; percent
print("guess:", my_guess_off)

# %%
from lablib.course import recorded_comparison
from lablib.data.loading.measured_loop import measure_loop

num = 40 if quick else 200
constant, jittery = [0.02] * num, draw_times(0.008, num, Jitter.LOGNORMAL, 1.0, seed=1)
loops = {"no workers": (Loader(0), constant), "1 worker": (Loader(1), constant)}
loops |= {"2 workers": (Loader(2), constant)}
loops |= {f"jitter, prefetch {prefetch}": (Loader(1, prefetch), jittery) for prefetch in (1, 8)}

# %%
rows, steps_s = {}, [0.01] * num
for name, (loader, loads_s) in loops.items():
    predicted_s = run_loop(loader, loads_s, steps_s).step_time_s
    runs = [measure_loop(loader, loads_s, steps_s) for _ in range(2 if quick else 5)]
    measured_s = min(run.step_time_s for run in runs)
    off = 100 * (predicted_s / measured_s - 1)
    rows[name] = {
        "predicted, ms": predicted_s * 1e3,
        "measured, ms": measured_s * 1e3,
        "off, %": off,
    }
recorded = recorded_comparison("07")
for row in recorded.rows:
    rows[row["name"]] |= {
        "recorded, ms": row["measured_s"] * 1e3,
        "recorded off, %": row["error_pct"],
    }
print("you guessed", my_guess_off)
print_text(f"{recorded}")
pd.DataFrame(rows).T.round(2)

# %% [markdown]
# A sleep lasts at least as long as asked, and a batch must come through a queue between processes: the prediction knows
# neither, so measured is above it, by about 1 ms a step. The same millisecond is more of a short step, so the three
# settings of about 10 ms are furthest off in percent, and close together. With prefetch 1 the way to the worker is
# added, as the next batch is ordered only when one is taken. On a busy machine waking a process takes longer. Real
# loads also slow each other down, which sleeps do not: ten workers that decode on two cores are no ten workers.

# %% [markdown] tags=["further"] minutes=4
# ## Further: from text to tokens
#
# Text is loaded as *tokens*, numbers of byte strings that are frequent. *Byte-pair encoding* joins the most frequent
# pair of neighbours, again and again. Tokens are made once, into a file that is mapped into memory: a load then is a
# copy of some kilobytes, and a file made by another tokenizer is refused.

# %%
import tempfile
from pathlib import Path

from lablib.data.text import load_corpus
from lablib.data.token_file import encode_to_file, open_tokens
from lablib.data.tokenizer import corpus_texts, train_tokenizer

texts = corpus_texts(load_corpus("python-stdlib"))[:20]
tokenizer = train_tokenizer(texts, 1000, "python-stdlib")
print(tokenizer, f"{tokenizer.bytes_per_token(texts):.2f} bytes a token")
with tempfile.TemporaryDirectory() as folder:
    encode_to_file(Path(folder) / "tokens.bin", texts, tokenizer)
    tokens = open_tokens(Path(folder) / "tokens.bin", tokenizer)
    print(tokens)
    print(repr(tokenizer.decode(tokens.block(0, 16)[0])))

# %% [markdown] tags=["further"] minutes=3
# ## Further: formats
#
# Many small files are slow to open, so samples are kept in shards. From `benchmarks/data`, recorded on a 2-core virtual
# machine with files already in memory (the system's *page cache*), for records of 1,000 bytes of text, without
# compression. Times are of the processor, over those of a *memory map*, a file read as if it were an array:
#
# | format | bytes on disk / text | read in order | at random |
# |---|--:|--:|--:|
# | Parquet | 1.03 | 1.5 | 86 |
# | WebDataset (tar) | 2.63 | 12.2 | 3.2 |
# | TFRecord | 1.10 | 3.4 | 3.3 |
# | memory map | 1.05 | 1.0 (3.2 us) | 1.0 (3.3 us) |
#
# Parquet reads a group of records, of 64 here, to get one. In tar each record is two files, each with a header and
# filled up to 512 bytes. It and TFRecord can be read at random only once all headers were read, which gives an *index*:
# where each record begins. A checksum of each record is included.

# %%
tokens_s, bytes_each = 100_000, 4  # say a GPU takes so many a second, of 4 bytes of text each
read_us = 3.2 * 12.2  # WebDataset, the slowest in order, for 1,000 bytes
busy = tokens_s * bytes_each / 1000 * read_us * 1e-6
print(f"one core reads what this GPU takes in {busy:.1%} of the time")

# %% [markdown] tags=["further"] minutes=3
# ## Further: an object store
#
# Behind a network each request waits for its first byte. Many requests *in flight* hide that wait, as workers do; large
# ones make it count less. Here a model of a store with 150 ms, 85 MB/s a request and a link of 10 Gbit/s.

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
show(figure_lines(flights, rates, **axes, title="An object store: rate by requests in flight"))

# %% [markdown] tags=["further"] minutes=3
# ## Further: damage
#
# Of many shards some are damaged. A *manifest* lists them, with the records of each. To skip in silence hides what is
# missing; to end may stop a cluster for one record. Choose, but name and count it. Here one byte of a shard is flipped,
# and another shard is cut off. (A worker that dies, such as for want of memory, is named by
# `lablib/data/loading/dead_worker.py`, and the epoch goes on where the loop was.)

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
    print_text(str(loss).replace(folder, "..."))

# %% [markdown] tags=["further"] minutes=3
# ## Further: loaders on other machines
#
# Where a machine has too few cores for its GPUs, other machines load. As messages between ranks the loop runs on the
# simulator too: rank 0 trains, the others send it batches, and a send ends when rank 0 has the batch.
# A load is 250 units of work, a step 100; a unit is one small operator.

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
# Three suffice: 250 / 100 = 2.5, as in exercise 1. What then remains is the first load and twelve steps.

# %% [markdown] tags=["further"] minutes=3
# ## Further: torchdata beside ours
#
# torchdata's `StatefulDataLoader` has a state, too: it counts the batches given out. It resumes exactly with as many
# workers; with another number it ends with an error. Its `StatefulDistributedSampler` goes on with as many ranks as
# before.

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
    with warnings.catch_warnings(action="ignore"):  # it asks torch for what is deprecated
        data = torch.arange(20)
        first = StatefulDataLoader(data, batch_size=2, shuffle=True, num_workers=2)
        batches = iter(first)
        used = [next(batches).tolist() for _ in range(4)]
        for workers in (2, 1):
            try:
                print(f"two workers, then {workers}:", go_on(workers, first.state_dict(), used))
            except AssertionError:
                print(f"two workers, then {workers}: an AssertionError")

# %% [markdown] minutes=1
# ## Summary
#
# - The device waits where loading is slower on average: what is lost so, only more workers, or quicker loads, bring
#   back. Fewest: L over what the device needs a batch, S + C or the larger of S and C, rounded up.
# - Or it waits because loads jitter: batches loaded ahead help, at the price of host memory, if workers can get ahead.
# - Or for workers that start anew in each epoch (keep them), or for copies (pin memory, give copies their own stream).
# - One seed on all ranks and an epoch that counts: each sample once, in an order that changes. Bugs raise no error, so
#   look at what was delivered.
# - To resume exactly, save what the loop has used of the common order, and deal the rest anew.

# %% [markdown]
# ### Sources
#
# - J. Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", 2021, arXiv 2007.06775: how much real
#   training waits for data.
# - D. Murray et al., "tf.data: A Machine Learning Data Processing Framework", 2021, arXiv 2101.12127.
# - A. Audibert et al., "tf.data service: A Case for Disaggregating ML Input Data Processing", 2023, arXiv 2210.14826:
#   loaders on other machines.
# - L. Kleinrock, "Queueing Systems", volume 1, 1975: the queue M/M/k/K.
# - torch 2.13: `torch/utils/data/dataloader.py` and `distributed.py`.
# - "Best Practices Design Patterns: Optimizing Amazon S3 Performance", AWS, 2019.
# - The code: `lablib/data`.

# %%
check
