# Which parameters and modules are watched, by patterns of names: what the selections of frameworks share.
from __future__ import annotations

from trainmon import _core
from trainmon.base.names import as_text


class SelectionBase:
    """By include and exclude of the configuration. A face with rules of its own has a subclass."""

    def __init__(self, config: dict, patterns: tuple[str, ...], what: str):
        """`patterns`: the keys whose values are patterns of names; `what` else than parameters has one."""
        self.include, self.exclude = config["include"], config["exclude"]
        self.patterns, self.what = {key: config[key] for key in patterns}, what

    def label(self, parameter) -> str:
        """The name of its series."""
        return parameter.name

    def model_changed(self) -> None:
        """What is in the model may be other than it was: names that were noted by object are void."""

    def takes_parameter(self, parameter, kind: str) -> bool:
        """Whether a watched parameter gets rows of this kind."""
        return True

    def takes(self, watched, kind: str, element: str) -> bool:
        """Whether this element of a watched module gets rows of this kind."""
        return True

    def takes_name(self, *names: str) -> bool:
        return any(_core.name_selected(as_text(name), self.include, self.exclude) for name in names)

    def _check(self, names: set[str], not_covered) -> None:
        """A pattern that selects nothing is a slip more often than not."""
        texts = {as_text(name) for name in names}
        for key, patterns in self.patterns.items():
            for pattern in patterns:
                if not any(_core.name_selected(name, [pattern], []) for name in texts):
                    why = f"no parameter or {self.what} has such a name"
                    behind = f"**.{pattern}"
                    if any(_core.name_selected(name, [behind], []) for name in texts):
                        why += f": patterns begin at the root, did you mean {behind!r}?"
                    not_covered(f"{key} {pattern!r}", why)
