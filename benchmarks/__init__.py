"""Speed and memory beside other libraries: ``make bench``, or ``python -m benchmarks``.

Not part of the package and not installed. Machines are noisy, so contenders take turns in one process, and ratios
within one run are what counts. Some modules also run alone: ``python -m benchmarks.picks``.
"""
