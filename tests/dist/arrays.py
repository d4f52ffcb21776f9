# Runs in the environment under test: statistics of NumPy arrays, printed as exact bits.
import json
import sys

import numpy as np

import trainmon

generator = np.random.default_rng(7)
arrays = [
    generator.standard_normal((300, 517)).astype(np.float32),
    generator.standard_normal(100_003) * 1e200,
    generator.standard_normal((64, 64, 33)).astype(np.float16)[::2, 1:, :],
    generator.integers(-1000, 1000, 10_000),
]
arrays[0][17, 5] = np.nan
found = trainmon.tensor_stats(arrays, threads=2)
print(
    json.dumps(
        {
            "version": trainmon.__version__,
            "python": list(sys.version_info[:2]),
            "core": trainmon._core.__file__,
            "stats": {name: [float(x).hex() for x in column] for name, column in found.items()},
        }
    )
)
