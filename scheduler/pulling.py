"""Pulls a model from another box or a folder into a repository, completely or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from scheduler import wire
from scheduler.address import Address, parse_address, plainly
from scheduler.client.asking import ask
from scheduler.errors import InvalidInput, Unavailable
from scheduler.files import sync_folder
from scheduler.model_files import (
    CHUNK_BYTES,
    FileEntry,
    checked_entries,
    entries_from_sums,
    entries_of,
)

BOX_SCHEMES = ("tcp", "tls", "unix")
"""The schemes of a box's native door; any other scheme names a folder."""

_NO_FOLDERS = ("memory", "data", "reference", "generic")
"""Schemes of fsspec that name no place."""

_PATIENCE_S = 30.0
_MOST_SUMS_BYTES = 1 << 20

Progress = Callable[[str, int], None]
"""Called with a file's path and how many of its bytes have arrived."""


class Source(Protocol):
    """Where a model's files come from."""

    def entries(self) -> list[FileEntry]:
        """Lists the files."""

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yields the bytes of one file."""


def source_of(url: str, model: str, token: str | None) -> Source:
    """The source that a URL names: a box, or a folder anywhere that fsspec can reach.

    Raises:
        InvalidInput: It names neither, or needs a package that isn't installed.
        AddressError: It is not a valid address of a box.
    """
    scheme, separator, _ = url.partition("://")
    if not separator and url.startswith((".", "/")):
        place = Path(url).absolute().as_uri()
        raise InvalidInput(f"{url!r} is neither a box nor a URL; a folder here is like {place}")
    if not separator or scheme in BOX_SCHEMES:
        return BoxSource(parse_address(url if separator else f"tcp://{url}"), model, token)
    return Folder(url, model)


class Folder:
    """A folder of models, each with a file SHA256SUMS written by `sha256sum`.

    Args:
        url: The folder's URL: https://, s3://, gs://, ssh://, file:// or any other scheme that
            fsspec has or finds installed. Credentials are found where the scheme's package looks
            for them.
        model: The model to fetch.

    Raises:
        InvalidInput: fsspec knows no such scheme, or the package for it isn't installed.
    """

    def __init__(self, url: str, model: str) -> None:
        scheme = url.partition("://")[0]
        if "::" in url or "?" in url:
            raise InvalidInput("a folder's URL is SCHEME://PLACE/PATH, without ? and without ::")
        self._files, root = _file_system(scheme, url)
        self._path = f"{root.rstrip('/')}/{model}"
        self._url = f"{_without_secrets(url).rstrip('/')}/{model}"

    def entries(self) -> list[FileEntry]:
        """The files that SHA256SUMS names."""
        text = b""
        for chunk in self._read("SHA256SUMS"):
            text += chunk
            if len(text) > _MOST_SUMS_BYTES:
                raise InvalidInput(f"SHA256SUMS is larger than {_MOST_SUMS_BYTES:,} bytes")
        return entries_from_sums(text.decode("utf-8", "replace"))

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yields the bytes of a file."""
        return self._read(entry.path)

    def _read(self, path: str) -> Iterator[bytes]:
        try:
            with self._files.open(f"{self._path}/{path}", "rb") as file:
                while chunk := file.read(CHUNK_BYTES):
                    yield chunk
        except Exception as error:  # each package raises its own
            # Over HTTP every failure is a FileNotFoundError with the real error as its cause.
            truth = error.__cause__ or error
            told = f"{type(truth).__name__}: {truth}".replace(self._path, self._url)
            raise Unavailable(f"{self._url}/{path}: {told}") from None


def _file_system(scheme: str, url: str) -> tuple[Any, str]:
    """The fsspec file system of a URL, and the path in it."""
    # Imported here, so that other commands don't wait for it.
    from fsspec.core import url_to_fs
    from fsspec.registry import available_protocols, known_implementations

    known = known_implementations.get(scheme)
    if scheme in _NO_FOLDERS or scheme not in available_protocols():
        raise InvalidInput(
            f"a model can't be pulled from {scheme}://; a box is HOST:PORT or tls://…, a "
            "folder https://, s3://, gs://, abfs://, ssh://, file:// or another scheme of fsspec"
        )
    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        # With block size 0 the file arrives as one stream, even from servers without range
        # requests.
        patience = ClientTimeout(total=None, sock_connect=_PATIENCE_S, sock_read=_PATIENCE_S)
        options = {"block_size": 0, "client_kwargs": {"timeout": patience}}
    try:
        files, path = url_to_fs(url, **options)
        return files, str(path)
    except ImportError as error:
        wanted = known["err"] if known and "err" in known else str(error)
        raise InvalidInput(f"{scheme}:// needs a package that isn't installed: {wanted}") from None
    except Exception as error:  # as in `Folder`
        told = f"{type(error).__name__}: {error}".replace(url, _without_secrets(url))
        raise Unavailable(f"{_without_secrets(url)}: {told}") from None


def _without_secrets(url: str) -> str:
    """A URL without the name and password that it may hold."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


class BoxSource:
    """Another box, asked over the native protocol.

    Args:
        address: The address of its native door.
        model: The model to fetch.
        token: The token to show there; its tenant needs the scope `peer`.
    """

    def __init__(self, address: Address, model: str, token: str | None) -> None:
        self._address, self._model, self._token = address, model, token

    def entries(self) -> list[FileEntry]:
        """Asks the box for its list of files."""
        value, _ = asyncio.run(self._ask({"t": "model_files"}))
        try:
            return checked_entries(FileEntry(str(p), str(d), int(s)) for p, d, s in value)
        except (TypeError, ValueError) as error:
            raise Unavailable(f"{self._address} gave no list of files: {error}") from None

    def chunks(self, entry: FileEntry) -> Iterator[bytes]:
        """Yields the bytes of a file, until the box sends no more."""
        offset = 0
        while chunk := asyncio.run(
            self._ask({"t": "model_file", "path": entry.path, "offset": offset})
        )[1]:
            yield chunk
            offset += len(chunk)

    async def _ask(self, message: wire.Header) -> tuple[Any, bytes]:
        asking = ask(self._address, self._token, lambda _: {**message, "model": self._model})
        try:
            return await asyncio.wait_for(asking, _PATIENCE_S)
        except (OSError, asyncio.TimeoutError) as error:
            why = plainly(error) or f"no answer within {_PATIENCE_S:g} s"
            raise Unavailable(f"{self._address}: {why}") from None


def pull(
    source: Source,
    root: Path,
    model: str,
    most_bytes: int,
    check: Callable[[Path], str | None],
    progress: Progress = lambda _path, _size: None,
    *,
    replace: bool = False,
) -> bool:
    """Puts a model into a repository; nothing of it appears there before all of it is verified.

    Args:
        source: Where it comes from.
        root: The repository.
        model: Its name, already validated.
        most_bytes: The most that its files may be in total.
        check: Given the folder that holds the model, says what is wrong with it, or returns None.
        progress: Called as bytes arrive.
        replace: Whether it takes the place of other files of that name.

    Returns:
        False if the very same files were there already.

    Raises:
        InvalidInput: Other files are there under that name and may not be replaced, a digest does
            not match, or the files are too large or no model.
        Unavailable: The source can't be reached, or fails.
        OSError: The repository can't be written to.
    """
    entries = source.entries()
    if sum([entry.size or 0 for entry in entries]) > most_bytes:
        raise InvalidInput(f"model {model!r} is larger than {most_bytes / 1e6:,.0f} MB, the limit")
    place = root / model
    if place.exists():
        if _holds(place, entries):
            return False
        if not replace:
            raise InvalidInput(f"{place} holds other files; to replace them, pass --replace")
    folder = Path(tempfile.mkdtemp(prefix=".pull-", dir=root))
    try:
        left = most_bytes
        for entry in entries:
            left -= _fetch(source, entry, folder / model / entry.path, left, progress)
        problem = check(folder)
        if problem is not None:
            raise InvalidInput(f"the files received are no valid model {model!r}: {problem}")
        _move(folder / model, place, folder / "former" if replace else None)
        sync_folder(root)
        return True
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(new: Path, place: Path, former: Path | None) -> None:
    """Moves a folder to its place; what was there goes to `former`, or is in the way.

    Raises:
        InvalidInput: Something is in the way.
        OSError: A folder can't be moved; what was in its place is there again.
    """
    if former is not None and os.path.lexists(place):
        os.rename(place, former)
    try:
        os.rename(new, place)
    except OSError as error:
        if former is not None and os.path.lexists(former):
            os.rename(former, place)
        elif place.exists():
            raise InvalidInput(f"{place} was created meanwhile; nothing is replaced") from error
        raise


def _holds(folder: Path, entries: list[FileEntry]) -> bool:
    """Whether a folder holds these files and no others."""
    try:
        return _digests(entries_of(folder)) == _digests(entries)
    except InvalidInput:  # it is empty, or something else than a model
        return False


def _digests(entries: list[FileEntry]) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in entries if entry.path != "SHA256SUMS"}


def _fetch(source: Source, entry: FileEntry, path: Path, most: int, progress: Progress) -> int:
    """Writes one file and returns its size in bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for chunk in source.chunks(entry):
            size += len(chunk)
            if size > most:
                raise InvalidInput(f"{entry.path} and the files before it exceed the limit")
            digest.update(chunk)
            file.write(chunk)
            progress(entry.path, size)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != entry.sha256:
        raise InvalidInput(f"{entry.path} does not have the promised SHA-256")
    return size
