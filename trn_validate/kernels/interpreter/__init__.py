"""A NumPy interpreter of the part of NKI that our kernels use, and of no more.

It has the names and signatures of NKI 0.6, written from its public documentation:
github.com/aws-neuron/aws-neuron-sdk, folder ``nki/``, SDK 2.32. A docstring here that says
"Source:" names a file in that folder and, after a comma, the heading or name in it. What the
documentation does not say and we assume is marked with "Guess:".

It computes values and refuses what breaks a documented limit. It knows nothing of time, of
engines that run at once, or of what the NKI compiler accepts as Python. So a kernel that passes
here may still fail on a device.
"""

from trn_validate.kernels.interpreter import isa, language
from trn_validate.kernels.interpreter.launch import Host, Kernel, jit

__all__ = ["Host", "Kernel", "isa", "jit", "language"]
