"""Checks of lab 11: compressing communication. All run on the simulator, on random data and numbers of ranks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lablib import Run
from lablib.compress import Int4, level_bytes
from lablib.course import Expect, exercise
from lablib.course.checks.draw import Draw
from lablib.course.checks.expect import RuleBroken
from lablib.course.checks.formatting import short_repr
from lablib.course.checks.operators import Operators
from lablib.course.checks.rules import (
    calls_only,
    changes_nothing,
    not_from_lablib,
    observe,
    returns_new_tensors,
    same_on_every_rank,
    sent_bytes_within,
)
from lablib.parallel import node_mesh
from lablib.text.units import plural

REPEATS = 4000  # roundings of each number; its mean is then off by less than 0.008 of a step, one time in three


@exercise(
    "Quantize, unbiased",
    hints=[
        "Look at the rows of `x.view(-1, block)`. Which number of a row sets its scale?",
        "`x / scale` lies between two whole numbers. Add a random number from 0 to 1, and take the whole number below: "
        "how often is it the upper one? Every number needs a separate draw (`torch.rand_like`).",
        "`torch.floor(steps + torch.rand_like(steps)).clamp(-q, q)`: a sum may be rounded up. A block of zeros has "
        "scale 0: divide by `scales.clamp(min=torch.finfo(x.dtype).tiny)`, and return the unclamped scale.",
    ],
)
def quantize(expect: Expect, quantize: Callable[[Tensor, int, int], tuple[Tensor, Tensor]]) -> None:
    not_from_lablib(quantize)
    draw = expect.draw
    for bits in draw.shuffled(list(range(2, 9))):
        expect.measured.clear()  # the report shows the last number of bits
        _expect_quantized(expect, quantize, draw.integer(8, 40), draw.integer(3, 9), bits, torch.float64)
    _expect_quantized(expect, quantize, draw.integer(3, 40), 3, 4, torch.float32)
    one_block = draw.integer(1, 9)
    _codes_and_scales(expect, quantize, draw.tensor((one_block,), torch.float64), one_block, 4)
    _expect_no_code_above(expect, quantize)
    for bits, dtype, others in ((4, torch.float64, 4), (3, torch.float32, draw.integer(4, 20)), (5, torch.float64, 90)):
        _expect_right_on_average(expect, quantize, bits, dtype, others)
    types = [torch.float32, torch.float64]
    _expect_right_on_average(expect, quantize, draw.choice([2, 6, 7]), draw.choice(types), 8)
    _expect_right_on_average(expect, quantize, 8, draw.choice(types), 4, blocks=draw.integer(1, 4))


class _Casts(Operators):
    """Records whether a NaN is cast to a whole number: the result depends on the machine."""

    saw_nan = False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default) and out.dtype == torch.int8:
            source = args[-1]
            self.saw_nan |= source.is_floating_point() and bool(source.isnan().any())
        return out


def _codes_and_scales(expect: Expect, answer: Callable, x: Tensor, block: int, bits: int) -> tuple[Tensor, Tensor]:
    with _Casts() as casts:
        call = observe(answer, x, block, bits)
    if casts.saw_nan:
        rule = "no code is made from a NaN"
        raise RuleBroken(rule, "a NaN became an arbitrary whole number", "nothing divided by zero")
    expect.equal("codes and scales are returned, a pair", _pair(call.value), "two tensors")
    codes, scales = call.value
    with expect.grouped("codes are one byte for each number, scales one number for each block", "right"):
        for name, tensor, wanted in (("codes", codes, (len(x),)), ("scales", scales, (len(x) // block,))):
            rule = f"{name} have the shape of the docstring ({len(x)} numbers, {plural(block, 'numbers')} in a block)"
            expect.equal(rule, tuple(tensor.shape), wanted)
        expect.equal("codes are bytes", str(codes.dtype), "torch.int8")
        expect.equal("scales have the type of x", scales.dtype, x.dtype)
    changes_nothing(expect, [call])
    return codes, scales


def _pair(value: Any) -> Any:
    if value is Ellipsis:
        return value
    is_pair = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(each, Tensor) for each in value)
    return "two tensors" if is_pair else short_repr(value)


def _expect_quantized(
    expect: Expect, answer: Callable, block: int, num_blocks: int, bits: int, dtype: torch.dtype
) -> None:
    """Blocks of very different sizes, one with numbers of one sign only, one of zeros."""
    draw, most = expect.draw, 2 ** (bits - 1) - 1
    sizes = [10.0 ** draw.integer(-20, 6) for _ in range(num_blocks)]
    rows = draw.tensor((num_blocks, block), dtype) * torch.tensor(sizes)[:, None]
    rows = rows.to(dtype)
    rows[0] = -rows[0].abs()  # its largest number is negative
    rows[1, draw.integer(0, block - 1)] *= 1000
    rows[-1] = 0
    x = rows.flatten()
    codes, scales = _codes_and_scales(expect, answer, x, block, bits)
    on = f"{bits} bits, blocks of {block}"
    wanted = rows.abs().amax(1) / most
    expect.close(f"the scale of a block is its largest magnitude over {most} ({on})", scales, wanted, rtol=1e-6)
    levels = codes.view(rows.shape).double()
    expect.that(
        f"codes lie between -{most} and {most} ({on})",
        bool((levels.abs() <= most).all()),
        saw=f"codes from {int(levels.min())} to {int(levels.max())}",
        expected=f"at most {most} in size",
    )
    wrong = codes.view(rows.shape)[-1]
    wrong = wrong[wrong != 0]
    expect.that(
        f"a block of zeros has codes 0 ({on})",
        len(wrong) == 0,
        saw=f"{len(wrong)} other codes, from {int(wrong.min())} to {int(wrong.max())}" if len(wrong) else "0",
        expected="0",
    )
    off = (levels * wanted.double()[:, None] - rows.double()).abs().amax(1)
    steps = float((off / wanted.double().clamp(min=1e-300)).max())
    expect.that(
        f"no number is off by a whole step ({on})",
        steps < 1 + 1e-5,
        saw=f"one is off by {steps:.3f} scales",
        expected="less than 1: one of the two adjacent codes",
    )


def _expect_no_code_above(expect: Expect, answer: Callable) -> None:
    """In float32, 127 and a draw just below 1 add up to 128, which no int8 holds: four times in a million."""
    largest = 127 * 2.0 ** expect.draw.integer(-8, 8)  # exactly 127 scales, also in float32
    x = torch.full((2**22,), largest, dtype=torch.float32)
    codes, _ = answer(x, 2**18, 8)
    wrong = int((codes < 126).sum())  # 126 may result from noise around the nearest code
    expect.that(
        "the largest numbers keep their sign (8 bits, float32)",
        wrong == 0,
        saw=f"{wrong} of {len(x):,} have another code, such as {int(codes.min())}: a sum was rounded up to 128",
        expected="127: clamp codes to -q to q before they become int8",
    )


def _expect_right_on_average(
    expect: Expect, answer: Callable, bits: int, dtype: torch.dtype, num_others: int, blocks: int = REPEATS
) -> None:
    """One block many times, several in each call: the mean at each place, and whether the draws are independent.

    Fractions of a step are spread evenly from 0 to 1.
    """
    expect.measured.clear()  # the report shows the last case
    draw, most, on = expect.draw, 2 ** (bits - 1) - 1, f"{bits} bits, {str(dtype).removeprefix('torch.')}"
    halves = [draw.integer(-most, most - 1) + 0.5 for _ in range(4 + num_others // 4)]
    fractions = [(each + draw.number(0.2, 0.8)) / num_others for each in range(num_others)]
    others = [draw.integer(-most, most - 1) + fraction for fraction in fractions]
    whole = [float(draw.integer(min(1, most - 1), most - 1)), 0.0]
    steps = torch.tensor([float(most), -0.3, 0.3, *halves, *others, *whole], dtype=dtype)
    scale = 2.0 ** draw.integer(-8, 8)
    x = (steps * scale).repeat(blocks)
    calls = [answer(x.clone(), len(steps), bits)[0] for _ in range(REPEATS // blocks)]
    codes = torch.cat(calls).view(-1, len(steps)).double()
    kept = float((codes[:, -len(whole) :] == torch.tensor(whole).double()).all(1).double().mean())
    expect.that(
        f"a whole number of steps keeps its code ({on})",
        kept > 0.99,  # rounding in float32 may lose one in many thousands
        saw=f"{1 - kept:.0%} of {len(codes)} blocks hold another code there",
        expected="its code",
    )
    _is_random(answer, codes, x, steps, bits, on)
    _expect_new_draws(expect, answer, steps * scale, bits, on)
    for name, places in (("positive", steps > 0), ("negative", steps < 0)):
        worst = float((codes.mean(0) - steps)[places].abs().max())
        expect.that(
            f"the mean of many roundings is the number itself: {name} numbers ({on})",
            worst < 0.05,  # six standard deviations
            saw=f"off by {worst:.2f} of a step, in the mean of {len(codes)} roundings",
            expected="0",
        )
    off = float((codes.mean(0) - steps).mean())
    expect.that(
        f"the mean over all numbers of a block is right, too ({on})",
        abs(off) < 4 / len(codes.flatten()) ** 0.5,  # eight standard deviations, for numbers half way between two codes
        saw=f"off by {off:.4f} of a step",
        expected="0",
    )
    from_middle = torch.tensor(fractions).double() - 0.5
    errors = (codes.mean(0) - steps)[3 + len(halves) : -len(whole)]
    slope = float(errors @ from_middle / from_middle.square().sum())
    expect.that(
        f"the mean is right near a code and between two codes ({on})",
        abs(slope) < 0.12 / num_others**0.5,  # six standard deviations
        saw=f"an error that changes by {slope:.3f} of a step from one code to the next",
        expected="0",
    )
    ways = (codes - steps)[:, 3 : 3 + len(halves)].sign()  # up or down, each half of the time
    together = (ways.T @ ways / len(codes)).fill_diagonal_(0)
    worst = float(together.flatten()[together.abs().argmax()])
    expect.that(
        f"every number has a separate draw ({on})",
        abs(worst) < 0.15,  # nine standard deviations
        saw=f"two numbers of a block, half way between two codes, go the same way {0.5 + worst / 2:.0%} of the time",
        expected="50%",
    )
    up = ways[:, :4] > 0
    again = (up[1:] == up[:-1]).all(1).double().mean()
    expect.that(
        f"every block has separate draws ({on})",
        float(again) < 0.3,
        saw=f"a block and the next are rounded the same way {float(again):.0%} of the time",
        expected="6%",
    )
    far, correlation = _strongest_correlation(codes - steps)
    expect.that(
        f"no draw is used again, at any distance ({on})",
        abs(correlation) < 0.05,  # ten standard deviations
        saw=f"errors that are {far:,} numbers apart correlate by {correlation:.2f}",
        expected="0: a draw for every number",
    )


def _strongest_correlation(off: Tensor) -> tuple[int, float]:
    """The distance at which errors correlate most, and the correlation."""
    spread = off.std(0)
    line = torch.where(spread > 1e-6, (off - off.mean(0)) / spread, 0.0).flatten()
    products = torch.fft.irfft(torch.fft.rfft(line).abs().square(), n=len(line)) / line.square().sum()
    far = 1 + int(products[1:].abs().argmax())
    return min(far, len(line) - far), float(products[far])


def _expect_new_draws(expect: Expect, answer: Callable, steps: Tensor, bits: int, on: str) -> None:
    """The answer must not set a seed: steps, or ranks with the same gradient, would all make the same error."""
    x, block = steps.repeat(64), len(steps)

    def codes(answer: Callable, x: Tensor) -> Tensor:
        return answer(x, block, bits)[0]

    run = expect.launch(codes, answer, x, ranks=2)
    calls = {"call": [codes(answer, x), codes(answer, x)], "rank": run.values}
    for name, (one, other) in calls.items():
        if torch.equal(one, other):
            rule, saw = f"every {name} has separate draws ({on})", f"two {name}s round the same numbers the same way"
            raise RuleBroken(rule, saw, "no seed in the answer: `launch` gives each rank one")


def _is_random(answer: Callable, codes: Tensor, x: Tensor, steps: Tensor, bits: int, on: str) -> None:
    """Two mistakes with separate rules: no draw at all, and the same draws for every block."""
    if not bool((codes == codes[0]).all()):
        return
    for _ in range(8):
        again = answer(x.clone(), len(steps), bits)[0].view(-1, len(steps)).double()
        if not torch.equal(again, codes[: len(again)]):
            rule = f"every block has separate draws ({on})"
            raise RuleBroken(
                rule, f"{len(codes)} blocks are rounded the same way", "torch.rand_like(steps): a draw per number"
            )
    ways = {"to nearest": steps.round(), "down": steps.floor(), "up": steps.ceil(), "towards zero": steps.trunc()}
    found = [name for name, wanted in ways.items() if torch.equal(codes[0], wanted)]
    saw = f"always {found[0]}" if found else f"the same in {8 * REPEATS} roundings"
    raise RuleBroken(f"rounding is random ({on})", saw, "up or down by chance")


@exercise(
    "A reduce-scatter on two levels",
    hints=[
        "Which pieces does place l need from the ranks of its own node, if only sums cross? The pieces of all ranks "
        "with place l: one for each node.",
        "`full.view(N, L, P)` has pieces by node, then by place. An all-to-all inside the node sends row l to place l: "
        "so places must come first. Add up numbers, never messages.",
        "`dist.all_to_all_single(received, messages, group=inside)` on messages of shape [L N, bytes], from "
        "`pack(pieces.transpose(0, 1).flatten(0, 1))`; unpack, view as [L, N, P], sum over the first; then the same "
        "across with the N sums, and divide by N L once.",
    ],
)
def two_level_reduce_scatter(expect: Expect, two_level_reduce_scatter: Callable[..., Tensor]) -> None:
    not_from_lablib(two_level_reduce_scatter)
    draw = expect.draw
    for nodes, local in [(2, 3), (3, 2), draw.choice([(2, 4), (3, 4), (4, 3), (5, 2)]), (1, 3), (3, 1), (1, 1)]:
        expect.measured.clear()  # the report shows the last sizes
        _expect_scattered(expect, two_level_reduce_scatter, nodes, local, draw.integer(2, 30), None)
    _expect_scattered(expect, two_level_reduce_scatter, 2, 2, 1, None)  # pieces of one number
    for nodes, local in [(2, 4), (3, draw.integer(2, 3))]:
        expect.measured.clear()
        _expect_scattered(expect, two_level_reduce_scatter, nodes, local, draw.integer(260, 600), Int4(block=64))


def _expect_scattered(
    expect: Expect, answer: Callable[..., Tensor], nodes: int, local: int, piece: int, quantizer: Int4 | None
) -> None:
    """With exact messages the mean is exact; with 4 bits it has two roundings."""
    ranks = nodes * local
    message = 4 * piece if quantizer is None else quantizer.message_bytes(piece)
    xs = [expect.draw.tensor((ranks * piece,)) for _ in range(ranks)]

    def program(xs: list[Tensor], answer: Callable[..., Tensor]) -> Any:
        mesh, packed, read = node_mesh(local), [0], [0]

        def pack(rows: Tensor) -> Tensor:
            packed[0] += rows.numel() // piece
            return rows.contiguous().view(torch.uint8) if quantizer is None else quantizer.quantize(rows).message()

        def unpack(messages: Tensor) -> Tensor:
            read[0] += messages.numel() // message
            if quantizer is None:
                return messages.contiguous().view(torch.float32)
            return quantizer.dequantize(quantizer.from_message(messages, piece))

        seen = observe(answer, xs[dist.get_rank()], mesh.get_group("local"), mesh.get_group("node"), pack, unpack)
        return seen, packed[0], read[0]

    run = expect.launch(program, xs, answer, ranks=ranks)
    packed, read = zip(*(value[1:] for value in run.values), strict=True)
    run = dataclasses.replace(run, values=[value[0] for value in run.values])
    what = "exact messages" if quantizer is None else "4 bits"
    on = f"{plural(nodes, 'nodes')} of {plural(local, 'ranks')}, {what}"
    pieces = torch.stack(xs).view(ranks, ranks, piece)  # rank, owner of the piece, numbers
    means = pieces.double().mean(0)
    shapes = [tuple(call.value.shape) if isinstance(call.value, Tensor) else call.value for call in run.values]
    wrong = next((shape for shape in shapes if isinstance(shape, tuple) and shape != (piece,)), (piece,))
    expect.equal(f"the result is one piece, [P] ({on})", wrong, (piece,))
    returns_new_tensors(expect, run, means[0].float())
    changes_nothing(expect, run)
    _tell_sums_and_places(expect, run, means, nodes, on, quantizer is None)
    _tell_calls(run, quantizer is not None, on)
    with expect.grouped(f"every rank holds the mean of its piece ({on})", "rounded by `pack` alone, or not at all"):
        for rank, call in enumerate(run.values):
            wanted = means[rank] if quantizer is None else _rounded(pieces[:, rank], local, quantizer)
            off = (call.value.double() - wanted).abs()
            wrong = int((off > 1e-5 * means.abs().max()).sum())
            expect.that(
                f"every rank holds the mean of its piece ({on}, rank {rank})",
                wrong <= (quantizer is not None),  # a sum in another order may be half way between two codes
                saw=f"{plural(wrong, 'numbers')} of {piece} differ, by up to {float(off.max()):.3g}",
                expected="numbers rounded by `pack` alone, once on each level" if quantizer else "the mean",
            )
    for verb, rows in (("packs", packed), ("unpacks", read)):
        rule = f"each level {verb} a row once: {plural(ranks, 'rows')} inside, {nodes} across ({on})"
        expect.budget(rule, max(rows), ranks + nodes, "rows")
    sent = level_bytes(run.traffic, local)
    for level, saw, budget in (
        ("across nodes", sent.across / ranks, (nodes - 1) * message),
        ("inside the node", sent.inside / ranks, (local - 1) * nodes * message),
    ):
        expect.budget(f"bytes a rank sends {level} ({on})", saw, budget, "B", at_least=budget)


def _tell_calls(run: Run, is_packed: bool, on: str) -> None:
    """Mistakes that the bytes would show, too; the calls give a clearer message."""
    words = {"mesh_local": "inside the node", "mesh_node": "across nodes"}
    transfers = run.traffic.transfers
    for transfer in transfers:
        level = words.get(transfer.group, "among all ranks")
        if transfer.name.startswith(("all_gather", "all_reduce", "broadcast")):
            saw = f"{transfer.name} {level}"
            raise RuleBroken(f"a rank gets only pieces that it will add ({on})", saw, "an all-to-all")
        if is_packed and any(transfer.sent_bytes) and transfer.dtype != "uint8":
            raise RuleBroken(
                f"messages sent {level} are packed ({on})", f"{transfer.dtype}", "messages of `pack`: uint8"
            )
    if transfers and transfers[0].group == "mesh_node" and any(each.group == "mesh_local" for each in transfers):
        raise RuleBroken(f"the first exchange is inside the node ({on})", "across nodes first", "inside, then across")


def _rounded(pieces: Tensor, local: int, quantizer: Int4) -> Tensor:
    """The mean of one piece, rounded once on each level. [ranks, P] -> [P]"""

    def there_and_back(rows: Tensor) -> Tensor:
        return quantizer.dequantize(quantizer.quantize(rows))

    nodes = len(pieces) // local
    sums = there_and_back(pieces).view(nodes, local, -1).sum(1)
    return there_and_back(sums).double().sum(0) / len(pieces)


def _tell_sums_and_places(expect: Expect, run: Run, means: Tensor, nodes: int, on: str, is_exact: bool) -> None:
    """Two mistakes with separate rules: another rank's piece, and a factor."""
    if not is_exact or len(means) < 2:
        return
    for rank, call in enumerate(run.values):
        value = call.value.double()
        for other, mean in enumerate(means):
            if other != rank and torch.allclose(value, mean, rtol=1e-4, atol=1e-5):
                raise RuleBroken(
                    f"every rank returns its own piece ({on})",
                    f"rank {rank} returned the piece of rank {other}",
                    f"the piece of rank {rank}: the right groups, and places before nodes in the messages inside?",
                )
        factor = float(torch.dot(value, means[rank]) / torch.dot(means[rank], means[rank]))
        if abs(factor - 1) > 1e-3 and torch.allclose(value, factor * means[rank], rtol=1e-3, atol=1e-4 * abs(factor)):
            rule = f"the result is a mean over all {plural(len(means), 'ranks')} ({on})"
            of = {len(means): ": a sum over ranks", nodes: ", the number of nodes"}.get(round(factor), "")
            raise RuleBroken(rule, f"{factor:.4g} times the mean on rank {rank}{of}", "1")


def _largest(k: int) -> Callable[[Tensor], Tensor]:
    def compress(x: Tensor) -> Tensor:
        flat = x.flatten()
        said = torch.zeros_like(flat)
        places = flat.abs().topk(min(k, len(flat))).indices
        said[places] = flat[places]
        return said.view(x.shape)

    return compress


def _signs(x: Tensor) -> Tensor:
    return x.sign() * x.abs().mean()


@exercise(
    "Error feedback",
    hints=[
        "What must be kept from one call of `send` to the next, and for which parameter?",
        "Keep a dict from a parameter's name to its residual, in a variable of `error_feedback`. Compress the gradient "
        "plus the residual; from which tensor is the message subtracted, to give the new residual?",
        "`accumulated = gradient + residuals.get(name, 0.0)`; compress that; the residual is accumulated - message.",
    ],
)
def error_feedback(expect: Expect, error_feedback: Callable[[Callable], Callable[[str, Tensor], Tensor]]) -> None:
    not_from_lablib(error_feedback)
    draw = expect.draw
    compressors = {"the 2 largest": (_largest(2), torch.float64), "signs": (_signs, torch.float32)}
    compressors["all"] = (torch.Tensor.detach, torch.float64)  # the same memory: a write to one changes both
    for name, (compress, dtype) in compressors.items():
        expect.measured.clear()  # the report shows the last compressor
        shapes = {"0.weight": (draw.integer(8, 20),), "0.bias": (draw.integer(2, 5), draw.integer(2, 5))}
        for layer in range(1, draw.integer(3, 6)):
            shapes[f"{layer}.weight"] = shapes["0.weight"]  # the same shape, another parameter
        num_steps = draw.integer(12, 20) if name == "signs" else draw.integer(5, 9)
        _expect_feedback(expect, error_feedback, compress, shapes, num_steps, dtype, f"compressor: {name}")


def _expect_feedback(
    expect: Expect,
    answer: Callable,
    compress: Callable[[Tensor], Tensor],
    shapes: dict,
    num_steps: int,
    dtype: torch.dtype,
    on: str,
) -> None:
    """Two feedbacks in parallel, and a later one; parameters in another order each step."""
    seen: list[torch.Size] = []
    sizes = {name: 10.0 ** expect.draw.integer(-3, 12) for name in shapes}
    sizes |= {"0.weight": 1e12, list(shapes)[-2]: 1e-12, list(shapes)[-1]: 1.0}

    def counted(x: Tensor) -> Tensor:
        seen.append(x.shape)
        return compress(x)

    sends = [answer(counted), answer(counted)]
    if not all(callable(send) for send in sends):
        expect.equal("a function is returned", sends[0], "a function send(name, gradient)")
    with expect.grouped(f"the residual is sent later, separately for each parameter ({on})", "in every step"):
        _expect_steps(expect, sends, compress, shapes, sizes, num_steps, dtype, on)
        messages = 2 * num_steps * len(shapes)
        expect.equal(f"compress is called once per message, since it may be random ({on})", len(seen), messages)
        expect.equal(
            f"compress gets tensors of the parameters' shapes ({on})", set(seen), set(map(torch.Size, shapes.values()))
        )
        later = answer(compress)
        for name, shape in shapes.items():
            gradient = sizes[name] * expect.draw.tensor(shape, dtype)
            said = compress(gradient).clone()
            rule = f"each call of error_feedback begins without residuals ({on}, a later call)"
            expect.close(rule, later(name, gradient.clone()), said, rtol=1e-5)


def _expect_steps(
    expect: Expect,
    sends: list,
    compress: Callable[[Tensor], Tensor],
    shapes: dict,
    sizes: dict,
    num_steps: int,
    dtype: torch.dtype,
    on: str,
) -> None:
    residuals: list[dict[str, Tensor]] = [{}, {}]
    for step in range(num_steps):
        names = list(shapes) if step == 0 else list(shapes)[::-1] if step == 1 else expect.draw.shuffled(list(shapes))
        for name in names:
            for number, send in enumerate(sends):
                before = residuals[number].get(name)
                gradient = _gradient_that_shows(expect.draw, sizes[name], shapes[name], dtype, before, compress)
                accumulated = gradient + residuals[number].get(name, 0.0)
                wanted = compress(accumulated).clone()
                residuals[number][name] = accumulated - wanted
                call = observe(send, name, gradient)
                where = f"step {step + 1}, {on}"
                if not isinstance(call.value, Tensor):
                    expect.equal(f"a message is returned ({on})", short_repr(call.value), "a tensor")
                expect.equal(f"a message has the type of the gradient ({on})", call.value.dtype, dtype)
                changes_nothing(expect, [call])
                if step == 0:
                    _name_residual(call.value, gradient, wanted, compress, residuals, number, name, on)
                _expect_message(expect, call.value, gradient, wanted, accumulated, compress, step, f"{name}, {where}")
                call.value.add_(100.0)  # a later change of a message must not change the residual
                gradient.fill_(100.0)  # nor must a change of the gradient: the next backward writes to it


def _gradient_that_shows(
    draw: Draw, size: float, shape: tuple[int, ...], dtype: torch.dtype, residual: Tensor | None, compress: Callable
) -> Tensor:
    """A gradient with a message that the residual changes by more than rounding, and so does a part of it.

    (Of the 2 largest numbers, not both were in the last message.)
    """
    while True:
        gradient = size * draw.tensor(shape, dtype)
        if residual is None or not residual.any():
            return gradient
        message = compress(gradient)
        if residual[message != 0].any() and not _is_rounding(message, compress(gradient + residual)):
            return gradient


def _is_rounding(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=0.0)


def _name_residual(
    saw: Tensor,
    gradient: Tensor,
    wanted: Tensor,
    compress: Any,
    residuals: list[dict[str, Tensor]],
    number: int,
    name: str,
    on: str,
) -> None:
    """Name the residual that was added to the first message of a parameter."""
    if saw.shape == wanted.shape and torch.equal(saw, wanted):
        return
    for other, residual in residuals[number].items():
        if residual.shape == gradient.shape and other != name and torch.equal(saw, compress(gradient + residual)):
            said = f"the residual of {other!r} was added to the gradient of {name!r}"
            raise RuleBroken(f"a residual belongs to one parameter ({on})", said, "nothing: its first message")
    for residual in [each[name] for at, each in enumerate(residuals) if at != number and name in each]:
        if torch.equal(saw, compress(gradient + residual)):
            said = "the residual of another call was added"
            raise RuleBroken(f"each call of error_feedback begins without residuals ({on})", said, "nothing")


def _expect_message(
    expect: Expect,
    saw: Tensor,
    gradient: Tensor,
    wanted: Tensor,
    accumulated: Tensor,
    compress: Any,
    step: int,
    on: str,
) -> None:
    if step == 0:
        expect.close(f"the first message is compress(gradient) ({on})", saw, wanted, rtol=1e-12)
        return
    plain = compress(gradient)
    if saw.shape == plain.shape and torch.equal(saw, plain) and not _is_rounding(plain, wanted):
        raise RuleBroken(f"the residual is added ({on})", "compress(gradient)", "compress(gradient + residual)")
    if saw.shape == accumulated.shape and torch.equal(saw, accumulated) and not _is_rounding(accumulated, wanted):
        raise RuleBroken(f"only the message is sent ({on})", "the gradient plus the residual", "compress of it")
    rule = f"the message is compress(gradient + this parameter's residual so far) ({on})"
    rtol = 1e-9 if wanted.dtype == torch.float64 else 1e-4  # sums in another order
    expect.close(rule, saw, wanted, rtol=rtol, atol=0.01 * rtol * float(accumulated.abs().max()))


_NEAR = {"rtol": 1e-9, "atol": 1e-11}


@exercise(
    "The outer step",
    hints=[
        "Which of the three differs between ranks before the call? Only that one is communicated.",
        "The mean of `params` over the ranks first; then d, then v, then w, in the order of the formulas. `x = ...` "
        "gives the name to another tensor: the caller's needs `x.copy_(...)`, `x.add_(...)`.",
        "`velocity.mul_(momentum).add_(delta)`; `agreed.sub_(rate * (delta + momentum * velocity))`; "
        "`params.copy_(agreed)`.",
    ],
)
def outer_step(expect: Expect, outer_step: Callable[[Tensor, Tensor, Tensor, float, float], None]) -> None:
    not_from_lablib(outer_step)
    draw = expect.draw
    settings = [(0.7, 0.9), (1.0, 0.0), (draw.number(0.2, 0.9), draw.number(0.3, 0.8))]
    for ranks, (rate, momentum) in zip((2, draw.integer(5, 8), draw.integer(3, 4)), settings, strict=True):
        expect.measured.clear()  # the report shows the last settings
        _expect_outer(expect, outer_step, ranks, rate, momentum)
    _expect_outer(expect, outer_step, draw.integer(2, 4), 0.7, 0.9, torch.float32, draw.integer(20_000, 60_000))
    _expect_outer(expect, outer_step, 1, 0.7, 0.9)


def _expect_outer(
    expect: Expect,
    answer: Callable[..., None],
    ranks: int,
    rate: float,
    momentum: float,
    dtype: torch.dtype = torch.float64,
    numel: int | None = None,
) -> None:
    """Four synchronizations, each from a new state: as if a checkpoint was loaded, or another model trained."""
    numel, rounds = numel or expect.draw.integer(60, 200), 4
    near = _NEAR if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    moves = [[expect.draw.tensor((numel,), dtype) for _ in range(ranks)] for _ in range(rounds)]
    starts = [(expect.draw.tensor((numel,), dtype), expect.draw.tensor((numel,), dtype)) for _ in range(rounds)]

    def program(starts: list, moves: list, answer: Callable[..., None]) -> list[tuple[Any, ...]]:
        params, agreed, velocity = (torch.zeros_like(starts[0][0]) for _ in range(3))
        seen, memory = [], [params[:], agreed[:], velocity[:]]  # the model's own views of it
        for (start, first), of_ranks in zip(starts, moves, strict=True):
            agreed.copy_(start)
            velocity.copy_(first)
            params.copy_(start + of_ranks[dist.get_rank()])
            before = params.clone(), agreed.clone(), velocity.clone()
            answer(params, agreed, velocity, rate, momentum)
            after = tuple(view.clone() for view in memory)
            seen.append((*after, [torch.equal(a, b) for a, b in zip(before, after, strict=True)]))
        return seen

    run = expect.launch(program, starts, moves, answer, ranks=ranks)
    on = f"{plural(ranks, 'ranks')}, rate {rate:.2g}, momentum {momentum:.2g}{', float32' * (near is not _NEAR)}"
    with expect.grouped(f"params, agreed and velocity are right after each synchronization ({on})", "equal"):
        for number, of_ranks in enumerate(moves):
            delta = -torch.stack(of_ranks).mean(0)
            w_before, v = starts[number]
            v = momentum * v + delta
            w = w_before - rate * (delta + momentum * v)
            where = f"{on}, synchronization {number + 1}"
            for at, name in ((2, "velocity"), (1, "agreed"), (0, "params")):
                if run.values[0][number][3][at]:
                    rule, at_mean = f"{name} changes in place ({where})", w_before - delta
                    is_mean = torch.allclose(run.values[0][number][0], at_mean, rtol=1e-9, atol=1e-11)
                    saw = f"it did not change{', and params are at the mean' if is_mean else ''}"
                    raise RuleBroken(rule, saw, f"{name}.copy_(...), .add_(...): `{name} = ...` names another tensor")
            with expect.grouped(f"params, agreed and velocity are the same on every rank ({where})", "equal"):
                for at, name in enumerate(("params", "agreed", "velocity")):
                    same_on_every_rank(expect, [value[number][at] for value in run.values], f"{name} ({where})")
            params, agreed, velocity, _ = run.values[0][number]
            expect.close(f"velocity is momentum v + d, with d = w - mean of params ({where})", velocity, v, **near)
            expect.close(f"agreed is w - rate (d + momentum v), with the new v ({where})", agreed, w, **near)
            expect.close(f"params are the new w ({where})", params, w, **near)
    padded = numel + -numel % ranks
    sent_bytes_within(
        expect,
        run,
        at_most=rounds * 2 * (ranks - 1) / ranks * padded * dtype.itemsize,
        at_least=rounds * 2 * (ranks - 1) / ranks * numel * dtype.itemsize,
        mean=True,
    )
    if ranks > 1:
        calls_only(expect, run, "all_reduce")
        expect.budget(f"all-reduces in a synchronization ({on})", len(run.traffic) / rounds, 1, "calls")
