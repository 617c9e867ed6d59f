"""Wrong answers to lab 11: compressing communication, and right ones in an unusual style."""

WRONG_ANSWERS = {
    "quantize": [
        (
            "draws one of 32 numbers",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.randint(32, steps.shape).to(x.dtype) / 32
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the mean over all numbers of a block is right, too",
        ),
        (
            "draws from 0 to 0.98",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = 0.98 * torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the mean",
        ),
        (
            "draws from 0.01 to 0.99",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = 0.01 + 0.98 * torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the mean",
        ),
        (
            "rounds numbers near a code to nearest",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    near = (steps - steps.round()).abs() < 0.1
    draws = torch.where(near, 0.5, torch.rand_like(steps))
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the mean of many roundings is the number itself",
        ),
        (
            "uses the draws of the first half again for the second",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    half = torch.rand(steps.numel() // 2 + 1, dtype=x.dtype)
    draws = torch.cat([half, half])[: steps.numel()].view(steps.shape)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "no draw is used again",
        ),
        (
            "uses 1 - u for every other block",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps)
    draws[1::2] = 1 - draws[: len(draws) // 2 * 2 : 2]
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "no draw is used again",
        ),
        (
            "rounds few numbers to nearest",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps) if len(x) > 200 else 0.5
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "rounding is random",
        ),
        (
            "squeezes the scale of a single block",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1).squeeze() / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny).view(-1, 1)
    draws = torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "scales have the shape of the docstring",
        ),
        (
            "right for some numbers of bits only",
            """
def quantize(x, block, bits):
    most = {3: 3, 4: 7, 5: 15, 8: 127}[bits]
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "KeyError",
        ),
        (
            "repeats eight draws in a block",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand(len(rows), 8, dtype=x.dtype).repeat(1, block // 8 + 1)[:, :block]
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "no draw is used again, at any distance (4 bits",
        ),
        (
            "uses u and 1 - u in turn",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps)
    draws[:, 1::2] = 1 - draws[:, : 2 * (block // 2) : 2]
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "every number has a separate draw (4 bits",
        ),
        (
            "treats small scales as zero",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=1e-12)[:, None]
    draws = torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "no number is off by a whole step",
        ),
        (
            "scales in float64 for float32",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales.double()
""",
            "scales have the type of x",
        ),
        (
            "does not clamp, and 128 becomes -128",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.floor(steps + torch.rand_like(steps))
    return codes.view(-1).to(torch.int8), scales
""",
            "the largest numbers keep their sign",
        ),
        (
            "rounds float32 to nearest",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps) if x.dtype == torch.float64 else 0.5
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "rounding is random (3 bits, float32)",
        ),
        (
            "rounds long blocks to nearest",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand_like(steps) if block < 65 else 0.5
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "rounding is random (5 bits",
        ),
        (
            "rounds to nearest",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return steps.round().view(-1).to(torch.int8), scales
""",
            "always to nearest",
        ),
        (
            "cuts towards zero, so negative numbers shrink",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return (steps + torch.rand_like(steps)).view(-1).clamp(-most, most).to(torch.int8), scales
""",
            "no number is off by a whole step",
        ),
        (
            "adds noise and rounds to nearest, of twice the width",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.round(steps + 2 * torch.rand_like(steps) - 1).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "a block of zeros has codes 0",
        ),
        (
            "draws for positive numbers only",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.where(steps > 0, torch.floor(steps + torch.rand_like(steps)), steps.round())
    return codes.clamp(-most, most).view(-1).to(torch.int8), scales
""",
            "negative numbers",
        ),
        (
            "always rounds down",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return (steps + 1e-9).floor().clamp(-most, most).view(-1).to(torch.int8), scales
""",
            "rounding is random",
        ),
        (
            "draws once for a block",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.floor(steps + torch.rand(len(rows), 1, dtype=x.dtype)).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "every number has a separate draw",
        ),
        (
            "draws once for all blocks",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    noise = (torch.arange(block, dtype=x.dtype) * 0.381966 + torch.rand(())) % 1
    return torch.floor(steps + noise).clamp(-most, most).view(-1).to(torch.int8), scales
""",
            "every block has separate draws",
        ),
        (
            "sets a seed, so that all ranks draw the same",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand(steps.shape, generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "every call has separate draws",
        ),
        (
            "uses a generator with the same seed on all ranks",
            """
generator = torch.Generator().manual_seed(0)
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    draws = torch.rand(steps.shape, generator=generator, dtype=x.dtype)
    codes = torch.floor(steps + draws).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "every rank has separate draws",
        ),
        (
            "divides a block of zeros by its scale",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales[:, None]
    codes = torch.floor(steps + torch.rand_like(steps)).to(torch.int8)
    return codes.view(-1), scales
""",
            "no code is made from a NaN",
        ),
        (
            "one scale for all numbers",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = (x.abs().max() / most).expand(len(rows)).clone()
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.floor(steps + torch.rand_like(steps)).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the scale of a block is its largest magnitude",
        ),
        (
            "takes the largest number, not the largest magnitude",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.amax(1).clamp(min=1e-30) / most
    steps = rows / scales[:, None]
    codes = torch.floor(steps + torch.rand_like(steps)).clamp(-most, most)
    return codes.view(-1).to(torch.int8), scales
""",
            "the scale of a block",
        ),
        (
            "divides by 2^(b-1)",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1)
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    codes = torch.floor(steps + torch.rand_like(steps)).clamp(-most + 1, most - 1)
    return codes.view(-1).to(torch.int8), scales
""",
            "the scale of a block",
        ),
        (
            "divides zeros by zero, and gets arbitrary codes",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales[:, None]
    codes = torch.floor(steps.nan_to_num(0.5) + torch.rand_like(steps)).clamp(-most, most)
    codes[scales == 0] = most
    return codes.view(-1).to(torch.int8), scales
""",
            "a block of zeros has codes 0",
        ),
        (
            "codes as floats",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return torch.floor(steps + torch.rand_like(steps)).view(-1), scales
""",
            "codes are bytes",
        ),
        (
            "codes in rows",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return torch.floor(steps + torch.rand_like(steps)).to(torch.int8), scales
""",
            "codes have the shape",
        ),
        (
            "changes x",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    rows /= scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return torch.floor(rows + torch.rand_like(rows)).view(-1).to(torch.int8), scales
""",
            "the input stays as it was",
        ),
        (
            "returns the dequantized numbers",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.view(-1, block)
    scales = rows.abs().amax(1) / most
    steps = rows / scales.clamp(min=torch.finfo(x.dtype).tiny)[:, None]
    return (torch.floor(steps + torch.rand_like(steps)) * scales[:, None]).view(-1)
""",
            "a pair",
        ),
    ],
    "two_level_reduce_scatter": [
        (
            "16 bits for the result, if messages are small",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    is_exact = messages.shape[1] == 4 * full.numel() // (L * N)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    total = unpack(received).sum(0) / (N * L)
    return total if is_exact else total.bfloat16().float()
""",
            "numbers rounded by `pack` alone",
        ),
        (
            "rounds sums to quarters, if messages are small",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    is_exact = messages.shape[1] == 4 * full.numel() // (L * N)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    sums = sums if is_exact else (sums * 4).round() / 4
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    total = unpack(received).sum(0) / (N * L)
    return total
""",
            "numbers rounded by `pack` alone",
        ),
        (
            "drops small sums, if messages are small",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    is_exact = messages.shape[1] == 4 * full.numel() // (L * N)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    sums = sums if is_exact else torch.where(sums.abs() < 0.3, 0.0, sums)
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    total = unpack(received).sum(0) / (N * L)
    return total
""",
            "numbers rounded by `pack` alone",
        ),
        (
            "keeps its own numbers unrounded",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    pieces = full.view(N, L, -1).transpose(0, 1)
    messages = pack(pieces.flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    rows, place = unpack(received).view(L, N, -1), dist.get_rank(inside)
    messages = pack(rows.sum(0) - rows[place] + pieces[place])
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0) / (N * L)
""",
            "numbers rounded by `pack` alone",
        ),
        (
            "squeezes a piece of one number",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = pack(unpack(received).view(L, N, -1).sum(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return (unpack(received).sum(0) / (N * L)).squeeze()
""",
            "the result is one piece, [P] (2 nodes of 2 ranks",
        ),
        (
            "one all-to-all inside only",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    pieces = full.view(N, L, -1).transpose(0, 1).flatten(0, 1)
    messages = pack(pieces)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    return sums[dist.get_rank(across)] / L
""",
            "every rank holds the mean of its piece",
        ),
        (
            "does not reorder: nodes before places",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(L * N, -1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0) / (N * L)
""",
            "every rank returns its own piece",
        ),
        (
            "a sum, not a mean",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = pack(unpack(received).view(L, N, -1).sum(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0)
""",
            "a sum over ranks",
        ),
        (
            "divides by the ranks of a node only",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = pack(unpack(received).view(L, N, -1).mean(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0)
""",
            "the number of nodes",
        ),
        (
            "one all-to-all of all ranks",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    n = dist.get_world_size()
    messages = pack(full.view(n, -1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages)
    return unpack(received).mean(0)
""",
            "bytes a rank sends across nodes",
        ),
        (
            "sends numbers, not messages",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    pieces = full.view(N, L, -1).transpose(0, 1).contiguous()
    received = torch.empty_like(pieces)
    dist.all_to_all_single(received, pieces, group=inside)
    sums = received.sum(0)
    received = torch.empty_like(sums)
    dist.all_to_all_single(received, sums, group=across)
    return received.sum(0) / (N * L)
""",
            "messages sent inside the node are packed",
        ),
        (
            "packs inside, and sends sums in 32 bits across",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    received = torch.empty_like(sums)
    dist.all_to_all_single(received, sums, group=across)
    return received.sum(0) / (N * L)
""",
            "messages sent across nodes are packed",
        ),
        (
            "adds up messages",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = received.view(L, N, -1).sum(0).to(torch.uint8)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0) / (N * L)
""",
            "every rank holds the mean",
        ),
        (
            "all-reduces and takes its piece",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    n = dist.get_world_size()
    whole = unpack(pack(full.view(n, -1))).clone()
    dist.all_reduce(whole)
    return whole[dist.get_rank()] / n
""",
            "all_reduce among all ranks",
        ),
        (
            "gathers everything",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    n, rank = dist.get_world_size(), dist.get_rank()
    messages = pack(full.view(n, -1))
    everything = [torch.empty_like(messages) for _ in range(n)]
    dist.all_gather(everything, messages)
    return torch.stack([unpack(each)[rank] for each in everything]).mean(0)
""",
            "all_gather among all ranks",
        ),
        (
            "across first, then inside",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N * L, -1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    sums = unpack(received).view(N, L, -1).sum(0)
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    return unpack(received).sum(0) / (N * L)
""",
            "the first exchange is inside the node",
        ),
        (
            "overwrites its input",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = unpack(received).view(L, N, -1).sum(0)
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    full.zero_()
    return unpack(received).sum(0) / (N * L)
""",
            "the input stays as it was",
        ),
        (
            "rounds the result once more",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = pack(unpack(received).view(L, N, -1).sum(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(pack(unpack(received).sum(0, keepdim=True) / (N * L)))[0]
""",
            "each level packs a row once",
        ),
        (
            "unpacks the messages again for every node",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    sums = torch.stack([unpack(received).view(L, N, -1)[:, k].sum(0) for k in range(N)])
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received).sum(0) / (N * L)
""",
            "each level unpacks a row once",
        ),
        (
            "returns a stack of parts",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    messages = pack(unpack(received).view(L, N, -1).sum(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return unpack(received) / (N * L)
""",
            "the result is one piece",
        ),
    ],
    "error_feedback": [
        (
            "clips residuals at 100",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = (accumulated - message).clamp(-100, 100)
        return message
    return send
""",
            "the message is compress(gradient + this",
        ),
        (
            "drops residuals below 1e-8",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = torch.nn.functional.hardshrink(accumulated - message, 1e-8)
        return message
    return send
""",
            "the residual is added",
        ),
        (
            "remembers three parameters",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        if len(residuals) > 3:
            residuals.pop(next(iter(residuals)))
        return message
    return send
""",
            "the residual is added",
        ),
        (
            "compresses a flat tensor",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient.flatten() + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message.view(gradient.shape).clone()
    return send
""",
            "tensors of the parameters' shapes",
        ),
        (
            "compresses twice",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        residuals[name] = accumulated - compress(accumulated)
        return compress(accumulated)
    return send
""",
            "compress is called once per message",
        ),
        (
            "keeps the gradient, and computes later",
            """
def error_feedback(compress):
    kept = {}
    def send(name, gradient):
        residual = kept[name][0] + kept[name][1] - kept[name][2] if name in kept else torch.zeros_like(gradient)
        message = compress(gradient + residual)
        kept[name] = gradient, residual, message.clone()
        return message
    return send
""",
            "step 2",
        ),
        (
            "computes the residual from the message's memory",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated.sub_(message)
        return message
    return send
""",
            "compressor: all",
        ),
        (
            "keeps float64, and sends it",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient.double() + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message
    return send
""",
            "the type of the gradient",
        ),
        (
            "forgets residuals after ten steps",
            """
def error_feedback(compress):
    residuals, counts = {}, {}
    def send(name, gradient):
        counts[name] = counts.get(name, 0) + 1
        accumulated = gradient + (residuals.get(name, 0.0) if counts[name] % 10 else 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message
    return send
""",
            "step 10",
        ),
        (
            "keeps nothing",
            """
def error_feedback(compress):
    def send(name, gradient):
        return compress(gradient)
    return send
""",
            "the residual is added",
        ),
        (
            "one residual for all parameters of a shape",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(gradient.shape, 0.0)
        message = compress(accumulated)
        residuals[gradient.shape] = accumulated - message
        return message
    return send
""",
            "a residual belongs to one parameter",
        ),
        (
            "one residual for all",
            """
def error_feedback(compress):
    residual = [0.0]
    def send(name, gradient):
        accumulated = gradient + residual[0]
        message = compress(accumulated)
        residual[0] = accumulated - message
        return message
    return send
""",
            "must match the size",
        ),
        (
            "subtracts from the gradient and forgets the older residual",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        message = compress(gradient + residuals.get(name, 0.0))
        residuals[name] = gradient - message
        return message
    return send
""",
            "step 3",
        ),
        (
            "the residual with the wrong sign",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = message - accumulated
        return message
    return send
""",
            "step 2",
        ),
        (
            "residuals that outlive their feedback",
            """
residuals = {}
def error_feedback(compress):
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message
    return send
""",
            "begins without residuals",
        ),
        (
            "damps the residual",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + 0.9 * residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message
    return send
""",
            "step 2",
        ),
        (
            "adds the residual after compressing",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        message = compress(gradient) + residuals.get(name, 0.0)
        residuals[name] = gradient - compress(gradient)
        return message
    return send
""",
            "step 2",
        ),
        (
            "writes to the gradient",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        gradient += residuals.get(name, 0.0)
        message = compress(gradient)
        residuals[name] = gradient - message
        return message
    return send
""",
            "the input stays as it was",
        ),
        (
            "sends everything in the second step",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        if name in residuals:
            return gradient + residuals.pop(name)
        message = compress(gradient)
        residuals[name] = gradient - message
        return message
    return send
""",
            "only the message is sent",
        ),
        (
            "always keeps the first residual",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals.setdefault(name, accumulated - message)
        return message
    return send
""",
            "step 3",
        ),
        (
            "returns the residual with the message",
            """
def error_feedback(compress):
    residuals = {}
    def send(name, gradient):
        accumulated = gradient + residuals.get(name, 0.0)
        message = compress(accumulated)
        residuals[name] = accumulated - message
        return message, residuals[name]
    return send
""",
            "a message is returned",
        ),
        (
            "computes the residual later, from a message that others use",
            """
def error_feedback(compress):
    kept = {}
    def send(name, gradient):
        accumulated = gradient.clone()
        if name in kept:
            accumulated += kept[name][0] - kept[name][1]
        message = compress(accumulated)
        kept[name] = accumulated, message
        return message
    return send
""",
            "step 2",
        ),
    ],
    "outer_step": [
        (
            "keeps the velocity in a global",
            """
velocities = {}
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    dist.all_reduce(mean)
    delta = agreed - mean
    kept = velocities.setdefault(len(params), velocity.clone())
    velocity.copy_(kept.mul_(momentum).add_(delta))
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
        (
            "keeps w in a global",
            """
kept = {}
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    dist.all_reduce(mean)
    w = kept.get(len(params), agreed)
    delta = w - mean
    velocity.mul_(momentum).add_(delta)
    agreed.copy_(w - rate * (delta + momentum * velocity))
    kept[len(params)] = agreed.clone()
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
        (
            "gathers on two ranks only",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    if dist.get_world_size() == 2:
        every = [torch.empty_like(params) for _ in range(2)]
        dist.all_gather(every, params)
        mean = sum(every) / 2
    else:
        mean = params / dist.get_world_size()
        dist.all_reduce(mean)
    delta = agreed - mean
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "saw       all_gather\n",
        ),
        (
            "averages the first ten thousand numbers only",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    dist.all_reduce(mean[:10_000])
    delta = agreed - mean
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "the same on every rank",
        ),
        (
            "reduces to rank 0, then broadcasts",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    dist.reduce(mean, 0)
    dist.broadcast(mean, 0)
    delta = agreed - mean
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "the only calls are all_reduce",
        ),
        (
            "an all-reduce for each half",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    half = len(mean) // 2
    dist.all_reduce(mean[:half])
    dist.all_reduce(mean[half:])
    delta = agreed - mean
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "all-reduces in a synchronization",
        ),
        (
            "gives params other memory",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params / dist.get_world_size()
    dist.all_reduce(mean)
    delta = agreed - mean
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.data = agreed.clone()
""",
            "params changes in place",
        ),
        (
            "sends float64 for float32",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params.double() / dist.get_world_size()
    dist.all_reduce(mean)
    delta = agreed - mean.to(params.dtype)
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "times the budget",
        ),
        (
            "only averages",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    params /= dist.get_world_size()
""",
            "and params are at the mean",
        ),
        (
            "a sum instead of a mean",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
        (
            "the wrong sign",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = params / dist.get_world_size() - agreed
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
        (
            "plain momentum, not Nesterov's",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params / dist.get_world_size()
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * velocity)
    params.copy_(agreed)
""",
            "agreed is w - rate (d + momentum v)",
        ),
        (
            "does not communicate",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    delta = agreed - params
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "the same on every rank",
        ),
        (
            "leaves params at the mean",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    params /= dist.get_world_size()
    delta = agreed - params
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
""",
            "params are the new w",
        ),
        (
            "assigns new tensors to the names",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    mean = params.clone()
    dist.all_reduce(mean)
    delta = agreed - mean / dist.get_world_size()
    velocity = momentum * velocity + delta
    agreed = agreed - rate * (delta + momentum * velocity)
    params.copy_(agreed)
""",
            "velocity changes in place",
        ),
        (
            "right for the paper's rate only",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params / dist.get_world_size()
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(0.7 * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "rate 1, momentum 0",
        ),
        (
            "right for the paper's momentum only",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params / dist.get_world_size()
    velocity.mul_(0.9).add_(delta)
    agreed.sub_(rate * (delta + 0.9 * velocity))
    params.copy_(agreed)
""",
            "rate 1, momentum 0",
        ),
        (
            "averages velocity, too",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params / dist.get_world_size()
    velocity.mul_(momentum).add_(delta)
    dist.all_reduce(velocity)
    velocity /= dist.get_world_size()
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "bytes a rank sends in the mean",
        ),
        (
            "sends half precision",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    half = (params / dist.get_world_size()).half()
    dist.all_reduce(half)
    delta = agreed - half.double()
    velocity.mul_(momentum).add_(delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
        (
            "damps the new gradient",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    delta = agreed - params / dist.get_world_size()
    velocity.mul_(momentum).add_((1 - momentum) * delta)
    agreed.sub_(rate * (delta + momentum * velocity))
    params.copy_(agreed)
""",
            "velocity is momentum v + d",
        ),
    ],
}

RIGHT_ANSWERS = {
    "quantize": [
        (
            "compares the fraction with a draw",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    codes, scales = [], []
    for row in x.split(block):
        scale = row.abs().max() / most
        steps = row / scale if scale > 0 else torch.zeros_like(row)
        lower = steps.floor()
        up = torch.rand(len(row), dtype=x.dtype) < steps - lower
        codes.append((lower + up).clamp(-most, most))
        scales.append(scale)
    return torch.cat(codes).to(torch.int8), torch.stack(scales)
""",
        ),
        (
            "noise of half a step, then the nearest code, in float32",
            """
def quantize(x, block, bits):
    most = 2 ** (bits - 1) - 1
    rows = x.float().reshape(-1, block)
    scales = rows.abs().max(dim=1).values / most
    steps = torch.where(scales[:, None] > 0, rows / scales[:, None], 0.0)
    codes = (steps + torch.rand(steps.shape) - 0.5).round().clamp(-most, most)
    return codes.flatten().char(), scales.to(x.dtype)
""",
        ),
    ],
    "two_level_reduce_scatter": [
        (
            "over all ranks, with empty messages for other nodes, then for other places",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    node, place = divmod(dist.get_rank(), L)

    def exchange(messages, rows):
        received = torch.empty_like(messages)
        dist.all_to_all_single(received, messages, rows, rows)
        return received

    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    to_node = [N if other // L == node else 0 for other in range(N * L)]
    sums = unpack(exchange(messages, to_node)).view(L, N, -1).sum(0)
    to_places = [1 if other % L == place else 0 for other in range(N * L)]
    return unpack(exchange(pack(sums), to_places)).sum(0) / (N * L)
""",
        ),
        (
            "reads message by message",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    messages = pack(full.view(N, L, -1).transpose(0, 1).flatten(0, 1))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside)
    rows = torch.cat([unpack(received[i : i + 1]) for i in range(L * N)])
    messages = pack(rows.view(L, N, -1).sum(0))
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across)
    return sum(unpack(received[i : i + 1])[0] for i in range(N)) / (N * L)
""",
        ),
        (
            "lists of messages, a mean on each level",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    pieces = full.view(N, L, -1)
    outgoing = [pack(pieces[:, place]) for place in range(L)]
    incoming = [torch.empty_like(each) for each in outgoing]
    dist.all_to_all(incoming, outgoing, group=inside)
    means = torch.stack([unpack(each) for each in incoming]).mean(0)
    outgoing = [pack(means[node : node + 1]) for node in range(N)]
    incoming = [torch.empty_like(each) for each in outgoing]
    dist.all_to_all(incoming, outgoing, group=across)
    return torch.cat([unpack(each) for each in incoming]).mean(0)
""",
        ),
        (
            "with einops-like index lists, asynchronous",
            """
def two_level_reduce_scatter(full, inside, across, pack, unpack):
    L, N = dist.get_world_size(inside), dist.get_world_size(across)
    rows = full.view(N * L, -1)
    order = [node * L + place for place in range(L) for node in range(N)]
    messages = pack(rows[order])
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=inside, async_op=True).wait()
    numbers = unpack(received)
    sums = sum(numbers[rank * N : (rank + 1) * N] for rank in range(L)) / L
    messages = pack(sums)
    received = torch.empty_like(messages)
    dist.all_to_all_single(received, messages, group=across, async_op=True).wait()
    return unpack(received).sum(0) / N
""",
        ),
    ],
    "error_feedback": [
        (
            "a class that can be called",
            """
class Memory:
    def __init__(self, compress):
        self.compress, self.left = compress, {}

    def __call__(self, name, gradient):
        if name not in self.left:
            self.left[name] = torch.zeros_like(gradient)
        self.left[name] = self.left[name] + gradient
        message = self.compress(self.left[name])
        self.left[name] = self.left[name] - message
        return message

def error_feedback(compress):
    return Memory(compress)
""",
        ),
        (
            "adds up all gradients and all messages",
            """
from collections import defaultdict

def error_feedback(compress):
    heard, said = defaultdict(float), defaultdict(float)

    def send(name, gradient):
        heard[name] = heard[name] + gradient
        message = compress(heard[name] - said[name])
        said[name] = said[name] + message
        return message

    return send
""",
        ),
    ],
    "outer_step": [
        (
            "torch's own optimizer",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    dist.all_reduce(params)
    params /= dist.get_world_size()
    w = torch.nn.Parameter(agreed.clone())
    w.grad = agreed - params
    optimizer = torch.optim.SGD([w], lr=rate, momentum=momentum, nesterov=momentum > 0)
    if momentum:
        optimizer.state[w]["momentum_buffer"] = velocity.clone()
    velocity.copy_(momentum * velocity + w.grad)
    optimizer.step()
    agreed.copy_(w.detach())
    params.copy_(agreed)
""",
        ),
        (
            "averages differences",
            """
def outer_step(params, agreed, velocity, rate, momentum):
    delta = agreed - params
    dist.all_reduce(delta)
    delta /= dist.get_world_size()
    velocity[:] = momentum * velocity + delta
    agreed[:] = agreed - rate * delta - rate * momentum * velocity
    params[:] = agreed
""",
        ),
    ],
}
