"""The noise of a gradient: its variance and where it comes from, |G|^2, the noise scale.

The formulas stand once, in `estimators`; training uses them through `online`, the laboratory
through `variance` and `scale`.
"""
