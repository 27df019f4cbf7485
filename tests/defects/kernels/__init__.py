"""Wrong kernels, each of which a named check has to find."""
