"""When drift is too far: not before there is enough to tell, and not for one bad request among many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcache.errors import UsageError
from agentcache.observe.drift import WINDOW, Drift, Sample
from agentcache.settings import EngineSettings

SAMPLES = st.lists(st.builds(Sample, st.floats(0, 2), st.booleans(), st.just(0.1)), max_size=60)


@given(SAMPLES, st.floats(0, 2), st.integers(1, 30))
def test_it_trips_once_and_only_on_a_mean_over_enough_samples(
    samples: list[Sample], limit: float, enough: int
) -> None:
    drift = Drift(limit, enough)
    tripped = [drift.add(sample) for sample in samples]
    means = [sum(one.kl for one in samples[: n + 1]) / (n + 1) for n in range(len(samples))]
    due = next((n for n, mean in enumerate(means) if n + 1 >= enough and mean > limit), None)
    assert tripped == [n == due for n in range(len(samples))]
    assert bool(drift.tripped) == (due is not None)


def test_old_samples_are_forgotten() -> None:
    drift = Drift(0.1, 1)
    for _ in range(WINDOW):
        drift.add(Sample(0.0, True, 0.1))
    tripped = [drift.add(Sample(1.0, False, 0.1)) for _ in range(WINDOW)]
    assert tripped.index(True) == WINDOW // 10
    told = drift.to_dict()
    assert told["samples"] == 2 * WINDOW
    assert told["mean_kl"] == pytest.approx(1.0)
    assert told["agreement"] == 0.0
    assert "0 %" not in drift.tripped
    assert "--shadow-max-kl" in drift.tripped


def test_times_are_compared_only_where_both_are_known() -> None:
    drift = Drift(1.0, 1)
    drift.add(Sample(0.0, True, 5.0))
    drift.add(Sample(0.0, True, 0.2, 2.0))
    drift.add(Sample(0.0, True, 0.4, 4.0))
    told = drift.to_dict()
    assert told["fast_s"] == pytest.approx(0.3)
    assert told["exact_s"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    "wrong", [{"shadow": 1.5}, {"shadow": -0.1}, {"shadow_max_kl": -1.0}, {"shadow_min_samples": 0}]
)
def test_senseless_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        EngineSettings(**wrong)  # type: ignore[arg-type]
