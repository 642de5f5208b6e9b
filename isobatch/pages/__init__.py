"""Pages and drawings: what figures share, and the shell of a one-file HTML page."""
