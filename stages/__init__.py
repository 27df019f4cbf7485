"""The stages, one module each, in gate order."""
