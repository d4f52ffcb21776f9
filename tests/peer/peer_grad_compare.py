# Runs msprobe's own comparison of directions: peer_grad_compare.py DUMP1 DUMP2 OUT [nopictures]
# Prints the seconds that the call took.
import os
import sys
import time

import numpy

os.environ.setdefault("MPLBACKEND", "Agg")
if not hasattr(numpy, "unicode_"):  # 8.3.3 is older than NumPy 2
    numpy.unicode_ = numpy.str_


def main():
    from msprobe.core.grad_probe import grad_compare

    if "nopictures" in sys.argv[4:]:
        for name in ("plot", "xlabel", "ylabel", "title", "close"):
            setattr(grad_compare.plt, name, lambda *_: None)
        grad_compare.plt_savefig = lambda path: None
    begin = time.perf_counter()
    grad_compare.GradComparator.compare_distributed(*sys.argv[1:4])
    print("seconds", time.perf_counter() - begin)


if __name__ == "__main__":
    main()
