"""Keep compiled models between starts, and use only those that this box wrote."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import shutil
from collections.abc import Container, Mapping
from pathlib import Path

import xxhash

from scheduler.files import replace_file
from workers.model_files import Looks, looks_of

_MANIFEST = "sealed.json"
_KEY_BYTES = 32
_CHUNK_BYTES = 1 << 20


class CompiledCache:
    """One folder per variant, runtime and device, sealed with this box's key.

    A compiled model is a program, so one that another box wrote or that changed on disk must not be
    loaded. A manifest lists the keyed digest of each file in a folder; a folder that does not match
    its manifest is emptied.
    """

    def __init__(self, root: Path) -> None:
        """Use a folder, which is created if absent."""
        root.mkdir(parents=True, exist_ok=True)
        self._root = root
        self._key = _box_key(root / "box.key")
        self._used: dict[str, str | None] = {}  # folders, and for which case
        # By folder, the names, sizes and times of its files when their digests last matched:
        # hashing an engine of a gigabyte takes a second.
        self._sound: dict[Path, Looks] = {}

    def folder(self, label: str, of: Mapping[str, str]) -> Path:
        """The folder for models compiled under these conditions, created if absent.

        Args:
            label: Prefix of its name, for people; valid in a file name.
            of: Everything the compiled files depend on; `case` is the variant's (`Case.key`).
        """
        text = json.dumps(dict(of), sort_keys=True)
        name = f"{label}-{xxhash.xxh3_128(text.encode()).hexdigest()}"
        self._used[name] = of.get("case")
        path = self._root / name
        path.mkdir(parents=True, exist_ok=True)  # all may have been removed since the start
        return path

    def check(self, folder: Path) -> str | None:
        """Empty a folder that is not as this box sealed it.

        Returns:
            What was wrong, or None.
        """
        looks = looks_of(folder)
        if self._sound.get(folder) == looks:
            return None
        files = [path for path in _files(folder) if path.name != _MANIFEST]
        sealed = _read_manifest(folder / _MANIFEST)
        if sealed is None:
            fault = f"files without this box's seal: {len(files)}" if files else None
        else:
            fault = self._difference(files, sealed, folder)
        if fault is not None:
            _clear(folder)
            return f"the compiled model in {folder} is discarded and compiled again: {fault}"
        self._sound[folder] = looks
        return None

    def seal(self, folder: Path) -> None:
        """Write the manifest of the files now in a folder."""
        digests = {
            str(path.relative_to(folder)): self._digest(path)
            for path in _files(folder)
            if path.name != _MANIFEST
        }
        if not digests:
            return
        replace_file(folder / _MANIFEST, json.dumps(digests, indent=1))
        self._sound[folder] = looks_of(folder)

    def remove_unused(self, label: str, cases: Container[str | None]) -> None:
        """Remove a label's folders that `folder` has not returned since the start for these cases.

        It may be returning others of them in another thread.
        """
        for name, case in list(self._used.items()):
            if name.startswith(f"{label}-") and case not in cases:
                del self._used[name]
                self._sound.pop(self._root / name, None)
        for path in self._root.glob(f"{label}-*"):
            if path.is_dir() and path.name not in self._used:
                shutil.rmtree(path, ignore_errors=True)

    def _difference(self, files: list[Path], sealed: Mapping[str, str], folder: Path) -> str | None:
        found = {str(path.relative_to(folder)): path for path in files}
        for name in sorted(found.keys() | sealed.keys()):
            if name not in found:
                return f"{name} is missing"
            if name not in sealed or not hmac.compare_digest(
                self._digest(found[name]), sealed[name]
            ):
                return f"{name} is not the file that this box wrote"
        return None

    def _digest(self, path: Path) -> str:
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


def _box_key(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    # Workers of a box start at the same time: one links its key first, and all read that one.
    mine = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(mine, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(_KEY_BYTES))
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size != _KEY_BYTES:
            path.unlink()
    with contextlib.suppress(FileExistsError):
        os.link(mine, path)
    mine.unlink()
    return path.read_bytes()


def _read_manifest(path: Path) -> dict[str, str] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # A manifest that cannot be read vouches for nothing.
        return None
    if isinstance(content, dict) and all(isinstance(value, str) for value in content.values()):
        return content
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _clear(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
