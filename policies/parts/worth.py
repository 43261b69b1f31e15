"""Which of the batches that a target could finish in time has the highest worth.

    sum over its requests of  weight * (exp(-slack / scale) + CALM)  per device-second

where slack is how much earlier than its deadline a request would be done, and scale is a share of
the longest of these batches. So urgent requests go before those that can wait; among equally urgent
ones, and when not everything can be served, the batch that yields most per device-second goes. To a
far target, a batch takes up time on its way as well (`TargetSpec.lane_ns`). A batch that another
target could finish in time as well counts a quarter less. On a slow target, classes with long
queues count more. If nearly all arrivals are of one class, where urgency only affects the batch
size, or there is only one target, scale is longer. Under overload requests that can wait are worth
more, since time is scarce (`parts.scarcity`). The expected loss behind a batch is subtracted
(`parts.meanwhile`).

That may be a batch of a quick variant of its model. One that the model's owner prefers goes instead
if it harms no queued request, leaves time for all of them behind it (`Admission.would_miss`), and
if each of its requests gains more in right answers (`LIKED`) than it costs: the loss behind the
batch, and its time, which has a price while requests are missed and keep the targets busy.

Source: the rule is that of batched apparent tardiness cost, S. J. Mason, J. W. Fowler, W. M.
Carlyle, "A modified shifting bottleneck heuristic for minimizing total weighted tardiness in
complex job shops", Journal of Scheduling 5(3), 2002, after A. P. J. Vepsalainen, T. E. Morton,
"Priority Rules for Job Shops with Weighted Tardiness Costs", Management Science 33(8), 1987.
"""

from __future__ import annotations

from math import exp, fsum, log, log2
from operator import itemgetter

from policies.parts.admission import Admission
from policies.parts.coming import Coming
from policies.parts.meanwhile import Meanwhile
from policies.parts.outlook import NEVER_NS, Bid, Outlook
from policies.parts.scarcity import Scarcity
from policies.parts.serving import Candidate
from scheduler.core.compiling import mypyc_attr
from scheduler.core.offers import Offer
from scheduler.core.requests import Request

CALM = 0.05
"""The worth of a request with unlimited slack, as a share of an urgent one's, so that a backlog
without urgent deadlines is served in the batches with the best throughput."""

ELSEWHERE = 0.75
"""The factor on the worth of a batch that another target could also finish in time, so that a slow
device leaves cheap, urgent requests to a fast one that is free in a moment. With 0.6 the gain is
half as large."""

CROWD = 0.7
"""With n requests queued in a class, the worth of a batch of them is multiplied by n to the power
of `CROWD` * log2(r) on a target that takes r times as long as the fastest one here. So slow devices
serve the long queues, and fast ones are free for the rest. With 0.5 the gain is half as large; with
1.0 eight overloaded devices do worse than without."""

SLOWEST = 2.0
"""The most for r above. Without a limit a device that takes ten times as long as another counts ten
queued requests as 200, and serves nothing else, though nobody else may be able to."""

NO_CHOICE = 4.0
"""The factor on the scale if there is only one target, or nearly all arrivals are of one class. An
urgent request then need not go to a particular target before others, or competes only with its own
kind; serving it early takes time from all others. From 3 to 6 the gain is the same; with 1.5 it is
half as large."""

LIKED = 0.01
"""By how much more right answers a variant is assumed to give than those that its owner lists after
it, if the stated accuracies say nothing more."""

LEAST_IMPORTANT = 1 << 31
"""A priority number greater than all others."""

_Ranked = tuple[tuple[float, int], Candidate, float]
"""The worth of a batch per nanosecond of its target and its earliest deadline negated; the batch;
and the loss behind it."""

_rank = itemgetter(0)


@mypyc_attr(allow_interpreted_subclasses=True)
class Worth:
    """Ranks batches by worth.

    Args:
        outlook: What the targets could do.
        scarcity: The price of time.
        meanwhile: The expected loss behind batches.
        coming: The recent arrivals.
        admission: Knows whether the queued requests have time.
        scale: How much slack makes a request less urgent by a factor of e, as a share of the
            longest batch that could be sent.
    """

    def __init__(
        self,
        outlook: Outlook,
        scarcity: Scarcity,
        meanwhile: Meanwhile,
        coming: Coming,
        admission: Admission,
        scale: float,
    ) -> None:
        self._outlook = outlook
        self._admission = admission
        self._scarcity = scarcity
        self._meanwhile = meanwhile
        self._coming = coming
        self._scale = scale

    def most(self, found: list[Candidate]) -> tuple[Candidate, float, float]:
        """The batch with the highest worth, unless a more important one takes precedence.

        The best batch of the most important priority takes precedence if it harms no request, or if
        the one with the highest worth would harm a more important request.

        Returns:
            The batch, its worth per nanosecond less the loss behind it, and that loss; any worth
            above 0 if it is the only one and makes nothing late.
        """
        losses = self._meanwhile.lost(found)
        if len(found) == 1 and not losses[0]:
            return found[0], 1.0, 0.0
        scale = self._scale
        if self._coming.is_one or len(self._outlook.starts_ns) == 1:
            scale *= NO_CHOICE
        scale_ns = scale * max([candidate.latency_ns for candidate in found])
        ranked = self._ranked(found, losses, scale_ns)
        (worth, _), best, lost = self._best(ranked)
        priorities = [candidate.priority for candidate in found]
        first = min(priorities)
        if first < max(priorities):
            important = [each for each in ranked if each[1].priority == first]
            (urgent, _), choice, behind = self._best(important)
            if not self._harms(choice) or self._harms(best, best.priority):
                return choice, urgent, behind
        return best, worth, lost

    def _ranked(
        self, found: list[Candidate], losses: list[float], scale_ns: float
    ) -> list[_Ranked]:
        """Each batch with its worth per nanosecond; the more urgent one wins a tie.

        A batch that begins with the requests of the previous one is computed incrementally.

        Args:
            found: The batches that could go next on one target.
            losses: The loss behind each.
            scale_ns: How much slack makes a request less urgent by a factor of e.
        """
        ranked: list[_Ranked] = []
        known: list[Request] = []
        known_ns = deadline_ns = elsewhere_ns = 0
        calm = urgent = crowd = 0.0
        for candidate, lost in zip(found, losses, strict=True):
            batch, done_ns = candidate.batch, candidate.done_ns
            if known and batch[: len(known)] == known:
                fresh = batch[len(known) :]
                urgent *= exp((done_ns - known_ns) / scale_ns)
            else:
                fresh, calm, urgent = batch, 0.0, 0.0
                deadline_ns = batch[0].deadline_ns
                price, wanted = self._scarcity.saved(candidate.queue.kind)
                elsewhere_ns = self._elsewhere_ns(candidate.bid, at_a_price=False)
                crowd = self._crowd(candidate)
            for request in fresh:
                weight, due_ns = request.weight, request.deadline_ns
                saved = wanted * (price if price < weight else weight)
                calm += CALM * weight + saved
                urgent += (weight - saved) * exp((done_ns - due_ns) / scale_ns)
                if due_ns < deadline_ns:
                    deadline_ns = due_ns
            known, known_ns = batch, done_ns
            whole = (calm + urgent) * crowd
            if elsewhere_ns <= deadline_ns:
                whole *= ELSEWHERE
            worth = (whole - lost) / candidate.lane_ns
            ranked.append(((worth, -deadline_ns), candidate, lost))
        return ranked

    def _crowd(self, candidate: Candidate) -> float:
        """The factor for the length of a queue, above 1 if a faster free target is here.

        Far ones don't count: they are too far for some requests, and take few batches at once.
        """
        own_ns = least_ns = candidate.bid.one_ns()
        for bid in self._outlook.bids(candidate.queue.kind):
            spec = bid.target.spec
            if not (spec.remote or spec.is_dear):
                least_ns = min(least_ns, bid.one_ns())
        if least_ns == own_ns:
            return 1.0
        slower = min(own_ns / least_ns, SLOWEST)
        return exp(CROWD * log2(slower) * log(len(candidate.queue)))

    def _best(self, ranked: list[_Ranked]) -> _Ranked:
        """The best batch, or one of the same class with a variant that is preferred and pays."""
        best = max(ranked, key=_rank)
        bid, offer = best[1].bid, best[1].offer
        if offer is bid.offers[0]:
            return best
        price = 0.0 if self._coming.is_calm() else self._scarcity.price(bid)
        for preferred in bid.offers[: bid.offers.index(offer)]:
            rivals = [each for each in ranked if each[1].offer is preferred and each[1].bid is bid]
            if not rivals:
                continue
            rival = max(rivals, key=_rank)
            batch = rival[1].batch
            gain = _gain(preferred, offer) * fsum([request.weight for request in batch])
            more = _cost(rival, price) - _cost(best, price)
            if len(batch) * more > gain or self._harms(rival[1]):
                continue
            if _outweighs(gain, rival[1], best[1]) or not self._admission.would_miss(
                batch, bid, rival[1].done_ns, best[1].done_ns
            ):
                return rival
        return best

    def _harms(self, candidate: Candidate, before: int = LEAST_IMPORTANT) -> bool:
        """Whether a batch makes a request miss that could start now, but not later or elsewhere.

        Args:
            candidate: The batch.
            before: Only requests of a more important priority than this count.
        """
        target = candidate.bid.target
        start_ns, done_ns = self._outlook.starts_ns[target.spec.id], candidate.done_ns
        chosen = {request.id for request in candidate.batch}
        for queue, bid in self._outlook.waiting(target):
            one_ns = bid.one_ns()
            due = queue.due(done_ns + one_ns, start_ns + one_ns)
            harmed = any(r.priority < before and r.id not in chosen for r in due)
            if harmed and self._elsewhere_ns(bid, at_a_price=True) > queue.head().deadline_ns:
                return True
        return False

    def _elsewhere_ns(self, bid: Bid, at_a_price: bool) -> int:
        """When another target could have done a single request of a class.

        Args:
            bid: What this target offers to the class.
            at_a_price: Whether costly targets count.
        """
        soonest_ns = NEVER_NS
        for other in self._outlook.bids(bid.kind):
            if other is not bid and (at_a_price or not other.target.spec.is_dear):
                done_ns = self._outlook.done_ns(other)
                if done_ns < soonest_ns:
                    soonest_ns = done_ns
        return soonest_ns


def _cost(each: _Ranked, price: float) -> float:
    """What a batch costs others, per request; `price` is that of a nanosecond of its target."""
    _, candidate, lost = each
    return (lost + price * candidate.lane_ns) / len(candidate.batch)


def _outweighs(gain: float, preferred: Candidate, quick: Candidate) -> bool:
    """Whether right answers gained outweigh those that a quick variant could give meanwhile."""
    meanwhile = preferred.lane_ns * len(quick.batch) / quick.lane_ns - len(preferred.batch)
    weight = fsum([request.weight for request in preferred.batch]) / len(preferred.batch)
    accuracy = quick.offer.accuracy
    return gain >= meanwhile * weight * (1.0 if accuracy is None else accuracy)


def _gain(preferred: Offer, other: Offer) -> float:
    """By how much more right answers a variant gives than another, as a share of all."""
    if preferred.accuracy is None or other.accuracy is None:
        return LIKED
    return max(LIKED, preferred.accuracy - other.accuracy)
