"""Failure rates: published sites, posteriors, and fitted times between failures."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import polygamma, psi

from kernelcast.plan.failures import fit, observed_rate, published_sites, rate_of, stated_rate
from kernelcast.runtime.errors import UsageError
from kernelcast.runtime.hardware.devices import devices


def test_every_published_site_says_where_it_is_from() -> None:
    architectures = {one.architecture for one in devices().values()}
    for name, site in published_sites().items():
        assert min(len(site.source), len(site.counted)) > 10, name
        assert site.architecture in architectures, name
        assert site.range is None or site.range[0] <= site.failures <= site.range[1], name
    assert published_sites()["llama-3"].per_1000_node_days == pytest.approx(3.79, abs=0.01)


def test_a_generation_without_three_sites_takes_all() -> None:
    assert "6 published sites of all generations" in rate_of("Hopper").origin
    assert "5 published Ampere sites" in rate_of("Ampere").origin
    assert "llama-3" not in rate_of("Hopper", without=("llama-3",)).origin
    with pytest.raises(UsageError, match="expected one of llama-3"):
        rate_of("Hopper", without=("nowhere",))


@given(st.integers(0, 200), st.floats(10, 1e5))
def test_own_counts_pull_the_rate_to_theirs_and_narrow_it(failures: int, node_days: float) -> None:
    before = rate_of("Hopper")
    after = before.observing(failures, node_days, 8, "own")
    own = 1000 * failures / node_days
    assert min(before.mean, own) * (1 - 1e-9) <= after.mean <= max(before.mean, own) * (1 + 1e-9)
    low, high = after.interval()
    assert low < after.mean < high
    if failures >= 20:
        assert high / low < before.interval()[1] / before.interval()[0]


def test_nodes_fail_in_proportion_to_their_gpus() -> None:
    rate = stated_rate(4.0)
    assert rate.per_s(nodes=10, gpus_per_node=4) == pytest.approx(rate.per_s(nodes=5, gpus_per_node=8))
    assert rate.per_s(nodes=1000, gpus_per_node=8) * 86_400 == pytest.approx(4)


@pytest.mark.parametrize("shape", [0.6, 1.0, 1.6])
def test_shapes_are_found_again(shape: float) -> None:
    gaps = np.random.default_rng(1).weibull(shape, 400) * 5_000
    found = fit(gaps)
    assert found is not None
    assert found.shape_interval is not None
    assert found.shape_interval[0] <= shape <= found.shape_interval[1]
    assert found.kind == ("exponential" if shape == 1 else "weibull")
    assert found.mean_s == pytest.approx(gaps.mean(), rel=0.05)


def test_times_without_a_failure_lengthen_the_mean() -> None:
    some = fit([100.0] * 10)
    more = fit([100.0] * 10, [1_000.0])
    assert some is not None
    assert more is not None
    assert more.mean_s > some.mean_s
    assert fit([], [100.0]) is None
    few = fit([10.0, 500.0])
    assert few is not None
    assert few.kind == "exponential"
    assert few.shape_interval is None


@pytest.mark.parametrize(
    ("gaps_s", "expected"),
    [
        ((100.0,) * 5, (1, 240, 0.0231163, 0.4124329, 1.6177812)),
        ((10.0, 500.0, 900.0, 40.0, 20.0), (0.5735063, 569.0399581, 1.3569905, 0.2411862, 1.0990133)),
        ((10.0, 10.0, 10.0, 10.0, 2000.0), (0.3792331, 898.3561498, 5.9218855, 0.1658221, 0.6864977)),
    ],
)
def test_shapes_of_five_failures(gaps_s: tuple[float, ...], expected: tuple[float, ...]) -> None:
    found = fit(gaps_s, [700.0])
    assert found is not None
    values = (found.shape, found.mean_s, found.gain, *(found.shape_interval or ()))
    assert (found.events, found.censored) == (5, 1)
    assert values == pytest.approx(expected, rel=1e-5)


def test_rates_of_sites_and_of_own_counts() -> None:
    ampere = rate_of("Ampere")
    assert (ampere.events, ampere.mean, *ampere.interval()) == pytest.approx(
        (1.5641286, 6.4394227, 0.8132495, 16.4967344), rel=1e-5
    )
    assert ampere.per_s(nodes=3, gpus_per_node=4) == pytest.approx(1.1179553e-7)
    own = observed_rate(3, 2000.0, 4)
    assert (own.events, own.thousands, own.origin) == (3.5, 1.0, "3 failures in 2,000 node-days")
    assert observed_rate(0, 0.0, 8).thousands == 1e-9


def test_a_rate_has_the_scatter_of_one_more_site() -> None:
    logs = np.log([one.per_1000_node_days for one in published_sites().values()])
    found = rate_of(None)
    # A Gamma's logarithm has the variance ψ₁(events) and the mean ψ(events) − log(events) + log(mean).
    assert polygamma(1, found.events) == pytest.approx(logs.var(ddof=1) * (1 + 1 / len(logs)), rel=0.05)
    assert psi(found.events) - math.log(found.thousands) == pytest.approx(logs.mean(), abs=0.01)


def test_a_site_alone_is_certain() -> None:
    name, *others = published_sites()
    found = rate_of(None, without=others)
    assert found.mean == pytest.approx(published_sites()[name].per_1000_node_days, rel=1e-3)
    low, high = found.interval()
    assert high < 1.1 * low
