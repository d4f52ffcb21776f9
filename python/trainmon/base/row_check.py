# Checks of rows as vectors of numbers: what the core says of their columns and factors.
"""A vector of CHECK_COLUMNS begins with 1. The fingerprint follows in pieces of 16 bits, the lowest first, and
then the eight sums of the sketch. All are 0 where a row has no check. FINGERPRINT_ROWS has the factors of
both halves of a word, lower and upper, row after row of a group. FINGERPRINT_COLUMNS has those of the
columns of a block.
"""

from trainmon import _core

CHECK_COLUMNS = _core.CHECK_COLUMNS
FINGERPRINT_ROWS = _core.FINGERPRINT_ROWS
FINGERPRINT_COLUMNS = _core.FINGERPRINT_COLUMNS
