"""Output of `laxity status`: a summary of a box, from its own answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib import metadata

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scheduler.cli.tables import (
    STYLES,
    Answer,
    duration,
    plain_table,
    policy_text,
)
from scheduler.core.figures import figure
from scheduler.core.outcomes import Outcome
from scheduler.shares import percent

MEANINGS = {
    "completed": "in time",
    "late": "after the deadline, and wanted all the same",
    "infeasible": "refused: no target could meet the deadline",
    "overloaded": "refused: a limit was reached",
    "expired": "admitted, and the deadline passed",
    "cancelled": "the caller went away, or a durable task made way",
    "unavailable": "no target was up",
    "failed": "the runtime failed it",
}

_RENEW_WITHIN_S = 30 * 86_400.0
"""A certificate that expires sooner is mentioned, as by `laxity doctor`."""

_LONG_CLOSED_S = 1.0
"""A cloud that is not paid for shorter than this is about to be paid again."""

_LONG_OVERDUE_NS = 1_000_000_000
"""A batch that is overdue for this long is mentioned: its device may hang."""

_FEW = 20
"""Fewer batches are counted: whether 95 % of them were kept says nothing."""


def status_view(status: Answer, rates: Answer | None = None) -> RenderableType:
    """A summary of a box.

    Args:
        status: Its answer to `status`.
        rates: Requests per second by outcome since the last query; None at the first.
    """
    parts: list[RenderableType] = [headline(status)]
    if listening := status.get("listening"):
        parts.append(Text(f"at {', '.join(listening)}", "dim"))
    if (runs := status.get("version")) and runs != (own := metadata.version("laxity")):
        told = (
            f"It runs laxity {runs}, and this command is {own}: after an upgrade, restart the box"
        )
        parts.append(Text(told, "yellow"))
    if failed := status.get("policy_problem"):
        told = (
            "The configured policy has failed, and is tried again when the configuration is saved"
        )
        parts.append(Text(f"{told}: {failed}", "red"))
    parts += [
        Text(f"Changed but not applied: {change}", "yellow")
        for change in status.get("not_taken_over", ())
    ]
    if certificate := status.get("certificate"):
        parts += _certificate(certificate)
    if (journal := status.get("journal")) and (journal.get("problem") or journal.get("dropped")):
        parts.append(_journal(journal))
    parts += [Text(), _targets(status)]
    if ways := [t for t in status.get("targets", []) if t.get("way", {}).get("round_trip_ms")]:
        parts += [Text(), _ways(ways)]
    if spending := [t for t in status.get("targets", []) if _has_spent(t.get("spending", {}))]:
        parts += [Text(), _spending(spending)]
    if neighbours := status.get("neighbours"):
        own_version = status.get("version")
        parts += [Text(), *_members(neighbours, status.get("targets", []), own_version)]
    if queues := [queue for queue in status.get("queues", []) if queue["requests"]]:
        parts += [Text(), _queues(queues)]
    parts += [Text(), _outcomes(status.get("outcomes", {}), rates)]
    if cache := status.get("cache"):
        parts += [Text(), _cache(cache)]
    if (durable := status.get("durable")) and (durable["waiting"] or durable["problem"]):
        parts += [Text(), _durable(durable)]
    return Group(*parts)


def headline(status: Answer) -> Text:
    """A line with the box's name and state."""
    facts = [
        f"laxity {status.get('version', '')}".strip(),
        f"pid {status.get('pid', '?')}",
        f"up {duration(status.get('uptime_s', 0))}",
        f"policy {policy_text(status.get('policy', {}))}",
        f"{status.get('held', 0)} held",
    ]
    line = Text(str(status.get("site", "?")), style="bold")
    line.append("  " + " · ".join(facts), style="not bold")
    if status.get("draining"):
        line.append("  draining: it takes no new requests", style="bold yellow")
    return line


def _certificate(certificate: Answer) -> list[Text]:
    """A line about the certificate of the doors if it expires soon."""
    left_s = certificate["expires_unix_s"] - time.time()
    if left_s > _RENEW_WITHIN_S:
        return []
    when = "has expired" if left_s <= 0 else f"expires in {duration(left_s)}"
    told = f"The certificate {certificate['file']} {when}: renew it"
    return [Text(told, "red" if left_s <= 0 else "yellow")]


def _journal(journal: Answer) -> Text:
    """Why the journal can't be written, and how many events are missing from it."""
    missing = f"{journal['dropped']:,} events are missing in it" if journal.get("dropped") else ""
    if not journal.get("problem"):
        return Text(f"The journal {journal['folder']} is written again: {missing}", "yellow")
    told = f"The journal {journal['folder']} can't be written: {journal['problem']}"
    return Text(told + (f"; {missing}" if missing else ""), "red")


def _durable(durable: Answer) -> Text:
    line = Text(f"{durable['waiting']} durable tasks, {durable['running']} of them with a target")
    if durable["problem"] is not None:
        line.append("\n").append(str(durable["problem"]), style="red")
    return line


def _targets(status: Answer) -> RenderableType:
    targets = status.get("targets", [])
    if not targets:
        return Text("No targets yet.", style="dim")
    metered = any(target.get("energy") for target in targets)
    energy = ("joules", "cost") if metered else ()
    figures = ("runs", "pid", *energy)
    table = plain_table("target", "state", *figures, "what", right=figures)
    for target in targets:
        progress = target.get("progress", {})
        ready = progress.get("text") == "ready"
        breaker = target.get("breaker", {})
        style, word = ("green", "up") if target["up"] else ("red", "down")
        what = (
            _readiness(target, status.get("quantile")) if ready else str(progress.get("text", ""))
        )
        if ready and not target["up"] and "way" not in target:
            what = "ready, but it has no model that it can run"
        if target.get("emulated"):
            what = f"emulated, so it answers zeros; {what}"
        if target["up"] and (late_ns := target.get("overdue_ns", 0)) >= _LONG_OVERDUE_NS:
            style, what = "yellow", f"a batch should have been over {duration(late_ns / 1e9)} ago"
        if breaker.get("state") == "open":
            style, word, what = "yellow", "not used", f"retried automatically: {breaker['reason']}"
        elif (closed_s := target.get("spending", {}).get("closed_s", 0)) >= _LONG_CLOSED_S:
            what = f"its budget pays for no request; used again in {duration(closed_s)}"
            style, word = "yellow", "not used"
        elif not ready and progress.get("total"):
            what += f"  {progress['done']}/{progress['total']}"
        table.add_row(
            target["id"],
            Text(word, style=style),
            str(target.get("runs", "")),
            str(target.get("pid") or ""),
            *(_energy(target) if metered else ()),
            Text(what, style="" if ready and style == "green" else "yellow"),
        )
    return table


def _energy(target: Answer) -> tuple[str, str]:
    """The energy of a target's batches, and its cost; empty for clouds."""
    energy = target.get("energy")
    if energy is None:
        return "" if "way" in target else "unknown", ""
    priced = target.get("costs", {}).get("cost_per_kwh")
    return figure(energy["joules"]), f"{energy['cost']:.3g}" if priced else ""


def _ways(targets: Sequence[Answer]) -> Table:
    """The ways to targets beyond the box: clouds and other boxes."""
    figures = ("at once", "round trip", "jitter", "lost", "Mbit/s")
    table = plain_table("way to", "breaker", *figures, right=figures)
    for target in targets:
        way, state = target["way"], target.get("breaker", {}).get("state", "")
        mbps = way["bandwidth_mbps"]
        table.add_row(
            target["id"],
            Text(state, style="" if state in ("closed", "") else "bold yellow"),
            str(target.get("limit", "")),
            f"{figure(way['round_trip_ms'])} ms",
            f"{figure(way['jitter_ms'])} ms",
            percent(way["loss"]),
            "" if mbps is None else figure(mbps),
        )
    return table


def _has_spent(spending: Answer) -> bool:
    """Whether money was spent since the start, or earlier and still counts against a budget."""
    return bool(spending.get("spent")) or any(b["spent"] for b in spending.get("budgets", ()))


def _spending(targets: Sequence[Answer]) -> Table:
    """The spending on clouds since the start, and the used share of each budget."""
    table = plain_table("cloud", "spent", "budget", "used of it", right=("spent", "used of it"))
    for target in targets:
        spending = target["spending"]
        cells = [target["id"], figure(spending["spent"])]
        for budget in spending["budgets"]:
            seconds, spent, limit = budget["seconds"], budget["spent"], budget["limit"]
            span = {3_600: "hour", 86_400: "day"}.get(seconds, duration(seconds))
            used = Text(f"{figure(spent)}, {percent(spent / limit if limit else 1.0)}")
            used.stylize("bold yellow" if spent >= 0.9 * limit else "")
            table.add_row(*cells, f"{limit:g} in any {span}", used)
            cells = ["", ""]
        if cells[0]:
            table.add_row(*cells, "none", "")
    return table


def _readiness(target: Answer, quantile: float | None) -> str:
    """Ready, and how often predictions at the policy's quantile were kept.

    If the box does not report its quantile, the last quantile with batches is used.
    """
    for each in reversed(target.get("calibration", ())):
        if each["batches"] and quantile in (None, each["promised"]):
            kept, of = each["kept"], each["batches"]
            share = f"{kept} of {of}" if of < _FEW else percent(kept / of)
            return f"ready; {share} within the {each['promised'] * 100:g}% predicted"
    return "ready"


def _cache(cache: Answer) -> Text:
    """The result cache's figures; the outcomes above do not include requests that it answered."""
    hits, skipped = cache["hits"], cache["skipped"]
    found, asked = sum(hits.values()), sum(hits.values()) + cache["misses"]
    line = Text("cache", style="bold")
    share = f" ({percent(found / asked)})" if asked else ""
    facts = [f"{found:,} hits{share}"]
    facts += [f"{count:,} {name}" for name, count in hits.items() if count]
    facts += [f"{cache['misses']:,} misses", f"{cache['stale']:,} stale"]
    facts += [f"{count:,} skipped for {why}" for why, count in skipped.items() if count]
    vain = {"invalid": cache.get("invalid"), "not waited for": cache.get("gave_up")}
    facts += [f"{count:,} {name}" for name, count in vain.items() if count]
    facts.append(f"{cache['entries']:,} kept in {cache['bytes'] / 1e6:.1f} MB")
    line.append("  " + " · ".join(facts), style="not bold")
    for name in ("redis", "central"):
        if link := cache[name]:
            line.append(f"\n{name}  ", style="bold")
            how = f"up, p95 {figure(link['p95_ms'])} ms" if link["open"] else link["problem"]
            style = "not bold green" if link["open"] else "not bold red"
            line.append(f"{link['url']} · ", style="not bold").append(how, style=style)
            if link["open"] and link.get("refusal"):
                told = f" · takes no new answers ({link['refused']:,} refused): {link['refusal']}"
                line.append(told, style="not bold yellow")
    return line


_MEMBER_STATES = {
    "suspected": "suspected: silent, is sent nothing",
    "gone": "gone: silent for long, but still called",
    "left": "left: it was stopped",
}


def _members(
    neighbours: Answer, targets: Sequence[Answer], own_version: str | None
) -> Iterator[RenderableType]:
    """The other boxes of the site, and the requests sent to them."""
    if neighbours["alone"]:
        alone = (
            "No other box can be reached: this one serves its own callers alone, and keeps trying."
        )
        yield Text(alone, style="bold yellow")
    for each in neighbours.get("not_joined", ()):
        yield Text(f"Not joined: {each['address']}: {each['reason']}", style="yellow")
    if silent := neighbours.get("not_reached_by"):
        told = (
            f"Not reached by {', '.join(silent)} at {neighbours['address']}, so sent nothing: "
            "correct neighbours.advertise, the certificate (tls.cert), or what keeps them out"
        )
        yield Text(told, style="yellow")
    if not neighbours["members"]:
        return
    known = {target["id"]: target for target in targets}
    figures = ("heard", "room", "forwarded", "refused")
    table = plain_table("box", "state", *figures, right=figures)
    for member in neighbours["members"]:
        heard_s, peer = member["heard_s"], known.get(member["name"], {})
        # What a box said before it was lost holds no longer.
        room = [row["room"] for row in peer.get("reported", ())] if peer.get("up") else []
        table.add_row(
            member["name"],
            Text(
                _MEMBER_STATES.get(member["state"], member["state"]),
                style="green" if member["state"] == "up" else "yellow",
            ),
            "never" if heard_s is None else f"{duration(heard_s)} ago",
            f"{max(room):,}" if room else "",
            f"{peer.get('forwarded', 0):,}",
            f"{peer.get('refused', 0):,}",
        )
    yield table
    # In a column of a narrow terminal they would be folded, and could not be copied.
    for member in neighbours["members"]:
        line = Text(f"{member['name']} at {member['address']}", "dim")
        if version := member.get("version"):
            line.append(f", laxity {version}", "" if version == own_version else "yellow")
        elif "version" in member and member["state"] == "up":  # before boxes said theirs
            line.append(", an older laxity", "yellow")
        yield line


def _queues(queues: Sequence[Answer]) -> Table:
    table = plain_table("queue", "variant", "waiting", right=("waiting",))
    for queue in queues:
        table.add_row(queue["model"], queue["variant"] or "any", f"{queue['requests']:,}")
    return table


def _outcomes(outcomes: Answer, rates: Answer | None) -> RenderableType:
    total = sum(outcomes.values())
    if not total:
        return Text("No request has ended yet.", style="dim")
    columns = ["outcome", "requests", "share", "per second", "meaning"]
    if rates is None:
        columns.remove("per second")
    table = plain_table(*columns, right=("requests", "share", "per second"))
    for outcome in Outcome:
        count = outcomes.get(outcome.value, 0)
        if count:
            cells: list[RenderableType] = [
                Text(outcome.value, style=STYLES.get(outcome.value, "")),
                f"{count:,}",
                percent(count / total),
                Text(MEANINGS[outcome.value], style="dim"),
            ]
            if rates is not None:
                cells.insert(3, f"{rates.get(outcome.value, 0.0):,.1f}")
            table.add_row(*cells)
    return table
