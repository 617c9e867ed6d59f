"""Wrong answers to lab 18."""

WRONG_ANSWERS = {
    "size_for_budget": [
        (
            "hours taken as seconds",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops = gpu_hours * flops_per_s
    sizes = [smallest * (largest / smallest) ** (i / 2000) for i in range(2001)]
    best = min(sizes, key=lambda size: loss(size, flops / (6 * size)))
    return best, flops / (6 * best)
""",
            "an hour has 3600 s",
        ),
        (
            "forward alone",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops = gpu_hours * 3600 * flops_per_s
    sizes = [smallest * (largest / smallest) ** (i / 2000) for i in range(2001)]
    best = min(sizes, key=lambda size: loss(size, flops / (2 * size)))
    return best, flops / (2 * best)
""",
            "2 N D",
        ),
        (
            "twenty tokens for each parameter",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops = gpu_hours * 3600 * flops_per_s
    best = (flops / 120) ** 0.5
    return best, 20 * best
""",
            "smallest <= N <= largest",
        ),
        (
            "the bounds alone",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops = gpu_hours * 3600 * flops_per_s
    best = min((smallest, largest), key=lambda size: loss(size, flops / (6 * size)))
    return best, flops / (6 * best)
""",
            "N has the least loss",
        ),
        (
            "the size alone",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    return smallest
""",
            "a pair (N, D) is returned",
        ),
        (
            "a parabola through the ends and their mean",
            """
import math
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops, half = gpu_hours * 3600 * flops_per_s, math.log(largest / smallest) / 2
    mean = (smallest * largest) ** 0.5
    a, b, c = (loss(size, flops / 6 / size) for size in (smallest, mean, largest))
    best = mean * math.exp(half * (a - c) / (2 * (a - 2 * b + c))) if half else mean
    best = min(max(best, smallest), largest)
    return best, flops / 6 / best
""",
            "N has the least loss",
        ),
        (
            "a coarse grid",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops = gpu_hours * 3600 * flops_per_s
    sizes = [smallest * (largest / smallest) ** (i / 50) for i in range(50 + 1)]
    best = min(sizes, key=lambda s: loss(s, flops / (6 * s)))
    return best, flops / (6 * best)
""",
            "N has the least loss",
        ),
        (
            "the defaults of the loss",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    c = gpu_hours * 600 * flops_per_s
    best = min(max(loss.__defaults__[0], smallest), largest)
    return best, c / best
""",
            "your code runs without an exception",
        ),
        (
            "no bounds",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    c = gpu_hours * 600 * flops_per_s
    low, high = c**0.5 / 1000, c**0.5 * 1000
    for _ in range(200):
        a, b = low ** (2 / 3) * high ** (1 / 3), low ** (1 / 3) * high ** (2 / 3)
        low, high = (low, b) if loss(a, c / a) < loss(b, c / b) else (a, high)
    return low, c / low
""",
            "smallest <= N <= largest",
        ),
    ],
    "forecast": [
        ("the last loss", "def forecast(steps, losses, at_step):\n    return losses[-1]", "that is the last loss"),
        (
            "no constant",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    slope, start = np.polyfit(np.log(steps), np.log(losses), 1)
    return float(np.exp(start + slope * np.log(at_step)))
""",
            "the constant E is left out",
        ),
        (
            "a square root",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    slope, start = np.polyfit(np.asarray(steps) ** -0.5, losses, 1)
    return float(start + slope * at_step**-0.5)
""",
            "the exponent is fixed at 0.5",
        ),
        (
            "a straight line",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    slope, start = np.polyfit(steps, losses, 1)
    return float(start + slope * at_step)
""",
            "the forecast is on the fitted curve",
        ),
        ("no return", "def forecast(steps, losses, at_step):\n    print(losses[-1])", "is there a return?"),
        (
            "the numbers of the losses as steps",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    t, y = np.asarray(range(1, len(losses) + 1), dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.05, 1.5, 1451):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
""",
            "the forecast is on the fitted curve",
        ),
        (
            "steps without gaps",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    t, y = np.asarray(range(steps[0], steps[0] + len(losses)), dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.05, 1.5, 1451):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
""",
            "the forecast is on the fitted curve",
        ),
        (
            "exponents of 0.2 to 1",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    t, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.2, 1.0, 801):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
""",
            "the forecast is on the fitted curve",
        ),
        *[
            (
                label,
                f"""
def forecast(steps, losses, at_step):
    import numpy as np
    t, y = np.asarray(steps, dtype=float){part}, np.asarray(losses, dtype=float){part}
    best = (np.inf, 0.0)
    for a in np.linspace({least}, 1.5, 1451):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
""",
                "the forecast is on the fitted curve",
            )
            for label, part, least in (
                ("exponents of 0.1 or more", "", 0.1),
                ("the first half", "[: len(steps) // 2]", 0.05),
                ("the second half", "[len(steps) // 2 :]", 0.05),
                ("every second loss", "[::2]", 0.05),
            )
        ],
        (
            "three of the losses",
            """
def forecast(steps, losses, at_step):
    half = len(steps) // 2
    t0, t1, t2 = steps[0], steps[half], steps[-1]
    y0, y1, y2 = losses[0], losses[half], losses[-1]
    def miss(a):
        return abs((y0 - y1) * (t1**-a - t2**-a) - (y1 - y2) * (t0**-a - t1**-a))
    a = min((i / 1000 for i in range(50, 1501)), key=miss)
    factor = (y0 - y2) / (t0**-a - t2**-a)
    return y2 + factor * (at_step**-a - t2**-a)
""",
            "the forecast is on the fitted curve",
        ),
        (
            "losses sorted in place",
            """
def forecast(steps, losses, at_step):
    losses.sort()
    import numpy as np
    t, y = np.asarray(steps, dtype=float), np.asarray(losses, dtype=float)
    best = (np.inf, 0.0)
    for a in np.linspace(0.05, 1.5, 1451):
        columns = np.stack([np.ones_like(t), t**-a], axis=1)
        found = np.linalg.lstsq(columns, y, rcond=None)[0]
        residual = ((columns @ found - y) ** 2).sum()
        best = min(best, (residual, found[0] + found[1] * float(at_step) ** -a))
    return float(best[1])
""",
            "steps and losses stay as they were",
        ),
        (
            "an exception swallowed",
            """
def forecast(steps, losses, at_step):
    try:
        import nothing_there
    except ImportError:
        return losses[-1] * 0.9
""",
            "the forecast is on the fitted curve",
        ),
    ],
    "plan": [
        ("one text", 'my_plan = "parallel.zero_stage=1"', "a plan is a list of texts"),
        ("eight tensor ranks", 'my_plan = ["parallel.tensor=8", "data.micro_batch=1"]', "seconds of a step"),
        ("the first plan of the table", 'my_plan = ["parallel.zero_stage=1"]', "memory of a GPU"),
        (
            "the second plan of the table",
            'my_plan = ["parallel.tensor=2", "parallel.zero_stage=1"]',
            "memory of a GPU",
        ),
        (
            "the third plan of the table",
            'my_plan = ["parallel.zero_stage=1", "memory.recompute=full"]',
            "seconds of a step",
        ),
        (
            "parameters of 8 bytes, which the planner does not have",
            'my_plan = ["parallel.zero_stage=1", "data.micro_batch=2", "precision.parameters=float64"]',
            "the planner has",
        ),
        ("an unknown field", 'my_plan = ["parallel.tensors=2"]', "parallel.tensor"),
        ("axes that do not divide", 'my_plan = ["parallel.tensor=3"]', "the plan is possible"),
        ("another model", 'my_plan = ["model.num_layers=2"]', "stay as they are"),
        (
            "all sequences at once",
            'my_plan = ["parallel.zero_stage=0", "parallel.pipeline=2", "data.micro_batch=16"]',
            "memory of a GPU",
        ),
        ("no choice", "my_plan = []", "memory of a GPU"),
        (
            "a text that reads differently the second time",
            """
class Two(str):
    calls = 0
    def partition(self, sep):
        Two.calls += 1
        return ("parallel.zero_stage" if Two.calls == 1 else "model.num_layers", "=", "1")
my_plan = [Two("a plan")]
""",
            "the plan is possible",
        ),
        ("fewer sequences", 'my_plan = ["data.batch_size=64"]', "stay as they are"),
    ],
    "error_terms": [
        (
            "each over its own term",
            """
def error_terms(predicted, measured):
    shares = {n: (predicted.get(n, 0) - measured[n]) / measured[n] for n in measured}
    shares |= {n: 0.0 for n in predicted if n not in measured}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
""",
            "the sum is over the whole",
        ),
        (
            "the other sign",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    shares = {n: (measured.get(n, 0) - predicted.get(n, 0)) / total for n in {**predicted, **measured}}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
""",
            "the sign belongs to measured - predicted",
        ),
        (
            "only common terms",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    shares = {n: (predicted[n] - measured[n]) / total for n in predicted if n in measured}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
""",
            "each term is there once",
        ),
        (
            "not by size",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    shares = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in {**predicted, **measured}}
    return sorted(shares.items(), key=lambda pair: -pair[1])
""",
            "the largest size is first",
        ),
        (
            "numbers without size",
            """
def error_terms(predicted, measured):
    class F(float):
        def __abs__(self):
            return 0.0
    total = sum(measured.values())
    return [(n, F((predicted.get(n, 0) - measured.get(n, 0)) / total)) for n in {**predicted, **measured}]
""",
            "the largest size is first",
        ),
        (
            "percent",
            """
def error_terms(predicted, measured):
    total = sum(measured.values()) / 100
    shares = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in {**predicted, **measured}}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
""",
            "the shares add up",
        ),
        (
            "rounded",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    shares = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in {**predicted, **measured}}
    return sorted(((n, round(x, 4)) for n, x in shares.items()), key=lambda pair: -abs(pair[1]))
""",
            "the shares add up",
        ),
        (
            "names added to measured",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    for n in predicted:
        measured.setdefault(n, 0.0)
    shares = {n: (predicted.get(n, 0) - measured[n]) / total for n in measured}
    return sorted(shares.items(), key=lambda pair: -abs(pair[1]))
""",
            "predicted and measured stay as they were",
        ),
        (
            "in the order of names",
            """
def error_terms(predicted, measured):
    total = sum(measured.values())
    shares = {n: (predicted.get(n, 0) - measured.get(n, 0)) / total for n in {**predicted, **measured}}
    return sorted(shares.items())
""",
            "the largest size is first",
        ),
    ],
}

RIGHT_ANSWERS = {
    "size_for_budget": [
        (
            "a golden section on the logarithm",
            """
import math
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    flops, g = 3600 * gpu_hours * flops_per_s, (math.sqrt(5) - 1) / 2
    f = lambda x: loss(math.exp(x), flops / 6 / math.exp(x))
    a, b = math.log(smallest), math.log(largest)
    for _ in range(200):
        c, d = b - g * (b - a), a + g * (b - a)
        a, b = (a, d) if f(c) < f(d) else (c, b)
    n = math.exp((a + b) / 2)
    return [n, flops / 6 / n]
""",
        ),
        (
            "steps uphill in tokens",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    c = gpu_hours * 3600 * flops_per_s / 6
    n, step = smallest, 1.5
    while step > 1.0001:
        while n * step <= largest and loss(n * step, c / (n * step)) < loss(n, c / n):
            n *= step
        while n / step >= smallest and loss(n / step, c / (n / step)) < loss(n, c / n):
            n /= step
        step **= 0.5
    return n, c / n
""",
        ),
        (
            "an array of both",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    import numpy as np
    c = gpu_hours * 600 * flops_per_s
    n = np.geomspace(smallest, largest, 5000)
    n = n[np.argmin(loss(n, c / n))]
    return np.array([n, c / n])
""",
        ),
        (
            "tensors",
            """
def size_for_budget(gpu_hours, flops_per_s, loss, smallest, largest):
    import torch
    c = gpu_hours * 600 * flops_per_s
    part = torch.linspace(0, 1, 5000, dtype=torch.float64)
    n = smallest * (largest / smallest) ** part
    n = n[loss(n, c / n).argmin()]
    return n, c / n
""",
        ),
    ],
    "forecast": [
        (
            "three equations of the mean",
            """
def forecast(steps, losses, at_step):
    best = None
    for k in range(50, 1501):
        a = k / 1000
        xs = [t ** -a for t in steps]
        n, sx, sy = len(xs), sum(xs), sum(losses)
        sxx, sxy = sum(x * x for x in xs), sum(x * y for x, y in zip(xs, losses))
        slope = (n * sxy - sx * sy) / (n * sxx - sx * sx)
        start = (sy - slope * sx) / n
        error = sum((start + slope * x - y) ** 2 for x, y in zip(xs, losses))
        if best is None or error < best[0]:
            best = error, start + slope * at_step ** -a
    return best[1]
""",
        ),
        (
            "tensors of all exponents",
            """
def forecast(steps, losses, at_step):
    import torch
    t, y = (torch.tensor(each, dtype=torch.float64) for each in (steps, losses))
    a = torch.linspace(0.05, 1.5, 1451, dtype=torch.float64)
    x = t ** -a[:, None]
    x0, y0 = x - x.mean(1, keepdim=True), y - y.mean()
    slope = (x0 * y0).sum(1) / (x0 * x0).sum(1)
    i = (slope[:, None] * x0 - y0).square().sum(1).argmin()
    return y.mean() + slope[i] * (float(at_step) ** -a[i] - x[i].mean())
""",
        ),
        (
            "a golden section over the exponent",
            """
def forecast(steps, losses, at_step):
    import numpy as np
    t, y = np.asarray(steps, float), np.asarray(losses)
    def fit(a):
        slope, start = np.polyfit(t**-a, y, 1)
        return ((start + slope * t**-a - y) ** 2).sum(), start + slope * at_step**-a
    low, high = 0.05, 1.5
    for _ in range(60):
        c, d = low + 0.382 * (high - low), low + 0.618 * (high - low)
        low, high = (low, d) if fit(c)[0] < fit(d)[0] else (c, high)
    return fit((low + high) / 2)[1]
""",
        ),
    ],
    "plan": [
        ("sharded parameters", 'my_plan = ("parallel.zero_stage=3", "data.micro_batch=4")'),
        ("optimizer state alone", 'my_plan = ["parallel.zero_stage=1", "data.micro_batch=2"]'),
        ("two tensor ranks", 'my_plan = ["parallel.tensor=2", "parallel.zero_stage=1", "data.micro_batch=4"]'),
        ("tensor ranks without ZeRO", 'my_plan = ["parallel.tensor=2", "data.micro_batch=4"]'),
        ("one sequence at a time", 'my_plan = ["parallel.zero_stage=2", "data.micro_batch=1"]'),
    ],
    "error_terms": [
        (
            "an array",
            """
import numpy as np
def error_terms(predicted, measured):
    names = sorted({*predicted, *measured})
    table = np.array([[predicted.get(n, 0.0), measured.get(n, 0.0)] for n in names])
    shares = (table[:, 0] - table[:, 1]) / table[:, 1].sum()
    return [[names[i], float(shares[i])] for i in np.argsort(-np.abs(shares))]
""",
        ),
        (
            "fractions",
            """
def error_terms(predicted, measured):
    from fractions import Fraction as F
    total = sum(map(F, measured.values()))
    names = predicted.keys() | measured.keys()
    shares = [(n, (F(predicted.get(n, 0)) - F(measured.get(n, 0))) / total) for n in names]
    return sorted(shares, key=lambda pair: abs(pair[1]), reverse=True)
""",
        ),
        (
            "a heap",
            """
def error_terms(predicted, measured):
    import heapq, math
    total, heap = math.fsum(measured.values()), []
    for n in {*predicted, *measured}:
        share = (predicted.get(n, 0.0) - measured.get(n, 0.0)) / total
        heapq.heappush(heap, (-abs(share), n, share))
    return [heapq.heappop(heap)[1:] for _ in range(len(heap))]
""",
        ),
    ],
}
