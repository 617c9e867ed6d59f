"""Wrong answers to lab 03: activation memory, and unusual right ones."""


def _segments(head="", arguments="layers, k, x", segment="nn.Sequential(*layers[start : start + k])", rest=")"):
    """Exercise 1 with a change."""
    return f"""
{head}
def run_in_segments({arguments}):
    for start in range(0, len(layers), k):
        segment = {segment}
        x = checkpoint(segment, x, use_reentrant=False{rest}
    return x
"""


def _again(
    noted="now, old = torch.get_rng_state(), [(b, b.clone()) for b in segment.buffers()]",
    start="torch.set_rng_state(rng_state)",
    back="b.data.copy_(o)",
    last="return y",
    arguments="segment, x, rng_state",
    head="",
):
    """Exercise 2 with a change."""
    return f"""
{head}
def recompute({arguments}):
    {noted}
    {start}
    y = segment(x)
    torch.set_rng_state(now)
    for b, o in old:
        {back}
    {last}
"""


def _hidden(before="pass", late="0", found="return m", head=""):
    """Exercise 3 with a change."""
    return f"""
{head}
def num_hidden(forward_s, backward_s, copy_s):
    {before}
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        back = all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) + {late} for i in range(m))
        if end <= sum(forward_s) + {late} and back:
            {found}
    return 0
"""


def _split(allowed="True", cost="recomputed(p, costs)", found="best", head=""):
    """Exercise 4 with a change: the plans to compare, and the quantity to minimize."""
    return f"""
{head}
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    fitting = [p for p in plans(0, len(costs)) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    best = min((p for p in fitting if {allowed}), key=lambda p: {cost}, default=None)
    return {found}
"""


_LENGTHS = "[s.stop - s.start for s in p if s.is_checkpointed]"

WRONG_ANSWERS = {
    "run_in_segments": [
        (
            "keeps everything",
            """
def run_in_segments(layers, k, x):
    for layer in layers:
        x = layer(x)
    return x
""",
            "segments of k layers run again",
        ),
        (
            "one segment of the whole chain",
            """
def run_in_segments(layers, k, x):
    return checkpoint(nn.Sequential(*layers), x, use_reentrant=False)
""",
            "segments of k layers run again",
        ),
        (
            "each layer its own segment",
            """
def run_in_segments(layers, k, x):
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    return x
""",
            "segments of k layers run again",
        ),
        (
            "a lambda that looks its layers up in backward",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        x = checkpoint(lambda y: nn.Sequential(*layers[start : start + k])(y), x, use_reentrant=False)
    return x
""",
            "a segment runs the same layers again",
        ),
        (
            "drops the short segment at the end",
            """
def run_in_segments(layers, k, x):
    for number in range(len(layers) // k):
        x = checkpoint(nn.Sequential(*layers[number * k : (number + 1) * k]), x, use_reentrant=False)
    return x
""",
            "each layer runs once in forward",
        ),
        (
            "k segments instead of segments of k",
            """
def run_in_segments(layers, k, x):
    size = -(-len(layers) // k)
    for start in range(0, len(layers), size):
        x = checkpoint(nn.Sequential(*layers[start : start + size]), x, use_reentrant=False)
    return x
""",
            "segments of k layers run again",
        ),
        (
            "runs forward without autograd",
            """
def run_in_segments(layers, k, x):
    with torch.no_grad():
        for layer in layers:
            x = layer(x)
    return x
""",
            "backward can go through the output",
        ),
        (
            "detaches each checkpoint",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x.detach().requires_grad_(), use_reentrant=False)
    return x
""",
            "gradients are None",
        ),
        (
            "the reentrant kind, which needs an input with a gradient",
            """
import warnings
def run_in_segments(layers, k, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for start in range(0, len(layers), k):
            x = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=True)
    return x
""",
            "backward can go through the output",
        ),
        (
            "does not repeat dropout",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False, preserve_rng_state=False)
    return x
""",
            "gradients are the same as without checkpoints",
        ),
        (
            "a checkpoint within a checkpoint: layers run three times",
            """
def run_in_segments(layers, k, x):
    def segment_of(part):
        def segment(y):
            for layer in part:
                y = checkpoint(layer, y, use_reentrant=False)
            return y
        return segment
    for start in range(0, len(layers), k):
        x = checkpoint(segment_of(layers[start : start + k]), x, use_reentrant=False)
    return x
""",
            "runs of a layer in backward",
        ),
        (
            "begins every segment with the chain's input",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        y = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=False)
    return y
""",
            "the output is the same as the chain's",
        ),
        (
            "forgets the return",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        x = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=False)
""",
            "the chain's output is returned",
        ),
        (
            "takes layers off the list",
            """
def run_in_segments(layers, k, x):
    while layers:
        segment = [layers.pop(0) for _ in range(min(k, len(layers)))]
        x = checkpoint(nn.Sequential(*segment), x, use_reentrant=False)
    return x
""",
            "the list of layers and x stay",
        ),
        (
            "checkpoints the first segment only",
            """
def run_in_segments(layers, k, x):
    x = checkpoint(nn.Sequential(*layers[:k]), x, use_reentrant=False)
    for layer in layers[k:]:
        x = layer(x)
    return x
""",
            "segments of k layers run again",
        ),
        (
            "runs the chain once more to see its output",
            """
def run_in_segments(layers, k, x):
    with torch.no_grad():
        nn.Sequential(*layers)(x)
    for start in range(0, len(layers), k):
        x = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=False)
    return x
""",
            "each layer runs once in forward",
        ),
        (
            "copies of the layers",
            """
import copy
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        x = checkpoint(copy.deepcopy(nn.Sequential(*layers[start : start + k])), x, use_reentrant=False)
    return x
""",
            "each layer runs once in forward",
        ),
        (
            "segments overlap by a layer",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        x = checkpoint(nn.Sequential(*layers[start : start + k + 1]), x, use_reentrant=False)
    return x
""",
            "each layer runs once in forward",
        ),
        (
            "recomputes, and also keeps the tensors of the segments",
            """
held = []
def run_in_segments(layers, k, x):
    def keeping(part):
        def segment(y):
            for layer in part:
                y = layer(y)
                held.append(y)
            return y
        return segment
    held.clear()
    for start in range(0, len(layers), k):
        x = checkpoint(keeping(layers[start : start + k]), x, use_reentrant=False)
    return x
""",
            "activations left",
        ),
        (
            "the library's own",
            """
def run_in_segments(layers, k, x):
    return checkpointing.run(checkpoint_every(len(layers), k), layers, x)
""",
            "lablib",
        ),
        (
            "segments of at most 5",
            """
def run_in_segments(layers, k, x):
    k = min(k, 5)
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "",
        ),
        (
            "sets the check's seed",
            """
def run_in_segments(layers, k, x):
    torch.manual_seed(1)
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "the output is the same as the chain's",
        ),
        (
            "leaves the generator at zero",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    torch.manual_seed(0)
    return x
""",
            "the same state as after the chain's forward",
        ),
        (
            "always in training mode",
            """
def run_in_segments(layers, k, x):
    [layer.train() for layer in layers]
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "",
        ),
        (
            "clears gradients",
            """
def run_in_segments(layers, k, x):
    [layer.zero_grad() for layer in layers]
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "gradients are the same as without checkpoints",
        ),
        (
            "float64 throughout",
            """
def run_in_segments(layers, k, x):
    x = x.double()
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "",
        ),
        (
            "two dimensions only",
            """
def run_in_segments(layers, k, x):
    t, w = x.shape
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "",
        ),
        (
            "requires a gradient of the caller's x",
            """
def run_in_segments(layers, k, x):
    x.requires_grad_()
    for start in range(0, len(layers), k):
        segment = nn.Sequential(*layers[start : start + k])
        x = checkpoint(segment, x, use_reentrant=False)
    return x
""",
            "stay unchanged",
        ),
        (
            "leaves layers patched: always checkpointed",
            """
def run_in_segments(layers, k, x):
    for start in range(0, len(layers), k):
        x = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=False)
    for layer in layers:
        layer.forward_ = layer.forward
        layer.register_forward_pre_hook(lambda m, a: None)
    return x
""",
            "mode, attributes, hooks",
        ),
        (
            "keeps a detached copy of all results, up to the end of backward",
            """
def run_in_segments(layers, k, x):
    held = []
    def keeping(part):
        def segment(y):
            for layer in part:
                y = layer(y)
                held.append(y.detach().clone())
            return y
        return segment
    for start in range(0, len(layers), k):
        x = checkpoint(keeping(layers[start : start + k]), x, use_reentrant=False)
    return x
""",
            "activations at the peak",
        ),
        (
            "a custom Function that does not restore the generator",
            """
class Seg(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, one, part, *ws):
        ctx.save_for_backward(x); ctx.part = part; ctx.state = torch.get_rng_state()
        return part(x)
    @staticmethod
    def backward(ctx, dy):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.part(x)
        ws = list(ctx.part.parameters())
        gs = torch.autograd.grad(y, [x, *ws], dy)
        return gs[0], None, None, *gs[1:]
def run_in_segments(layers, k, x):
    for s in range(0, len(layers), k):
        part = nn.Sequential(*layers[s : s + k])
        x = Seg.apply(x, None, part, *part.parameters())
    return x
""",
            "backward leaves the generator",
        ),
        (
            "a list of checkpoints that is never cleared",
            _segments(head="made = []", rest=")\n        made.append(x)"),
            "activations left",
        ),
        (
            "segments cached by k",
            _segments(
                head="made = {}",
                segment="made.setdefault((k, start), nn.Sequential(*layers[start : start + k]))",
            ),
            "each layer runs once in forward",
        ),
        (
            "a hook left on every weight",
            _segments(segment="nn.Sequential(*layers[start : start + k])").replace(
                "    return x", "    [layer.weight.register_hook(lambda g: None) for layer in layers]\n    return x"
            ),
            "mode, attributes, hooks",
        ),
    ],
    "recompute": [
        (
            "runs plainly",
            """
def recompute(segment, x, rng_state):
    return segment(x)
""",
            "both runs have the same output",
        ),
        (
            "leaves the generator where the second run ended",
            """
def recompute(segment, x, rng_state):
    old = [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "the generator has the same state before and after the call",
        ),
        (
            "leaves the generator at the state of the first run",
            """
def recompute(segment, x, rng_state):
    old = [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(rng_state)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "the generator has the same state before and after the call",
        ),
        (
            "saves the buffers themselves, no copies",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), list(segment.buffers())
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "the buffer",
        ),
        (
            "binds a name to the old value, without a write",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer = value
    return y
""",
            "the buffer",
        ),
        (
            "only floating-point buffers",
            """
def recompute(segment, x, rng_state):
    kept = [buffer for buffer in segment.buffers() if buffer.is_floating_point()]
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in kept]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(kept, old):
        buffer.copy_(value)
    return y
""",
            "count has the same value before and after the call",
        ),
        (
            "only the buffers of the first layers, not of nested ones",
            """
def recompute(segment, x, rng_state):
    kept = [buffer for layer in segment for buffer in layer.buffers(recurse=False)]
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in kept]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(kept, old):
        buffer.copy_(value)
    return y
""",
            "one inside another",
        ),
        (
            "without autograd",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    with torch.no_grad():
        y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "backward can go through the output",
        ),
        (
            "forgets the return",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
""",
            "the segment's output is returned",
        ),
        (
            "turns dropout off",
            """
def recompute(segment, x, rng_state):
    segment.eval()
    old = [buffer.clone() for buffer in segment.buffers()]
    y = segment(x)
    segment.train()
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "both runs have the same output (segment with dropout)",
        ),
        (
            "a different seed",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.manual_seed(0)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "both runs have the same output",
        ),
        (
            "runs the segment twice",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    segment(x)
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "the segment runs once",
        ),
        (
            "runs a copy of the segment and loses its gradients",
            """
import copy
def recompute(segment, x, rng_state):
    now = torch.get_rng_state()
    torch.set_rng_state(rng_state)
    y = copy.deepcopy(segment)(x)
    torch.set_rng_state(now)
    return y
""",
            "gradients are the same as without checkpoints",
        ),
        (
            "detaches x",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [buffer.clone() for buffer in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x.detach())
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "gradients are None",
        ),
        (
            "sets buffers to zero",
            """
def recompute(segment, x, rng_state):
    now = torch.get_rng_state()
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer in segment.buffers():
        buffer.zero_()
    return y
""",
            "the buffer",
        ),
        (
            "replaces the buffers by other tensors",
            """
def recompute(segment, x, rng_state):
    now = torch.get_rng_state()
    torch.set_rng_state(rng_state)
    rng_state.copy_(now)
    y = segment(x)
    torch.set_rng_state(now)
    return y
""",
            "x and rng_state stay",
        ),
        (
            "always in training mode",
            """
def recompute(segment, x, rng_state):
    segment.train()
    now, old = torch.get_rng_state(), [b.clone() for b in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "in eval mode",
        ),
        (
            "leaves a forward hook on the segment",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [b.clone() for b in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    segment.register_forward_hook(lambda m, i, o: o * 0)
    return y
""",
            "mode, attributes, hooks",
        ),
        (
            "only buffers that the state dict has",
            """
def recompute(segment, x, rng_state):
    now, names = torch.get_rng_state(), segment.state_dict().keys()
    old = {n: b.clone() for n, b in segment.named_buffers() if n in names}
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for n, b in segment.named_buffers():
        if n in old: b.copy_(old[n])
    return y
""",
            "buffer 1.power",
        ),
        (
            "binds other tensors as buffers",
            """
def recompute(segment, x, rng_state):
    now = torch.get_rng_state()
    old = [(m, n, b.clone()) for m in segment.modules() for n, b in m._buffers.items()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for m, n, b in old: setattr(m, n, b)
    return y
""",
            "the same tensors",
        ),
        (
            "restores the generator only for dropout",
            """
def recompute(segment, x, rng_state):
    old = [b.clone() for b in segment.buffers()]
    now = torch.get_rng_state()
    if any(isinstance(m, nn.Dropout) for m in segment.modules()):
        torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for b, o in zip(segment.buffers(), old): b.copy_(o)
    return y
""",
            "other random numbers than dropout's",
        ),
        (
            "written in place, where autograd sees it",
            """
def recompute(segment, x, rng_state):
    now, old = torch.get_rng_state(), [b.clone() for b in segment.buffers()]
    torch.set_rng_state(rng_state)
    y = segment(x)
    torch.set_rng_state(now)
    for buffer, value in zip(segment.buffers(), old):
        buffer.copy_(value)
    return y
""",
            "backward finds the tensors that the second run saved",
        ),
        (
            "the seed instead of the state",
            _again(start="torch.manual_seed(torch.initial_seed())"),
            "both runs have the same output",
        ),
        (
            "only in training mode",
            _again().replace("    now,", "    if not segment.training:\n        return segment(x)\n    now,"),
            "all of it in eval mode",
        ),
        (
            "buffers of modules in training mode only",
            _again(
                "now = torch.get_rng_state(); "
                "old = [(b, b.clone()) for m in segment.modules() if m.training for b in m.buffers(recurse=False)]"
            ),
            "all of it in eval mode",
        ),
        (
            "a buffer that is None",
            _again(
                "now = torch.get_rng_state(); "
                "old = [(b, b.clone()) for m in segment.modules() for b in m._buffers.values()]"
            ),
            "NoneType",
        ),
        (
            "at most four buffers",
            _again("now, old = torch.get_rng_state(), [(b, b.clone()) for b in list(segment.buffers())[:4]]"),
            "3.mean",
        ),
        (
            "saved once for each segment",
            _again(
                "now, old = torch.get_rng_state(), noted.setdefault(segment, [(b, b.clone()) for b in "
                "segment.buffers()])",
                head="noted = {}",
            ),
            "second step",
        ),
        (
            "a hook left on each parameter",
            _again(last="[p.register_hook(lambda g: g) for p in segment.parameters()]; return y"),
            "mode, attributes, hooks",
        ),
        (
            "goes through backward itself",
            _again(last="y.sum().backward(); return y"),
            "gone through already",
        ),
        (
            "takes 1 off each counter",
            _again(back="b.data.copy_(o) if b.is_floating_point() else b.data.sub_(1)"),
            "num_batches_tracked",
        ),
    ],
    "num_hidden": [
        (
            "the way out alone",
            """
def num_hidden(forward_s, backward_s, copy_s):
    end, m = 0.0, 0
    for i in range(len(copy_s)):
        end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s):
            m = i + 1
        else:
            break
    return m
""",
            "no copy delays the step",
        ),
        (
            "the way back alone",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        if all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "ends after forward",
        ),
        (
            "compares sums: all forward with all copies",
            """
def num_hidden(forward_s, backward_s, copy_s):
    m = 0
    while m < len(copy_s) and sum(copy_s[: m + 1]) <= sum(forward_s):
        m += 1
    return m
""",
            "no copy delays the step",
        ),
        (
            "a copy starts with its layer",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[:i])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "no copy delays the step",
        ),
        (
            "copies do not wait for each other",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        out = all(sum(forward_s[: i + 1]) + copy_s[i] <= sum(forward_s) for i in range(m))
        if out and all(copy_s[i] <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "no copy delays the step",
        ),
        (
            "may not end exactly in time",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end < sum(forward_s) and all(sum(copy_s[i:m]) < sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "as many copies hide as possible",
        ),
        (
            "needed when its own backward ends",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i:]) for i in range(m)):
            return m
    return 0
""",
            "a copy comes back late",
        ),
        (
            "comes back in the order of the copies out",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[: i + 1]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "as many copies hide as possible",
        ),
        (
            "checks only the first layer on the way back",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and sum(copy_s[:m]) <= sum(backward_s[1:]):
            return m
    return 0
""",
            "a copy comes back late",
        ),
        (
            "right for equal layers only",
            """
def num_hidden(forward_s, backward_s, copy_s):
    f, b, c, n = forward_s[0], backward_s[0], copy_s[0], len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, (i + 1) * f) + c
        if end <= n * f and all((m - i) * c <= (n - 1 - i) * b for i in range(m)):
            return m
    return 0
""",
            "as many copies hide as possible",
        ),
        (
            "returns the layers instead of their number",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return list(range(m))
    return []
""",
            "a whole number is returned",
        ),
        (
            "None if no copy hides",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
""",
            "a number is returned",
        ),
        (
            "reverses the lists in place",
            """
def num_hidden(forward_s, backward_s, copy_s):
    backward_s.reverse()
    for m in range(len(copy_s), 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        n = len(copy_s)
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[: n - 1 - i]) for i in range(m)):
            return m
    return 0
""",
            "the input stays as it was",
        ),
        (
            "always leaves out the last layer",
            """
def num_hidden(forward_s, backward_s, copy_s):
    for m in range(len(copy_s) - 1, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "as many copies hide as possible",
        ),
        (
            "allows half a second of delay",
            """
def num_hidden(forward_s, backward_s, copy_s):
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) + 0.9 and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) + 0.9 for i in range(m)):
            return m
    return 0
""",
            "a quarter of a second late is late",
        ),
        (
            "rounds up seconds",
            """
def num_hidden(forward_s, backward_s, copy_s):
    from math import ceil
    forward_s, backward_s, copy_s = [[ceil(s) for s in one] for one in (forward_s, backward_s, copy_s)]
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "",
        ),
        (
            "at most 40 layers",
            """
def num_hidden(forward_s, backward_s, copy_s):
    forward_s, backward_s, copy_s = forward_s[:40], backward_s[:40], copy_s[:40]
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "layers, equal",
        ),
        (
            "out: two bounds instead of a queue",
            """
def num_hidden(forward_s, backward_s, copy_s):
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if max(forward_s[0] + sum(copy_s[:m]), sum(forward_s[:m]) + copy_s[m-1]) <= sum(forward_s) \
                and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "a copy waits for a longer one",
        ),
        (
            "in: the first two and the last",
            """
def num_hidden(forward_s, backward_s, copy_s):
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = max(end, sum(forward_s[: i + 1])) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in {0, min(1, m-1), m-1}):
            return m
    return 0
""",
            "every copy is back in time",
        ),
        (
            "out: queue is empty beyond the second",
            """
def num_hidden(forward_s, backward_s, copy_s):
    n = len(copy_s)
    for m in range(n, 0, -1):
        end = 0.0
        for i in range(m):
            end = (max(end, sum(forward_s[: i + 1])) if i < 2 else end) + copy_s[i]
        if end <= sum(forward_s) and all(sum(copy_s[i:m]) <= sum(backward_s[i + 1:]) for i in range(m)):
            return m
    return 0
""",
            "later copies wait",
        ),
        (
            "a number that equals every number",
            """
class Any(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return False
    def __gt__(self, other): return False
    __hash__ = int.__hash__
def num_hidden(forward_s, backward_s, copy_s):
    return Any(0)
""",
            "as many copies hide",
        ),
        (
            "NaN",
            """
def num_hidden(forward_s, backward_s, copy_s):
    return float('nan')
""",
            "whole number",
        ),
        (
            "allows a millisecond of delay",
            _hidden(late="1e-3"),
            "a sixteenth of a millisecond",
        ),
        (
            "tensors of 32 bits",
            """
def num_hidden(forward_s, backward_s, copy_s):
    f, b, c = torch.tensor(forward_s), torch.tensor(backward_s), torch.tensor(copy_s)
    ready, needed = f.cumsum(0), b.flip(0).cumsum(0).flip(0) - b
    m, end = 0, torch.tensor(0.0)
    for i in range(len(c)):
        end = torch.maximum(end, ready[i]) + c[i]
        back = c[: i + 1].flip(0).cumsum(0).flip(0)
        if end > ready[-1] or (back > needed[: i + 1]).any():
            break
        m = i + 1
    return m
""",
            "in 64 bits",
        ),
        (
            "caches the result by the copies alone",
            _hidden(
                "if tuple(copy_s) in known: return known[tuple(copy_s)]",
                found="known[tuple(copy_s)] = m; return m",
                head="known = {}",
            ),
            "no copy delays the step",
        ),
    ],
    "cheapest_plan": [
        (
            "keeps everything",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    return (Segment(0, len(costs), False),)
""",
            "peak of the plan",
        ),
        (
            "checkpoints each layer",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    plan = tuple(Segment(i, i + 1, True) for i in range(len(costs)))
    return plan if peak_bytes(plan, layer_bytes, input_bytes) <= budget_bytes else None
""",
            "cost of the recomputation",
        ),
        (
            "the best of equal segments",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    plans = [(Segment(0, n, False),)]
    for k in range(1, n + 1):
        plans.append(tuple(Segment(i, min(i + k, n), True) for i in range(0, n, k)))
    fitting = [p for p in plans if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, costs), default=None)
""",
            "cost of the recomputation",
        ),
        (
            "the first m layers, each its own",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    for m in range(n + 1):
        first = tuple(Segment(i, i + 1, True) for i in range(m))
        plan = first + ((Segment(m, n, False),) if m < n else ())
        if peak_bytes(plan, layer_bytes, input_bytes) <= budget_bytes:
            return plan
""",
            "cost of the recomputation",
        ),
        (
            "single layers only",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
            return
        for is_checkpointed in (False, True):
            for rest in plans(start + 1):
                yield Segment(start, start + 1, is_checkpointed), *rest
    fitting = [p for p in plans(0) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, costs), default=None)
""",
            "segments are returned if a plan fits",
        ),
        (
            "least peak instead of least cost",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest
    best = min(plans(0), key=lambda p: peak_bytes(p, layer_bytes, input_bytes))
    return best if peak_bytes(best, layer_bytes, input_bytes) <= budget_bytes else None
""",
            "cost of the recomputation",
        ),
        (
            "fewest layers again instead of least cost",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest
    fitting = [p for p in plans(0) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, [1.0] * len(costs)), default=None)
""",
            "cost of the recomputation",
        ),
        (
            "less than the budget, not equal",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest
    fitting = [p for p in plans(0) if peak_bytes(p, layer_bytes, input_bytes) < budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, costs), default=None)
""",
            "",
        ),
        (
            "the kept bytes in the end, without the current segment",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest
    def kept(plan):
        return sum(input_bytes[s.start] if s.is_checkpointed else sum(layer_bytes[s.start : s.stop]) for s in plan)
    fitting = [p for p in plans(0) if kept(p) <= budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, costs), default=None)
""",
            "",
        ),
        (
            "an error if nothing fits",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def plans(start):
        if start == len(costs):
            yield ()
        for stop in range(start + 1, len(costs) + 1):
            for is_checkpointed in (False, True):
                for rest in plans(stop):
                    yield Segment(start, stop, is_checkpointed), *rest
    fitting = [p for p in plans(0) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    return min(fitting, key=lambda p: recomputed(p, costs))
""",
            "ValueError",
        ),
        (
            "greedy: cheapest cost for a saved byte first",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    order = sorted(range(n), key=lambda i: costs[i] / (layer_bytes[i] - input_bytes[i]))
    for m in range(n + 1):
        again = set(order[:m])
        plan = tuple(Segment(i, i + 1, i in again) for i in range(n))
        if peak_bytes(plan, layer_bytes, input_bytes) <= budget_bytes:
            return plan
""",
            "",
        ),
        (
            "a segment is left out",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    plan = (Segment(0, len(costs), False),)
    if peak_bytes(plan, layer_bytes, input_bytes) <= budget_bytes:
        return plan
    plan = tuple(Segment(i, i + 1, True) for i in range(len(costs)))
    return plan[1:] if peak_bytes(plan, layer_bytes, input_bytes) <= budget_bytes else None
""",
            "",
        ),
        (
            "a layer of one chain only: the lab's",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    return (Segment(0, 2, True), Segment(2, 3, True), Segment(3, 6, False))
""",
            "",
        ),
        (
            "segments of at most 3 checkpointed layers",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    def peak(p):
        return peak_bytes(p, layer_bytes, input_bytes)
    fitting = [p for p in plans(0, n) if peak(p) <= budget_bytes]
    fitting = [p for p in fitting if all(s.stop - s.start <= 3 or not s.is_checkpointed for s in p)]
    best = min(fitting, key=lambda p: recomputed(p, costs), default=None)
    return best
""",
            "",
        ),
        (
            "at most three checkpointed segments",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    def peak(p):
        return peak_bytes(p, layer_bytes, input_bytes)
    fitting = [p for p in plans(0, n) if peak(p) <= budget_bytes and sum(s.is_checkpointed for s in p) <= 3]
    best = min(fitting, key=lambda p: recomputed(p, costs), default=None)
    return best
""",
            "",
        ),
        (
            "half a byte over the budget",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    def peak(p):
        return peak_bytes(p, layer_bytes, input_bytes)
    fitting = [p for p in plans(0, n) if peak(p) <= budget_bytes + 0.5 and True]
    best = min(fitting, key=lambda p: recomputed(p, costs), default=None)
    return best
""",
            "",
        ),
        (
            "a hundredth over the budget",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    n = len(costs)
    def peak(p):
        return peak_bytes(p, layer_bytes, input_bytes)
    fitting = [p for p in plans(0, n) if peak(p) <= budget_bytes * 1.01 and True]
    best = min(fitting, key=lambda p: recomputed(p, costs), default=None)
    return best
""",
            "",
        ),
        (
            "single layers first, segments only if none fits",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    ok = [p for p in plans(0, len(costs)) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    one = [p for p in ok if all(s.stop - s.start == 1 for s in p)]
    return min(one or ok, key=lambda p: recomputed(p, costs), default=None)
""",
            "",
        ),
        (
            "neighbouring checkpointed layers are one segment, or all single",
            """
def plans(start, n):
    if start == n:
        yield ()
    for stop in range(start + 1, n + 1):
        for is_checkpointed in (False, True):
            for rest in plans(stop, n):
                yield Segment(start, stop, is_checkpointed), *rest
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    ok = [p for p in plans(0, len(costs)) if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes]
    two = [p for p in ok if not any(a.is_checkpointed and b.is_checkpointed for a, b in zip(p, p[1:]))
           or all(s.stop - s.start == 1 for s in p)]
    return min(two, key=lambda p: recomputed(p, costs), default=None)
""",
            "",
        ),
        (
            "at most five segments",
            _split(allowed="len(p) <= 5"),
            "a plan fits",
        ),
        (
            "at most two runs of kept layers",
            _split(
                allowed="sum(not b.is_checkpointed and (not i or p[i-1].is_checkpointed) for i, b in enumerate(p)) < 3"
            ),
            "cost of the recomputation",
        ),
        (
            "at most one segment of several layers",
            _split(allowed="sum(s.is_checkpointed and s.stop - s.start > 1 for s in p) <= 1"),
            "a plan fits",
        ),
        (
            "segments get no longer",
            _split(allowed=f"sorted({_LENGTHS}, reverse=True) == {_LENGTHS}"),
            "a plan fits",
        ),
        (
            "segments get no shorter",
            _split(allowed=f"sorted({_LENGTHS}) == {_LENGTHS}"),
            "",
        ),
        (
            "costs cut to whole numbers",
            _split(cost="int(recomputed(p, costs))"),
            "cost of the recomputation",
        ),
        (
            "answers cached by costs and budget",
            _split(found="known.setdefault((tuple(costs), budget_bytes), best)", head="known = {}"),
            "peak of the plan",
        ),
        (
            "the smallest input of a segment stays",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def best(start, kept):
        if start == len(costs):
            return 0, ()
        found = []
        for stop in range(start + 1, len(costs) + 1):
            whole = sum(layer_bytes[start:stop])
            if kept + whole <= budget_bytes:
                for flag in (False, True):
                    rest = best(stop, kept + (min(input_bytes[start:stop]) if flag else whole))
                    if rest:
                        found.append((rest[0] + flag * sum(costs[start:stop]), (Segment(start, stop, flag), *rest[1])))
        return min(found, key=lambda one: one[0], default=None)
    found = best(0, 0)
    return found and found[1]
""",
            "peak of the plan",
        ),
        (
            "least cost times memory instead of least cost",
            _split(cost="recomputed(p, costs) * peak_bytes(p, layer_bytes, input_bytes)"),
            "cost of the recomputation",
        ),
    ],
}

RIGHT_ANSWERS = {
    "run_in_segments": [
        (
            "functions made by a partial, the last segment kept",
            """
from functools import partial, reduce
def run_in_segments(layers, k, x):
    def chain(part, y):
        return reduce(lambda value, layer: layer(value), part, y)
    starts = range(0, len(layers), k)
    for start in starts:
        part = list(layers[start : start + k])
        x = chain(part, x) if start == starts[-1] else checkpoint(partial(chain, part), x, use_reentrant=False)
    return x
""",
        ),
        (
            "a custom module for a segment, and keyword arguments",
            """
class Segment_(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)
    def forward(self, *, value):
        for layer in self.layers:
            value = layer(value)
        return value
def run_in_segments(layers, k, x):
    segments = [Segment_(layers[i : i + k]) for i in range(len(layers))[::k]]
    for segment in segments:
        x = checkpoint(segment, value=x, use_reentrant=False)
    return x
""",
        ),
        (
            "recursive, with a default argument that holds the segment",
            """
def run_in_segments(layers, k, x):
    if not layers:
        return x
    def first(y, part=tuple(layers[:k])):
        for layer in part:
            y = layer(y)
        return y
    return run_in_segments(layers[k:], k, checkpoint(first, x, use_reentrant=False))
""",
        ),
        (
            "a loop by recursion, with the value in a closure",
            """
def run_in_segments(layers, k, x):
    def go_on(start):
        nonlocal x
        if start < len(layers):
            x = checkpoint(nn.Sequential(*layers[start : start + k]), x, use_reentrant=False)
            go_on(start + k)
    go_on(0)
    return x
""",
        ),
    ],
    "recompute": [
        (
            "fork_rng, and the state as a dictionary",
            """
def recompute(segment, x, rng_state):
    old = {name: value.clone() for name, value in segment.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(rng_state)
        y = segment(x)
    for name, buffer in segment.named_buffers():
        buffer.data = old[name]
    return y
""",
        ),
        (
            "a functional call with copies of the buffers",
            """
def recompute(segment, x, rng_state):
    now = torch.get_rng_state()
    torch.set_rng_state(rng_state)
    try:
        copies = {name: value.clone() for name, value in segment.named_buffers()}
        return torch.func.functional_call(segment, copies, (x,))
    finally:
        torch.set_rng_state(now)
""",
        ),
        (
            "a state dictionary, loaded again",
            """
def recompute(segment, x, rng_state):
    now = torch.random.get_rng_state()
    old = [value.detach().clone() for value in segment.buffers()]
    torch.random.set_rng_state(rng_state)
    y = segment(x)
    torch.random.set_rng_state(now)
    with torch.no_grad():
        for buffer, value in zip(list(segment.buffers()), old, strict=True):
            buffer.data[...] = value
    return y
""",
        ),
        (
            "a deep copy that shares the parameters",
            """
import copy
def recompute(segment, x, rng_state):
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(rng_state)
        return copy.deepcopy(segment, {id(p): p for p in segment.parameters()})(x)
""",
        ),
    ],
    "num_hidden": [
        (
            "from the front, with running clocks",
            """
from itertools import accumulate
def num_hidden(forward_s, backward_s, copy_s):
    ready = list(accumulate(forward_s))
    needed = [0.0, *accumulate(reversed(backward_s))][: len(copy_s)][::-1]
    end, most = 0.0, 0
    for m, copy in enumerate(copy_s, 1):
        end = max(end, ready[m - 1]) + copy
        back = accumulate(reversed(copy_s[:m]))
        if end > ready[-1] or any(s > n for s, n in zip(back, needed[:m][::-1])):
            break
        most = m
    return most
""",
        ),
        (
            "recursive",
            """
def num_hidden(forward_s, backward_s, copy_s, m=None):
    m = len(copy_s) if m is None else m
    def out(i):
        return 0 if i < 0 else max(out(i - 1), sum(forward_s[: i + 1])) + copy_s[i]
    late = any(sum(copy_s[i:m]) > sum(backward_s[i + 1:]) for i in range(m))
    return m if m == 0 or (out(m - 1) <= sum(forward_s) and not late) else num_hidden(
        forward_s, backward_s, copy_s, m - 1)
""",
        ),
        (
            "with tensors",
            """
def num_hidden(forward_s, backward_s, copy_s):
    f, b, c = (torch.tensor(s, dtype=torch.float64) for s in (forward_s, backward_s, copy_s))
    needed = b.flip(0).cumsum(0).flip(0) - b
    best = torch.tensor(0)
    for m in range(1, len(c) + 1):
        out = max(f[: i + 1].sum() + c[i:m].sum() for i in range(m))
        back = c[:m].flip(0).cumsum(0).flip(0)
        if out <= f.sum() and bool((back <= needed[:m]).all()):
            best = torch.tensor(m)
    return best
""",
        ),
    ],
    "cheapest_plan": [
        (
            "the recursion from the front, with bytes",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    def best(start, kept):
        if start == len(costs):
            return 0, []
        found = None
        for stop in range(start + 1, len(costs) + 1):
            whole = sum(layer_bytes[start:stop])
            if kept + whole > budget_bytes:
                break
            for is_checkpointed in (False, True):
                rest = best(stop, kept + (input_bytes[start] if is_checkpointed else whole))
                if rest is not None:
                    cost = rest[0] + (sum(costs[start:stop]) if is_checkpointed else 0)
                    if found is None or cost < found[0]:
                        found = cost, [Segment(start, stop, is_checkpointed), *rest[1]]
        return found
    found = best(0, 0)
    return found and found[1]
""",
        ),
        (
            "three states of each layer",
            """
from itertools import product
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    best = None
    for states in product("kbg", repeat=len(costs)):
        plan = []
        for i, state in enumerate(states):
            if state == "g" and plan and plan[-1].is_checkpointed:
                plan[-1] = Segment(plan[-1].start, i + 1, True)
            else:
                plan.append(Segment(i, i + 1, state == "b"))
        if peak_bytes(tuple(plan), layer_bytes, input_bytes) <= budget_bytes:
            if best is None or recomputed(tuple(plan), costs) < recomputed(best, costs):
                best = tuple(plan)
    return best
""",
        ),
        (
            "all plans in order of their cost, the first that fits",
            """
def cheapest_plan(costs, layer_bytes, input_bytes, budget_bytes):
    plans = [()]
    for i in range(len(costs)):
        longer = [(*p, Segment(i, i + 1, flag)) for p in plans for flag in (False, True)]
        longer += [(*p[:-1], Segment(p[-1].start, i + 1, p[-1].is_checkpointed)) for p in plans if p]
        plans = longer
    plans.sort(key=lambda p: recomputed(p, costs))
    return next((p for p in plans if peak_bytes(p, layer_bytes, input_bytes) <= budget_bytes), None)
""",
        ),
    ],
}
