"""Tests that start real training."""
