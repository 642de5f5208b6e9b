"""How to reproduce a study: the command, and the design as a file."""

from __future__ import annotations

import shlex
from typing import Any

import tomli_w

from isobatch.envs.catalog import require_trusted
from isobatch.errors import UserError
from isobatch.study.claims import Claim
from isobatch.study.design import SCALES, Study, load, preset_names, with_seeds


def command(study: Study) -> str:
    """Return the command that runs this very study, '' where only Python can express it.

    A study that is not a preset needs its `design` saved as NAME.toml first.
    """
    trust = [f"--env {shlex.quote(env)}" for env in study.envs if _imports_a_module(env)]
    flags = _preset_flags(study)
    if flags is not None:
        return " ".join(["isobatch study", study.name, *flags, *trust])
    if _holds_none(study):
        return ""
    return " ".join(["isobatch study", shlex.quote(f"{study.name}.toml"), *trust])


def is_preset(study: Study) -> bool:
    """True where the command needs no file."""
    return _preset_flags(study) is not None


def design(study: Study) -> str:
    """Return the study as the TOML that makes it, or as JSON where TOML has no word for None."""
    if _holds_none(study):
        return study.to_json()
    settings = {
        "title": study.title,
        "note": study.note,
        "envs": list(study.envs),
        "budget": study.budget,
        "seeds": list(study.seeds),
        "algo": study.algo,
        "evaluate": study.evaluate,
        **({} if study.cohorts else {"cohorts": False}),
    }
    tables = {"study": settings, "base": study.base, "arms": study.arms}
    claims = [_claim(claim) for claim in study.claims]
    rest = {"scores": study.scores, "claims": claims}
    return tomli_w.dumps(tables | {name: value for name, value in rest.items() if value})


def _preset_flags(study: Study) -> list[str] | None:
    """Return the flags with which the preset of the study's name is this study, None if none do."""
    count = len(study.seeds)
    for scale in SCALES if study.name in preset_names() else ():
        try:
            preset = load(study.name, scale)
        except UserError:
            continue  # The preset has no such scale.
        if preset == study:
            return [f"--scale {scale}"]
        if with_seeds(preset, count) == study:
            return [f"--scale {scale}", f"--seeds {count}"]
    return None


def _imports_a_module(env: str) -> bool:
    try:
        require_trusted(env, None)
    except UserError:
        return True
    return False


def _holds_none(study: Study) -> bool:
    return any(None in fields.values() for fields in (study.base, *study.arms.values()))


def _claim(claim: Claim) -> dict[str, Any]:
    fields = {name: value for name, value in vars(claim).items() if value is not None}
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
    }
