"""Algorithms: each a composition of the rooms above."""
