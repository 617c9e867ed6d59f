"""Wrong answers to lab 07: the data pipeline, and right ones in an unusual style."""

_WORKERS = """
def fewest_workers(load_ms, copy_ms, step_ms, own_stream, most):
    busy_ms = {busy}
    workers = {workers}
    return {returned}
"""


def _workers(
    busy: str = "max(copy_ms, step_ms) if own_stream else copy_ms + step_ms",
    workers: str = "-(-load_ms // busy_ms)",
    returned: str = "workers if workers <= most else None",
) -> str:
    return _WORKERS.format(busy=busy, workers=workers, returned=returned)


_PREFETCH = """
def smallest_prefetch(loads, step):
    {first}
    for prefetch in {tried}:
        takes, loaded = [], 0
        for number, load in enumerate(loads):
            ordered = {ordered}
            loaded = {loaded}
            takes.append({taken})
        if {good}:
            return {returned}
    return {none}
"""


def _prefetch(
    first: str = "pass",
    tried: str = "range(1, len(loads) + 1)",
    ordered: str = "takes[number - prefetch] if number >= prefetch else 0",
    loaded: str = "max(loaded, ordered) + load",
    taken: str = "max(loaded, takes[-1] + step) if takes else loaded",
    good: str = "all(b - a == step for a, b in zip(takes, takes[1:]))",
    returned: str = "prefetch",
    none: str = "None",
) -> str:
    return _PREFETCH.format(
        first=first, tried=tried, ordered=ordered, loaded=loaded, taken=taken, good=good, returned=returned, none=none
    )


_BUGS = """
from collections import Counter


def order_bugs(delivered, num_samples):
    bugs = set()
    for epoch in {epochs}:
        counts = Counter({samples})
        if {lost}:
            bugs.add("lost")
        if {repeated}:
            bugs.add("repeated")
    for parts in {ranks}:
        if {stale}:
            bugs.add("stale")
    return {returned}
"""


def _bugs(
    epochs: str = "delivered",
    samples: str = "sample for part in epoch for sample in part",
    lost: str = "len(counts) < num_samples",
    repeated: str = "max(counts.values()) > 1",
    ranks: str = "zip(*delivered)",
    stale: str = "len({tuple(part) for part in parts}) < len(parts)",
    returned: str = "bugs",
) -> str:
    return _BUGS.format(
        epochs=epochs, samples=samples, lost=lost, repeated=repeated, ranks=ranks, stale=stale, returned=returned
    )


_RESUME = """
def resume(order, runs, ranks):
    left = {start}
    for run in {runs}:
        used = set()
        for rank, {pair} in enumerate(run):
            used.update({used})
        left = {rest}
    return {dealt}
"""


def _resume(
    start: str = "list(order)",
    runs: str = "runs",
    pair: str = "(loaded, count)",
    used: str = "left[rank :: len(run)][:count]",
    rest: str = "[sample for sample in left if sample not in used]",
    dealt: str = "[left[rank::ranks] for rank in range(ranks)]",
) -> str:
    return _RESUME.format(start=start, runs=runs, pair=pair, used=used, rest=rest, dealt=dealt)


def _mask(returned: str, before: str = "pass") -> str:
    return f"def document_mask(documents):\n    {before}\n    return {returned}\n"


_SAME = "(documents[:, :, None] == documents[:, None, :])"

WRONG_ANSWERS = {
    "fewest_workers": [
        ("rounds down", _workers(workers="max(1, load_ms // busy_ms)"), "just short of k steps"),
        ("rounds to the nearest", _workers(workers="max(1, round(load_ms / busy_ms))"), "a fraction is rounded up"),
        ("always one more", _workers(workers="load_ms // busy_ms + 1"), "a load that steps divide"),
        ("leaves the fraction", _workers(workers="load_ms / busy_ms"), "a whole number of workers, or None"),
        (
            "rounds up in seconds",
            "import math\n" + _workers(workers="math.ceil((load_ms / 1000) / (busy_ms / 1000))"),
            "a load of seven steps",
        ),
        ("tries 12 at most", _workers(returned="workers if workers <= min(12, most) else None"), "many workers"),
        (
            "caches its answers without the most in the key",
            "kept = {}\n"
            + _workers(
                workers="kept.setdefault((load_ms, copy_ms, step_ms, own_stream), (-(-load_ms // busy_ms), most))",
                returned="workers[0] if workers[0] <= workers[1] else None",
            ),
            "the same, where one more is needed",
        ),
        ("rounds up nearly whole numbers only", _workers(workers="int(load_ms / busy_ms + 0.999)"), "long steps"),
        ("forgets the copy", _workers(busy="step_ms"), "a long copy and the step"),
        ("adds the copy always", _workers(busy="copy_ms + step_ms"), "a short copy hides behind the step"),
        ("the larger always", _workers(busy="max(copy_ms, step_ms)"), "a long copy and the step"),
        (
            "on its own stream the copy is free",
            _workers(busy="step_ms if own_stream else copy_ms + step_ms"),
            "a long copy decides",
        ),
        (
            "on its own stream only the copy counts",
            _workers(busy="max(1, copy_ms) if own_stream else copy_ms + step_ms"),
            "a short copy hides behind the step",
        ),
        ("the most instead of None", _workers(returned="min(workers, most)"), "None where even the most"),
        ("0 instead of None", _workers(returned="workers if workers <= most else 0"), "None where even the most"),
        (
            "None where it is just enough",
            _workers(returned="workers if workers < most else None"),
            "just as many as there may be",
        ),
        ("ignores the most", _workers(returned="workers"), "None where even the most"),
        (
            "the copy as a part of the load",
            _workers(workers="-(-(load_ms + copy_ms) // busy_ms)"),
            "in one stream copy and step follow",
        ),
        ("without the step's own time", _workers(workers="-(-(load_ms - step_ms) // busy_ms)"), "steps divide"),
        ("never fewer than two", _workers(workers="max(2, -(-load_ms // busy_ms))"), "as short as a step"),
        ("0 for short loads", _workers(workers="-(-load_ms // busy_ms) if load_ms > busy_ms else 0"), "short"),
        ("a text", _workers(returned='f"{workers}"'), "a whole number of workers, or None"),
        (
            "loads that worker and device share",
            _workers(busy="max(copy_ms, step_ms) + copy_ms"),
            "a long copy and the step",
        ),
    ],
    "smallest_prefetch": [
        ("always 1", _prefetch(first="return 1"), "comes too early"),
        ("as many as loads", _prefetch(first="return len(loads)"), "nothing is late"),
        ("one more than enough", _prefetch(returned="prefetch + 1"), "one batch"),
        ("one less than enough", _prefetch(returned="max(prefetch - 1, 1)"), "slow loads one after another"),
        (
            "0 where nothing is late",
            _prefetch(tried="range(len(loads) + 1)", ordered="takes[number - max(1, prefetch)] if takes else 0"),
            "without an order nothing is loaded",
        ),
        (
            "the slowest load over the step",
            _prefetch(first="return -(-max(loads) // step) or 1"),
            "batch 0",
        ),
        (
            "the slowest load over the step, None if longer than the loads",
            _prefetch(first="n = -(-max(loads[1:] or [1]) // step)\n    return n if n <= len(loads) else None"),
            "steps of",
        ),
        ("the wait for batch 0 counts", _prefetch(good="takes == [step * n for n in range(len(loads))]"), "one batch"),
        ("only the mean", _prefetch(first="return 1 if sum(loads) <= step * len(loads) else None"), "steps of"),
        (
            "orders all at the start",
            _prefetch(ordered="0"),
            "steps",
        ),
        (
            "ordered when the step has ended",
            _prefetch(ordered="takes[number - prefetch] + step if number >= prefetch else 0"),
            "steps of",
        ),
        ("a worker for each order", _prefetch(loaded="ordered + load"), "steps of"),
        ("a take does not wait for the step", _prefetch(taken="loaded"), "nothing is late"),
        (
            "ignores the last gap",
            _prefetch(good="all(b - a == step for a, b in zip(takes[:-1], takes[1:-1]))"),
            "the last load is slow",
        ),
        (
            "ignores waits of up to one step",
            _prefetch(good="all(b - a <= 2 * step for a, b in zip(takes, takes[1:]))"),
            "steps of",
        ),
        ("-1 where no P is enough", _prefetch(none="-1"), "without an order nothing is loaded"),
        ("the most where no P is enough", _prefetch(none="len(loads)"), "comes too early"),
        ("tries too few", _prefetch(tried="range(1, 4)"), "steps"),
        ("leaves out the last P", _prefetch(tried="range(1, len(loads))"), "one batch, loaded in no time"),
        ("tries powers of two only", _prefetch(tried="[2**n for n in range(12)]"), "steps"),
        ("a float", _prefetch(returned="float(prefetch)"), "a whole number, or None"),
        ("tries 64 at most", _prefetch(tried="range(1, min(len(loads), 64) + 1)"), "many orders are needed"),
        ("all but two", _prefetch(tried="range(1, max(2, len(loads) - 1))"), "all orders of the start but one"),
        (
            "sums of 12 loads instead of the times",
            """
def smallest_prefetch(loads, step):
    if any(sum(loads[1 : n + 1]) > step * n for n in range(1, len(loads))):
        return None
    most = 1
    for width in range(1, 13):
        for first in range(1, len(loads) - width + 1):
            most = max(most, -(-sum(loads[first : first + width]) // step) - width + 1)
    return most if most <= len(loads) else None
""",
            "many slow loads one after another",
        ),
        (
            "ignores a delay of one percent",
            _prefetch(good="all(b - a <= 1.01 * step for a, b in zip(takes, takes[1:]))"),
            "late by one of many ms",
        ),
        ("looks at 250 loads", _prefetch(first="loads = loads[:250]"), "the last of many is slow"),
        ("sorts the loads", _prefetch(first="loads.sort()"), "the loads stay as they were"),
    ],
    "order_bugs": [
        ("nothing is ever wrong", _bugs(returned="set()"), "one epoch, the last sample lost"),
        ("a list", _bugs(returned="sorted(bugs)"), "a set of words is returned"),
        ("returns only whether there is a bug", _bugs(returned="bool(bugs)"), "a set of words is returned"),
        ("one bug at most", _bugs(returned="set(sorted(bugs)[:1])"), "stale and lost"),
        ("looks at the first epoch only", _bugs(epochs="delivered[:1]"), "lost, in the second epoch only"),
        ("looks at the last epoch only", _bugs(epochs="delivered[-1:]"), "lost"),
        (
            "counts all epochs together",
            _bugs(epochs="[sum(delivered, [])]"),
            "nothing is wrong",
        ),
        (
            "lost only where a sample is in no epoch at all",
            _bugs(lost="len({s for e in delivered for p in e for s in p}) < num_samples"),
            "each epoch loses",
        ),
        (
            "lost by the number delivered",
            _bugs(lost="sum(counts.values()) < num_samples"),
            "lost, and as many repeated",
        ),
        ("lost where numbers differ", _bugs(lost="sum(counts.values()) != num_samples"), "nothing lost"),
        ("repeated by the number delivered", _bugs(repeated="counts.total() > num_samples"), "as many repeated"),
        (
            "repeated within a rank only",
            _bugs(repeated="any(len(set(part)) < len(part) for part in epoch)"),
            "three times, to three ranks",
        ),
        (
            "repeated between ranks only",
            _bugs(repeated="sum(len(set(part)) for part in epoch) > len(counts)"),
            "three times to one rank",
        ),
        ("repeated three times or more", _bugs(repeated="max(counts.values()) > 2"), "repeated by two ranks"),
        ("the first rank only for stale", _bugs(ranks="list(zip(*delivered))[:1]"), "the last rank stale"),
        ("the last rank only for stale", _bugs(ranks="list(zip(*delivered))[-1:]"), "the first rank stale"),
        (
            "stale only if all ranks are",
            _bugs(ranks="[[sum(epoch, []) for epoch in delivered]]"),
            "two of three ranks",
        ),
        (
            "neighbouring epochs only",
            _bugs(stale="any(a == b for a, b in zip(parts, parts[1:]))"),
            "the first and the third epoch are the same",
        ),
        (
            "only against the first epoch",
            _bugs(stale="any(part == parts[0] for part in parts[1:])"),
            "the second and the third epoch are the same",
        ),
        (
            "stale only if all epochs are the same",
            _bugs(stale="len(parts) > 1 and len({tuple(part) for part in parts}) == 1"),
            "first two of three",
        ),
        (
            "the same samples in another order are stale",
            _bugs(stale="len({tuple(sorted(part)) for part in parts}) < len(parts)"),
            "another order",
        ),
        (
            "one place the same is stale",
            _bugs(stale="any(a == b for other in parts[1:] for a, b in zip(parts[0], other))"),
            "an epoch begins like the one before",
        ),
        (
            "half of the places the same is stale",
            _bugs(stale="any(sum(map(int.__eq__, parts[0], p)) * 2 >= len(p) for p in parts[1:])"),
            "most places are the same",
        ),
        (
            "orders of different ranks are compared",
            _bugs(ranks="[[part for epoch in delivered for part in epoch]]"),
            "two ranks change parts",
        ),
        ("never stale", _bugs(stale="False"), "all ranks stale"),
        (
            "compares only parts that differ",
            _bugs(
                repeated="any(set(p) & set(q) for p in epoch for q in epoch if p != q) "
                "or any(len(set(p)) < len(p) for p in epoch)"
            ),
            "every rank gets all",
        ),
        (
            "repeated looks at the end of a part",
            _bugs(repeated="any(p[-1] in p[:-1] for p in epoch) or sum(map(len, map(set, epoch))) > len(counts)"),
            "twice within a part, not at its ends",
        ),
        (
            "two epochs with the same row of samples are stale",
            _bugs(
                stale="len({tuple(p) for p in parts}) < len(parts) or len({str(sum(e, [])) for e in delivered}) < "
                "len(delivered)"
            ),
            "the same row of samples, cut elsewhere",
        ),
        (
            "sorts the delivered parts",
            _bugs(samples="sample for part in epoch for sample in (part.sort() or part)"),
            "delivered stays as it was",
        ),
        ("other words", _bugs(returned="{bug.upper() for bug in bugs}"), "the last sample lost"),
        ("None where nothing is wrong", _bugs(returned="bugs or None"), "a set of words is returned"),
        (
            "lost does not look at sample 0",
            _bugs(lost="set(range(1, num_samples)) - set(counts)"),
            "the first sample lost",
        ),
        (
            "lost by the first and the last epoch",
            _bugs(lost="len(counts) < num_samples and epoch in (delivered[0], delivered[-1])"),
            "lost in the middle epoch only",
        ),
        (
            "repeated by the first and the last epoch",
            _bugs(repeated="max(counts.values()) > 1 and epoch in (delivered[0], delivered[-1])"),
            "repeated in the middle epoch only",
        ),
        (
            "repeated by counts over all epochs",
            _bugs(repeated="max(Counter(s for e in delivered for p in e for s in p).values()) > len(delivered)"),
            "lost in one epoch, repeated in the other",
        ),
        (
            "adjacent ranks only",
            _bugs(
                repeated="any(set(a) & set(b) for a, b in zip(epoch, epoch[1:])) "
                "or any(len(set(p)) < len(p) for p in epoch)"
            ),
            "the first and the third rank share",
        ),
        (
            "samples of the first rank only",
            _bugs(
                repeated="any(set(epoch[0]) & set(b) for b in epoch[1:]) or any(len(set(p)) < len(p) for p in epoch)"
            ),
            "the second and the third rank share",
        ),
        (
            "stale by neighbours, and the last with the first",
            _bugs(stale="any(parts[k] == parts[k - 1] for k in range(len(parts)) if len(parts) > 1)"),
            "the second and the last of five epochs are the same",
        ),
        (
            "stale one and two epochs apart",
            _bugs(stale="any(a == b for d in (1, 2) for a, b in zip(parts, parts[d:]))"),
            "the first and the fourth epoch are the same",
        ),
        ("stale of two ranks only", _bugs(ranks="list(zip(*delivered))[:2]"), "the third of four ranks stale"),
        (
            "joins the digits without a separator",
            _bugs(stale="len({''.join(map(str, part)) for part in parts}) < len(parts)"),
            "numbers of two digits",
        ),
        (
            "stale by the first and the last sample",
            _bugs(stale="len({(part[0], part[-1], len(part)) for part in parts if len(part) > 2}) < len(parts)"),
            "",
        ),
        ("the first three epochs", _bugs(epochs="delivered[:3]"), "lost and repeated in the fourth epoch"),
    ],
    "resume": [
        (
            "finds a run by its content",
            """
def resume(order, runs, ranks):
    lefts = [list(order)]
    for run in runs:
        left = lefts[runs.index(run)]
        used = {s for rank, (_, count) in enumerate(run) for s in left[rank :: len(run)][:count]}
        lefts.append([s for s in left if s not in used])
    return [lefts[-1][rank::ranks] for rank in range(ranks)]
""",
            "the same run twice",
        ),
        ("at most three were used", _resume(used="left[rank :: len(run)][: min(count, 3)]"), "much was used"),
        (
            "two ranks if there was no run",
            "def resume(order, runs, ranks):\n    if not runs:\n        return [order[0::2], order[1::2]]"
            + _resume()[1:].replace("def resume(order, runs, ranks):", ""),
            "no run so far, one rank",
        ),
        ("three runs only", _resume(runs="runs[:3]"), "no sample is used again (four runs"),
        (
            "four ranks at most",
            _resume(dealt="[left[rank::ranks] for rank in range(min(4, ranks))]"),
            "a list for each",
        ),
        (
            "caches the remaining samples of an order",
            "kept = {}\n"
            + _resume(dealt="[kept.setdefault(tuple(order), left)[rank::ranks] for rank in range(ranks)]"),
            "the same order, the second ahead",
        ),
        ("texts", _resume(dealt="[[str(s) for s in left[rank::ranks]] for rank in range(ranks)]"), "hold samples"),
        ("starts the epoch again", _resume(runs="[]"), "no sample is used again"),
        ("counts what was loaded", _resume(pair="(count, used_)"), "no sample is lost (one rank, samples loaded"),
        (
            "only the last run",
            _resume(runs="runs[-1:]"),
            "no sample is used again",
        ),
        ("only the first run", _resume(runs="runs[:1]"), "no sample is used again"),
        ("the runs backwards", _resume(runs="runs[::-1]"), "no sample is"),
        (
            "parts of the whole order in each run",
            _resume(used="list(order)[rank :: len(run)][:count]"),
            "no sample is used again (two runs",
        ),
        (
            "parts in one piece, not in turn",
            _resume(used="left[rank * (len(left) // len(run)) :][:count]"),
            "no sample is",
        ),
        (
            "as many as all used, from the front",
            _resume(rest="left[sum(count for _, count in run) :]"),
            "no sample is",
        ),
        (
            "all used as many as the first rank",
            _resume(used="left[rank :: len(run)][: run[0][1]]"),
            "no sample is lost (three ranks",
        ),
        (
            "all used as many as the rank that used least",
            _resume(used="left[rank :: len(run)][: min(one for _, one in run)]"),
            "used again (three ranks",
        ),
        (
            "all used as many as the rank that used most",
            _resume(used="left[rank :: len(run)][: max(one for _, one in run)]"),
            "lost (three ranks",
        ),
        (
            "the parts of the new ranks",
            _resume(used="left[rank::ranks][:count]"),
            "no sample is",
        ),
        (
            "one more is used",
            _resume(used="left[rank :: len(run)][: count + 1]"),
            "no sample is lost (one rank, one more",
        ),
        ("one less is used", _resume(used="left[rank :: len(run)][: max(0, count - 1)]"), "no sample is used again"),
        (
            "used from the end of a part",
            _resume(used="left[rank :: len(run)][::-1][:count]"),
            "no sample is",
        ),
        ("only the first rank's", _resume(used="left[:: len(run)][:count] if rank == 0 else []"), "used again"),
        (
            "deals in pieces",
            _resume(dealt="[left[r * len(left) // ranks : (r + 1) * len(left) // ranks] for r in range(ranks)]"),
            "goes to rank i mod",
        ),
        ("gives all to every rank", _resume(dealt="[left for _ in range(ranks)]"), "no sample is dealt twice"),
        (
            "drops the remainder",
            _resume(dealt="[left[rank::ranks][: len(left) // ranks] for rank in range(ranks)]"),
            "no sample is lost",
        ),
        (
            "pads with the first samples",
            _resume(dealt="[(left + left[: -len(left) % ranks])[rank::ranks] for rank in range(ranks)]"),
            "no sample is dealt twice",
        ),
        ("sorts the remaining samples", _resume(rest="sorted(set(left) - used)"), "in the epoch's order"),
        ("deals from the last rank on", _resume(dealt="[left[rank::ranks] for rank in range(ranks)][::-1]"), "goes to"),
        ("one list", _resume(dealt="left"), "a list for each rank is returned"),
        (
            "as many lists as the last run had",
            _resume(
                runs="runs + [[(0, 0)] * ranks] * (not runs)", dealt="[left[r :: len(run)] for r in range(len(run))]"
            ),
            "there is a list for each rank",
        ),
        (
            "takes used samples out of the order",
            _resume(start="order", rest="[left.remove(sample) for sample in used] and left or left"),
            "the order stays as it was",
        ),
        (
            "uses up the list of runs",
            _resume(runs="[runs.pop(0) for _ in range(len(runs))]"),
            "the list of runs stays as it was",
        ),
        (
            "confuses places and samples",
            _resume(used="range(rank, rank + count * len(run), len(run))"),
            "no sample is",
        ),
        (
            "removes samples while it deals to other ranks",
            """
def resume(order, runs, ranks):
    left = list(order)
    for run in runs:
        for rank, (_, count) in enumerate(run):
            used = left[rank :: len(run)][:count]
            left = [sample for sample in left if sample not in used]
    return [left[rank::ranks] for rank in range(ranks)]
""",
            "no sample is",
        ),
    ],
    "document_mask": [
        (
            "treats padding as document 0",
            _mask(f"{_SAME}.tril()[:, None]", "documents = documents.masked_fill(documents < 0, 0)"),
            "padding before document 0",
        ),
        (
            "treats padding as document T",
            _mask(f"{_SAME}.tril()[:, None]", "documents = documents.masked_fill(documents < 0, documents.shape[1])"),
            "padding before document 12",
        ),
        (
            "has one mask for each shape",
            "OUT = {}\n"
            + _mask(f"OUT.setdefault(documents.shape, {_SAME}[:, None].clone()).copy_({_SAME}.tril()[:, None])"),
            "the mask of the call before stays unchanged",
        ),
        (
            "counts positions in a byte",
            _mask(
                f"({_SAME} & (place[:, None] >= place))[:, None]",
                "place = torch.arange(documents.shape[1]).to(torch.int8)",
            ),
            "a long block",
        ),
        (
            "the causal mask alone",
            _mask(f"torch.ones_like({_SAME}).tril()[:, None]"),
            "no token sees another document",
        ),
        ("no causal mask", _mask(f"{_SAME}[:, None]"), "no token sees a later one"),
        ("the upper half", _mask(f"{_SAME}.triu()[:, None]"), "no token sees a later one (one document"),
        (
            "does not see itself",
            _mask(f"{_SAME}.tril(-1)[:, None]"),
            "every token sees itself, padding too (one document",
        ),
        ("True for the tokens that it must not see", _mask(f"~{_SAME}.tril()[:, None]"), "every token sees itself"),
        (
            "padding sees nothing",
            _mask(f"({_SAME}.tril() & (documents >= 0)[:, :, None])[:, None]"),
            "every token sees itself, padding too (documents and padding",
        ),
        ("shape (B, T, T)", _mask(f"{_SAME}.tril()"), "the mask has the shape (B, 1, T, T)"),
        ("shape (1, B, T, T)", _mask(f"{_SAME}.tril()[None]"), "the mask has the shape (B, 1, T, T) (several blocks"),
        (
            "numbers to add, 0 and -inf",
            _mask(f"torch.zeros({_SAME}.shape).masked_fill(~{_SAME}.tril(), -torch.inf)[:, None]"),
            "the mask is a tensor of booleans",
        ),
        ("whole numbers", _mask(f"{_SAME}.tril()[:, None].long()"), "the mask is a tensor of booleans"),
        (
            "the first block's mask for all",
            _mask(f"{_SAME}.tril()[:1, None].expand(len(documents), -1, -1, -1).clone()"),
            "(several blocks",
        ),
        (
            "sees documents of smaller numbers",
            _mask("(documents[:, :, None] >= documents[:, None, :]).tril()[:, None]"),
            "no token sees another document",
        ),
        (
            "sees only its neighbour",
            _mask(f"({_SAME}.tril() & ~{_SAME}.tril(-2))[:, None]"),
            "a token sees all tokens before it in its own document (one document",
        ),
        (
            "sees the first token of the block",
            _mask("same.tril()[:, None]", f"same = {_SAME}; same[:, :, 0] = True"),
            "no token sees another document (equal documents",
        ),
        (
            "treats document 0 as padding",
            _mask(
                "((same & real).tril() | torch.eye(documents.shape[1], dtype=torch.bool))[:, None]",
                f"same, real = {_SAME}, (documents > 0)[:, :, None]",
            ),
            "a token sees all tokens before it in its own document",
        ),
        (
            "documents of equal length",
            """
def document_mask(documents):
    length = int((documents[0] == documents[0, 0]).sum())
    place = torch.arange(documents.shape[1]) // length
    same = (place[:, None] == place[None, :]).tril()
    return same.expand(len(documents), -1, -1)[:, None].clone()
""",
            "(documents of different lengths",
        ),
        (
            "one document after another, numbered 0, 1, 2",
            """
def document_mask(documents):
    number = (torch.diff(documents, dim=1, prepend=documents[:, :1]) > 0).cumsum(1)
    return (number[:, :, None] == number[:, None, :]).tril()[:, None]
""",
            "no token sees another document",
        ),
        (
            "renumbers padding in place",
            _mask(f"{_SAME}.tril()[:, None]", "documents[documents < 0] = 99"),
            "the input stays as it was",
        ),
        (
            "tokens see padding before them",
            _mask(f"({_SAME} | (documents < 0)[:, None, :]).tril()[:, None]"),
            "no token sees another document (padding in front, and between documents",
        ),
        (
            "places documents from the start of the block",
            """
def document_mask(documents):
    rows, length = documents.shape
    mask = torch.eye(length, dtype=torch.bool).repeat(rows, 1, 1, 1)
    for row, numbers in enumerate(documents):
        at = 0
        for size in torch.unique_consecutive(numbers[numbers >= 0], return_counts=True)[1].tolist():
            mask[row, 0, at : at + size, at : at + size] = torch.ones(size, size).tril().bool()
            at += size
    return mask
""",
            "(padding in front, and between documents",
        ),
        (
            "numbers in 8 bits",
            _mask(f"{_SAME}.tril()[:, None]", "documents = documents.to(torch.uint8)"),
            "no token sees another document (large numbers of documents",
        ),
        (
            "numbers in FP16",
            _mask(f"{_SAME}.tril()[:, None]", "documents = documents.half()"),
            "no token sees another document (large numbers of documents",
        ),
        (
            "close numbers are equal",
            _mask(
                "torch.isclose(numbers[:, :, None], numbers[:, None, :]).tril()[:, None]", "numbers = documents.float()"
            ),
            "no token sees another document (large numbers of documents",
        ),
        (
            "64 documents at most",
            _mask(
                "(one @ one.transpose(1, 2) > 0).tril()[:, None]",
                "one = torch.nn.functional.one_hot(documents + 1, 64).float()",
            ),
            "Class values must be smaller than num_classes",
        ),
        (
            "keeps the mask of a shape",
            f"""
def document_mask(documents, kept={{}}):
    if documents.shape not in kept:
        kept[documents.shape] = {_SAME}.tril()[:, None]
    return kept[documents.shape]
""",
            "entries are wrong",
        ),
        ("returns nothing", _mask("None"), "the mask is a tensor of booleans (one document"),
        (
            "uses the library's function",
            _mask("packed_attention.document_mask(documents)", "from lablib.batches import packed_attention"),
            "the answer is your own code",
        ),
    ],
}

RIGHT_ANSWERS = {
    "fewest_workers": [
        (
            "by trying",
            """
def fewest_workers(load_ms, copy_ms, step_ms, own_stream, most):
    for workers in range(1, most + 1):
        if load_ms <= workers * (max(copy_ms, step_ms) if own_stream else copy_ms + step_ms):
            return workers
""",
        ),
        (
            "with fractions",
            """
def fewest_workers(load_ms, copy_ms, step_ms, own_stream, most):
    import math
    from fractions import Fraction
    join = max if own_stream else lambda a, b: a + b
    needed = math.ceil(Fraction(load_ms, join(copy_ms, step_ms)))
    return None if needed > most else needed
""",
        ),
        ("adds before it divides", _workers(workers="(load_ms + busy_ms - 1) // busy_ms")),
        ("rounds up with floats", "import math\n" + _workers(workers="math.ceil(load_ms / busy_ms)")),
        ("a number of numpy's", "import numpy as np\n" + _workers(workers="np.int64(-(-load_ms // busy_ms))")),
    ],
    "smallest_prefetch": [
        (
            "by halves",
            """
def smallest_prefetch(loads, step):
    def waits(prefetch):
        takes, loaded = [], 0
        for number, load in enumerate(loads):
            loaded = max(loaded, takes[number - prefetch] if number >= prefetch else 0) + load
            if takes and loaded > takes[-1] + step:
                return True
            takes.append(max(loaded, takes[-1] + step) if takes else loaded)
        return False

    if waits(len(loads)):
        return None
    few, enough = 0, len(loads)
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (middle, enough) if waits(middle) else (few, middle)
    return enough
""",
        ),
        (
            "with due times: without a wait batch i is taken at the first load's end plus i steps",
            """
def smallest_prefetch(loads, step):
    due = [loads[0] + step * number for number in range(len(loads))]
    for prefetch in range(1, len(loads) + 1):
        end = 0
        for number, load in enumerate(loads):
            end = max(end, due[number - prefetch] if number >= prefetch else 0) + load
            if end > due[number]:
                break
        else:
            return prefetch
""",
        ),
        ("batch 0 only moves all times", _prefetch(first="loads = [0, *loads[1:]]")),
        (
            "by counting up in a while loop, with a queue of orders",
            """
def smallest_prefetch(loads, step):
    prefetch = 1
    while prefetch <= len(loads):
        orders, free, ends, waited = [0] * prefetch, 0, None, 0
        for load in loads:
            free = max(free, orders.pop(0)) + load
            take = free if ends is None else max(free, ends)
            waited += 0 if ends is None else take - ends
            ends = take + step
            orders.append(take)
        if not waited:
            return prefetch
        prefetch += 1
    return None
""",
        ),
    ],
    "order_bugs": [
        (
            "with sorted lists",
            """
def order_bugs(delivered, num_samples):
    found = []
    for number, epoch in enumerate(delivered):
        flat = sorted(sum(epoch, []))
        found += ["lost"] * (set(flat) != set(range(num_samples)))
        found += ["repeated"] * any(a == b for a, b in zip(flat, flat[1:]))
        for other in delivered[:number]:
            found += ["stale"] * any(mine == theirs for mine, theirs in zip(epoch, other))
    return frozenset(found)
""",
        ),
        (
            "in one expression",
            """
def order_bugs(delivered, num_samples):
    flats = [[s for part in epoch for s in part] for epoch in delivered]
    stale = any(len(set(map(tuple, parts))) < len(parts) for parts in zip(*delivered))
    tests = {
        "lost": any(len(set(flat)) < num_samples for flat in flats),
        "repeated": any(len(set(flat)) < len(flat) for flat in flats),
        "stale": stale,
    }
    return {word for word, is_so in tests.items() if is_so}
""",
        ),
        (
            "with tensors",
            """
def order_bugs(delivered, num_samples):
    bugs = set()
    for epoch in delivered:
        counts = torch.bincount(torch.tensor(sum(epoch, [])), minlength=num_samples)
        bugs |= {"lost"} if (counts == 0).any() else set()
        bugs |= {"repeated"} if (counts > 1).any() else set()
    for rank in range(len(delivered[0])):
        seen = set()
        for epoch in delivered:
            key = repr(epoch[rank])
            bugs |= {"stale"} if key in seen else set()
            seen.add(key)
    return bugs
""",
        ),
    ],
    "resume": [
        (
            "by place and rank",
            """
def resume(order, runs, ranks):
    left = tuple(order)
    for run in runs:
        kept = []
        for place, sample in enumerate(left):
            turn, rank = divmod(place, len(run))
            if turn >= run[rank][1]:
                kept.append(sample)
        left = kept
    return [list(left[rank::ranks]) for rank in range(ranks)]
""",
        ),
        (
            "recursively",
            """
def resume(order, runs, ranks):
    if not runs:
        return [[s for place, s in enumerate(order) if place % ranks == rank] for rank in range(ranks)]
    parts = resume(order, [], len(runs[0]))
    rest = {s for part, (_, used) in zip(parts, runs[0]) for s in part[used:]}
    return resume([s for s in order if s in rest], runs[1:], ranks)
""",
        ),
        (
            "with marks over the order, and tuples",
            """
def resume(order, runs, ranks):
    is_left = [True] * len(order)
    for run in runs:
        places = [place for place, left in enumerate(is_left) if left]
        for rank, pair in enumerate(run):
            for place in places[rank :: len(run)][: pair[1]]:
                is_left[place] = False
    rest = [sample for sample, left in zip(order, is_left) if left]
    return tuple(tuple(rest[rank::ranks]) for rank in range(ranks))
""",
        ),
    ],
    "document_mask": [
        (
            "token by token",
            """
def document_mask(documents):
    rows, length = documents.shape
    mask = torch.zeros(rows, 1, length, length, dtype=torch.bool)
    for b in range(rows):
        for i in range(length):
            for j in range(i + 1):
                mask[b, 0, i, j] = bool(documents[b, i] == documents[b, j])
    return mask
""",
        ),
        (
            "by borders, each padding token alone",
            """
def document_mask(documents):
    number = (torch.diff(documents, dim=1, prepend=documents[:, :1]) != 0).cumsum(1)
    places = torch.arange(documents.shape[1])
    mask = (number.unsqueeze(2) == number.unsqueeze(1)) & (places[:, None] >= places[None, :])
    mask &= (documents >= 0)[:, :, None] | torch.eye(len(places), dtype=torch.bool)
    return mask.unsqueeze(1)
""",
        ),
        (
            "by excluding forbidden pairs; padding sees everything before it",
            """
def document_mask(documents):
    a, b = torch.broadcast_tensors(documents[:, None, :, None], documents[:, None, None, :])
    return torch.tril(torch.eq(a, b) | (a < 0))
""",
        ),
    ],
}
