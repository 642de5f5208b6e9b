"""A run: the loop that trains it, the directory that keeps it, the policy it leaves."""
