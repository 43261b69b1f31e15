"""Groups runs by case, by policy and over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from replay.report.figures import Figures, figures
from replay.report.statistics import Estimate, estimate
from replay.results import RunResult

Measure = Callable[[Figures], float | None]


@dataclass(frozen=True, slots=True)
class Case:
    """What was played: a scenario, and its load if it was given as one."""

    scenario: str
    load: float | None

    @property
    def name(self) -> str:
        """The name of the case in reports."""
        return self.scenario if self.load is None else f"{self.scenario}, load {self.load:g}"


@dataclass(frozen=True, slots=True)
class Study:
    """All runs of a report.

    Attributes:
        cases: The cases: scenarios in the order given, each with its loads rising.
        policies: The policies in the order given; if there are both, live runs stand apart.
        cells: The runs of each policy on each case, by seed.
    """

    cases: Sequence[Case]
    policies: Sequence[str]
    cells: dict[tuple[Case, str], list[Figures]] = field(repr=False)

    def runs(self, policy: str | None = None, case: Case | None = None) -> Iterator[Figures]:
        """The runs of a policy, on a case, or all of them."""
        for key_case in self.cases if case is None else (case,):
            for key_policy in self.policies if policy is None else (policy,):
                yield from self.cells.get((key_case, key_policy), ())

    def over_seeds(self, measure: Measure, policy: str, case: Case) -> Estimate | None:
        """The mean of a measure over the seeds of one cell."""
        return estimate(map(measure, self.cells.get((case, policy), ())))

    def overall(self, measure: Measure, policy: str) -> Estimate | None:
        """The mean of a measure over all cases; see `_over_cases`."""
        by_case = []
        for case in self.cases:
            measured = {r.result.seed: measure(r) for r in self.cells.get((case, policy), ())}
            by_case.append({seed: v for seed, v in measured.items() if v is not None})
        return _over_cases(by_case)

    def even(self) -> bool:
        """Whether every policy played the same cases with the same seeds."""
        played = [
            [(case, [run.result.seed for run in self.cells.get((case, policy), ())])]
            for case in self.cases
            for policy in self.policies
        ]
        return all(
            played[index] == played[index - index % len(self.policies)]
            for index in range(len(played))
        )


def study(results: Iterable[RunResult]) -> Study:
    """Reads every run once, and groups the runs."""
    runs = [figures(result) for result in results]
    both = len({run.result.against for run in runs}) > 1
    scenarios = list(dict.fromkeys(run.result.scenario for run in runs))
    cases = sorted(
        dict.fromkeys(Case(run.result.scenario, run.result.load) for run in runs),
        key=lambda case: (
            scenarios.index(case.scenario),
            case.load is not None,
            case.load or 0.0,
        ),
    )
    cells: dict[tuple[Case, str], list[Figures]] = {}
    policies: dict[str, None] = {}
    for run in runs:
        policy = f"{run.result.policy} ({run.result.against})" if both else run.result.policy
        policies[policy] = None
        cells.setdefault((Case(run.result.scenario, run.result.load), policy), []).append(run)
    for cell in cells.values():
        cell.sort(key=lambda run: run.result.seed)
    return Study(cases, list(policies), cells)


def sweeps(cases: Iterable[Case]) -> dict[str, list[Case]]:
    """The cases played at two or more loads, by name; all others are left out.

    Standard scenarios that differ only in their load have it in their names, e.g. `load-0_5`; they
    are grouped as `load`.
    """
    cases = list(cases)
    loads = Counter(case.scenario for case in cases)
    found: dict[str, list[Case]] = {}
    for case in cases:
        if case.load is not None:
            named = f"-{case.load:.1f}".replace(".", "_") if loads[case.scenario] == 1 else ""
            found.setdefault(case.scenario.removesuffix(named), []).append(case)
    return {name: swept for name, swept in found.items() if len(swept) > 1}


def _over_cases(by_case: Iterable[Mapping[int, float]]) -> Estimate | None:
    """The mean of the cases' means, from one value per seed for each case.

    If every case has the same seeds, each seed's mean is one independent value. If not, the seeds'
    variation can't be separated from the cases', and there is no interval.
    """
    known = [values for values in by_case if values]
    if not known:
        return None
    seeds = known[0].keys()
    if all(values.keys() == seeds for values in known):
        return estimate(fmean(values[seed] for values in known) for seed in sorted(seeds))
    return Estimate(fmean(fmean(values.values()) for values in known), None, max(map(len, known)))


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more of the weight one policy had on time than another, paired by seed.

    Attributes:
        case: The case; None for the mean over all cases.
        estimate: The mean difference of the shares, first minus second.
    """

    case: Case | None
    estimate: Estimate

    @property
    def clear(self) -> bool:
        """Whether the interval excludes 0."""
        return self.estimate.half_width is not None and (
            self.estimate.low > 0 or self.estimate.high < 0
        )


def differences(found: Study, first: str, second: str) -> list[Difference]:
    """The differences over the seeds that both have; of several cases, the mean comes last."""
    said: list[Difference] = []
    by_case: list[dict[int, float]] = []
    for case in found.cases:
        ours, theirs = (
            {
                run.result.seed: run.on_time
                for run in found.cells.get((case, policy), ())
                if run.on_time is not None
            }
            for policy in (first, second)
        )
        pairs = {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
        by_case.append(pairs)
        mean = estimate(pairs.values())
        if mean is not None:
            said.append(Difference(case, mean))
    whole = _over_cases(by_case)
    if whole is not None and len(said) > 1:
        said.append(Difference(None, whole))
    return said
