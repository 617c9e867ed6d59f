"""Wrong answers to lab 12: tensor parallel, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "tensor_mlp": [
        (
            "returns nothing",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    F.gelu(x @ up + up_bias, approximate="tanh") @ down
""",
            "None: is there a return?",
        ),
        (
            "no f: the loss looks right, the input's gradient is a part",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the gradient of x of MLP 2 equals one device's",
        ),
        (
            "no g: every rank returns its part",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    return F.gelu(x @ up + up_bias, approximate="tanh") @ down + down_bias
""",
            "the output equals one device's",
        ),
        (
            "adds the bias before the sum",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down + down_bias, all_reduced, same)
""",
            "down_bias is added once",
        ),
        (
            "adds 1/n of the bias before the sum: its gradient is 1/n, which Adam hides",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down + down_bias / dist.get_world_size(), all_reduced, same)
""",
            "the gradient of down_bias of MLP 2 equals one device's",
        ),
        (
            "g adds up gradients, too: n times, which Adam hides",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, all_reduced) + down_bias
""",
            "times the right value: a sum over",
        ),
        (
            "f and g are exchanged",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, all_reduced, same)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, same, all_reduced) + down_bias
""",
            "the output equals one device's",
        ),
        (
            "forgets the second matrix",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    return F.gelu(x @ up + up_bias, approximate="tanh")
""",
            "the output has the shape of x",
        ),
        (
            "a mean instead of the sum",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    def mean(y):
        return all_reduced(y) / dist.get_world_size()

    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, mean, same) + down_bias
""",
            "the output equals one device's",
        ),
        (
            "f averages the input's gradient",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    def mean(y):
        return all_reduced(y) / dist.get_world_size()

    x = with_gradient(x, same, mean)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the gradient of x of MLP 2 equals one device's",
        ),
        (
            "adds up the hidden columns, as if they were parts",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = x @ up + up_bias
    hidden = F.gelu(with_gradient(hidden, all_reduced, same), approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "Error",
        ),
        (
            "gathers all weights, and computes everything on every rank",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    n, rank = dist.get_world_size(), dist.get_rank()
    sizes = all_reduced(F.one_hot(torch.tensor(rank), n) * len(up_bias)).tolist()
    before, after = sum(sizes[:rank]), sum(sizes[rank + 1 :])
    up = with_gradient(F.pad(up, (before, after)), all_reduced, same)
    up_bias = with_gradient(F.pad(up_bias, (before, after)), all_reduced, same)
    down = with_gradient(F.pad(down, (0, 0, before, after)), all_reduced, same)
    return F.gelu(x @ up + up_bias, approximate="tanh") @ down + down_bias
""",
            "collectives of forward and backward",
        ),
        (
            "all-reduces the output twice, and halves it",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    def twice(y):
        return all_reduced(all_reduced(y)) / dist.get_world_size()

    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, twice, same) + down_bias
""",
            "12 all-reduce",
        ),
        (
            "calls the library",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    return parallel.tensor_mlp(x, parallel.MLPShard(up.t(), up_bias, down.t(), down_bias))
""",
            "the answer is your own code",
        ),
        (
            "changes the bias",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    down_bias.data.div_(dist.get_world_size())
    return with_gradient(hidden @ down + down_bias, all_reduced, same)
""",
            "the input stays as it was",
        ),
        (
            "returns another dtype",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return (with_gradient(hidden @ down, all_reduced, same) + down_bias).float()
""",
            "the output has the dtype of x",
        ),
        (
            "adds up in float32",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient((hidden @ down).float(), all_reduced, same).to(x.dtype) + down_bias
""",
            "the output equals one device's",
        ),
        (
            "another GELU",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = with_gradient(x, same, all_reduced)
    return with_gradient(F.gelu(x @ up + up_bias) @ down, all_reduced, same) + down_bias
""",
            "the output equals one device's",
        ),
        (
            "keeps its input in a global: the second layer reads the first one's",
            """
entered = {}

def tensor_mlp(x, up, up_bias, down, down_bias):
    if "x" not in entered:
        entered["x"] = with_gradient(x, same, all_reduced)
    hidden = F.gelu(entered["x"] @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the output equals one device's, in the second MLP",
        ),
        (
            "catches all errors, and returns the bias",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    try:
        return with_gradient(F.gelu(x @ up + up_bias, "tanh") @ down, all_reduced, same) + down_bias
    except Exception:
        return x * 0 + down_bias
""",
            "the output equals one device's",
        ),
        (
            "one all-reduce each way, but of both numbers and their squares",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    def wide(y):
        return all_reduced(torch.cat([y, y * y]))[: len(y)].clone()

    x = with_gradient(x, same, all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, wide, same) + down_bias
""",
            "bytes a rank sends",
        ),
        (
            "backward writes .grad itself: a second batch's replaces the first's",
            """
class OwnMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up, up_bias, down, down_bias):
        leaves = [part.detach().requires_grad_() for part in (x, up, up_bias, down)]
        with torch.enable_grad():
            ctx.part = F.gelu(leaves[0] @ leaves[1] + leaves[2], approximate="tanh") @ leaves[3]
        ctx.leaves, ctx.params = leaves, (up, up_bias, down)
        return all_reduced(ctx.part.detach()) + down_bias

    @staticmethod
    def backward(ctx, grad):
        found = torch.autograd.grad(ctx.part, ctx.leaves, grad)
        for param, of_param in zip(ctx.params, found[1:]):
            param.grad = of_param
        return all_reduced(found[0]), None, None, None, grad.sum(0)


def tensor_mlp(x, up, up_bias, down, down_bias):
    return OwnMLP.apply(x, up, up_bias, down, down_bias)
""",
            "the gradient of up of MLP 2 equals one device's",
        ),
        (
            "uses torch's DTensor",
            """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate

def tensor_mlp(x, up, up_bias, down, down_bias):
    mesh = init_device_mesh(x.device.type, (dist.get_world_size(),))
    x = DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
    part = F.gelu(x @ up + up_bias, approximate="tanh") @ down
    whole = DTensor.from_local(part, mesh, [Partial()], run_check=False).redistribute(mesh, [Replicate()])
    return whole.to_local() + down_bias
""",
            "it uses torch.distributed.tensor.DTensor",
        ),
        (
            "takes the others' parts from an open file: sends one number",
            """
import tempfile

shelf, file = [], tempfile.TemporaryFile()

def meet(y, how):
    n, rank = dist.get_world_size(), dist.get_rank()
    shelf.append(0)
    places = [(len(shelf) * n + each) * 2**14 for each in range(n)]
    file.seek(places[rank])
    file.write(y.detach().contiguous().numpy().tobytes())
    how()
    found = []
    for place in places:
        file.seek(place)
        found.append(torch.frombuffer(bytearray(file.read(y.nbytes)), dtype=y.dtype).view(y.shape))
    return found


def tensor_mlp(x, up, up_bias, down, down_bias):
    def total(y):
        return sum(meet(y, lambda: dist.all_reduce(torch.zeros(1))))

    x = with_gradient(x, same, total)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, total, same) + down_bias
""",
            "less than the task needs",
        ),
        (
            "takes the others' parts from an attribute of torch, and sends zeros",
            """
shelf = []

def meet(y, how):
    if not hasattr(torch, "_shelf"):
        torch._shelf = {}
    shelf.append(0)
    torch._shelf[len(shelf), dist.get_rank()] = y.detach().clone()
    how()
    return [torch._shelf[len(shelf), rank].clone() for rank in range(dist.get_world_size())]


def tensor_mlp(x, up, up_bias, down, down_bias):
    def total(y):
        return sum(meet(y, lambda: dist.all_reduce(torch.zeros_like(y))))

    x = with_gradient(x, same, total)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, total, same) + down_bias
""",
            "is not there",
        ),
        (
            "f works only in the first backward",
            """
done = []

def tensor_mlp(x, up, up_bias, down, down_bias):
    def once(grad):
        done.append(1)
        return all_reduced(grad) if len(done) <= 2 else grad

    x = with_gradient(x, same, once)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the gradient of x of MLP 2, second batch",
        ),
        (
            "a hook on x itself: the residual's gradient is summed, too",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    if x.requires_grad:
        x.register_hook(all_reduced)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the gradient of x of MLP 2 equals one device's",
        ),
        (
            "asynchronous, without a wait",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    def begun(grad):
        total = grad.clone()
        dist.all_reduce(total, async_op=True)
        return total

    x = with_gradient(x, same, begun)
    hidden = F.gelu(x @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "every communication is waited for",
        ),
    ],
    "tensor_attention": [
        (
            "later tokens are seen, too: no causal mask",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    q, k, v = (one.view(len(x), -1, width).transpose(0, 1) for one in (x @ take("query", heads), x @ key, x @ value))
    k, v = (one.repeat_interleave(len(q) // len(one), 0) for one in (k, v))
    own = F.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "the output equals one device's",
        ),
        (
            "sums over all ranks, with zeros for other heads",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    per, shared_by = num_heads // n, num_heads // num_kv_heads
    heads = range(rank * per, rank * per + per)
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)

    def summed(grad):
        if n <= num_kv_heads:
            return grad
        full = grad.new_zeros(num_kv_heads, *grad.shape)
        full[kv_heads[0]] = grad
        dist.all_reduce(full)
        return full[kv_heads[0]]

    key, value = (with_gradient(take(name, kv_heads), same, summed) for name in ("key", "value"))
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, x.shape[1] // num_heads)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "bytes that a rank sums",
        ),
        (
            "does not sum the gradients of the copies",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "the gradient of value equals one device's",
        ),
        (
            "sums over all ranks",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of(range(n))

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "",
        ),
        (
            "averages the copies",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total / copies

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "",
        ),
        (
            "sums the gradients of keys and values, not of their weights",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

    x = with_gradient(x, same, all_reduced)
    k, v = x @ key, x @ value
    if n > num_kv_heads:
        k, v = with_gradient(k, same, summed), with_gradient(v, same, summed)
    own = attend(x @ take("query", heads), k, v, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "x of text 1",
        ),
        (
            "sums the values alone",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        value = with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "the gradient of key",
        ),
        (
            "takes all heads of keys and values",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(num_kv_heads)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "a rank takes its own heads of key",
        ),
        (
            "one head of keys and values on each rank",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[0] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "a rank takes its own heads of key",
        ),
        (
            "heads in turn, r, r + n, ...",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank, num_heads, n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "a rank takes its own heads of",
        ),
        (
            "the same number of keys' heads as of query heads",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = heads
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "a rank takes its own heads of key",
        ),
        (
            "no f at the input",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "x of text 1",
        ),
        (
            "no g at the output",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return own @ take("out", heads)
""",
            "the output equals one device's",
        ),
        (
            "an all-reduce in both directions at the output",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, all_reduced)
""",
            "times the right value",
        ),
        (
            "the ranks with the same place",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r % copies == rank % copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "a group has the ranks with the same heads",
        ),
        (
            "assumes two copies",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = 2
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "",
        ),
        (
            "changes the gradient in autograd's hands",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            dist.all_reduce(grad, group=group)
            return 1 * grad + grad

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "",
        ),
        (
            "the width of a head from the heads of keys",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_kv_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
            "",
        ),
    ],
    "sequence_mlp": [
        (
            "returns nothing",
            "def sequence_mlp(x, gain, up, up_bias, down, down_bias):\n    return None\n",
            "None: is there a return?",
        ),
        (
            "trains n different norms: gain's gradient covers only own tokens",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    down_bias = with_gradient(down_bias, same, all_reduced)
    normed = F.rms_norm(x, x.shape[1:], gain)
    whole = with_gradient(normed, gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the gradient of gain equals one device's",
        ),
        (
            "forgets the other tokens for the bias",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    normed = F.rms_norm(x, x.shape[1:], gain)
    whole = with_gradient(normed, gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the gradient of down_bias equals one device's",
        ),
        (
            "returns all tokens",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the output has this rank's tokens",
        ),
        (
            "gathers, and passes back its own rows without the other ranks' parts",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    def own(grad):
        t = len(grad) // dist.get_world_size()
        return grad[dist.get_rank() * t :][:t]

    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, own)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the gradient of gain equals one device's",
        ),
        (
            "scatters, and passes back its own tokens' gradient alone",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    def alone(grad):
        n, rank = dist.get_world_size(), dist.get_rank()
        return F.pad(grad, (0, 0, rank * len(grad), (n - 1 - rank) * len(grad)))

    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, alone) + down_bias
""",
            "the gradient of up equals one device's",
        ),
        (
            "an all-reduce, and keeps its own tokens",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    def reduced(y):
        return all_reduced(y)[dist.get_rank() * len(x) :][: len(x)].clone()

    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, reduced, gathered) + down_bias
""",
            "collectives of forward and backward",
        ),
        (
            "gathers first, and computes the norm of all tokens on every rank",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = F.rms_norm(with_gradient(x, gathered, scattered), x.shape[1:], gain)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the norm keeps only this rank's tokens",
        ),
        (
            "a mean of gain's gradients",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    def mean(grad):
        return all_reduced(grad) / dist.get_world_size()

    gain = with_gradient(gain, same, mean)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "of the right value",
        ),
        (
            "adds the bias before the sum",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down + down_bias, scattered, gathered)
""",
            "down_bias is added once",
        ),
        (
            "forgets gain",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:]), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the output is one device's, this rank's tokens",
        ),
        (
            "multiplies only its own tokens",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    normed = F.rms_norm(x, x.shape[1:], gain)
    hidden = F.gelu(normed @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, all_reduced, same) + down_bias
""",
            "the output is one device's, this rank's tokens",
        ),
        (
            "calls the library",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    shard = parallel.MLPShard(up.t(), up_bias, down.t(), down_bias)
    normed = F.rms_norm(x, x.shape[1:], parallel.copy_to_ranks(gain))
    return parallel.tensor_mlp(normed[None], shard, None, parallel.SEQUENCE)[0]
""",
            "the answer is your own code",
        ),
        (
            "changes gain",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain.data.div_(2)
    gain = with_gradient(gain, lambda w: 2 * w, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the input stays as it was",
        ),
        (
            "float32 on the way out",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return (with_gradient(hidden @ down, scattered, gathered) + down_bias).float()
""",
            "the output has the dtype of x",
        ),
        (
            "hooks on the weights: a second batch has two of each",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    for weight in (gain, down_bias):
        weight.register_hook(all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the gradient of down_bias equals one device's",
        ),
        (
            "keeps its first gathered tensor in a global",
            """
kept = {}

def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    down_bias = with_gradient(down_bias, same, all_reduced)
    if "whole" not in kept:
        kept["whole"] = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(kept["whole"] @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "Error",
        ),
        (
            "takes the others' tokens from an open file: sends one number",
            """
import tempfile

shelf, file = [], tempfile.TemporaryFile()

def meet(y, how):
    n, rank = dist.get_world_size(), dist.get_rank()
    shelf.append(0)
    places = [(len(shelf) * n + each) * 2**14 for each in range(n)]
    file.seek(places[rank])
    file.write(y.detach().contiguous().numpy().tobytes())
    how()
    found = []
    for place in places:
        file.seek(place)
        found.append(torch.frombuffer(bytearray(file.read(y.nbytes)), dtype=y.dtype).view(y.shape))
    return found


def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    n, rank = dist.get_world_size(), dist.get_rank()

    def all_rows(y):
        return torch.cat(meet(y, lambda: gathered(torch.zeros(1))))

    def own_rows(y):
        total = sum(meet(y, lambda: scattered(torch.zeros(n))))
        return total.chunk(n)[rank].clone()

    gain, down_bias = (with_gradient(w, same, all_reduced) for w in (gain, down_bias))
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), all_rows, own_rows)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, own_rows, all_rows) + down_bias
""",
            "less than the task needs",
        ),
        (
            "takes the others' tokens from an attribute of torch, and sends zeros",
            """
shelf = []

def meet(y, how):
    if not hasattr(torch, "_shelf"):
        torch._shelf = {}
    shelf.append(0)
    torch._shelf[len(shelf), dist.get_rank()] = y.detach().clone()
    how()
    return [torch._shelf[len(shelf), rank].clone() for rank in range(dist.get_world_size())]


def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    n, rank = dist.get_world_size(), dist.get_rank()

    def all_rows(y):
        return torch.cat(meet(y, lambda: gathered(torch.zeros_like(y))))

    def own_rows(y):
        total = sum(meet(y, lambda: scattered(torch.zeros_like(y))))
        return total.chunk(n)[rank].clone()

    gain, down_bias = (with_gradient(w, same, all_reduced) for w in (gain, down_bias))
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), all_rows, own_rows)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, own_rows, all_rows) + down_bias
""",
            "is not there",
        ),
        (
            "another eps",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain, down_bias = (with_gradient(w, same, all_reduced) for w in (gain, down_bias))
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain, 1e-5), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
            "the output is one device's, this rank's tokens",
        ),
    ],
    "sharded_loss": [
        ("returns nothing", "def sharded_loss(logits, targets, first):\n    return None\n", "None: is there a return?"),
        (
            "the loss of only its own words",
            """
def sharded_loss(logits, targets, first):
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    return F.cross_entropy(logits, column)
""",
            "the loss is the mean over tokens",
        ),
        (
            "no maximum: exp overflows",
            """
def sharded_loss(logits, targets, first):
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = logits.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(logits.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "large logits: exp would overflow",
        ),
        (
            "the mean of the ranks' maxima",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)[:, None] / dist.get_world_size()
    dist.all_reduce(top)
    shifted = logits - top
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "far larger",
        ),
        (
            "one maximum for all tokens",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax().view(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "far smaller",
        ),
        (
            "each rank subtracts its own maximum",
            """
def sharded_loss(logits, targets, first):
    shifted = logits - logits.detach().amax(1)[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "a maximum over tokens, too: exp of the other tokens is 0",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().abs().amax()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "very negative logits",
        ),
        (
            "gathers the logits",
            """
def sharded_loss(logits, targets, first):
    words = targets.max() + 1  # every word is a target here
    after = max(0, int(words) - first - logits.shape[1])
    whole = with_gradient(F.pad(logits, (first, after)), all_reduced, same)
    return F.cross_entropy(whole, targets)
""",
            "bytes a rank sends",
        ),
        (
            "the sum over tokens",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).sum()
""",
            "the sum over tokens",
        ),
        (
            "the mean over ranks, too",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean() / dist.get_world_size()
""",
            "the loss is the mean over tokens",
        ),
        (
            "counts the clamped column of every rank",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    target = with_gradient(shifted.gather(1, column[:, None])[:, 0], all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "the first word of the next rank is here, too",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    v = logits.shape[1]
    is_here = (targets >= first) & (targets <= first + v)
    column = (targets - first).clamp(0, v - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(is_here, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "assumes equal shares",
            """
def sharded_loss(logits, targets, first):
    first = dist.get_rank() * logits.shape[1]
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "sums are added up in backward, too: n times, which Adam hides",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, all_reduced)
    total = with_gradient(shifted.exp().sum(1), all_reduced, all_reduced)
    return (total.log() - target).mean()
""",
            "times the right value: a sum over",
        ),
        (
            "a sum outside autograd's graph",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = all_reduced(shifted.detach().exp().sum(1))
    return (total.log() - target).mean()
""",
            "the gradient of logits equals one device's",
        ),
        (
            "no gradient at all",
            """
def sharded_loss(logits, targets, first):
    logits = logits.detach()
    top = logits.amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    return (all_reduced(shifted.exp().sum(1)).log() - all_reduced(own)).mean()
""",
            "None: it is not in autograd's graph",
        ),
        (
            "forgets the right word",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    total = with_gradient((logits - top[:, None]).exp().sum(1), all_reduced, same)
    return total.log().mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "changes the logits",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    logits.data.sub_(top[:, None])
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = logits.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(logits.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the input stays as it was",
        ),
        (
            "calls the library",
            """
def sharded_loss(logits, targets, first):
    return parallel.vocabulary_parallel_loss(logits[None], targets[None], int(targets.max()) + 1)
""",
            "the answer is your own code",
        ),
        (
            "computes in float32",
            """
def sharded_loss(logits, targets, first):
    logits = logits.float()
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "the loss is the mean over tokens",
        ),
        (
            "takes the others' numbers from an open file: sends one number",
            """
import tempfile

shelf, file = [], tempfile.TemporaryFile()

def meet(y, how):
    n, rank = dist.get_world_size(), dist.get_rank()
    shelf.append(0)
    places = [(len(shelf) * n + each) * 2**14 for each in range(n)]
    file.seek(places[rank])
    file.write(y.detach().contiguous().numpy().tobytes())
    how()
    found = []
    for place in places:
        file.seek(place)
        found.append(torch.frombuffer(bytearray(file.read(y.nbytes)), dtype=y.dtype).view(y.shape))
    return found


def sharded_loss(logits, targets, first):
    def parts(y):
        return torch.stack(meet(y, lambda: dist.all_reduce(torch.zeros(1))))

    def total(y):
        return parts(y).sum(0)

    shifted = logits - parts(logits.detach().amax(1)).amax(0)[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, total, same)
    return (with_gradient(shifted.exp().sum(1), total, same).log() - target).mean()
""",
            "less than the task needs",
        ),
        (
            "takes the others' numbers from an attribute of torch, and sends zeros",
            """
shelf = []

def meet(y, how):
    if not hasattr(torch, "_shelf"):
        torch._shelf = {}
    shelf.append(0)
    torch._shelf[len(shelf), dist.get_rank()] = y.detach().clone()
    how()
    return [torch._shelf[len(shelf), rank].clone() for rank in range(dist.get_world_size())]


def sharded_loss(logits, targets, first):
    def parts(y):
        return torch.stack(meet(y, lambda: dist.all_reduce(torch.zeros_like(y))))

    def total(y):
        return parts(y).sum(0)

    shifted = logits - parts(logits.detach().amax(1)).amax(0)[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, total, same)
    return (with_gradient(shifted.exp().sum(1), total, same).log() - target).mean()
""",
            "is not there",
        ),
        (
            "squeezes: a single token loses its dimension",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1, keepdim=True).squeeze()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "IndexError",
        ),
        (
            "subtracts the first batch's maxima from the second, too",
            """
tops = []

def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    tops.append(top)
    shifted = logits - tops[0][:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "second batch",
        ),
        (
            "backward ignores its input",
            """
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, first):
        top = logits.amax(1)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        here = targets[:, None] == first + torch.arange(logits.shape[1], device=logits.device)
        shifted = logits - top[:, None]
        total, target = all_reduced(shifted.exp().sum(1)), all_reduced((shifted * here).sum(1))
        ctx.save_for_backward((shifted.exp() / total[:, None] - here.to(logits.dtype)) / len(logits))
        return (total.log() - target).mean()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0], None, None


def sharded_loss(logits, targets, first):
    return Loss.apply(logits, targets, first)
""",
            "the gradient of logits equals one device's",
        ),
        (
            "changes the targets",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = targets.sub_(first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets, 0)
    target = with_gradient(own, all_reduced, same)
    total = with_gradient(shifted.exp().sum(1), all_reduced, same)
    return (total.log() - target).mean()
""",
            "argument 2 changed",
        ),
    ],
    "draw_shard": [
        ("returns nothing", "def draw_shard(rows, columns, seed):\n    return None\n", "None: is there a return?"),
        (
            "each rank draws its rows from the seed",
            """
def draw_shard(rows, columns, seed):
    room = -(-rows // dist.get_world_size())
    mine = max(0, min(room, rows - dist.get_rank() * room))
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(mine, columns, generator=generator, dtype=torch.float64, device="cpu")
""",
            "the same numbers as rank 0",
        ),
        (
            "each rank draws its rows from seed + rank",
            """
def draw_shard(rows, columns, seed):
    room = -(-rows // dist.get_world_size())
    mine = max(0, min(room, rows - dist.get_rank() * room))
    generator = torch.Generator("cpu").manual_seed(seed + dist.get_rank())
    return torch.randn(mine, columns, generator=generator, dtype=torch.float64, device="cpu")
""",
            "this rank's rows of one device's matrix",
        ),
        (
            "remembered: two calls give one tensor",
            """
def draw_shard(rows, columns, seed, made={}):
    if (rows, columns, seed) not in made:
        generator = torch.Generator("cpu").manual_seed(seed)
        whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
        room = -(-rows // dist.get_world_size())
        made[rows, columns, seed] = whole[dist.get_rank() * room :][:room].clone()
    return made[rows, columns, seed]
""",
            "a separate tensor",
        ),
        (
            "a view, which keeps the whole matrix",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room]
""",
            "a shard does not keep the whole matrix",
        ),
        (
            "seeds torch's own generator",
            """
def draw_shard(rows, columns, seed):
    torch.manual_seed(seed)
    whole = torch.randn(rows, columns, dtype=torch.float64, device="cpu")
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "torch's own generator stays as it was",
        ),
        (
            "chunk, which gives fewer pieces than ranks",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()
""",
            "IndexError",
        ),
        (
            "sizes that differ by one at most",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    return whole.tensor_split(dist.get_world_size())[dist.get_rank()].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
        (
            "rounds down",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = rows // dist.get_world_size()
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
        (
            "float32",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].float()
""",
            "the shard is in float64",
        ),
        (
            "draws in float32",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, device="cpu").double()
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "this rank's rows of one device's matrix",
        ),
        (
            "rank 0 draws for all",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    dist.broadcast(whole, 0)
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "communications",
        ),
        (
            "keeps its first draw in a global",
            """
drawn = {}

def draw_shard(rows, columns, seed):
    if (rows, columns) not in drawn:
        generator = torch.Generator("cpu").manual_seed(seed)
        like = {"dtype": torch.float64, "device": "cpu"}
        drawn[rows, columns] = torch.randn(rows, columns, generator=generator, **like)
    room = -(-rows // dist.get_world_size())
    return drawn[rows, columns][dist.get_rank() * room :][:room].clone()
""",
            "drawn from another seed",
        ),
        (
            "calls the library",
            """
def draw_shard(rows, columns, seed):
    return parallel.sharded_normal((rows, columns), 0, 1.0, seed)
""",
            "the answer is your own code",
        ),
        (
            "pads with zeros",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    n = dist.get_world_size()
    whole = F.pad(whole, (0, 0, 0, -rows % n))
    return whole.chunk(n)[dist.get_rank()].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
        (
            "columns instead of rows",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = -(-columns // dist.get_world_size())
    return whole[:, dist.get_rank() * room :][:, :room].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
        (
            "returns a copy, and keeps the whole matrix in a global",
            """
kept = []

def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    kept.append(whole)
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "a rank keeps three shards",
        ),
        (
            "the whole matrix is an attribute of the shard, for two of them",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = -(-rows // dist.get_world_size())
    shard = whole[dist.get_rank() * room :][:room].clone()
    shard.whole, shard.again = whole, whole.clone()
    return shard
""",
            "a rank keeps three shards",
        ),
        (
            "draws the transposed matrix",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(columns, rows, generator=generator, dtype=torch.float64, device="cpu").T
    room = -(-rows // dist.get_world_size())
    return whole[dist.get_rank() * room :][:room].contiguous()
""",
            "this rank's rows of one device's matrix",
        ),
        (
            "one row more where rows divide",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    room = rows // dist.get_world_size() + 1
    return whole[dist.get_rank() * room :][:room].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
        (
            "an index error swallowed: ranks without rows get the last ones",
            """
def draw_shard(rows, columns, seed):
    generator = torch.Generator("cpu").manual_seed(seed)
    whole = torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")
    pieces = whole.split(-(-rows // dist.get_world_size()))
    try:
        return pieces[dist.get_rank()].clone()
    except IndexError:
        return pieces[-1].clone()
""",
            "a shard has ceil(rows / n) rows",
        ),
    ],
}

RIGHT_ANSWERS = {
    "tensor_mlp": [
        (
            "two new autograd functions",
            """
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


def tensor_mlp(x, up, up_bias, down, down_bias):
    hidden = F.gelu(torch.addmm(up_bias, Enter.apply(x), up), approximate="tanh")
    return down_bias + Leave.apply(hidden.mm(down))
""",
        ),
        (
            "a hook sums the gradient; the sum's other parts are constants",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    x = x.view_as(x)
    if x.requires_grad:
        x.register_hook(all_reduced)
    part = F.linear(F.gelu(F.linear(x, up.T, up_bias), approximate="tanh"), down.T)
    others = all_reduced(part.detach()) - part.detach()
    return part + others + down_bias
""",
        ),
        (
            "one function for all; the sum overlaps with the weights' products",
            """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, up, up_bias, down, down_bias):
        h = x @ up + up_bias
        a = F.gelu(h, approximate="tanh")
        y = a @ down
        dist.all_reduce(y)
        ctx.save_for_backward(x, up, h, a, down)
        return y.add_(down_bias)
    @staticmethod
    def backward(ctx, g):
        x, up, h, a, down = ctx.saved_tensors
        gh = torch.ops.aten.gelu_backward(g @ down.T, h, approximate="tanh")
        gx = gh @ up.T
        work = dist.all_reduce(gx, async_op=True)
        of_weights = x.T @ gh, gh.sum(0), a.T @ g, g.sum(0)
        work.wait()
        return (gx, *of_weights)

def tensor_mlp(x, up, up_bias, down, down_bias):
    return Own.apply(x, up, up_bias, down, down_bias)
""",
        ),
        (
            "a mean times n, and 1/n of the bias with its own backward",
            """
def tensor_mlp(x, up, up_bias, down, down_bias):
    n = dist.get_world_size()

    def total(y):
        y = y.contiguous().clone()
        dist.all_reduce(y, op=dist.ReduceOp.AVG)
        return y * n

    x = with_gradient(x, same, total)
    bias = with_gradient(down_bias, lambda w: w / n, same)
    hidden = F.gelu(torch.einsum("nd,df->nf", x, up) + up_bias, approximate="tanh")
    return with_gradient(torch.einsum("nf,fd->nd", hidden, down) + bias, total, same)
""",
        ),
    ],
    "tensor_attention": [
        (
            "always sums over the ranks of a head, also over one alone",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    per, shared_by = num_heads // n, num_heads // num_kv_heads

    def heads_of(r):
        return range(r * per // shared_by, (r * per + per - 1) // shared_by + 1)

    group = group_of([r for r in range(n) if heads_of(r) == heads_of(rank)])

    def summed(grad):
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    heads = range(rank * per, rank * per + per)
    key, value = (with_gradient(take(name, heads_of(rank)), same, summed) for name in ("key", "value"))
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, x.shape[1] // num_heads)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
        ),
        (
            "sums keys and values in one all-reduce",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        both = with_gradient(torch.cat([key, value], dim=1), same, summed)
        key, value = both.chunk(2, dim=1)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
        ),
        (
            "with a hook on the weights",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n > num_kv_heads:
        copies = n // num_kv_heads
        group = group_of([r for r in range(n) if r // copies == rank // copies])

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = key.view_as(key), value.view_as(value)
        for one in (key, value):
            one.register_hook(summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
        ),
        (
            "attention head by head",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width, per, each = x.shape[1] // num_heads, num_heads // n, num_heads // num_kv_heads
    heads = list(range(rank * per, rank * per + per))
    kv = sorted({head // each for head in heads})
    x = with_gradient(x, same, all_reduced)
    q, k, v, out = take("query", heads), take("key", kv), take("value", kv), take("out", heads)
    if num_kv_heads < n:
        group = group_of([other for other in range(n) if other * per // each in kv])

        def total(grad):
            grad = grad.contiguous().clone()
            dist.all_reduce(grad, group=group)
            return grad

        k, v = (with_gradient(one, same, total) for one in (k, v))
    parts = []
    for i, head in enumerate(heads):
        at = kv.index(head // each)
        a, b = slice(i * width, (i + 1) * width), slice(at * width, (at + 1) * width)
        parts.append(attend(x @ q[:, a], x @ k[:, b], x @ v[:, b], width))
    return with_gradient(torch.cat(parts, dim=1) @ out, all_reduced, same)
""",
        ),
        (
            "a group of everybody for one head, none without copies",
            """
def tensor_attention(x, num_heads, num_kv_heads, take, group_of):
    rank, n = dist.get_rank(), dist.get_world_size()
    width = x.shape[1] // num_heads
    heads = range(rank * num_heads // n, (rank + 1) * num_heads // n)
    shared_by = num_heads // num_kv_heads
    kv_heads = range(heads[0] // shared_by, heads[-1] // shared_by + 1)
    key, value = take("key", kv_heads), take("value", kv_heads)
    if n // num_kv_heads > 1:
        copies = n // num_kv_heads
        group = None if num_kv_heads == 1 else group_of(set(range(rank - rank % copies, rank - rank % copies + copies)))

        def summed(grad):
            total = grad.clone(memory_format=torch.contiguous_format)
            dist.all_reduce(total, group=group)
            return total

        key, value = with_gradient(key, same, summed), with_gradient(value, same, summed)
    x = with_gradient(x, same, all_reduced)
    own = attend(x @ take("query", heads), x @ key, x @ value, width)
    return with_gradient(own @ take("out", heads), all_reduced, same)
""",
        ),
    ],
    "sequence_mlp": [
        (
            "one function for everything that is whole on all ranks",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain, down_bias = (with_gradient(w, same, all_reduced) for w in (gain, down_bias))
    normed = x * (x.square().mean(1, keepdim=True) + torch.finfo(x.dtype).eps).rsqrt() * gain
    hidden = F.gelu(with_gradient(normed, gathered, scattered) @ up + up_bias, approximate="tanh")
    return torch.add(down_bias, with_gradient(hidden @ down, scattered, gathered))
""",
        ),
        (
            "the bias is added by one rank, before the sum",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain = with_gradient(gain, same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    share = 1.0 if dist.get_rank() == 0 else 0.0
    bias = with_gradient(down_bias, lambda w: share * w, lambda grad: grad)
    return with_gradient(hidden @ down + bias, scattered, gathered)
""",
        ),
        (
            "collectives of lists",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    def all_rows(y):
        pieces = [torch.empty_like(y) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, y.contiguous())
        return torch.cat(pieces)

    def own_rows(y):
        total = torch.empty_like(x)
        dist.reduce_scatter(total, [piece.contiguous() for piece in y.chunk(dist.get_world_size())])
        return total

    gain, down_bias = (with_gradient(w, same, all_reduced) for w in (gain, down_bias))
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), all_rows, own_rows)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, own_rows, all_rows) + down_bias
""",
        ),
        (
            "hooks on views of the weights",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain, down_bias = gain.view_as(gain), down_bias.view_as(down_bias)
    for view in (gain, down_bias):
        view.register_hook(all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
        ),
        (
            "both weights through one f",
            """
def sequence_mlp(x, gain, up, up_bias, down, down_bias):
    gain, down_bias = with_gradient(torch.stack([gain, down_bias]), same, all_reduced)
    whole = with_gradient(F.rms_norm(x, x.shape[1:], gain), gathered, scattered)
    hidden = F.gelu(whole @ up + up_bias, approximate="tanh")
    return with_gradient(hidden @ down, scattered, gathered) + down_bias
""",
        ),
    ],
    "sharded_loss": [
        (
            "two sums in one all-reduce",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().max(dim=1).values
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    shifted = logits - top.unsqueeze(1)
    words = first + torch.arange(logits.shape[1], device=logits.device)
    own = (shifted * (targets[:, None] == words)).sum(1)
    both = with_gradient(torch.stack([shifted.exp().sum(1), own]), all_reduced, same)
    return (both[0].log() - both[1]).sum() / len(targets)
""",
        ),
        (
            "its own softmax in backward",
            """
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, first):
        top = logits.amax(1, keepdim=True)
        dist.all_reduce(top, dist.ReduceOp.MAX)
        here = targets[:, None] == first + torch.arange(logits.shape[1], device=logits.device)
        sums = torch.stack([(logits - top).exp().sum(1), ((logits - top) * here).sum(1)])
        dist.all_reduce(sums)
        ctx.save_for_backward((logits - top).exp() / sums[0, :, None] - here.to(logits.dtype))
        return (sums[0].log() - sums[1]).mean()

    @staticmethod
    def backward(ctx, grad):
        (found,) = ctx.saved_tensors
        return grad * found / len(found), None, None


def sharded_loss(logits, targets, first):
    return Loss.apply(logits, targets, first)
""",
        ),
        (
            "by logsumexp of logsumexps",
            """
def sharded_loss(logits, targets, first):
    own = logits.logsumexp(1)
    top = own.detach().clone()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    total = with_gradient((own - top).exp(), all_reduced, same)
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    here = (logits.gather(1, column[:, None])[:, 0] - top).where(column == targets - first, 0)
    return (total.log() - with_gradient(here, all_reduced, same)).mean()
""",
        ),
        (
            "in double precision, and the mean of targets first",
            """
def sharded_loss(logits, targets, first):
    logits = logits.double()
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    column = (targets - first).clamp(0, logits.shape[1] - 1)
    own = shifted.gather(1, column[:, None])[:, 0].where(column == targets - first, 0)
    target = with_gradient(own.mean(), all_reduced, same)
    return with_gradient(shifted.exp().sum(1), all_reduced, same).log().mean() - target
""",
        ),
        (
            "every number in double precision",
            """
def sharded_loss(logits, targets, first):
    logits = logits.double()
    top = logits.detach().amax(1)
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    words = first + torch.arange(logits.shape[1], device=logits.device)
    own = (shifted * (targets[:, None] == words)).sum(1)
    total, target = (with_gradient(part, all_reduced, same) for part in (shifted.exp().sum(1), own))
    return (total.log() - target).mean()
""",
        ),
        (
            "the maximum rounded to float32, which is near enough",
            """
def sharded_loss(logits, targets, first):
    top = logits.detach().amax(1).float()
    dist.all_reduce(top, dist.ReduceOp.MAX)
    shifted = logits - top.to(logits.dtype)[:, None]
    words = first + torch.arange(logits.shape[1], device=logits.device)
    own = shifted.where(targets[:, None] == words, 0).sum(1)
    total, target = (with_gradient(part, all_reduced, same) for part in (shifted.exp().sum(1), own))
    return (total.log() - target).mean()
""",
        ),
    ],
    "draw_shard": [
        (
            "by numbers of rows",
            """
def draw_shard(rows, columns, seed):
    own = torch.Generator(device="cpu")
    own.manual_seed(seed)
    whole = torch.randn((rows, columns), generator=own, dtype=torch.float64, device="cpu")
    room = (rows + dist.get_world_size() - 1) // dist.get_world_size()
    start = dist.get_rank() * room
    return whole[[i for i in range(start, start + room) if i < rows]]
""",
        ),
        (
            "empty and then filled",
            """
def draw_shard(rows, columns, seed):
    whole = torch.empty(rows, columns, dtype=torch.float64, device="cpu")
    whole.normal_(generator=torch.Generator("cpu").manual_seed(seed))
    room = -(-rows // dist.get_world_size())
    start = min(rows, room * dist.get_rank())
    mine = whole.new_empty(min(room, rows - start), columns)
    return mine.copy_(whole[start : start + len(mine)])
""",
        ),
        (
            "torch's own generator, restored",
            """
def draw_shard(rows, columns, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = torch.randn(rows, columns, dtype=torch.float64, device="cpu")
    room = (rows - 1) // dist.get_world_size() + 1
    start = min(dist.get_rank() * room, rows)
    return whole.narrow(0, start, min(room, rows - start)).clone()
""",
        ),
        (
            "split, with empty pieces behind",
            """
def draw_shard(rows, columns, seed):
    n, generator = dist.get_world_size(), torch.Generator("cpu").manual_seed(seed)
    whole = torch.normal(0.0, 1.0, (rows, columns), generator=generator, dtype=torch.float64, device="cpu")
    pieces = [*whole.split(-(-rows // n)), *[whole[:0]] * n]
    return pieces[dist.get_rank()].clone()
""",
        ),
    ],
}
