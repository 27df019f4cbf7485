"""NKI kernels, each beside its reference and its autograd registration.

A kernel is written once, in NKI. :mod:`.providers` says what executes it: the device, the
simulator of the ``nki`` package, or our :mod:`.interpreter`. Nothing here falls back to a
reference: a kernel that cannot be launched is an error.
"""
