"""gallery.py RUNS PICTURES: pictures of real runs in a real browser, for docs/gallery.md.

Trains what is not in the folder RUNS yet: the demo on two processes, and two trainings of which one has a
weight changed. Writes one PNG of few colours for each picture.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import time

from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / part) for part in ("browser", "python", "python/programs")]

from browser import Browser, Page  # noqa: E402

import launch  # noqa: E402

COLOURS = 224
SOUND, FAULT = "checked_clean", "checked_weight_bit_30"


def train(runs: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path, pathlib.Path]:
    demo = runs / "demo"
    if not demo.exists():
        script = ROOT / "examples" / "demo_ddp.py"
        subprocess.run(
            [sys.executable, script, "--out", demo], check=True, stdout=subprocess.DEVNULL
        )
    if not (runs / FAULT).exists():
        launch.run("diagnose_run.py", runs, SOUND, FAULT, ranks=2)
    return demo, runs / SOUND, runs / FAULT


def report(*runs: pathlib.Path) -> pathlib.Path:
    page = runs[0].parent / ("_".join(run.name for run in runs) + ".html")
    words = [launch.command_line(), "report", *runs, "-o", page, "--overwrite", "-q"]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True)
    if not page.exists():
        raise SystemExit(done.stderr)
    return page


def save(page: Page, file: pathlib.Path, to: str | None = None) -> None:
    """What stands in the window, from the element `to` on."""
    if to:
        page.evaluate(f"document.querySelector('{to}').scrollIntoView({{block: 'start'}})")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.picture(file)
    picture = Image.open(file).convert("RGB").quantize(COLOURS)
    picture.save(file, optimize=True)
    print(file, picture.size, file.stat().st_size)


def picture_of_live(browser: Browser, run: pathlib.Path, file: pathlib.Path) -> None:
    """The demo again, while it trains."""
    shutil.rmtree(run, ignore_errors=True)
    script = ROOT / "examples" / "demo_ddp.py"
    demo = subprocess.Popen([sys.executable, script, "--out", run], stdout=subprocess.DEVNULL)
    while not (run / "rank_00000").exists():
        if demo.poll() is not None:
            raise SystemExit("the demo has ended before it began")
        time.sleep(0.1)
    words = [launch.command_line(), "serve", str(run)]
    served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        page = browser.open(served.stdout.readline().strip(), size=(1280, 640))
        page.wait("live.state?.newest?.step > 60 && data.axis.length > 20", timeout=120)
        save(page, file)
    finally:
        served.terminate()
        served.wait()
        demo.wait()


def main(runs: pathlib.Path, pictures: pathlib.Path) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    demo, sound, fault = train(runs)
    browser = Browser()
    try:
        of_demo = report(demo)
        page = browser.open(of_demo, size=(1280, 800))
        save(page, pictures / "report.png")
        save(page, pictures / "maps.png", "#maps")
        save(page, pictures / "layers.png", "#layers")
        of_two = report(sound, fault)
        page = browser.open(of_two, size=(1280, 800))
        save(page, pictures / "two_runs.png")
        save(page, pictures / "two_maps.png", "#maps")
        save(
            browser.open(of_demo, dark=True, language="zh-CN", size=(1280, 800)),
            pictures / "dark.png",
        )
        picture_of_live(browser, runs / "live", pictures / "live.png")
    finally:
        browser.close()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
