"""Draw what a terminal shows of a run: train for real, and save the view's last state as SVG.

python -m benchmarks.live_picture docs/results/live-view.svg
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console

import isobatch
from isobatch.run.live import LiveView


class Photographed(LiveView):
    """A view on no screen, of which a picture is taken when the run stops."""

    def __init__(self, file: str) -> None:
        super().__init__(Console(file=io.StringIO(), force_terminal=True, width=80))
        self._file = file

    def stop(self) -> None:
        """Draw the last state alone."""
        super().stop()
        picture = Console(record=True, width=80, file=io.StringIO(), force_terminal=True)
        picture.print(self._drawn())
        drawn = picture.export_svg(title="isobatch train CartPole-v1 --learning-rate 0.03")
        # Fonts of the reader's own instead of ones from elsewhere.
        Path(self._file).write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL))


def main() -> None:
    """Train CartPole-v1 with steps that are too large, watched by the live view."""
    with tempfile.TemporaryDirectory() as folder:
        isobatch.train(
            "CartPole-v1",
            total_timesteps=40_000,
            learning_rate=0.03,
            learning_rate_schedule="constant",
            out=Path(folder) / "cartpole",
            quiet=True,
            sinks=[Photographed(sys.argv[1])],
        )


if __name__ == "__main__":
    main()
