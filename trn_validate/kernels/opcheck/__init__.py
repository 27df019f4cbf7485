"""Whether a kernel's operator computes what its reference computes, forward and backward.

Each function measures one property of a :class:`.subject.Subject` and returns checks, with the
measured number beside its limit. :mod:`.run` makes all of them. What each finds and what it
misses was measured with wrong kernels, see ``tests/defects/kernels``: no one of them is enough.
"""
