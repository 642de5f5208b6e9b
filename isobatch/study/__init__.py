"""Studies: arms x environments x seeds at one data budget, run, tested and reported."""
