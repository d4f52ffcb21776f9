# Checks of rows as vectors of numbers: what the core says of their columns and factors.
"""A vector of CHECK_COLUMNS is 1, the fingerprint in pieces of 16 bits with the lowest first, and the eight
sums of the sketch; all are 0 where a row has no check. FINGERPRINT_ROWS has the factors of the lower and
the upper half of a word in each row of a group, FINGERPRINT_COLUMNS those of the columns of a block.
"""

from trainmon import _core

CHECK_COLUMNS = _core.CHECK_COLUMNS
FINGERPRINT_ROWS = _core.FINGERPRINT_ROWS
FINGERPRINT_COLUMNS = _core.FINGERPRINT_COLUMNS
