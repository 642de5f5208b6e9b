"""From measurements to medians, ratios and a table."""

import statistics
from typing import Any

RATIOS = ("warm_rate", "cold_rate", "peak_mb")
MEDIANS = (*RATIOS, "cold_seconds", "start_up_seconds", "compile_seconds", "return")
REFERENCES = ("isobatch", "isobatch-processes")
"""Whose numbers stand above the line in ratios: the first of them that was measured."""
COLUMNS = (
    "library | warm steps/s | ratio | cold s | ratio | start-up s | compile s | peak MB | ratio "
    "| return"
)


def spread(values: list[float]) -> dict[str, float] | None:
    """Return the median and the range; None of no values."""
    if not values:
        return None
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratio(repeats: list[dict[str, Any]], field: str, above: str, below: str) -> dict | None:
    """Return the spread of ratios, each within one repeat, over those where both have a number."""
    pairs = [(repeat[above].get(field), repeat[below].get(field)) for repeat in repeats]
    return spread([one / other for one, other in pairs if one and other])


def summarize(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each peer's medians and the ratios Isobatch / peer, or why it has none."""
    measured = [
        name for name in repeats[0] if any("cannot" not in repeat[name] for repeat in repeats)
    ]
    reference = next((name for name in REFERENCES if name in measured), None)
    summary: dict[str, Any] = {}
    for name in repeats[0]:
        if name not in measured:
            summary[name] = {"cannot": repeats[0][name]["cannot"]}
            continue
        values = {
            field: spread(
                [repeat[name][field] for repeat in repeats if repeat[name].get(field) is not None]
            )
            for field in MEDIANS
        }
        ratios = {
            field: ratio(repeats, field, reference, name)
            if reference and name != reference
            else None
            for field in RATIOS
        }
        summary[name] = {"values": values, "ratios": ratios}
    return summary


def number(value: dict[str, float] | None, form: str = ",.0f") -> str:
    """Return a median, or a dash."""
    return "-" if value is None else format(value["median"], form)


def ratio_text(value: dict[str, float] | None) -> str:
    """Return a median ratio with its range."""
    if value is None:
        return ""
    return f"**{value['median']:.2f}** ({value['low']:.2f} to {value['high']:.2f})"


def table(summary: dict[str, Any]) -> str:
    """Return a case's table in Markdown, a row for each library.

    Ratios are Isobatch's number over the library's: above 1, Isobatch is faster, or takes more
    memory. Cold: of environment steps over all the time from the command on.
    """
    lines = [f"| {COLUMNS} |", "|" + "---|" * (COLUMNS.count("|") + 1)]
    for name, found in summary.items():
        if "cannot" in found:
            continue
        values, ratios = found["values"], found["ratios"]
        cells = [
            name,
            number(values["warm_rate"]),
            ratio_text(ratios["warm_rate"]),
            number(values["cold_seconds"], ".1f"),
            ratio_text(ratios["cold_rate"]),
            number(values["start_up_seconds"], ".1f"),
            number(values["compile_seconds"], ".1f"),
            number(values["peak_mb"]),
            ratio_text(ratios["peak_mb"]),
            number(values["return"], ".4g"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    cannot = [f"{name}: {found['cannot']}" for name, found in summary.items() if "cannot" in found]
    return "\n".join([*lines, *([""] if cannot else []), *cannot])
