"""Wrong answers to lab 04: batches, and unusual right ones."""

_ACCUMULATE = """
def accumulate(model, micro_batches):
    num_tokens = {num_tokens}
    total = 0.0
    {before}
    for inputs, targets in {taken}:
        loss = {loss}
        {backward}
        total += {adds}
    {after}
    return {returned}
"""
_COUNT = "sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)"


def _accumulate(
    num_tokens: str = _COUNT,
    before: str = "pass",
    taken: str = "micro_batches",
    loss: str = "summed_loss(model(inputs), targets) / num_tokens",
    backward: str = "loss.backward()",
    adds: str = "loss.item()",
    after: str = "pass",
    returned: str = "total",
) -> str:
    return _ACCUMULATE.format(
        num_tokens=num_tokens,
        before=before,
        taken=taken,
        loss=loss,
        backward=backward,
        adds=adds,
        after=after,
        returned=returned,
    )


_CLIP = """
def clip_shards(shards, replicated, max_norm):
    squared = {squared}
    {reduce}
    norm = {norm}
    if {applies}:
        {scale}
    return {returned}
"""
_SQUARED = "sum((shard.square().sum() for shard in shards), torch.zeros(()))"
_REPLICATED = "sum(one.square().sum() for one in replicated)"


def _clip(
    squared: str = _SQUARED,
    reduce: str = "dist.all_reduce(squared)",
    norm: str = f"(squared + {_REPLICATED}).sqrt()",
    applies: str = "norm > max_norm",
    scale: str = "[gradient.mul_(max_norm / norm) for gradient in [*shards, *replicated]]",
    returned: str = "norm",
) -> str:
    return _CLIP.format(squared=squared, reduce=reduce, norm=norm, applies=applies, scale=scale, returned=returned)


_NOISE = """
def signal_and_noise(gradients, part_size):
    small, large = {small}, {large}
    of_small = {of_small}
    of_large = {of_large}
    noise = {noise}
    signal = {signal}
    return {returned}
"""


def _noise(
    small: str = "part_size",
    large: str = "part_size * len(gradients)",
    of_small: str = "gradients.square().sum(1).mean()",
    of_large: str = "gradients.mean(0).square().sum()",
    noise: str = "(of_small - of_large) / (1 / small - 1 / large)",
    signal: str = "of_large - noise / large",
    returned: str = "signal, noise",
) -> str:
    return _NOISE.format(
        small=small, large=large, of_small=of_small, of_large=of_large, noise=noise, signal=signal, returned=returned
    )


_WSD = """
def wsd(step, num_steps, num_warmup, num_decay):
    if {is_warmup}:
        return {warmup}
    if {is_stable}:
        return {stable}
    return {decay} if {is_decay} else {end}
"""


def _wsd(
    is_warmup: str = "step < num_warmup",
    warmup: str = "(step + 1) / (num_warmup + 1)",
    is_stable: str = "step < num_steps - num_decay",
    stable: str = "1.0",
    decay: str = "(num_steps - step) / num_decay",
    is_decay: str = "step < num_steps",
    end: str = "0.0",
) -> str:
    return _WSD.format(
        is_warmup=is_warmup,
        warmup=warmup,
        is_stable=is_stable,
        stable=stable,
        decay=decay,
        is_decay=is_decay,
        end=end,
    )


WRONG_ANSWERS = {
    "accumulate": [
        (
            "divides in hooks that stay",
            _accumulate(
                before="[p.register_hook(lambda g: g / num_tokens) for p in model.parameters() if p.requires_grad]",
                loss="summed_loss(model(inputs), targets)",
                adds="loss.item() / num_tokens",
            ),
            "the next step of the same model adds to them",
        ),
        (
            "clips the norm to 10",
            _accumulate(after="torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)"),
            "existing gradients are added to",
        ),
        (
            "leaves out a micro-batch in which a row is padding",
            _accumulate(taken="[(x, y) for x, y in micro_batches if (y != IGNORED).any(1).all()]"),
            "a row that is all padding",
        ),
        (
            "mean of means",
            _accumulate(
                loss="summed_loss(model(inputs), targets) / max(1, int((targets != IGNORED).sum())) "
                "/ len(micro_batches)"
            ),
            "every token weighs 1 / N (a last micro-batch with fewer sequences)",
        ),
        (
            "torch's mean, by its tokens: NaN without tokens",
            _accumulate(
                loss="torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) "
                "* (targets != IGNORED).sum() / num_tokens"
            ),
            "every token weighs 1 / N (a micro-batch that is all padding)",
        ),
        (
            "weighs by sequences",
            _accumulate(
                num_tokens="sum(len(targets) for _, targets in micro_batches)",
                loss="summed_loss(model(inputs), targets) / max(1, int((targets != IGNORED).sum())) "
                "* len(inputs) / num_tokens",
            ),
            "every token weighs 1 / N (micro-batches of different lengths)",
        ),
        (
            "counts padding as tokens",
            _accumulate(num_tokens="sum(targets.numel() for _, targets in micro_batches)"),
            "the gradient is the gradient of a mean (equal shapes, some of it padding)",
        ),
        (
            "treats token 0 as padding",
            _accumulate(num_tokens="sum(int((targets > 0).sum()) for _, targets in micro_batches)"),
            "the gradient is the gradient of a mean (micro-batches of equal size)",
        ),
        (
            "does not divide",
            _accumulate(loss="summed_loss(model(inputs), targets)"),
            "the gradient is the gradient of a mean (micro-batches of equal size)",
        ),
        (
            "divides by the number of micro-batches alone",
            _accumulate(loss="summed_loss(model(inputs), targets) / len(micro_batches)"),
            "the gradient is the gradient of a mean (micro-batches of equal size)",
        ),
        (
            "divides twice",
            _accumulate(loss="summed_loss(model(inputs), targets) / num_tokens / len(micro_batches)"),
            "the gradient is the gradient of a mean (micro-batches of equal size)",
        ),
        (
            "counts the first micro-batch's tokens, times their number",
            _accumulate(num_tokens="int((micro_batches[0][1] != IGNORED).sum()) * len(micro_batches)"),
            "the gradient is the gradient of a mean (a last micro-batch with fewer sequences)",
        ),
        (
            "divides by the tokens seen so far",
            _accumulate(
                num_tokens="0",
                loss="summed_loss(model(inputs), targets) / sum(int((y != IGNORED).sum()) for _, y in micro_batches[: "
                "1 + [id(y) for _, y in micro_batches].index(id(targets))])",
            ),
            "every token weighs 1 / N (micro-batches of equal size)",
        ),
        (
            "leaves the last micro-batch out",
            _accumulate(taken="micro_batches[:-1] or micro_batches"),
            "every token weighs 1 / N (micro-batches of equal size)",
        ),
        (
            "zeroes the gradients for each micro-batch",
            _accumulate(backward="model.zero_grad(); loss.backward()"),
            "every token weighs 1 / N (micro-batches of equal size)",
        ),
        (
            "zeroes the gradients at the start",
            _accumulate(before="model.zero_grad()"),
            "param.grad holds the old plus the new gradient",
        ),
        (
            "divides param.grad at the end",
            _accumulate(
                loss="summed_loss(model(inputs), targets)",
                adds="loss.item() / num_tokens",
                after="[p.grad.div_(num_tokens) for p in model.parameters() if p.grad is not None]",
            ),
            "param.grad holds the old plus the new gradient",
        ),
        (
            "no backward",
            _accumulate(backward="pass"),
            "every parameter has a gradient (micro-batches of equal size)",
        ),
        (
            "one backward at the end keeps all activations",
            _accumulate(backward="pass", adds="loss", after="total.backward()", returned="total.item()"),
            "peak memory, with the activations of one micro-batch at a time",
        ),
        (
            "keeps each graph until the next micro-batch is done",
            _accumulate(backward="loss.backward(retain_graph=True)"),
            "peak memory, with the activations of one micro-batch at a time",
        ),
        (
            "three micro-batches for each backward",
            """
def accumulate(model, micro_batches):
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total, pending = 0.0, 0.0
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss = summed_loss(model(inputs), targets) / num_tokens
        pending = pending + loss
        total += loss.item()
        if number % 3 == 0 or number == len(micro_batches):
            pending.backward()
            pending = 0.0
    return total
""",
            "peak memory, with the activations of one micro-batch at a time",
        ),
        (
            "runs backward after the next micro-batch",
            """
def accumulate(model, micro_batches):
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total, before = 0.0, None
    for inputs, targets in micro_batches:
        loss = summed_loss(model(inputs), targets) / num_tokens
        if before is not None:
            before.backward()
        before = loss
        total += loss.item()
    before.backward()
    return total
""",
            "peak memory, with the activations of one micro-batch at a time",
        ),
        (
            "keeps the logits of all",
            """
def accumulate(model, micro_batches):
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total, logits = 0.0, []
    for inputs, targets in micro_batches:
        logits.append(model(inputs))
        loss = summed_loss(logits[-1], targets) / num_tokens
        loss.backward()
        total += loss.item()
    return total
""",
            "and no tensors of earlier ones",
        ),
        (
            "keeps the gradients of all, and adds them at the end",
            """
def accumulate(model, micro_batches):
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    params = [param for param in model.parameters() if param.requires_grad]
    total, gradients = 0.0, []
    for inputs, targets in micro_batches:
        loss = summed_loss(model(inputs), targets) / num_tokens
        gradients.append(torch.autograd.grad(loss, params))
        total += loss.item()
    for param, *some in zip(params, *gradients):
        param.grad = sum(some) if param.grad is None else param.grad + sum(some)
    return total
""",
            "and no tensors of earlier ones",
        ),
        (
            "assumes padding at the end of each row",
            """
def accumulate(model, micro_batches):
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        logits = model(inputs)
        loss = 0.0 * logits.sum()
        for row, wanted in zip(logits, targets):
            length = int((wanted != IGNORED).sum())
            loss = loss + summed_loss(row[None, :length], wanted[None, :length]) / num_tokens
        loss.backward()
        total += loss.item()
    return total
""",
            "every token weighs 1 / N (padding anywhere in a row)",
        ),
        (
            "leaves the model in evaluation mode",
            _accumulate(before="model.eval()"),
            "the model stays in training mode (micro-batches of equal size)",
        ),
        (
            "one large batch if shapes allow it",
            """
def accumulate(model, micro_batches):
    if len({tuple(inputs.shape[1:]) for inputs, _ in micro_batches}) == 1:
        micro_batches = [[torch.cat(part) for part in zip(*micro_batches)]]
    num_tokens = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        loss = summed_loss(model(inputs), targets) / num_tokens
        loss.backward()
        total += loss.item()
    return total
""",
            "each micro-batch goes through the model once, alone (micro-batches of equal size)",
        ),
        (
            "runs each micro-batch twice, once for its loss",
            _accumulate(adds="summed_loss(model(inputs), targets).item() / num_tokens"),
            "each micro-batch goes through the model once, alone (micro-batches of equal size)",
        ),
        (
            "returns the last micro-batch's share",
            _accumulate(returned="loss.item()"),
            "the loss returned is the mean over all tokens (micro-batches of equal size)",
        ),
        (
            "returns the summed loss",
            _accumulate(returned="total * num_tokens"),
            "the loss returned is the mean over all tokens (micro-batches of equal size)",
        ),
        (
            "returns a mean of means",
            _accumulate(adds="loss.item() * num_tokens / max(1, int((targets != IGNORED).sum())) / len(micro_batches)"),
            "the loss returned is the mean over all tokens (a last micro-batch with fewer sequences)",
        ),
        ("returns nothing", _accumulate(returned="None"), "the mean loss is returned (micro-batches of equal size)"),
        (
            "takes the optimizer's step as well",
            _accumulate(after="[p.data.sub_(p.grad) for p in model.parameters() if p.grad is not None]"),
            "the input stays as it was",
        ),
        (
            "empties the list",
            _accumulate(after="micro_batches.clear()"),
            "argument 2",
        ),
        (
            "computes a loss for padding",
            _accumulate(
                loss="torch.nn.functional.cross_entropy("
                "model(inputs).flatten(0, 1), targets.clamp(min=0).flatten(), reduction='sum') "
                "/ num_tokens"
            ),
            "every token weighs 1 / N (equal shapes, some of it padding)",
        ),
        (
            "uses the library's function",
            "def accumulate(model, micro_batches):\n    return accumulation.accumulate(model, micro_batches)",
            "the answer is your own code",
        ),
    ],
    "clip_shards": [
        (
            "adds its own square first",
            _clip(
                squared="[torch.zeros(()) for _ in range(dist.get_world_size())]",
                reduce=f"own = {_SQUARED}; dist.all_gather(squared, own.float())",
                norm="(own + sum(one for rank, one in enumerate(squared) if rank != dist.get_rank()) + "
                f"{_REPLICATED}).sqrt()",
            ),
            "the norm is the same on every rank",
        ),
        (
            "returns a slightly larger norm on each rank",
            _clip(norm=f"(squared + {_REPLICATED}).sqrt() * (1 + 1e-6 * dist.get_rank())"),
            "the norm is the same on every rank, to the last digit",
        ),
        ("each rank by its own norm", _clip(reduce="pass"), "every rank returns the norm before"),
        (
            "adds up norms instead of squares",
            _clip(
                squared="sum((shard.square().sum() for shard in shards), torch.zeros(())).sqrt()",
                norm="squared + (sum((one.square().sum() for one in replicated), torch.zeros(()))).sqrt()",
            ),
            "every rank returns the norm before",
        ),
        (
            "counts replicated gradients on every rank",
            _clip(
                squared="sum((one.square().sum() for one in [*shards, *replicated]), torch.zeros(()))",
                norm="squared.sqrt()",
            ),
            "shards and replicated, too long, 2 ranks",
        ),
        (
            "leaves replicated gradients out of the norm",
            _clip(norm="squared.sqrt()"),
            "shards and replicated, too long, 1 rank",
        ),
        (
            "shortens the shards alone",
            _clip(scale="[gradient.mul_(max_norm / norm) for gradient in shards]"),
            "replicated, rank 0",
        ),
        (
            "the largest rank's norm",
            _clip(reduce="dist.all_reduce(squared, op=dist.ReduceOp.MAX)"),
            "shards alone, too long, 2 ranks",
        ),
        (
            "the mean over ranks",
            _clip(reduce="dist.all_reduce(squared); squared /= dist.get_world_size()"),
            "shards alone, too long, 2 ranks",
        ),
        ("no root", _clip(norm=f"squared + {_REPLICATED}"), "every rank returns the norm before"),
        (
            "lengthens short gradients",
            _clip(applies="norm > 0"),
            "that is short enough stays unchanged (shards alone, short enough",
        ),
        (
            "divides by a norm of zero",
            """
def clip_shards(shards, replicated, max_norm):
    squared = sum((g.square().sum() for g in shards), torch.zeros(()))
    dist.all_reduce(squared)
    norm = (squared + sum(one.square().sum() for one in replicated)).sqrt()
    for gradient in [*shards, *replicated]:
        gradient.copy_(gradient / norm * torch.minimum(norm, torch.tensor(max_norm)))
    return norm
""",
            "gradients that are zero",
        ),
        (
            "leaves new tensors in the lists",
            _clip(scale="for some in (shards, replicated): some[:] = [g * (max_norm / norm) for g in some]"),
            "tensors are changed in place",
        ),
        (
            "shortens a copy of a gradient that is not contiguous",
            _clip(scale="[g.reshape(-1).mul_(max_norm / norm) for g in [*shards, *replicated]]"),
            "a gradient that is not contiguous is shortened, too (shards alone, too long, 1 rank",
        ),
        (
            "new memory by .data",
            _clip(scale="for g in [*shards, *replicated]: g.data = g * (max_norm / norm)"),
            "tensors are changed in place (shards alone, too long)",
        ),
        (
            "raises a norm below 1 to 1",
            _clip(scale="[g.mul_(max_norm / max(float(norm), 1.0)) for g in [*shards, *replicated]]"),
            "is shortened to max_norm, in place (small gradients, 1 rank",
        ),
        (
            "adds an eps that is large for small norms",
            _clip(scale="[g.mul_(max_norm / (norm + 1e-4)) for g in [*shards, *replicated]]"),
            "is shortened to max_norm, in place (small gradients, 1 rank",
        ),
        (
            "compares the square",
            _clip(
                applies="norm**2 > max_norm",
                scale="[g.mul_(min(1.0, float(max_norm / norm))) for g in [*shards, *replicated]]",
            ),
            "is shortened to max_norm, in place (small gradients, 1 rank",
        ),
        (
            "counts only matrices",
            _clip(squared="sum((s.square().sum() for s in shards if s.ndim == 2), torch.zeros(()))"),
            "every rank returns the norm before, of the whole gradient (shards of one and of three dimensions, 1 rank",
        ),
        (
            "a rank without shards does not clip replicated gradients",
            _clip(applies="shards and norm > max_norm"),
            "is shortened to max_norm, in place (replicated alone",
        ),
        (
            "clips each tensor by its own norm",
            _clip(
                applies="True",
                scale="[g.mul_(min(1.0, float(max_norm / (g.norm() + 1e-9)))) for g in [*shards, *replicated]]",
            ),
            "is shortened to max_norm, in place (shards alone, too long, 1 rank",
        ),
        (
            "clips each number",
            _clip(scale="[g.clamp_(-max_norm, max_norm) for g in [*shards, *replicated]]"),
            "is shortened to max_norm, in place",
        ),
        (
            "returns the norm after",
            _clip(returned="torch.minimum(norm, torch.tensor(float(max_norm)))"),
            "every rank returns the norm before",
        ),
        ("returns the factor", _clip(returned="max_norm / norm"), "every rank returns the norm before"),
        ("returns nothing", _clip(returned="None"), "the norm is returned"),
        (
            "a rank without shards does not communicate",
            _clip(reduce="dist.all_reduce(squared) if shards else None"),
            "deadlock",
        ),
        (
            "an all-reduce for each shard",
            """
def clip_shards(shards, replicated, max_norm):
    total = torch.zeros(())
    for shard in shards:
        squared = shard.square().sum()
        dist.all_reduce(squared)
        total += squared
    norm = (total + sum(one.square().sum() for one in replicated)).sqrt()
    if norm > max_norm:
        for gradient in [*shards, *replicated]:
            gradient.mul_(max_norm / norm)
    return norm
""",
            "communications on 1 rank",
        ),
        (
            "sums absolute values",
            _clip(
                squared="sum((shard.abs().sum() for shard in shards), torch.zeros(()))",
                norm="squared + sum((one.abs().sum() for one in replicated), torch.zeros(()))",
            ),
            "every rank returns the norm before",
        ),
        (
            "shortens twice",
            _clip(scale="[g.mul_((max_norm / norm) ** 2) for g in [*shards, *replicated]]"),
            "is shortened to max_norm, in place",
        ),
        (
            "multiplies by max_norm alone",
            _clip(scale="[g.mul_(max_norm) for g in [*shards, *replicated]]"),
            "is shortened to max_norm, in place",
        ),
        (
            "decides by its own norm whether to clip",
            _clip(
                reduce="mine = float(squared.sqrt()); dist.all_reduce(squared)",
                applies="mine > max_norm",
            ),
            "(mostly replicated, 1 rank",
        ),
        (
            "gathers all gradients",
            """
def clip_shards(shards, replicated, max_norm):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, [shard.clone() for shard in shards])
    whole = [shard for some in every for shard in some] + list(replicated)
    norm = sum((one.square().sum() for one in whole), torch.zeros(())).sqrt()
    if norm > max_norm:
        for gradient in [*shards, *replicated]:
            gradient.mul_(max_norm / norm)
    return norm
""",
            "communications",
        ),
        (
            "uses the library's function",
            """
from lablib.batches import clipping

def clip_shards(shards, replicated, max_norm):
    params = [torch.nn.Parameter(one) for one in [*shards, *replicated]]
    for param, one in zip(params, [*shards, *replicated]):
        param.grad = one
    return clipping.clip_grad_norm_(params, max_norm, sharded_over=dist.group.WORLD, replicated=params[len(shards):])
""",
            "the answer is your own code",
        ),
    ],
    "signal_and_noise": [
        ("uses the large batch as the signal", _noise(signal="of_large"), "the signal is |G|^2 on average"),
        ("uses the small batches as the signal", _noise(signal="of_small"), "the signal is |G|^2 on average"),
        (
            "the naive noise too",
            _noise(noise="(of_small - of_large) * small", signal="of_large"),
            "the noise is tr(Sigma) on average",
        ),
        (
            "forgets the size of a part",
            _noise(
                noise="(of_small - of_large) / (1 - 1 / len(gradients))", signal="of_large - noise / len(gradients)"
            ),
            "81 batches of 2 parts of 2",
        ),
        ("the large batch has k examples", _noise(large="len(gradients)"), "81 batches of 2 parts of 2"),
        ("a sum over parts", _noise(of_small="gradients.square().sum()"), "the noise is tr(Sigma) on average"),
        (
            "a mean over weights",
            _noise(of_small="gradients.square().mean()", of_large="gradients.mean(0).square().mean()"),
            "the noise is tr(Sigma) on average",
        ),
        (
            "the mean of lengths, squared",
            _noise(of_small="gradients.norm(dim=1).mean() ** 2"),
            "the noise is tr(Sigma) on average",
        ),
        (
            "uses the sum of parts as the large batch",
            _noise(of_large="gradients.sum(0).square().sum()"),
            "the noise is tr(Sigma) on average",
        ),
        (
            "no signal below zero",
            _noise(signal="max(of_large - noise / large, 0 * noise)"),
            "the signal is |G|^2 on average",
        ),
        ("the signal's size", _noise(signal="abs(of_large - noise / large)"), "the signal is |G|^2 on average"),
        (
            "subtracts the noise of a small batch",
            _noise(signal="of_large - noise / small"),
            "the signal is |G|^2 on average",
        ),
        ("swaps the two", _noise(returned="noise, signal"), "the noise is tr(Sigma) on average"),
        ("returns their ratio", _noise(returned="noise / signal"), "signal and noise are returned"),
        ("returns nothing", _noise(returned="None"), "signal and noise are returned"),
        (
            "divides by k, not k - 1",
            _noise(noise="gradients.var(0, unbiased=False).sum() * small"),
            "the noise is tr(Sigma) on average",
        ),
        (
            "deviations that are not squared",
            _noise(noise="gradients.std(0).sum() * small"),
            "the noise is tr(Sigma) on average",
        ),
        ("the first part alone", _noise(of_small="gradients[0].square().sum()"), "the noise of these parts"),
        (
            "the first two parts alone",
            _noise(
                large="2 * part_size",
                of_small="gradients[:2].square().sum(1).mean()",
                of_large="gradients[:2].mean(0).square().sum()",
            ),
            "the noise of these parts",
        ),
        ("works in place", _noise(of_small="gradients.square_().sum(1).mean()"), "the input stays as it was"),
        ("adds the noise", _noise(signal="of_large + noise / large"), "the signal is |G|^2 on average"),
        (
            "uses the library's function",
            """
def signal_and_noise(gradients, part_size):
    found = noise_scale.estimate_from_parts(gradients, part_size)
    return found.signal, found.noise
""",
            "the answer is your own code",
        ),
    ],
    "wsd": [
        ("begins with 0", _wsd(warmup="step / num_warmup"), "in the warmup the factor is (s + 1) / (W + 1)"),
        (
            "reaches 1 in the warmup",
            _wsd(warmup="(step + 1) / num_warmup"),
            "in the warmup the factor is (s + 1) / (W + 1)",
        ),
        (
            "warmup one step too long",
            _wsd(is_warmup="step <= num_warmup", warmup="min(1.0, (step + 1) / (num_warmup + 2))"),
            "in the warmup",
        ),
        ("no warmup", _wsd(is_warmup="False"), "in the warmup"),
        ("constant in the warmup", _wsd(warmup="1 / (num_warmup + 1)"), "in the warmup"),
        ("whole numbers", _wsd(warmup="(step + 1) // (num_warmup + 1)"), "in the warmup"),
        ("decay reaches 0 at N - 1", _wsd(decay="(num_steps - 1 - step) / num_decay"), "in the decay"),
        ("decay begins below 1", _wsd(decay="(num_steps - step) / (num_decay + 1)"), "in the decay"),
        ("decay in whole numbers", _wsd(decay="(num_steps - step) // num_decay"), "in the decay"),
        (
            "decay begins one step late",
            _wsd(is_stable="step <= num_steps - num_decay", decay="(num_steps - step) / num_decay"),
            "no decay: N",
        ),
        (
            "a cosine",
            _wsd(decay="(1 + math.cos(math.pi * (step - num_steps + num_decay) / num_decay)) / 2"),
            "in the decay",
        ),
        ("a root", _wsd(decay="1 - math.sqrt((step - num_steps + num_decay) / num_decay)"), "in the decay"),
        ("no decay", _wsd(decay="1.0"), "in the decay"),
        (
            "decays right after the warmup",
            _wsd(is_stable="False", decay="(num_steps - step) / (num_steps - num_warmup)"),
            "between warmup and decay the factor is 1",
        ),
        (
            "uses num_decay as the step where decay begins",
            _wsd(is_stable="step < num_decay", decay="(num_steps - step) / max(1, num_steps - num_decay)"),
            "between warmup and decay",
        ),
        (
            "adds the warmup to the run",
            _wsd(is_stable="step < num_steps + num_warmup - num_decay"),
            "in the decay",
        ),
        ("goes below 0 after the run", _wsd(is_decay="True"), "from N on the factor is 0"),
        ("stays at 1 after the run", _wsd(end="1.0"), "from N on the factor is 0"),
        ("stays at its last factor after the run", _wsd(end="1 / max(1, num_decay)"), "from N on the factor is 0"),
        (
            "repeats the warmup after the run",
            _wsd(is_warmup="step % num_steps < num_warmup", warmup="(step % num_steps + 1) / (num_warmup + 1)"),
            "from N on the factor is 0",
        ),
        ("fails without decay", _wsd(is_stable="(num_steps - step) / num_decay > 1"), "ZeroDivisionError"),
        ("returns nothing in the stable part", _wsd(stable="None"), "a number"),
        (
            "uses the library's function",
            """
def wsd(step, num_steps, num_warmup, num_decay):
    from lablib.batches.schedules import warmup_stable_decay
    return warmup_stable_decay(step, num_steps, num_warmup, num_decay)
""",
            "the answer is your own code",
        ),
    ],
}

RIGHT_ANSWERS = {
    "accumulate": [
        (
            "weights torch's means by their tokens, and skips micro-batches without tokens",
            """
def accumulate(model, micro_batches):
    counts = [int((targets >= 0).sum()) for _, targets in micro_batches]
    total = 0.0
    for (inputs, targets), count in zip(micro_batches, counts):
        if count:
            mean = torch.nn.functional.cross_entropy(model(inputs).transpose(1, 2), targets)
            (mean * count / sum(counts)).backward()
            total += float(mean.detach()) * count / sum(counts)
    return total
""",
        ),
        (
            "hands 1 / N to backward, and returns a tensor",
            """
def accumulate(model, micro_batches):
    number = torch.stack([(y != IGNORED).sum() for _, y in micro_batches]).sum()
    total = 0
    for x, y in reversed(micro_batches):
        loss = summed_loss(model(x), y)
        loss.backward(gradient=(1 / number).to(loss.dtype))
        total = total + loss.detach()
    return total / number
""",
        ),
        (
            "autograd.grad, added by hand",
            """
def accumulate(model, micro_batches):
    params = [p for p in model.parameters() if p.requires_grad]
    tokens, total = sum((y != IGNORED).sum().item() for _, y in micro_batches), 0.0
    for x, y in micro_batches:
        loss = summed_loss(model(x), y) / tokens
        for p, g in zip(params, torch.autograd.grad(loss, params)):
            p.grad = g if p.grad is None else p.grad + g
        total += loss.item()
    return total
""",
        ),
    ],
    "clip_shards": [
        (
            "one all-gather of a number",
            """
def clip_shards(shards, replicated, max_norm):
    mine = torch.zeros(1, dtype=torch.float64)
    for shard in shards:
        mine += torch.linalg.vector_norm(shard, dtype=torch.float64) ** 2
    every = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    norm = (sum(every) + sum(one.double().square().sum() for one in replicated)).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in shards + replicated:
        gradient *= factor.to(gradient.dtype)
    return norm.item()
""",
        ),
        (
            "replicated gradients, divided by the number of ranks",
            """
def clip_shards(shards, replicated, max_norm):
    ranks = dist.get_world_size()
    squares = [shard.pow(2).sum() for shard in shards] + [one.pow(2).sum() / ranks for one in replicated]
    total = torch.stack(squares).sum() if squares else torch.tensor(0.0)
    work = dist.all_reduce(total, async_op=True)
    work.wait()
    norm = total.sqrt()
    scale = min(1.0, max_norm / norm.item()) if norm else 1.0
    for one in [*shards, *replicated]:
        one.copy_(one * scale)
    return norm
""",
        ),
        (
            "rank 0 alone counts replicated gradients",
            """
def clip_shards(shards, replicated, max_norm):
    counted = list(shards) + (list(replicated) if dist.get_rank() == 0 else [])
    total = sum([g.flatten() @ g.flatten() for g in (c.contiguous() for c in counted)], torch.zeros(()))
    dist.all_reduce(total)
    norm = float(total) ** 0.5
    if norm > max_norm:
        torch._foreach_mul_([*shards, *replicated], max_norm / norm)
    return norm
""",
        ),
    ],
    "signal_and_noise": [
        (
            "by the variance of the parts",
            """
def signal_and_noise(gradients, part_size):
    variance = gradients.var(0).sum()
    return (gradients.mean(0) ** 2).sum() - variance / len(gradients), part_size * variance
""",
        ),
        (
            "the trace of torch's covariance",
            """
def signal_and_noise(gradients, part_size):
    noise = part_size * torch.cov(gradients.T).trace()
    return gradients.mean(0).square().sum() - noise / (part_size * len(gradients)), noise
""",
        ),
        (
            "signal by products of different parts",
            """
def signal_and_noise(gradients, part_size):
    k = len(gradients)
    products = gradients @ gradients.T
    signal = (products.sum() - products.trace()) / (k * (k - 1))
    return [float(signal), float(part_size * (products.trace() / k - signal))]
""",
        ),
        (
            "a system of two equations",
            """
def signal_and_noise(gradients, part_size):
    b, k = part_size, len(gradients)
    system = torch.tensor([[1.0, 1 / b], [1.0, 1 / (k * b)]], dtype=torch.float64)
    squares = torch.stack([gradients.square().sum(1).mean(), gradients.mean(0).square().sum()]).double()
    return torch.linalg.solve(system, squares)
""",
        ),
    ],
    "wsd": [
        (
            "the least of three lines",
            """
def wsd(step, num_steps, num_warmup, num_decay):
    down = (num_steps - step) / num_decay if num_decay else float(step < num_steps)
    return max(0.0, min((step + 1) / (num_warmup + 1), 1.0, down))
""",
        ),
        (
            "by the steps that are left",
            """
def wsd(step, num_steps, num_warmup, num_decay):
    left = num_steps - step
    if left <= 0:
        return 0
    if step < num_warmup:
        return (step + 1) / (num_warmup + 1)
    return left / num_decay if left <= num_decay else 1
""",
        ),
        (
            "torch's numbers, in FP32",
            """
def wsd(step, num_steps, num_warmup, num_decay):
    down = (num_steps - step) / num_decay if num_decay else float(step < num_steps)
    return torch.tensor([(step + 1) / (num_warmup + 1), down]).clamp(0, 1).min().item()
""",
        ),
        (
            "torch's numbers",
            """
def wsd(step, num_steps, num_warmup, num_decay):
    up, down = (step + 1) / (num_warmup + 1), (num_steps - step) / max(num_decay, 1)
    return torch.tensor([up, down], dtype=torch.float64).clamp(0, 1).min()
""",
        ),
    ],
}
