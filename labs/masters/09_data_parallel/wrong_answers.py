"""Wrong answers to lab 09: data parallel."""

WRONG_ANSWERS = {
    "average_gradients": [
        (
            "forgets to divide",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
""",
            "so it is a mean (2 ranks)",
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
            "0.5",
        ),
        (
            "reduces the parameter instead of its gradient",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.data)
        param.data /= dist.get_world_size() * 2
""",
            "parameters are left as they are",
        ),
        (
            "is right with two ranks only",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.all_reduce(param.grad)
        param.grad /= 2
""",
            "so it is a mean (3 ranks)",
        ),
        (
            "gathers all gradients and averages them itself",
            """
def average_gradients(module):
    for param in module.parameters():
        grads = [torch.empty_like(param.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(grads, param.grad)
        param.grad = torch.stack(grads).mean(0)
""",
            "bytes a rank sends: 2(n-1)/n of the gradient's (3 ranks)",
        ),
        (
            "takes rank 0's gradient for all",
            """
def average_gradients(module):
    for param in module.parameters():
        dist.broadcast(param.grad, src=0)
""",
            "that of the whole batch on one device (2 ranks)",
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
            "gives every parameter a bucket of its own",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    return [[index] for index in reversed(range(len(sizes_bytes)))]
""",
            "all-reduces a step",
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
            "closes a bucket only when it is already too full",
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
            "puts everything into one bucket",
            """
def plan_buckets(sizes_bytes, bucket_bytes):
    return [list(reversed(range(len(sizes_bytes))))]
""",
            "444 bytes in bucket 0",
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
            "all-reduces a step",
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
            "simulated seconds of a step",
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
            "the first all-reduce starts before backward ends",
        ),
        (
            "reduces what the hook receives, the parameter",
            """
def overlap(module):
    works = []
    def start(param):
        works.append(dist.all_reduce(param.data, async_op=True))
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(start)
    return lambda: [work.wait() for work in works]
""",
            "the hook leaves the parameter itself as it is",
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
            "0.25",
        ),
        (
            "hears of the weights only",
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
    ],
    "last_all_reduce_end": [
        (
            "adds up the all-reduces from the first ready bucket on",
            "def last_all_reduce_end(ready_s, bucket_s):\n    return ready_s[0] + sum(bucket_s)",
            "a stream that is free waits",
        ),
        (
            "lets all buckets travel side by side",
            "def last_all_reduce_end(ready_s, bucket_s):\n"
            "    return max(ready + seconds for ready, seconds in zip(ready_s, bucket_s))",
            "a stream that is busy lets a bucket wait",
        ),
        (
            "looks at the last bucket only",
            "def last_all_reduce_end(ready_s, bucket_s):\n    return ready_s[-1] + bucket_s[-1]",
            "a stream that is busy lets a bucket wait",
        ),
        (
            "waits for all of backward first",
            "def last_all_reduce_end(ready_s, bucket_s):\n    return max(ready_s) + sum(bucket_s)",
            "saw       7",
        ),
        (
            "adds up the communication alone",
            "def last_all_reduce_end(ready_s, bucket_s):\n    return sum(bucket_s)",
            "one bucket alone",
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
            "bytes a rank sends for 3 micro-batches",
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
            "0.25",
        ),
        (
            "uses the last micro-batch only",
            """
def accumulate(replica, loss_of, micro_batches):
    loss_of(replica, micro_batches[-1]).backward()
""",
            "that of the whole batch on one device",
        ),
    ],
}
