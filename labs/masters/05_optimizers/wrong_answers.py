"""Wrong answers to lab 05: optimizers, and unusual right ones."""

_ADAMW = """
def adamw_step(w, g, state, lr, betas, eps, decay):
    beta1, beta2 = betas
    {first}
    {count}
    state["m"] = {m}
    state["v"] = {v}
    m = {m_hat}
    v = {v_hat}
    {step}
"""
_STEP = "w.sub_(lr * decay * w + lr * m / (v.sqrt() + eps))"


def _adamw(
    first: str = "pass",
    count: str = 'state["t"] += 1',
    m: str = 'beta1 * state["m"] + (1 - beta1) * g',
    v: str = 'beta2 * state["v"] + (1 - beta2) * g**2',
    m_hat: str = 'state["m"] / (1 - beta1 ** state["t"])',
    v_hat: str = 'state["v"] / (1 - beta2 ** state["t"])',
    step: str = _STEP,
) -> str:
    return _ADAMW.format(first=first, count=count, m=m, v=v, m_hat=m_hat, v_hat=v_hat, step=step)


_QUANTIZE = """
def quantize_state(x, values, block):
    {first}
    flat = {flat}
    padded = {padded}
    scales = {scales}
    scales = {safe}
    codes = {codes}
    return {returned}
"""


def _quantize(
    first: str = "pass",
    flat: str = "x.flatten()",
    padded: str = "nn.functional.pad(flat, (0, -len(flat) % block)).view(-1, block)",
    scales: str = "padded.abs().amax(dim=1)",
    safe: str = "torch.where(scales > 0, scales, 1.0)",
    codes: str = "torch.bucketize(padded / scales[:, None], (values[:-1] + values[1:]) / 2)",
    returned: str = "codes.flatten()[: len(flat)].view(x.shape).to(torch.uint8), scales",
) -> str:
    return _QUANTIZE.format(
        first=first, flat=flat, padded=padded, scales=scales, safe=safe, codes=codes, returned=returned
    )


_ORTHOGONAL = """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = {abc}
    is_tall = {tall}
    x = x.T if is_tall else x
    x = {divided}
    for _ in range({steps}):
        gram = {gram}
        x = {new}
    return {returned}
"""


def _orthogonal(
    abc: str = "coefficients",
    tall: str = "x.shape[0] > x.shape[1]",
    divided: str = "x / x.norm().clamp(min=1e-30)",
    steps: str = "num_steps",
    gram: str = "x @ x.T",
    new: str = "a * x + (b * gram + c * gram @ gram) @ x",
    returned: str = "x.T if is_tall else x",
) -> str:
    return _ORTHOGONAL.format(abc=abc, tall=tall, divided=divided, steps=steps, gram=gram, new=new, returned=returned)


_CHOOSE = """
def choose_optimizer(losses, need, budget, margin):
    def is_good(name, best):
        apart = {apart}
        half_width = {half}
        return {good}

    fitting = {fitting}
    if not fitting:
        return {none}
    best = {best}
    as_good = {as_good}
    return {chosen}
"""


def _choose(
    apart: str = "[a - b for a, b in zip(losses[name], losses[best], strict=True)]",
    half: str = "T[len(apart)] * statistics.stdev(apart) / math.sqrt(len(apart))",
    good: str = "statistics.mean(apart) + half_width <= margin",
    fitting: str = "[name for name in losses if need[name] <= budget]",
    none: str = "None",
    best: str = "min(fitting, key=lambda name: statistics.mean(losses[name]))",
    as_good: str = "[name for name in fitting if is_good(name, best)]",
    chosen: str = "min(as_good, key=lambda name: (need[name], statistics.mean(losses[name])))",
) -> str:
    return _CHOOSE.format(
        apart=apart, half=half, good=good, fitting=fitting, none=none, best=best, as_good=as_good, chosen=chosen
    )


WRONG_ANSWERS = {
    "adamw_step": [
        (
            "keeps m in float64 for any w",
            _adamw(m='beta1 * state["m"].double() + (1 - beta1) * g'),
            "m has the type of w",
        ),
        (
            "keeps v in float64 for any w",
            _adamw(v='beta2 * state["v"] + (1 - beta2) * g.double() ** 2'),
            "v has the type of w",
        ),
        (
            "keeps one m for all weights of a shape",
            "KEPT = {}\n"
            + _adamw(m='KEPT.setdefault(tuple(w.shape), state["m"].clone()).mul_(beta1).add_(g, alpha=1 - beta1)'),
            "",
        ),
        ("has an eps of at least 1e-8", _adamw(first="eps = max(eps, 1e-8)"), "w matches the formula"),
        ("adds the decay to the gradient: L2", _adamw(first="g = g + decay * w"), "alone: decay is not part of it"),
        (
            "adds the decay to the gradient of the second mean alone",
            _adamw(v='beta2 * state["v"] + (1 - beta2) * (g + decay * w) ** 2'),
            "v is a running mean of the gradients' squares alone: decay is not part of it",
        ),
        (
            "divides the decay with the gradient",
            _adamw(step="w.sub_(lr * (m + decay * w) / (v.sqrt() + eps))"),
            "the decay went through the division, as L2 does",
        ),
        (
            "corrects nothing",
            _adamw(m_hat='state["m"]', v_hat='state["v"]'),
            "nothing were corrected for the start at zero",
        ),
        ("corrects v alone", _adamw(m_hat='state["m"]'), "m were not corrected"),
        ("corrects m alone", _adamw(v_hat='state["v"]'), "v were not corrected"),
        (
            "corrects m with the other beta",
            _adamw(m_hat='state["m"] / (1 - beta2 ** state["t"])'),
            "w matches the formula",
        ),
        (
            "puts eps into the root",
            _adamw(step=_STEP.replace("(v.sqrt() + eps)", "(v + eps).sqrt()")),
            "inside the root",
        ),
        (
            "adds eps before the correction",
            _adamw(
                v_hat='(state["v"].sqrt() + eps) / (1 - beta2 ** state["t"]) ** 0.5',
                step="w.sub_(lr * decay * w + lr * m / v)",
            ),
            "eps were added before the correction of v",
        ),
        ("forgets the root", _adamw(step=_STEP.replace("v.sqrt()", "v")), "there were no root"),
        ("forgets eps", _adamw(step=_STEP.replace(" + eps", "")), "there were no eps"),
        ("forgets the decay", _adamw(step=_STEP.replace("lr * decay * w + ", "")), "there were no decay"),
        (
            "does not multiply the decay by the rate",
            _adamw(step=_STEP.replace("lr * decay", "decay")),
            "the decay were not multiplied by lr",
        ),
        (
            "decays with the wrong sign",
            _adamw(step=_STEP.replace("lr * decay", "-lr * decay")),
            "the decay grew the weights",
        ),
        (
            "decays after the step",
            _adamw(step="w.sub_(lr * m / (v.sqrt() + eps)); w.mul_(1 - lr * decay)"),
            "the decay took its share of the new w",
        ),
        ("goes uphill", _adamw(step=_STEP.replace("+ lr * m", "- lr * m")), "the step went uphill"),
        ("does not count", _adamw(count="state['t'] = 1"), "t counts the steps"),
        (
            "counts from zero",
            _adamw(
                count="pass",
                m_hat='state["m"] / (1 - beta1 ** (state["t"] + 1))',
                v_hat='state["v"] / (1 - beta2 ** (state["t"] + 1))',
            ),
            "t counts the steps",
        ),
        (
            "counts after the step",
            _adamw(count="state['t'] += 2"),
            "t counts the steps, with this one",
        ),
        (
            "works in float32",
            _adamw(first="w, g = w, g.float()"),
            "m is a running mean",
        ),
        (
            "keeps m and v outside the state",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    state["t"] += 1
    if state["t"] == 1:
        adamw_step.m, adamw_step.v = torch.zeros_like(w), torch.zeros_like(w)
    adamw_step.m = betas[0] * adamw_step.m + (1 - betas[0]) * g
    adamw_step.v = betas[1] * adamw_step.v + (1 - betas[1]) * g * g
    m, v = adamw_step.m / (1 - betas[0] ** state["t"]), adamw_step.v / (1 - betas[1] ** state["t"])
    w.sub_(lr * decay * w + lr * m / (v.sqrt() + eps))
""",
            "m is a running mean",
        ),
        (
            "moves w to other memory",
            _adamw(step="w.data = w - lr * decay * w - lr * m / (v.sqrt() + eps)"),
            "memory",
        ),
        (
            "changes a copy where w is not contiguous",
            _adamw(step="w.reshape(-1).sub_((lr * decay * w + lr * m / (v.sqrt() + eps)).reshape(-1))"),
            "w itself changes (a transposed w",
        ),
        (
            "keeps m, v and t in the notebook, reset where t is 0",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    if state["t"] == 0:
        own.update(t=0, m=torch.zeros_like(w), v=torch.zeros_like(w))
    own["t"] += 1
    own["m"] = betas[0] * own["m"] + (1 - betas[0]) * g
    own["v"] = betas[1] * own["v"] + (1 - betas[1]) * g**2
    state.update(own)
    m, v = own["m"] / (1 - betas[0] ** own["t"]), own["v"] / (1 - betas[1] ** own["t"])
    w.sub_(lr * decay * w + lr * m / (v.sqrt() + eps))


own = {}
""",
            "a state from a file",
        ),
        (
            "keeps the powers of beta in the notebook",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    if state["t"] == 0:
        powers[:] = 1.0, 1.0
    state["t"] += 1
    for i in (0, 1):
        powers[i] *= betas[i]
    state["m"] = betas[0] * state["m"] + (1 - betas[0]) * g
    state["v"] = betas[1] * state["v"] + (1 - betas[1]) * g**2
    w.sub_(lr * decay * w + lr * state["m"] / (1 - powers[0]) / ((state["v"] / (1 - powers[1])).sqrt() + eps))


powers = [1.0, 1.0]
""",
            "w matches the formula (a transposed w, a state from a file",
        ),
        (
            "corrects in the first five steps alone",
            _adamw(
                m_hat='state["m"] / (1 - beta1 ** state["t"] if state["t"] < 6 else 1)',
                v_hat='state["v"] / (1 - beta2 ** state["t"] if state["t"] < 6 else 1)',
            ),
            "nothing were corrected for the start at zero",
        ),
        ("does not decay vectors", _adamw(first="decay = decay if w.ndim != 1 else 0"), "there were no decay"),
        ("clips the gradient", _adamw(first="g = g.clamp(-10, 10)"), "then large gradients"),
        (
            "clips the quotient",
            _adamw(step="w.sub_(lr * decay * w + lr * (m / (v.sqrt() + eps)).clamp(-1.2, 1.2))"),
            "then large gradients",
        ),
        (
            "takes the root in float32",
            _adamw(step=_STEP.replace("v.sqrt()", "v.float().sqrt()")),
            "the accuracy of float32",
        ),
        (
            "steps by the sign where there are no means",
            _adamw(step="w.sub_(lr * decay * w + lr * (m.sign() if beta1 == 0 else m / (v.sqrt() + eps)))"),
            "without means",
        ),
        (
            "calls torch's fused operator",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    state["t"] += 1
    torch._fused_adamw_(
        [w], [g], [state["m"]], [state["v"]], [], [torch.tensor(float(state["t"]))], lr=lr, beta1=betas[0],
        beta2=betas[1], weight_decay=decay, eps=eps, amsgrad=False, maximize=False,
    )
""",
            "it uses torch._fused_adamw_",
        ),
        (
            "calls a function of torch.optim",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    from torch.optim.adam import _single_tensor_adam

    t = torch.tensor(float(state["t"]))
    _single_tensor_adam(
        [w], [g], [state["m"]], [state["v"]], [], [t], None, None, amsgrad=False, has_complex=False, lr=lr,
        beta1=betas[0], beta2=betas[1], weight_decay=decay, eps=eps, maximize=False, capturable=False,
        differentiable=False, decoupled_weight_decay=True,
    )
    state["t"] += 1
""",
            "it uses torch.optim.adam._single_tensor_adam",
        ),
        (
            "finds torch's class by its name as a string",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    made = getattr(torch.optim, "Adam" + "W")
    weight = torch.nn.Parameter(w)
    weight.grad = g
    optimizer = made([weight], lr=lr, betas=betas, eps=eps, weight_decay=decay)
    kept = {"step": torch.tensor(float(state["t"])), "exp_avg": state["m"], "exp_avg_sq": state["v"]}
    optimizer.state[weight] = kept
    optimizer.step()
    state["t"] += 1
""",
            "it uses torch.optim as a whole",
        ),
        ("swaps the betas", _adamw(first="beta1, beta2 = beta2, beta1"), "m is a running mean"),
        ("mixes up beta and 1 - beta", _adamw(m='(1 - beta1) * state["m"] + beta1 * g'), "m is a running mean"),
        ("sums momentum", _adamw(m='beta1 * state["m"] + g'), "m is a running mean"),
        ("squares the mean", _adamw(v='beta2 * state["v"] + (1 - beta2) * state["m"] ** 2'), "v is a running mean"),
        ("forgets the square", _adamw(v='beta2 * state["v"] + (1 - beta2) * g.abs()'), "v is a running mean"),
        ("makes a new w", _adamw(step="w = w - lr * decay * w - lr * m / (v.sqrt() + eps)"), "w itself changes"),
        (
            "returns the new w",
            _adamw(step="return w - lr * decay * w - lr * m / (v.sqrt() + eps)"),
            "a new tensor was returned",
        ),
        ("works in the gradient", _adamw(first="g.mul_(1.0).add_(decay * w)"), "the gradient stays unchanged"),
        (
            "calls torch's optimizer",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    weight = torch.nn.Parameter(w.clone())
    weight.grad = g
    optimizer = torch.optim.AdamW([weight], lr=lr, betas=betas, eps=eps, weight_decay=decay)
    if state["t"]:
        optimizer.state[weight] = {
            "step": torch.tensor(float(state["t"])), "exp_avg": state["m"].clone(), "exp_avg_sq": state["v"].clone()
        }
    optimizer.step()
    kept = optimizer.state[weight]
    if kept:
        state.update(t=int(kept["step"]), m=kept["exp_avg"], v=kept["exp_avg_sq"])
    w.copy_(weight.detach())
""",
            "it uses torch.optim",
        ),
        (
            "calls the library",
            """
from lablib.optim.adamw import AdamW

def adamw_step(w, g, state, lr, betas, eps, decay):
    weight = nn.Parameter(w)
    weight.grad = g
    AdamW([weight], lr=lr, betas=betas, eps=eps, weight_decay=decay).step()
""",
            "your own code",
        ),
    ],
    "quantize_state": [
        (
            "reuses its codes from call to call",
            "OUT = {}\n"
            + _quantize(
                returned="OUT.setdefault(x.shape, torch.empty(x.shape, dtype=torch.uint8)).copy_("
                "codes.flatten()[: len(flat)].view(x.shape)), scales"
            ),
            "codes and scales of the call before stay unchanged",
        ),
        (
            "reuses its scales from call to call",
            "OUT = {}\n"
            + _quantize(
                returned="codes.flatten()[: len(flat)].view(x.shape).to(torch.uint8), "
                "OUT.setdefault(len(scales), torch.empty(len(scales))).copy_(scales)"
            ),
            "codes and scales of the call before stay unchanged",
        ),
        (
            "one scale for all",
            _quantize(scales="padded.abs().amax().expand(len(padded))"),
            "a scale is the largest |x|",
        ),
        ("forgets the absolute value", _quantize(scales="padded.amax(dim=1)"), "a scale is the largest |x|"),
        ("takes the mean as scale", _quantize(scales="padded.abs().mean(dim=1)"), "a scale is the largest |x|"),
        (
            "divides by zero in a block of zeros",
            _quantize(safe="scales"),
            "the scale of a block of zeros is 1",
        ),
        ("adds a little to all scales", _quantize(safe="scales + 1e-3"), "a scale is the largest |x|"),
        (
            "bounds scales from below",
            _quantize(safe="torch.where(scales > 0, scales.clamp(min=1e-8), 1.0)"),
            "a scale is the largest |x|",
        ),
        (
            "takes the next value above",
            _quantize(codes="torch.bucketize(padded / scales[:, None], values).clamp(max=len(values) - 1)"),
            "a code is the index of the nearest value",
        ),
        (
            "takes the next value below",
            _quantize(codes="(torch.bucketize(padded / scales[:, None], values, right=True) - 1).clamp(min=0)"),
            "a code is the index of the nearest value",
        ),
        (
            "spaces the values evenly",
            _quantize(codes="((padded / scales[:, None] + 1) / 2 * (len(values) - 1)).round()"),
            "a code is the index of the nearest value",
        ),
        (
            "multiplies by the scale",
            _quantize(codes="torch.bucketize(padded * scales[:, None], (values[:-1] + values[1:]) / 2)"),
            "a code is the index of the nearest value",
        ),
        (
            "drops the incomplete last block",
            _quantize(padded="flat[: len(flat) // block * block].view(-1, block)"),
            "is invalid for input of size",
        ),
        (
            "pads with ones",
            _quantize(padded="nn.functional.pad(flat, (0, -len(flat) % block), value=1e3).view(-1, block)"),
            "a scale is the largest |x|",
        ),
        (
            "cuts rows, not the flat x",
            _quantize(flat="(x.T if x.ndim == 2 else x).flatten()"),
            "a scale is the largest",
        ),
        (
            "returns flat codes",
            _quantize(returned="codes.flatten()[: len(flat)].to(torch.uint8), scales"),
            "shape of x",
        ),
        ("keeps the padding", _quantize(returned="codes.to(torch.uint8), scales"), "codes have the shape of x"),
        (
            "keeps the padding alive behind a view",
            _quantize(returned="codes.to(torch.uint8).flatten()[: len(flat)].view(x.shape), scales"),
            "the codes keep no padding alive",
        ),
        (
            "keeps all |x| alive behind the scales",
            _quantize(scales="padded.abs().sort(dim=1).values[:, -1]", safe="scales.masked_fill_(scales == 0, 1.0)"),
            "the scales keep no other tensor alive",
        ),
        (
            "takes 1 for a tiny scale",
            _quantize(safe="torch.where(scales > 1e-30, scales, 1.0)"),
            "(very small numbers",
        ),
        (
            "rounds the borders",
            _quantize(
                codes="torch.bucketize(padded / scales[:, None], ((values[:-1] + values[1:]) / 2).round(decimals=8))"
            ),
            "(close to the middle of two values",
        ),
        (
            "keeps the borders from call to call",
            _quantize(
                codes="torch.bucketize(padded / scales[:, None], "
                "kept.setdefault((len(values), float(values[0])), (values[:-1] + values[1:]) / 2))"
            )
            + "\n\nkept = {}\n",
            "and as many again",
        ),
        ("takes the first 1,000 numbers", _quantize(flat="x.flatten()[:1000]"), "is invalid for input of size 1000"),
        (
            "returns codes of eight bytes",
            _quantize(returned="codes.flatten()[: len(flat)].view(x.shape), scales"),
            "a code takes one byte",
        ),
        (
            "returns the numbers, not the codes",
            _quantize(returned="(values[codes] * scales[:, None]).flatten()[: len(flat)].view(x.shape), scales"),
            "a code takes one byte",
        ),
        ("returns only the codes", _quantize(returned="codes.to(torch.uint8)"), "codes and scales are returned"),
        ("works in the input's memory", _quantize(first="x.div_(2.0)"), "the input stays as it was"),
        (
            "returns one scale per number",
            _quantize(
                returned=("codes.flatten()[: len(flat)].view(x.shape).to(torch.uint8), scales.repeat_interleave(block)")
            ),
            "there is one scale per block",
        ),
        (
            "calls the library",
            """
def quantize_state(x, values, block):
    from lablib.optim import blockwise

    return blockwise.quantize(x, blockwise.blocks(True, block))
""",
            "your own code",
        ),
    ],
    "orthogonalize": [
        (
            "multiplies as the formula is written",
            _orthogonal(new="a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x"),
            "FLOPs of torch's products",
        ),
        (
            "multiplies X once too often",
            _orthogonal(new="a * x + b * gram @ x + c * gram @ gram @ x"),
            "FLOPs of torch's products",
        ),
        ("forgets the norm", _orthogonal(divided="x.clone()"), "x over its norm"),
        ("divides by the largest number", _orthogonal(divided="x / x.abs().max().clamp(min=1e-30)"), "x over its norm"),
        (
            "divides by the mean square",
            _orthogonal(divided="x / x.square().mean().sqrt().clamp(min=1e-30)"),
            "x over its norm",
        ),
        ("divides by the norm of rows", _orthogonal(divided="x / x.norm(dim=1, keepdim=True)"), "x over its norm"),
        (
            "computes U V^T",
            """
def orthogonalize(x, num_steps, coefficients):
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm().clamp(min=1e-30)
    a, b, c = coefficients
    for _ in range(num_steps):
        s = a * s + b * s**3 + c * s**5
    return u * s @ vh
""",
            "no decomposition",
        ),
        (
            "decomposes in numpy",
            """
def orthogonalize(x, num_steps, coefficients):
    import numpy as np

    u, s, vh = np.linalg.svd(x.numpy(), full_matrices=False)
    s = s / max(float((s**2).sum() ** 0.5), 1e-300)
    a, b, c = coefficients
    for _ in range(num_steps):
        s = a * s + b * s**3 + c * s**5
    return torch.from_numpy(u * s @ vh).to(x.dtype)
""",
            "at least",
        ),
        ("makes zeros NaN", _orthogonal(divided="x / x.norm()"), "a matrix of zeros"),
        ("adds a large eps", _orthogonal(divided="x / (x.norm() + 1e-6)"), "up to 1e-7 may be added"),
        ("bounds the norm at 1e-6", _orthogonal(divided="x / x.norm().clamp(min=1e-6)"), "very small numbers"),
        (
            "one step too few",
            _orthogonal(steps="num_steps - 1"),
            "follow the polynomial (only a",
        ),
        ("one step too many", _orthogonal(steps="num_steps + 1"), "x over its norm"),
        ("always five steps", _orthogonal(steps="5"), "x over its norm"),
        ("uses fixed coefficients", _orthogonal(abc="(3.4445, -4.7750, 2.0315)"), "(only a"),
        ("forgets the fifth power", _orthogonal(new="a * x + b * gram @ x"), "(one step"),
        ("squares elementwise", _orthogonal(new="a * x + (b * gram + c * gram**2) @ x"), "(one step"),
        ("cubes elementwise", _orthogonal(new="a * x + b * x**3 + c * x**5"), "(a and b"),
        ("mixes up b and c", _orthogonal(new="a * x + (c * gram + b * gram @ gram) @ x"), "(a and b"),
        ("forgets the first power", _orthogonal(new="(b * gram + c * gram @ gram) @ x"), "(only a"),
        (
            "divides again in each step",
            _orthogonal(gram="(x := x / x.norm().clamp(min=1e-30)) @ x.T"),
            "(several steps",
        ),
        ("begins a tall matrix with the large product", _orthogonal(tall="False"), "FLOPs of torch's products"),
        (
            "treats a matrix as tall from two extra rows on",
            _orthogonal(tall="x.shape[0] > x.shape[1] + 1"),
            "FLOPs of torch's products (a tall matrix, nearly square",
        ),
        ("at most five steps", _orthogonal(steps="min(num_steps, 5)"), "(a tall matrix, nearly square"),
        (
            "works in BF16 where x is float32",
            _orthogonal(
                divided="(x / x.norm().clamp(min=1e-30)).to("
                "torch.bfloat16 if x.dtype == torch.float32 else x.dtype).to(x.dtype)"
            ),
            "(float32",
        ),
        ("transposes wide ones", _orthogonal(tall="x.shape[0] < x.shape[1]"), "FLOPs of torch's products"),
        ("leaves a tall one transposed", _orthogonal(returned="x"), "the shape of the result is that of the input"),
        (
            "has a seventh power",
            _orthogonal(new="a * x + b * gram @ x + c * gram @ (gram @ (gram @ x))"),
            "FLOPs of torch's products",
        ),
        (
            "works in BF16, as Muon",
            _orthogonal(divided="(x / x.norm().clamp(min=1e-30)).bfloat16().to(x.dtype)"),
            "x over",
        ),
        ("changes the type", _orthogonal(returned="(x.T if is_tall else x).float()"), "the type of the result"),
        ("works in place", _orthogonal(divided="x.div_(x.norm().clamp(min=1e-30))"), "the result is a new tensor"),
        (
            "calls the library",
            "from lablib.optim.newton_schulz import newton_schulz\n\n"
            "def orthogonalize(x, n, abc):\n    return newton_schulz(x, n, abc)",
            "it uses optim.newton_schulz",
        ),
    ],
    "muon_step": [
        (
            "Muon takes every matrix",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2:
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "AdamW takes the embeddings, the head and the vectors",
        ),
        (
            "Muon takes all but the embedding",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or "embedding" in name:
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "AdamW takes the embeddings, the head and the vectors",
        ),
        (
            "knows the names of two weights outside",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or name in ("token_embedding.weight", "head.weight"):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "AdamW takes the embeddings, the head and the vectors",
        ),
        (
            "AdamW steps weights without a gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        if g is None:
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "weights without a gradient stay as they are",
        ),
        (
            "decays weights without a gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            w.mul_(1 - lr * decay)
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "weights without a gradient stay as they are",
        ),
        (
            "a new B in each step",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.setdefault(name, torch.zeros_like(w))
        mean = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * mean + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "the new B were not stored in means",
        ),
        (
            "B in float32",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        means.setdefault(name, torch.zeros(w.shape)).mul_(mu).add_(g, alpha=1 - mu)
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "B has the type of w",
        ),
        (
            "Muon takes vectors of blocks",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "Muon takes matrices",
        ),
        (
            "forgets the vectors",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            if w.ndim == 2:
                adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "AdamW takes the embeddings, the head and the vectors",
        ),
        (
            "AdamW takes all",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if True:
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "given to it",
        ),
        (
            "without Nesterov",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(means[name])
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "B were used without Nesterov",
        ),
        (
            "orthogonalizes the gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "the gradient were used without the mean",
        ),
        (
            "Nesterov as in torch's SGD",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "Nesterov added all of g",
        ),
        (
            "Nesterov with the old B",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * old + (1 - mu) ** 2 * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "Nesterov used the old B",
        ),
        (
            "keeps Nesterov's part in B",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        means[name] = mu * means[name] + (1 - mu) * g
        direction = orthogonalize(means[name])
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "Nesterov's part were kept in it",
        ),
        (
            "B is a sum",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + g
        direction = orthogonalize(mu * means[name] + g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "B is a running mean",
        ),
        (
            "exchanges mu and 1 - mu",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = (1 - mu) * old + mu * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "were exchanged",
        ),
        (
            "no scale",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 1.0
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "the scale were 1",
        ),
        (
            "a scale of 0.2",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "the scale were 0.2",
        ),
        (
            "an rms of 1",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "the rms were 1",
        ),
        (
            "the number of rows",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(w.shape[0])
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "shorter side",
        ),
        (
            "the number of columns",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(w.shape[1])
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "shorter side",
        ),
        (
            "the first convention, sqrt(max(1, m / n))",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = math.sqrt(max(1, w.shape[0] / w.shape[1]))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "sqrt(max(1, m / n))",
        ),
        (
            "no root",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * max(w.shape)
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "no root",
        ),
        (
            "the product of both sides",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(w.numel())
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "w follows the formula",
        ),
        (
            "no decay",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * scale * direction)
""",
            "there were no decay",
        ),
        (
            "decay without the rate",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(decay * w + lr * scale * direction)
""",
            "not multiplied by lr",
        ),
        (
            "decay of the new w",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * scale * direction)
        w.sub_(lr * decay * w)
""",
            "share of the new w",
        ),
        (
            "decay within N",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(decay * w + mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * scale * direction)
""",
            "w follows the formula",
        ),
        (
            "decays AdamW's weights, too",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        w.mul_(1 - lr * decay)
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * scale * direction)
""",
            "AdamW alone changes its weights",
        ),
        (
            "a step uphill",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w - lr * scale * direction)
""",
            "uphill",
        ),
        (
            "the update itself, without directions",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = mu * means[name] + (1 - mu) * g
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "calls of orthogonalize",
        ),
        (
            "a new tensor for the weight",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        param.data = w - lr * decay * w - lr * scale * direction
""",
            "weights change in place",
        ),
        (
            "a local variable",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w = w - lr * decay * w - lr * scale * direction
""",
            "nothing were done",
        ),
        (
            "overwrites the gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = g.mul_(1 - mu).add_(mu * old)
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "",
        ),
        (
            "keeps m and v of AdamW, too",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        means.setdefault(name + '.square', torch.zeros_like(w))
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "means are kept of Muon's weights alone",
        ),
        (
            "keeps a mean for every weight",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "means are kept of Muon's weights alone",
        ),
        (
            "takes weights without a gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        g = torch.zeros_like(w) if g is None else g
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "weights without a gradient stay as they are",
        ),
        (
            "stops at the first weight without a gradient",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            break
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize(mu * means[name] + (1 - mu) * g)
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "",
        ),
        (
            "in single precision",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim != 2 or not name.startswith("blocks."):
            adamw(name)
            continue
        old = means.get(name, torch.zeros_like(w))
        means[name] = mu * old + (1 - mu) * g
        direction = orthogonalize((mu * means[name] + (1 - mu) * g).float())
        scale = 0.2 * math.sqrt(max(w.shape))
        w.sub_(lr * decay * w + lr * scale * direction)
""",
            "N has the type of w",
        ),
        (
            "calls torch's Muon",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    params = {n: p for n, p in model.named_parameters() if p.ndim == 2 and "blocks" in n}
    torch.optim.Muon(params.values(), lr, decay, mu, adjust_lr_fn="match_rms_adamw").step()
""",
            "your own code",
        ),
    ],
    "choose_optimizer": [
        (
            "rounds the need to a tenth",
            _choose(fitting="[name for name in losses if round(need[name], 1) <= budget]"),
            "a hundredth of a byte over the budget is out",
        ),
        (
            "takes the least bytes times loss",
            _choose(chosen="min(as_good, key=lambda name: need[name] * statistics.mean(losses[name]))"),
            "",
        ),
        (
            "does not look at the budget",
            _choose(fitting="list(losses)"),
            "an optimizer that needs more than the budget is out",
        ),
        (
            "takes only a need below the budget",
            _choose(fitting="[name for name in losses if need[name] < budget]"),
            "an optimizer that needs exactly the budget fits",
        ),
        (
            "takes the smallest where nothing fits",
            _choose(none="min(need, key=need.get)"),
            "None if nothing fits",
        ),
        ("takes only the best", _choose(as_good="[best]"), "of those as good the one with fewest bytes is taken"),
        (
            "takes the fewest bytes of all",
            _choose(as_good="fitting"),
            "of clearly different losses the best is taken",
        ),
        (
            "does not count the best as good",
            _choose(as_good="[name for name in fitting if name != best and is_good(name, best)] or [best]"),
            "the best is taken if it needs fewest bytes",
        ),
        (
            "takes the most bytes",
            _choose(chosen="max(as_good, key=lambda name: need[name])"),
            "the best is taken if it needs fewest bytes",
        ),
        (
            "compares means with both spreads: not seed by seed",
            _choose(
                half="T[len(apart)] * math.hypot(*(statistics.stdev(losses[n]) for n in (name, best)))"
                " / math.sqrt(len(apart))",
                good="name == best or statistics.mean(apart) + half_width <= margin",
            ),
            "the effect of a seed on all losses cancels",
        ),
        (
            "asks whether the interval holds 0",
            _choose(good="abs(statistics.mean(apart)) <= half_width"),
            "0.01 on each seed, within the margin",
        ),
        (
            "compares the mean with the margin",
            _choose(good="statistics.mean(apart) <= margin"),
            "its mean below it",
        ),
        (
            "compares the lower end with the margin",
            _choose(good="statistics.mean(apart) - half_width <= margin"),
            "its mean above it",
        ),
        (
            "uses a fixed margin: 1",
            _choose(good="statistics.mean(apart) + half_width <= 1"),
            "0.01 on each seed, beyond the margin",
        ),
        (
            "divides by n",
            _choose(half="T[len(apart)] * statistics.stdev(apart) / len(apart)"),
            "an interval that holds 0 and ends beyond",
        ),
        (
            "takes the deviation of a population",
            _choose(half="T[len(apart)] * statistics.pstdev(apart) / math.sqrt(len(apart))"),
            "an interval that ends at 1.03 of the margin",
        ),
        (
            "takes 1.96 for t",
            _choose(half="1.96 * statistics.stdev(apart) / math.sqrt(len(apart))"),
            "differences that spread widely",
        ),
        (
            "forgets the root of n",
            _choose(half="T[len(apart)] * statistics.stdev(apart)"),
            "as good as the second best",
        ),
        (
            "takes t of three seeds",
            _choose(half="4.303 * statistics.stdev(apart) / math.sqrt(len(apart))"),
            "as good as the second best",
        ),
        (
            "compares with the best of all",
            _choose(as_good="[n for n in fitting if is_good(n, min(losses, key=lambda n: sum(losses[n])))] or [best]"),
            "not the best of all",
        ),
        (
            "chains from one that is as good to the next",
            _choose(
                as_good="[name for name in fitting if any("
                "is_good(name, o) and (is_good(o, best) or o == best) for o in fitting)]"
            ),
            "as good as the second best",
        ),
        (
            "takes any of equal bytes",
            _choose(chosen="max(as_good, key=lambda name: (-need[name], statistics.mean(losses[name])))"),
            "at equal bytes the lower mean loss is taken",
        ),
        (
            "rejects equal losses",
            _choose(good="name == best or statistics.mean(apart) + half_width < margin"),
            "equal losses are as good",
        ),
        (
            "takes the median for the best",
            _choose(best="min(fitting, key=lambda name: statistics.median(losses[name]))"),
            "its middle loss does not count",
        ),
        (
            "takes the first seed's for the best",
            _choose(best="min(fitting, key=losses.get)"),
            "its first loss does not count",
        ),
        (
            "takes the worst seed's for the best",
            _choose(best="min(fitting, key=lambda name: max(losses[name]))"),
            "its worst loss does not count",
        ),
        (
            "takes the least seed's for the best",
            _choose(best="min(fitting, key=lambda name: min(losses[name]))"),
            "its least loss does not count",
        ),
        (
            "requires to be as good as all better ones",
            _choose(
                as_good="[n for n in fitting if all(statistics.mean(losses[n]) <= statistics.mean(losses[o]) "
                "or is_good(n, o) for o in fitting)]"
            ),
            "compared with the best alone",
        ),
        (
            "takes differences of sorted losses",
            _choose(apart="[a - b for a, b in zip(sorted(losses[name]), sorted(losses[best]), strict=True)]"),
            "differences are taken seed by seed",
        ),
        (
            "at equal bytes takes the lower loss on the first seed",
            _choose(chosen="min(as_good, key=lambda name: (need[name], losses[name]))"),
            "at equal bytes the lower mean loss is taken",
        ),
        (
            "at equal bytes takes the lower median",
            _choose(chosen="min(as_good, key=lambda name: (need[name], statistics.median(losses[name])))"),
            "at equal bytes the lower mean loss is taken",
        ),
        (
            "at equal bytes takes the first",
            _choose(chosen="min(as_good, key=lambda name: need[name])"),
            "at equal bytes the lower mean loss is taken",
        ),
        (
            "at equal bytes takes another than the best",
            _choose(chosen="min(as_good, key=lambda name: (need[name], name == best, statistics.mean(losses[name])))"),
            "at equal bytes the lower mean loss is taken",
        ),
        (
            "compares whole bytes with the budget",
            _choose(fitting="[name for name in losses if int(need[name]) <= int(budget)]"),
            "a budget may have a fraction",
        ),
        (
            "lets 5% over the budget fit",
            _choose(fitting="[name for name in losses if need[name] <= 1.05 * budget]"),
            "a little more than the budget is out",
        ),
        (
            "chooses by whole bytes",
            _choose(chosen="min(as_good, key=lambda name: (int(need[name]), statistics.mean(losses[name])))"),
            "a fraction of a byte counts",
        ),
        (
            "leaves out an optimizer that needs 0 bytes",
            _choose(fitting="[name for name in losses if need[name] and need[name] <= budget]"),
            "an optimizer that needs 0 bytes fits",
        ),
        (
            "treats a budget of 0 as missing",
            _choose(fitting="[name for name in losses if budget and need[name] <= budget]"),
            "a budget may be 0",
        ),
        (
            "rounds the end of the interval",
            _choose(good="round(statistics.mean(apart) + half_width, 3) <= margin"),
            "0.0004 more on each seed",
        ),
        (
            "finds the best of rounded means",
            _choose(best="min(fitting, key=lambda name: round(statistics.mean(losses[name]), 2))"),
            "a mean that is 0.0004 lower counts",
        ),
        ("returns all that are as good", _choose(chosen="as_good"), "of clearly different losses the best is taken"),
        ("returns the bytes", _choose(chosen="min(need[name] for name in as_good)"), "of clearly different losses"),
        (
            "takes the largest loss",
            _choose(best="max(fitting, key=lambda n: sum(losses[n]))", as_good="[best]"),
            "of clearly different losses",
        ),
        (
            "changes its arguments",
            """
def choose_optimizer(losses, need, budget, margin):
    for name in [name for name in need if need[name] > budget]:
        need.pop(name)
    return min(need, key=lambda name: sum(losses[name]), default=None)
""",
            "the input stays as it was",
        ),
    ],
}

RIGHT_ANSWERS = {
    "adamw_step": [
        (
            "in place, with torch's fused operators",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    state["t"] += 1
    state["m"].lerp_(g, 1 - betas[0])
    state["v"].mul_(betas[1]).addcmul_(g, g, value=1 - betas[1])
    scale = [1 - beta ** state["t"] for beta in betas]
    w.mul_(1 - lr * decay)
    w.addcdiv_(state["m"], (state["v"] / scale[1]).sqrt_().add_(eps), value=-lr / scale[0])
""",
        ),
        (
            "with a count that is a tensor, and one rate for all corrections",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    (b1, b2), t = betas, state["t"] + 1
    m, v = b1 * state["m"] + g - b1 * g, b2 * state["v"] + g.square() - b2 * g.square()
    state.update(t=torch.as_tensor(t), m=m, v=v)
    root = math.sqrt(1 - b2**int(t))
    w += -lr * decay * w - lr * root / (1 - b1**int(t)) * m / (v.sqrt() + eps * root)
""",
        ),
        (
            "element by element",
            """
def adamw_step(w, g, state, lr, betas, eps, decay):
    state["t"] += 1
    for i in map(tuple, torch.ones_like(w).nonzero().tolist()):
        m, v, x = state["m"], state["v"], g[i]
        m[i] = betas[0] * m[i] + (1 - betas[0]) * x
        v[i] = betas[1] * v[i] + (1 - betas[1]) * x * x
        m_hat, v_hat = m[i] / (1 - betas[0] ** state["t"]), v[i] / (1 - betas[1] ** state["t"])
        old = w[i].clone()
        w[i] = old - lr * decay * old - lr * m_hat / (v_hat**0.5 + eps)
""",
        ),
    ],
    "quantize_state": [
        (
            "a loop over blocks, all distances",
            """
def quantize_state(x, values, block):
    codes, scales = [], []
    for part in x.flatten().split(block):
        scale = part.abs().max()
        scale = scale if scale > 0 else torch.ones(())
        codes.append((part[:, None] / scale - values).abs().argmin(dim=1))
        scales.append(scale)
    return torch.cat(codes).reshape(x.shape).to(torch.uint8), torch.stack(scales)
""",
        ),
        (
            "two neighbours, the nearer of them",
            """
def quantize_state(x, values, block):
    flat = x.reshape(-1)
    scales = torch.tensor([float(part.abs().max()) or 1.0 for part in flat.split(block)])
    shares = flat / scales.repeat_interleave(block)[: len(flat)]
    above = torch.searchsorted(values, shares).clamp(1, len(values) - 1)
    is_below = shares - values[above - 1] <= values[above] - shares
    return [(above - is_below.long()).to(torch.uint8).reshape(x.shape), scales]
""",
        ),
        (
            "Python's bisect",
            """
def quantize_state(x, values, block):
    from bisect import bisect_left

    flat, borders = x.flatten().tolist(), ((values[1:] + values[:-1]) / 2).tolist()
    scales = [max(map(abs, flat[i : i + block])) or 1.0 for i in range(0, len(flat), block)]
    codes = [bisect_left(borders, number / scales[i // block]) for i, number in enumerate(flat)]
    return torch.tensor(codes, dtype=torch.uint8).reshape(x.shape), torch.tensor(scales)
""",
        ),
    ],
    "orthogonalize": [
        (
            "from the right for tall ones",
            """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = coefficients
    x = x / max(float(x.norm()), 1e-300)
    for _ in range(num_steps):
        if len(x) <= x.shape[1]:
            x = a * x + (b * x @ x.T + c * (x @ x.T) @ (x @ x.T)) @ x if False else step(x, a, b, c)
        else:
            x = step(x.T, a, b, c).T
    return x.clone()


def step(x, a, b, c):
    gram = x @ x.T
    return torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
""",
        ),
        (
            "Horner's rule, recursive",
            """
def orthogonalize(x, num_steps, coefficients):
    if x.shape[0] > x.shape[1]:
        return orthogonalize(x.T, num_steps, coefficients).T
    a, b, c = coefficients
    norm = x.square().sum().sqrt()
    x = x / norm if norm > 0 else x.clone()
    for _ in range(num_steps):
        gram = x @ x.mT
        inner = torch.eye(len(gram), dtype=x.dtype) * a + gram @ (b * torch.eye(len(gram), dtype=x.dtype) + c * gram)
        x = inner @ x
    return x
""",
        ),
        (
            "einsum, products with X",
            """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = coefficients
    small = x.mT if x.shape[0] > x.shape[1] else x
    y = small / torch.linalg.vector_norm(small).clamp_min(1e-200 if x.dtype == torch.float64 else 1e-30)
    for _ in range(num_steps):
        gram = torch.einsum("ik,jk->ij", y, y)
        cubic = torch.einsum("ij,jk->ik", gram, y)
        y = a * y + b * cubic + c * torch.einsum("ij,jk->ik", gram, cubic)
    return y.mT if x.shape[0] > x.shape[1] else y
""",
        ),
        (
            "by F.normalize",
            """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = nn.functional.normalize(x, dim=(0, 1))
    for _ in range(num_steps):
        A = x @ x.T
        x = (a * torch.eye(len(A), dtype=x.dtype) + b * A + c * (A @ A)) @ x
    return x.T if is_tall else x
""",
        ),
        (
            "adds 1e-7 to the norm",
            """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / (x.norm() + 1e-7)
    for _ in range(num_steps):
        A = x @ x.T
        B = b * A + c * A @ A
        x = a * x + B @ x
    return x.T if is_tall else x
""",
        ),
        (
            "the norm is at least 1e-7",
            """
def orthogonalize(x, num_steps, coefficients):
    a, b, c = coefficients
    is_tall = x.shape[0] > x.shape[1]
    x = x.T if is_tall else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(num_steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if is_tall else x
""",
        ),
    ],
    "muon_step": [
        (
            "in place, with lerp, two loops",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    with_grad = {n: p for n, p in model.named_parameters() if p.grad is not None}
    muon = {n for n, p in with_grad.items() if n.split(".")[0] == "blocks" and p.dim() > 1}
    for name in with_grad.keys() - muon:
        adamw(name)
    with torch.no_grad():
        for name in muon:
            w, g = with_grad[name], with_grad[name].grad
            if name not in means:
                means[name] = torch.zeros_like(g)
            means[name].lerp_(g, 1 - mu)
            o = orthogonalize(torch.lerp(g, means[name], mu))
            w *= 1 - lr * decay
            w.add_(o, alpha=-0.2 * lr * max(w.shape) ** 0.5)
""",
        ),
        (
            "the scale from the rms of the directions",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is not None and w.ndim == 2 and name.startswith("blocks."):
            means[name] = mu * means.get(name, 0) + (1 - mu) * g
            o = orthogonalize(mu * means[name] + (1 - mu) * g)
            o = o * 0.2 / o.square().mean().sqrt()
            w.copy_(w - lr * decay * w - lr * o)
        elif g is not None:
            adamw(name)
""",
        ),
        (
            "by module, with .data, transposed",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    hidden = {id(m.weight) for m in model.blocks.modules() if isinstance(m, torch.nn.Linear)}
    for name, p in model.named_parameters():
        if p.grad is None:
            pass
        elif id(p) in hidden:
            b = means.setdefault(name, torch.zeros_like(p.data))
            b.mul_(mu).add_(p.grad, alpha=1 - mu)
            o = orthogonalize((mu * b + (1 - mu) * p.grad).t()).t()
            p.data -= lr * (decay * p.data + 0.2 * math.sqrt(max(p.shape[0], p.shape[1])) * o)
        else:
            adamw(name)
""",
        ),
        (
            "a sum inside orthogonalize, which has the same directions",
            """
def muon_step(model, means, lr, mu, decay, orthogonalize, adamw):
    for name, param in model.named_parameters():
        w, g = param.detach(), param.grad
        if g is None:
            continue
        if w.ndim < 2 or "blocks." not in name:
            adamw(name)
        else:
            means[name] = g * (1 - mu) + means[name] * mu if name in means else g * (1 - mu)
            o = orthogonalize(mu * means[name] / (1 - mu) + g)
            w.mul_(1 - lr * decay)
            w.sub_(o * (lr * 0.04**0.5 * max(w.size()) ** 0.5))
""",
        ),
    ],
    "choose_optimizer": [
        (
            "with sums, and sorted",
            """
def choose_optimizer(losses, need, budget, margin):
    order = sorted((sum(losses[name]), name) for name in losses if need[name] <= budget)
    if order:
        best = losses[order[0][1]]
        n, tied = len(best), []
        for total, name in order:
            d = [x - y for x, y in zip(losses[name], best)]
            mean = sum(d) / n
            s = (sum((x - mean) ** 2 for x in d) / (n - 1)) ** 0.5
            if mean + T[n] * s / n**0.5 <= margin:
                tied.append((need[name], total, name))
        return min(tied)[2]
""",
        ),
        (
            "with tensors",
            """
def choose_optimizer(losses, need, budget, margin):
    names = [name for name, size in need.items() if size <= budget]
    if len(names) == 0:
        return None
    table = torch.tensor([losses[name] for name in names], dtype=torch.float64)
    apart = table - table[table.mean(1).argmin()]
    n = table.shape[1]
    is_good = apart.mean(1) + T[n] * apart.std(1) / n**0.5 <= margin
    rank = [(need[name], float(row.mean()), name) for name, row, good in zip(names, table, is_good) if good]
    return sorted(rank)[0][-1]
""",
        ),
        (
            "drops the worst, one after the other",
            """
def choose_optimizer(losses, need, budget, margin):
    left = {name: losses[name] for name in losses if not need[name] > budget}
    best = min(left, key=lambda name: statistics.fmean(left[name]), default=None)
    for name in list(left):
        d = [x - y for x, y in zip(left[name], losses[best])]
        if statistics.fmean(d) > margin - T[len(d)] * (statistics.variance(d) / len(d)) ** 0.5:
            del left[name]
    return min(left, key=lambda name: (need[name], statistics.fmean(left[name])), default=None)
""",
        ),
        (
            "with the interval's larger end: no optimizer is below the best",
            _choose(good="max(map(abs, interval(losses[name], losses[best]))) <= margin"),
        ),
    ],
}
