"""``nki.language``, as the product's interpreter has it."""

from trn_validate.kernels.interpreter.language import *  # noqa: F403
