"""Wrong answers to lab 16: what would GPT-3 cost? And right ones in an unusual style."""

LAYER = """
def layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s):
    flops = {flops}
    all_reduce_s = {all_reduce}
    return {{"products": {products}, "all-reduces": {calls}}}
"""
FLOPS = "3 * (24 * width**2 + 4 * seq_len * width) * tokens / n"
ALL_REDUCE = "2 * (n - 1) / n * 2 * tokens * width / bytes_per_s + 2 * (n - 1) * latency_s"


def _layer(flops=FLOPS, all_reduce=ALL_REDUCE, products="flops / flops_per_s", calls="4 * all_reduce_s"):
    return LAYER.format(flops=flops, all_reduce=all_reduce, products=products, calls=calls)


STEP = """
def step_terms(stages_s, m, message_s, params, replicas, bytes_per_s):
    p, slowest = len(stages_s), max(stages_s)
    return {{"stage": {stage}, "bubble and messages": {bubble}, "data axis": {data}}}
"""
BUBBLE = "sum(stages_s) - slowest + 2 * (p - 1) * message_s"
DATA = "4 * (replicas - 1) / replicas * params / bytes_per_s"


def _step(stage="m * slowest", bubble=BUBBLE, data=DATA):
    return STEP.format(stage=stage, bubble=bubble, data=data)


SEARCH = """
def cheapest(plans, bound_s, step_s):
    best, best_s = None, float("inf")
    for least_s, i in {order}:
        if {stop}:
            break
        seconds = step_s(plans[i])
        if seconds {better} best_s:
            best, best_s = plans[i], seconds
    return {answer}
"""
ORDER = "sorted((bound_s(plan), i) for i, plan in enumerate(plans))"


def _search(order=ORDER, stop="least_s >= best_s", better="<", answer="best"):
    return SEARCH.format(order=order, stop=stop, better=better, answer=answer)


EXPLAIN = """
def explain(wrong, better, step_s):
    plan, now_s, found = {start}, step_s(wrong), []
    left = [name for name in better if wrong[name] != better[name]]
    while left:
        after = {{name: step_s({{**{base}, name: better[name]}}) for name in left}}
        name = {pick}
        found.append((name, {saved}))
        {keep}
        left.remove(name)
    return found
"""


def _explain(
    start="dict(wrong)",
    base="plan",
    pick="min(after, key=after.get)",
    saved="now_s - after[name]",
    keep="plan[name], now_s = better[name], after[name]",
):
    return EXPLAIN.format(start=start, base=base, pick=pick, saved=saved, keep=keep)


WRONG_ANSWERS = {
    "layer_terms": [
        ("forward alone", _layer(flops="(24 * width**2 + 4 * seq_len * width) * tokens / n"), "forward alone"),
        (
            "backward as long as forward",
            _layer(flops="2 * (24 * width**2 + 4 * seq_len * width) * tokens / n"),
            "twice forward's",
        ),
        ("no scores", _layer(flops="3 * 24 * width**2 * tokens / n"), "scores are left out"),
        ("the work is not shared", _layer(flops=FLOPS.removesuffix(" / n")), "they share them"),
        (
            "scores are not shared",
            _layer(flops="72 * width**2 * tokens / n + 12 * seq_len * width * tokens"),
            "products",
        ),
        (
            "causal scores",
            _layer(flops="3 * (24 * width**2 + 2 * seq_len * width) * tokens / n"),
            "'products' is right",
        ),
        ("one all-reduce", _layer(calls="all_reduce_s"), "that is one all-reduce"),
        ("all-reduces of forward", _layer(calls="2 * all_reduce_s"), "'all-reduces' is right"),
        (
            "no latency",
            _layer(all_reduce="2 * (n - 1) / n * 2 * tokens * width / bytes_per_s"),
            "latency of the rounds is left out",
        ),
        (
            "latency once",
            _layer(all_reduce="2 * (n - 1) / n * 2 * tokens * width / bytes_per_s + latency_s"),
            "all-reduces",
        ),
        (
            "numbers of one byte",
            _layer(all_reduce="2 * (n - 1) / n * tokens * width / bytes_per_s + 2 * (n - 1) * latency_s"),
            "a number has 2 bytes",
        ),
        (
            "whole numbers",
            _layer(all_reduce="2 * (n - 1) // n * 2 * tokens * width / bytes_per_s + 2 * (n - 1) * latency_s"),
            "all-reduces",
        ),
        (
            "whole bytes of a piece",
            _layer(all_reduce="2 * (n - 1) * (2 * tokens * width // n / bytes_per_s + latency_s)"),
            "'all-reduces' is right",
        ),
        ("whole FLOPs of a rank", _layer(flops=FLOPS.replace("/ n", "// n")), "'products' is right"),
        (
            "the rounds of a tree",
            "import math\n"
            + _layer(all_reduce=ALL_REDUCE.replace("2 * (n - 1) * lat", "2 * math.ceil(math.log2(n)) * lat")),
            "'all-reduces' is right",
        ),
        (
            "in single precision",
            "import torch\n" + _layer(products="float(torch.tensor(flops / flops_per_s))"),
            "products",
        ),
        ("eight ranks, always", _layer(flops=FLOPS.replace("/ n", "/ 8")), "products"),
        ("FLOPs instead of seconds", _layer(products="flops"), "'products' is right"),
        (
            "returns the sum",
            _layer().replace("return {", "return sum({").rstrip()[:-1] + "}.values())\n",
            "a dict of terms",
        ),
        ("prints", _layer().replace("return {", "print({").rstrip() + ")\n", "is there a return?"),
        ("another name", _layer().replace('"all-reduces"', '"all_reduces"'), "names of the docstring"),
        (
            "the library's own",
            """
from lablib.labs.lab16 import layer_seconds
def layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s):
    return layer_seconds(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s)
""",
            "your own code",
        ),
    ],
    "step_terms": [
        ("mean stage", _step(stage="m * sum(stages_s) / p"), "the mean of the stages"),
        ("the last stage", _step(stage="m * stages_s[-1]"), "the last stage, but"),
        ("the first stage", _step(stage="m * stages_s[0]"), "the first stage, but"),
        (
            "not the first stage",
            _step().replace("max(stages_s)", "max(stages_s[1:], default=stages_s[0])"),
            "(7 stages",
        ),
        (
            "all that are as busy",
            _step(bubble="sum(each + 2 * message_s for each in stages_s if each < slowest)"),
            "6 st",
        ),
        ("no more than m stages", _step(bubble="sum(sorted(stages_s)[:-1][:m]) + 2 * (p - 1) * message_s"), "(4 st"),
        ("rounded", _step(stage="round(m * slowest, 2)"), "'stage' is right"),
        ("no overlap of stages", _step(stage="m * sum(stages_s)"), "work at the same time"),
        ("the bubble is in the stage", _step(stage="(m + p - 1) * slowest"), "'stage' is right"),
        ("p - 1 of the slowest", _step(bubble="(p - 1) * slowest + 2 * (p - 1) * message_s"), "the others are faster"),
        ("messages one way", _step(bubble="sum(stages_s) - slowest + (p - 1) * message_s"), "there and back"),
        ("p boundaries", _step(bubble="sum(stages_s) - slowest + 2 * p * message_s"), "p - 1 boundaries"),
        ("no messages", _step(bubble="sum(stages_s) - slowest"), "messages are left out"),
        ("all messages", _step(bubble="sum(stages_s) - slowest + 2 * m * (p - 1) * message_s"), "bubble"),
        ("the whole sum", _step(bubble="sum(stages_s) + 2 * (p - 1) * message_s"), "counted twice"),
        ("share of the step", _step(bubble="(p - 1) / (m + p - 1)"), "'bubble and messages' is right"),
        ("one call", _step(data="2 * (replicas - 1) / replicas * params / bytes_per_s"), "there are two calls"),
        ("all bytes", _step(data="4 * params / bytes_per_s"), "keeps its own share"),
        ("per replica", _step(data="4 * (replicas - 1) * params / bytes_per_s"), "'data axis' is right"),
        ("whole parameters", _step(data="4 * (params - params // replicas) / bytes_per_s"), "'data axis' is right"),
        ("the next busiest", _step(bubble="(p - 1) * min(stages_s) + 2 * (p - 1) * message_s"), "bubble"),
        ("no bubble of one micro-batch", _step(bubble=f"({BUBBLE}) * (m > 1)"), "(4 stages, 1 m"),
        ("two replicas, always", _step(data="2 * params / bytes_per_s"), "'data axis' is right"),
        (
            "sorts its argument",
            _step().replace("    p, slowest", "    stages_s.sort()\n    p, slowest"),
            "stages_s stays as it was",
        ),
        ("no return", _step().replace("return ", "terms = "), "is there a return?"),
        (
            "the notebook's own",
            "def step_terms(*given, **named):\n    return lab16.step_seconds(*given, **named)\n",
            "it uses lablib.labs.lab16.step_seconds",
        ),
    ],
    "cheapest": [
        ("tries all plans", _search(order="[(0, i) for i in range(len(plans))]"), "calls of step_s"),
        (
            "trusts the bound",
            "def cheapest(plans, bound_s, step_s):\n    return min(plans, key=bound_s, default=None)\n",
            "a bound is not a step",
        ),
        ("the first that is tried", _search(stop="best is not None"), "shortest step"),
        (
            "in the given order",
            """
def cheapest(plans, bound_s, step_s):
    best, best_s = None, float("inf")
    for plan in plans:
        if bound_s(plan) < best_s:
            seconds = step_s(plan)
            if seconds < best_s:
                best, best_s = plan, seconds
    return best
""",
            "calls of step_s",
        ),
        (
            "stops at the first higher bound, unsorted",
            _search(order="((bound_s(plan), i) for i, plan in enumerate(plans))"),
            "",
        ),
        ("from the highest bound", _search(order=f"reversed({ORDER})", stop="False"), "calls of step_s"),
        ("goes on at an equal bound", _search(stop="least_s > best_s"), "calls of step_s"),
        ("the seconds", _search(answer="best_s"), "the plan itself"),
        ("the number", _search().replace("best, best_s = plans[i]", "best, best_s = i"), "the plan itself"),
        ("the slowest", _search(better=">").replace('float("inf")', "0.0"), "a plan of the list"),
        ("none is an error", _search(answer="best or plans[0]"), "IndexError"),
        (
            "bounds computed twice",
            """
def cheapest(plans, bound_s, step_s):
    best, best_s = None, float("inf")
    for plan in sorted(plans, key=bound_s):
        if bound_s(plan) >= best_s:
            break
        if step_s(plan) < best_s:
            best, best_s = plan, step_s(plan)
    return best
""",
            "calls of",
        ),
        (
            "sorts the plans",
            _search().replace("    best, best_s", "    plans.reverse()\n    best, best_s", 1),
            "stays as it was",
        ),
        ("close enough", _search(stop="least_s * 1.01 >= best_s"), ""),
        ("a large number for infinity", _search().replace('float("inf")', "1e6"), "one long plan"),
        (
            "an impossible plan ends it",
            _search().replace(
                "        if seconds", '        if seconds == float("inf"):\n            break\n        if seconds'
            ),
            "the plan itself is returned",
        ),
        (
            "compares plans",
            _search(order="sorted((bound_s(plan), plan) for plan in plans)").replace("plans[i]", "i"),
            "TypeError",
        ),
        (
            "three trials at most",
            _search()
            .replace("    for least_s", "    tried = 0\n    for least_s")
            .replace("least_s >= best_s", "tried == 3")
            .replace("        seconds =", "        tried += 1\n        seconds ="),
            "",
        ),
    ],
    "explain": [
        ("from the wrong plan, always", _explain(base="wrong"), "plan so far"),
        ("in the given order", _explain(pick="left[0]"), "saves most"),
        ("the least first", _explain(pick="max(after, key=after.get)"), "saves most"),
        ("the step instead of the saving", _explain(saved="after[name]"), "seconds saved by"),
        ("negative savings", _explain(saved="after[name] - now_s"), "seconds saved by"),
        ("against the first step", _explain(keep="plan[name] = better[name]"), "seconds saved by"),
        ("changes its argument", _explain(start="wrong"), "stay as they were"),
        ("only larger values", _explain().replace("wrong[name] != ", "wrong[name] < "), "each choice that differs"),
        ("whole seconds", _explain(saved="int(now_s - after[name])"), "seconds saved by"),
        (
            "all choices",
            _explain().replace(" if wrong[name] != better[name]", ""),
            "each choice that differs",
        ),
        (
            "prices again",
            _explain(saved="now_s - step_s({**plan, name: better[name]})"),
            "calls of step_s",
        ),
        ("a dict", _explain().replace("return found", "return dict(found)"), "a list of pairs"),
        (
            "stops when nothing is saved",
            _explain().replace(
                "        found.append", "        if after[name] >= now_s:\n            break\n        found.append"
            ),
            "each choice that differs",
        ),
        (
            "all pairs of choices alone",
            _explain(base="wrong").replace("now_s - after[name]", "abs(now_s - after[name])"),
            "",
        ),
        ("the savings are positive", _explain(saved="abs(now_s - after[name])"), "seconds saved by"),
        ("only the first", _explain().replace("while left:", "if left:"), "each choice that differs"),
        (
            "each alone, sorted",
            """
def explain(wrong, better, step_s):
    whole = step_s(wrong)
    saved = {n: whole - step_s({**wrong, n: better[n]}) for n in better if wrong[n] != better[n]}
    return sorted(saved.items(), key=lambda item: -item[1])
""",
            "",
        ),
        (
            "backward from the better plan",
            """
def explain(wrong, better, step_s):
    plan, now_s, found = dict(better), step_s(better), []
    left = [name for name in better if wrong[name] != better[name]]
    while left:
        after = {name: step_s({**plan, name: wrong[name]}) for name in left}
        name = max(after, key=after.get)
        found.append((name, after[name] - now_s))
        plan[name], now_s = wrong[name], after[name]
        left.remove(name)
    return found
""",
            "plan so far",
        ),
        (
            "only what is put right",
            _explain().replace("step_s({**plan, name: better[name]})", "step_s({name: better[name]})"),
            "a whole plan",
        ),
    ],
}

RIGHT_ANSWERS = {
    "layer_terms": [
        (
            "one rank apart",
            """
def layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s):
    forward_s = (24 * width**2 + 4 * seq_len * width) * tokens / n / flops_per_s
    if n == 1:
        return {"products": forward_s * 3, "all-reduces": 0}
    steps, chunk = 2 * (n - 1), 2 * tokens * width / n
    return {"all-reduces": 4 * (steps * latency_s + steps * chunk / bytes_per_s), "products": forward_s + 2 * forward_s}
""",
        ),
        ("a tensor", "import torch\n" + _layer(products="torch.tensor(flops, dtype=torch.float64) / flops_per_s")),
        (
            "term by term",
            """
def layer_terms(tokens, width, seq_len, n, flops_per_s, bytes_per_s, latency_s):
    passes = ("forward", "backward", "backward")
    products = sum((24 * width * width + 4 * width * seq_len) * tokens for _ in passes) / n / flops_per_s
    rounds = 2 * (n - 1)
    piece_s = latency_s + 2 * tokens * width / n / bytes_per_s
    return dict(products=products) | {"all-reduces": 4 * rounds * piece_s}
""",
        ),
    ],
    "step_terms": [
        (
            "whole micro-batches, and numpy",
            """
import numpy as np
def step_terms(stages_s, m, message_s, params, replicas, bytes_per_s):
    stages = np.array(stages_s)
    others = np.delete(stages, stages.argmax())
    sent = 2 * params * (replicas - 1) / replicas
    bubble = others.sum() + 2 * len(others) * message_s
    names = "stage", "bubble and messages", "data axis"
    return dict(zip(names, (m * stages.max(), bubble, 2 * sent / bytes_per_s)))
""",
        ),
        (
            "tensors",
            "import torch\n" + _step().replace("max(stages_s)", "torch.tensor(stages_s, dtype=torch.float64).max()"),
        ),
        (
            "by a loop",
            """
def step_terms(stages_s, m, message_s, params, replicas, bytes_per_s):
    order = sorted(stages_s)
    bubble = 0.0
    for each in order[:-1]:
        bubble += each + 2 * message_s
    call = 2 * params * (1 - 1 / replicas) / bytes_per_s
    return {"data axis": call + call, "bubble and messages": bubble, "stage": order[-1] * m}
""",
        ),
    ],
    "cheapest": [
        (
            "takes the least bound out, again and again",
            """
def cheapest(plans, bound_s, step_s):
    left = {i: bound_s(plan) for i, plan in enumerate(plans)}
    found = None, float("inf")
    while left:
        i = min(left, key=left.get)
        if not left.pop(i) < found[1]:
            return found[0]
        found = min(found, (plans[i], step_s(plans[i])), key=lambda each: each[1])
    return found[0]
""",
        ),
        (
            "with a heap",
            """
def cheapest(plans, bound_s, step_s):
    import heapq
    heap = [(bound_s(plan), i) for i, plan in enumerate(plans)]
    heapq.heapify(heap)
    best = (float("inf"), None)
    while heap and heap[0][0] < best[0]:
        _, i = heapq.heappop(heap)
        best = min(best, (step_s(plans[i]), plans[i]), key=lambda pair: pair[0])
    return best[1]
""",
        ),
        (
            "skips instead of stopping",
            """
def cheapest(plans, bound_s, step_s):
    bounds = [bound_s(plan) for plan in plans]
    found = []
    for i in sorted(range(len(plans)), key=bounds.__getitem__):
        if bounds[i] < min([s for s, _ in found], default=float("inf")):
            found.append((step_s(plans[i]), i))
    found = [each for each in found if each[0] < float("inf")]
    return plans[min(found)[1]] if found else None
""",
        ),
    ],
    "explain": [
        (
            "one dict, put wrong again",
            """
def explain(wrong, better, step_s):
    plan, pairs = {**wrong}, ()
    before = step_s(plan)
    left = {name for name in wrong if wrong[name] != better[name]}
    while left:
        tried = []
        for name in left:
            plan[name] = better[name]
            tried.append((step_s(plan), name))
            plan[name] = wrong[name]
        now, name = min(tried)
        pairs += ([name, before - now],)
        plan[name], before = better[name], now
        left.discard(name)
    return pairs
""",
        ),
        (
            "recursive, with a memory of prices",
            """
def explain(wrong, better, step_s):
    seen = {}
    def price(plan):
        key = tuple(sorted(plan.items()))
        if key not in seen:
            seen[key] = step_s(plan)
        return seen[key]
    def rest(plan):
        left = [n for n in plan if plan[n] != better[n]]
        if not left:
            return []
        first = min(left, key=lambda n: price({**plan, n: better[n]}))
        then = {**plan, first: better[first]}
        return [(first, price(plan) - price(then)), *rest(then)]
    return rest(dict(wrong))
""",
        ),
        (
            "a loop with a best so far, and a tuple of pairs",
            """
def explain(wrong, better, step_s):
    pairs, plan = (), {**wrong}
    before = step_s(plan)
    while plan != better:
        best = None
        for name, value in better.items():
            if plan[name] == value:
                continue
            trial = plan.copy()
            trial[name] = value
            after = step_s(trial)
            if best is None or after < best[0]:
                best = after, name, trial
        after, name, plan = best
        pairs += ((name, before - after),)
        before = after
    return pairs
""",
        ),
    ],
}
