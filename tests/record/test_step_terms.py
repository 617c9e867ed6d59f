"""Seconds of a measured step by kind: from traces of torch's profiler and of lablib, tables and numbers."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.record.step_terms import KINDS, StepTerms, kind_of, measured_step

# Names of kernels in recorded traces of torch's profiler (facebookresearch/HolisticTraceAnalysis, tests/data), of
# torch.compile and of Transformer Engine; and of operators in lablib's timelines.
NAMES = {
    "products": (
        "ampere_sgemm_32x32_sliced1x4_tn", "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw",
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x64_64x6_tn_align8>(T1::Params)",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT", "Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "aten.mm",
        "aten.addmm", "aten.bmm", "aten._grouped_mm", "triton_tem_fused_mm_3",
        "void gemv2T_kernel_val<int, int, float>",
    ),
    "attention": (
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
        "fmha_cutlassF_bf16_aligned_64x64_rf_sm80(PyTorchMemEffAttention)",
        "aten._scaled_dot_product_flash_attention",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x128x128",
        "triton_tem_fused_flex_attention",
    ),
    "other kernels": (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        "aten.native_layer_norm",
        "triton_poi_fused_add_addmm_gelu_2", "triton_red_fused__log_softmax_mm_1", "Memcpy DtoD (Device -> Device)",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "aten._foreach_addcmul_",
        "void fbgemm_gpu::permute_2D_data_kernel<false, int, int>", "aten.embedding_dense_backward",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_kernel_has_its_kind(kind, name):
    assert kind_of(name) == kind


EVENTS = st.lists(
    st.tuples(st.sampled_from(["aten.mm", "flash_fwd", "copy", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"]),
              st.integers(0, 40), st.integers(1, 20), st.integers(0, 1)),
    min_size=1,
    max_size=12,
)  # fmt: skip
PLACES = {"aten.mm": 0, "flash_fwd": 1, "copy": 2, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 3}


def by_microsecond(events: list[tuple], first: int, last: int) -> dict[str, float]:
    """Each microsecond of each rank has the first kind that is active, counted one by one."""
    ranks = sorted({rank for *_, rank in events})
    seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for rank in ranks:
        for time in range(first, last):
            active = [PLACES[name] for name, start, dur, own in events if own == rank and start <= time < start + dur]
            seconds[KINDS[min(active, default=4)]] += 1e-6 / len(ranks)
    return seconds


@given(events=EVENTS, steps=st.integers(0, 3))
def test_every_second_of_a_trace_has_one_kind(tmp_path_factory, events, steps):
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    spans = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": dur, "pid": rank, "tid": 7 + PLACES[name]}
        for name, start, dur, rank in events
    ]
    marks = [
        {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{i}",
            "ts": 5 + 8 * i,
            "dur": 8,
            "pid": 9,
            "tid": 9,
        }
        for i in range(steps)
    ]
    cpu = [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 99, "pid": 9, "tid": 9}, {"ph": "M"}, 3]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*spans, *marks, *cpu]}).encode()))
    terms = measured_step(path)
    first = 5 if steps else min(start for _, start, _, _ in events)
    last = 5 + 8 * steps if steps else max(start + dur for _, start, dur, _ in events)
    expected = by_microsecond(events, first, last)
    assert terms.step_s == pytest.approx((last - first) * 1e-6 / max(steps, 1))
    for kind in KINDS:
        assert terms.terms[kind] == pytest.approx(expected[kind] / max(steps, 1), abs=1e-12), kind


def test_a_number_and_a_table_are_measured_steps(tmp_path: Path):
    assert measured_step(1.83) == measured_step(" 1.83 ") == StepTerms(1.83)
    path = tmp_path / "terms.json"
    path.write_text(json.dumps({"step": 2, "products": 1.5}))
    assert measured_step(str(path)).terms == {"products": 1.5}
    assert measured_step({"step": 2, "products": 1.5}).step_s == 2
    assert measured_step(measured_step(path)) == measured_step(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (0, "which is above 0"),
        (-1.0, "must be seconds, 0 or more: got -1.0"),
        ("-1.83", "must be seconds, 0 or more: got -1.83"),
        (float("nan"), "must be seconds"),
        (True, "must be seconds"),
        ({"products": 1.0}, 'must have the seconds of the whole step under "step": got products'),
        ({"step": 1.0, "products": 2.0}, "must add up to step or less"),
        ({"step": "1"}, "must be seconds"),
        ("absent.json", "absent.json cannot be read: No such file .*; a measured step is seconds"),
        ("1.8 s", "cannot be read"),
    ],
)
def test_a_measurement_that_is_none_is_one_error(given, message):
    with pytest.raises(ValueError, match=message):
        measured_step(given)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON, or JSON in gzip"),
        ("3", "must hold seconds by term, or a trace: got int"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 2}]}', "no kernels of a GPU and no streams"),
    ],
)
def test_a_file_without_a_step_is_one_error(text, message, tmp_path: Path):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        measured_step(tmp_path / "trace.json")
