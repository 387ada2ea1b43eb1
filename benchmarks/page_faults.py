"""Does glibc use freed memory again? Page faults of a pass, with ``keep_memory`` and without: run this file.

Each number counts the small pages that the kernel hands out while four tensors of 8 MiB are made, after five rounds of
the same. About 8,200 means that all memory is fresh; about 0 means that it is used again. The numbers depend on the
C library, on the kernel, and on whether large pages are on, so this is a measurement and not a test.
"""

import subprocess
import sys

ROUNDS = """
import resource, torch
from foretaste.tangent.accumulate import keep_memory
if {keep}:
    keep_memory()
def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2 << 20) for _ in range(4)]  # 8 MiB each, 2048 small pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([count_faults() for _ in range(6)][-1])
"""


def page_faults(keep: bool) -> int:
    """Faults of the last round, in a process of its own: what glibc keeps depends on what was freed before."""
    code = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    return int(subprocess.run(code, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    if sys.platform != "linux":
        sys.exit("page faults are counted on Linux only")
    print(f"with keep_memory:    {page_faults(True):6d} page faults")
    print(f"without keep_memory: {page_faults(False):6d} page faults")
