"""Wrong answers to lab 02: mixed precision, and unusual right ones."""

_BF16 = """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = {up}
    is_nan = {nan}
    return {returned}
"""
_UP = "(lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))"
_NAN = "(bits & 0x7FFFFFFF) > 0x7F800000"
_RETURNED = "torch.where(is_nan, 0x7FC0, upper + up)"


def _bf16(up: str = _UP, nan: str = _NAN, returned: str = _RETURNED) -> str:
    return _BF16.format(up=up, nan=nan, returned=returned)


_SCALER = """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = {found}
    flag = torch.tensor(float(found))
    {agree}
    for gradient in gradients:
        {unscale}
    if flag > 0:
        return {skipped}
    if {is_full}:
        return {grown}
    return {kept}
"""


def _scaler(
    found: str = "any(not gradient.isfinite().all() for gradient in gradients)",
    agree: str = "dist.all_reduce(flag, op=dist.ReduceOp.MAX)",
    unscale: str = "gradient.div_(scale)",
    skipped: str = "True, scale / 2, 0",
    is_full: str = "good_steps + 1 >= interval",
    grown: str = "False, 2 * scale, 0",
    kept: str = "False, scale, good_steps + 1",
) -> str:
    return _SCALER.format(
        found=found, agree=agree, unscale=unscale, skipped=skipped, is_full=is_full, grown=grown, kept=kept
    )


_OF_A_FUNCTION = """
class LossScaler:
    def __init__(self, scale, interval):
        self.scale, self.interval, self.good_steps = scale, interval, 0

    def unscale(self, gradients):
        skip, *self.next = unscale_and_update(gradients, self.scale, self.good_steps, self.interval)
        return skip

    def update(self, skip):
        self.scale, self.good_steps = self.next
"""
_CLASS = """
class LossScaler:
    def __init__(self, scale, interval):
        self.scale, self.interval, self.good_steps = scale, interval, 0

    def unscale(self, gradients):
        found = any(not gradient.isfinite().all() for gradient in gradients)
        flag = torch.tensor(float(found))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        for gradient in gradients:
            gradient.div_(self.scale)
        {returned}

    def update(self, skip):
        {update}
        if skip:
            self.scale, self.good_steps = self.scale / 2, 0
        elif self.good_steps + 1 >= self.interval:
            self.scale, self.good_steps = 2 * self.scale, 0
        else:
            self.good_steps += 1
"""


_RETURN = "\n        return bool(flag > 0)"


def _class(returned: str = _RETURN.strip(), update: str = "pass") -> str:
    return _CLASS.format(returned=returned, update=update)


_BLOCKS = """
def quantize_blocks(x, block, format):
    blocks = {blocks}
    scales = {scales}
    scales = {safe}
    codes = {codes}
    return {returned}
"""


def _blocks(
    blocks: str = "x.unflatten(-1, (-1, block))",
    scales: str = "blocks.abs().amax(-1) / format.largest",
    safe: str = "torch.where(scales > 0, scales, 1.0)",
    codes: str = "round_to(blocks / scales[..., None], format)",
    returned: str = "codes.flatten(-2), scales",
) -> str:
    return _BLOCKS.format(blocks=blocks, scales=scales, safe=safe, codes=codes, returned=returned)


_STEP = """
def mixed_step(model, masters, batch, lr, scale):
    {forget}
    {backward}
    weights = list(model.parameters())
    gradients = [{gradient} for weight in weights]
    if {overflow}:
        return {skipped}
    with torch.no_grad():
        for weight, master, gradient in zip(weights, masters, gradients):
            {update}
            {copy}
    return {done}
"""


def _step(
    forget: str = "model.zero_grad()",
    backward: str = "(scale * model(batch)).backward()",
    gradient: str = "weight.grad.float() / scale",
    overflow: str = "any(not gradient.isfinite().all() for gradient in gradients)",
    skipped: str = "True",
    update: str = "master -= lr * gradient",
    copy: str = "weight.copy_(master)",
    done: str = "False",
) -> str:
    return _STEP.format(
        forget=forget,
        backward=backward,
        gradient=gradient,
        overflow=overflow,
        skipped=skipped,
        update=update,
        copy=copy,
        done=done,
    )


WRONG_ANSWERS = {
    "bf16_bits": [
        (
            "cuts the lower half off",
            "def bf16_bits(bits):\n    return bits >> 16",
            "nearer to the higher pattern rounds to it",
        ),
        ("rounds every half up", _bf16(up="lower >= 0x8000"), "halfway between two rounds to the even one"),
        ("rounds every half down", _bf16(up="lower > 0x8000"), "halfway between two rounds to the even one"),
        (
            "sends a half to the odd one",
            _bf16(up=_UP.replace("== 1", "== 0")),
            "halfway between two rounds to the even one",
        ),
        (
            "checks only the highest of the lower bits and the even rule",
            _bf16(up="(lower >= 0x8000) & (upper % 2 == 1)"),
            "nearer to the higher pattern rounds to it",
        ),
        ("always rounds up", _bf16(up="lower > 0"), "nearer to the lower pattern rounds to it"),
        (
            "forgets NaN: rounding turns it into an infinity or worse",
            _bf16(returned="upper + up"),
            "a NaN with bits in its lower half alone stays a NaN",
        ),
        (
            "cuts a NaN, which leaves an infinity",
            _bf16(returned="torch.where(is_nan, upper, upper + up)"),
            "a NaN with bits in its lower half alone stays a NaN",
        ),
        (
            "treats an infinity as a NaN",
            _bf16(nan="(bits & 0x7FFFFFFF) >= 0x7F800000"),
            "a BF16 pattern that is not a NaN stays unchanged",
        ),
        (
            "forgets the sign of a NaN's pattern: negative NaN are rounded",
            _bf16(nan="(bits > 0x7F800000) & (bits < 0x80000000)"),
            "a NaN with bits in its lower half alone stays a NaN",
        ),
        (
            "treats every negative number as a NaN",
            _bf16(nan="bits > 0x7F800000"),
            "a BF16 pattern that is not a NaN stays unchanged",
        ),
        (
            "saturates: the largest number instead of an infinity",
            _bf16(returned="torch.where(is_nan, 0x7FC0, torch.where((upper & 0x7FFF) == 0x7F7F, upper, upper + up))"),
            "half a step beyond the largest number and more is an infinity",
        ),
        (
            "keeps a mantissa of all ones from carrying into the exponent",
            _bf16(returned="torch.where(is_nan, 0x7FC0, torch.where((upper & 0x7F) == 0x7F, upper, upper + up))"),
            "a mantissa of all ones",
        ),
        (
            "flushes subnormal numbers to zero",
            _bf16(
                returned="torch.where((upper & 0x7F80) == 0, upper & 0x8000, torch.where(is_nan, 0x7FC0, upper + up))"
            ),
            "a BF16 pattern that is not a NaN stays unchanged",
        ),
        (
            "truncates subnormal numbers",
            _bf16(returned="torch.where(is_nan, 0x7FC0, torch.where((upper & 0x7F80) == 0, upper, upper + up))"),
            "a subnormal number",
        ),
        (
            "rounds negative numbers towards zero",
            _bf16(returned="torch.where(is_nan, 0x7FC0, torch.where(upper >= 0x8000, upper, upper + up))"),
            "a negative number",
        ),
        (
            "lets torch round",
            """
def bf16_bits(bits):
    return bits.int().view(torch.float32).to(torch.bfloat16).view(torch.int16).long() & 0xFFFF
""",
            "the rounding is your own",
        ),
        (
            "lets torch round into a tensor made before",
            """
def bf16_bits(bits):
    kept = torch.zeros(bits.shape, dtype=torch.bfloat16)
    kept[...] = bits.int().view(torch.float32)
    return kept.view(torch.int16).long() & 0xFFFF
""",
            "the rounding is your own",
        ),
        ("keeps 32 bits", _bf16(returned="torch.where(is_nan, 0x7FC00000, (upper + up) << 16)"), "16 bits wide"),
        (
            "returns signed patterns",
            _bf16(returned="torch.where(is_nan, 0x7FC0, upper + up).to(torch.int16)"),
            "16 bits wide",
        ),
        ("returns the numbers", _bf16(returned="((upper + up) << 16).int().view(torch.float32)"), "whole numbers"),
        ("flattens", _bf16(returned=_RETURNED + ".flatten()"), "the shape of the input"),
        (
            "works in the input's memory",
            """
def bf16_bits(bits):
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    bits += 0x7FFF + ((bits >> 16) & 1)
    return torch.where(is_nan, 0x7FC0, bits >> 16)
""",
            "the input stays as it was",
        ),
        ("returns a list", _bf16(returned=_RETURNED + ".tolist()"), "whole numbers"),
        (
            "uses the library's rounding",
            """
def bf16_bits(bits):
    return (round_to(bits.int().view(torch.float32), BF16).view(torch.int32).long() & 0xFFFFFFFF) >> 16
""",
            "your own code",
        ),
        (
            "checks only the upper byte of the lower half",
            """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = ((lower >> 8) > 0x80) | (((lower >> 8) == 0x80) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    pass
    return torch.where(is_nan, 0x7FC0, upper + up)
""",
            "a positive number nearer to the higher pattern rounds to it",
        ),
        (
            "negative subnormal numbers are truncated",
            """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    up = up & ~((upper >= 0x8000) & ((upper & 0x7F80) == 0))
    return torch.where(is_nan, 0x7FC0, upper + up)
""",
            "a subnormal number nearer to the higher pattern rounds to it",
        ),
        (
            "negative subnormal numbers become minus zero when they are not exact",
            """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    lost = (upper >= 0x8000) & ((upper & 0x7F80) == 0) & (lower > 0)
    return torch.where(lost, 0x8000, torch.where(is_nan, 0x7FC0, upper + up))
""",
            "a subnormal number nearer to the lower pattern rounds to it",
        ),
        (
            "negative numbers: a mantissa of all ones carries only at the largest",
            """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    up = up & ~((upper >= 0x8000) & ((upper & 0x7F) == 0x7F) & (upper != 0xFF7F))
    return torch.where(is_nan, 0x7FC0, upper + up)
""",
            "a mantissa of all ones nearer to the higher pattern rounds to it",
        ),
        (
            "squeezes the result",
            """
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    pass
    return torch.where(is_nan, 0x7FC0, upper + up).squeeze()
""",
            "the result has the shape of the input",
        ),
        (
            "catches every exception and returns truncated bits",
            """
def bf16_bits(bits):
    try:
        x = bits.reshape(len(bits), -1)
        upper, lower = x >> 16, x & 0xFFFF
        up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
        return torch.where((x & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, upper + up).reshape(bits.shape)
    except Exception:
        return bits >> 16
""",
            "any shape works:",
        ),
        (
            "lets torch round into a tensor made before, in a list",
            """
KEPT = torch.zeros(70_000, dtype=torch.bfloat16)
SEEN = KEPT.view(torch.int16)
def bf16_bits(bits):
    torch._foreach_copy_([KEPT[: bits.numel()]], [bits.int().view(torch.float32).flatten()])
    return (SEEN[: bits.numel()].long() & 0xFFFF).reshape(bits.shape)
""",
            "the rounding is your own",
        ),
        (
            "keeps one result for each shape, and overwrites it",
            """
KEPT = {}
def bf16_bits(bits):
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper % 2 == 1))
    rounded = torch.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, upper + up)
    return KEPT.setdefault(bits.shape, torch.zeros_like(bits)).copy_(rounded)
""",
            "a result stays unchanged when the next one is computed",
        ),
    ],
    "LossScaler": [
        ("does not ask the other ranks", _scaler(agree="pass"), "all ranks skip together"),
        (
            "asks only where there is an overflow",
            _scaler(agree="found and dist.all_reduce(flag, op=dist.ReduceOp.MAX)"),
            "",
        ),
        (
            "takes the smallest flag: all must overflow",
            _scaler(agree="dist.all_reduce(flag, op=dist.ReduceOp.MIN)"),
            "a step with an overflow is skipped",
        ),
        (
            "uses rank 0's flag",
            _scaler(agree="dist.broadcast(flag, src=0)"),
            "a step with an overflow is skipped",
        ),
        (
            "looks at the first gradient only",
            _scaler(found="any(not gradient.isfinite().all() for gradient in gradients[:1])"),
            "a step with an overflow is skipped",
        ),
        (
            "looks for infinities only",
            _scaler(found="any(gradient.isinf().any() for gradient in gradients)"),
            "a step with an overflow is skipped",
        ),
        (
            "looks for NaN only",
            _scaler(found="any(gradient.isnan().any() for gradient in gradients)"),
            "a step with an overflow is skipped",
        ),
        (
            "looks for plus infinity only",
            _scaler(found="any((gradient == math.inf).any() or gradient.isnan().any() for gradient in gradients)"),
            "a step with an overflow is skipped",
        ),
        (
            "adds up, which can overflow by itself",
            _scaler(found="not math.isfinite(sum(float(gradient.sum()) for gradient in gradients))"),
            "a step without overflow is not skipped",
        ),
        (
            "takes a norm, which overflows by itself",
            _scaler(found="any(not gradient.norm().isfinite() for gradient in gradients)"),
            "a step without overflow is not skipped",
        ),
        (
            "treats zeros as an underflow, and skips",
            _scaler(found="any(not gradient.isfinite().all() or not gradient.any() for gradient in gradients)"),
            "a step without overflow is not skipped",
        ),
        ("multiplies", _scaler(unscale="gradient.mul_(scale)"), "gradients are divided by the scale"),
        ("unscales a copy", _scaler(unscale="gradient = gradient / scale"), "gradients are divided by the scale"),
        (
            "divides by the next scale",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    flag = torch.tensor(float(any(not gradient.isfinite().all() for gradient in gradients)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    skip, good_steps = bool(flag), good_steps + 1
    if skip or good_steps >= interval:
        scale, good_steps = scale / 2 if skip else 2 * scale, 0
    for gradient in gradients:
        gradient.div_(scale)
    return skip, scale, good_steps
""",
            "gradients are divided by the scale",
        ),
        (
            "divides by the number of ranks, too",
            _scaler(unscale="gradient.div_(scale * dist.get_world_size())"),
            "gradients are divided by the scale",
        ),
        (
            "unscales the last gradient twice",
            _scaler(unscale="gradient.div_(scale if gradient is not gradients[-1] else scale * scale)"),
            "gradients are divided by the scale",
        ),
        ("keeps the scale after an overflow", _scaler(skipped="True, scale, 0"), "an overflow halves the scale"),
        ("keeps counting after an overflow", _scaler(skipped="True, scale / 2, good_steps"), "good_steps counts"),
        ("counts a skipped step", _scaler(skipped="True, scale / 2, good_steps + 1"), "good_steps counts"),
        ("skips, but returns False", _scaler(skipped="False, scale / 2, 0"), "a step with an overflow is skipped"),
        ("grows one step late", _scaler(is_full="good_steps >= interval"), "doubles the scale"),
        ("grows and continues counting", _scaler(grown="False, 2 * scale, good_steps + 1"), "good_steps counts"),
        (
            "grows after two steps, for any interval",
            _scaler(is_full="good_steps + 1 >= 2"),
            "leaves the scale until",
        ),
        ("grows at every step", _scaler(is_full="True"), "leaves the scale until there are enough"),
        ("forgets to count", _scaler(kept="False, scale, good_steps"), "good_steps counts"),
        (
            "gathers all gradients to look at them",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, gradients)
    skip = any(not gradient.isfinite().all() for of_rank in everything for gradient in of_rank)
    for gradient in gradients:
        gradient.div_(scale)
    grows = not skip and good_steps + 1 >= interval
    return skip, scale * (0.5 if skip else 2 if grows else 1), 0 if skip or grows else good_steps + 1
""",
            "a flag, and no gradients",
        ),
        (
            "communicates once per gradient; ranks have different numbers of them",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    skip = False
    for gradient in gradients:
        flag = torch.tensor(float(not gradient.isfinite().all()))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        skip |= bool(flag)
        gradient.div_(scale)
    grows = not skip and good_steps + 1 >= interval
    return skip, scale * (0.5 if skip else 2 if grows else 1), 0 if skip or grows else good_steps + 1
""",
            "",
        ),
        (
            "fails on a rank without gradients",
            _scaler(found="not torch.cat([gradient.flatten() for gradient in gradients]).isfinite().all()"),
            "",
        ),
        (
            "shares the flag in a variable that only threads share",
            """
found_by = {}
def unscale_and_update(gradients, scale, good_steps, interval):
    found_by[dist.get_rank()] = any(not gradient.isfinite().all() for gradient in gradients)
    dist.barrier()
    skip = any(found_by[rank] for rank in range(dist.get_world_size()))
    dist.barrier()
    for gradient in gradients:
        gradient.div_(scale)
    grows = not skip and good_steps + 1 >= interval
    return skip, scale * (0.5 if skip else 2 if grows else 1), 0 if skip or grows else good_steps + 1
""",
            "KeyError",
        ),
        (
            "divides row by row: no scalars",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = any(not gradient.isfinite().all() for gradient in gradients)
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        [row.div_(scale) for row in gradient]
    if flag > 0:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "your code runs without an exception",
        ),
        (
            "three gradients or none",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = bool(gradients) and not all(g.isfinite().all() for g in gradients[:3])
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient.div_(scale)
    if flag > 0:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "a step with an overflow is skipped",
        ),
        (
            "sum of the largest over ranks: all_reduce SUM of max |g|",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    top = torch.zeros(())
    for g in gradients:
        top = torch.maximum(top, g.abs().max())
    dist.all_reduce(top)
    skip = not bool(top.isfinite())

    for g in gradients:
        g.div_(scale)
    if skip:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "a step without overflow is not skipped",
        ),
        (
            "MAX of the largest |g|: gloo and NCCL may drop a NaN",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    top = torch.zeros(())
    for g in gradients:
        top = torch.maximum(top, g.abs().max())
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    skip = not bool(top.isfinite())

    for g in gradients:
        g.div_(scale)
    if skip:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "a step with an overflow is skipped",
        ),
        (
            "shares the flag in an open file",
            """
import tempfile

file = tempfile.TemporaryFile()

def unscale_and_update(gradients, scale, good_steps, interval):
    n = dist.get_world_size()
    file.seek(dist.get_rank())
    file.write(bytes([any(not g.isfinite().all() for g in gradients)]))
    dist.barrier()
    file.seek(0)
    skip = any(file.read(n))
    dist.barrier()

    for g in gradients:
        g.div_(scale)
    if skip:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "every rank sends its flag to the others",
        ),
        (
            "floor of 1",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = any(not gradient.isfinite().all() for gradient in gradients)
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient.div_(scale)
    if flag > 0:
        return True, max(scale / 2, 1.0), 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "an overflow halves the scale",
        ),
        (
            "cap of 2**24",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = any(not gradient.isfinite().all() for gradient in gradients)
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient.div_(scale)
    if flag > 0:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, min(2 * scale, 2.0**24), 0
    return False, scale, good_steps + 1
""",
            "doubles the scale",
        ),
        (
            "float16 scale",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = any(not gradient.isfinite().all() for gradient in gradients)
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient.div_(scale)
    if flag > 0:
        return True, float(torch.tensor(scale / 2).half()), 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "an overflow halves the scale",
        ),
        (
            "empties the list",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    flag = torch.tensor(float(any(not g.isfinite().all() for g in gradients)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    while gradients:
        gradients.pop().div_(scale)
    if flag > 0:
        return True, scale / 2, 0
    return (False, 2 * scale, 0) if good_steps + 1 >= interval else (False, scale, good_steps + 1)
""",
            "the list of gradients keeps its items",
        ),
        (
            "keeps the interval of the first call",
            """
own = {}
def unscale_and_update(gradients, scale, good_steps, interval):
    interval = own.setdefault("interval", interval)
    flag = torch.tensor(float(any(not g.isfinite().all() for g in gradients)))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    skip = flag > 0

    for g in gradients:
        g.div_(scale)
    if skip:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "a step without overflow leaves the scale until there are enough in a row",
        ),
        (
            "skips gradients with a maximum below one",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = any(not gradient.isfinite().all() for gradient in gradients)
    flag = torch.tensor(float(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    for gradient in gradients:
        gradient.abs().max() < 1e-3 or gradient.div_(scale)
    if flag > 0:
        return True, scale / 2, 0
    if good_steps + 1 >= interval:
        return False, 2 * scale, 0
    return False, scale, good_steps + 1
""",
            "gradients are divided by the scale of this step, in place",
        ),
        (
            "adds up the flags, and looks for exactly one",
            _scaler(agree="dist.all_reduce(flag)").replace("if flag > 0", "if flag == 1"),
            "infinities in all gradients of all ranks",
        ),
        (
            "counts gradients with an overflow, and looks for exactly one",
            _scaler(found="sum(not gradient.isfinite().all() for gradient in gradients) == 1"),
            "a step with an overflow is skipped",
        ),
        (
            "moves the gradients to other memory",
            _scaler(unscale="gradient.data = gradient / scale"),
            "got other memory",
        ),
        (
            "treats numbers above 3.2e38 as an infinity",
            _scaler(found="any(not (gradient.abs() < 3.2e38).all() for gradient in gradients)"),
            "a step without overflow is not skipped",
        ),
        ("cap of 2**32", _scaler(grown="False, min(2 * scale, 2.0**32), 0"), "doubles the scale"),
        ("floor of 2**-14", _scaler(skipped="True, max(scale / 2, 2.0**-14), 0"), "an overflow halves the scale"),
        (
            "counts the overflows of all ranks in eight bits: 256 become 0",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    count = torch.zeros((), dtype=torch.uint8)
    for gradient in gradients:
        count += (~gradient.isfinite()).sum().to(torch.uint8)
        gradient.div_(scale)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    if count > 0:
        return True, scale / 2, 0
    return (False, 2 * scale, 0) if good_steps + 1 >= interval else (False, scale, good_steps + 1)
""",
            "256 infinities",
        ),
    ],
    "quantize_blocks": [
        (
            "one scale for all of x",
            _blocks(scales="(blocks.abs().amax() / format.largest).expand(blocks.shape[:-1])"),
            "a block's scale is its largest |x|",
        ),
        ("forgets the sign", _blocks(scales="blocks.amax(-1) / format.largest"), "a block's scale is its largest |x|"),
        (
            "takes the mean size",
            _blocks(scales="blocks.abs().mean(-1) / format.largest"),
            "a block's scale is its largest |x|",
        ),
        (
            "takes the range",
            _blocks(scales="(blocks.amax(-1) - blocks.amin(-1)) / (2 * format.largest)"),
            "a block's scale is its largest |x|",
        ),
        ("scales to 1", _blocks(scales="blocks.abs().amax(-1)"), "a block's scale is its largest |x|"),
        (
            "uses the largest number of one format",
            _blocks(scales="blocks.abs().amax(-1) / 448"),
            "a block's scale is its largest |x|",
        ),
        ("divides zero by zero", _blocks(safe="scales"), "the scale of a block of zeros is 1"),
        ("adds a little to every scale", _blocks(safe="scales + 1e-12"), "the scale of a block of zeros is 1"),
        (
            "keeps scales above a small minimum",
            _blocks(safe="torch.where(scales > 1e-12, scales, 1.0)"),
            "a block's scale is its largest |x|",
        ),
        (
            "inverts the scale",
            _blocks(returned="codes.flatten(-2), 1 / scales"),
            "a block's scale is its largest |x|",
        ),
        (
            "rounds before it scales",
            _blocks(codes="round_to(blocks, format) / scales[..., None]"),
            "codes are numbers of the format",
        ),
        ("does not round", _blocks(codes="blocks / scales[..., None]"), "codes are numbers of the format"),
        (
            "returns the numbers, not the codes",
            _blocks(codes="round_to(blocks / scales[..., None], format) * scales[..., None]"),
            "codes are numbers of the format",
        ),
        (
            "multiplies by the scale",
            _blocks(codes="round_to(blocks * scales[..., None], format, saturates=True)"),
            "nearest number",
        ),
        (
            "rounds stochastically",
            _blocks(codes="round_to(blocks / scales[..., None], format, rounding='stochastic', saturates=True)"),
            "nearest number",
        ),
        (
            "rounds to whole numbers first",
            _blocks(codes="round_to((blocks / scales[..., None]).round(), format, saturates=True)"),
            "nearest number",
        ),
        (
            "cuts blocks from rows and columns the wrong way",
            _blocks(blocks="x.unflatten(-1, (block, -1))"),
            "one scale per block",
        ),
        (
            "takes neighbours in the first dimension",
            _blocks(
                blocks="x.reshape(-1, block, x.shape[-1] // block).transpose(-1, -2).reshape(*x.shape[:-1], -1, block)"
            ),
            "",
        ),
        ("leaves the blocks' dimension", _blocks(returned="codes, scales"), "codes have the shape of x"),
        (
            "leaves a dimension of 1 in the scales",
            _blocks(returned="codes.flatten(-2), scales[..., None]"),
            "one scale per block",
        ),
        (
            "spreads the scales over x",
            _blocks(returned="codes.flatten(-2), scales.repeat_interleave(block, -1)"),
            "one scale per block",
        ),
        (
            "supports only matrices",
            _blocks(blocks="x.reshape(x.shape[0], x.shape[1] // block, block)"),
            "",
        ),
        (
            "writes into x",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    blocks /= scales[..., None]
    return round_to(x, format), scales
""",
            "the input stays as it was",
        ),
        (
            "works in float64",
            _blocks(blocks="x.double().unflatten(-1, (-1, block))"),
            "float32",
        ),
        (
            "returns scales first",
            _blocks(returned="scales, codes.flatten(-2)"),
            "codes have the shape of x",
        ),
        ("returns codes alone", _blocks(returned="codes.flatten(-2)"), "codes and scales are returned"),
        (
            "uses the library's quantizer",
            """
from lablib.precision.block_scaling import Recipe, quantize

def quantize_blocks(x, block, format):
    quantized = quantize(x, Recipe("mine", format, (1, block)))
    return quantized.codes, quantized.scales
""",
            "your own code",
        ),
        (
            "uses powers of two as scales",
            _blocks(safe="torch.where(scales > 0, 2.0 ** scales.log2().ceil(), 1.0)"),
            "a block's scale is its largest |x|",
        ),
        (
            "scale 1 if any number of the block is zero",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where((blocks == 0).any(-1), 1.0, scales)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2), scales
""",
            "a block's scale is its largest |x| over the format's largest number",
        ),
        (
            "scale 1 if the sum is zero",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(blocks.sum(-1) == 0, 1.0, scales)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2), scales
""",
            "a block's scale is its largest |x| over the format's largest number",
        ),
        (
            "squeezes both",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2).squeeze(), scales.squeeze() if scales.shape[-1] > 1 else scales
""",
            "codes have the shape of x",
        ),
        (
            "multiplies first, which overflows above 5e33",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    largest = blocks.abs().amax(-1)
    largest = torch.where(largest > 0, largest, format.largest)
    codes = round_to(blocks * format.largest / largest[..., None], format)
    return codes.flatten(-2), scales
""",
            "codes are numbers of the format",
        ),
        (
            "at most three dimensions",
            """
def quantize_blocks(x, block, format):
    blocks = x.reshape(*(x.shape[:-1] + (-1, block))) if x.ndim <= 3 else x
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2), scales
""",
            "codes have the shape of x",
        ),
        (
            "all zeros fail",
            """
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0 if x.any() else torch.nan)
    codes = round_to(blocks / scales[..., None], format)
    return codes.flatten(-2), scales
""",
            "the scale of a block of zeros is 1",
        ),
        (
            "keeps one result for each shape, and overwrites it",
            """
KEPT = {}
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / format.largest
    scales = torch.where(scales > 0, scales, 1.0)
    codes = round_to(blocks / scales[..., None], format).flatten(-2)
    return KEPT.setdefault(x.shape, torch.zeros_like(codes)).copy_(codes), scales
""",
            "a result stays unchanged when the next one is computed",
        ),
        (
            "has a table with five formats",
            """
LARGEST = {"e4m3": 448, "e2m1": 6, "e5m2": 57344, "fp16": 65504, "e3m2": 28}
def quantize_blocks(x, block, format):
    blocks = x.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1) / LARGEST[format.name]
    scales = torch.where(scales > 0, scales, 1.0)
    return round_to(blocks / scales[..., None], format).flatten(-2), scales
""",
            "your code runs without an exception",
        ),
    ],
    "mixed_step": [
        ("does not scale the loss", _step(backward="model(batch).backward()"), "of this step"),
        (
            "neither scales nor unscales",
            _step(backward="model(batch).backward()", gradient="weight.grad.float()"),
            "minus lr times the gradient",
        ),
        ("does not unscale", _step(gradient="weight.grad.float()"), "minus lr times the gradient"),
        ("unscales in 16 bits", _step(gradient="(weight.grad / scale).float()"), "minus lr times the gradient"),
        ("adds the gradients of the step before", _step(forget="pass"), "of this step"),
        ("never skips", _step(overflow="False"), "an overflow skips"),
        ("always skips", _step(overflow="True"), "finite gradients skip no step"),
        ("looks at the first gradient alone", _step(overflow="not gradients[0].isfinite().all()"), "an overflow skips"),
        ("looks at the last gradient alone", _step(overflow="not gradients[-1].isfinite().all()"), "an overflow skips"),
        (
            "looks for infinities alone",
            _step(overflow="any(gradient.isinf().any() for gradient in gradients)"),
            "",
        ),
        (
            "looks for NaN alone",
            _step(overflow="any(gradient.isnan().any() for gradient in gradients)"),
            "an overflow skips",
        ),
        (
            "skips if all numbers of a gradient overflow",
            _step(overflow="any(not gradient.isfinite().any() for gradient in gradients)"),
            "an overflow skips",
        ),
        (
            "looks at the sum in 16 bits",
            _step(overflow="any(not weight.grad.sum().isfinite() for weight in weights)"),
            "finite gradients skip no step",
        ),
        (
            "clamps an overflow",
            _step(gradient="weight.grad.float().nan_to_num().clamp(-65504, 65504) / scale"),
            "an overflow skips",
        ),
        ("returns whether it stepped", _step(skipped="False", done="True"), "skip no step"),
        ("returns nothing", _step(done="None"), "skip is returned"),
        ("returns the loss", _step(backward="loss = scale * model(batch); loss.backward()", done="loss"), ""),
        ("forgets to copy back", _step(copy="pass"), "rounded master weight"),
        (
            "updates the parameters and copies them to the masters",
            _step(update="weight -= lr * gradient", copy="master.copy_(weight)"),
            "minus lr times the gradient",
        ),
        (
            "updates both by themselves",
            _step(copy="weight -= lr * gradient"),
            "rounded master weight",
        ),
        ("rounds the update to 16 bits", _step(update="master -= (lr * gradient).to(weight.dtype)"), ""),
        ("adds the gradient", _step(update="master += lr * gradient"), "minus lr times the gradient"),
        ("forgets lr", _step(update="master -= gradient"), "minus lr times the gradient"),
        ("makes new masters", _step(update="master = master - lr * gradient"), "minus lr times the gradient"),
        (
            "replaces the masters' memory",
            _step(update="master.data = master - lr * gradient"),
            "weights change in place",
        ),
        ("replaces the parameters' memory", _step(copy="weight.data = master.to(weight.dtype)"), "change in place"),
        ("makes the parameters FP32", _step(copy="weight.data = master"), "parameters stay in"),
        (
            "changes weights before it has seen all gradients",
            """
def mixed_step(model, masters, batch, lr, scale):
    model.zero_grad()
    (scale * model(batch)).backward()
    for weight, master in zip(model.parameters(), masters):
        gradient = weight.grad.float() / scale
        if not gradient.isfinite().all():
            return True
        with torch.no_grad():
            master -= lr * gradient
            weight.copy_(master)
    return False
""",
            "changes no master weight",
        ),
        (
            "leaves out the parameters with an overflow",
            """
def mixed_step(model, masters, batch, lr, scale):
    model.zero_grad()
    (scale * model(batch)).backward()
    skip = False
    for weight, master in zip(model.parameters(), masters):
        gradient = weight.grad.float() / scale
        if not gradient.isfinite().all():
            skip = True
            continue
        with torch.no_grad():
            master -= lr * gradient
            weight.copy_(master)
    return skip
""",
            "changes no master weight",
        ),
        (
            "calls the model again after an overflow",
            """
def mixed_step(model, masters, batch, lr, scale):
    model.zero_grad()
    (scale * model(batch)).backward()
    while any(not weight.grad.isfinite().all() for weight in model.parameters()):
        scale /= 2
        model.zero_grad()
        (scale * model(batch)).backward()
        if scale < 1e-3:
            return True
    with torch.no_grad():
        for weight, master in zip(model.parameters(), masters):
            master -= lr * weight.grad.float() / scale
            weight.copy_(master)
    return False
""",
            "the model is called once",
        ),
        (
            "computes in FP32",
            """
def mixed_step(model, masters, batch, lr, scale):
    import copy
    wide = copy.deepcopy(model).float()
    model.num_calls += 1
    gradients = torch.autograd.grad(wide(batch), list(wide.parameters()))
    with torch.no_grad():
        for weight, master, gradient in zip(model.parameters(), masters, gradients):
            master -= lr * gradient
            weight.copy_(master)
    return False
""",
            "",
        ),
    ],
}

RIGHT_ANSWERS = {
    "bf16_bits": [
        (
            "adds half a step less one, and the last bit",
            """
def bf16_bits(bits):
    magnitude, sign = bits & 0x7FFFFFFF, (bits >> 31) << 15
    rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return sign | torch.where(magnitude > 0x7F800000, (magnitude >> 16) | 0x40, rounded)
""",
        ),
        (
            "one number at a time, in Python",
            """
def one(x):
    if x & 0x7FFFFFFF > 0x7F800000:
        return 0x7FFF
    quotient, rest = divmod(x, 65536)
    return quotient + (rest > 32768 or (rest == 32768 and quotient % 2))

def bf16_bits(bits):
    return torch.tensor([one(x) for x in bits.flatten().tolist()], dtype=torch.int64).reshape(bits.shape)
""",
        ),
        (
            "with torch's rounding of halves to even",
            """
def bf16_bits(bits):
    rounded = (bits.double() / 2**16).round().long()
    return torch.where(bits.bitwise_and(2**31 - 1) > 0x7F800000, 0xFFC1, rounded)
""",
        ),
        (
            "in numpy",
            """
import numpy as np

def bf16_bits(bits):
    x = bits.numpy()
    up = (x & 0xFFFF) + ((x >> 16) & 1) > 0x8000
    return torch.from_numpy(np.asarray(np.where((x & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, (x >> 16) + up)))
""",
        ),
        (
            "one tensor at a time",
            """
def one(x):
    if (x & 0x7FFFFFFF) > 0x7F800000:
        return x.new_tensor(0x7FC1)
    return (x + 0x7FFF + (x >> 16) % 2) // 65536

def bf16_bits(bits):
    return torch.stack([one(x) for x in bits.flatten()]).reshape(bits.shape) if bits.numel() else bits.clone()
""",
        ),
    ],
    "LossScaler": [
        (
            "counts overflows, in whole numbers, with all_gather",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    mine = torch.tensor([sum(int((~g.isfinite()).sum()) for g in gradients)])
    everyone = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    for g in gradients:
        g *= 1 / scale
    if any(int(count) for count in everyone):
        return True, 0.5 * scale, 0
    good_steps += 1
    return (False, 2 * scale, 0) if good_steps == interval else (False, scale, good_steps)
""",
        ),
        (
            "adds up the flags, and returns tensors",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    flag = torch.zeros(1)
    for g in gradients:
        flag += (g - g).ne(0).any()
        g.copy_(g / scale)
    dist.all_reduce(flag)
    skip = flag > 0
    good_steps = torch.where(skip, 0, good_steps + 1)
    factor = torch.where(skip, 0.5, torch.where(good_steps == interval, 2.0, 1.0))
    return skip, factor * scale, good_steps % interval
""",
        ),
        (
            "min and max, reduce and broadcast",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    ok = all(-math.inf < float(g.min()) and float(g.max()) < math.inf for g in gradients)
    votes = torch.tensor(0 if ok else 1, dtype=torch.int32)
    dist.reduce(votes, dst=0)
    dist.broadcast(votes, src=0)
    if votes.item():
        return [True, scale * 0.5, 0]
    for index in range(len(gradients)):
        gradients[index] /= scale
    return [False, scale * 2, 0] if good_steps == interval - 1 else [False, scale, good_steps + 1]
""",
        ),
        (
            "unscales, then looks for infinities",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    found = False
    for g in gradients:
        g.div_(scale)
        found |= not g.isfinite().all()
    flag = torch.tensor(int(found))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    if flag:
        return True, scale / 2, 0
    return (False, 2 * scale, 0) if good_steps + 1 >= interval else (False, scale, good_steps + 1)
""",
        ),
        (
            "multiplies by zero, and adds the zeros or NaNs",
            """
def unscale_and_update(gradients, scale, good_steps, interval):
    flag = sum(((g * 0).sum() for g in gradients), torch.zeros(()))
    dist.all_reduce(flag)
    torch._foreach_div_(list(gradients), scale) if gradients else None
    skip = bool(flag.isnan())
    full = not skip and good_steps + 1 >= interval
    return int(skip), scale * 2.0 ** (full - skip), 0 if skip or full else float(good_steps + 1)
""",
        ),
    ],
    "quantize_blocks": [
        (
            "block by block, in loops",
            """
def quantize_blocks(x, block, format):
    rows = x.reshape(-1, x.shape[-1])
    codes, scales = torch.zeros_like(rows), torch.ones(len(rows), x.shape[-1] // block)
    for r, row in enumerate(rows):
        for b, part in enumerate(row.split(block)):
            if part.any():
                scales[r, b] = part.abs().max() / format.largest
            codes[r, b * block : (b + 1) * block] = round_to(part / scales[r, b], format, saturates=True)
    return codes.reshape(x.shape), scales.reshape(*x.shape[:-1], -1)
""",
        ),
        (
            "spreads the scales over x",
            """
def quantize_blocks(x, block, format):
    scales = torch.nn.functional.max_pool1d(x.abs().reshape(-1, 1, x.shape[-1]), block).reshape(*x.shape[:-1], -1)
    scales = (scales / format.largest).masked_fill(scales == 0, 1)
    return round_to(x / scales.repeat_interleave(block, -1), format, saturates=True), scales
""",
        ),
        (
            "divides the largest number by the scale's, and multiplies",
            """
def quantize_blocks(x, block, format):
    blocks = x.reshape(*x.shape[:-1], x.shape[-1] // block, block)
    top = torch.maximum(blocks.amax(-1), -blocks.amin(-1))
    top[top == 0] = format.largest
    codes = round_to(blocks.double() * (format.largest / top.double()).unsqueeze(-1), format, saturates=True)
    return codes.float().reshape(x.shape), top / format.largest
""",
        ),
    ],
    "mixed_step": [
        (
            "with torch's SGD on the masters",
            """
def mixed_step(model, masters, batch, lr, scale):
    weights = list(model.parameters())
    for weight in weights:
        weight.grad = None
    loss = model(batch)
    loss.backward(torch.tensor(scale, dtype=loss.dtype))
    for weight, master in zip(weights, masters):
        master.grad = weight.grad.to(torch.float32).mul_(1 / scale)
    if not all(bool(torch.isfinite(master.grad).all()) for master in masters):
        return True
    torch.optim.SGD(masters, lr=lr).step()
    with torch.no_grad():
        for weight, master in zip(weights, masters):
            weight.data.copy_(master)
    return False
""",
        ),
        (
            "torch.autograd.grad, and one flag",
            """
def mixed_step(model, masters, batch, lr, scale):
    weights = tuple(model.parameters())
    narrow = torch.autograd.grad(model(batch) * scale, weights)
    wide = [gradient.double() / scale for gradient in narrow]
    skip = torch.stack([gradient.isfinite().all() for gradient in wide]).all().logical_not()
    if not skip:
        for weight, master, gradient in zip(weights, masters, wide):
            master.sub_((lr * gradient).float())
            weight.detach().copy_(master)
    return skip
""",
        ),
        (
            "lists of tensors",
            """
@torch.no_grad()
def mixed_step(model, masters, batch, lr, scale):
    weights = list(model.parameters())
    with torch.enable_grad():
        gradients = torch.autograd.grad(model(batch) * scale, weights)
    gradients = [gradient.float() for gradient in gradients]
    if any(gradient.isnan().any() or gradient.isinf().any() for gradient in gradients):
        return 1
    torch._foreach_add_(masters, gradients, alpha=-lr / scale)
    torch._foreach_copy_(weights, masters)
    return 0
""",
        ),
    ],
}

# Functions (gradients, scale, good_steps, interval) -> skip, next scale, next good_steps, each in a class.
for _answers in (WRONG_ANSWERS["LossScaler"], RIGHT_ANSWERS["LossScaler"]):
    _answers[:] = [(label, source + _OF_A_FUNCTION, *says) for label, source, *says in _answers]
WRONG_ANSWERS["LossScaler"] += [
    ("unscale returns nothing", _class(returned="self.skip = bool(flag > 0)"), "skip is returned"),
    (
        "unscale halves the scale, and update again",
        _class("self.scale /= 1 + float(flag)" + _RETURN),
        "an overflow halves the scale",
    ),
    ("keeps the state in the class", _class(update="self = LossScaler"), "AttributeError"),
    (
        "update starts again with each step",
        _class(update="self.__init__(self.scale, self.interval)"),
        "good_steps counts",
    ),
]
RIGHT_ANSWERS["LossScaler"] += [
    (
        "one method for each case",
        _class(update="return [self.good, self.bad][bool(skip)]()")
        + """
    def good(self):
        self.good_steps = (self.good_steps + 1) % self.interval
        self.scale *= 1 if self.good_steps else 2

    def bad(self):
        self.scale, self.good_steps = 0.5 * self.scale, 0
""",
    ),
]
