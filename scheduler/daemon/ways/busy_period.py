"""The bandwidth of a way that several messages use together."""

from __future__ import annotations

BUSY_NS = 1_000_000_000
"""A longer busy period is cut, because the bandwidth may change."""


class BusyPeriod:
    """What a way has carried since it was last idle, and in what time.

    Messages in flight together share the way, one after the other or at once, so the bandwidth is
    the number of bytes that got through since the way was last idle. Messages travel while answers
    to earlier ones do, so only the direction with more bytes counts, and what of one message had no
    company in the other direction: at first nothing has been answered, and in the end only an
    answer is under way. By itself a message does not seem faster than it was, and slower only if it
    waited for others, so the lower of both figures counts: the way may be busy all the time, and
    yet idle in each direction now and then.
    """

    def __init__(self) -> None:
        """Starts before the first message."""
        self._since_ns = self._left_ns = 0
        self._sent = self._received = self._alone = 0
        self._is_cut = self._answered_before = False

    def ended_by(self, at_ns: int) -> None:
        """Notes that the way was idle then, at the latest."""
        self._left_ns = min(self._left_ns, at_ns)

    def carried(self, sent: int, received: int, sent_ns: int, left_ns: int) -> float | None:
        """Adds an answered message; returns the time per byte, None if the message does not tell.

        Args:
            sent: Bytes of the message.
            received: Bytes of the answer.
            sent_ns: When it was sent.
            left_ns: When the last byte of the answer had left the way.
        """
        if sent_ns >= self._left_ns:
            self._begin(sent_ns)
            self._alone = min(sent, received)
        elif not self._joins(sent, received, sent_ns, left_ns):
            return None
        self._left_ns = max(self._left_ns, left_ns)
        self._sent += sent
        self._received += received
        together = max(self._sent, self._received) + min(self._alone, received)
        together_ns = (self._left_ns - self._since_ns) / together
        return min(together_ns, (left_ns - sent_ns) / (sent + received))

    def _begin(self, at_ns: int) -> None:
        self._since_ns = at_ns
        self._sent = self._received = self._alone = 0
        self._is_cut = False

    def _joins(self, sent: int, received: int, sent_ns: int, left_ns: int) -> bool:
        """Makes a message part of the period; False if it got through before that began."""
        if self._left_ns - self._since_ns > BUSY_NS:
            self._answered_before = self._received > 0
            self._begin(self._left_ns)
            self._is_cut = True
        if left_ns <= self._since_ns:
            return False
        if sent_ns < self._since_ns:
            if not self._is_cut:
                self._since_ns = sent_ns  # others have overtaken it on another connection
            elif not received and (self._answered_before or self._received > 0):
                return False  # maybe it did, but that was told behind answers to others
        if not self._sent and not self._received:
            self._sent = -min(sent, received)  # it went before this period
        return True
