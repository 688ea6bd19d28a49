# SPDX-License-Identifier: Apache-2.0
"""The page of `acclaunch plot` in a headless Chromium: values under the pointer and by the arrow keys; texts on a phone.

    plot_page_test.py ACCLAUNCH SOURCE_FOLDER [FOLDER_FOR_SCREENSHOTS]

Exits with 77 if no Chromium is installed."""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, SOURCE = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
SHOTS = Path(sys.argv[3]) if len(sys.argv) > 3 else None
sys.path.insert(0, str(SOURCE / "test/support"))
from browser import Browser, find_browser  # noqa: E402

LEGEND = "[...document.querySelectorAll('section:first-of-type li output')].map((each) => each.textContent)"
# Labels of an axis that overlap, or that the page cuts off.
CRAMPED = """[...document.querySelectorAll('.plot')].flatMap((plot) => ['.x', '.y'].flatMap((axis) => {
  const boxes = [...plot.querySelectorAll(axis)].map((each) => each.getBoundingClientRect()).filter((box) => box.width > 0);
  return boxes.filter((a, i) => a.left < 0 || a.right > document.documentElement.clientWidth || boxes.some((b, j) => j > i &&
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)).map((box) => axis + ' ' + box.left);
}))"""


def write_metrics(folder):
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        lines = [json.dumps({"step": 1000 * step, "loss": factor * 100.0 / step, "tokens_per_s": 123456.7 * factor,
                             "memory_bytes": 1.2e9 + 1e5 * step, "lr": 3e-4 / step}) for step in range(1, 301)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def main():
    program = find_browser()
    if program is None:
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name, Browser(program) as browser:
        folder = Path(name)
        write_metrics(folder)
        subprocess.run([ACCLAUNCH, "plot", "a.jsonl", "b.jsonl", "c.jsonl", "-o", "page.html"], cwd=folder, check=True)
        for width in (1280, 360):
            browser.open((folder / "page.html").as_uri(), width=width)
            browser.await_true("document.readyState === 'complete' && document.querySelectorAll('.plot').length === 4")
            last = ["a.jsonl: 0.33333 at step 300000", "b.jsonl: 0.33333 at step 300000", "c.jsonl: 0.66667 at step 300000"]
            assert browser.evaluate(LEGEND) == last
            sizes = browser.evaluate("[...document.querySelectorAll('.plot span')].map((each) => parseFloat(getComputedStyle(each).fontSize))")
            assert min(sizes) >= 12, sizes
            assert browser.evaluate(CRAMPED) == [], browser.evaluate(CRAMPED)
            if SHOTS:
                browser.screenshot(SHOTS / f"plot-{width}.png")

            box = browser.evaluate("(() => { const b = document.querySelector('.plot').getBoundingClientRect(); return [b.left, b.top, b.width]; })()")
            x = box[0] + box[2] * (200 - 1) / (300 - 1)
            browser.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": box[1] + 20})
            browser.await_true(f"{LEGEND}[0] !== '{last[0]}'")
            step = int(browser.evaluate(LEGEND)[0].split()[-1])
            assert abs(step - 200000) <= 2000, step
            value = 1e5 / step
            assert browser.evaluate(LEGEND) == [f"a.jsonl: {value:.5g} at step {step}", f"b.jsonl: {value:.5g} at step {step}",
                                                f"c.jsonl: {2 * value:.5g} at step {step}"]
            browser.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 2, "y": 2})
            browser.await_true(f"{LEGEND}[0] === '{last[0]}'")
            browser.evaluate("document.querySelector('.plot').focus()")
            browser.press("ArrowRight")
            browser.await_true(f"{LEGEND}[2] === 'c.jsonl: 200 at step 1000'")
            browser.press("ArrowRight")
            browser.await_true(f"{LEGEND}[2] === 'c.jsonl: 100 at step 2000'")
        assert not browser.errors, browser.errors


if __name__ == "__main__":
    main()
