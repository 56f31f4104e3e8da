"""The simulated engine with the real safetensors library: one shard is mapped at a time.

engine_load.py engine safetensors WEIGHTS_BYTES CACHE_BYTES SHARD...
"""

import json
import os
import resource
import sys
import time

import numpy
from safetensors import safe_open

POOL = "/proc/sys/vm/nr_hugepages"
PAGE_BYTES = 2 << 20
PIECE_BYTES = 64 << 20


def pages():
    with open(POOL) as pool:
        return int(pool.read())


def grow_to(wanted):
    if wanted > pages():
        try:
            with open(POOL, "w") as pool:
                pool.write(str(wanted))
        except OSError:
            # Refused outright where not one page more was found, which is an answer too.
            pass
    return pages()


def main():
    weights, cache = int(sys.argv[3]), int(sys.argv[4])
    shards = sys.argv[5:]
    total = sum(os.stat(shard).st_size for shard in shards)
    began, read, checksum = pages(), 0, 0
    started = time.monotonic()
    for shard in shards:
        with safe_open(shard, framework="numpy") as tensors:
            for name in tensors.keys():
                tensor = tensors.get_slice(name)
                length = tensor.get_shape()[0]
                for begin in range(0, length, PIECE_BYTES):
                    piece = tensor[begin : min(begin + PIECE_BYTES, length)]
                    words = piece[: len(piece) // 8 * 8].view(numpy.uint64)
                    checksum = (checksum + int(numpy.add.reduce(words))) % (1 << 64)
                    read += len(piece)
                    grow_to(began + int(weights * read / total) // PAGE_BYTES)
    with_weights = pages()
    with_cache = grow_to(with_weights + cache // PAGE_BYTES)
    print(json.dumps({
        "seconds": time.monotonic() - started,
        "weights_bytes": (with_weights - began) * PAGE_BYTES,
        "cache_bytes": (with_cache - with_weights) * PAGE_BYTES,
        "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        "checksum": checksum,
    }))


main()
