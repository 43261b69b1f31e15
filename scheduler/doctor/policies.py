"""Checks the configured policy, and the policies that other distributions offer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import Distribution

from policies import POLICIES
from scheduler.config.problems import ConfigError
from scheduler.doctor.findings import NO_START, Finding, Surroundings
from scheduler.policy_loading import GROUP, check_policy


def check_policies(around: Surroundings) -> Iterator[Finding]:
    """Finds a policy that can't be loaded, and ambiguous or shadowed policy names."""
    policy = around.config.policy
    try:
        check_policy(policy, None)
    except ConfigError as error:
        said = "; ".join(problem.message for problem in error.problems)
        yield Finding("policies", "error", said, f"fix it: {NO_START}")
    else:
        yield Finding("policies", "good", f"{policy.name} can be loaded")
    offers: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    first: dict[str, Distribution] = {}  # only the first distribution of a name counts
    for distribution in around.installed:
        first.setdefault(str(distribution.name), distribution)
    for name, distribution in first.items():
        for point in distribution.entry_points.select(group=GROUP):
            offers[point.name].add((name, point.value))
    for name, offered in sorted(offers.items()):
        who = " and ".join(sorted(giver for giver, _ in offered))
        value = min(value for _, value in offered)
        if name in POLICIES:
            yield Finding(
                "policies",
                "warning",
                f"{who} offers a policy {name!r}, but that name means laxity's own",
                f"name it as {value!r}, or have it offered by another name",
            )
        elif len({value for _, value in offered}) > 1:
            yield Finding(
                "policies",
                "warning",
                f"{name!r} is offered by {who}, so it is not clear which is meant",
                f"uninstall all but one, or name it as {value!r}",
            )
