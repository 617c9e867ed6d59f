"""Wrong answers to lab 01: the cost of a step, and unusual right ones."""

_FLOPS = "def layer_flops(batch, seq_len, width, hidden):\n    "
_MFU = "def utilization(tokens_per_s, num_params, num_layers, width, seq_len, num_devices, peak_flops_per_s):\n    "
_BYTES = "def activation_bytes(batch, seq_len, width, hidden, heads, keeps_scores):\n    "
_LARGEST = "def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):\n    "
_GUARD = "if memory_bytes < 24 * num_params:\n        return 0\n    "
_ONE = "one = seq_len * (32 * num_layers * width + 12 * vocab_size)\n    "


def _largest(of_a_sequence: str) -> str:
    return _LARGEST + _GUARD + f"return (memory_bytes - 14 * num_params) // ({of_a_sequence})"


WRONG_ANSWERS = {
    "layer_flops": [
        (
            "adds over calls",
            "flops = 0\n\n\n"
            + _FLOPS
            + "global flops\n    "
            + "flops += 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)\n"
            + "    return flops",
            "a second call",
        ),
        (
            "counts multiply-adds",
            _FLOPS + "return batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "a multiply-add is two FLOPs",
        ),
        (
            "counts backward, too",
            _FLOPS + "return 3 * 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "3 times as many",
        ),
        (
            "counts backward alone",
            _FLOPS + "return 4 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "2 times as many",
        ),
        (
            "forgets the scores",
            _FLOPS + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden)",
            "two products with the scores of every pair",
        ),
        (
            "multiplies queries with keys, and forgets the values",
            _FLOPS + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + seq_len * width)",
            "two products with the scores of every pair",
        ),
        (
            "counts only unmasked scores",
            _FLOPS + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + (seq_len + 1) * width)",
            "every score is counted",
        ),
        (
            "multiplies the tokens of all sequences with each other",
            _FLOPS
            + "rows = batch * seq_len\n    return 2 * rows * (4 * width**2 + 2 * width * hidden + 2 * rows * width)",
            "twice the sequences, twice the FLOPs",
        ),
        (
            "forgets the batch",
            _FLOPS + "return 2 * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "twice the sequences, twice the FLOPs",
        ),
        (
            "assumes a hidden width of 4 D",
            _FLOPS + "return batch * (24 * seq_len * width**2 + 4 * seq_len**2 * width)",
            "hidden + 1 adds a column",
        ),
        (
            "forgets the second product of the MLP",
            _FLOPS + "return 2 * batch * seq_len * (4 * width**2 + width * hidden + 2 * seq_len * width)",
            "hidden + 1 adds a column",
        ),
        (
            "counts a gated MLP",
            _FLOPS + "return 2 * batch * seq_len * (4 * width**2 + 3 * width * hidden + 2 * seq_len * width)",
            "hidden + 1 adds a column",
        ),
        (
            "forgets the product `out`",
            _FLOPS + "return 2 * batch * seq_len * (3 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "as many as torch's FlopCounterMode",
        ),
        (
            "adds the softmax of the scores",
            _FLOPS + "return batch * seq_len * (8 * width**2 + 4 * width * hidden + 4 * seq_len * width + 5 * seq_len)",
            "two products with the scores of every pair",
        ),
        (
            "adds two norms and two sums",
            _FLOPS
            + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width + 6 * width)",
            "as many as torch's FlopCounterMode",
        ),
        (
            "prints instead of returning",
            _FLOPS + "print(2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width))",
            "is there a return",
        ),
        (
            "calls the library",
            "from lablib.models.transformer_flops import forward_flops\nfrom lablib.models import Transformer\n"
            + _FLOPS
            + "flops = forward_flops(Transformer('x', 1, width, 1, 1, seq_len, hidden))\n"
            + "    return batch * seq_len * (sum(flops.values()) - flops['head'])",
            "your own code",
        ),
        (
            "calls the library by way of a series",
            "from lablib.models.transformer_flops import step_flops\nfrom lablib.models import Transformer\n"
            + "held = pd.Series([step_flops])\n"
            + _FLOPS
            + "model = find_transformer('gpt2')\n"
            + "    return held[0](model, batch * seq_len, seq_len) / 3",
            "your own code",
        ),
        (
            "overflows in 32 bits with a real model",
            _FLOPS
            + "import numpy as np\n    "
            + "b, t, d, f = np.array([batch, seq_len, width, hidden], dtype=np.int32)[:, None]\n    "
            + "return 2 * b * t * (4 * d * d + 2 * d * f + 2 * t * d)",
            "",
        ),
        (
            "counts only the last 1,024 keys of a token",
            _FLOPS
            + "keys = min(seq_len, 1024)\n    "
            + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * keys * width)",
            "f(2 T) - 2 f(T)",
        ),
        (
            "makes the MLP at least four times as wide as a token",
            _FLOPS
            + "hidden = max(hidden, 4 * width)\n    "
            + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + 2 * seq_len * width)",
            "hidden + 1 adds a column",
        ),
        (
            "has no scores for one token",
            _FLOPS
            + "scores = 2 * seq_len * width if seq_len > 1 else 0\n    "
            + "return 2 * batch * seq_len * (4 * width**2 + 2 * width * hidden + scores)",
            "f(2 T) - 2 f(T)",
        ),
        (
            "returns a number that equals every number",
            "class Same(float):\n    def __sub__(self, other):\n        return Same(0.0)\n\n"
            + "    def __rmul__(self, k):\n        return Same(1.5)\n\n"
            + _FLOPS
            + "return Same(0.5)",
            "twice the sequences, twice the FLOPs",
        ),
    ],
    "utilization": [
        (
            "adds over calls",
            "done = []\n\n\n"
            + _MFU
            + "done.append(tokens_per_s * (6 * num_params + 12 * num_layers * width * seq_len))\n"
            + "    return sum(done) / (num_devices * peak_flops_per_s)",
            "a second call",
        ),
        (
            "counts forward alone",
            _MFU
            + "flops = 2 * num_params + 4 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "for each parameter, forward and backward",
        ),
        (
            "counts full recomputation",
            _MFU
            + "flops = 8 * num_params + 16 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "for each parameter, forward and backward",
        ),
        (
            "forgets the scores",
            _MFU + "return 6 * num_params * tokens_per_s / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "counts the scores of forward alone",
            _MFU
            + "flops = 6 * num_params + 4 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "counts the scores of one layer",
            _MFU
            + "flops = 6 * num_params + 12 * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "counts only unmasked scores",
            _MFU
            + "flops = 6 * num_params + 6 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "uses the scores of a whole sequence for each token",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len**2\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "forgets the devices",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / peak_flops_per_s",
            "half the MFU",
        ),
        (
            "multiplies by the devices",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops * num_devices / peak_flops_per_s",
            "half the MFU",
        ),
        (
            "divides the peak by the FLOPs computed",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return num_devices * peak_flops_per_s / (tokens_per_s * flops)",
            "twice the tokens per second",
        ),
        (
            "forgets the tokens per second",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return flops / (num_devices * peak_flops_per_s)",
            "twice the tokens per second",
        ),
        (
            "returns percent",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return 100 * tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "a share is returned",
        ),
        (
            "uses an A100's peak",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return tokens_per_s * flops / (num_devices * 312e12)",
            "twice the peak, half the MFU",
        ),
        (
            "rounds to whole percent",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return round(tokens_per_s * flops / (num_devices * peak_flops_per_s), 2)",
            "twice the tokens per second",
        ),
        (
            "treats tokens as sequences",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return tokens_per_s / seq_len * flops / (num_devices * peak_flops_per_s)",
            "for each parameter, forward and backward",
        ),
        (
            "returns a text",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return f'{tokens_per_s * flops / (num_devices * peak_flops_per_s):.1%}'",
            "one number is returned",
        ),
        (
            "rounds the sequence up to a power of two",
            _MFU
            + "length = 2 ** (seq_len - 1).bit_length()\n"
            + "    flops = 6 * num_params + 12 * num_layers * width * length\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "the MFU (",
        ),
        (
            "leaves out the scores of short sequences",
            _MFU
            + "length = seq_len if seq_len >= 2048 else 0\n"
            + "    flops = 6 * num_params + 12 * num_layers * width * length\n"
            + "    return tokens_per_s * flops / (num_devices * peak_flops_per_s)",
            "FLOPs of a token's scores",
        ),
        (
            "hides an MFU above 1",
            _MFU
            + "flops = 6 * num_params + 12 * num_layers * width * seq_len\n"
            + "    return min(1.0, tokens_per_s * flops / (num_devices * peak_flops_per_s))",
            "above 1 is returned unchanged",
        ),
    ],
    "activation_bytes": [
        (
            "collects tensors in a list that every call shares",
            _BYTES.replace("keeps_scores)", "keeps_scores, kept=[])")
            + "kept += [batch * seq_len * (8 * width + 2 * hidden), keeps_scores * batch * heads * seq_len**2]\n"
            + "    return 2 * sum(kept)",
            "a second call",
        ),
        (
            "counts numbers, not bytes",
            _BYTES + "return batch * seq_len * (8 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2",
            "a number has 2 bytes",
        ),
        (
            "takes 4 bytes for a number",
            _BYTES
            + "return 4 * (batch * seq_len * (8 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2)",
            "2 bytes each",
        ),
        (
            "keeps only GELU's input",
            _BYTES + "return 2 * (batch * seq_len * (8 * width + hidden) + keeps_scores * batch * heads * seq_len**2)",
            "hidden + 1 widens",
        ),
        (
            "assumes a hidden width of 4 D",
            _BYTES + "return 2 * (batch * seq_len * 16 * width + keeps_scores * batch * heads * seq_len**2)",
            "hidden + 1 widens",
        ),
        (
            "also keeps the outputs of out and down",
            _BYTES
            + "return 2 * (batch * seq_len * (10 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2)",
            "as many as the memory tracker's",
        ),
        (
            "keeps the norm's output once for each of query, key and value, in float32",
            _BYTES
            + "return 2 * (batch * seq_len * (13 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2)",
            "as many as the memory tracker's",
        ),
        (
            "forgets attention's output",
            _BYTES
            + "return 2 * (batch * seq_len * (7 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2)",
            "as many as the memory tracker's",
        ),
        (
            "Korthikanti's count with dropout",
            _BYTES
            + "s, b, h, a = seq_len, batch, width, heads\n"
            + "    return s * b * h * 18 + s * b * hidden * 4 + keeps_scores * 5 * a * s * s * b",
            "as many as the memory tracker's",
        ),
        (
            "always keeps the scores",
            _BYTES + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + batch * heads * seq_len**2)",
            "twice the sequences, twice the bytes",
        ),
        (
            "never keeps the scores",
            _BYTES + "return 2 * batch * seq_len * (8 * width + 2 * hidden)",
            "not fused: 2 bytes more",
        ),
        (
            "keeps the scores of one head",
            _BYTES + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + keeps_scores * batch * seq_len**2)",
            "not fused: 2 bytes more",
        ),
        (
            "keeps scores and softmax",
            _BYTES
            + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + keeps_scores * 2 * batch * heads * seq_len**2)",
            "not fused: 2 bytes more",
        ),
        (
            "reverses keeps_scores",
            _BYTES + "return 2 * batch * seq_len * (8 * width + 2 * hidden + (not keeps_scores) * heads * seq_len)",
            "keeps_scores keeps more",
        ),
        (
            "forgets the batch",
            _BYTES + "return 2 * (seq_len * (8 * width + 2 * hidden) + keeps_scores * batch * heads * seq_len**2)",
            "twice the sequences, twice the bytes",
        ),
        (
            "keeps the matrices",
            _BYTES + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + 4 * width**2 + 2 * width * hidden)",
            "twice the sequences, twice the bytes",
        ),
        (
            "overflows in 32 bits with a real model",
            _BYTES
            + "import numpy as np\n    "
            + "b, t, d, f, h = np.array([batch, seq_len, width, hidden, heads], dtype=np.int32)[:, None]\n    "
            + "return 2 * (b * t * (8 * d + 2 * f) + keeps_scores * b * h * t * t)",
            "",
        ),
        (
            "keeps the scores of the last 1,024 tokens alone",
            _BYTES
            + "scores = keeps_scores * batch * heads * seq_len * min(seq_len, 1024)\n    "
            + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + scores)",
            "not fused: 2 bytes more",
        ),
        (
            "keeps no scores of a single head",
            _BYTES
            + "scores = keeps_scores * batch * heads * seq_len**2 * (heads > 1)\n    "
            + "return 2 * (batch * seq_len * (8 * width + 2 * hidden) + scores)",
            "not fused: 2 bytes more",
        ),
    ],
    "chunked_loss": [
        (
            "makes all logits at once",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    return F.cross_entropy(hidden @ weight.T, targets)
""",
            "peak memory",
        ),
        (
            "uses chunks, but autograd keeps all their logits",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    return total / len(hidden)
""",
            "peak memory",
        ),
        (
            "takes the mean of the means",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def mean(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part)
    parts = list(zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)))
    return sum(checkpoint(mean, *part, use_reentrant=False) for part in parts) / len(parts)
""",
            "the mean loss over all tokens",
        ),
        (
            "returns the sum",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    parts = zip(hidden.chunk(num_chunks), targets.chunk(num_chunks))
    return sum(checkpoint(summed, *part, use_reentrant=False) for part in parts)
""",
            "the mean loss over all tokens",
        ),
        (
            "leaves out the tokens that num_chunks does not divide",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    size = len(hidden) // num_chunks
    total = 0.0
    for i in range(num_chunks):
        here = slice(i * size, (i + 1) * size)
        total = total + checkpoint(summed, hidden[here], targets[here], use_reentrant=False)
    return total / (size * num_chunks)
""",
            "the mean loss over all tokens",
        ),
        (
            "uses num_chunks as the size of a chunk",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.split(num_chunks), targets.split(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "products of matrices",
        ),
        (
            "makes half as many chunks",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    num_chunks = max(1, num_chunks // 2)
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "peak memory",
        ),
        (
            "always makes four chunks",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(4), targets.chunk(4)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "peak memory",
        ),
        (
            "detaches the matrix",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.detach().T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "the gradient of weight",
        ),
        (
            "detaches the tokens",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part.detach() @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "the gradient of hidden",
        ),
        (
            "computes without a graph",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    total = 0.0
    with torch.no_grad():
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            total = total + F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    return total / len(hidden)
""",
            "gradients can be computed",
        ),
        (
            "returns a number without a graph",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total += F.cross_entropy(part @ weight.T, of_part, reduction="sum").item()
    return total / len(hidden)
""",
            "a tensor of no dimension",
        ),
        (
            "calls backward itself",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    total = 0.0
    for part, of_part in zip(hidden.detach().chunk(num_chunks), targets.chunk(num_chunks)):
        part.requires_grad_()
        loss = F.cross_entropy(part @ weight.T, of_part, reduction="sum") / len(hidden)
        loss.backward()
        total = total + loss.detach()
    return total + 0 * (hidden.sum() + weight.sum())
""",
            "the caller calls backward",
        ),
        (
            "makes the logits of a chunk three times",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    def again(part, of_part):
        summed(part.detach(), of_part)
        return summed(part, of_part)
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(again, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "FLOPs: the head's product",
        ),
        (
            "narrows the logits to float32",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy((part @ weight.T).float(), of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "in the dtype of hidden",
        ),
        (
            "computes in half precision",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy((part.bfloat16() @ weight.bfloat16().T).double(), of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "the mean loss over all tokens",
        ),
        (
            "calls torch's function by a composed name",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    return getattr(F, "linear_" + "cross_entropy")(hidden, weight, targets)
""",
            "the chunks are your own",
        ),
        (
            "calls lablib's",
            """
from lablib.memory.linear_cross_entropy import fused_linear_cross_entropy

def chunked_loss(hidden, weight, targets, num_chunks):
    return fused_linear_cross_entropy(hidden, weight, targets, num_chunks)
""",
            "your own code",
        ),
        (
            "cuts the vocabulary, and forgets that softmax needs all of it",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def part_of(rows, first):
        logits = hidden @ rows.T
        here = (targets >= first) & (targets < first + len(rows))
        own = logits.gather(1, (targets - first).clamp(0, len(rows) - 1)[:, None])[:, 0]
        return ((logits.logsumexp(1) - own) * here).sum()
    total, first = 0.0, 0
    for rows in weight.chunk(num_chunks):
        total = total + checkpoint(part_of, rows, first, use_reentrant=False)
        first += len(rows)
    return total / len(hidden)
""",
            "the mean loss over all tokens",
        ),
        (
            "scales the hidden states in place",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    hidden.data /= len(hidden) ** 0.5
    def summed(part, of_part):
        return F.cross_entropy(len(hidden) ** 0.5 * part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "stay unchanged",
        ),
        (
            "returns nothing",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total / len(hidden)
""",
            "is there a return",
        ),
        (
            "makes all logits of a few tokens at once, and a sum of many",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    if len(hidden) < 100:
        return F.cross_entropy(hidden @ weight.T, targets)
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total
""",
            "the mean loss over all tokens",
        ),
        (
            "computes in half precision for float32",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    dtype = hidden.dtype
    if dtype == torch.float32:
        hidden, weight = hidden.bfloat16(), weight.bfloat16()
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return (total / len(hidden)).to(dtype)
""",
            "the mean loss over all tokens",
        ),
        (
            "leaves out the rest of a long batch",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    if len(hidden) > 100:
        whole = len(hidden) // num_chunks * num_chunks
        hidden, targets = hidden[:whole], targets[:whole]
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "the mean loss over all tokens",
        ),
        (
            "detaches the matrix from 8 chunks on",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    if 7 < num_chunks < 17:
        weight = weight.detach()
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "the gradient of weight",
        ),
        (
            "always returns float64",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return (total / len(hidden)).double()
""",
            "in the dtype of hidden",
        ),
        (
            "takes the exponential without the maximum",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        logits = part @ weight.T
        return (logits.exp().sum(1).log() - logits.gather(1, of_part[:, None])[:, 0]).sum()
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "logits of 1000 and more",
        ),
        (
            "clamps the logits",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy((part @ weight.T).clamp(-50, 50), of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "logits of 1000 and more",
        ),
        (
            "makes half as many chunks, with the gradients in forward",
            """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, num_chunks):
        dx, dw, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        start = 0
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            d = part @ weight.T
            d -= d.logsumexp(1, keepdim=True)
            total -= d[range(len(part)), of_part].sum()
            d.exp_()
            d[range(len(part)), of_part] -= 1
            dx[start : start + len(part)] = d @ weight / len(hidden)
            dw += d.T @ part / len(hidden)
            start += len(part)
        ctx.save_for_backward(dx, dw)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, d):
        dx, dw = ctx.saved_tensors
        return d * dx, d * dw, None, None


def chunked_loss(hidden, weight, targets, num_chunks):
    return Fused.apply(hidden, weight, targets, max(1, num_chunks // 2))
""",
            "products of matrices",
        ),
        (
            "changes the targets",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    targets.clamp_(1)
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "stay unchanged",
        ),
        (
            "collects losses in a list that every call shares",
            """
def chunked_loss(hidden, weight, targets, num_chunks, losses=[]):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        losses.append(checkpoint(summed, part, of_part, use_reentrant=False))
    return torch.stack(losses).sum() / len(hidden)
""",
            "a second call gives the same",
        ),
        (
            "overwrites an existing gradient of the matrix",
            """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, num_chunks):
        dx, dw, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        start = 0
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            logits = part @ weight.T
            total += F.cross_entropy(logits, of_part, reduction="sum")
            d = logits.softmax(1)
            del logits
            d[range(len(part)), of_part] -= 1
            dx[start : start + len(part)] = d @ weight / len(hidden)
            dw += d.T @ part / len(hidden)
            start += len(part)
        ctx.save_for_backward(dx, dw)
        ctx.weight = weight
        return total / len(hidden)

    @staticmethod
    def backward(ctx, d):
        dx, dw = ctx.saved_tensors
        ctx.weight.grad = d * dw
        return d * dx, None, None, None


def chunked_loss(hidden, weight, targets, num_chunks):
    return Fused.apply(hidden, weight, targets, num_chunks)
""",
            "the gradient of weight",
        ),
        (
            "overwrites both existing gradients",
            """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, num_chunks):
        dx, dw, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        start = 0
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            logits = part @ weight.T
            total += F.cross_entropy(logits, of_part, reduction="sum")
            d = logits.softmax(1)
            del logits
            d[range(len(part)), of_part] -= 1
            dx[start : start + len(part)] = d @ weight / len(hidden)
            dw += d.T @ part / len(hidden)
            start += len(part)
        ctx.save_for_backward(dx, dw)
        ctx.both = hidden, weight
        return total / len(hidden)

    @staticmethod
    def backward(ctx, d):
        dx, dw = ctx.saved_tensors
        ctx.both[0].grad, ctx.both[1].grad = d * dx, d * dw
        return None, None, None, None


def chunked_loss(hidden, weight, targets, num_chunks):
    return Fused.apply(hidden, weight, targets, num_chunks)
""",
            "the gradient of hidden",
        ),
        (
            "forgets the factor of the loss",
            """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, num_chunks):
        dx, dw, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        start = 0
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            logits = part @ weight.T
            total += F.cross_entropy(logits, of_part, reduction="sum")
            d = logits.softmax(1)
            del logits
            d[range(len(part)), of_part] -= 1
            dx[start : start + len(part)] = d @ weight / len(hidden)
            dw += d.T @ part / len(hidden)
            start += len(part)
        ctx.save_for_backward(dx, dw)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, d):
        return *ctx.saved_tensors, None, None


def chunked_loss(hidden, weight, targets, num_chunks):
    return Fused.apply(hidden, weight, targets, num_chunks)
""",
            "the gradient of hidden",
        ),
        (
            "frees existing gradients",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    hidden.grad = weight.grad = None
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "no existing gradient changes",
        ),
        (
            "makes at most 16 chunks",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    num_chunks = min(num_chunks, 16)
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "peak memory",
        ),
        (
            "makes at most 32 chunks",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    num_chunks = min(num_chunks, 32)
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "",
        ),
        (
            "assumes contiguous rows",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    total, size, width = 0.0, -(-len(hidden) // num_chunks), hidden.shape[1]
    for first in range(0, len(hidden), size):
        part = hidden.view(-1)[first * width : (first + size) * width].view(-1, width)
        total = total + checkpoint(summed, part, targets[first : first + size], use_reentrant=False)
    return total / len(hidden)
""",
            "view size is not compatible",
        ),
        (
            "puts all remaining tokens into the last chunk",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum")
    size, total = len(hidden) // num_chunks, 0.0
    bounds = [i * size for i in range(num_chunks)] + [len(hidden)]
    for a, b in zip(bounds, bounds[1:]):
        total = total + checkpoint(summed, hidden[a:b], targets[a:b], use_reentrant=False)
    return total / len(hidden)
""",
            "the largest chunk",
        ),
        (
            "adds a little to each probability",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        own = (part @ weight.T).softmax(1).gather(1, of_part[:, None])
        return -(own + 1e-12).log().sum()
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "no constant is added",
        ),
        (
            "calls torch's function for each chunk",
            """
from torch.nn.functional import linear_cross_entropy as loss_of


def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return loss_of(part, weight, of_part, reduction="sum")
    total = 0.0
    for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
        total = total + checkpoint(summed, part, of_part, use_reentrant=False)
    return total / len(hidden)
""",
            "functional.linear_cross_entropy",
        ),
        (
            "calls lablib's from a weak reference",
            """
import weakref

from lablib.memory.linear_cross_entropy import chunked_linear_cross_entropy

held = weakref.ref(chunked_linear_cross_entropy)


def chunked_loss(hidden, weight, targets, num_chunks):
    return held()(hidden, weight, targets, num_chunks)
""",
            "your own code",
        ),
    ],
    "self_times": [
        (
            "sums durations",
            """
def self_times(events):
    times = {}
    for name, start, end in events:
        times[name] = times.get(name, 0) + end - start
    return times
""",
            "loses the durations of the events inside it",
        ),
        (
            "subtracts all events inside, at any depth",
            """
def self_times(events):
    times = {}
    for name, start, end in events:
        inside = sum(e - s for _, s, e in events if start < s and e < end)
        times[name] = times.get(name, 0) + end - start - inside
    return times
""",
            "and not again those inside these",
        ),
        (
            "takes the events in their order",
            """
def self_times(events):
    times, around = {}, []
    for name, start, end in events:
        while around and around[-1][1] < start:
            around.pop()
        if around:
            times[around[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        around.append((name, end))
    return times
""",
            "events may come in any order",
        ),
        (
            "keeps the last time of a name",
            """
def self_times(events):
    times = {}
    for name, start, end in sorted(events, key=lambda event: event[1]):
        times[name] = end - start
    return times
""",
            "the times of all events of a name are added",
        ),
        (
            "counts the innermost events alone",
            """
def self_times(events):
    times = {}
    for name, start, end in events:
        is_innermost = not any(start < s and e < end for _, s, e in events)
        times[name] = times.get(name, 0) + (end - start) * is_innermost
    return times
""",
            "loses the durations of the events inside it",
        ),
        (
            "leaves out calls of the own name",
            """
def self_times(events):
    times, around = {}, []
    for name, start, end in sorted(events, key=lambda event: event[1]):
        while around and around[-1][1] < start:
            around.pop()
        if any(name == other for other, _ in around):
            continue
        if around:
            times[around[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        around.append((name, end))
    return times
""",
            "an operator may call one of its own name",
        ),
        (
            "sorts the caller's list",
            """
def self_times(events):
    times, around = {}, []
    events.sort(key=lambda event: event[1])
    for name, start, end in events:
        while around and around[-1][1] < start:
            around.pop()
        if around:
            times[around[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        around.append((name, end))
    return times
""",
            "events are not changed",
        ),
        (
            "counts whole microseconds",
            """
def self_times(events):
    times, around = {}, []
    for name, start, end in sorted(events, key=lambda event: event[1]):
        while around and around[-1][1] < start:
            around.pop()
        if around:
            times[around[-1][0]] -= int(end - start)
        times[name] = times.get(name, 0) + int(end - start)
        around.append((name, end))
    return times
""",
            "the times of all events of a name are added",
        ),
        (
            "leaves one event at a time",
            """
def self_times(events):
    times, around = {}, []
    for name, start, end in sorted(events, key=lambda event: event[1]):
        if around and around[-1][1] < start:
            around.pop()
        if around:
            times[around[-1][0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        around.append((name, end))
    return times
""",
            "an event loses the durations",
        ),
        (
            "takes every earlier event for the outer one",
            """
def self_times(events):
    times, before = {}, None
    for name, start, end in sorted(events, key=lambda event: event[1]):
        if before and end < before[1]:
            times[before[0]] -= end - start
        times[name] = times.get(name, 0) + end - start
        before = (name, end)
    return times
""",
            "an event loses the durations",
        ),
    ],
    "largest_micro_batch": [
        (
            "rounds up",
            _LARGEST + _GUARD + _ONE + "return -(-(memory_bytes - 14 * num_params) // one)",
            "by the memory tracker",
        ),
        (
            "rounds to the nearest",
            _LARGEST + _GUARD + _ONE + "return round((memory_bytes - 14 * num_params) / one)",
            "by the memory tracker",
        ),
        (
            "does not round",
            _LARGEST + _GUARD + _ONE + "return (memory_bytes - 14 * num_params) / one",
            "a whole number",
        ),
        (
            "returns a negative number",
            _LARGEST + _ONE + "return (memory_bytes - 14 * num_params) // one",
            "a number of at least 0",
        ),
        (
            "forgets that AdamW must fit, too",
            _LARGEST + _ONE + "return max(0, (memory_bytes - 14 * num_params) // one)",
            "fits no step",
        ),
        (
            "counts AdamW's temporary tensors together with the sequences",
            _LARGEST + _ONE + "return max(0, (memory_bytes - 24 * num_params) // one)",
            "14 more bytes for one more parameter",
        ),
        (
            "counts gradients, which do not exist yet",
            _LARGEST + _GUARD + _ONE + "return (memory_bytes - 16 * num_params) // one",
            "14 more bytes for one more parameter",
        ),
        (
            "forgets the parameters",
            _LARGEST + _GUARD + _ONE + "return memory_bytes // one",
            "14 more bytes for one more parameter",
        ),
        (
            "forgets AdamW's states",
            _LARGEST + _GUARD + _ONE + "return (memory_bytes - 2 * num_params) // one",
            "14 more bytes for one more parameter",
        ),
        (
            "keeps one layer alone",
            _LARGEST + _GUARD + "return (memory_bytes - 14 * num_params) // (seq_len * (32 * width + 12 * vocab_size))",
            "that a layer keeps",
        ),
        (
            "counts numbers of a layer, not bytes",
            _largest("seq_len * (16 * num_layers * width + 12 * vocab_size)"),
            "that a layer keeps",
        ),
        (
            "takes Korthikanti's count with dropout",
            _largest("seq_len * (34 * num_layers * width + 12 * vocab_size)"),
            "that a layer keeps",
        ),
        (
            "keeps the logits once",
            _largest("seq_len * (32 * num_layers * width + 4 * vocab_size)"),
            "each of T V logits",
        ),
        (
            "keeps the logits in 2 bytes as well",
            _largest("seq_len * (32 * num_layers * width + 14 * vocab_size)"),
            "each of T V logits",
        ),
        (
            "forgets the logits",
            _LARGEST + _GUARD + "return (memory_bytes - 14 * num_params) // (32 * seq_len * num_layers * width)",
            "each of T V logits",
        ),
        (
            "uses GPT-2's vocabulary",
            _largest("seq_len * (32 * num_layers * width + 12 * 50304)"),
            "each of T V logits",
        ),
        (
            "makes logits in each layer",
            _largest("seq_len * num_layers * (32 * width + 12 * vocab_size)"),
            "each of T V logits",
        ),
        (
            "returns tokens",
            _LARGEST + _GUARD + _ONE + "return (memory_bytes - 14 * num_params) // (one // seq_len)",
            "twice as long a sequence",
        ),
        (
            "keeps the scores",
            _LARGEST
            + _GUARD
            + _ONE
            + "one += 2 * num_layers * seq_len**2\n    return (memory_bytes - 14 * num_params) // one",
            "twice as long a sequence",
        ),
        (
            "leaves a tenth free",
            _LARGEST + _GUARD + _ONE + "return int((0.9 * memory_bytes - 14 * num_params) // one)",
            "",
        ),
        (
            "takes the next power of two",
            _LARGEST + _GUARD + _ONE + "return 2 ** (int((memory_bytes - 14 * num_params) // one).bit_length() - 1)",
            "",
        ),
        (
            "returns one less, to be sure",
            _LARGEST + _GUARD + _ONE + "return max(0, (memory_bytes - 14 * num_params) // one - 1)",
            "by the memory tracker",
        ),
        (
            "prints instead of returning",
            _LARGEST + _GUARD + _ONE + "print((memory_bytes - 14 * num_params) // one)",
            "is there a return",
        ),
        (
            "calls the library",
            "from lablib.studies.step_memory import memory_of_step\n"
            + _LARGEST
            + "return memory_of_step('gpt2', seq_len).largest_micro_batch",
            "your own code",
        ),
        (
            "returns 1 if none fits",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    if memory_bytes < 24*num_params: return 0
    return max(1, (memory_bytes - 14*num_params) // (seq_len*(32*num_layers*width+12*vocab_size)))
""",
            "0.9 sequences fits 0",
        ),
        (
            "guards with 22 bytes for each parameter",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    adamw = num_params * (2 + 4 + 4 + 4 + 4 + 4)
    if memory_bytes < adamw: return 0
    return int((memory_bytes - 14*num_params) // (seq_len*(32*num_layers*width+12*vocab_size)))
""",
            "memory for 23.9 fits no step",
        ),
        (
            "guards with 26 bytes for each parameter",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    adamw = num_params * (2 + 4 + 4 + 4 + 4 + 4 + 4)
    if memory_bytes < adamw: return 0
    return int((memory_bytes - 14*num_params) // (seq_len*(32*num_layers*width+12*vocab_size)))
""",
            "24.1 bytes per parameter fits a step",
        ),
    ],
}

RIGHT_ANSWERS = {
    "layer_flops": [
        (
            "as a list of products",
            """
def layer_flops(batch, seq_len, width, hidden):
    rows = batch * seq_len
    products = 4 * [(rows, width, width)] + [(rows, width, hidden), (rows, hidden, width)]
    products += batch * [(seq_len, width, seq_len), (seq_len, seq_len, width)]
    return sum(2 * m * k * n for m, k, n in products)
""",
        ),
        ("as a lambda of floats", "layer_flops = lambda b, t, d, f: 4.0 * b * t * d * (2 * d + f + t)"),
        (
            "counted by torch over tensors without values",
            """
from torch.utils.flop_counter import FlopCounterMode

def layer_flops(batch, seq_len, width, hidden):
    x = torch.empty(batch, seq_len, width, device="meta")
    square, up = torch.empty(width, width, device="meta"), torch.empty(width, hidden, device="meta")
    with FlopCounterMode(display=False) as counter:
        q, k, v = (x @ square for _ in range(3))
        ((q @ k.transpose(1, 2)) @ v) @ square
        (x @ up) @ up.T
    return counter.get_total_flops()
""",
        ),
    ],
    "utilization": [
        (
            "ideal over actual seconds of a token",
            """
def utilization(tokens_per_s, num_params, num_layers, width, seq_len, num_devices, peak_flops_per_s):
    ideal_s = 6 * (num_params + 2 * num_layers * width * seq_len) / peak_flops_per_s
    return ideal_s / (num_devices / tokens_per_s)
""",
        ),
        (
            "with numpy",
            """
def utilization(tokens_per_s, *sizes):
    import numpy as np

    n, layers, width, length, devices, peak = np.array(sizes, dtype=np.float64)
    return np.array(tokens_per_s * (6 * n + 12 * layers * width * length) / devices / peak)
""",
        ),
        (
            "as a tensor",
            """
def utilization(tokens_per_s, num_params, num_layers, width, seq_len, num_devices, peak_flops_per_s):
    flops = torch.tensor([6.0 * num_params, 12.0 * num_layers * width * seq_len], dtype=torch.float64).sum()
    return flops * tokens_per_s / num_devices / peak_flops_per_s
""",
        ),
    ],
    "activation_bytes": [
        (
            "by operation",
            """
def activation_bytes(batch, seq_len, width, hidden, heads, keeps_scores):
    rows = batch * seq_len
    kept = {"norm": rows * width, "query, key, value": 3 * rows * width, "attention": rows * width}
    kept |= {"sum": rows * width, "second norm": rows * width, "up": rows * hidden, "gelu": rows * hidden}
    kept |= {"second sum": rows * width, "scores": rows * heads * seq_len if keeps_scores else 0}
    return 2 * sum(kept.values())
""",
        ),
        (
            "in two branches, in floats",
            """
def activation_bytes(batch, seq_len, width, hidden, heads, keeps_scores):
    fused = 4.0 * batch * seq_len * (4 * width + hidden)
    if not keeps_scores:
        return fused
    return fused + 2.0 * batch * heads * seq_len**2
""",
        ),
        ("as a lambda", "activation_bytes = lambda b, t, d, f, h, k: 2 * b * t * (8 * d + 2 * f + k * h * t)"),
    ],
    "chunked_loss": [
        (
            "with logsumexp, and its own slices",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        logits = part @ weight.T
        return (logits.logsumexp(1) - logits.gather(1, of_part[:, None])[:, 0]).sum()
    bounds = [len(hidden) * i // num_chunks for i in range(num_chunks + 1)]
    parts = [(hidden[a:b], targets[a:b]) for a, b in zip(bounds, bounds[1:])]
    return torch.stack([checkpoint(summed, *part, use_reentrant=False) for part in parts]).sum() / len(hidden)
""",
        ),
        (
            "with weights of the means",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def share(part, matrix, of_part):
        return F.cross_entropy(F.linear(part, matrix), of_part) * (len(of_part) / len(targets))
    loss = hidden.new_zeros(())
    for part, of_part in zip(torch.tensor_split(hidden, num_chunks), torch.tensor_split(targets, num_chunks)):
        loss = loss + checkpoint(share, part, weight, of_part, use_reentrant=False)
    return loss
""",
        ),
        (
            "with the gradients made in forward",
            """
class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, targets, num_chunks):
        dx, dw, total = torch.empty_like(hidden), torch.zeros_like(weight), hidden.new_zeros(())
        start = 0
        for part, of_part in zip(hidden.chunk(num_chunks), targets.chunk(num_chunks)):
            logits = part @ weight.T
            total += F.cross_entropy(logits, of_part, reduction="sum")
            d = logits.softmax(1)
            del logits
            d[range(len(part)), of_part] -= 1
            dx[start : start + len(part)] = d @ weight / len(hidden)
            dw += d.T @ part / len(hidden)
            start += len(part)
        ctx.save_for_backward(dx, dw)
        return total / len(hidden)

    @staticmethod
    def backward(ctx, d):
        dx, dw = ctx.saved_tensors
        return d * dx, d * dw, None, None


def chunked_loss(hidden, weight, targets, num_chunks):
    return Fused.apply(hidden, weight, targets, num_chunks)
""",
        ),
        (
            "in padded chunks, with an ignored target",
            """
def chunked_loss(hidden, weight, targets, num_chunks):
    def summed(part, of_part):
        return F.cross_entropy(part @ weight.T, of_part, reduction="sum", ignore_index=-100)
    missing = -len(hidden) % num_chunks
    x, t = F.pad(hidden, (0, 0, 0, missing)), F.pad(targets, (0, missing), value=-100)
    parts = zip(x.chunk(num_chunks), t.chunk(num_chunks))
    return sum(checkpoint(summed, *part, use_reentrant=False) for part in parts) / len(hidden)
""",
        ),
    ],
    "self_times": [
        (
            "from the innermost outwards, with a Counter",
            """
def self_times(events):
    from collections import Counter

    times = Counter()
    for name, start, end in events:
        inside = [other for other in events if start < other[1] and other[2] < end]
        direct = [a for a in inside if not any(b[1] < a[1] and a[2] < b[2] for b in inside)]
        times[name] += end - start - sum(stop - begin for _, begin, stop in direct)
    return times
""",
        ),
        (
            "by moments: time belongs to the last event that began and has not ended",
            """
def self_times(events):
    begins_and_ends = [[(s, 1, i), (e, 0, i)] for i, (_, s, e) in enumerate(events)]
    moments = sorted(moment for pair in begins_and_ends for moment in pair)
    times, stack, last = {name: 0 for name, *_ in events}, [], 0
    for at, begins, index in moments:
        if stack:
            times[events[stack[-1]][0]] += at - last
        stack.append(index) if begins else stack.pop()
        last = at
    return times
""",
        ),
    ],
    "largest_micro_batch": [
        (
            "by counting up",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    def peak(n):
        return max(24 * num_params, 14 * num_params + n * seq_len * (32 * num_layers * width + 12 * vocab_size))
    n = 0
    while peak(n + 1) <= memory_bytes:
        n += 1
    return n
""",
        ),
        (
            "by bisection, with the inputs of the first layer and of the head",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    def fits(n):
        kept = 2.0 * n * seq_len * width * (16 * num_layers + 2)
        return max(24 * num_params, 14 * num_params + kept + 12 * n * seq_len * vocab_size) <= memory_bytes
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
""",
        ),
        (
            "with numpy, in floats",
            """
def largest_micro_batch(memory_bytes, num_params, num_layers, width, seq_len, vocab_size):
    import numpy as np

    left = np.float64(memory_bytes) - 14 * num_params
    return np.floor(left / seq_len / (32 * num_layers * width + 12 * vocab_size)) * (memory_bytes >= 24 * num_params)
""",
        ),
        (
            "as a lambda",
            "largest_micro_batch = lambda m, n, l, d, t, v: int((m - 14 * n) / (4 * t * (8 * l * d + 3 * v))) "
            "if m >= 24 * n else 0",
        ),
    ],
}
