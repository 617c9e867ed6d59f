"""Tensor-parallel layers: raw gradients of one device, whatever the ranks, and what travels."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lablib import RankError, launch, parallel
from lablib.parallel.tensor.mlp import mlp_sent_bytes
from lablib.parallel.tensor.vocabulary import gather_logits
from tests.parallel.drawn import drawn

few = settings(max_examples=12)
ranks = st.integers(1, 5)
sizes = st.integers(1, 9)
BATCH = 2
EXACT: Any = {"rtol": 1e-11, "atol": 1e-13}  # float64, sums in another order


def leaves(*tensors: Tensor) -> list[Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def loss_of(y: Tensor) -> Tensor:
    """Different for every element, and a mean: wrong places and wrong scales both show."""
    return (y * drawn(*y.shape, seed=99)).mean() + y.square().mean()


def gradients(function: Callable[..., Tensor], *tensors: Tensor) -> list[Tensor]:
    """Of what one device computes, with respect to all its inputs."""
    inputs = leaves(*tensors)
    loss_of(function(*inputs)).backward()
    return [torch.zeros_like(tensor) if tensor.grad is None else tensor.grad for tensor in inputs]


def same(run: Any, expected: list[Tensor]) -> None:
    for found in run.values:
        torch.testing.assert_close(found, expected, **EXACT)


# ---- cuts ----


@given(size=st.integers(0, 40), world=st.integers(1, 9), multiple=st.integers(1, 4))
def test_shards_are_those_of_torch_and_together_the_whole(size: int, world: int, multiple: int):
    found = [range(*parallel.shard_range(size * multiple, rank, world, multiple)) for rank in range(world)]
    assert [i for shard in found for i in shard] == list(range(size * multiple))
    assert all(len(shard) % multiple == 0 for shard in found)
    if size:
        chunks = torch.arange(size * multiple).chunk(world)
        if multiple == 1:
            assert [list(shard) for shard in found if shard] == [chunk.tolist() for chunk in chunks]


@given(n=ranks, shape=st.tuples(sizes, sizes, sizes), dim=st.integers(-3, 2))
@few
def test_gather_and_scatter_are_inverses_and_each_the_others_gradient(n: int, shape: tuple[int, ...], dim: int):
    x = drawn(*shape)

    def program() -> tuple[Tensor, Tensor, Tensor]:
        whole = x.clone().requires_grad_()
        shard = parallel.scatter_to_ranks(whole, dim)
        back = parallel.gather_from_ranks(shard, dim, shape[dim])
        # Every rank computes the same loss from the whole: each shard's gradient is its own part, not n times it.
        loss_of(back).backward()
        assert whole.grad is not None
        return back.detach(), whole.grad, shard.detach()

    expected = gradients(lambda x: x, x)[0]
    run = launch(program, ranks=n)
    for back, grad, shard in run.values:
        assert torch.equal(back, x)
        torch.testing.assert_close(grad, expected, **EXACT)
        assert shard.shape[dim] <= -(-shape[dim] // n)


def test_f_and_g_leave_tensors_of_others_as_they_are():
    """A sum gives the same gradient to both of its terms: what f reduces must be a copy. And g's input stays a part."""

    def program() -> tuple[Tensor, Tensor, Tensor]:
        x = torch.ones(3, requires_grad=True)
        y = x * 1
        ((parallel.copy_to_ranks(y) + y) * torch.ones(3)).sum().backward()  # contiguous: none would be copied by itself
        part = torch.ones(2, requires_grad=True)
        total = parallel.reduce_from_ranks(part)
        (2 * total).sum().backward()
        assert x.grad is not None and part.grad is not None
        return x.grad, torch.stack([part.detach(), total.detach()]), part.grad

    for grad, values, of_part in launch(program, ranks=3).values:
        assert grad.tolist() == [3.0 + 1.0] * 3
        assert values.tolist() == [[1.0, 1.0], [3.0, 3.0]]
        assert of_part.tolist() == [2.0, 2.0]


# ---- linear ----


@given(n=ranks, width=sizes, features=sizes, tokens=st.integers(1, 4), has_bias=st.booleans())
@few
def test_columns_then_rows_and_gathered_columns_are_the_linear_layers_of_one_device(
    n: int, width: int, features: int, tokens: int, has_bias: bool
):
    """Uneven, and with more ranks than columns."""
    torch.manual_seed(0)
    up, down = (nn.Linear(a, b, bias=has_bias, dtype=torch.float64) for a, b in ((width, features), (features, width)))
    x = drawn(BATCH, tokens, width)

    def program() -> tuple[list[Tensor], dict[str, Tensor], list[Tensor]]:
        mine = x.clone().requires_grad_()
        layers = nn.Sequential(parallel.ColumnLinear(up), parallel.RowLinear(down))
        loss_of(layers(mine)).backward()
        grad = mine.grad
        assert grad is not None
        again = x.clone().requires_grad_()
        weight = parallel.shard_of(up.weight.detach(), 0).clone().requires_grad_()
        bias = None if up.bias is None else parallel.shard_of(up.bias.detach(), 0)
        y = parallel.gathered_linear(again, weight, bias, features)
        loss_of(y).backward()
        assert again.grad is not None and weight.grad is not None
        gathered = [again.grad, parallel.gather_from_ranks(weight.grad, 0, features)]
        return [grad], parallel.full_gradients(layers), gathered

    alone = nn.Sequential(up, down)
    mine = x.clone().requires_grad_()
    loss_of(alone(mine)).backward()
    expected = {name: param.grad for name, param in alone.named_parameters()}
    bias = None if up.bias is None else up.bias.detach()
    naive = gradients(lambda x, w: F.linear(x, w, bias), x, up.weight.detach())
    for (grad,), found, gathered in launch(program, ranks=n).values:
        torch.testing.assert_close(grad, mine.grad, **EXACT)
        torch.testing.assert_close(found, expected, **EXACT)
        torch.testing.assert_close(gathered, naive, **EXACT)


@given(n=ranks, width=sizes, units=sizes, multiple=st.integers(1, 3))
@settings(max_examples=6)
def test_a_column_layer_that_gathers_is_the_linear_layer_of_one_device(n: int, width: int, units: int, multiple: int):
    """Outputs that stay together, and more ranks than such groups."""
    torch.manual_seed(0)
    whole, x = nn.Linear(width, units * multiple, dtype=torch.float64), drawn(BATCH, 3, width)

    def program() -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        mine, layer = x.clone().requires_grad_(), parallel.ColumnLinear(whole, gathers=True, multiple_of=multiple)
        y = layer(mine)
        loss_of(y).backward()
        return y.detach(), mine.grad, parallel.full_gradients(nn.ModuleList([layer]))

    mine = x.clone().requires_grad_()
    y = whole(mine)
    loss_of(y).backward()
    expected = {f"0.{name}": param.grad for name, param in whole.named_parameters()}
    for found in launch(program, ranks=n).values:
        torch.testing.assert_close(found, (y.detach(), mine.grad, expected), **EXACT)


def test_cut_layers_say_how_much_of_them_is_here():
    def program() -> list[str]:
        up, down = nn.Linear(4, 6), nn.Linear(6, 4)
        layers = (
            parallel.ColumnLinear(up),
            parallel.RowLinear(down),
            parallel.VocabularyEmbedding(nn.Embedding(6, 4)),
            parallel.VocabularyHead(up),
        )
        return [layer.extra_repr() for layer in (*layers, parallel.NormOnShards(nn.LayerNorm(4)))]

    assert launch(program, ranks=2).values[1] == [
        "in_features=4, out_features=6, of which 3 here",
        "in_features=6, of which 3 here, out_features=4",
        "6, 4, of which 3 rows here",
        "in_features=4, out_features=6, of which 3 here",
        "(4,), on this rank's tokens",
    ]


# ---- MLP ----


def whole_mlp(width: int, hidden: int) -> parallel.MLPShard:
    return parallel.MLPShard(
        drawn(hidden, width), drawn(hidden, seed=1), drawn(width, hidden, seed=2), drawn(width, seed=3)
    )


def one_mlp(x: Tensor, up: Tensor, up_bias: Tensor, down: Tensor, down_bias: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, up, up_bias), approximate="tanh"), down, down_bias)


@pytest.mark.parametrize("way", ["naive", "real", "sequence"])
@given(n=ranks, width=sizes, hidden=sizes, per_rank=st.integers(1, 3))
@settings(max_examples=8)
def test_an_mlp_has_the_gradients_of_one_device(way: str, n: int, width: int, hidden: int, per_rank: int):
    x, whole = drawn(BATCH, n * per_rank, width, seed=4), whole_mlp(width, hidden)

    def program() -> list[Tensor]:
        inputs = leaves(x, *whole)
        full = parallel.MLPShard(*inputs[1:])
        if way == "naive":
            loss = loss_of(parallel.naive_tensor_mlp(inputs[0], full))
        elif way == "real":
            loss = loss_of(parallel.tensor_mlp(inputs[0], parallel.shard_mlp(full)))
        else:
            y = parallel.tensor_mlp(
                parallel.own_tokens(inputs[0], 1), parallel.shard_mlp(full), region=parallel.SEQUENCE
            )
            loss = loss_of(parallel.gather_from_ranks(y, 1, x.shape[1]))
        loss.backward()
        grads = [tensor.grad if tensor.grad is not None else torch.zeros_like(tensor) for tensor in inputs]
        # Each rank has the gradients of what it used, in their places. The last bias it has all of, and the input
        # unless that is of its own tokens.
        for i in {"naive": (1, 2, 3, 4), "real": (1, 2, 3), "sequence": (0, 1, 2, 3)}[way]:
            dist.all_reduce(grads[i])
        return grads

    same(launch(program, ranks=n), gradients(one_mlp, x, *whole))


def test_what_an_mlp_sends_equals_its_closed_form():
    tokens, width, hidden, n = 6, 8, 12, 4

    def program(naive: bool) -> None:
        shard = leaves(drawn(1, tokens, width), *whole_mlp(width, hidden))
        full = parallel.MLPShard(*shard[1:])
        y = (
            parallel.naive_tensor_mlp(shard[0], full)
            if naive
            else parallel.tensor_mlp(shard[0], parallel.shard_mlp(full))
        )
        loss_of(y).backward()

    for naive in (True, False):
        run = launch(program, naive, ranks=n)
        sent = sum(_by_ring(t.name, t.tensor_bytes, n) for t in run.traffic.transfers)
        assert sent == mlp_sent_bytes(tokens, width, hidden, n, 8, naive=naive)


def _by_ring(name: str, size_bytes: float, n: int) -> float:
    return (2 if name == "all_reduce" else 1) * (n - 1) / n * size_bytes


# ---- attention ----


def whole_attention(width: int, heads: int, kv_heads: int, d_head: int) -> parallel.AttentionShard:
    rows = [heads * d_head] * 2 + [kv_heads * d_head] * 4
    tensors = [drawn(*((r, width) if i % 2 == 0 else (r,)), seed=i) for i, r in enumerate(rows)]
    return parallel.AttentionShard._make([*tensors, drawn(width, heads * d_head, seed=8), drawn(width, seed=9)])


def one_attention(d_head: int, x: Tensor, *params: Tensor) -> Tensor:
    """Queries, keys and values of all heads; each key-value head is written out for every query head that reads it."""
    (wq, bq, wk, bk, wv, bv, wo, bo), (batch, seq, _) = params, x.shape
    q, k, v = (
        F.linear(x, w, b).view(batch, seq, -1, d_head).transpose(1, 2) for w, b in ((wq, bq), (wk, bk), (wv, bv))
    )
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) / d_head**0.5
    scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -torch.inf)
    return F.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), wo, bo)


@pytest.mark.parametrize("region", [parallel.TENSOR, parallel.SEQUENCE], ids=repr)
@given(data=st.data(), n=st.integers(1, 5), d_head=st.integers(1, 3), width=st.integers(1, 6))
@settings(max_examples=10)
def test_attention_has_the_gradients_of_one_device_with_fewer_key_value_heads_than_ranks_too(
    region: parallel.Region, data: Any, n: int, d_head: int, width: int
):
    kv_heads = data.draw(st.sampled_from([g for g in (1, 2, 3, 4, 5, 2 * n) if g % n == 0 or n % g == 0]))
    heads = max(n, kv_heads) * data.draw(st.integers(1, 2))
    x, whole = drawn(BATCH, 2 * n, width, seed=20), whole_attention(width, heads, kv_heads, d_head)
    overlaps = data.draw(st.booleans())

    def program() -> list[Tensor]:
        inputs = leaves(x, *whole)
        shard = parallel.shard_attention(parallel.AttentionShard(*inputs[1:]), heads, kv_heads)
        shared = parallel.shared_key_value_group(kv_heads)
        mine = parallel.own_tokens(inputs[0], 1) if region is parallel.SEQUENCE else inputs[0]
        y = parallel.tensor_attention(mine, shard, d_head, None, region, shared, overlaps=overlaps)
        loss_of(parallel.gather_from_ranks(y, 1, 2 * n) if region is parallel.SEQUENCE else y).backward()
        grads = [tensor.grad for tensor in inputs]
        assert all(grad is not None for grad in grads)
        sharing = max(1, n // kv_heads)
        for i, grad in enumerate(grads[1:8]):
            dist.all_reduce(grad)  # in its place; a replicated head's gradient is there `sharing` times
            if 2 <= i < 6:
                grad /= sharing  # pyright: ignore[reportOperatorIssue]
        if region is parallel.SEQUENCE:
            dist.all_reduce(grads[0])  # each rank has its own tokens' gradient
        return grads  # pyright: ignore[reportReturnType]

    same(launch(program, ranks=n), gradients(lambda x, *params: one_attention(d_head, x, *params), x, *whole))


@pytest.mark.parametrize(
    ("heads", "kv_heads", "n", "message"),
    [
        (6, 4, 2, "num_heads must be a multiple of num_kv_heads: got 6 and 4; try 3 key-value heads"),
        (6, 6, 4, "num_heads must be a multiple of the ranks.* got 6 heads on 4 ranks; try 3 ranks"),
        (12, 4, 6, "key-value heads must be a multiple of the ranks, or divide them: got 4 on 6 ranks; try 4 ranks"),
    ],
)
def test_heads_that_ranks_cannot_share_are_refused(heads: int, kv_heads: int, n: int, message: str):
    with pytest.raises(ValueError, match=message):
        parallel.check_heads(heads, kv_heads, n)


@given(n=st.integers(1, 12), kv_heads=st.integers(1, 24))
def test_every_key_value_head_is_kept_and_neighbours_share(n: int, kv_heads: int):
    if kv_heads % n and n % kv_heads:
        return
    kept = Counter(head for rank in range(n) for head in parallel.key_value_heads_of(rank, kv_heads, n))
    assert kept == dict.fromkeys(range(kv_heads), max(1, n // kv_heads))


# ---- sequence ----


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@given(n=ranks, width=st.integers(2, 6), per_rank=st.integers(1, 3))
@settings(max_examples=6)
def test_norms_on_shards_have_the_gradients_of_all_tokens(kind: Any, n: int, width: int, per_rank: int):
    x = drawn(BATCH, n * per_rank, width)
    norm = kind(width, eps=0.1, dtype=torch.float64)
    for i, param in enumerate(norm.parameters()):
        param.data = drawn(width, seed=i + 1)

    def program() -> list[Tensor]:
        mine = parallel.NormOnShards(kind(width, eps=0.1, dtype=torch.float64))
        mine.load_state_dict(norm.state_dict())
        loss_of(parallel.gather_from_ranks(mine(parallel.own_tokens(x, 1)), 1, x.shape[1])).backward()
        return [param.grad for param in mine.parameters()]  # pyright: ignore[reportReturnType]

    loss_of(norm(x)).backward()
    same(launch(program, ranks=n), [param.grad for param in norm.parameters()])


def test_a_sequence_that_the_ranks_do_not_divide_is_refused_with_the_length_to_pad_to():
    def program() -> None:
        parallel.tensor_mlp(drawn(1, 7, 4), parallel.shard_mlp(whole_mlp(4, 4)), region=parallel.SEQUENCE)

    def halves() -> None:
        parallel.own_tokens(drawn(7, 2), 0)

    with pytest.raises(RankError, match="got 7 tokens on 2 ranks; pad it to 8"):
        launch(halves, ranks=2)
    # What comes out of the region is 14 tokens: 7 of each rank.
    launch(program, ranks=2)


# ---- vocabulary ----


@pytest.mark.parametrize("region", [parallel.TENSOR, parallel.SEQUENCE], ids=repr)
@given(n=ranks, vocab=st.integers(1, 13), width=st.integers(1, 4), pads=st.booleans(), multiple=st.integers(1, 3))
@settings(max_examples=10)
def test_embedding_and_loss_by_words_have_the_gradients_of_one_device(
    region: parallel.Region, n: int, vocab: int, width: int, pads: bool, multiple: int
):
    """Chunks and padding; shards of one word, and of none."""
    weight, head = drawn(vocab, width), 5 * drawn(vocab, width, seed=1)
    tokens = torch.randint(0, vocab, (BATCH, 3 * n), generator=torch.Generator().manual_seed(2))
    targets = tokens.roll(1, 1)
    options: Any = {"pads": pads, "multiple_of": multiple}

    def program(loss_by: Any) -> list[Tensor]:
        mine = [parallel.shard_vocabulary(each, **options).requires_grad_() for each in (weight, head)]
        x = parallel.vocabulary_embedding(tokens, mine[0], vocab, None, region, multiple)
        loss = loss_by(F.linear(region.enter(x, None), mine[1]), targets, vocab, None, multiple)
        loss.backward()
        first, end = parallel.shard_range(vocab, dist.get_rank(), n, multiple)
        found = [loss.detach()]
        for each in mine:
            assert each.grad is not None
            assert not each.grad[end - first :].any()  # padding has no gradient
            found.append(parallel.gather_from_ranks(each.grad[: end - first], 0, vocab, None, multiple))
        return found

    one = leaves(weight, head)
    loss = F.cross_entropy(F.linear(F.embedding(tokens, one[0]), one[1]).flatten(0, 1), targets.flatten())
    loss.backward()
    expected = [loss.detach(), one[0].grad, one[1].grad]
    for loss_by in (parallel.vocabulary_parallel_loss, parallel.gathered_loss):
        if region is parallel.TENSOR or loss_by is parallel.vocabulary_parallel_loss:
            same(launch(program, loss_by, ranks=n), expected)


def test_words_are_cut_anywhere_unless_told_otherwise():
    logits, targets = drawn(1, 2, 5), torch.tensor([[4, 0]])

    def program() -> tuple[Tensor, Tensor, Tensor]:
        mine = parallel.shard_of(logits, -1)  # 3 words and 2
        losses = parallel.vocabulary_parallel_loss(mine, targets, 5), parallel.gathered_loss(mine, targets, 5)
        return gather_logits(mine, 5), *losses

    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    for found in launch(program, ranks=2).values:
        torch.testing.assert_close(found, (logits, loss, loss), **EXACT)


def test_logits_of_any_size_overflow_nothing():
    logits = torch.tensor([[[1e4, -1e4, 3.0, 1e4]]])

    def program() -> float:
        return float(parallel.vocabulary_parallel_loss(parallel.shard_of(logits, -1), torch.tensor([[3]]), 4))

    assert launch(program, ranks=2).values == pytest.approx([0.6931472] * 2)


def test_logits_in_16_bits_are_widened_and_their_gradient_is_in_16_bits():
    logits, targets = drawn(2, 3, 8).bfloat16(), torch.zeros(2, 3, dtype=torch.long)

    def program() -> tuple[Tensor, Tensor]:
        mine = parallel.shard_of(logits, -1).clone().requires_grad_()
        loss = parallel.vocabulary_parallel_loss(mine, targets, 8)
        loss.backward()
        assert mine.grad is not None and mine.grad.dtype == torch.bfloat16
        return loss.detach(), parallel.gather_from_ranks(mine.grad, -1, 8)

    wide = logits.float().requires_grad_()
    loss = F.cross_entropy(wide.flatten(0, 1), targets.flatten())
    loss.backward()
    assert wide.grad is not None
    for found, grad in launch(program, ranks=2).values:
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, loss.detach())
        assert torch.equal(grad, wide.grad.bfloat16())


def test_the_loss_sends_three_numbers_a_token_whatever_the_vocabulary():
    def program(vocab: int) -> None:
        logits = parallel.shard_of(drawn(2, 5, vocab), -1).clone().requires_grad_()
        parallel.vocabulary_parallel_loss(logits, torch.zeros(2, 5, dtype=torch.long), vocab).backward()

    for vocab in (8, 800):
        transfers = launch(program, vocab, ranks=4).traffic.transfers
        assert [(t.name, t.tensor_bytes) for t in transfers] == [("all_reduce", 2 * 5 * 8)] * 3


@pytest.mark.parametrize("word", [-1, 12])
def test_a_word_of_no_vocabulary_fails_as_on_one_device(word: int):
    words = torch.tensor([[0, word]])

    def embed() -> None:
        parallel.vocabulary_embedding(words, parallel.shard_vocabulary(drawn(12, 2)), 12)

    def loss() -> None:
        parallel.vocabulary_parallel_loss(drawn(1, 2, 4), words, 12)

    for program in (embed, loss):
        with pytest.raises(RankError, match="index|out of"):
            launch(program, ranks=3)


def test_a_weight_that_is_not_cut_for_these_ranks_is_refused():
    def program() -> None:
        parallel.vocabulary_embedding(torch.tensor([[0]]), drawn(12, 2), 12)

    with pytest.raises(RankError, match="rank 0 of 2 must have 6 of 12 words.* got 12; cut the weight"):
        launch(program, ranks=2)


def test_a_vocabulary_is_padded_as_megatron_pads_it():
    """GPT-2's 50,257 words on 8 ranks, each a multiple of 128: 51,200."""
    assert parallel.padded_vocabulary(50257, 1, 128) == 50304
    assert parallel.padded_vocabulary(50257, 8, 128) == 51200
    assert parallel.padded_vocabulary(50257, 8) == 50264
