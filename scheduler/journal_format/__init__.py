"""The format of a journal: events and commands to bytes, and back. No files, no clock.

A file is `MAGIC`, a msgpack map (the header) and msgpack lists (the records). A record's first item
gives its kind:

    [0, text]                    the next text; later records refer to it by its number, from 0
    [1, model, variant, shapes]  the next class of requests, likewise
    [2, at_ns, count]            `count` events are missing here
    [3]                          the file was closed; its run goes on in the next one, or ended
    [4 + n, since_ns, event, commands]              an event of the n-th type of `EVENTS`
    [4 + n, since_ns, event, commands, failure]     the same, and the policy failed

Times are relative to the previous event, and request ids to the highest so far, because small
numbers take few bytes. Each file is self-contained: its header has the policy, the limits and the
targets of that moment, and nothing refers to another file.
"""

from scheduler.journal_format.decoder import Decoder
from scheduler.journal_format.encoder import Encoder
from scheduler.journal_format.plain import decode_header, encode_header
from scheduler.journal_format.words import (
    EVENTS,
    MAGIC,
    SUFFIX,
    Closed,
    Entry,
    FormatError,
    Gap,
    Header,
    JournalledPolicy,
    Target,
    fingerprint,
    plain_options,
)

__all__ = [
    "EVENTS",
    "MAGIC",
    "SUFFIX",
    "Closed",
    "Decoder",
    "Encoder",
    "Entry",
    "FormatError",
    "Gap",
    "Header",
    "JournalledPolicy",
    "Target",
    "decode_header",
    "encode_header",
    "fingerprint",
    "plain_options",
]
