"""The closed forms count what torch's modules have, and what was published of released weights."""

from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lablib.models import GPTConfig, num_parameters
from lablib.models.published import find_transformer
from lablib.models.transformer import Experts, Latent, Transformer
from lablib.models.transformer_sizes import attention_matrices, layer_matrices, transformer_parameters


class _Attention(nn.Module):
    """Attention as torch's modules: the plain one with grouped heads, or the one with latents."""

    def __init__(self, model: Transformer):
        super().__init__()
        d, heads, latent = model.d_model, model.num_heads, model.latent
        if latent is None:
            self.query = _linear(model, d, heads * model.head_size)
            self.key, self.value = (_linear(model, d, model.kv_heads * model.head_size) for _ in range(2))
            self.out = _linear(model, heads * model.head_size, d)
            return
        width = heads * (latent.d_plain + latent.d_rotary)
        if latent.query_rank:
            self.query = nn.ModuleList([_linear(model, d, latent.query_rank), _linear(model, latent.query_rank, width)])
            self.query_norm = _norm(model, latent.query_rank)
        else:
            self.query = _linear(model, d, width)
        self.kv_down = _linear(model, d, latent.kv_rank + latent.d_rotary)
        self.kv_norm = _norm(model, latent.kv_rank)
        self.key = _linear(model, latent.kv_rank, heads * latent.d_plain)
        # Released weights have one matrix for the two: the same numbers, side by side.
        self.value = _linear(model, latent.kv_rank, heads * latent.d_value)
        self.out = _linear(model, heads * latent.d_value, d)


class _MLP(nn.Module):
    def __init__(self, model: Transformer, d_ff: int):
        super().__init__()
        self.up = _linear(model, model.d_model, d_ff)
        if model.activation == "swiglu":
            self.gate = _linear(model, model.d_model, d_ff)
        self.down = _linear(model, d_ff, model.d_model)


class _Mixture(nn.Module):
    def __init__(self, model: Transformer, experts: Experts):
        super().__init__()
        self.router = nn.Linear(model.d_model, experts.num_experts, bias=False, device="meta")
        self.experts = nn.ModuleList(_MLP(model, experts.d_ff) for _ in range(experts.num_experts))
        self.shared = nn.ModuleList(_MLP(model, experts.d_ff) for _ in range(experts.num_shared))


class _Reference(nn.Module):
    """The whole transformer, on "meta"."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.d_model, device="meta")
        if model.positions == "learned":
            self.positions = nn.Embedding(model.max_seq_len, model.d_model, device="meta")
        dense = model.experts.num_dense_layers if model.experts else model.num_layers
        self.layers = nn.ModuleList()
        for index in range(model.num_layers):
            is_dense = model.experts is None or index < dense
            mlp = _MLP(model, model.hidden_size) if is_dense else _Mixture(model, model.experts)  # pyright: ignore
            norms = [_norm(model, model.d_model) for _ in range(2)]
            self.layers.append(nn.ModuleList([_Attention(model), mlp, *norms]))
        self.norm = _norm(model, model.d_model)
        self.head = nn.Linear(model.d_model, model.vocab_size, bias=False, device="meta")
        if model.tied_head:
            self.head.weight = self.embedding.weight


def _linear(model: Transformer, rows: int, columns: int) -> nn.Linear:
    return nn.Linear(rows, columns, bias=model.has_bias, device="meta")


def _norm(model: Transformer, width: int) -> nn.Module:
    return nn.LayerNorm(width, device="meta") if model.norm == "layer" else nn.RMSNorm(width, device="meta")


def _count(module: nn.Module) -> int:
    return sum(param.numel() for param in module.parameters())


LATENTS = st.builds(
    Latent,
    query_rank=st.integers(0, 9),
    kv_rank=st.integers(1, 9),
    d_rotary=st.integers(1, 5),
    d_plain=st.integers(1, 5),
    d_value=st.integers(1, 5),
)
EXPERTS = st.builds(
    Experts,
    num_experts=st.integers(2, 5),
    num_active=st.integers(1, 2),
    d_ff=st.integers(1, 9),
    num_shared=st.integers(0, 2),
    num_dense_layers=st.integers(0, 2),
)


@st.composite
def transformers(draw):
    kv_heads = draw(st.integers(1, 3))
    return Transformer(
        "any",
        num_layers=draw(st.integers(2, 3)),
        d_model=draw(st.integers(1, 9)),
        num_heads=kv_heads * draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(1, 50)),
        max_seq_len=draw(st.integers(1, 9)),
        d_ff=draw(st.none() | st.integers(1, 20)),
        num_kv_heads=kv_heads,
        d_head=draw(st.integers(1, 5)),
        activation=draw(st.sampled_from(["gelu", "swiglu"])),
        positions=draw(st.sampled_from(["learned", "rotary", "alibi"])),
        norm=draw(st.sampled_from(["layer", "rms"])),
        has_bias=draw(st.booleans()),
        tied_head=draw(st.booleans()),
        latent=draw(st.none() | LATENTS),
        experts=draw(st.none() | EXPERTS),
    )


@given(transformers())
def test_the_closed_form_equals_torch_modules_of_any_sizes(model):
    parameters = transformer_parameters(model)
    assert parameters.total == _count(_Reference(model))
    assert parameters.total == sum(parameters.parts().values())


@given(transformers())
def test_each_part_equals_that_part_of_the_modules(model):
    reference, parameters = _Reference(model), transformer_parameters(model)
    layer = parameters.dense_layer if parameters.num_dense_layers else parameters.expert_layer
    attention, mlp = reference.layers[0][0], reference.layers[0][1]  # pyright: ignore
    inner_norms = sum(_count(module) for name, module in attention.named_children() if name.endswith("norm"))
    assert layer.attention == _count(attention) - inner_norms
    assert layer.norms == inner_norms + sum(_count(norm) for norm in reference.layers[0][2:])  # pyright: ignore
    assert layer.mlp + layer.experts + layer.shared_experts + layer.router == _count(mlp)
    assert parameters.embedding == _count(reference.embedding)
    assert parameters.head == (0 if model.tied_head else _count(reference.head))


@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 4),
    d_head=st.integers(1, 8),
    d_ff=st.none() | st.integers(1, 40),
    tied_head=st.booleans(),
)
def test_a_gpt_config_counts_as_the_gpt_that_it_builds(layers, heads, d_head, d_ff, tied_head):
    config = GPTConfig(layers, heads * d_head, heads, 99, 32, d_ff, tied_head)
    assert transformer_parameters(Transformer.of(config)).total == num_parameters(config)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gpt2", 124_439_808),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("llama-3-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v2", 235_741_434_880),
        pytest.param("deepseek-v3", 671_026_419_200 - 58 * 256, id="deepseek-v3 less the biases of its routers"),
        pytest.param("qwen3-8b", 8_190_735_360 - 36 * 256, id="qwen3-8b less its norms of queries and keys"),
        pytest.param("qwen3-30b-a3b", 30_532_122_624 - 48 * 256, id="qwen3-30b-a3b less those norms"),
        pytest.param("qwen3-235b-a22b", 235_093_634_560 - 94 * 256, id="qwen3-235b-a22b less those norms"),
        pytest.param("bloom-176b", 176_247_271_424 - 2 * 14336, id="bloom-176b less the norm after its embedding"),
        ("mpt-125m", 125_311_488),
        ("mpt-350m", 355_985_408),
        ("mpt-760m", 760_470_528),
        ("mpt-1b", 1_315_950_592),
        ("mpt-3b", 2_651_837_440),
        ("mpt-7b", 6_658_859_008),
        ("mpt-13b", 12_853_954_560),
        ("mpt-30b", 29_975_214_080),
        ("mpt-70b", 64_862_437_376),
    ],
)
def test_published_weights_have_exactly_these_parameters(name, published):
    assert transformer_parameters(find_transformer(name)).total == published


@pytest.mark.parametrize(
    ("name", "total_b", "active_b"),
    [
        pytest.param("mixtral-8x7b", 46.7, 12.9, id="arXiv 2401.04088: 47B of which 13B, 12.9B in its announcement"),
        pytest.param("mixtral-8x22b", 141, 39, id="mixtral-8x22b: announcement"),
        pytest.param("deepseek-v2", 236, 21, id="arXiv 2405.04434, abstract"),
        pytest.param("deepseek-v3", 671, 37, id="arXiv 2412.19437, abstract"),
        pytest.param("qwen3-30b-a3b", 30.5, 3.3, id="qwen3-30b-a3b: model card"),
        pytest.param("qwen3-235b-a22b", 235, 22, id="arXiv 2505.09388, Table 2"),
    ],
)
def test_a_token_of_a_mixture_visits_what_its_authors_say(name, total_b, active_b):
    parameters = transformer_parameters(find_transformer(name))
    assert isclose(parameters.total, total_b * 1e9, rel_tol=0.005)
    assert isclose(parameters.active, active_b * 1e9, rel_tol=0.02)


@pytest.mark.parametrize(("name", "printed_b"), [("palm-8b", 8.63), ("palm-62b", 62.50), ("palm-540b", 540.35)])
def test_palm_has_the_sizes_of_its_table_1(name, printed_b):
    # Two norms a layer are counted, PaLM's parallel layers have one: 2 million of 540 thousand million.
    assert transformer_parameters(find_transformer(name)).total / 1e9 == pytest.approx(printed_b, abs=0.011)


def test_a_dense_model_is_active_as_a_whole_and_has_no_expert_layers():
    parameters = transformer_parameters(find_transformer("llama-3-8b"))
    assert parameters.active == parameters.total
    assert (parameters.num_dense_layers, parameters.num_expert_layers) == (32, 0)


def test_matrices_of_a_layer_are_given_by_name_and_shape():
    model = find_transformer("llama-3-8b")
    assert [(m.name, m.rows, m.columns) for m in attention_matrices(model)] == [
        ("query", 4096, 4096),
        ("key", 4096, 1024),
        ("value", 4096, 1024),
        ("out", 4096, 4096),
    ]
    experts = layer_matrices(find_transformer("mixtral-8x7b"), is_expert_layer=True)
    assert {(m.name, m.count, m.active) for m in experts if m.part == "experts"} == {
        (name, 8, 2) for name in ("gate", "up", "down")
    }
