"""The training step of the plain GPT as a list of operators, with the tensors that each allocates and frees.

Read next to `lablib/models/gpt.py` and `training_step.py`: operators carry lines of these files. Per layer and token,
in numbers of w bytes (statistics and logsumexp have 4 bytes), forward keeps for backward

    its input D | norm D | query, key, value 3 D | attention's output D | after the residual D | norm D | up, GELU 2 F

which is 16 D for F = 4 D, and 4 (4 + H) bytes of statistics; the head keeps its input twice, and its scores as
log-probabilities in 32 bits. Backward frees each as soon as its gradient is computed.

A checkpointed segment of k layers keeps only its input. Backward recomputes it except for the last product and sum,
which are not needed.

From the second micro-batch on, a weight's gradient is a temporary that is added to the sum and freed.

Legend: D width, F hidden width, H heads, V vocabulary, T tokens of a sequence, w bytes of a number.
Source: tests compare every operator with the simulator's memory tracker of the same step, to the byte.
Simplified: attention is flash attention's memory (outputs and logsumexp) at every precision; its FLOPs are half of the
full square's (causal), and its backward computes the scores again.
"""

from typing import NamedTuple

from lablib.memory.step_trace import StepOptions, StepTrace, Trace, TracedAllocation, line_of
from lablib.models.transformer import Transformer

_GPT, _STEP = "models/gpt.py", "memory/training_step.py"


class Saved(NamedTuple):
    """The tensors that forward of a layer keeps for backward, the layer's input `x` first."""

    x: TracedAllocation
    norm1: TracedAllocation
    stats1: TracedAllocation
    heads: tuple[TracedAllocation, TracedAllocation, TracedAllocation]
    mixed: TracedAllocation
    logsumexp: TracedAllocation
    middle: TracedAllocation
    norm2: TracedAllocation
    stats2: TracedAllocation
    up: TracedAllocation
    gelu: TracedAllocation


def is_plain(model: Transformer) -> bool:
    """Whether the sizes are of the plain GPT of lablib/models/gpt.py."""
    usual = model.activation, model.positions, model.norm, model.has_bias, model.kv_heads
    is_dense = model.latent is None and model.experts is None
    return is_dense and usual == ("gelu", "learned", "layer", True, model.num_heads) and model.d_head is None


class StepScript:
    """One step of the model. `run()` records it; the methods are its parts, in the order of the program."""

    def __init__(self, model: Transformer, seq_len: int, kind: StepOptions):
        self.model, self.seq_len, self.kind = model, seq_len, kind
        self.trace, self.is_later = Trace(), False
        self.gradients: list[TracedAllocation] = []

    # ---- sizes ----

    @property
    def weight_sizes(self) -> list[int]:
        """Numbers of every parameter tensor, in the model's order."""
        m = self.model
        d, f = m.d_model, m.hidden_size
        block = [d, d, *[d * d, d] * 4, d, d, d * f, f, f * d, d]
        head = [] if m.tied_head else [m.vocab_size * d]
        return [m.vocab_size * d, m.max_seq_len * d, *block * m.num_layers, d, d, *head]

    def stream(self, category: str = "activation", columns: int = 0) -> TracedAllocation:
        """[T, columns] of a sequence; D columns by default."""
        return TracedAllocation(category, 0, self.seq_len * (columns or self.model.d_model) * self.kind.width)

    def statistics(self, columns: int) -> TracedAllocation:
        return TracedAllocation("activation", 0, self.seq_len * columns * 4)

    def scores(self, category: str, width: int) -> TracedAllocation:
        return TracedAllocation(category, 0, self.seq_len * self.model.vocab_size * width)

    def gradient(self, numbers: int) -> TracedAllocation:
        """A new gradient; from the second micro-batch on it is a temporary, to be added to the sum."""
        block = TracedAllocation("other" if self.is_later else "gradient", numbers * self.kind.width)
        if not self.is_later:
            self.gradients.append(block)
        return block

    def settle(self, *gradients: TracedAllocation) -> None:
        """Add gradients to the sum and free them; those of the first micro-batch stay."""
        if self.is_later:
            self.trace.free(*gradients)

    def product_flops(self, rows: int, columns: int) -> int:
        return 2 * self.seq_len * rows * columns

    # ---- the step ----

    def run(self) -> StepTrace:
        self._start()
        for number in range(self.kind.num_microbatches):
            self.is_later = number > 0
            self._micro_batch()
        self._optimizer()
        return self.trace.finish()

    def _start(self) -> None:
        """Allocations before the step: weights, the optimizer's state, the data."""
        sizes, trace = self.weight_sizes, self.trace
        trace.phase = "before the step"
        state = self.kind.num_moments * self.kind.state_width + 4 * self.kind.has_master
        counters = 4 * len(sizes) if self.kind.num_moments == 2 else 0  # Adam's step count of each tensor
        here = line_of(_STEP, "def training_step(")
        weights = TracedAllocation("parameter", sum(sizes) * self.kind.width)
        data = TracedAllocation("other", 0, 2 * 8 * self.seq_len * self.kind.num_microbatches)
        trace.begin(here, weights, TracedAllocation("optimizer state", sum(sizes) * state + counters), data)

    def _micro_batch(self) -> None:
        trace, layers = self.trace, self.model.num_layers
        trace.phase, trace.layer = "forward", -1
        positions, x = self._embed()
        every = self.kind.every or layers
        segments: list[tuple[list[Saved], TracedAllocation]] = []
        for first in range(0, layers, every):
            numbers = range(first, min(first + every, layers))
            saved, out = self._forward_segment(x, numbers, keeps=not self.kind.every)
            segments.append((saved, x))
            x = out
        dx = self._head(x)
        for first, (saved, x) in zip(reversed(range(0, layers, every)), reversed(segments), strict=True):
            numbers = range(first, min(first + every, layers))
            if self.kind.every:
                trace.phase = "recompute"
                saved, _ = self._forward_segment(x, numbers, keeps=True, is_again=True)
                trace.phase = "backward"
            for number, layer in zip(reversed(numbers), reversed(saved), strict=True):
                trace.layer = number
                dx = self._backward_layer(dx, layer)
        trace.layer = -1
        self._embed_backward(dx, positions)

    def _embed(self) -> tuple[TracedAllocation, TracedAllocation]:
        trace, d, w = self.trace, self.model.d_model, self.kind.width
        positions = TracedAllocation("other", 8 * self.seq_len)
        trace.op("aten.arange", line_of(_GPT, "positions_T = torch.arange"), [positions])
        here = line_of(_GPT, "self.token_embedding(tokens_BT) + self.position_embedding")
        tokens, places, x = self.stream(), TracedAllocation("activation", self.seq_len * d * w), self.stream()
        trace.op("aten.embedding", here, [tokens])
        trace.op("aten.embedding", here, [places])
        trace.op("aten.add", here, [x], [tokens, places])
        trace.free(tokens, places)
        return positions, x

    def _forward_segment(
        self, x: TracedAllocation, numbers: range, keeps: bool, is_again: bool = False
    ) -> tuple[list[Saved], TracedAllocation]:
        """Layers one after the other. Recomputation stops before the last product, which is not needed."""
        saved = []
        for number in numbers:
            self.trace.layer = number
            layer, out = self._forward_layer(x, keeps, stops=is_again and number == numbers[-1])
            saved.append(layer)
            if not keeps and number > numbers[0]:
                self.trace.free(x)
            x = out
        self.trace.layer = -1
        return saved, x

    def _forward_layer(self, x: TracedAllocation, keeps: bool, stops: bool) -> tuple[Saved, TracedAllocation]:
        trace, m = self.trace, self.model

        def drop(*blocks: TracedAllocation) -> None:
            """Free what only backward needs."""
            if not keeps:
                trace.free(*blocks)

        norm1, stats1 = self._norm(x, "self.attention(self.attention_norm(x_BTD))")
        drop(stats1)
        heads = (self.stream(), self.stream(), self.stream())
        for head in heads:
            here = line_of(_GPT, "for linear in (self.query, self.key, self.value)")
            trace.op("aten.addmm", here, [head], [norm1], self.product_flops(m.d_model, m.d_model))
        mixed, logsumexp = self.stream(), self.statistics(m.num_heads)
        here = line_of(_GPT, "F.scaled_dot_product_attention(")
        flops = 2 * self.seq_len**2 * m.d_model
        trace.op("aten.scaled_dot_product_attention", here, [mixed, logsumexp], heads, flops)
        drop(logsumexp)
        out, middle = self.stream(), self.stream()
        flops = self.product_flops(m.d_model, m.d_model)
        trace.op("aten.addmm", line_of(_GPT, "return self.out("), [out], [mixed], flops)
        drop(*heads, mixed, norm1)
        trace.op("aten.add", line_of(_GPT, "self.attention(self.attention_norm(x_BTD))"), [middle], [x, out])
        trace.free(out)
        norm2, stats2 = self._norm(middle, "self.mlp(self.mlp_norm(x_BTD))")
        drop(stats2)
        up, gelu = self.stream(columns=m.hidden_size), self.stream(columns=m.hidden_size)
        here, flops = line_of(_GPT, "F.gelu(self.up(x_BTD)"), self.product_flops(m.d_model, m.hidden_size)
        trace.op("aten.addmm", here, [up], [norm2], flops)
        trace.op("aten.gelu", here, [gelu], [up])
        saved = Saved(x, norm1, stats1, heads, mixed, logsumexp, middle, norm2, stats2, up, gelu)
        if stops:
            return saved, x
        drop(up)
        down, y = self.stream(), self.stream()
        trace.op("aten.addmm", here, [down], [gelu], flops)
        drop(gelu, norm2)
        trace.op("aten.add", line_of(_GPT, "self.mlp(self.mlp_norm(x_BTD))"), [y], [middle, down])
        trace.free(down)
        drop(middle)
        return saved, y

    def _norm(self, x: TracedAllocation, code: str) -> tuple[TracedAllocation, TracedAllocation]:
        """A normalized copy, and a mean and a deviation for each token."""
        norm, stats = self.stream(), self.statistics(2)
        self.trace.op("aten.native_layer_norm", line_of(_GPT, code), [norm, stats], [x])
        return norm, stats

    def _head(self, x: TracedAllocation) -> TracedAllocation:
        """The loss, forward and backward: where many steps peak. Frees `x` and returns its gradient."""
        trace, m, w = self.trace, self.model, self.kind.width
        here, flops = line_of(_GPT, "self.head(self.final_norm(x_BTD))"), self.product_flops(m.d_model, m.vocab_size)
        norm, stats = self._norm(x, "self.head(self.final_norm(x_BTD))")
        logits, log_softmax = self.scores("activation", w), self.scores("activation", 4)
        trace.op("aten.mm", here, [logits], [norm], flops)
        loss_line, wide = line_of(_GPT, "return F.cross_entropy("), self.scores("activation", 4)
        if w < 4:
            trace.op("aten._to_copy", loss_line, [wide], [logits])
        trace.op("aten._log_softmax", loss_line, [log_softmax], [logits])
        loss, count = TracedAllocation("activation", 4), TracedAllocation("activation", 4)
        trace.op("aten.nll_loss_forward", loss_line, [loss, count])
        trace.free(logits, *([wide] if w < 4 else []))
        trace.phase = "backward"
        one, by_token, dlogits = TracedAllocation("activation", 4), self.scores("other", 4), self.scores("other", 4)
        trace.op("aten.ones_like", line_of(_STEP, "loss.backward()"), [one])
        trace.op("aten.nll_loss_backward", loss_line, [by_token])
        trace.free(count)
        trace.op("aten._log_softmax_backward_data", loss_line, [dlogits], [by_token, log_softmax])
        trace.free(by_token, log_softmax)
        if w < 4:
            narrow = self.scores("other", w)
            trace.op("aten._to_copy", loss_line, [narrow], [dlogits])
            trace.free(dlogits)
            dlogits = narrow
        numbers = m.vocab_size * m.d_model
        self.head_gradient = TracedAllocation("other", numbers * w) if m.tied_head else self.gradient(numbers)
        dnorm = self.stream("other")
        trace.op("aten.mm", here, [self.head_gradient], [dlogits, norm], flops)
        trace.op("aten.mm", here, [dnorm], [dlogits], flops)
        trace.free(dlogits, norm)
        if not m.tied_head:
            self.settle(self.head_gradient)
        self.loss = (one, loss)
        dx, gradients = self._norm_backward(dnorm, x, stats, "self.head(self.final_norm(x_BTD))")
        self.settle(*gradients)
        return dx

    def _norm_backward(
        self, dnorm: TracedAllocation, x: TracedAllocation, stats: TracedAllocation, code: str
    ) -> tuple[TracedAllocation, list[TracedAllocation]]:
        dx, gradients = self.stream("other"), [self.gradient(self.model.d_model) for _ in range(2)]
        self.trace.op("aten.native_layer_norm_backward", line_of(_GPT, code), [dx, *gradients], [dnorm, x])
        self.trace.free(dnorm, x, stats)
        return dx, gradients

    def _linear_backward(
        self,
        dy: TracedAllocation,
        x: TracedAllocation,
        code: str,
        rows: int,
        columns: int,
        frees: list[TracedAllocation],
    ) -> TracedAllocation:
        """Gradients of the input [T, rows], the weight and the bias; `frees` are no longer needed afterwards."""
        trace, here, flops = self.trace, line_of(_GPT, code), self.product_flops(rows, columns)
        dx, weight, bias = self.stream("other", rows), self.gradient(rows * columns), self.gradient(columns)
        trace.op("aten.mm", here, [dx], [dy], flops)
        trace.op("aten.mm", here, [weight], [dy, x], flops)
        # Recomputed tensors are freed with their operator; otherwise the graph holds them a little longer.
        early = [block for block in frees if block is x and self.kind.every]
        trace.free(*early)
        trace.op("aten.sum", here, [bias], [dy])
        trace.free(*(block for block in frees if block not in early))
        self.settle(weight, bias)
        return dx

    def _backward_layer(self, dy: TracedAllocation, saved: Saved) -> TracedAllocation:
        """The gradient of the layer's input from the gradient of its output; frees all saved tensors."""
        trace, d, f = self.trace, self.model.d_model, self.model.hidden_size
        here = "F.gelu(self.up(x_BTD)"
        dgelu = self._linear_backward(dy, saved.gelu, here, f, d, [saved.gelu])
        dup = self.stream("other", f)
        trace.op("aten.gelu_backward", line_of(_GPT, here), [dup], [dgelu, saved.up])
        trace.free(dgelu, saved.up)
        dnorm = self._linear_backward(dup, saved.norm2, here, d, f, [saved.norm2, dup])
        code = "self.mlp(self.mlp_norm(x_BTD))"
        dmiddle = self._residual_backward(dy, dnorm, saved.middle, saved.stats2, code)
        dmixed = self._linear_backward(dmiddle, saved.mixed, "return self.out(", d, d, [])
        dnorm = self._attention_backward(dmixed, saved)
        code = "self.attention(self.attention_norm(x_BTD))"
        return self._residual_backward(dmiddle, dnorm, saved.x, saved.stats1, code)

    def _attention_backward(self, dmixed: TracedAllocation, saved: Saved) -> TracedAllocation:
        """Through the scores, and queries', keys' and values' products: three gradients of one tensor, added."""
        trace, d = self.trace, self.model.d_model
        dheads = [self.stream("other") for _ in range(3)]
        here, flops = line_of(_GPT, "F.scaled_dot_product_attention("), 5 * self.seq_len**2 * d
        reads = [dmixed, *saved.heads, saved.mixed]
        trace.op("aten.scaled_dot_product_attention_backward", here, dheads, reads, flops)
        trace.free(dmixed, *saved.heads, saved.logsumexp, saved.mixed)
        code, total = "for linear in (self.query, self.key, self.value)", None
        for i, dhead in enumerate(dheads):
            frees = [dhead] if i < 2 else [dhead, saved.norm1]
            part = self._linear_backward(dhead, saved.norm1, code, d, d, frees)
            total = part if total is None else self._add(total, part, code)
        assert total is not None
        return total

    def _residual_backward(
        self, dy: TracedAllocation, dnorm: TracedAllocation, x: TracedAllocation, stats: TracedAllocation, code: str
    ) -> TracedAllocation:
        """Through the norm; adds the gradient of the residual stream, and frees both."""
        dx, gradients = self._norm_backward(dnorm, x, stats, code)
        total = self._add(dy, dx, code)
        self.settle(*gradients)
        return total

    def _add(self, a: TracedAllocation, b: TracedAllocation, code: str) -> TracedAllocation:
        total = self.stream("other")
        self.trace.op("aten.add", line_of(_GPT, code), [total], [a, b])
        self.trace.free(a, b)
        return total

    def _embed_backward(self, dx: TracedAllocation, positions: TracedAllocation) -> None:
        trace, m, w = self.trace, self.model, self.kind.width
        here = line_of(_GPT, "self.token_embedding(tokens_BT) + self.position_embedding")
        summed = TracedAllocation("other", self.seq_len * m.d_model * w)
        trace.op("aten.sum", here, [summed], [dx])
        table = self.gradient(m.max_seq_len * m.d_model)
        trace.op("aten.embedding_dense_backward", here, [table], [summed])
        trace.free(summed, positions)
        self.settle(table)
        numbers = m.vocab_size * m.d_model
        tokens = TracedAllocation("other", numbers * w) if m.tied_head else self.gradient(numbers)
        trace.op("aten.embedding_dense_backward", here, [tokens], [dx])
        trace.free(dx)
        if m.tied_head:
            total = self.gradient(numbers)
            trace.op("aten.add", here, [total], [tokens, self.head_gradient])
            trace.free(tokens, self.head_gradient)
            tokens = total
        self.settle(tokens)
        trace.free(*self.loss)

    def _optimizer(self) -> None:
        trace, sizes = self.trace, self.weight_sizes
        trace.phase = "optimizer"
        if self.kind.has_master:
            here, widened = line_of(_STEP, "master.grad = param.grad.float()"), []
            for numbers in sizes:
                narrow, wide = (TracedAllocation("gradient", numbers * each) for each in (self.kind.width, 4))
                trace.op("aten._to_copy", here, [wide], [narrow])
                trace.free(narrow)
                widened.append(wide)
            self.gradients = widened
        size = sum(sizes) * self.kind.state_width
        states = [TracedAllocation("other", size) for _ in range(self.kind.num_moments + 2)]
        temporary = TracedAllocation("other", size * self.kind.temporary_share)
        name = "aten._foreach_sqrt" if self.kind.temporary_share else "optimizer step"
        trace.op(name, line_of(_STEP, "optimizer.step()"), [temporary], states + states)
        trace.free(temporary)
        trace.free(*self.gradients)
        trace.op("gradients are forgotten", line_of(_STEP, "optimizer.zero_grad()"), [])
