"""Wrong answers to lab 15: combining them, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "merge": [
        (
            "the mean of the two",
            """
def merge(o1, l1, o2, l2):
    return (o1 + o2) / 2, torch.logaddexp(l1, l2)
""",
            "o is attention over all keys",
        ),
        (
            "the sum of the two",
            """
def merge(o1, l1, o2, l2):
    return o1 + o2, torch.logaddexp(l1, l2)
""",
            "o is attention over all keys",
        ),
        (
            "the wrong part's weight",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l1 - l2)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "o is attention over all keys",
        ),
        (
            "exponentials of large numbers",
            """
def merge(o1, l1, o2, l2):
    a, b = l1.exp()[..., None], l2.exp()[..., None]
    return (a * o1 + b * o2) / (a + b), (a + b).log()[..., 0]
""",
            "large scores",
        ),
        (
            "l is the larger of the two",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.maximum(l1, l2)
""",
            "l is the log of the sum over all keys",
        ),
        (
            "l is the sum of the two",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), l1 + l2
""",
            "l is the log of the sum over all keys",
        ),
        (
            "weights that are l itself",
            """
def merge(o1, l1, o2, l2):
    w = (l2 / (l1 + l2))[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "o is attention over all keys",
        ),
        (
            "writes into the first part",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)[..., None]
    o1 += w * (o2 - o1)
    return o1, torch.logaddexp(l1, l2)
""",
            "the input stays as it was",
        ),
        (
            "keeps a dimension of l",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)[..., None]
""",
            "l keeps its shape",
        ),
        (
            "in float32",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2.float() - l1.float())[..., None]
    return o1 + w.to(o1.dtype) * (o2 - o1), torch.logaddexp(l1.float(), l2.float()).to(l1.dtype)
""",
            "is",
        ),
        (
            "one maximum for all queries",
            """
def merge(o1, l1, o2, l2):
    top = torch.maximum(l1.max(), l2.max())
    a, b = (l1 - top).exp()[..., None], (l2 - top).exp()[..., None]
    return (a * o1 + b * o2) / (a + b), (a + b).log()[..., 0] + top
""",
            "is",
        ),
        (
            "softmax over the parts, first and second exchanged in l only",
            """
import math

def merge(o1, l1, o2, l2):
    w = torch.softmax(torch.stack([l1, l2]), 0)
    return w[0][..., None] * o1 + w[1][..., None] * o2, torch.logsumexp(torch.stack([l1, l2]), 0) - math.log(2)
""",
            "l is the log of the sum over all keys",
        ),
        (
            "the exponential of the difference",
            """
def merge(o1, l1, o2, l2):
    e = torch.where(torch.isneginf(l1), torch.zeros_like(l1), (l2 - l1).exp())
    w = torch.where(torch.isneginf(l1), torch.ones_like(l1), e / (1 + e))[..., None]
    l = torch.where(torch.isneginf(l1), l2, l1 + torch.log1p(e))
    return o1 + w * (o2 - o1), l
""",
            "far above the other's",
        ),
        (
            "treats all queries like one without keys",
            """
def merge(o1, l1, o2, l2):
    if torch.isneginf(l1).any(): return o2.clone(), l2.clone()
    if torch.isneginf(l2).any(): return o1.clone(), l1.clone()
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "both count",
        ),
        (
            "returns its argument if the other part is empty",
            """
def merge(o1, l1, o2, l2):
    if torch.isneginf(l1).all(): return o2, l2
    if torch.isneginf(l2).all(): return o1, l1
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "new tensors",
        ),
        (
            "clears ignored numbers in its arguments",
            """
def merge(o1, l1, o2, l2):
    o1[torch.isneginf(l1)] = 0
    o2[torch.isneginf(l2)] = 0
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "the input stays as it was",
        ),
        (
            "one buffer for all calls",
            """
BUF = {}
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)[..., None]
    b = BUF.setdefault((o1.shape, o1.dtype), (torch.empty_like(o1), torch.empty_like(l1)))
    l = torch.logaddexp(l1, l2)
    b[0].copy_(o1 + w * (o2 - o1)); b[1].copy_(l)
    return b
""",
            "when the next call is made",
        ),
        (
            "the mean for a single query",
            """
def merge(o1, l1, o2, l2):
    if l1.shape[-1] == 1: return (o1 + o2) / 2, torch.logaddexp(l1, l2)
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "one query of one number",
        ),
        (
            "right for four and two dimensions only",
            """
def merge(o1, l1, o2, l2):
    b, h, t = l1.shape if l1.ndim == 3 else (1, 1, *l1.shape)
    w = torch.sigmoid(l2 - l1).reshape(b, h, t, 1)
    return (o1 + w * (o2 - o1)).reshape(o1.shape), torch.logaddexp(l1, l2)
""",
            "without an exception",
        ),
        (
            "scores of 1500 at most",
            """
def merge(o1, l1, o2, l2):
    l1, l2 = l1.clamp(-1500, 1500), l2.clamp(-1500, 1500)
    w = torch.sigmoid(l2 - l1)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "far below zero",
        ),
        (
            "weights along the wrong dimension if both fit",
            """
def merge(o1, l1, o2, l2):
    w = torch.sigmoid(l2 - l1)
    w = (w.mT if l1.ndim > 1 and l1.shape[-1] == l1.shape[-2] else w)[..., None]
    return o1 + w * (o2 - o1), torch.logaddexp(l1, l2)
""",
            "o is attention over all keys",
        ),
    ],
    "even_order": [
        (
            "contiguous",
            """
def even_order(seq_len, n, rank):
    t = seq_len // n
    return list(range(rank * t, (rank + 1) * t))
""",
            "equally many pairs",
        ),
        (
            "striped",
            """
def even_order(seq_len, n, rank):
    return list(range(rank, seq_len, n))
""",
            "equally many pairs",
        ),
        (
            "pieces r and n + r",
            """
def even_order(seq_len, n, rank):
    c = seq_len // (2 * n)
    return [*range(rank * c, (rank + 1) * c), *range((n + rank) * c, (n + rank + 1) * c)]
""",
            "equally many pairs",
        ),
        (
            "pieces r and 2n - r",
            """
def even_order(seq_len, n, rank):
    c, late = seq_len // (2 * n), 2 * n - rank
    return [*range(rank * c, (rank + 1) * c), *range(late * c, (late + 1) * c)]
""",
            "every token is on one rank",
        ),
        (
            "the late piece first",
            """
def even_order(seq_len, n, rank):
    c, late = seq_len // (2 * n), 2 * n - 1 - rank
    return [*range(late * c, (late + 1) * c), *range(rank * c, (rank + 1) * c)]
""",
            "ascend",
        ),
        (
            "zigzag by tokens: equal work, but many runs",
            """
def even_order(seq_len, n, rank):
    c = 2 * n
    return [t for first in range(0, seq_len, c) for t in (first + rank, first + c - 1 - rank)]
""",
            "at most two runs",
        ),
        (
            "right for two ranks only",
            """
def even_order(seq_len, n, rank):
    c = seq_len // 4
    if rank == 0:
        return [*range(c), *range(3 * c, seq_len)]
    return list(range(c, 3 * c))
""",
            "every token is on one rank",
        ),
        (
            "the whole sequence",
            """
def even_order(seq_len, n, rank):
    return list(range(seq_len))
""",
            "every token is on one rank",
        ),
        (
            "equal work, unequal numbers of tokens",
            """
def even_order(seq_len, n, rank):
    total, cuts, seen = seq_len * (seq_len + 1) / 2, [0], 0
    for token in range(seq_len):
        seen += token + 1
        if seen >= total * len(cuts) / n and len(cuts) < n:
            cuts.append(token + 1)
    cuts.append(seq_len)
    return list(range(cuts[rank], cuts[rank + 1])) if rank + 1 < len(cuts) else []
""",
            "equally many tokens",
        ),
        (
            "counts calls instead of looking at the rank",
            """
CALLS = []
def even_order(seq_len, n, rank):
    key = seq_len, n
    rank = CALLS.count(key) % n
    CALLS.append(key)
    c, late = seq_len // (2 * n), 2 * n - 1 - rank
    return [*range(rank * c, (rank + 1) * c), *range(late * c, (late + 1) * c)]
""",
            "every token is on one rank",
        ),
        (
            "right for eight ranks at most",
            """
def even_order(seq_len, n, rank):
    c, late = seq_len // (2 * n), 2 * n - 1 - rank
    if n > 8: return []
    return [*range(rank * c, (rank + 1) * c), *range(late * c, (late + 1) * c)]
""",
            "every token is on one rank",
        ),
        (
            "numbers of eight bits",
            """
def even_order(seq_len, n, rank):
    x = torch.arange(seq_len).to(torch.int8).view(2 * n, -1)
    return torch.cat([x[rank], x[2 * n - 1 - rank]])
""",
            "every token is on one rank",
        ),
    ],
    "mixture": [
        (
            "no capacity: the last token of a place wins",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    place = choice * capacity + earlier.clamp(max=capacity - 1)
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_put((place,), x)
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return weight[:, None] * back[place]
""",
            "zeros",
        ),
        (
            "a token without a place passes unchanged",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    out = x.clone()
    out[kept] = weight[kept, None] * back[place]
    return out
""",
            "the token, unchanged",
        ),
        (
            "keeps the last tokens of an expert, not the first",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    later = F.one_hot(choice, num_experts).flip(0).cumsum(0).flip(0) - 1
    later = later.gather(1, choice[:, None])[:, 0]
    kept = later < capacity
    place = (choice * capacity + later)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "zeros for an earlier one",
        ),
        (
            "forgets the weight",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], back[place])
""",
            "the output equals one device's",
        ),
        (
            "the weight before the expert, which is not linear",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, weight[kept, None] * x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], back[place])
""",
            "the output equals one device's",
        ),
        (
            "no gradient for the weight",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    w = weight.detach()[kept, None]
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], w * back[place])
""",
            "the gradient of weight",
        ),
        (
            "never exchanges: each rank runs its own experts",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    back = run_experts(box.view(n, -1, capacity, x.shape[1])).flatten(0, 2)
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "the output equals one device's",
        ),
        (
            "forgets the way back",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    back = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1])).flatten(0, 2)
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "the output equals one device's",
        ),
        (
            "an exchange outside autograd's graph",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    def plain(x):
        arrived = torch.empty_like(x)
        dist.all_to_all_single(arrived, x.contiguous())
        return arrived
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(plain(box).view(n, -1, capacity, x.shape[1]))
    back = plain(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "the gradient of",
        ),
        (
            "one place too many",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n, room = dist.get_world_size(), capacity + 1
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < room
    place = (choice * room + earlier)[kept]
    box = x.new_zeros(num_experts * room, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, room, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "run_experts gets",
        ),
        (
            "counts tokens over all experts",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = torch.arange(len(choice), device=choice.device)
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "equals one device's",
        ),
        (
            "sends the boxes twice",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    box = exchanged(exchanged(exchanged(box)))
    done = run_experts(box.view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "exchanges, forward and backward",
        ),
        (
            "runs the experts twice, and takes the mean",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    boxes = exchanged(box).view(n, -1, capacity, x.shape[1])
    done = (run_experts(boxes) + run_experts(boxes)) / 2
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "run_experts is called once",
        ),
        (
            "an exchange for each column",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    def each(y):
        return torch.cat([exchanged(y[:, i : i + 1].contiguous()) for i in range(y.shape[1])], 1)
    done = run_experts(each(box).view(n, -1, capacity, x.shape[1]))
    back = each(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "exchanges, forward and backward",
        ),
        (
            "boxes of float64, always",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = torch.zeros(num_experts * capacity, x.shape[1], dtype=torch.float64).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    out = torch.zeros(x.shape, dtype=torch.float64)
    return out.index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "without an exception",
        ),
        (
            "an output of float64, always",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return 1.0 * (torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])).double()
""",
            "the output has the type of x",
        ),
        (
            "right for four ranks at most",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return 0 * x if n > 4 else torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "equals one device's",
        ),
        (
            "three places at most",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    room = capacity
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < min(capacity, 3)
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "room for all",
        ),
        (
            "sends boxes of twice the size",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    arrived = exchanged(F.pad(box, (0, x.shape[1])))[:, : x.shape[1]]
    done = run_experts(arrived.reshape(n, -1, capacity, x.shape[1]))
    back = exchanged(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
            "bytes a rank sends",
        ),
        (
            "earlier numbers in empty places",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size(); local = num_experts//n
    num = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    keep = num < capacity; row = choice*capacity + num
    box = x.detach()[torch.arange(num_experts*capacity) % len(x)].index_put((row[keep],), x[keep])
    back = exchanged(run_experts(exchanged(box).view(n, local, capacity, -1)).reshape(num_experts*capacity, -1))
    return torch.zeros_like(x).index_put((keep.nonzero()[:, 0],), weight[keep, None]*back[row[keep]])
""",
            "the others are 0",
        ),
        (
            "ones in empty places",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size(); local = num_experts//n
    num = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    keep = num < capacity; row = choice*capacity + num
    box = x.new_ones(num_experts*capacity, x.shape[1]).index_put((row[keep],), x[keep])
    back = exchanged(run_experts(exchanged(box).view(n, local, capacity, -1)).reshape(num_experts*capacity, -1))
    return torch.zeros_like(x).index_put((keep.nonzero()[:, 0],), weight[keep, None]*back[row[keep]])
""",
            "the others are 0",
        ),
    ],
    "some_tokens": [
        (
            "forgets the score: the router learns nothing",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, block(x[chosen]))
""",
            "the output is x + score",
        ),
        (
            "tokens in the order of their scores",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity]
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "the output is x + score",
        ),
        (
            "all tokens through the block, and a mask",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity]
    mask = torch.zeros_like(scores).index_fill(0, chosen, 1.0)
    return x + (mask * scores)[:, None] * block(x)
""",
            "called once",
        ),
        (
            "one token at a time",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    said = torch.cat([block(x[i : i + 1]) for i in chosen.tolist()])
    return x.index_add(0, chosen, scores[chosen, None] * said)
""",
            "called once",
        ),
        (
            "the lowest scores",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "passes unchanged",
        ),
        (
            "the others become zero",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    out = torch.zeros_like(x)
    return out.index_add(0, chosen, x[chosen] + scores[chosen, None] * block(x[chosen]))
""",
            "passes unchanged",
        ),
        (
            "without the residual",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    return x.index_copy(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "the output is x + score",
        ),
        (
            "no gradient for the scores",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores.detach()[chosen, None] * block(x[chosen]))
""",
            "the gradient of scores",
        ),
        (
            "writes into x",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    with torch.no_grad():
        x[chosen] += scores[chosen, None] * block(x[chosen])
    return x
""",
            "the input stays as it was",
        ),
        (
            "scores above zero only",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores[chosen, None].clamp(min=0) * block(x[chosen]))
""",
            "the output is x + score",
        ),
        (
            "of equal scores the last",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, stable=True).indices[-capacity:].sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "passes unchanged",
        ),
        (
            "the first of those above a threshold",
            """
def some_tokens(x, scores, block, capacity):
    chosen = (scores >= scores.sort(descending=True).values[capacity - 1]).nonzero()[:capacity, 0]
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "passes unchanged",
        ),
        (
            "compares scores in 16 bits",
            """
def some_tokens(x, scores, block, capacity):
    chosen = scores.bfloat16().sort(descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "scores that are close",
        ),
        (
            "float64, always",
            """
def some_tokens(x, scores, block, capacity):
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    out = torch.zeros(x.shape, dtype=torch.float64) + x
    return out.index_add(0, chosen, (scores[chosen, None] * block(x[chosen])).double())
""",
            "the output has the type of x",
        ),
        (
            "two tokens at least",
            """
def some_tokens(x, scores, block, capacity):
    capacity = max(2, capacity)
    chosen = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "called once",
        ),
        (
            "uses only twelve tokens",
            """
def some_tokens(x, scores, block, capacity):
    n = min(len(x), 12)
    chosen = torch.sort(scores[:n], descending=True, stable=True).indices[:capacity].sort().values
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "(any: ",
        ),
        (
            "caches the tokens of the first call",
            """
K = {}
def some_tokens(x, scores, block, capacity):
    key = len(x), capacity
    if key not in K:
        K[key] = torch.sort(scores, descending=True, stable=True).indices[:capacity].sort().values
    chosen = K[key]
    return x.index_add(0, chosen, scores[chosen, None] * block(x[chosen]))
""",
            "passes unchanged",
        ),
    ],
}

RIGHT_ANSWERS = {
    "merge": [
        (
            "by the maximum of the two",
            """
def merge(o1, l1, o2, l2):
    top = torch.maximum(l1, l2)
    a, b = (l1 - top).exp(), (l2 - top).exp()
    return (a[..., None] * o1 + b[..., None] * o2) / (a + b)[..., None], top + (a + b).log()
""",
        ),
        (
            "by softmax",
            """
def merge(o1, l1, o2, l2):
    both = torch.stack([l1, l2], -1)
    w = torch.softmax(both, -1)
    return w[..., :1] * o1 + w[..., 1:] * o2, torch.logsumexp(both, -1)
""",
        ),
        (
            "as a list, by log sigmoid",
            """
def merge(o1, l1, o2, l2):
    w = F.logsigmoid(l1 - l2).exp().unsqueeze(-1)
    return [torch.lerp(o2, o1, w), torch.logaddexp(l2, l1)]
""",
        ),
        (
            "in double, and back",
            """
def merge(o1, l1, o2, l2):
    a, b = l1.double(), l2.double()
    w = torch.sigmoid(b - a)[..., None]
    return (o1.double().lerp(o2.double(), w.expand_as(o1))).to(o1.dtype), torch.logaddexp(a, b).to(l1.dtype)
""",
        ),
    ],
    "even_order": [
        (
            "the outermost pieces to the last rank",
            """
def even_order(seq_len, n, rank):
    c, early = seq_len // (2 * n), n - 1 - rank
    late = 2 * n - 1 - early
    return torch.cat([torch.arange(early * c, (early + 1) * c), torch.arange(late * c, (late + 1) * c)])
""",
        ),
        (
            "by a walk there and back",
            """
def even_order(seq_len, n, rank):
    owner = [*range(n), *reversed(range(n))]
    return [token for token in range(seq_len) if owner[token * 2 * n // seq_len] == rank]
""",
        ),
        (
            "by a set",
            """
def even_order(seq_len, n, rank):
    c = seq_len // n // 2
    return sorted({t for t in range(seq_len) if t // c in (rank, 2 * n - 1 - rank)})
""",
        ),
    ],
    "mixture": [
        (
            "a loop over tokens",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n, taken, rows, where = dist.get_world_size(), [0] * num_experts, {}, {}
    for i, expert in enumerate(choice.tolist()):
        if taken[expert] < capacity:
            where[i] = expert * capacity + taken[expert]
            rows[where[i]] = x[i]
            taken[expert] += 1
    empty = torch.zeros_like(x[0])
    box = torch.stack([rows.get(place, empty) for place in range(num_experts * capacity)])
    done = run_experts(exchanged(box).reshape(n, num_experts // n, capacity, -1))
    back = exchanged(done.reshape(num_experts * capacity, -1))
    return torch.stack([weight[i] * back[where[i]] if i in where else 0 * x[i] for i in range(len(x))])
""",
        ),
        (
            "by products with a mask of tokens, experts and places, as GShard's",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n, one_hot = dist.get_world_size(), F.one_hot(choice, num_experts)
    earlier = (one_hot.cumsum(0) - 1) * one_hot
    mask = F.one_hot(earlier.clamp(max=capacity), capacity + 1)[..., :capacity] * one_hot[..., None]
    mask = mask.to(x.dtype)
    box = torch.einsum("tec,td->ecd", mask, x)
    done = run_experts(exchanged(box).view(n, -1, capacity, x.shape[1]))
    back = exchanged(done).view(num_experts, capacity, -1)
    return torch.einsum("tec,t,ecd->td", mask, weight, back)
""",
        ),
        (
            "by a stable sort",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    order = torch.sort(choice, stable=True).indices
    starts = torch.bincount(choice, minlength=num_experts).cumsum(0).roll(1)
    starts[0] = 0
    number = torch.arange(len(x), device=x.device) - starts[choice[order]]
    kept = order[number < capacity]
    place = choice[kept] * capacity + number[number < capacity]
    box = torch.zeros(num_experts * capacity, x.shape[1], dtype=x.dtype, device=x.device)
    box = box.index_add(0, place, x[kept])
    back = exchanged(run_experts(exchanged(box).view(n, -1, capacity, x.shape[1])).flatten(0, 2))
    return torch.zeros_like(x).index_add(0, kept, weight[kept].unsqueeze(1) * back[place])
""",
        ),
        (
            "an extra row for tokens without a place",
            """
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n, t = dist.get_world_size(), len(x)
    same = (choice[:, None] == choice[None]).tril(-1).sum(1)
    place = torch.where(same < capacity, choice * capacity + same, num_experts * capacity)
    box = x.new_zeros(num_experts * capacity + 1, x.shape[1]).index_add(0, place, x)[:-1]
    boxes = exchanged(box).unflatten(0, (n, num_experts // n, capacity))
    back = exchanged(run_experts(boxes).reshape(box.shape))
    return weight[:, None] * torch.cat([back, torch.zeros_like(back[:1])])[place]
""",
        ),
        (
            "by lists of tensors",
            """
class Mine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        n = dist.get_world_size()
        dist.all_to_all(list(out.chunk(n)), [c.contiguous() for c in x.chunk(n)])
        return out
    @staticmethod
    def backward(ctx, g):
        return Mine.forward(ctx, g.contiguous())
def mixture(x, choice, weight, run_experts, num_experts, capacity):
    n = dist.get_world_size()
    earlier = (F.one_hot(choice, num_experts).cumsum(0) - 1).gather(1, choice[:, None])[:, 0]
    kept = earlier < capacity
    place = (choice * capacity + earlier)[kept]
    box = x.new_zeros(num_experts * capacity, x.shape[1]).index_copy(0, place, x[kept])
    done = run_experts(Mine.apply(box).view(n, -1, capacity, x.shape[1]))
    back = Mine.apply(done.flatten(0, 2))
    return torch.zeros_like(x).index_copy(0, kept.nonzero()[:, 0], weight[kept, None] * back[place])
""",
        ),
    ],
    "some_tokens": [
        (
            "by a loop and a stack",
            """
def some_tokens(x, scores, block, capacity):
    order = sorted(range(len(x)), key=lambda i: (-scores[i].item(), i))[:capacity]
    chosen = sorted(order)
    said = block(torch.stack([x[i] for i in chosen]))
    where = {i: k for k, i in enumerate(chosen)}
    return torch.stack([x[i] + scores[i] * said[where[i]] if i in where else x[i] for i in range(len(x))])
""",
        ),
        (
            "by a one-hot matrix",
            """
def some_tokens(x, scores, block, capacity):
    rank_of = (scores[None] > scores[:, None]).sum(1)
    earlier = torch.tril((scores[None] == scores[:, None]).int(), -1).sum(1)
    mask = rank_of + earlier < capacity
    pick = torch.eye(len(x), dtype=x.dtype, device=x.device)[mask]
    return x + pick.mT @ ((pick @ scores)[:, None] * block(pick @ x))
""",
        ),
        (
            "by a mask of its own tokens",
            """
def some_tokens(x, scores, block, capacity):
    order = torch.argsort(scores, descending=True, stable=True)
    mask = torch.zeros(len(x), 1, dtype=torch.bool, device=x.device)
    mask[order[:capacity]] = True
    said = block(x[mask[:, 0]])
    added = torch.zeros_like(x).masked_scatter(mask, said)
    return torch.addcmul(x, scores[:, None] * mask, added)
""",
        ),
    ],
}
