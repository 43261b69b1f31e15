"""What a reader has to know about results before comparing them, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from replay.report.cases import Study
from replay.results import LATE_ITSELF

_MOST_AFTER_LAST = 0.05
"""A note is shown if more than this share of the on-time weight came after the last request."""


def notes(found: Study) -> list[str]:
    """What a reader has to know before comparing."""
    said = _noted(found)
    if not found.even():
        said.append(
            "The policies did not all play the same cases with the same seeds: "
            "their means over all cases are not comparable."
        )
    if any(run.result.closed for run in found.runs()):
        said.append(
            "Clients waited for each answer before they asked again, so each policy got different "
            "requests, and fewer the slower it was: compare the requests on time per second, and "
            "conclude nothing about overload."
        )
    said += _lagged(found)
    said += _short(found)
    strides = [run.result.rows.stride for run in found.runs()]
    if max(strides, default=1) > 1:
        said.append(
            f"Of the longest run one request in {max(strides)} was kept: quantiles and charts "
            "of latency and time are based on these, shares and counts on all."
        )
    return said


def _noted(found: Study) -> list[str]:
    """The runs' own notes; one that begins with the name of its case is said once for all cases.

    Of those on a late load generator, which has other figures in each run, the first is said.
    """
    said: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for case in found.cases:
        for note in (note for run in found.runs(case=case) for note in run.result.notes):
            text = note.removeprefix(f"{case.name}: ")
            is_of_case = text != note
            key = LATE_ITSELF if text.startswith(LATE_ITSELF) else text
            texts, cases = said.setdefault(key, ({}, {}))
            texts[text] = None
            if is_of_case:
                cases[case.name] = None
    return [
        f"{_named(list(cases))}{next(iter(texts))}{_more(len(texts) - 1)}"
        for texts, cases in said.values()
    ]


def _more(alike: int) -> str:
    return f" (likewise in other runs: {alike} more)" if alike else ""


def _named(cases: list[str]) -> str:
    if not cases:
        return ""
    few = len(cases) <= 2
    return f"{' and '.join(cases) if few else f'{cases[0]} and {len(cases) - 1} other cases'}: "


def _lagged(found: Study) -> Iterator[str]:
    """How well the load generator of live runs kept to its schedule, in the worst of them."""
    lags = [run.result.send_lag for run in found.runs() if run.result.send_lag is not None]
    if lags:
        p50, p99, most = (f"{max(ms):,.2f}" for ms in zip(*lags, strict=True))
        yield (
            f"Requests were sent {p50} ms (median), {p99} ms (99 %) and at most {most} ms after "
            "they were due; latency and deadline count from when they were due."
        )


def _short(found: Study) -> Iterator[str]:
    """A note if much of a run's result came after its last request, when the load had ended."""
    of_runs = [
        (run.after_last, case.name, policy)
        for (case, policy), runs in found.cells.items()
        for run in runs
    ]
    share, case_name, policy = max(of_runs, default=(0.0, "", ""))
    if share > _MOST_AFTER_LAST:
        yield (
            f"{case_name} is short: {share:.0%} of what {policy} has on time still waited or ran "
            "when the last request came, and had the devices to itself from then on. That flatters "
            "policies that serve late. Play more (--requests, a longer trace)."
        )
