"""Wrong answers to lab 10: ZeRO, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "bytes_of_rank": [
        (
            "returns nothing",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
""",
            "None: is there a return?",
        ),
        (
            "divides without rounding up",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * (num_params // ranks)
""",
            "stage 3, uneven: the first shards",
        ),
        (
            "counts the empty room of the last shard",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * -(-num_params // ranks)
""",
            "stage 3, uneven: the last shard has the remainder",
        ),
        (
            "gives a shard that begins behind the end a negative size",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    cut, room = (0, 12, 14, 16)[stage], -(-num_params // ranks)
    return (16 - cut) * num_params + cut * min(room, num_params - rank * room)
""",
            "fewer numbers than ranks: the last ranks have none",
        ),
        (
            "deals out evenly: sizes differ by one at most",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    cut = (0, 12, 14, 16)[stage]
    own = num_params // ranks + (rank < num_params % ranks)
    return (16 - cut) * num_params + cut * own
""",
            "stage 3, uneven: the last shard has the remainder",
        ),
        (
            "does not cut the master copy with the optimizer's part",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 8, 10, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "stage 1: 12 of 16 bytes are cut",
        ),
        (
            "cuts parameters in stage 2, and gradients in stage 1",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 14, 16, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "stage 1: 12 of 16 bytes are cut",
        ),
        (
            "right for stages 0, 1 and 3 only",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 12, 12, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "stage 2: 14 of 16 bytes are cut",
        ),
        (
            "cuts in stage 0, too",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (12, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "stage 0: nothing is cut",
        ),
        (
            "computes with floats",
            """
import math

def bytes_of_rank(num_params, ranks, rank, stage):
    room = math.ceil(num_params / ranks)
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 12, 14, 16)[stage]
    return int((16 - cut) * num_params + cut * own)
""",
            "the number is exact for any size",
        ),
        (
            "returns the bytes of all ranks",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params * ranks + cut * num_params
""",
            "stage 0: nothing is cut, and every rank holds",
        ),
        (
            "calls the library's own",
            """
from lablib.parallel import zero_bytes

def bytes_of_rank(num_params, ranks, rank, stage):
    return zero_bytes(stage, [num_params], ranks).total
""",
            "the answer is your own code",
        ),
        (
            "makes a list of all numbers",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = len(list(range(num_params))[rank * room : (rank + 1) * room])
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "Error",
        ),
        (
            "right up to 18 ranks",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // min(ranks, 18))
    own = min(room, max(0, num_params - rank * room))
    cut = (0, 12, 14, 16)[stage]
    return (16 - cut) * num_params + cut * own
""",
            "any number of ranks",
        ),
        (
            "takes shares by floats in stages 1 and 2",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    share = (0, 0.75, 0.875)[stage] if stage < 3 else 1
    room = -(-num_params // ranks)
    own = min(room, max(0, num_params - rank * room))
    return round(16 * (1 - share) * num_params) + (16 * own if stage == 3 else round(16 * share * own))
""",
            "the number is exact for any size",
        ),
    ],
    "stage_1_step": [
        (
            "forgets to divide",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "times the mean: a sum over",
        ),
        (
            "divides by four",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / 4)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master.grad is this rank's shard of the mean gradient",
        ),
        (
            "all-reduces the gradient, and takes its shard",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n, rank = dist.get_world_size(), dist.get_rank()
    gradient.div_(n)
    dist.all_reduce(gradient)
    master.grad = gradient.chunk(n)[rank].to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "bytes a rank sends",
        ),
        (
            "uses only its own gradient",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n, rank = dist.get_world_size(), dist.get_rank()
    master.grad = gradient.chunk(n)[rank].to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master.grad is this rank's shard of the mean gradient",
        ),
        (
            "does not gather",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    flat.chunk(dist.get_world_size())[dist.get_rank()].copy_(master.detach())
""",
            "flat holds every rank's shard in the order of the ranks",
        ),
        (
            "gathers before the update",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    all_gather(flat, master.detach().to(flat.dtype))
    optimizer.step()
""",
            "flat holds every rank's shard in the order of the ranks",
        ),
        (
            "gathers the master copy in its own dtype",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    wide = torch.empty(len(flat), dtype=master.dtype)
    all_gather(wide, master.detach())
    flat.copy_(wide)
""",
            "bytes a rank sends",
        ),
        (
            "sends all in the dtype of the master copy",
            """
def stage_1_step(flat, gradient, master, optimizer):
    master.grad = torch.empty_like(master)
    reduce_scatter(master.grad, gradient.to(master.dtype) / dist.get_world_size())
    optimizer.step()
    wide = torch.empty(len(flat), dtype=master.dtype)
    all_gather(wide, master.detach())
    flat.copy_(wide)
""",
            "bytes a rank sends",
        ),
        (
            "gives flat other memory",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    full = torch.empty_like(flat)
    all_gather(full, master.detach().to(flat.dtype))
    flat.data = full
""",
            "flat and master keep their memory",
        ),
        (
            "lets the gradients of all steps add up",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    shard = shard.to(master.dtype)
    master.grad = shard if master.grad is None else master.grad + shard
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "step 2",
        ),
        (
            "starts each step from the rounded parameters",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    with torch.no_grad():
        master.copy_(flat.chunk(dist.get_world_size())[dist.get_rank()])
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master has been stepped by the mean gradient",
        ),
        (
            "steps twice",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "the optimizer steps once in each call",
        ),
        (
            "updates without the optimizer",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    with torch.no_grad():
        master -= optimizer.param_groups[0]["lr"] * master.grad
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "the optimizer steps once in each call",
        ),
        (
            "does not wait for the gather",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype), async_op=True)
""",
            "all_gather",
        ),
        (
            "calls the library's own",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    parallel.reduce_scatter_average(gradient, shard).wait()
    master.grad = shard.to(master.dtype)
    optimizer.step()
    parallel.all_gather_shards(master.detach().to(flat.dtype), flat).wait()
""",
            "the answer is your own code",
        ),
        (
            "broadcasts each shard in turn",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / n)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    pieces = flat.chunk(n)
    pieces[dist.get_rank()].copy_(master.detach())
    dist.all_reduce(torch.zeros_like(flat))
    for rank in range(n):
        dist.broadcast(pieces[rank], src=rank)
""",
            "bytes a rank sends",
        ),
        (
            "gives the optimizer a gradient in the dtype of flat",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "dtype",
        ),
        (
            "reduce-scatters into the first piece of its input",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = gradient[: len(master)]
    reduce_scatter(shard, gradient)
    master.grad = shard.to(master.dtype) / n
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "an output overlaps its input only in its own place",
        ),
        (
            "gathers from the first piece of flat",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / n)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    own = flat[: len(master)]
    own.copy_(master.detach())
    all_gather(flat, own)
""",
            "an output overlaps its input only in its own place",
        ),
        (
            "steps by the sum with lr/n, and shows the mean afterwards",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient)
    master.grad = shard.to(master.dtype)
    for g in optimizer.param_groups:
        g["lr"] /= n
    optimizer.step()
    for g in optimizer.param_groups:
        g["lr"] *= n
    master.grad.div_(n)
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "the learning rate stays as it is",
        ),
        (
            "divides to whole numbers",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient // n)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master.grad is this rank's shard of the mean gradient",
        ),
        (
            "rounds the mean to 16 bits",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / n)
    master.grad = shard.bfloat16().to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master.grad is this rank's shard of the mean gradient",
        ),
        (
            "rounds the mean to float32",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.float().to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "master.grad is this rank's shard of the mean gradient",
        ),
        (
            "gathers the master copy into flat without a cast",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.step()
    all_gather(flat, master.detach())
""",
            "the tensors of one call must have one type",
        ),
        (
            "clears the gradient before the step",
            """
def stage_1_step(flat, gradient, master, optimizer):
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / dist.get_world_size())
    master.grad = shard.to(master.dtype)
    optimizer.zero_grad()
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
            "None: the optimizer got no gradient",
        ),
    ],
    "shard_gradients": [
        (
            "forgets to divide",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten(), (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "shards hold the mean over ranks",
        ),
        (
            "keeps the full gradients until they are read",
            """
def shard_gradients(module):
    shards, fulls = {}, []
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        fulls.append(full)
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "peak memory of a rank: full gradients are freed",
        ),
        (
            "does not free the gradient",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "after backward every param.grad is None",
        ),
        (
            "keeps shards as views of the full gradient",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n, rank = dist.get_world_size(), dist.get_rank()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        view = full.chunk(n)[rank]
        view.copy_(shard)
        shards[param] = shards[param] + view if param in shards else view
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "peak memory of a rank: full gradients are freed",
        ),
        (
            "all-reduces, and keeps a piece",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        dist.all_reduce(full)
        shard = full.chunk(n)[dist.get_rank()].clone()
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "bytes a rank sends",
        ),
        (
            "forgets earlier micro-batches",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shards[param] = full.new_empty(len(full) // n)
        reduce_scatter(shards[param], full)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "rank r has the r-th piece of the mean gradient",
        ),
        (
            "lets gradients add up, and reduces the sum again",
            """
def shard_gradients(module):
    shards, kept = {}, {}
    def reduce(param):
        n = dist.get_world_size()
        kept[param] = kept.get(param, 0) + param.grad
        full = F.pad(kept[param].flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shards[param] = full.new_empty(len(full) // n)
        reduce_scatter(shards[param], full)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "rank r has the r-th piece of the mean gradient",
        ),
        (
            "pads in front",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (-param.numel() % n, 0))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "rank r has the r-th piece of the mean gradient",
        ),
        (
            "cuts off the remainder",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        room = param.numel() // n
        full = param.grad.flatten()[: room * n] / n
        param.grad = None
        shard = full.new_empty(room)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "a shard is 1-D, and has numel/n numbers, rounded up",
        ),
        (
            "ignores parameters of one number",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        if param.numel() == 1:
            return
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "every parameter has a shard",
        ),
        (
            "sends float32",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n)).float()
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shard = shard.double()
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "rank r has the r-th piece of the mean gradient",
        ),
        (
            "returns a new dict for each gradient",
            """
def shard_gradients(module):
    def reduce(param):
        shards = {}
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shards[param] = full.new_empty(len(full) // n)
        reduce_scatter(shards[param], full)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return {}
""",
            "every parameter has a shard",
        ),
        (
            "returns nothing",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shards[param] = full.new_empty(len(full) // n)
        reduce_scatter(shards[param], full)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
""",
            "None: is there a return?",
        ),
        (
            "names parameters by their place",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param, number):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[number] = shards[number] + shard if number in shards else shard
    for number, param in enumerate(module.parameters()):
        param.register_post_accumulate_grad_hook(lambda param, number=number: reduce(param, number))
    return shards
""",
            "keys are the module's parameters",
        ),
        (
            "hooks the weight twice that two layers share",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for _, param in module.named_parameters(remove_duplicate=False):
        param.register_post_accumulate_grad_hook(reduce)
        param.register_post_accumulate_grad_hook(lambda param: setattr(param, "grad", None))
    return shards
""",
            "AttributeError",
        ),
        (
            "one dict for all modules",
            """
known = {}

def shard_gradients(module):
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        known[param] = known[param] + shard if param in known else shard
    if not known:
        known["hooked"] = torch.zeros(1)
        for param in module.parameters():
            param.register_post_accumulate_grad_hook(reduce)
    return known
""",
            "keys are the module's parameters",
        ),
        (
            "never waits",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shards[param] = full.new_empty(len(full) // n)
        reduce_scatter(shards[param], full, async_op=True)
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "reduce_scatter",
        ),
        (
            "calls the library's own",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten(), (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        parallel.reduce_scatter_average(full, shard).wait()
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "the answer is your own code",
        ),
        (
            "reduces in float64 for any dtype",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n, rank = dist.get_world_size(), dist.get_rank()
        full = torch.zeros(-(-param.numel() // n) * n, dtype=torch.float64)
        full[: param.numel()] = param.grad.flatten() / n
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "a shard has the dtype of its parameter",
        ),
        (
            "adds to a shard that does not exist yet",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] += shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "is not there",
        ),
        (
            "reads the shard before its wait",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        work = reduce_scatter(shard, full, async_op=True)
        shards[param] = shards[param] + shard if param in shards else shard
        work.wait()
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "nothing is read before the wait()",
        ),
        (
            "adds up the last two micro-batches only",
            """
def shard_gradients(module):
    shards, last = {}, {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_empty(len(full) // n)
        reduce_scatter(shard, full)
        shards[param] = last[param] + shard if param in shards else shard
        last[param] = shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "3 micro-batches",
        ),
        (
            "leaves out gradients of zeros",
            """
def shard_gradients(module):
    shards = {}
    def reduce(param):
        n = dist.get_world_size()
        full = F.pad(param.grad.flatten() / n, (0, -param.numel() % n))
        param.grad = None
        shard = full.new_zeros(len(full) // n)
        if full.any():
            reduce_scatter(shard, full)
        shards[param] = shards[param] + shard if param in shards else shard
    for param in module.parameters():
        param.register_post_accumulate_grad_hook(reduce)
    return shards
""",
            "every rank makes the same calls (3 ranks, all gradients of rank",
        ),
    ],
    "gather_ahead": [
        (
            "waits for each gather where it is needed",
            """
def gather_ahead(shards, compute, x):
    for i, shard in enumerate(shards):
        full = shard.new_empty(dist.get_world_size() * len(shard))
        all_gather(full, shard)
        x = compute(i, full, x)
    return x
""",
            "simulated seconds of two calls",
        ),
        (
            "gathers everything at the start",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    started = []
    for shard in shards:
        full = shard.new_empty(n * len(shard))
        started.append((full, all_gather(full, shard, async_op=True)))
    for i, (full, work) in enumerate(started):
        work.wait()
        x = compute(i, full, x)
    return x
""",
            "peak memory of a rank: two units at a time",
        ),
        (
            "gathers two units ahead",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    queue = [start(i) for i in range(min(2, len(shards)))]
    for i in range(len(shards)):
        full, work = queue.pop(0)
        work.wait()
        if i + 2 < len(shards):
            queue.append(start(i + 2))
        x = compute(i, full, x)
    return x
""",
            "peak memory of a rank: two units at a time",
        ),
        (
            "does not wait",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    for i, shard in enumerate(shards):
        full = shard.new_empty(n * len(shard))
        all_gather(full, shard, async_op=True)
        x = compute(i, full, x)
    return x
""",
            "all_gather",
        ),
        (
            "computes with its own shard, repeated",
            """
def gather_ahead(shards, compute, x):
    for i, shard in enumerate(shards):
        x = compute(i, shard.repeat(dist.get_world_size()), x)
    return x
""",
            "the output equals one device's",
        ),
        (
            "computes with only its shard",
            """
def gather_ahead(shards, compute, x):
    for i, shard in enumerate(shards):
        x = compute(i, shard, x)
    return x
""",
            "Error",
        ),
        (
            "leaves the last unit out",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards) - 1):
        full, work = following
        work.wait()
        following = start(i + 1)
        x = compute(i, full, x)
    following[1].wait()
    return x
""",
            "compute is called once for each unit, in order",
        ),
        (
            "gathers the first unit once more than needed",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        following = start((i + 1) % len(shards))
        x = compute(i, full, x)
    following[1].wait()
    return x
""",
            "bytes a rank sends",
        ),
        (
            "gives every unit the input of the first",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        y = compute(i, full, x)
    return y
""",
            "the output equals one device's",
        ),
        (
            "returns nothing",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
""",
            "None: is there a return?",
        ),
        (
            "sums shards with an all-reduce of zeros around each",
            """
def gather_ahead(shards, compute, x):
    n, rank = dist.get_world_size(), dist.get_rank()
    def start(i):
        full = shards[i].new_zeros(n * len(shards[i]))
        full.chunk(n)[rank].copy_(shards[i])
        return full, dist.all_reduce(full, async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x
""",
            "bytes a rank sends",
        ),
        (
            "gathers in float32",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        small = shards[i].float()
        full = small.new_empty(n * len(small))
        return full, small, all_gather(full, small, async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, small, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full.double(), x)
    return x
""",
            "the output equals one device's",
        ),
        (
            "empties the list",
            """
def gather_ahead(shards, compute, x):
    n, number = dist.get_world_size(), len(shards)
    def start():
        shard = shards.pop(0)
        full = shard.new_empty(n * len(shard))
        return full, all_gather(full, shard, async_op=True)
    following = start()
    for i in range(number):
        full, work = following
        work.wait()
        if i + 1 < number:
            following = start()
        x = compute(i, full, x)
    return x
""",
            "the input stays as it was",
        ),
        (
            "calls the library's own",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, parallel.all_gather_shards(shards[i], full)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x
""",
            "the answer is your own code",
        ),
        (
            "has one buffer for all units",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    most = max(n * len(s) for s in shards)
    buffer = shards[0].new_empty(most)
    def start(i):
        full = buffer[: n * len(shards[i])]
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x
""",
            "nothing is read before the wait()",
        ),
        (
            "gathers two ahead into two buffers",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    most = max(n * len(s) for s in shards)
    buffers = [shards[0].new_empty(most) for _ in range(min(2, len(shards)))]
    def start(i):
        full = buffers[i % 2][: n * len(shards[i])]
        return full, all_gather(full, shards[i], async_op=True)
    queue = [start(i) for i in range(min(2, len(shards)))]
    for i in range(len(shards)):
        full, work = queue.pop(0)
        work.wait()
        if i + 2 < len(shards):
            queue.append(start(i + 2))
        x = compute(i, full, x)
    return x
""",
            "nothing is read before the wait()",
        ),
        (
            "gathers into float64 for any dtype",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = torch.empty(n * len(shards[i]), dtype=torch.float64)
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
    return x
""",
            "the tensors of one call must have one type",
        ),
        (
            "waits after compute",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        if i + 1 < len(shards):
            following = start(i + 1)
        x = compute(i, full, x)
        work.wait()
    return x
""",
            "nothing is read before the wait()",
        ),
        (
            "forgets async_op",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i])
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        if i + 1 < len(shards):
            following = start(i + 1)
        work.wait()
        x = compute(i, full, x)
    return x
""",
            "without async_op=True",
        ),
        (
            "keeps a third unit briefly",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)
    following, full = start(0), None
    for i in range(len(shards)):
        now = following
        now[1].wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        full = now[0]
        x = compute(i, full, x)
    return x
""",
            "peak memory of a rank: two units at a time",
        ),
    ],
    "backward_of_units": [
        (
            "empties the list of inputs",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs.pop(), grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "the input stays as it was",
        ),
        (
            "float64 for any dtype",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = torch.empty(n * len(shards[i]), dtype=torch.float64)
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty(len(shard), dtype=torch.float64) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "the tensors of one call must have one type",
        ),
        (
            "gathers each unit when it is needed",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    for i in reversed(range(len(shards))):
        full, work = start(i)
        work.wait()
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "simulated seconds",
        ),
        (
            "waits for each reduce-scatter at once",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        reduce_scatter(grads[i], whole.div_(n))
    return grads, grad
""",
            "simulated seconds",
        ),
        (
            "gathers all units at the start",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    started = [start(i) for i in reversed(range(len(shards)))][::-1]
    for i in reversed(range(len(shards))):
        full, work = started[i]
        work.wait()
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "peak memory of whole parameters and gradients",
        ),
        (
            "gathers two units ahead, and makes each shard's gradient when it is needed",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [None] * len(shards)
    started = [start(i) for i in range(len(shards))[:-3:-1]]
    for i in reversed(range(len(shards))):
        full, work = started.pop(0)
        work.wait()
        if i > 1:
            started.append(start(i - 2))
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        grads[i] = torch.empty_like(shards[i])
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "peak memory of whole parameters and gradients",
        ),
        (
            "keeps the whole gradients to the end",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        grads[i] = whole.div_(n)
    for i, whole in enumerate(grads):
        grads[i] = torch.empty_like(shards[i])
        reduce_scatter(grads[i], whole)
    return grads, grad
""",
            "",
        ),
        (
            "an all-reduce, and a slice of it",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        dist.all_reduce(whole)
        grads[i].copy_(whole.chunk(n)[dist.get_rank()] / n)
    return grads, grad
""",
            "bytes",
        ),
        (
            "the sum over ranks",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole, async_op=True)
    reducing.wait()
    return grads, grad
""",
            "the sum over ranks, n times the mean",
        ),
        (
            "divides twice",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n * n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "divided by n again",
        ),
        (
            "a slice of this rank's gradient",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        grads[i] = whole.chunk(n)[dist.get_rank()].clone()
    return grads, grad
""",
            "the gradient of shard",
        ),
        (
            "the forward's order",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(0)
    for i in range(len(shards)):
        full, work = following
        work.wait()
        if i + 1 < len(shards):
            following = start(i + 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "the last first",
        ),
        (
            "the same gradient for each unit",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, first = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, first
""",
            "the gradient of shard",
        ),
        (
            "does not wait for the last",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    return grads, grad
""",
            "every communication is waited for",
        ),
        (
            "does not wait for the gathers",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads, grad
""",
            "",
        ),
        (
            "divides after the start",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole, async_op=True)
        whole.div_(n)
    reducing.wait()
    return grads, grad
""",
            "written to before the wait",
        ),
        (
            "returns the gradients alone",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads
""",
            "are returned",
        ),
        (
            "averages the gradient of the input, too",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    dist.all_reduce(grad.div_(n))
    return grads, grad
""",
            "the gradient of the first input",
        ),
        (
            "gradients in reverse order",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole.div_(n), async_op=True)
    reducing.wait()
    return grads[::-1], grad
""",
            "the gradient of shard 0",
        ),
    ],
    "clip_shards": [
        (
            "clips by the local norm",
            """
def clip_shards(shards, max_norm):
    norm = sum(shard.square().sum() for shard in shards).sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "returns the global norm, and clips by the local one",
            """
def clip_shards(shards, max_norm):
    own = sum(shard.square().sum() for shard in shards)
    total = own.clone()
    dist.all_reduce(total)
    if own.sqrt() > max_norm:
        for shard in shards:
            shard.mul_(max_norm / own.sqrt())
    return total.sqrt()
""",
            "all shards are scaled by max_norm / norm",
        ),
        (
            "adds up norms",
            """
def clip_shards(shards, max_norm):
    norm = sum(shard.square().sum() for shard in shards).sqrt()
    dist.all_reduce(norm)
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "takes the largest norm of a rank",
            """
def clip_shards(shards, max_norm):
    norm = sum(shard.square().sum() for shard in shards).sqrt()
    dist.all_reduce(norm, op=dist.ReduceOp.MAX)
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "takes the mean of the squares",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards) / dist.get_world_size()
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "lengthens short gradients, too",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    for shard in shards:
        shard.mul_(max_norm / norm)
    return norm
""",
            "short enough",
        ),
        (
            "clips if the local norm is too long, and scales by the global one",
            """
def clip_shards(shards, max_norm):
    own = sum(shard.square().sum() for shard in shards)
    total = own.clone()
    dist.all_reduce(total)
    norm = total.sqrt()
    if own.sqrt() > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "all shards are scaled by max_norm / norm",
        ),
        (
            "clips each shard by itself",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    for shard in shards:
        if shard.numel() and shard.norm() > max_norm:
            shard.mul_(max_norm / shard.norm())
    return total.sqrt()
""",
            "all shards are scaled by max_norm / norm",
        ),
        (
            "makes new tensors",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        shards[:] = [shard * (max_norm / norm) for shard in shards]
    return norm
""",
            "shards are scaled in place",
        ),
        (
            "gathers all shards as objects",
            """
def clip_shards(shards, max_norm):
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, torch.cat(shards))
    norm = torch.cat(everyone).norm()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "bytes a rank sends in the mean",
        ),
        (
            "all-reduces once for each shard",
            """
def clip_shards(shards, max_norm):
    total = 0.0
    for shard in shards:
        square = shard.square().sum()
        dist.all_reduce(square)
        total = total + square
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "bytes a rank sends in the mean",
        ),
        (
            "uses only the first shard",
            """
def clip_shards(shards, max_norm):
    total = shards[0].square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "returns the norm after clipping",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm.clamp(max=max_norm)
""",
            "the norm of all ranks' shards before clipping",
        ),
        (
            "divides by a norm of zero",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    for shard in shards:
        shard.mul_(min(1.0, max_norm / float(norm)))
    return norm
""",
            "ZeroDivisionError",
        ),
        (
            "makes no call if its first shard is empty",
            """
def clip_shards(shards, max_norm):
    if not shards[0].numel():
        return torch.zeros((), dtype=torch.float64)
    total = sum(shard.square().sum() for shard in shards)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "all_reduce",
        ),
        (
            "calls the library's own",
            """
from lablib.batches.clipping import clip_grad_norm_

def clip_shards(shards, max_norm):
    params = [nn.Parameter(torch.zeros_like(shard)) for shard in shards]
    for param, shard in zip(params, shards):
        param.grad = shard
    return clip_grad_norm_(params, max_norm, sharded_over=dist.group.WORLD)
""",
            "the answer is your own code",
        ),
        (
            "makes no call if it has no numbers",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    if all(not s.numel() for s in shards):
        return torch.zeros(())
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "all_reduce",
        ),
        (
            "fails to stack an empty list",
            """
def clip_shards(shards, max_norm):
    total = torch.stack([shard.square().sum() for shard in shards if shard.numel()]).sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "RuntimeError",
        ),
        (
            "passes its squares through an open file",
            """
import struct
import tempfile

file = tempfile.TemporaryFile()

def clip_shards(shards, max_norm):
    total, n = sum(shard.square().sum() for shard in shards), dist.get_world_size()
    file.seek(8 * dist.get_rank())
    file.write(struct.pack("d", float(total)))
    dist.barrier()
    file.seek(0)
    norm = sum(struct.unpack(f"{n}d", file.read(8 * n))) ** 0.5
    dist.barrier()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "less than the task needs",
        ),
        (
            "drops inf and nan",
            """
def clip_shards(shards, max_norm):
    total = sum(shard.square().sum() for shard in shards)
    total = torch.nan_to_num(total, 0.0, 0.0)
    dist.all_reduce(total)
    norm = total.sqrt()
    if norm > max_norm:
        for shard in shards:
            shard.mul_(max_norm / norm)
    return norm
""",
            "an inf in a shard of any rank",
        ),
    ],
}

RIGHT_ANSWERS = {
    "bytes_of_rank": [
        (
            "with ranges and divmod",
            """
def bytes_of_rank(num_params, ranks, rank, stage):
    room, rest = divmod(num_params, ranks)
    room += rest > 0
    mine = range(num_params)[rank * room :][:room]
    kinds = {"parameters": 2, "gradients": 2, "optimizer": 12}
    is_cut = dict(zip(reversed(kinds), (stage >= 1, stage >= 2, stage >= 3)))
    return sum(size * (len(mine) if is_cut[kind] else num_params) for kind, size in kinds.items())
""",
        ),
        (
            "with numpy's integers",
            """
import numpy as np

def bytes_of_rank(num_params, ranks, rank, stage):
    room = -(-num_params // ranks)
    own = np.clip(np.int64(num_params) - rank * room, 0, room)
    return np.int64(num_params) * (16, 4, 2, 0)[stage] + own * (0, 12, 14, 16)[stage]
""",
        ),
    ],
    "stage_1_step": [
        (
            "with lists of pieces",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty(master.shape, dtype=gradient.dtype)
    dist.reduce_scatter(shard, [piece.contiguous() / n for piece in gradient.chunk(n)])
    optimizer.zero_grad()
    master.grad = shard.to(master)
    optimizer.step()
    with torch.no_grad():
        dist.all_gather(list(flat.chunk(n)), master.to(flat.dtype))
""",
        ),
        (
            "divides after the sum, asynchronously, gathering from within flat",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = gradient.new_empty(master.numel())
    reduce_scatter(shard, gradient, async_op=True).wait()
    master.grad = shard.to(master.dtype) / n
    optimizer.step()
    own = flat[rank * len(master) : (rank + 1) * len(master)]
    own.copy_(master.data)
    all_gather(flat, own, async_op=True).wait()
""",
        ),
        (
            "clears the gradient after the step",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n = dist.get_world_size()
    shard = torch.empty_like(gradient[: len(master)])
    reduce_scatter(shard, gradient / n)
    master.grad = shard.to(master.dtype)
    optimizer.step()
    optimizer.zero_grad()
    all_gather(flat, master.detach().to(flat.dtype))
""",
        ),
        (
            "reduces in place, into its own piece",
            """
def stage_1_step(flat, gradient, master, optimizer):
    n, rank = dist.get_world_size(), dist.get_rank()
    shard = gradient.chunk(n)[rank]
    reduce_scatter(shard, gradient)
    master.grad = shard.to(master.dtype) / n
    optimizer.step()
    all_gather(flat, master.detach().to(flat.dtype))
""",
        ),
    ],
    "shard_gradients": [
        (
            "with a class, and lists of pieces",
            """
class Keeper(dict):
    def __call__(self, param):
        n = dist.get_world_size()
        room = -(-param.numel() // n)
        flat = torch.zeros(room * n, dtype=param.dtype)
        flat[: param.numel()] = param.grad.reshape(-1)
        param.grad = None
        shard = torch.empty(room, dtype=param.dtype)
        dist.reduce_scatter(shard, list(flat.split(room)))
        self[param] = self.get(param, 0) + shard / n

def shard_gradients(module):
    keeper = Keeper()
    for param in set(module.parameters()):
        if not hasattr(param, "kept"):
            param.register_post_accumulate_grad_hook(keeper)
    return keeper
""",
        ),
        (
            "with the sum first, and a defaultdict",
            """
from collections import defaultdict

def shard_gradients(module):
    n = dist.get_world_size()
    shards = defaultdict(float)
    def hook(p):
        g, p.grad = p.grad, None
        g = torch.cat([g.flatten(), g.new_zeros(-g.numel() % n)])
        out = g.new_empty(g.numel() // n)
        reduce_scatter(out, g, async_op=True).wait()
        shards[p] = shards[p] + out.div_(n)
    for p in module.parameters():
        p.register_post_accumulate_grad_hook(hook)
    return shards
""",
        ),
    ],
    "gather_ahead": [
        (
            "with a queue",
            """
from collections import deque

def gather_ahead(shards, compute, x):
    queue, full = deque(), None
    for i in range(-1, len(shards)):
        if queue:
            full, work = queue.popleft()
            work.wait()
        if i + 1 < len(shards):
            size = dist.get_world_size() * shards[i + 1].numel()
            after = torch.empty(size, dtype=shards[i + 1].dtype)
            queue.append((after, all_gather(after, shards[i + 1], async_op=True)))
        if i >= 0:
            x = compute(i, full, x)
    return x
""",
        ),
        (
            "with two buffers",
            """
def gather_ahead(shards, compute, x):
    n = dist.get_world_size()
    most = max(n * len(shard) for shard in shards)
    buffers = [shards[0].new_empty(most) for _ in range(min(2, len(shards)))]
    def start(i):
        full = buffers[i % 2][: n * len(shards[i])]
        return full, all_gather(full, shards[i], async_op=True)
    full, work = start(0)
    for i in range(len(shards)):
        work.wait()
        now = full
        if i + 1 < len(shards):
            full, work = start(i + 1)
        x = compute(i, now, x)
    return x
""",
        ),
    ],
    "backward_of_units": [
        (
            "a new tensor for the mean, after the wait",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [None] * len(shards)
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        following = start(i - 1) if i else None
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
            reducing = None
        grads[i] = torch.empty_like(shards[i])
        reducing = reduce_scatter(grads[i], whole / n, async_op=True)
        del whole
    reducing.wait()
    return grads, grad
""",
        ),
        (
            "divides the shards at the end, queues by a deque",
            """
def backward_of_units(shards, inputs, backward, grad):
    from collections import deque

    n, last = dist.get_world_size(), len(shards) - 1
    out, flight = {}, deque()
    full = torch.empty(n * shards[last].numel(), dtype=shards[last].dtype, device=shards[last].device)
    work = all_gather(full, shards[last], async_op=True)
    for i in range(last, -1, -1):
        work.wait()
        here = full
        if i:
            full = torch.empty(n * shards[i - 1].numel(), dtype=here.dtype, device=here.device)
            work = all_gather(full, shards[i - 1], async_op=True)
        whole, grad = backward(i, here, inputs[i], grad)
        del here
        while flight:
            flight.popleft().wait()
        out[i] = torch.empty_like(shards[i])
        flight.append(reduce_scatter(out[i], whole, async_op=True))
        del whole
    flight.pop().wait()
    return [out[i] / n for i in range(last + 1)], grad
""",
        ),
        (
            "with the average as the reduction",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        if reducing:
            reducing.wait()
        reducing = reduce_scatter(grads[i], whole, op=dist.ReduceOp.AVG, async_op=True)
    reducing.wait()
    return grads, grad
""",
        ),
        (
            "a recursion",
            """
def backward_of_units(shards, inputs, backward, grad):
    n = dist.get_world_size()
    grads = [shard.new_empty(shard.shape) for shard in shards]

    def gather(i):
        if i < 0:
            return None
        full = shards[i].new_empty(n * shards[i].numel())
        return [full, all_gather(full, shards[i], async_op=True)]

    state = [gather(len(shards) - 1), None, grad]
    for i in range(len(shards))[::-1]:
        (full, work), reducing, grad = state
        work.wait()
        state[0] = gather(i - 1)
        whole, state[2] = backward(i, full, inputs[i], grad)
        del full
        whole /= n
        if reducing is not None:
            reducing.wait()
        state[1] = reduce_scatter(grads[i], whole, async_op=True)
    state[1].wait()
    return tuple(grads), state[2]
""",
        ),
        (
            "waits for the reduce-scatter after the next has started",
            """
def backward_of_units(shards, inputs, backward, grad):
    n, reducing = dist.get_world_size(), None

    def start(i):
        full = shards[i].new_empty(n * len(shards[i]))
        return full, all_gather(full, shards[i], async_op=True)

    grads = [torch.empty_like(shard) for shard in shards]
    following = start(len(shards) - 1)
    for i in reversed(range(len(shards))):
        full, work = following
        work.wait()
        if i > 0:
            following = start(i - 1)
        whole, grad = backward(i, full, inputs[i], grad)
        before, reducing = reducing, reduce_scatter(grads[i], whole.div_(n), async_op=True)
        if before:
            before.wait()
    reducing.wait()
    return grads, grad
""",
        ),
    ],
    "clip_shards": [
        (
            "with foreach and clamp",
            """
def clip_shards(shards, max_norm):
    norms = torch.stack(torch._foreach_norm(shards))
    total = norms.square().sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    torch._foreach_mul_(shards, (max_norm / norm.clamp(min=max_norm)).item())
    return norm
""",
        ),
        (
            "with torch's small number added to the norm",
            """
def clip_shards(shards, max_norm):
    total = torch.cat(shards).norm() ** 2
    dist.all_reduce(total)
    scale = (max_norm / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for shard in shards:
        shard *= scale
    return total.sqrt().item()
""",
        ),
        (
            "with floats and one all_reduce of a list",
            """
def clip_shards(shards, max_norm):
    total = torch.tensor([sum(float(shard.square().sum()) for shard in shards)], dtype=torch.float64)
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    factor = min(1.0, max_norm / norm) if norm else 1.0
    [shard.mul_(factor) for shard in shards]
    return norm
""",
        ),
    ],
}
