"""Make the pictures of docs/gallery.md: small runs, their pages, and screenshots by Chromium.

In:      the standard library's own source files; a Chromium or Chrome on the PATH
Out:     docs/pictures/gallery-*.png

    make setup && .venv/bin/python tools/gallery.py      (a few minutes on two cores)
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import lowtide

PICTURES = Path(__file__).parent.parent / "docs" / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
STEPS = 200
_SHAPE = {"num_layers": 2, "width": 64, "num_heads": 2, "seq_len": 64, "batch_size": 8}
# Name of the picture, page, width and height, dark or not.
SHOTS = (
    ("run", "run", (1100, 1000), False),
    ("run-dark", "run", (1100, 700), True),
    ("runs", "runs", (1100, 1480), False),
    ("runs-phone", "runs", (400, 800), True),
    ("dataset", "dataset", (1100, 900), False),
    ("datasets", "datasets", (1100, 1100), False),
    ("tokenizer", "tokenizer", (1100, 1000), False),
)


def main() -> int:
    """Make everything in a temporary folder, and keep the pictures."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        print("error: no Chromium or Chrome is on the PATH\n  next: apt install chromium")
        return 1
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        pages = make_pages()
        for picture, page, size, dark in SHOTS:
            path = PICTURES / f"gallery-{picture}.png"
            take_picture(browser, pages[page].resolve(), path, size=size, dark=dark)
            print(f"{path.name}: {path.stat().st_size // 1000} kB")
    return 0


def make_pages() -> dict[str, Path]:
    """Prepare, train and report in this folder; return the pages by name."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = {"code": sorted(library.glob("*.py")), "tools": sorted(library.glob("*/[a-m]*.py"))}
    texts: dict[str, list[Path]] = {}
    for name, files in found.items():  # copies: pages show file names, not this machine's folders
        Path("text", name).mkdir(parents=True)
        files = [path for path in files if "site-packages" not in str(path)][:170]
        texts[name] = [Path("text", name, f"{i}-{path.name}") for i, path in enumerate(files)]
        for path, copy in zip(files, texts[name], strict=True):
            shutil.copyfile(path, copy)
    folder = Path()
    lowtide.train_tokenizer(
        input=tuple(map(str, texts["code"])),
        vocab_size=2000,
        out_dir=folder / "python",
        progress=False,
    )
    for name, files in texts.items():
        lowtide.prepare_dataset(
            input_files=tuple(map(str, files)),
            tokenization=str(folder / "python"),
            out_dir=folder / name,
            progress=False,
        )
    for name, rate in (("slow", 3e-4), ("middle", 2e-3), ("fast", 1e-2)):
        lowtide.train(
            dataset_dir=folder / "code",
            eval_dataset_dir=(f"tools={folder / 'tools'}",),
            checkpoints_dir=folder / "runs",
            model_name=name,
            learning_rate=rate,
            max_iters=STEPS,
            eval_interval=50,
            eval_iters=2,
            log_interval=2,
            progress=False,
            **_SHAPE,
        )
    targets = {
        "run": (folder / "runs" / "middle",),
        "runs": tuple(folder / "runs" / name for name in ("slow", "middle", "fast")),
        "dataset": (folder / "code",),
        "datasets": (folder / "code", folder / "tools"),
        "tokenizer": (folder / "python",),
    }
    return {
        name: lowtide.report(
            target=tuple(map(str, paths)), out=folder / f"{name}.html", progress=False
        ).path
        for name, paths in targets.items()
    }


def take_picture(
    browser: str, page: Path, picture: Path, *, size: tuple[int, int], dark: bool
) -> None:
    """Take a screenshot of a page with the browser, in this size in pixels."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *scheme,
            f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}", page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
