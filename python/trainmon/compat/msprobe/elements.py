# msprobe's names of the tensors of a module, and which of them a target asks for.
from __future__ import annotations

from collections.abc import Mapping

from trainmon.base.console import log
from trainmon.compat.msprobe import config as fields


class Elements:
    """The half of a Selection that is about tensors; `tensor` is the framework's class. The other half
    has told, a set of what was said, and _wanted_of(watched), the entry of `targets`."""

    tensor: type
    told: set[str]

    def inputs(self, watched, args, kwargs) -> list[tuple]:
        """Tensors among the arguments, then among the keyword arguments."""
        found = [value for value in (*args, *kwargs.values()) if isinstance(value, self.tensor)]
        return self._numbered("input", found)

    def outputs(self, watched, output) -> list[tuple]:
        if isinstance(output, self.tensor):
            return [("output", output)]
        if isinstance(output, Mapping):
            output = tuple(output.values())
        return self._numbered("output", output) if isinstance(output, (tuple, list)) else []

    def _numbered(self, side: str, values) -> list[tuple]:
        if len(values) == 1:
            return [(side, values[0])] if isinstance(values[0], self.tensor) else []
        return [(f"{side}_{i}", v) for i, v in enumerate(values) if isinstance(v, self.tensor)]

    def takes(self, watched, kind: str, element: str) -> bool:
        side, _, index = element.partition("_")
        key = side if kind == "actv" else f"{side}_grad"
        wanted = self._wanted_of(watched)
        if not wanted:
            return True
        if key not in wanted:
            return False
        try:
            size = fields.spec(wanted[key])
        except ValueError:
            return True  # that was said at the start
        if size is None:  # "tensor"
            fits, takes = index == "", True
        else:
            length, place = size
            fits = (index == "") == (length == 1) and (index == "" or int(index) < length)
            takes = index == "" or int(index) == (place or 0)
        if not fits:
            self._say(f"{watched.name}: {key} is not {wanted[key]!r}: all of it is watched")
            return True
        return takes

    def _say(self, text: str) -> None:
        if text not in self.told:
            self.told.add(text)
            log.warning("trainmon: %s", text)
