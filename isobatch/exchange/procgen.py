"""Procgen's environments by name and difficulty, and by EnvPool's id."""

from __future__ import annotations

import re


def env_id(name: str, mode: str) -> str:
    """Return the id: coinrun, hard -> CoinrunHard-v0."""
    return f"{name.capitalize()}{mode.capitalize()}-v0"


def parts(env: str) -> tuple[str, str] | None:
    """Return (name, mode) of an id, or None where it is not Procgen's."""
    match = re.fullmatch(r"([A-Z][a-z]+)(Easy|Hard|Extreme|Memory|Exploration)-v0", env)
    return None if match is None else (match[1].lower(), match[2].lower())
