"""The batch calculator: every split of one global batch, as the planner predicts it."""

# plotly and ipywidgets make their properties at run time, so the type checker does not know them
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lablib.figures import describe, table
from lablib.plan import Parallel, predict
from lablib.widgets import batch_calculator
from lablib.widgets.batch_calculator import CLUSTERS, MODELS, split_batch
from lablib.widgets.explore import Pictures
from lablib.widgets.explorer import Explorer

powers = st.integers(0, 4).map(lambda e: 2**e)


@settings(max_examples=10)
@given(powers, st.integers(1, 12), powers)
def test_all_splits_are_of_one_global_batch_and_as_predicted(micro_batch, num_accumulations, data_ranks):
    found = split_batch("gpt2", "dgx-h100", micro_batch, num_accumulations, data_ranks, 512)
    whole = micro_batch * num_accumulations * data_ranks
    assert {(one.batch, one.micro_batch * one.num_microbatches) for one in found} == {(whole, whole // data_ranks)}
    sizes = [one.micro_batch for one in found]
    assert micro_batch in sizes and sizes == sorted(set(sizes))
    [here] = [one for one in found if one.micro_batch == micro_batch]
    alone = predict("gpt2", "dgx-h100", Parallel(data=data_ranks), whole, micro_batch=micro_batch, seq_len=512)
    assert (here.step_time_s, here.stage_bytes) == (alone.step_time_s, alone.stage_bytes)


def test_a_larger_micro_batch_takes_more_memory_and_less_time():
    found = split_batch("gpt2-xl", "dgx-h100", 4, 8, 16, 1024)
    assert [one.micro_batch for one in found] == [1, 2, 4, 8, 16, 32]
    assert [max(one.stage_bytes) for one in found] == sorted(max(one.stage_bytes) for one in found)
    assert [one.step_time_s for one in found] == sorted((one.step_time_s for one in found), reverse=True)


def test_moving_a_control_redraws_the_equation():
    shown = batch_calculator()
    assert isinstance(shown, Explorer)
    shown.controls["num_accumulations"].value = 2
    assert "Micro-batch 4 x 2 accumulations x 16 data ranks = 128 sequences, 131,072 tokens" in shown.caption.text
    shown.controls["model"].value = "llama-3-8b"
    assert not shown.message.text and "does not fit into" in shown.caption.text


def test_without_widgets_it_is_pictures_with_words():
    pictures = batch_calculator(interactive=False, model="gpt2")
    assert isinstance(pictures, Pictures)
    for picture in pictures.pictures:
        assert picture.figure is not None
        assert "sequences" in describe(picture.figure) and len(table(picture.figure))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_every_choice_can_be_computed(model, cluster):
    assert split_batch(model, cluster, 1, 1, 1, 1024)


@pytest.mark.parametrize("wrong", [{"model": "gpt9"}, {"micro_batch": 3}, {"data_ranks": 0}])
def test_a_start_that_is_none_of_the_choices_is_one_clear_error(wrong):
    with pytest.raises(ValueError, match="must be one of its values"):
        batch_calculator(**wrong)
