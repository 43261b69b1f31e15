"""What mypyc is told of a class when it compiles the scheduler (`hatch_build.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["mypyc_attr"]

if TYPE_CHECKING:
    from mypy_extensions import mypyc_attr
else:

    def mypyc_attr(**_attributes: Any) -> Any:
        """Changes nothing in a class; whoever runs laxity need not have mypy's own package."""
        return lambda kind: kind
