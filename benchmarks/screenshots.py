"""Take pictures of HTML pages (of runs, studies, probes), as a phone and a screen show them.

python -m benchmarks.screenshots runs/a/report.html --out pictures
python -m benchmarks.screenshots studies/n-vs-t/report.html --widths 1400 --schemes light --top 900
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.browser import CHROMIUM, Browser

SCHEMES = ["light", "dark"]


def main() -> None:
    """Write PAGE-WIDTH-SCHEME.png for each page, and say what its browser complained of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    parser.add_argument("--widths", nargs="+", type=int, default=[400, 1400], metavar="PIXELS")
    parser.add_argument(
        "--schemes", nargs="+", choices=["light", "dark"], default=["light", "dark"]
    )
    parser.add_argument("--top", type=int, metavar="PIXELS", help="the top of the page only")
    args = parser.parse_args()
    if CHROMIUM is None:
        parser.error("no chromium found")
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(Path(folder))
        try:
            for page in args.pages:
                for picture in pictures(browser, page, args):
                    print(picture)
            for complaint in browser.complaints:
                print(complaint)
        finally:
            browser.close()


def pictures(browser: Browser, page: Path, args: argparse.Namespace):
    """Take a page's pictures, one after the other."""
    name = page.stem if page.stem != "report" else page.resolve().parent.name
    for width in args.widths:
        browser.resize(width)
        browser.open(page.resolve())
        for scheme in args.schemes:
            browser.prefer(scheme)
            path = args.out / f"{name}-{width}-{scheme}.png"
            path.write_bytes(browser.picture(args.top))
            yield path


if __name__ == "__main__":
    main()
