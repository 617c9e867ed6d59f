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
            "the forecast is near the curve",
        ),
        ("no return", "def forecast(steps, losses, at_step):\n    print(losses[-1])", "is there a return?"),
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
        ("an unknown field", 'my_plan = ["parallel.tensors=2"]', "parallel.tensor"),
        ("axes that do not divide", 'my_plan = ["parallel.tensor=3"]', "the plan is possible"),
        ("another model", 'my_plan = ["model.num_layers=2"]', "stay as they are"),
        (
            "all sequences at once",
            'my_plan = ["parallel.zero_stage=0", "parallel.pipeline=2", "data.micro_batch=16"]',
            "memory of a GPU",
        ),
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
            "the sign is that of measured - predicted",
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
    ],
}
