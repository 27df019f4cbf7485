"""Seeded defects: each stands for a class of bug, and each is stopped by the check meant for it."""
