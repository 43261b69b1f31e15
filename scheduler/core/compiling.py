"""Class attributes for mypyc, when it compiles the scheduler (`hatch_build.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_attributes: Any) -> Any:
        """Leaves a class unchanged, so that running laxity does not need `mypy_extensions`."""
        return lambda kind: kind
