# The faces of other monitors: every import of theirs works with "trainmon.compat." put before it.
