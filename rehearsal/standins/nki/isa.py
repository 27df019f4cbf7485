"""``nki.isa``, as the product's interpreter has it."""

from trn_validate.kernels.interpreter.isa import *  # noqa: F403
