"""Authentication and authorisation: tenants, their tokens and certificates, and their file."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from codecs import BOM_UTF8
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from scheduler.config.problems import ConfigError, Problem, problems_of, read_yaml
from scheduler.config.types import Unquoted
from scheduler.core.requests import DEFAULT_PRIORITY, LOWEST_PRIORITY
from scheduler.errors import Forbidden, ModelNotFound, Unauthorized

Scope = Literal["infer", "tasks", "shared_memory", "metrics", "peer", "admin"]

HASH_PREFIX = "sha256:"
LONGEST_TOKEN = 1024
SHORTEST_TOKEN = 16

_TOKEN_BYTES = 32
_HASH_WANTED = (
    f"{HASH_PREFIX} and 64 hex digits, as `laxity token` prints it; a token itself does not belong "
    "into this file"
)

_COMMENTED = "has a comment (#), which would be a token; a file of tokens holds nothing else"

_NOBODY = (
    "has neither tokens nor certificates, as where a file is half-written; tokens: [] shuts a "
    "tenant out"
)


def new_token() -> str:
    """A new token of 256 random bits, safe in headers and shells."""
    return "lx_" + secrets.token_urlsafe(_TOKEN_BYTES)


def hash_of(token: str) -> str:
    """The hash that is stored for a token.

    Tokens are random and long, so one round of SHA-256 can't be reversed by guessing. It costs a
    request a microsecond; a password hash would cost milliseconds.
    """
    return HASH_PREFIX + hashlib.sha256(token.encode()).hexdigest()


def _checked_hash(text: str) -> str:
    digits = text.removeprefix(HASH_PREFIX)
    if digits == text or len(digits) != 64 or not set(digits) <= set("0123456789abcdef"):
        raise ValueError(f"should be {_HASH_WANTED}")
    return text


class Tenant(BaseModel):
    """A party that sends requests, and what it may use."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    """Lower-case letters, digits, dots, dashes and underscores."""

    tokens: tuple[Annotated[str, AfterValidator(_checked_hash), Unquoted()], ...] = ()
    """Hashes of its tokens, as `laxity token` prints them. List two during a rotation."""

    certificates: tuple[str, ...] = ()
    """Names (subject CN, or DNS or URI alternative names) of its client certificates."""

    models: tuple[str, ...] = ("*",)
    """The models it may use; * matches any characters."""

    scopes: tuple[Scope, ...] = ("infer",)
    """infer: send requests; tasks: keep durable tasks on the box's disk; shared_memory: use shared
    memory of the box; metrics: read the state of the whole box; peer: act as another box of the
    site; admin: load and unload models, swap the policy."""

    rate_per_s: Annotated[float, Field(ge=1e-6, le=1e9)] | None = None
    """Requests per second, on average."""

    burst: Annotated[int, Field(ge=1)] = 32
    """How many requests may arrive at once, beyond the average rate."""

    concurrency: Annotated[int, Field(ge=1)] | None = None
    """The most requests in flight at once."""

    connections: Annotated[int, Field(ge=1)] | None = None
    """The most connections at once: to the native door, and to each HTTP process those with a
    request in flight. Half of limits.connections by default."""

    queue_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of limits.queue_requests, limits.queue_mb, doors.held_mb, durable.max_tasks and
    durable.max_mb that it may use."""

    max_priority: Annotated[int, Field(ge=0, le=LOWEST_PRIORITY)] = 0
    """The most urgent priority it may ask for, from 0 (any) to 7."""

    default_deadline_ms: Annotated[float, Field(gt=0)] | None = None
    """The deadline of its requests that set none."""

    def check_scope(self, scope: Scope) -> None:
        """Checks that the tenant has a scope.

        Raises:
            Forbidden: It does not have the scope.
        """
        if scope not in self.scopes:
            raise Forbidden(
                f"{self.name!r} does not have the scope {scope!r}; "
                "tokens have scopes by the box's token_file or tenants_file"
            )

    def sees(self, model: str) -> bool:
        """Whether the tenant may use that model; it is not told of any other."""
        return self.models == ("*",) or any(fnmatchcase(model, name) for name in self.models)

    def check_model(self, model: str, known: Container[str] | None = None) -> None:
        """Checks that the tenant may use a model.

        Args:
            model: The model.
            known: The existing models; None if existence is checked elsewhere.

        Raises:
            ModelNotFound: It may not, or the model does not exist; the message does not tell which.
        """
        if self.models == ("*",):
            return
        if not self.sees(model) or (known is not None and model not in known):
            raise ModelNotFound.unknown(model)

    def priority(self, asked: int | None) -> int:
        """The priority that a request gets.

        Raises:
            Forbidden: It asks for a more urgent priority than the tenant may use.
        """
        if asked is None:
            return max(DEFAULT_PRIORITY, self.max_priority)
        if asked < self.max_priority:
            raise Forbidden(
                f"{self.name!r} may ask for priority {self.max_priority} at best, not {asked}"
            )
        return asked


ANYONE = Tenant(name="anyone", scopes=("infer", "tasks", "shared_memory", "metrics"))
"""The tenant of callers where no token is required; shared memory has a switch of its own."""

OWNER = Tenant(name="owner", scopes=("infer", "tasks", "shared_memory", "metrics", "peer", "admin"))
"""The tenant of callers that a unix socket's permissions let in, or that show the box's token."""


UNCOUNTED = frozenset((ANYONE.name, OWNER.name))
"""The tenants whose use is not limited."""


class TenantsFile(BaseModel):
    """The tenants of a box."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    tenants: tuple[Tenant, ...]
    """The tenants that have access, each with tokens or certificates."""


class Access:
    """Identifies callers.

    Args:
        tenants: The tenants that have access. If there are none, everybody has.

    Attributes:
        required: Whether callers must authenticate.
    """

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        """Indexes the tenants by name, token and certificate."""
        self._by_name = {tenant.name: tenant for tenant in tenants}
        self.required = bool(self._by_name)
        self._hashes = [
            (hashed.encode(), tenant)
            for tenant in self._by_name.values()
            for hashed in tenant.tokens
        ]
        self._certificates = {
            name: tenant for tenant in self._by_name.values() for name in tenant.certificates
        }

    def by_token(self, token: str | None) -> Tenant:
        """The tenant that a token belongs to; every known hash is compared, in constant time.

        Raises:
            Unauthorized: No tenant has it.
        """
        found: Tenant | None = None
        if token is not None and len(token) <= LONGEST_TOKEN:
            said = hash_of(token).encode()
            for known, tenant in self._hashes:
                if hmac.compare_digest(said, known):
                    found = tenant
        if found is None:
            raise Unauthorized("the token is missing or wrong (LAXITY_TOKEN, or Client(token=…))")
        return found

    def by_certificate(self, names: Iterable[str]) -> Tenant | None:
        """The tenant whose client certificate has one of these names; None if there is none."""
        return next(
            (self._certificates[name] for name in names if name in self._certificates), None
        )

    def by_token_or_certificate(self, token: Any, names: Iterable[str]) -> Tenant:
        """The tenant of a token or, if none is shown, of a client certificate.

        Raises:
            Unauthorized: No tenant has them.
        """
        if token is None and (tenant := self.by_certificate(names)) is not None:
            return tenant
        return self.by_token(token if isinstance(token, str) else None)

    def by_name(self, name: str) -> Tenant:
        """The current state of a tenant from an earlier look-up.

        Raises:
            Unauthorized: It has been removed since.
        """
        tenant = self._by_name.get(name) or _UNLISTED.get(name)
        if tenant is None:
            raise Unauthorized(f"tenant {name!r} is no longer known")
        return tenant


_UNLISTED = {tenant.name: tenant for tenant in (ANYONE, OWNER)}


def load_access(token_file: Path | None, tenants_file: Path | None) -> Access:
    """Loads the access rules from the files that the configuration names.

    Raises:
        ConfigError: A file can't be used; the message says what would be right.
    """
    tenants: list[Tenant] = []
    if token_file is not None:
        tenants.append(OWNER.model_copy(update={"tokens": _read_token_hashes(token_file)}))
    if tenants_file is not None:
        own = [hashed for tenant in tenants for hashed in tenant.tokens]
        tenants.extend(read_tenants(tenants_file, own))
    return Access(tenants)


def read_tenants(path: Path, own: Iterable[str] = ()) -> tuple[Tenant, ...]:
    """Reads the tenants of a file.

    Args:
        path: The file.
        own: Hashes of the owner's tokens.

    Raises:
        ConfigError: With every mistake in the file, and its line.
    """
    return _tenants_in(read_secret(path, "tenants_file"), str(path), frozenset(own))


@lru_cache(maxsize=4)
def _tenants_in(text: str, source: str, own: frozenset[str]) -> tuple[Tenant, ...]:
    """The tenants of a text, of which a hundred take 80 ms; a reload looks at it several times."""
    data, node = read_yaml(text, source)
    try:
        tenants = TenantsFile.model_validate(data).tenants
    except ValidationError as error:
        found = [_without_secrets(problem) for problem in problems_of(error, TenantsFile, node)]
        raise ConfigError(source, found) from None
    if not tenants:
        raise ConfigError(source, [Problem("tenants", "lists none, so nobody could connect")])
    problems = [
        Problem(f"tenants[{index}].name", f"{tenant.name!r} is taken")
        for index, tenant in enumerate(tenants)
        if tenant.name in _UNLISTED or tenant.name in {t.name for t in tenants[:index]}
    ]
    problems += [
        Problem(f"tenants[{index}]", _NOBODY)
        for index, tenant in enumerate(tenants)
        if not tenant.model_fields_set & {"tokens", "certificates"}
    ]
    problems += _taken("tokens", [tenant.tokens for tenant in tenants], own)
    problems += _taken("certificates", [tenant.certificates for tenant in tenants], ())
    if problems:
        raise ConfigError(source, problems)
    return tenants


def _taken(key: str, shown: Iterable[Sequence[str]], own: Iterable[str]) -> list[Problem]:
    """Problems with tokens or certificates that two tenants share, which would be ambiguous."""
    seen = set(own)
    found = []
    for index, marks in enumerate(shown):
        if not seen.isdisjoint(marks):
            message = "one of them is another tenant's, or that of token_file; each has its own"
            found.append(Problem(f"tenants[{index}].{key}", message))
        seen.update(marks)
    return found


def _without_secrets(problem: Problem) -> Problem:
    """The problem, with a message that can't contain a token written in place of a hash."""
    if ".tokens" not in problem.place:
        return problem
    return replace(problem, message=f"should be a list of hashes: {_HASH_WANTED}")


def _read_token_hashes(path: Path) -> tuple[str, ...]:
    """The hashes of the box's tokens; each line of the file holds a token or its hash.

    Raises:
        ConfigError: A line holds neither, or there is none.
    """
    lines = _token_lines(path)
    found, problems = [], []
    for number, line in enumerate(lines, 1):
        try:
            found.append(_checked_hash(line) if line.startswith(HASH_PREFIX) else _hashed(line))
        except ValueError as error:
            where = f"line {number} " if len(lines) > 1 else ""
            problems.append(Problem("token_file", f"{where}{error}"))
    if problems:
        raise ConfigError(str(path), problems)
    return tuple(found)


def _token_lines(path: Path) -> list[str]:
    """The lines of a file of tokens; an empty one has one empty line."""
    return [line.strip() for line in read_secret(path, "token_file").strip().split("\n")]


def _hashed(token: str) -> str:
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"holds {len(token)} characters; a token has {SHORTEST_TOKEN} or more")
    if _has_comment(token):
        raise ValueError(_COMMENTED)
    return hash_of(token)


def _has_comment(line: str) -> bool:
    return line.startswith("#") or " #" in line


def read_token(path: Path) -> str:
    """Reads the first token of a file, not its hash, to be shown to others.

    Raises:
        ConfigError: The file can't be used, or begins with a hash or no token.
    """
    text = _token_lines(path)[0]
    if text.startswith(HASH_PREFIX) or not SHORTEST_TOKEN <= len(text) <= LONGEST_TOKEN:
        message = "holds a hash or no token; what is shown to other boxes is the token itself"
        raise ConfigError(str(path), [Problem("token_file", message)])
    if _has_comment(text):
        raise ConfigError(str(path), [Problem("token_file", _COMMENTED)])
    return text


def read_secret(path: Path, key: str) -> str:
    """Reads a text file that only its owner may access.

    Args:
        path: The file.
        key: The key of the configuration that names it.

    Raises:
        ConfigError: It can't be read, or others may access it too.
    """
    try:
        others = path.stat().st_mode & 0o077
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise ConfigError(str(path), [Problem(key, f"can't be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        told = f"should be ASCII, but byte {error.start + 1} is {byte:#04x}"
        if error.object.startswith(BOM_UTF8):
            told = "begins with a byte order mark; save it without one"
        raise ConfigError(str(path), [Problem(key, told)]) from None
    if others:
        message = f"others than its owner may access it; run: chmod 600 {path}"
        raise ConfigError(str(path), [Problem(key, message)])
    return text
