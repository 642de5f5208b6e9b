"""A probe's data, plausible and invented, for the tests of its page."""

import numpy as np

SHAPES = [(4, 32), (64, 16)]
BATCHES = 5
WINS = {4: 0.02, 8: 0.27, 16: 0.58, 32: 0.13}


def made_up(points: int = 1) -> dict:
    """Return a probe's data, plausible and invented."""
    return {
        "format": 3,
        "source": {
            "run": "pendulum", "env": "Pendulum-v1", "algo": "ppo", "policy": "trained",
            "loss": "policy", "shape": "16x64", "gamma": 0.99, "gae_lambda": 0.95,
        },
        "passed_over": [],
        "points": [made_up_point((place + 1) / points, seed=place) for place in range(points)],
    }  # fmt: skip


def made_up_point(fraction: float, seed: int) -> dict:
    random = np.random.default_rng(seed)
    return {
        "state": "measured",
        "env_steps": int(100_000 * fraction),
        "fraction": fraction,
        "collected": {
            "n_envs": 80, "n_steps": 331, "rows": 26_480, "burn_in": 400, "episode_length": 200.0,
            "seconds": 12.3,
        },
        "parameters": 4481,
        "sketch": {"width": 2048, "error": 0.022},
        "entropy": 1.2,
        "answer": [
            "4x32 or 64x16: 64x16 has the smaller error in 97% of bootstrap resamples.",
            "By time: 128x8 has the smallest error x time in 96% of bootstrap resamples.",
            "Minibatch of 256 transitions: about right, noise scale 300 [200, 400] transitions.",
        ],
        "warnings": ["no episode ended within 400 steps"],
        "details": ["4x32: effective sample size 480 for 1,024 transitions"],
        "decomposition": [
            made_up_decomposition(*shape, normalized)
            for shape in [*SHAPES, (16, 64)]
            for normalized in (False, True)
        ],
        "noise": [
            made_up_noise(n_envs, n_steps, estimator)
            for n_envs, n_steps in SHAPES
            for estimator in ("per-sample", "two-batch", "per-environment", "minibatch")
        ],
        "agreement": [made_up_agreement(random, *shape) for shape in SHAPES],
        "lags": [made_up_lags(*shape) for shape in SHAPES],
        "credit": [
            {"shape": "4x32", "variance": 0.0123, "covered": 0.87},
            {"shape": "64x16", "variance": None, "covered": 0.02},
        ],
        "minibatches": [
            {"shape": "4x32", "size": 32, "cosine": [0.61, 0.2, 0.9], "by_chance": 0.5},
            {"shape": "64x16", "size": 256, "cosine": [0.71, 0.4, 0.95], "by_chance": 0.5},
        ],
        "bias": [
            made_up_bias("monte-carlo", 0.95), made_up_bias("gae", 0.95), made_up_bias("gae", 1.0),
        ],
        "returns": {"complete": 0.83, "value_weight": 0.031, "horizon": 459},
        "curves": [made_up_curve("monte-carlo"), made_up_curve("gae")],
    }  # fmt: skip


def around(value: float, by: float = 0.25) -> list:
    return [value, value - by * abs(value), value + by * abs(value)]


def made_up_decomposition(n_envs: int, n_steps: int, normalized: bool = False) -> dict:
    # Of the shape 4x32 steps make up for each other, so that the covariance is below zero.
    icc = -0.015 if n_envs == 4 else 0.02
    samples, effect = n_envs * n_steps, 1 + (n_steps - 1) * icc
    individual = (0.04 if normalized else 3.2) / samples
    return {
        "shape": f"{n_envs}x{n_steps}", "n_envs": n_envs, "n_steps": n_steps, "batches": BATCHES,
        "normalized": normalized, "total": around(effect * individual),
        "individual": around(individual), "covariance": around((effect - 1) * individual),
        "icc": around(icc),
        "design_effect": around(effect), "effective_samples": around(samples / effect),
        "across_batches": None if n_envs == 64 else 1.1 * effect * individual,
    }  # fmt: skip


def made_up_noise(n_envs: int, n_steps: int, estimator: str) -> dict:
    scales = {
        "per-sample": 900.0, "two-batch": 1100.0, "per-environment": 2600.0, "minibatch": 950.0,
    }  # fmt: skip
    scale = around(scales[estimator])
    if n_envs == 4:
        scale = {"two-batch": [1100.0, 400.0, None], "per-environment": [None, 700.0, None]}.get(
            estimator, scale
        )
    signal = -0.0001 if scale[0] is None else 3.2 / scale[0]
    return {
        "shape": f"{n_envs}x{n_steps}", "estimator": estimator, "noise_scale": scale,
        "signal": around(signal), "trace": around(3.2),
    }  # fmt: skip


def made_up_agreement(random: np.random.Generator, n_envs: int, n_steps: int) -> dict:
    signal = random.normal(size=40)
    noise = random.normal(size=(BATCHES, 40)) * (6 if n_envs == 4 else 0.8)
    means = signal + noise
    samples = means[0] + 8 * random.normal(size=(min(512, n_envs * n_steps), 40))
    samples *= random.lognormal(sigma=1.2, size=(len(samples), 1))
    lengths = np.linalg.norm(means, axis=1)
    norms = np.linalg.norm(samples, axis=1)
    cosines = samples @ means.T / norms[:, None] / lengths
    return {
        "shape": f"{n_envs}x{n_steps}",
        "cosines": (means @ means.T / np.outer(lengths, lengths)).tolist(),
        "norms": lengths.tolist(),
        "scatter": [
            {"norm": norms.tolist(), "cosine": cosines[:, batch].tolist()}
            for batch in range(BATCHES)
        ],
    }


def made_up_lags(n_envs: int, n_steps: int) -> dict:
    lag = [2**power for power in range(10) if 2**power < n_steps]
    return {
        "shape": f"{n_envs}x{n_steps}", "lag": lag,
        "within": [0.4 * 0.85**each - (0.05 if n_envs == 4 else 0) for each in lag],
        "across": [0.003 * (-1) ** each for each in lag],
    }  # fmt: skip


def made_up_bias(reference: str, gae_lambda: float) -> dict:
    n_steps = [2**power for power in range(9)]
    bias = [0.8 / (1 + each / (8 if gae_lambda < 1 else 20)) for each in n_steps]
    return {
        "reference": reference, "gae_lambda": gae_lambda, "n_steps": n_steps,
        "endless": [0.3, 0.2, 0.4] if reference == "monte-carlo" else [0.0, None, None],
        "bias": [around(each) if each < 0.7 else [each, None, None] for each in bias],
        "advantage_error": [1.3 * each for each in bias],
    }  # fmt: skip


def made_up_curve(reference: str) -> dict:
    shapes = []
    for power in range(11):
        n_envs, n_steps = 2 ** (10 - power), 2**power
        bias2 = 0.6 / (1 + n_steps / 4) ** 2
        # Long rollouts have no bias left, and its estimate may fall on either side of zero.
        measured = bias2 if n_steps < 256 else -1e-4
        variance = 0.12 + 0.008 * n_steps**0.8
        shapes.append(
            {
                "n_envs": n_envs, "n_steps": n_steps,
                "bias2": [measured, measured - 0.3 * bias2 - 5e-4, measured + 0.3 * bias2 + 5e-4],
                "variance": around(variance), "error": around(measured + variance),
                "steps_per_second": None if power == 10 else 1000.0 * n_envs**0.6,
                "wins": WINS.get(n_steps, 0.0), "wins_over_ten": WINS.get(n_steps, 0.0),
                "wins_per_second": WINS.get(2 * n_steps, 0.0),
            }
        )  # fmt: skip
    return {
        "reference": reference, "decided": True, "without_signal": 0.0, "samples": 1024,
        "endless_bias2": [0.25, 0.2, 0.3], "best": "64x16", "best_over_ten": "64x16",
        "fastest": "128x8", "own": "16x64", "shapes": shapes,
    }  # fmt: skip
