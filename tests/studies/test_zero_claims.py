"""Claims about ZeRO: the closed forms against the paper's table, against a search over ranks, and each claim read."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lablib.studies.zero_claims import (
    GB,
    PARTS,
    PRECISIONS,
    bytes_a_rank,
    claims,
    largest_model,
    largest_saving,
    ranks_for_saving,
    ranks_to_fit,
    readings,
)

stages, precisions = st.integers(0, 3), st.sampled_from(list(PRECISIONS))


@given(stage=stages, ranks=st.integers(1, 5000), params=st.floats(1, 1e13))
def test_mixed_precision_is_the_papers_table(stage, ranks, params):
    """Rajbhandari et al., 2019, section 5: 2 + 2 + 12 bytes, of which stages 1, 2 and 3 split 12, 14 and 16."""
    split = (0, 12, 14, 16)[stage]
    assert bytes_a_rank(params, stage, ranks) == pytest.approx(params * (16 - split + split / ranks))


# The paper's table 1, GB on each rank in stages 1, 2 and 3; some figures are rounded, some cut off.
@pytest.mark.parametrize(
    ("params", "ranks", "printed"),
    [
        (7.5e9, 64, ("31.4", "16.6", "1.88")),
        (128e9, 16, ("608", "368", "128")),
        (1e12, 4, ("7000", "5500", "4000")),
        (1e12, 1024, ("4011", "2013", "15.6")),
    ],
)
def test_figures_of_the_papers_table(params, ranks, printed):
    for stage, figure in enumerate(printed, 1):
        assert abs(bytes_a_rank(params, stage, ranks) / 1e9 - float(figure)) < 10.0 ** -len(figure.partition(".")[2])


@given(stage=stages, precision=precisions, saving=st.sampled_from([1, 1.1, 1.5, 2, 3, 3.5, 4, 5, 7.5, 8, 16]))
def test_the_ranks_for_a_saving_are_the_first_that_save_so_much(stage, precision, saving):
    whole = bytes_a_rank(1, 0, 1, precision)
    searched = (n for n in range(1, 400) if whole / bytes_a_rank(1, stage, n, precision) >= saving * (1 - 1e-12))
    assert ranks_for_saving(saving, stage, precision) == next(searched, None)


@given(stage=stages, precision=precisions, gb=st.integers(1, 200), left_out=st.integers(0, 20))
def test_a_model_fits_on_the_ranks_found_and_not_on_fewer(stage, precision, gb, left_out):
    params, room = 7e9, gb * GB
    ranks = ranks_to_fit(params, room, stage, precision, left_out * GB)
    if ranks is None:
        assert bytes_a_rank(params, stage, 10**9, precision, left_out * GB) > room * (1 - 1e-6)
        return
    assert bytes_a_rank(params, stage, ranks, precision, left_out * GB) <= room * (1 + 1e-12)
    assert ranks == 1 or bytes_a_rank(params, stage, ranks - 1, precision, left_out * GB) > room
    assert largest_model(room, stage, ranks, precision, left_out * GB) >= params * (1 - 1e-12)


def test_half_a_quarter_an_eighth():
    assert (ranks_for_saving(2, 1), ranks_for_saving(2, 1, "FP32"), ranks_for_saving(2, 2, "FP32")) == (3, None, 3)
    assert (largest_saving(1), largest_saving(2), largest_saving(3)) == (4, 8, inf)
    assert (ranks_for_saving(4, 1), ranks_for_saving(8, 2), ranks_for_saving(64, 3)) == (None, None, 64)


def test_a_trillion_on_1024_ranks_of_16_gb():
    assert ranks_to_fit(1e12, 16 * GB, 3) == 1000 and bytes_a_rank(1e12, 3, 1024) / GB == 15.625
    assert largest_model(80 * GB) == 5e9 and largest_model(16 * GB, 3, 1024) == 1.024e12
    assert largest_model(1 * GB, left_out_bytes=2 * GB) == 0


def test_ten_billion_from_80_to_20_gb_is_no_mixed_precision():
    whole = [reading for reading in readings(10e9, "20 GB", "80 GB") if reading.parts == PARTS]
    found = {(reading.precision, reading.stage, reading.min_ranks, reading.max_ranks) for reading in whole}
    assert found == {("BF16", 2, 120, inf), ("BF16", 3, 4, 4), ("FP32, SGD", 3, 4, 4)}


def test_no_states_of_175_billion_take_1200_gb():
    assert readings(175e9, "35 GB", "1.2 TB") == ()
    assert ("mixed", 79, 81) in {(r.precision, r.min_ranks, r.max_ranks) for r in readings(175e9, "35 GB")}
    assert readings(175e9, "2.8 TB", "2.8 TB")[0].max_ranks == 1


@given(precision=precisions, stage=st.integers(1, 3), ranks=st.integers(1, 200), params=st.integers(10**9, 10**11))
def test_every_reading_gives_the_numbers_stated(precision, stage, ranks, params):
    held = bytes_a_rank(params, stage, ranks, precision), bytes_a_rank(params, 0, 1, precision)
    after, before = (f"{size / GB:.2f} GB" for size in held)
    found = readings(params, after, before)
    splits_more = bytes_a_rank(1, stage, 2, precision) != bytes_a_rank(1, stage - 1, 2, precision)
    assert not splits_more or any(
        (r.precision, r.parts, r.stage) == (precision, PARTS, stage) and r.min_ranks <= ranks <= r.max_ranks
        for r in found
    )
    for reading in (reading for reading in found if reading.parts == PARTS):
        for n in {reading.min_ranks, int(min(reading.max_ranks, 10**6))}:
            there = bytes_a_rank(params, reading.stage, n, reading.precision)
            assert there == pytest.approx(float(after[:-3]) * GB, abs=0.00501 * GB)


def test_every_claim_says_where_it_holds_and_what_it_leaves_out():
    assert len(claims()) == 7
    assert all(claim.text and claim.source and claim.true_for and claim.left_out for claim in claims())
    assert "from 3 ranks" in claims()[0].true_for and "from 1000 ranks" in claims()[5].true_for


@pytest.mark.parametrize(
    ("call", "message"), [(lambda: readings(1e9, "35"), "after must be a number of bytes in words")]
)
def test_bad_questions_get_one_clear_error(call, message):
    with pytest.raises(ValueError, match=message):
        call()
