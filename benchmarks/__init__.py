"""What was measured: programs that are no part of the package."""
