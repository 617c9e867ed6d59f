"""Packed documents do not know of each other: logits and raw float64 gradients are those of each document alone."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lablib.batches.accumulation import summed_loss
from lablib.batches.packed_attention import (
    attend_by_length,
    attend_by_mask,
    attend_to_all,
    document_mask,
    masked_attention_flops,
    packed_logits,
    variable_length_attention_flops,
)
from lablib.batches.packing import Packing, best_fit, fill_blocks, one_per_block
from lablib.models import GPT, GPTConfig

BLOCK = 8
few = settings(max_examples=15)
of_lengths = st.lists(st.integers(1, BLOCK), min_size=1, max_size=5)
WAYS = {"mask": attend_by_mask, "length": attend_by_length}


def model() -> GPT:
    gpt = GPT(GPTConfig(2, 8, 2, vocab_size=13, max_seq_len=BLOCK), dtype=torch.float64)
    for param in gpt.parameters():
        param.data *= 8.0  # a start at 0.02 hardly attends to anything
    return gpt


def texts(lengths: list[int]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(13, (length,), generator=generator) for length in lengths]


@few
@given(lengths=of_lengths, way=st.sampled_from(sorted(WAYS)))
def test_packed_gradients_are_those_of_each_document_alone(lengths, way):
    documents, packed, alone = texts(lengths), model(), model()
    blocks = fill_blocks(documents, best_fit(lengths, BLOCK))
    logits_BTV = packed_logits(packed, blocks, WAYS[way](blocks.documents))
    summed_loss(logits_BTV, blocks.targets).backward()
    for tokens in documents:
        if len(tokens) > 1:
            F.cross_entropy(alone(tokens[None])[0, :-1], tokens[1:], reduction="sum").backward()
    for ours, theirs in zip(packed.parameters(), alone.parameters(), strict=True):
        expected = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        torch.testing.assert_close(ours.grad, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", sorted(WAYS))
def test_no_gradient_crosses_a_border(way):
    lengths = [3, 4]
    gpt = model()
    blocks = fill_blocks(texts(lengths), Packing(((0, 1),), (3, 4), BLOCK))

    def reached(attend, of: slice) -> list[bool]:
        """Which tokens' embeddings the logits of `of` depend on."""
        seen = []
        hook = gpt.token_embedding.register_forward_hook(lambda module, inputs, output: seen.append(output))
        logits_BTV = packed_logits(gpt, blocks, attend)
        hook.remove()
        (gradient_BTD,) = torch.autograd.grad(logits_BTV[0, of].square().sum(), seen[0])
        return (gradient_BTD[0] != 0).any(-1).tolist()

    attend = WAYS[way](blocks.documents)
    assert reached(attend, slice(0, 3)) == [True] * 3 + [False] * 5
    assert reached(attend, slice(3, 7)) == [False] * 3 + [True] * 4 + [False]
    # The causal mask alone: the second document reads the first.
    assert reached(attend_to_all, slice(3, 7)) == [True] * 7 + [False]


def test_the_mask_is_block_diagonal_and_causal():
    mask = document_mask(torch.tensor([[0, 0, 1, 1, -1]]))
    assert mask[0, 0].int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


@few
@given(lengths=of_lengths)
def test_the_mask_is_that_of_torchs_flex_attention(lengths):
    from torch.nn.attention.flex_attention import create_mask

    documents_BT = fill_blocks(texts(lengths), best_fit(lengths, BLOCK)).documents

    def causal_in_document(b, h, q, kv):
        return (q >= kv) & (documents_BT[b, q] == documents_BT[b, kv])

    theirs = create_mask(causal_in_document, len(documents_BT), 1, BLOCK, BLOCK, device="cpu")
    assert torch.equal(document_mask(documents_BT), theirs)


def test_one_document_a_block_is_the_plain_model():
    documents, gpt = texts([BLOCK, BLOCK]), model()
    blocks = fill_blocks(documents, one_per_block([BLOCK, BLOCK], BLOCK))
    for attend in (attend_to_all, attend_by_mask(blocks.documents), attend_by_length(blocks.documents)):
        torch.testing.assert_close(packed_logits(gpt, blocks, attend), gpt(torch.stack(documents)))


@few
@given(lengths=of_lengths, num_heads=st.sampled_from([1, 2]), d_head=st.integers(1, 4))
def test_flops_by_formula_are_those_torch_counts(lengths, num_heads, d_head):
    packing = best_fit(lengths, BLOCK)
    blocks = fill_blocks(texts(lengths), packing)
    q = torch.ones(len(packing.blocks), num_heads, BLOCK, d_head)
    formulas = {attend_by_mask: masked_attention_flops, attend_by_length: variable_length_attention_flops}
    for way, formula in formulas.items():
        # Torch's counter sees products of matrices, so attention is made of them: no fused kernel.
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            way(blocks.documents)(q, q, q)
        assert counter.get_total_flops() == formula(packing, num_layers=1, d_model=num_heads * d_head)
        assert formula(packing, 3, 16) == 3 * formula(packing, 1, 16)


@given(num_documents=st.sampled_from([1, 2, 4, 8]))
def test_k_equal_documents_of_a_full_block_need_k_times_fewer_flops(num_documents):
    packing = best_fit([BLOCK // num_documents] * num_documents, BLOCK)
    saved = masked_attention_flops(packing, 2, 4) / variable_length_attention_flops(packing, 2, 4)
    assert saved == num_documents


def test_a_document_that_is_too_long_for_the_model_is_told():
    gpt = GPT(GPTConfig(1, 4, 1, vocab_size=13, max_seq_len=4))
    blocks = fill_blocks(texts([5]), one_per_block([5], BLOCK))
    with pytest.raises(ValueError, match="at most max_seq_len=4 tokens: got 5; cut it"):
        packed_logits(gpt, blocks, attend_to_all)
    short = fill_blocks(texts([4, 4]), best_fit([4, 4], BLOCK))  # the block may be longer than any document
    assert packed_logits(gpt, short, attend_by_mask(short.documents)).shape == (1, BLOCK, 13)
