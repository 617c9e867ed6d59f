"""Safetensors to the byte, and GPT-2 in the files of transformers: weights and logits."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lablib.configs import read_hugging_face
from lablib.models import GPT, GPTConfig, LlamaConfig, model_of
from lablib.train import export_gpt2, export_llama, import_gpt2, import_llama, read_safetensors, write_safetensors
from lablib.train.safetensors import _DTYPES

TINY = GPTConfig(num_layers=2, d_model=12, num_heads=3, vocab_size=50, max_seq_len=16, d_ff=20)
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]])


def made_by_hand(header: dict[str, Any] | str, numbers: bytes) -> bytes:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def a_file(folder: Path, content: bytes) -> Path:
    path = folder / "a.safetensors"
    path.write_bytes(content)
    return path


def test_a_file_made_by_hand_is_read(tmp_path):
    header = {
        "b": {"dtype": "U8", "shape": [3], "data_offsets": [8, 11]},
        "__metadata__": {"made": "by hand"},
        "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    }
    numbers = bytes.fromhex("0000803f 000000c0 010203")  # 1.0, -2.0, and three bytes
    found = read_safetensors(a_file(tmp_path, made_by_hand(header, numbers)))
    assert list(found) == ["b", "w"]
    assert torch.equal(found["w"], torch.tensor([[1.0], [-2.0]])) and found["b"].tolist() == [1, 2, 3]


def test_the_bytes_of_a_written_file(tmp_path):
    write_safetensors(tmp_path / "a", {"w": torch.tensor([[1.0], [-2.0]])}, {"step": "7"})
    content = (tmp_path / "a").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert length % 8 == 0 and content[8 + length :] == bytes.fromhex("0000803f 000000c0")
    assert json.loads(content[8 : 8 + length]) == {
        "__metadata__": {"format": "pt", "step": "7"},
        "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(list(_DTYPES.values())), st.lists(st.integers(0, 4), max_size=3)), max_size=5),
    st.booleans(),
)
def test_tensors_come_back_to_the_bit(tmp_path_factory, kinds, is_transposed):
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    for number, (dtype, shape) in enumerate(kinds):
        tensor = torch.randint(0, 100, shape, generator=generator).to(dtype)
        tensors[f"t {number}"] = tensor.T if is_transposed and tensor.ndim == 2 else tensor
    path = tmp_path_factory.mktemp("files") / "a.safetensors"
    write_safetensors(path, tensors)
    found = read_safetensors(path)
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape
        assert bytes(found[name].flatten().view(torch.uint8).tolist()) == bytes(
            tensor.flatten().view(torch.uint8).tolist()
        )


def entry(**changes: Any) -> dict[str, Any]:
    return {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the header has 0 bytes, and the file 0"),
        (b"\xff" * 20, "the header has 18446744073709551615 bytes"),
        (made_by_hand("{]", b""), "the header is not a JSON object"),
        (made_by_hand("[]", b""), "the header is not a JSON object"),
        (made_by_hand({"w": 3}, b""), "the header is not a JSON object"),
        (made_by_hand(entry(), bytes(7)), r"'w' is at \[0, 8\]"),
        (made_by_hand(entry(), bytes(9)), "its tensors have 8 bytes, and 9 follow"),
        (made_by_hand(entry(dtype="F7"), bytes(8)), "'w' has the dtype F7"),
        (made_by_hand(entry(shape=[-2]), bytes(8)), "the shape"),
        (made_by_hand(entry(shape=[10**30]), bytes(8)), "the shape"),
        (made_by_hand(entry(data_offsets=[0, 4]), bytes(8)), r"instead of \[0, 8\]"),
        (made_by_hand(entry() | {"v": entry()["w"]}, bytes(8)), r"'v' is at \[0, 8\] instead of \[8, 16\]"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path, content, reason):
    with pytest.raises(ValueError, match=f"complete and readable: .*a.safetensors: .*{reason}"):
        read_safetensors(a_file(tmp_path, content))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(0, 7))
def test_a_flipped_bit_in_the_header_never_ends_in_another_error(tmp_path_factory, place, bit):
    content = bytearray(made_by_hand(entry(), bytes(8)))
    content[place % (len(content) - 8)] ^= 1 << bit
    try:
        read_safetensors(a_file(tmp_path_factory.mktemp("files"), bytes(content)))
    except ValueError as error:
        assert "complete and readable" in str(error)


def test_complex_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the dtype must be one of F64, .*: w has torch.complex64; convert it"):
        write_safetensors(tmp_path / "a", {"w": torch.ones(1, dtype=torch.complex64)})


# ---- GPT-2 ----


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_comes_back_with_equal_weights(tmp_path, kind, dtype, is_tied):
    config: Any = GPTConfig(2, 12, 3, 50, 16, 20, tied_head=is_tied)
    write, read = export_gpt2, import_gpt2
    if kind == "llama":
        config, write, read = LlamaConfig(2, 12, 3, 50, 16, 20, is_tied, 1, 4, 1234.5, 1e-4), export_llama, import_llama
    model: Any = model_of(config, seed=1, dtype=dtype)
    write(model, tmp_path / "new")
    found = read(tmp_path / "new")
    assert found.config == config and (found.head.weight is found.token_embedding.weight) == is_tied
    weights = found.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(weights[name], tensor), name
    assert read_hugging_face(tmp_path / "new").unknown == ()


def test_names_and_shapes_are_those_of_the_published_gpt2(tmp_path):
    """Of openai-community/gpt2, one layer: 768 wide, matrices as [in, out]."""
    export_gpt2(GPT(GPTConfig(1, 768, 12, 50, 16)), tmp_path)
    stored = read_safetensors(tmp_path / "model.safetensors")
    shapes = {name.removeprefix("transformer."): list(tensor.shape) for name, tensor in stored.items()}
    assert shapes == {
        "wte.weight": [50, 768], "wpe.weight": [16, 768],
        "h.0.ln_1.weight": [768], "h.0.ln_1.bias": [768],
        "h.0.attn.c_attn.weight": [768, 2304], "h.0.attn.c_attn.bias": [2304],
        "h.0.attn.c_proj.weight": [768, 768], "h.0.attn.c_proj.bias": [768],
        "h.0.ln_2.weight": [768], "h.0.ln_2.bias": [768],
        "h.0.mlp.c_fc.weight": [768, 3072], "h.0.mlp.c_fc.bias": [3072],
        "h.0.mlp.c_proj.weight": [3072, 768], "h.0.mlp.c_proj.bias": [768],
        "ln_f.weight": [768], "ln_f.bias": [768],
    }  # fmt: skip


def test_names_without_the_prefix_and_with_masks_are_read(tmp_path):
    model = GPT(TINY, seed=2)
    export_gpt2(model, tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name.removeprefix("transformer."): tensor for name, tensor in read_safetensors(file).items()}
    write_safetensors(file, {**stored, "h.0.attn.bias": torch.ones(1, 1, 16, 16)})
    assert torch.equal(import_gpt2(tmp_path)(TOKENS), model(TOKENS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transformer.ln_f.bias": None}, "must have all tensors of a GPT-2: transformer.ln_f.bias is missing"),
        ({"transformer.h.7.ln_1.bias": torch.ones(12)}, "must have only tensors of a GPT-2: got .*h.7.ln_1.bias"),
        ({"transformer.wpe.weight": torch.ones(3, 12)}, "must fit its config.json .*position_embedding"),
    ],
)
def test_other_tensors_are_refused(tmp_path, change, message):
    export_gpt2(GPT(TINY), tmp_path)
    file = tmp_path / "model.safetensors"
    stored = {name: tensor for name, tensor in (read_safetensors(file) | change).items() if tensor is not None}
    write_safetensors(file, stored)
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        import_gpt2(tmp_path)


def test_another_kind_of_model_is_refused(tmp_path):
    sizes = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    settings = {"model_type": "llama", **sizes, "intermediate_size": 16, "max_position_embeddings": 8}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="model_type must be gpt2: got config.json, llama"):
        import_gpt2(tmp_path)


def test_transformers_computes_the_same_logits_in_both_directions(tmp_path):
    transformers: Any = pytest.importorskip("transformers")
    model = GPT(TINY, seed=3)
    export_gpt2(model, tmp_path / "ours")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(theirs(TOKENS).logits, model(TOKENS), rtol=1e-4, atol=1e-5)
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=12, n_layer=2, n_head=3)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    torch.testing.assert_close(import_gpt2(tmp_path / "theirs")(TOKENS), theirs(TOKENS).logits, rtol=1e-4, atol=1e-5)
