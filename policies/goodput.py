"""`goodput`: finishes as much as possible in time, and refuses early. The default.

Rule, in seven parts:

* Admission (`parts.admission`). A new request is refused at once if it would probably not be served
  in time, judging by the work queued ahead of it and by how earlier promises turned out. A request
  that is late only because of lighter ones ahead of it is admitted, and they give way
  (`parts.outbidding`).
* Displacing (`parts.displacing`). A request is refused if it would make expected arrivals late that
  are worth more, unless there is room for both.
* Service. Of all batches that an open target could finish in time, over every class, variant and
  size, the one that is worth most per device-second goes, unless it harms a request of a more
  important priority (`parts.worth`). The expected loss from requests that arrive while it runs is
  subtracted from its worth (`parts.meanwhile`); if nothing is left, the batch may wait
  (`parts.patience`). Of several idle targets the fastest is filled first. What a remote target has
  failed is left to free ones as long as one of them could be in time (`parts.outlook`). With little
  to do, no slow target gambles on what a fast one will surely do (`parts.surer`).
* Bunches (`parts.gathering`). Cameras that are triggered together send bunches of requests. If
  requests that arrive at empty queues are mostly followed by more at once, and not all were in time
  lately, they are held for up to a tenth of their batch's time.
* Dropping. A request that no target can finish in time any more is dropped at once.
* Costs. A target is costly if it is paid by the request or the second, or if inputs may be made
  smaller for its slow link. It gets only requests that the free targets would not finish in time,
  simulated ahead in (priority, deadline) order, or whose deadline would keep a free target's next
  batch small though more wait for it; a request that a free target will finish waits for it, unless
  that would make others late that cost more (`parts.trading`). If a
  request is refused, dropped or left late that free targets could have finished with nothing else
  to do, costs are ignored for a second. Energy never counts as a cost: a device that draws power is
  used like any other. (`cheapest` weighs energy as well.)
* Other boxes. They get what would be late here or keep a batch small, in preference to paid
  targets. While the load far exceeds what a box could do itself, it uses them like devices of its
  own instead.

Wins under overload and bursts, with mixed models and with devices of different speeds. Under
overload some admitted requests have to be dropped later: admitting only sure ones would finish
less.

Source: the service order is the rule of batched apparent tardiness cost, by S. J. Mason, J. W.
Fowler, W. M. Carlyle (2002); `parts.worth` names the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import exp

from policies.parts.admission import Admission
from policies.parts.apart import Apart
from policies.parts.away import Away
from policies.parts.buying import price, purchases
from policies.parts.coming import Coming
from policies.parts.displacing import Displacement
from policies.parts.gathering import Gathering
from policies.parts.hindsight import Hindsight
from policies.parts.meanwhile import Meanwhile
from policies.parts.odds import CHOICES, Odds
from policies.parts.outbidding import Outbidding
from policies.parts.outlook import Outlook, too_late
from policies.parts.patience import Patience
from policies.parts.scarcity import Scarcity
from policies.parts.serving import candidates, fill, order, some_open
from policies.parts.surer import surer_elsewhere
from policies.parts.trading import Trading
from policies.parts.worth import Worth
from scheduler.core.compiling import mypyc_attr
from scheduler.core.policy import Decision, Drop, Place, View, Wake
from scheduler.core.requests import Request
from scheduler.core.targets import TargetState

LEAST_SCALE = 0.01
"""With a smaller scale only the most urgent request would count."""

RELIEF_NS = 1_000_000_000
"""How long costs are ignored after a request had to be refused, dropped or left late: the free
targets do not suffice, whatever the plan for the current queue says."""

PATIENCE_NS = 5_000_000
"""The minimum time until requests that wait for free targets are looked at again."""

OVERLOAD = 1.75
"""The load, as a multiple of what a box's own targets can do at best, above which other boxes are
used like devices of its own. Below that, sharing work that could be done here costs both boxes more
than it gains."""

LOAD_NS = 500_000_000
"""The time constant of the averaged load."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Everywhere:
    """Maximises the weight finished in time, and uses other boxes like its own devices.

    Args:
        quantile: The latency quantile to rely on, from 0 to 1; if not given 0.95, or less
            if that would refuse too much (`parts.odds`).
        scale: How much slack makes a request less urgent by a factor of e, as a share of the
            longest batch that could be sent; four times that if there is one target, or nearly
            all is of one class.
    """

    def __init__(self, quantile: float | None = None, scale: float = 0.4) -> None:
        """Takes its options from the configuration."""
        if not scale >= LEAST_SCALE:
            raise ValueError(f"scale must be at least {LEAST_SCALE}, not {scale}")
        self._odds = Odds() if quantile is None else None
        self.quantile = CHOICES[0] if quantile is None else quantile
        self.quantiles = (self.quantile,) if self._odds is None else CHOICES
        self.scale = scale
        self._outlook = Outlook(self.quantile, self._odds)
        self._free = Apart(self.quantile, _costs_nothing)
        self.admission = Admission(self._outlook)
        self._begin()

    def _begin(self) -> None:
        """Resets everything learned from earlier requests."""
        self._short_until_ns = -1
        self._held: set[int] = set()
        self._gathering = Gathering(self._outlook)
        self._outbidding = Outbidding(self._outlook, self.admission)
        self._coming = Coming(self._outlook, self.admission)
        self._displacement = Displacement(self._outlook, self.admission, self._coming)
        self._scarcity = Scarcity(self.admission)
        self._hindsight = Hindsight(self._outlook, self.admission, self._coming)
        meanwhile = Meanwhile(
            self._outlook, self.admission, self._coming, self._scarcity, self._hindsight
        )
        self._trading = Trading(self._outlook, self.admission, self._coming)
        self._patience = Patience(self._outlook, self._coming, meanwhile)
        self._worth = Worth(
            self._outlook, self._scarcity, meanwhile, self._coming, self.admission, self.scale
        )

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses, drops, and fills every open target."""
        arrivals = view.arrivals
        if self._odds is not None:
            self._odds.came(view, arrivals)
        if self._outlook.look(view):
            self._begin()
        self._gathering.look(arrivals)
        self._coming.look()
        self._patience.look(len(arrivals))
        yield from self._refusals(arrivals)
        if not self._outlook.some_dear:
            yield from fill(self._outlook, self._next, self._evictions)
            return
        was_thrifty = self._is_thrifty()
        yield from fill(self._outlook, self._next, self._evictions, self._cheapest_first)
        yield from self._purchases()
        if was_thrifty and not self._is_thrifty():  # something was just given up
            yield from fill(self._outlook, self._next, self._evictions, self._cheapest_first)
        if view.queues and self._is_thrifty() and some_open(view, _is_dear):
            wake_ns = self._free.latest_ns(self._outlook)
            if wake_ns is not None:
                wake_ns = max(wake_ns, view.now_ns + PATIENCE_NS)
                yield Wake(wake_ns, "free targets will finish what is queued in time")

    def _refusals(self, arrivals: list[Request]) -> Iterator[Drop]:
        if arrivals:
            self.admission.idled()
        if len(arrivals) > 1:
            arrivals.sort(key=order)
        for request in arrivals:
            if request.accept_late:
                continue
            refusal = self.admission.refusal(request)
            self._coming.came(request)
            outbid = self._outbidding.outbid(request) if refusal is not None else None
            if refusal is None or outbid:
                refusal = self._displacement.refusal(request)
            if refusal is not None:
                self._hindsight.refused(request)
                yield from self._missed([refusal])
                continue
            self._outbidding.admitted(request)
            self._scarcity.came()
            self._patience.admitted()
            if outbid:
                yield from self._missed(outbid)

    def _missed(self, drops: list[Drop]) -> list[Drop]:
        """Records drops: refused arrivals, and requests that were outbid by arrivals."""
        for drop in drops:
            self._scarcity.missed(drop.request)
            self._gathering.missed()
            if self._outlook.some_dear and self._is_possible(drop.request):
                self._fell_short()
        return drops

    def _is_possible(self, request: Request) -> bool:
        """Whether free targets (or all, if none is free) could do it with nothing else to do."""
        budget_ns = request.deadline_ns - self._outlook.view.now_ns
        bids = self._outlook.bids(request.kind)
        return any(
            bid.alone_ns() <= budget_ns
            for bid in [bid for bid in bids if not _is_dear(bid.target)] or bids
        )

    def _evictions(self) -> Iterator[Drop]:
        overdue = self._outlook.overdue()
        if self._outlook.some_dear and any(
            request.accept_late
            for queue, earliest_ns in overdue
            for request in queue.due(earliest_ns)
        ):
            self._fell_short()
        doomed = [each for queue, earliest_ns in overdue for each in too_late(queue, earliest_ns)]
        held, self._held = self._held, set()
        if not doomed:
            return
        dropped = [request for request, _ in doomed]
        if fresh := [request for request in dropped if request.id not in held]:
            self.admission.broken(fresh)
            for request in fresh:
                self._scarcity.missed(request)
            self._gathering.missed()
            self._fell_short()
        offers = self.admission.counter_offers(dropped)
        for (request, why), budgets in zip(doomed, offers, strict=True):
            yield Drop(request, why, budgets)
            queue = self._outlook.view.queues.get(request.kind)
            if queue is not None and request in queue:  # a wrapping policy kept it
                self._held.add(request.id)

    def _is_thrifty(self) -> bool:
        """Whether free targets have sufficed lately."""
        return self._outlook.view.now_ns > self._short_until_ns

    def _fell_short(self) -> None:
        self._short_until_ns = self._outlook.view.now_ns + RELIEF_NS

    # -- service

    def _next(self, target: TargetState) -> Place | Wake | None:
        if self._outlook.some_dear and _is_dear(target) and self._is_thrifty():
            return None
        found = list(candidates(self._outlook, target))
        if not found:
            return None
        if found[0].bid.quantile < self.quantile and self._coming.is_calm():
            surer = surer_elsewhere(self._outlook, found)
            if surer is not None:
                return surer
        best, worth, lost = self._worth.most(found)
        if self._patience.waits(best, worth, lost, found):
            return Wake(best.done_ns, "it would make expected arrivals late that are worth more")
        if self._outlook.some_dear and not _is_dear(target) and self._is_thrifty():
            bought = self._trading.bought(best)
            if bought is not None:
                self._served(bought)
                return bought
        wait = self._gathering.wait(best)
        if wait is not None:
            return wait
        reason = f"batch of {len(best.batch)}: worth most of {len(found)} that would be in time"
        if best.bid.quantile < self.quantile:
            reason += f", as {best.bid.quantile:.0%} of such batches are"
        self._hindsight.sent(best, lost)
        place = best.place(reason)
        self._served(place)
        return place

    def _served(self, place: Place) -> None:
        self.admission.served(place)
        self._coming.served(place)

    def _purchases(self) -> Iterator[Decision]:
        """Sends requests that would be late on free targets to costly ones."""
        view = self._outlook.view
        if not view.queues or not some_open(view, _is_dear):
            return
        self._free.look(view)
        reason, placed = "late on free targets, in time here", False
        late = sorted(self._free.late() + self._free.cramping(), key=order)
        for place in purchases(self._outlook, late, _is_dear, reason):
            self._served(place)
            placed = True
            yield place
        if placed:
            yield from self._evictions()

    def _cheapest_first(self, targets: list[TargetState]) -> list[TargetState]:
        """The targets, free ones first, then costly ones in order of price."""

        def dearness(target: TargetState) -> float:
            prices = [price(bid) for _, bid in self._outlook.waiting(target)]
            return min(prices, default=0.0) if _is_dear(target) else -1.0

        return sorted(targets, key=dearness)


@mypyc_attr(allow_interpreted_subclasses=True)
class Goodput(Everywhere):
    """Maximises the weight finished in time; its options are those of `Everywhere`."""

    def __init__(self, quantile: float | None = None, scale: float = 0.4) -> None:
        """Takes its options from the configuration."""
        super().__init__(quantile, scale)
        self._away = Away(Everywhere(quantile, scale), self.quantile, _is_own)
        self._load = 0.0
        self._load_ns = 0

    def decide(self, view: View) -> Iterator[Decision]:
        """Refuses, drops, fills every open target, and sends other boxes their share."""
        if not view.has_peers:
            return super().decide(view)
        if self._away.near.look(view):
            self._load, self._load_ns = 0.0, view.now_ns
        self._weigh(view)
        return super().decide(view) if self._load > OVERLOAD else self._away.decide(view)

    def _weigh(self, view: View) -> None:
        """Adds the new arrivals' share of its own targets' time to the averaged load."""
        since_ns, self._load_ns = view.now_ns - self._load_ns, view.now_ns
        self._load *= exp(-since_ns / LOAD_NS)
        for request in view.arrivals:
            self._load += self._away.near.share_ns(request.kind) / LOAD_NS


def _is_dear(target: TargetState) -> bool:
    return target.spec.is_dear


def _is_own(target: TargetState) -> bool:
    return not (target.spec.peer or target.spec.is_dear)


def _costs_nothing(target: TargetState) -> bool:
    return not target.spec.is_dear
