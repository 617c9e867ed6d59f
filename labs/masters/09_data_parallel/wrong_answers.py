"""Wrong answers to lab 09: data parallel, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "average_gradients": [
        (
            "forgets to divide",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
""",
            "so it is a mean",
        ),
        (
            "divides twice",
            """
def average_gradients(module):
    for param in module.parameters():
        param.grad /= dist.get_world_size()
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
""",
            "so it is a mean",
        ),
        (
            "reduces the parameter instead of its gradient",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size() * 2
""",
            "parameters are not changed",
        ),
        (
            "is right with two ranks only",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
        param.grad /= 2
""",
            "so it is a mean",
        ),
        (
            "gathers all gradients as objects and averages them itself",
            """
def average_gradients(module):
    for param in module.parameters():
        grads = [None] * dist.get_world_size()
        dist.all_gather_object(grads, param.grad)
        param.grad = torch.stack(grads).mean(0)
""",
            "bytes a rank sends in the mean",
        ),
        (
            "uses rank 0's gradient on all ranks",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.broadcast(param.grad, src=0)
""",
            "that of the whole batch on one device",
        ),
        (
            "does not communicate",
            """
def average_gradients(module):
    for param in module.parameters():
        param.grad.div_(dist.get_world_size())
""",
            "every rank ends with the same gradients",
        ),
        (
            "leaves out the biases",
            """
def average_gradients(module):
    for param in module.parameters():
        if param.ndim > 1:
            param.grad.div_(dist.get_world_size())
            dist.all_reduce(param.grad)
""",
            "every rank ends with the same gradients",
        ),
        (
            "broadcasts every rank's gradient in turn",
            """
def average_gradients(module):
    for param in module.parameters():
        mine, total = param.grad, torch.zeros_like(param.grad)
        for rank in range(dist.get_world_size()):
            theirs = mine.clone()
            dist.broadcast(theirs, src=rank)
            total += theirs
        param.grad = total / dist.get_world_size()
""",
            "bytes a rank sends in the mean",
        ),
        (
            "passes gradients through a variable that simulated ranks share, and communicates nothing",
            """
shared = {}
def average_gradients(module):
    ranks = dist.get_world_size()
    for number, param in enumerate(module.parameters()):
        shared[number, dist.get_rank()] = param.grad.clone()
    dist.barrier()
    for number, param in enumerate(module.parameters()):
        param.grad = sum(shared[number, rank] for rank in range(ranks)) / ranks
    dist.barrier()
""",
            "KeyError on rank 0",
        ),
        (
            "sends half precision",
            """
def average_gradients(module):
    for param in module.parameters():
        half = param.grad.half() / dist.get_world_size()
        dist.all_reduce(half)
        param.grad = half.double()
""",
            "the gradient",
        ),
        (
            "sends single precision",
            """
def average_gradients(module):
    for param in module.parameters():
        single = param.grad.float() / dist.get_world_size()
        dist.all_reduce(single)
        param.grad = single.double()
""",
            "that of the whole batch on one device",
        ),
        (
            "averages over elements, too",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
        param.grad.fill_(param.grad.mean() / dist.get_world_size())
""",
            "that of the whole batch on one device",
        ),
        (
            "binds a local name to the mean, and leaves the gradient",
            """
def average_gradients(module):
    for param in module.parameters():
        grad = param.grad.clone()
        dist.all_reduce(grad)
        grad = grad / dist.get_world_size()
""",
            "every rank ends with the same gradients",
        ),
        (
            "averages in the first step only",
            """
def average_gradients(module):
    if hasattr(module, "is_averaged"):
        return
    module.is_averaged = True
    for param in module.parameters():
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)
""",
            "step 2",
        ),
        (
            "calls the library's own",
            """
def average_gradients(module):
    parallel.average_gradients(module)
""",
            "the answer is your own code",
        ),
        (
            "divides during the sum",
            """
def average_gradients(module):
    for param in module.parameters():
        work = dist.all_reduce(param.grad, async_op=True)
        param.grad /= dist.get_world_size()
        work.wait()
""",
            "wrote to a tensor in flight",
        ),
        (
            "works only for a list of layers",
            """
def average_gradients(module):
    for layer in module:
        for x in (layer.weight, layer.bias):
            x.grad.div_(dist.get_world_size())
            dist.all_reduce(x.grad)
""",
            "object is not iterable",
        ),
        (
            "sends a weight twice that two layers share",
            """
def average_gradients(module):
    for _, p in module.named_parameters(remove_duplicate=False):
        p.grad.div_(dist.get_world_size())
        dist.all_reduce(p.grad)
""",
            "bytes a rank sends in the mean",
        ),
        (
            "leaves out the parameters of the module itself",
            """
def average_gradients(module):
    for child in module.children():
        for p in child.parameters():
            p.grad.div_(dist.get_world_size())
            dist.all_reduce(p.grad)
""",
            "every rank ends with the same gradients",
        ),
        (
            "keeps the parameters of the first module",
            """
known = []

def average_gradients(module):
    if not known:
        known.extend(module.parameters())
    for p in known:
        p.grad.div_(dist.get_world_size())
        dist.all_reduce(p.grad)
""",
            "another module",
        ),
        (
            "handles only matrices and vectors",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.ndim in (1, 2):
            p.grad.div_(dist.get_world_size())
            dist.all_reduce(p.grad)
""",
            "every rank ends with the same gradients",
        ),
        (
            "leaves out gradients of one element",
            """
def average_gradients(module):
    for p in module.parameters():
        if p.numel() > 1:
            p.grad.div_(dist.get_world_size())
            dist.all_reduce(p.grad)
""",
            "every rank ends with the same gradients",
        ),
        (
            "sends float32 as float64",
            """
def average_gradients(module):
    for p in module.parameters():
        g = p.grad.double() / dist.get_world_size()
        dist.all_reduce(g)
        p.grad = g.to(p.dtype)
""",
            "bytes a rank sends in the mean",
        ),
        (
            "clips large gradients",
            """
def average_gradients(module):
    for p in module.parameters():
        p.grad.div_(dist.get_world_size())
        dist.all_reduce(p.grad)
        p.grad.clamp_(-1, 1)
""",
            "another module",
        ),
        (
            "divides by seven at most",
            """
def average_gradients(module):
    n = min(7, dist.get_world_size())
    for p in module.parameters():
        p.grad.div_(n)
        dist.all_reduce(p.grad)
""",
            "so it is a mean",
        ),
        (
            "tests once for completion, and does not wait",
            """
def average_gradients(module):
    for param in module.parameters():
        work = dist.all_reduce(param.grad, async_op=True)
        work.is_completed()
        param.grad /= dist.get_world_size()
""",
            "every communication is waited for",
        ),
        (
            "finds the library's own through torch",
            """
def average_gradients(module):
    getattr(torch, 'sys').modules['lablib.parallel'].average_gradients(module)
""",
            "the answer is your own code",
        ),
        (
            "unpickles the library's own",
            """
import pickle

def average_gradients(module):
    pickle.loads(b'clablib.parallel\\naverage_gradients\\n.')(module)
""",
            "the answer is your own code",
        ),
        (
            "leaves out gradients of zeros",
            """
def average_gradients(module):
    n = dist.get_world_size()
    for p in module.parameters():
        if p.grad.abs().sum() > 0:
            dist.all_reduce(p.grad); p.grad /= n
""",
            "every rank makes the same calls (3 ranks, all gradients of rank",
        ),
    ],
    "plan_buckets": [
        (
            "fills them in forward order",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in range(len(sizes_bytes)):
        if not buckets or filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "the last parameter comes first",
        ),
        (
            "gives every parameter a separate bucket",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    return [[index] for index in reversed(range(len(sizes_bytes)))]
""",
            "a bucket is closed only when the next gradient does not fit",
        ),
        (
            "drops the last bucket, which is not full",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, bucket, filled_bytes = [], [], 0
    for index in reversed(range(len(sizes_bytes))):
        if bucket and filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append(bucket)
            bucket, filled_bytes = [], 0
        bucket.append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "every parameter is in exactly one bucket",
        ),
        (
            "closes a bucket only after it is too full",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if filled_bytes >= bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "forgets to start counting again",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        filled_bytes += sizes_bytes[index]
        if filled_bytes > bucket_bytes:
            buckets.append([])
        buckets[-1].append(index)
    return buckets
""",
            "a bucket is closed only when the next gradient does not fit",
        ),
        (
            "closes a bucket that the next gradient would fill exactly",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in reversed(range(len(sizes_bytes))):
        if not buckets or filled_bytes + sizes_bytes[index] >= bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "a bucket may be exactly full",
        ),
        (
            "uses torch's 25 MiB for every size of a bucket",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in reversed(range(len(sizes_bytes))):
        if not buckets or filled_bytes + sizes_bytes[index] > 25 * 2**20:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "fills from the front, and turns the plan round",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in range(len(sizes_bytes)):
        if not buckets or filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return [bucket[::-1] for bucket in buckets[::-1]]
""",
            "a bucket is closed only when the next gradient does not fit",
        ),
        (
            "makes an empty bucket of no parameters",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [[]], 0
    for index in reversed(range(len(sizes_bytes))):
        if buckets[-1] and filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "no parameters make no bucket",
        ),
        (
            "leaves an empty bucket before a gradient that is too large",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, bucket, filled_bytes = [], [], 0
    for index in reversed(range(len(sizes_bytes))):
        if sizes_bytes[index] > bucket_bytes:
            buckets += [bucket, [index]]
            bucket, filled_bytes = [], 0
            continue
        if filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append(bucket)
            bucket, filled_bytes = [], 0
        bucket.append(index)
        filled_bytes += sizes_bytes[index]
    return buckets + [bucket] if sizes_bytes else []
""",
            "bucket",
        ),
        (
            "puts a gradient into any bucket with room",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets = []
    for index in reversed(range(len(sizes_bytes))):
        for bucket in buckets:
            if sum(sizes_bytes[i] for i in bucket) + sizes_bytes[index] <= bucket_bytes:
                bucket.append(index)
                break
        else:
            buckets.append([index])
    return buckets
""",
            "the last parameter comes first",
        ),
        (
            "leaves out gradients larger than a bucket",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled_bytes = [], 0
    for index in reversed(range(len(sizes_bytes))):
        if sizes_bytes[index] > bucket_bytes:
            continue
        if not buckets or filled_bytes + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(index)
        filled_bytes += sizes_bytes[index]
    return buckets
""",
            "every parameter is in exactly one bucket",
        ),
        (
            "empties the list that it was given",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = [], 0
    while sizes_bytes:
        s = sizes_bytes.pop()
        if not buckets or filled + s > bucket_bytes:
            buckets.append([]); filled = 0
        buckets[-1].append(len(sizes_bytes)); filled += s
    return buckets
""",
            "argument 1 (a list) changed",
        ),
        (
            "returns indices without buckets",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    return list(range(len(sizes_bytes)))[::-1]
""",
            "a bucket is a list of parameter indices",
        ),
        (
            "puts sizes into the buckets",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = [], 0
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or filled + s > bucket_bytes:
            buckets.append([]); filled = 0
        buckets[-1].append(s); filled += s
    return buckets
""",
            "every parameter is in exactly one bucket",
        ),
        (
            "numbers that are not indices",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = [], 0
    for i in reversed(range(len(sizes_bytes))):
        if not buckets or filled + sizes_bytes[i] > bucket_bytes:
            buckets.append([]); filled = 0
        buckets[-1].append(i + 0.5); filled += sizes_bytes[i]
    return buckets
""",
            "item 0 is",
        ),
        (
            "returns the plan of the first call",
            """
memo = []
def plan_buckets(sizes_bytes, bucket_bytes):
    if memo: return memo[0]
    buckets, filled = [], 0
    for i in reversed(range(len(sizes_bytes))):
        if not buckets or filled + sizes_bytes[i] > bucket_bytes:
            buckets.append([]); filled = 0
        buckets[-1].append(i); filled += sizes_bytes[i]
    memo.append(buckets)
    return buckets
""",
            "every parameter is in exactly one bucket",
        ),
        (
            "opens another bucket as soon as one is full",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    if not sizes_bytes:
        return []
    buckets, free = ([[]], bucket_bytes)
    for i in reversed(range(len(sizes_bytes))):
        if sizes_bytes[i] > free and buckets[-1]:
            buckets.append([])
            free = bucket_bytes
        buckets[-1].append(i)
        free -= sizes_bytes[i]
        if free == 0:
            buckets.append([])
            free = bucket_bytes
    return buckets
""",
            "no bucket is empty",
        ),
        (
            "counts numbers of four bytes",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or filled // 4 + s // 4 > bucket_bytes // 4:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "fills a bucket with two gradients that are each too large",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or (filled + s > bucket_bytes and (not (filled > bucket_bytes and s > bucket_bytes))):
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "always adds the first parameter",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or (filled + s > bucket_bytes and i > 0):
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "caches its plan by the number of parameters",
            """
memo = {}

def plan_buckets(sizes_bytes, bucket_bytes):
    n = len(sizes_bytes)
    if n not in memo:
        buckets, filled = ([], 0)
        for i in reversed(range(len(sizes_bytes))):
            s = sizes_bytes[i]
            if not buckets or filled + s > bucket_bytes:
                buckets.append([])
                filled = 0
            buckets[-1].append(i)
            filled += s
        memo[n] = buckets
    return memo[n]
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "lets one of the first that is too large join",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or (filled + s > bucket_bytes and (not (i > len(sizes_bytes) - 4 and s > bucket_bytes))):
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "no bucket of several parameters exceeds",
        ),
        (
            "puts 64 gradients in a bucket at most",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or filled + s > bucket_bytes or len(buckets[-1]) >= 64:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "a bucket is closed only when",
        ),
        (
            "adds up in single precision",
            """
            def plan_buckets(sizes_bytes, bucket_bytes):
                sizes, buckets, filled = torch.tensor(sizes_bytes).float(), [], 0
                for index in reversed(range(len(sizes))):
                    if not buckets or filled + sizes[index] > bucket_bytes:
                        buckets.append([])
                        filled = 0
                    buckets[-1].append(index)
                    filled += sizes[index]
                return buckets
            """,
            "(2 gradients, buckets of 67108864 bytes)",
        ),
        (
            "makes buckets of a million bytes at most",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or filled + s > min(bucket_bytes, 10 ** 6):
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
            "a bucket is closed only when",
        ),
        (
            "returns a dict",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if not buckets or filled + s > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return dict(enumerate(buckets))
""",
            "a list of buckets is returned",
        ),
        (
            "returns nothing",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for index in reversed(range(len(sizes_bytes))):
        if not buckets or filled + sizes_bytes[index] > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += sizes_bytes[index]
""",
            "None: is there a return?",
        ),
    ],
    "overlap": [
        (
            "waits inside the hook",
            """
def overlap(module):
    def start(param):
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad, async_op=True).wait()
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return lambda: None
""",
            "simulated seconds of",
        ),
        (
            "starts everything after backward",
            """
def overlap(module):
    def finish():
        works = []
        for param in module.parameters():
            param.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(param.grad, async_op=True))
        for work in works:
            work.wait()
    return finish
""",
            "starts in the first half of backward",
        ),
        (
            "reduces the hook's argument, the parameter",
            """
def overlap(module):
    works = []
    def start(param):
        works.append(dist.all_reduce(param.data, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return lambda: [work.wait() for work in works]
""",
            "the hook does not change the parameter itself",
        ),
        (
            "never waits",
            """
def overlap(module):
    def start(param):
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad, async_op=True)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return lambda: None
""",
            "never waited for all_reduce",
        ),
        (
            "forgets to divide",
            """
def overlap(module):
    works = []
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(
            lambda param: works.append(dist.all_reduce(param.grad, async_op=True)))
    return lambda: [work.wait() for work in works]
""",
            "so it is a mean",
        ),
        (
            "divides twice, before and after",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for work in works:
            work.wait()
        for param in module.parameters():
            param.grad.div_(dist.get_world_size())
    return finish
""",
            "so it is a mean",
        ),
        (
            "hooks the weights only",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for name, param in module.named_parameters():
        if name.endswith("weight"):
            param.register_post_accumulate_grad_hook(start)
    return lambda: [work.wait() for work in works]
""",
            "every rank ends with the same gradients",
        ),
        (
            "never clears its list, and divides the gradients of the step before again",
            """
def overlap(module):
    works = []
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(
            lambda param: works.append((param, dist.all_reduce(param.grad, async_op=True))))
    def finish():
        for param, work in works:
            work.wait()
            param.grad /= dist.get_world_size()
    return finish
""",
            "wrote to a tensor in flight",
        ),
        (
            "removes its hooks after the first step",
            """
def overlap(module):
    works, handles = [], []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        handles.append(param.register_post_accumulate_grad_hook(start))
    def finish():
        while works:
            works.pop().wait()
        for handle in handles:
            handle.remove()
    return finish
""",
            "step 2",
        ),
        (
            "waits for the first of them only",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        works[0].wait()
        works.clear()
    return finish
""",
            "every communication is waited for",
        ),
        (
            "waits for all but the last",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for work in works[:-1]:
            work.wait()
        works.clear()
    return finish
""",
            "every communication is waited for",
        ),
        (
            "averages a copy",
            """
def overlap(module):
    works = []
    def start(param):
        works.append(dist.all_reduce(param.grad / dist.get_world_size(), async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "every rank ends with the same gradients",
        ),
        (
            "starts all of them when the last gradient is ready",
            """
def overlap(module):
    works, ready = [], []
    params = list(module.parameters())
    def start(param):
        ready.append(param)
        if len(ready) == len(params):
            for each in ready:
                each.grad.div_(dist.get_world_size())
                works.append(dist.all_reduce(each.grad, async_op=True))
            ready.clear()
    for param in params:
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "starts in the first half of backward",
        ),
        (
            "sends a gradient twice",
            """
def overlap(module):
    works = []
    def start(param):
        for _ in range(2):
            param.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(param.grad, async_op=True))
            works[-1].wait()
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return works.clear
""",
            "bytes a rank sends in the mean",
        ),
        (
            "is right on four ranks only",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(4)
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "so it is a mean",
        ),
        (
            "removes its hooks after the second step",
            """
def overlap(module):
    works, handles, step = [], [], [0]
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        handles.append(param.register_post_accumulate_grad_hook(start))
    def finish():
        while works:
            works.pop().wait()
        step[0] += 1
        if step[0] == 2:
            for handle in handles:
                handle.remove()
    return finish
""",
            "step 3",
        ),
        (
            "leaves the first layers to a blocking all-reduce after backward",
            """
def overlap(module):
    works = []
    params = list(module.parameters())
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in params[4:]:
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
        for param in params[:4]:
            param.grad.div_(dist.get_world_size())
            dist.all_reduce(param.grad)
    return finish
""",
            "simulated seconds of",
        ),
        (
            "keeps gradients and averages of every step",
            """
def overlap(module):
    started = []
    def start(param):
        mean = param.grad / dist.get_world_size()
        started.append((param, param.grad, mean, dist.all_reduce(mean, async_op=True)))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for param, grad, mean, work in started:
            work.wait()
            param.grad = mean
    return finish
""",
            "releases the works of its step",
        ),
        (
            "returns nothing",
            """
def overlap(module):
    works = []
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
""",
            "overlap returns a function",
        ),
        (
            "divides after the wait, and waits again for the works of the step before",
            """
def overlap(module):
    works = []
    def start(param):
        works.append((param, dist.all_reduce(param.grad, async_op=True)))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for param, work in works:
            work.wait()
            param.grad /= dist.get_world_size()
    return finish
""",
            "was for an earlier call, already waited for",
        ),
        (
            "divides in the hook, during the sum",
            """
def overlap(module):
    works = []
    def start(param):
        works.append(dist.all_reduce(param.grad, async_op=True))
        param.grad /= dist.get_world_size()
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "wrote to a tensor in flight",
        ),
        (
            "sends float32",
            """
def overlap(module):
    works = []
    def start(param):
        small = (param.grad / dist.get_world_size()).float()
        works.append((param, small, dist.all_reduce(small, async_op=True)))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            param, small, work = works.pop(0)
            work.wait(); param.grad.copy_(small)
    return finish
""",
            "that of the whole batch on one device",
        ),
        (
            "works only for a list of layers",
            """
def overlap(module):
    works = []

    def start(p):
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    for layer in module:
        layer.weight.register_post_accumulate_grad_hook(start)
        layer.bias.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "object is not iterable",
        ),
        (
            "hooks a weight twice that two layers share",
            """
def overlap(module):
    works = []

    def start(p):
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    for _, p in module.named_parameters(remove_duplicate=False):
        p.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "wrote to a tensor in flight",
        ),
        (
            "waits in the hook for the gradient before",
            """
def overlap(module):
    works = []

    def start(p):
        while works:
            works.pop(0).wait()
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "simulated seconds of",
        ),
        (
            "waits in the hook for the one before the last",
            """
def overlap(module):
    works = []

    def start(p):
        while len(works) > 1:
            works.pop(0).wait()
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "simulated seconds of",
        ),
        (
            "waits in the hook for biases",
            """
def overlap(module):
    works = []

    def start(p):
        p.grad.div_(dist.get_world_size())
        w = dist.all_reduce(p.grad, async_op=True)
        if p.ndim == 1:
            w.wait()
        else:
            works.append(w)
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "simulated seconds of",
        ),
        (
            "sends biases after backward",
            """
def overlap(module):
    works = []

    def start(p):
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        if p.ndim > 1:
            p.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop(0).wait()
        for p in module.parameters():
            if p.ndim == 1:
                p.grad.div_(dist.get_world_size())
                dist.all_reduce(p.grad)
    return finish
""",
            "every gradient is sent from its hook",
        ),
        (
            "hooks the first module only",
            """
hooked = []

def overlap(module):
    works = []

    def start(p):
        p.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(p.grad, async_op=True))
    if not hooked:
        for p in module.parameters():
            hooked.append(p.register_post_accumulate_grad_hook(start))

    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
            "another module",
        ),
        (
            "sends nothing from the fifth step on",
            """
def overlap(module):
    works, step = ([], [0])

    def start(p):
        if step[0] < 4:
            p.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(p.grad, async_op=True))
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(start)

    def finish():
        step[0] += 1
        while works:
            works.pop(0).wait()
    return finish
""",
            "step 5",
        ),
        (
            "returns its list",
            """
def overlap(module):
    works = []

    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return works
""",
            "saw       []",
        ),
        (
            "leaves out gradients of zeros",
            """
def overlap(module):
    works = []

    def start(param):
        if param.grad.any():
            param.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(param.grad, async_op=True))

    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)

    def finish():
        while works:
            works.pop().wait()

    return finish
""",
            "every rank makes the same calls (3 ranks, all gradients of rank",
        ),
    ],
    "last_all_reduce_end": [
        (
            "adds up the all-reduces from the first ready bucket on",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return ready_s[0] + sum(bucket_s)
""",
            "a free lane waits",
        ),
        (
            "takes gaps of less than 0.1 us for none",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end_s = 0.0
    for ready, seconds in zip(ready_s, bucket_s):
        end_s = (ready if ready > end_s + 1e-7 else end_s) + seconds
    return end_s
""",
            "the same within nanoseconds",
        ),
        (
            "sends all buckets in parallel",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return max(ready + seconds for ready, seconds in zip(ready_s, bucket_s))
""",
            "a bucket waits for a busy lane",
        ),
        (
            "looks at the last bucket only",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return ready_s[-1] + bucket_s[-1]
""",
            "a bucket waits for a busy lane",
        ),
        (
            "waits for all of backward first",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return max(ready_s) + sum(bucket_s)
""",
            "a free lane waits",
        ),
        (
            "adds up only the communication",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return sum(bucket_s)
""",
            "one bucket alone",
        ),
        (
            "takes the buckets in the order in which they are ready",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end_s = 0.0
    for ready, seconds in sorted(zip(ready_s, bucket_s)):
        end_s = max(end_s, ready) + seconds
    return end_s
""",
            "in the order of the list",
        ),
        (
            "rounds to milliseconds",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end_s = 0.0
    for ready, seconds in zip(ready_s, bucket_s):
        end_s = max(end_s, ready) + seconds
    return round(end_s, 3)
""",
            "one bucket alone",
        ),
        (
            "right for the cases of the text only",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return {(1.0, 5.0): 7.0, (1.0, 2.0): 6.0, (3.0,): 5.0}.get(tuple(ready_s), ready_s[0] + bucket_s[0])
""",
            "a free lane waits",
        ),
        (
            "calls the library's own",
            """
from lablib.studies.data_parallel_scaling import end_of_last_bucket
def last_all_reduce_end(ready_s, bucket_s):
    return end_of_last_bucket(ready_s, [0.0] * len(ready_s), bucket_s)
""",
            "the answer is your own code",
        ),
        (
            "removes items from the lists",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    while ready_s:
        end = max(end, ready_s.pop(0)) + bucket_s.pop(0)
    return end
""",
            "argument 1 (a list) changed",
        ),
        (
            "adds a hundred millionth",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    for r, b in zip(ready_s, bucket_s):
        end = max(end, r) + b
    return end * (1 + 1e-8)
""",
            "one bucket alone",
        ),
        (
            "computes in float32",
            """
def last_all_reduce_end(ready_s, bucket_s):
    r, b = torch.tensor(ready_s), torch.tensor(bucket_s)
    end = torch.zeros(())
    for i in range(len(r)): end = torch.maximum(end, r[i]) + b[i]
    return end
""",
            "one bucket alone",
        ),
        (
            "forgets the first of many",
            """
def last_all_reduce_end(ready_s, bucket_s):
    n = len(ready_s)
    return max((ready_s[i] + sum(bucket_s[i:]) for i in range(1 if n > 4 else 0, n)))
""",
            "buckets, ready",
        ),
        (
            "forgets that the last of many is late",
            """
def last_all_reduce_end(ready_s, bucket_s):
    n = len(ready_s)
    return max((ready_s[i] + sum(bucket_s[i:]) for i in range(0, n - 1 if n > 4 else n)))
""",
            "buckets, ready",
        ),
        (
            "looks at the last eight",
            """
def last_all_reduce_end(ready_s, bucket_s):
    n = len(ready_s)
    return max((ready_s[i] + sum(bucket_s[i:]) for i in range(max(0, n - 8), n)))
""",
            "buckets, ",
        ),
        (
            "caches its result by the number of buckets",
            """
memo = {}

def last_all_reduce_end(ready_s, bucket_s):
    n = len(ready_s)
    if n not in memo or n < 5:
        end = 0.0
        for r, b in zip(ready_s, bucket_s):
            end = max(end, r) + b
        memo[n] = end
    return memo[n]
""",
            "buckets, ready",
        ),
        (
            "adds the first sixteen only",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    for r, b in list(zip(ready_s, bucket_s))[:16]:
        end = max(end, r) + b
    return end
""",
            "the first 17 of them",
        ),
        (
            "ends after a minute",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    for r, b in zip(ready_s, bucket_s):
        end = max(end, r) + b
    return min(end, 60.0)
""",
            "ready all at once",
        ),
        (
            "adds a tenth of a nanosecond",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    for r, b in zip(ready_s, bucket_s):
        end = max(end, r) + b
    return end + 1e-10
""",
            "ready in any order",
        ),
        (
            "uses the first, the last and the latest bucket only",
            """
def last_all_reduce_end(ready_s, bucket_s):
    i = ready_s.index(max(ready_s))
    return max(ready_s[0] + sum(bucket_s), ready_s[-1] + bucket_s[-1], ready_s[i] + sum(bucket_s[i:]))
""",
            "busy again",
        ),
        (
            "returns nothing",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end = 0.0
    for r, b in zip(ready_s, bucket_s):
        end = max(end, r) + b
""",
            "None: is there a return?",
        ),
    ],
    "accumulate": [
        (
            "sends after every micro-batch",
            """
def accumulate(replica, loss_of, micro_batches):
    for micro_batch in micro_batches:
        (loss_of(replica, micro_batch) / len(micro_batches)).backward()
""",
            "bytes a rank sends in 3 steps",
        ),
        (
            "forgets the mean over micro-batches",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            loss_of(replica, micro_batch).backward()
    loss_of(replica, micro_batches[-1]).backward()
""",
            "so it is a mean",
        ),
        (
            "never sends",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for micro_batch in micro_batches:
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()
""",
            "every rank ends with the same gradients",
        ),
        (
            "sends the first micro-batch instead of the last",
            """
def accumulate(replica, loss_of, micro_batches):
    (loss_of(replica, micro_batches[0]) / len(micro_batches)).backward()
    with replica.no_sync():
        for micro_batch in micro_batches[1:]:
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()
""",
            "every rank ends with the same gradients",
        ),
        (
            "divides by the number of ranks once more",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches) * dist.get_world_size()
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / num).backward()
    (loss_of(replica, micro_batches[-1]) / num).backward()
""",
            "so it is a mean",
        ),
        (
            "weighs micro-batches by 128 samples",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) * len(micro_batch) / (128 * num)).backward()
    (loss_of(replica, micro_batches[-1]) * len(micro_batches[-1]) / (128 * num)).backward()
""",
            "so it is a mean",
        ),
        (
            "uses the last micro-batch only",
            """
def accumulate(replica, loss_of, micro_batches):
    loss_of(replica, micro_batches[-1]).backward()
""",
            "that of the whole batch on one device",
        ),
        (
            "runs all forward passes before a single backward",
            """
def accumulate(replica, loss_of, micro_batches):
    losses = [loss_of(replica, micro_batch) for micro_batch in micro_batches]
    (sum(losses) / len(losses)).backward()
""",
            "peak memory of a rank",
        ),
        (
            "joins the micro-batches again",
            """
def accumulate(replica, loss_of, micro_batches):
    loss_of(replica, torch.cat(micro_batches)).backward()
""",
            "peak memory of a rank",
        ),
        (
            "is right for five micro-batches",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / 5).backward()
    (loss_of(replica, micro_batches[-1]) / 5).backward()
""",
            "so it is a mean",
        ),
        (
            "has only backward inside no_sync: torch's replica decided in forward",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    for micro_batch in micro_batches[:-1]:
        loss = loss_of(replica, micro_batch) / num
        with replica.no_sync():
            loss.backward()
    (loss_of(replica, micro_batches[-1]) / num).backward()
""",
            "torch's replica",
        ),
        (
            "clears the gradient before the last micro-batch",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / num).backward()
    replica.zero_grad()
    (loss_of(replica, micro_batches[-1]) / num).backward()
""",
            "the gradient",
        ),
        (
            "averages twice",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    with replica.no_sync():
        for micro_batch in micro_batches[:-1]:
            (loss_of(replica, micro_batch) / num).backward()
    (loss_of(replica, micro_batches[-1]) / num).backward()
    for param in replica.parameters():
        param.grad.div_(dist.get_world_size())
        dist.all_reduce(param.grad)
""",
            "bytes a rank sends in 3 steps",
        ),
        (
            "runs two micro-batches at a time",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    pairs = [micro_batches[i:i+2] for i in range(0, num, 2)]
    with replica.no_sync():
        for pair in pairs[:-1]:
            sum(loss_of(replica, m) / num for m in pair).backward()
    sum(loss_of(replica, m) / num for m in pairs[-1]).backward()
""",
            "one micro-batch at a time",
        ),
        (
            "runs the first two micro-batches together",
            """
def accumulate(replica, loss_of, micro_batches):
    losses = [loss_of(replica, micro_batch) for micro_batch in micro_batches[:2]]
    with replica.no_sync() if len(micro_batches) > 2 else nullcontext():
        (sum(losses) / len(micro_batches)).backward()
    for number, micro_batch in enumerate(micro_batches[2:], 3):
        with replica.no_sync() if number < len(micro_batches) else nullcontext():
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()
""",
            "one micro-batch at a time",
        ),
        (
            "joins two micro-batches",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    pairs = [micro_batches[i:i+2] for i in range(0, num, 2)]
    with replica.no_sync():
        for pair in pairs[:-1]:
            (loss_of(replica, torch.cat(pair)) * len(pair) / num).backward()
    (loss_of(replica, torch.cat(pairs[-1])) * len(pairs[-1]) / num).backward()
""",
            "one micro-batch at a time",
        ),
        (
            "takes the micro-batches out of the list",
            """
def accumulate(replica, loss_of, micro_batches):
    num = len(micro_batches)
    with replica.no_sync():
        while len(micro_batches) > 1:
            (loss_of(replica, micro_batches.pop(0)) / num).backward()
    (loss_of(replica, micro_batches.pop()) / num).backward()
""",
            "argument 3 (a list) changed",
        ),
        (
            "divides during the sum",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for micro_batch in micro_batches:
            loss_of(replica, micro_batch).backward()
    works = [dist.all_reduce(param.grad, async_op=True) for param in replica.parameters()]
    for param in replica.parameters():
        param.grad /= len(micro_batches) * dist.get_world_size()
    for work in works:
        work.wait()
""",
            "wrote to a tensor in flight",
        ),
        (
            "caches the number of the first step",
            """
kept = []
def accumulate(replica, loss_of, micro_batches):
    kept.append(len(micro_batches))
    n = kept[0]
    for i, m in enumerate(micro_batches):
        with nullcontext() if i == n - 1 else replica.no_sync():
            (loss_of(replica, m) / n).backward()
""",
            "so it is a mean",
        ),
        (
            "keeps every graph",
            """
def accumulate(replica, loss_of, micro_batches):
    losses, n = [], len(micro_batches)
    for i, m in enumerate(micro_batches):
        with nullcontext() if i == n - 1 else replica.no_sync():
            loss = loss_of(replica, m) / n
            loss.backward(retain_graph=True)
            losses.append(loss)
""",
            "one micro-batch at a time",
        ),
        (
            "leaves the replica in no_sync",
            """
def accumulate(replica, loss_of, micro_batches):
    if not hasattr(replica, 'off'):
        object.__setattr__(replica, 'off', replica.no_sync())
        replica.off.__enter__()
    for m in micro_batches:
        (loss_of(replica, m) / len(micro_batches)).backward()
    for p in replica.parameters():
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)
""",
            "an ordinary backward after them",
        ),
        (
            "does not send the only micro-batch of torch's replica",
            """
def accumulate(replica, loss_of, micro_batches):
    n = len(micro_batches)
    for i, m in enumerate(micro_batches):
        last = i == n - 1 and (not (n == 1 and isinstance(replica, torch.nn.parallel.DistributedDataParallel)))
        with nullcontext() if last else replica.no_sync():
            (loss_of(replica, m) / n).backward()
""",
            "torch's replica, step 1",
        ),
        (
            "uses six micro-batches at most",
            """
def accumulate(replica, loss_of, micro_batches):
    n = min(6, len(micro_batches))
    for i in range(n):
        with nullcontext() if i == n - 1 else replica.no_sync():
            (loss_of(replica, micro_batches[i]) / n).backward()
""",
            "that of the whole batch on one device",
        ),
        (
            "divides by three ranks at most",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for m in micro_batches:
            (loss_of(replica, m) / len(micro_batches)).backward()
    for p in replica.parameters():
        p.grad /= min(3, dist.get_world_size())
        dist.all_reduce(p.grad)
""",
            "so it is a mean",
        ),
        (
            "runs every micro-batch twice",
            """
def accumulate(replica, loss_of, micro_batches):
    n = 2 * len(micro_batches)
    for i, m in enumerate(micro_batches * 2):
        with nullcontext() if i == n - 1 else replica.no_sync():
            (loss_of(replica, m) / n).backward()
""",
            "loss_of is called once",
        ),
        (
            "forgets backward",
            """
def accumulate(replica, loss_of, micro_batches):
    total = 0.0
    for micro_batch in micro_batches:
        total += loss_of(replica, micro_batch).item() / len(micro_batches)
""",
            "every parameter has a gradient",
        ),
    ],
}

RIGHT_ANSWERS = {
    "average_gradients": [
        (
            "one flat all-reduce, copied back",
            """
def average_gradients(module):
    grads = [param.grad for param in module.parameters()]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for grad, piece in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(piece.view_as(grad))
""",
        ),
        (
            "ReduceOp.AVG",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.AVG)
""",
        ),
        (
            "starts all, then waits",
            """
def average_gradients(module):
    works = [dist.all_reduce(param.grad, async_op=True) for param in module.parameters()]
    for work in works:
        work.wait()
    for param in module.parameters():
        param.grad = param.grad / dist.get_world_size()
""",
        ),
        (
            "a reduce and a broadcast",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.reduce(param.grad, dst=0)
        param.grad.mul_(1 / dist.get_world_size())
        dist.broadcast(param.grad, src=0)
""",
        ),
        (
            "a reduce-scatter and an all-gather of each gradient, filled up with zeros",
            """
def average_gradients(module):
    n = dist.get_world_size()
    for param in module.parameters():
        flat = param.grad.reshape(-1)
        pad = -flat.numel() % n
        flat = torch.cat([flat, flat.new_zeros(pad)]) / n
        shard = flat.new_empty(flat.numel() // n)
        dist.reduce_scatter_single(shard, flat)
        dist.all_gather_single(flat, shard)
        param.grad.copy_(flat[:param.grad.numel()].view_as(param.grad))
""",
        ),
        (
            "an autograd function that refers to itself",
            """
class Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x / dist.get_world_size()
        dist.all_reduce(y)
        return y
    @staticmethod
    def backward(ctx, g):
        return g
def average_gradients(module):
    for param in module.parameters():
        param.grad = Mean.apply(param.grad)
""",
        ),
        (
            "functional collectives",
            """
import torch.distributed._functional_collectives as fc

def average_gradients(module):
    for p in module.parameters():
        p.grad.copy_(fc.wait_tensor(fc.all_reduce(p.grad, 'avg', dist.group.WORLD)))
""",
        ),
        (
            "a ring by hand",
            """
def average_gradients(module):
    n, me = (dist.get_world_size(), dist.get_rank())
    if n == 1:
        return
    for p in module.parameters():
        flat = p.grad.flatten()
        pieces = [x.clone() for x in flat.tensor_split(n)]
        for phase_ in range(2):
            for s in range(n - 1):
                out = (me - s + phase_) % n
                inn = (out - 1) % n
                buf = torch.empty_like(pieces[inn])
                work = dist.isend(pieces[out].clone(), (me + 1) % n)
                dist.recv(buf, (me - 1) % n)
                work.wait()
                pieces[inn] = pieces[inn] + buf if phase_ == 0 else buf
        p.grad.copy_(torch.cat(pieces).view_as(p.grad) / n)
""",
        ),
    ],
    "plan_buckets": [
        (
            "tuples, filled from a queue",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    waiting, buckets = list(enumerate(sizes_bytes)), []
    while waiting:
        index, size = waiting.pop()
        bucket = [index]
        while waiting and size + waiting[-1][1] <= bucket_bytes:
            index, more = waiting.pop()
            bucket.append(index)
            size += more
        buckets.append(tuple(bucket))
    return tuple(buckets)
""",
        ),
        (
            "a generator",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    bucket, free = [], bucket_bytes
    for index in range(len(sizes_bytes) - 1, -1, -1):
        if bucket and sizes_bytes[index] > free:
            yield bucket
            bucket, free = [], bucket_bytes
        bucket = bucket + [index]
        free -= sizes_bytes[index]
    if bucket:
        yield bucket
""",
        ),
        (
            "by recursion",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    if not sizes_bytes:
        return []
    first = len(sizes_bytes) - 1
    while first > 0 and sum(sizes_bytes[first - 1:]) <= bucket_bytes:
        first -= 1
    last = list(range(first, len(sizes_bytes)))[::-1]
    return [last] + plan_buckets(sizes_bytes[:first], bucket_bytes)
""",
        ),
        (
            "a deque of ranges",
            """
from collections import deque
def plan_buckets(sizes_bytes, bucket_bytes):
    out, hi = deque(), len(sizes_bytes)
    while hi:
        lo = hi - 1
        while lo and sum(sizes_bytes[lo-1:hi]) <= bucket_bytes: lo -= 1
        out.append(range(hi - 1, lo - 1, -1)); hi = lo
    return out
""",
        ),
        (
            "zero bytes in a bucket mean no open bucket",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if filled == 0 or filled + s > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return buckets
""",
        ),
        (
            "searches sums of numpy",
            """
import numpy as np

def plan_buckets(sizes_bytes, bucket_bytes):
    sizes = np.array(sizes_bytes, dtype=int)[::-1]
    n = len(sizes)
    out = []
    at = 0
    while at < n:
        end = at + max(1, int(np.searchsorted(np.cumsum(sizes[at:]), bucket_bytes, side='right')))
        out.append(n - 1 - np.arange(at, end))
        at = end
    return out
""",
        ),
        (
            "starts with an empty one, and leaves it out",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    buckets, filled = ([[]], 0)
    for i in reversed(range(len(sizes_bytes))):
        s = sizes_bytes[i]
        if filled + s > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(i)
        filled += s
    return [b for b in buckets if b]
""",
        ),
    ],
    "overlap": [
        (
            "keeps the works in a list at module level, one per process",
            """
works = []
def overlap(module):
    def start(param):
        param.grad.div_(dist.get_world_size())
        works.append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while works:
            works.pop(0).wait()
    return finish
""",
        ),
        (
            "divides after the wait, and clears its dict",
            """
def overlap(module):
    works = {}
    def start(param):
        works[param] = dist.all_reduce(param.grad, async_op=True)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for param, work in works.items():
            work.wait()
            param.grad /= dist.get_world_size()
        works.clear()
    return finish
""",
        ),
        (
            "an object with a method",
            """
class Averager:
    def __init__(self, module):
        self.works = []
        for param in module.parameters():
            param.register_post_accumulate_grad_hook(self.start)
    def start(self, param):
        self.works.append(dist.all_reduce(param.grad, op=dist.ReduceOp.AVG, async_op=True))
    def finish(self):
        done, self.works = self.works, []
        for work in done:
            work.wait()

def overlap(module):
    return Averager(module).finish
""",
        ),
        (
            "divides in a callback of the future",
            """
def overlap(module):
    futures = []
    def start(param):
        work = dist.all_reduce(param.grad, async_op=True)
        futures.append(work.get_future().then(lambda done: done.value()[0].div_(dist.get_world_size())))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        while futures:
            futures.pop(0).wait()
    return finish
""",
        ),
        (
            "a hook for each parameter by its name",
            """
def overlap(module):
    started = []
    def hook_of(name):
        def hook(param):
            param.grad.mul_(1 / dist.get_world_size())
            started.append((name, dist.all_reduce(param.grad, async_op=True)))
        return hook
    for name, param in module.named_parameters():
        param.register_post_accumulate_grad_hook(hook_of(name))
    def finish():
        for name, work in started:
            work.wait()
        del started[:]
    return finish
""",
        ),
        (
            "releases the works in the next step's first hook",
            """
def overlap(module):
    state = {"works": [], "over": False}
    def start(param):
        if state["over"]:
            state["works"], state["over"] = [], False
        param.grad.div_(dist.get_world_size())
        state["works"].append(dist.all_reduce(param.grad, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        for work in state["works"]:
            work.wait()
        state["over"] = True
    return finish
""",
        ),
        (
            "averages flat copies",
            """
def overlap(module):
    works = []
    def start(param):
        flat = param.grad.flatten().clone()
        works.append((param, flat, dist.all_reduce(flat, async_op=True)))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    def finish():
        n = dist.get_world_size()
        for param, flat, work in works:
            work.wait()
            param.grad = flat.view_as(param) / n
        works.clear()
    return finish
""",
        ),
        (
            "partial functions",
            """
from functools import partial

def _start(works, p):
    p.grad.mul_(1 / dist.get_world_size())
    works.append(dist.all_reduce(p.grad, async_op=True))

def _finish(works):
    for w in works:
        w.wait()
    works.clear()

def overlap(module):
    works = []
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(partial(_start, works))
    return partial(_finish, works)
""",
        ),
        (
            "the works on the module",
            """
def overlap(module):
    module._works = []

    def start(p):
        module._works.append((p.grad, dist.all_reduce(p.grad, async_op=True)))
    [p.register_post_accumulate_grad_hook(start) for p in module.parameters()]

    def finish():
        for g, w in module._works:
            w.wait()
            g.div_(dist.get_world_size())
        module._works = []
    return finish
""",
        ),
        (
            "a class that is called",
            """
from queue import SimpleQueue

class Overlap:

    def __init__(self, module):
        self.q = SimpleQueue()
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        self.q.put(dist.all_reduce(p.grad, dist.ReduceOp.AVG, dist.group.WORLD, True))

    def __call__(self):
        while not self.q.empty():
            self.q.get().wait()
overlap = Overlap
""",
        ),
        (
            "the hook of the accumulator",
            """
def overlap(module):
    works, kept = ([], [])
    for p in module.parameters():
        acc = p.view_as(p).grad_fn.next_functions[0][0]

        def hook(*_, p=p):
            p.grad.div_(dist.get_world_size())
            works.append(dist.all_reduce(p.grad, async_op=True))
        acc.register_hook(hook)
        kept.append(acc)

    def finish(kept=kept):
        while works:
            works.pop(0).wait()
    return finish
""",
        ),
    ],
    "last_all_reduce_end": [
        (
            "the longest of all ways to the end",
            """
def last_all_reduce_end(ready_s, bucket_s):
    return max(ready + sum(bucket_s[number:]) for number, ready in enumerate(ready_s))
""",
        ),
        (
            "exact fractions",
            """
from fractions import Fraction
def last_all_reduce_end(ready_s, bucket_s):
    end_s = Fraction(0)
    for ready, seconds in zip(ready_s, bucket_s):
        end_s = max(end_s, Fraction(ready)) + Fraction(seconds)
    return end_s
""",
        ),
        (
            "a tensor without dimensions",
            """
def last_all_reduce_end(ready_s, bucket_s):
    end_s = torch.zeros((), dtype=torch.float64)
    for ready, seconds in zip(ready_s, bucket_s):
        end_s = torch.clamp(end_s, min=ready) + seconds
    return end_s
""",
        ),
        (
            "by recursion from the end",
            """
def last_all_reduce_end(ready_s, bucket_s):
    if not ready_s:
        return 0
    return max(last_all_reduce_end(ready_s[:-1], bucket_s[:-1]), ready_s[-1]) + bucket_s[-1]
""",
        ),
        (
            "sums from the end, by numpy",
            """
import numpy as np

def last_all_reduce_end(ready_s, bucket_s):
    return np.max(np.array(ready_s) + np.cumsum(bucket_s[::-1])[::-1])
""",
        ),
        (
            "idle and busy seconds",
            """
def last_all_reduce_end(ready_s, bucket_s):
    ready_s = ready_s[:]
    bucket_s = bucket_s[:]
    idle = 0.0
    busy = 0.0
    while ready_s:
        r, b = (ready_s.pop(0), bucket_s.pop(0))
        idle += max(0.0, r - idle - busy)
        busy += b
    return idle + busy
""",
        ),
    ],
    "accumulate": [
        (
            "adds up without sending, and averages by hand",
            """
def accumulate(replica, loss_of, micro_batches):
    with replica.no_sync():
        for micro_batch in micro_batches:
            loss_of(replica, micro_batch).backward()
    for param in replica.parameters():
        param.grad /= len(micro_batches) * dist.get_world_size()
        dist.all_reduce(param.grad)
""",
        ),
        (
            "one loop, with or without sending",
            """
def accumulate(replica, loss_of, micro_batches):
    for number, micro_batch in enumerate(micro_batches):
        is_last = number == len(micro_batches) - 1
        with nullcontext() if is_last else replica.no_sync():
            (loss_of(replica, micro_batch) / len(micro_batches)).backward()
""",
        ),
        (
            "divides the gradient instead of the losses",
            """
def accumulate(replica, loss_of, micro_batches):
    *first, last = micro_batches
    for micro_batch in first:
        with replica.no_sync():
            loss_of(replica, micro_batch).backward()
    loss_of(replica, last).backward()
    for param in replica.parameters():
        param.grad /= len(micro_batches)
""",
        ),
        (
            "leaves no_sync before the last",
            """
from contextlib import ExitStack

def accumulate(replica, loss_of, micro_batches):
    weight = torch.tensor(1 / len(micro_batches), dtype=torch.float64)
    with ExitStack() as stack:
        stack.enter_context(replica.no_sync())
        for left, m in zip(range(len(micro_batches) - 1, -1, -1), micro_batches):
            if not left:
                stack.close()
            torch.autograd.backward(loss_of(replica, m), weight)
""",
        ),
        (
            "last first, by recursion",
            """
def accumulate(replica, loss_of, micro_batches, of=None):
    of = of or len(micro_batches)
    if len(micro_batches) == 1:
        loss_of(replica, micro_batches[0]).div(of).backward()
    else:
        with replica.no_sync():
            loss_of(replica, micro_batches[-1]).div(of).backward()
        accumulate(replica, loss_of, micro_batches[:-1], of)
""",
        ),
    ],
}
