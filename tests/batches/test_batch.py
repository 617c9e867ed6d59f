"""One equation: whatever is left out of a batch comes back, and sizes that do not fit are told with one that does."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lablib.batches.batch import BatchSize, nearest_multiple, solve_batch

sizes = st.integers(1, 1000)
NAMES = ("global_batch", "micro_batch", "num_accumulations", "data_ranks")


@given(micro_batch=sizes, num_accumulations=sizes, data_ranks=sizes, missing=st.sampled_from(NAMES))
def test_any_three_give_the_fourth(micro_batch, num_accumulations, data_ranks, missing):
    whole = BatchSize(micro_batch, num_accumulations, data_ranks)
    known = {name: getattr(whole, name) for name in NAMES if name != missing}
    assert solve_batch(**known) == whole
    assert whole.global_batch == micro_batch * num_accumulations * data_ranks == whole.local_batch * data_ranks


def test_the_batch_of_gpt3_in_tokens():
    # Brown et al., 2020, arXiv 2005.14165, table 2.1: 3.2M tokens of sequences of 2048, here over 96 ranks.
    plan = solve_batch(global_batch=1536, micro_batch=2, data_ranks=96)
    assert plan == BatchSize(2, 8, 96)
    assert plan.tokens(2048) == 3_145_728
    assert plan.local_batch == 16


@given(size=st.integers(1, 2000), divisor=sizes)
def test_nearest_multiple_is_one_and_none_is_nearer(size, divisor):
    near = nearest_multiple(size, divisor)
    assert near >= divisor and near % divisor == 0
    assert all(abs(near - size) <= abs(other - size) for other in range(divisor, size + 2 * divisor, divisor))
    if size >= divisor and 2 * (size % divisor) == divisor:
        assert near > size  # of two as near the larger


@given(global_batch=sizes, micro_batch=sizes, data_ranks=sizes)
def test_a_batch_that_does_not_fit_is_told_with_one_that_does(global_batch, micro_batch, data_ranks):
    divisor = micro_batch * data_ranks
    assume(global_batch % divisor)
    near = nearest_multiple(global_batch, divisor)
    with pytest.raises(ValueError, match=rf"micro_batch x data_ranks: got {global_batch} and {divisor}; try {near}\."):
        solve_batch(global_batch=global_batch, micro_batch=micro_batch, data_ranks=data_ranks)
    assert solve_batch(global_batch=near, micro_batch=micro_batch, data_ranks=data_ranks).global_batch == near


@pytest.mark.parametrize(
    "known, message",
    [
        ({"global_batch": 8}, "three of .* got global_batch; leave out"),
        ({}, "three of .* got none"),
        (dict.fromkeys(NAMES, 1), "got global_batch, micro_batch, num_accumulations, data_ranks"),
    ],
)
def test_bad_input_is_one_clear_error(known, message):
    with pytest.raises(ValueError, match=message):
        solve_batch(**known)
