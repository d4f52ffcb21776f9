# msprobe's comparison of two dumps of gradient directions.
from __future__ import annotations

from trainmon import direction_pictures, directions
from trainmon.checks import arguments as checks
from trainmon.compat.msprobe import conversion

_MOST_LOGGED = 20


class GradComparator:
    """Compares two dumps of grad_probe, ours or msprobe's."""

    @staticmethod
    def compare_distributed(
        dump_path1: str | None = None,
        dump_path2: str | None = None,
        output_path: str | None = None,
        *,
        path1: str | None = None,
        path2: str | None = None,
        output_dir: str | None = None,
    ) -> None:
        """Writes similarities.csv, pictures and verdict.json of every rank that both dumps have, in
        place of older ones, and prints what the manual's rule says.

        Raises FileNotFoundError for a dump that is no directory, RuntimeError where nothing at all
        can be compared. What one of the dumps lacks is logged and stands in verdict.json.
        """
        first = _directory("dump_path1", dump_path1, "path1", path1)
        second = _directory("dump_path2", dump_path2, "path2", path2)
        out = conversion.checked_path(*_given("output_path", output_path, "output_dir", output_dir))
        with conversion.Progress("comparing") as progress:
            comparison = directions.count_agreements(
                first, second, out, threads=None, progress=progress
            )
        remarks = comparison.remarks()
        for remark in remarks[:_MOST_LOGGED]:
            conversion.log.warning("%s", remark)
        if len(remarks) > _MOST_LOGGED:
            conversion.log.warning("and %d more (verdict.json)", len(remarks) - _MOST_LOGGED)
        with conversion.Progress("drawing") as progress:
            direction_pictures.draw(comparison, progress)
        print(comparison)

    # The directories of one rank; the same call takes them.
    compare = compare_distributed


def _given(name: str, value, other_name: str, other) -> tuple:
    """The argument of two names, and the one it was given under."""
    return (name, value) if other is None or value is not None else (other_name, other)


def _directory(*argument) -> str:
    name, value = _given(*argument)
    return checks.directory(name, conversion.checked_path(name, value))
