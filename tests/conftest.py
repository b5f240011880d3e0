"""What the tests share: seeds, Monte Carlo tolerances, finite differences, examples."""

import math
import os
import signal
import sys
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from skvi.base import NormalForm
from skvi.utils import _tensors
from tests.devices import META, emulated_device


def pytest_addoption(parser):
    parser.addoption(
        "--random-seed", type=int, default=0, help="seed of the Monte Carlo tests"
    )
    parser.addoption(
        "--device",
        help="'emulated': device='auto' is a device in main memory that refuses "
        "tensors of the host; 'cuda' or any other: device='auto' is that one",
    )


def pytest_configure(config):
    # A job that a shell put into the background ignores Ctrl-C; tests of it do not.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Two workers with two threads each on two cores wait for each other. The workers,
    # and what they start, read the variables before libraries make their threads.
    if config.getoption("numprocesses", None):
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")


@pytest.fixture(autouse=True)
def _default_dtype_stays():
    before = torch.get_default_dtype()
    yield
    after = torch.get_default_dtype()
    torch.set_default_dtype(before)
    assert after == before


@pytest.fixture(autouse=True)
def _figures_are_closed():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def one_thread():
    """Small matrices: several threads wait for each other."""
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True)
def _on_device(request, monkeypatch):
    """What `--device` asks for; without it, nothing."""
    device = request.config.getoption("--device")
    if device is None:
        yield
    elif device == "emulated":
        monkeypatch.setattr(_tensors, "_best_device", lambda: META)
        monkeypatch.setattr(_tensors, "WORTH_MOVING", 0)
        with emulated_device():
            yield
    else:
        monkeypatch.setattr(_tensors, "_best_device", lambda: torch.device(device))
        monkeypatch.setattr(_tensors, "WORTH_MOVING", 0)
        yield


@pytest.fixture
def global_random_seed(request):
    return request.config.getoption("--random-seed")


@pytest.fixture
def generator(global_random_seed):
    return torch.Generator().manual_seed(global_random_seed)


def _z_score(draws, expected, rounding=1e-11):
    """Largest distance of the mean over axis 0 from a value, in standard errors."""
    draws = torch.as_tensor(draws, dtype=torch.float64)
    error = (draws.mean(0) - torch.as_tensor(expected)).abs() - rounding
    se = draws.std(0) / math.sqrt(len(draws))
    return float((error.clamp(min=0) / se.clamp(min=1e-300)).max())


@pytest.fixture
def z_score():
    """Standard errors between a mean of draws and its value: below 5 if it is right."""
    return _z_score


def _numeric_gradient(function, x, step=1e-5):
    """Central differences of a function of a vector, stacked along the last axis."""
    moves = step * torch.eye(len(x), dtype=x.dtype)
    return torch.stack(
        [(function(x + m) - function(x - m)) / (2 * step) for m in moves], -1
    )


@pytest.fixture
def numeric_gradient():
    return _numeric_gradient


def _make_normal(size, kind, seed=0, width=1.0):
    """Build a normal that is "diag" or "full", with standard deviations near width."""
    generator = torch.Generator().manual_seed(1000 * size + seed)
    mean = torch.randn(size, generator=generator, dtype=torch.float64)
    factor = torch.randn(size, 12 * size, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.T / (12 * size) * width**2
    if kind == "diag":
        return NormalForm(0.5 * mean, covariance.diagonal().sqrt())
    return NormalForm(0.5 * mean, torch.linalg.cholesky(covariance))


@pytest.fixture
def make_normal():
    return _make_normal


@lru_cache
def _legendre(n_nodes):
    return [torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(n_nodes)]


def _integrate(function, *edges, n_nodes=400):
    """Integrate a vectorized function of shape (n_nodes,) over panels, split at kinks.

    Exact to rounding where nothing bends within about 1/100 of a panel.
    """
    nodes, weights = _legendre(n_nodes)
    total = 0.0
    for low, high in pairwise(sorted(float(e) for e in edges)):
        half = (high - low) / 2
        total = total + half * (function((low + high) / 2 + half * nodes) @ weights)
    return total


@pytest.fixture
def integrate():
    return _integrate


@pytest.fixture
def expect_normal():
    """Expectation of a vectorized function of t ~ N(mean, std^2), given its kinks."""

    def run(function, mean, std, *kinks):
        mean, std = float(mean), float(std)

        def integrand(t):
            density = torch.exp(-0.5 * ((t - mean) / std) ** 2)
            return function(t) * density / (std * math.sqrt(2 * math.pi))

        low, high = mean - 12 * std, mean + 12 * std
        inner = [k for k in kinks if low < k < high]
        return _integrate(integrand, low, *inner, high)

    return run
