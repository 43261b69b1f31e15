"""Builds a wheel whose scheduler is compiled, where `LAXITY_COMPILED=1` asks for it.

What is asked at every event is compiled by mypyc, which needs a C compiler; all of it runs as plain
Python too, and says the same. The extensions are made in a folder of their own: beside the sources
of a checkout they would go before any later edit of them.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED = "LAXITY_COMPILED"
_PLAIN = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
# Two thirds of gcc's time would be for this warning: it reads the one large file up to each line.
# CPPFLAGS are added to a compiler's other flags; setuptools lets CFLAGS replace them.
QUICKER = {"CPPFLAGS": f"{os.environ.get('CPPFLAGS', '')} -Wno-misleading-indentation"}
CHECKER = "[mypy]\nexplicit_package_bases = True\nmypy_path = .\nfollow_imports = silent\n"


class CompiledScheduler(BuildHookInterface):
    """Adds extensions to the wheel, beside the sources that they were made from."""

    def dependencies(self) -> list[str]:
        """What has to be installed to build."""
        return ["mypy[mypyc]>=1.14", "setuptools"] if self._asked() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compiles, and names what came of it.

        Raises:
            RuntimeError: It can't be compiled here, or the installation is editable.
        """
        if not self._asked():
            return
        if version == "editable":
            raise RuntimeError(f"{ASKED} is for a wheel: an editable installation runs its sources")
        self._folder = Path(tempfile.mkdtemp(prefix="laxity-compiled-"))
        for extension in self._compile():
            build_data["force_include"][str(extension)] = str(extension.relative_to(self._folder))
        build_data.update(pure_python=False, infer_tag=True)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leaves nothing behind."""
        if self._asked():
            shutil.rmtree(self._folder)

    def _compile(self) -> list[Path]:
        for package in self.config["packages"]:
            shutil.copytree(Path(self.root, package), self._folder / package)
        for module in self.config["modules"]:
            path = self._folder / module
            path.write_text(with_constants(with_constructors(path.read_text())))
        self._folder.joinpath("mypy.ini").write_text(CHECKER)
        command = [sys.executable, "-m", "mypyc", *self.config["modules"]]
        ended = subprocess.run(
            command, cwd=self._folder, env=os.environ | QUICKER, capture_output=True, text=True
        )
        if ended.returncode:
            raise RuntimeError(
                f"the scheduler can't be compiled here: {ended.stdout}{ended.stderr}\n"
                f"Install a C compiler and Python's headers, or build without {ASKED}."
            )
        built = self._folder / "build"
        return [path for path in self._folder.rglob("*.so") if built not in path.parents]

    def _asked(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(ASKED, "0") not in ("", "0")


def with_constructors(source: str) -> str:
    """The same module, in which each class that is a `value` has its constructor.

    `dataclass` would make that when the module is imported, too late to be compiled. Those that
    look themselves at what they are given are left as they are. A constructor stands in place of
    the empty line after the fields, so that tracebacks name the lines of the source.
    """
    lines = source.split("\n")
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.ClassDef) and any(map(_is_value, node.decorator_list)):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            if fields and "__post_init__" not in [getattr(each, "name", "") for each in node.body]:
                end = fields[-1].end_lineno or 0
                lines[end : end + (not lines[end])] = [_constructor(fields)]
    return "\n".join(lines)


def with_constants(source: str) -> str:
    """The same module, in which plain values with names in capitals are final, so compiled in.

    Else they would be looked up by name each time, and be whatever they are by then.
    """
    lines = source.split("\n")
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                if all(isinstance(each, _PLAIN) for each in ast.walk(value)):
                    at = node.lineno - 1
                    lines[at] = lines[at].replace(name, f"{name}: Final", 1)
    future = "from __future__ import annotations"
    lines[lines.index(future)] = f"{future}; from typing import Final"
    return "\n".join(lines)


def _is_value(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "value"


def _constructor(fields: list[ast.AnnAssign]) -> str:
    taken, kept = ["self"], []
    for field in fields:
        name, kind, given = (ast.unparse(each) for each in (field.target, field.annotation, field))
        made = [
            ast.unparse(word.value)
            for word in getattr(field.value, "keywords", ())
            if word.arg == "default_factory"
        ]
        taken.append(f"{name}: {kind} | None = None" if made else given)
        value = f"{made[0]}() if {name} is None else {name}" if made else name
        kept.append(f"self.{name} = {value}")
    frozen = "  # type: ignore[misc]"
    return f"    def __init__({', '.join(taken)}) -> None: {'; '.join(kept)}{frozen}"
