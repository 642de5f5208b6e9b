"""Isobatch beside other libraries: the same training, by turns, each in its own Python."""
