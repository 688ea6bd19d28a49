# SPDX-License-Identifier: Apache-2.0
"""The status page in a headless Chromium, over simulated jobs whose answers have the form of docs/api.schema.json.

    status_page_test.py SOURCE_FOLDER [FOLDER_FOR_SCREENSHOTS]

Exits with 77 if no Chromium is installed."""
import sys
from pathlib import Path

SOURCE = Path(sys.argv[1]).absolute()
SHOTS = Path(sys.argv[2]) if len(sys.argv) > 2 else None
sys.path.insert(0, str(SOURCE / "test/support"))
import simulated_api  # noqa: E402
from browser import Browser, find_browser  # noqa: E402
from json_schema import Schema  # noqa: E402

PAGE = SOURCE / "rendezvous/src/page/status.html"
NUM_RANKS = "document.querySelector('#ranks table').getAttribute('aria-rowcount')"
RANKS = "[...document.querySelectorAll('#ranks tbody tr[aria-rowindex]')].map((row) => parseInt(row.cells[0].innerText))"


def check_answers():
    """The simulated answers are those of the API."""
    api = Schema(SOURCE / "docs/api.schema.json")
    report = Schema(SOURCE / "docs/report.schema.json")
    kinds = {"": "job", "/ranks": "ranks", "/rounds": "rounds", "/events": "events", "/history": "history"}
    assert api.faults(simulated_api.answer("jobs", {}), {"$ref": "#/$defs/jobs"}) == []
    for name, job in simulated_api.JOBS.items():
        for path, kind in kinds.items():
            value = simulated_api.answer(f"jobs/{simulated_api.urllib.parse.quote(name, safe='')}{path}", {})
            assert api.faults(value, {"$ref": f"#/$defs/{kind}"}) == [], (name, kind)
        assert job["report"] is None or report.faults(job["report"]) == []


def check_list(browser, url):
    browser.open(url)
    browser.await_true("document.querySelectorAll('#jobs tbody tr').length === 6")
    text = browser.text()
    for word in ("running", "large", "restarting", "failed", "4,096", "512 of 512"):
        assert word in text, (word, text)
    browser.await_true("document.getElementById('live').innerText === 'live'")
    browser.evaluate("document.querySelector('input').focus()")
    browser.call("Input.insertText", {"text": "restart"})
    browser.await_true("document.querySelectorAll('#jobs tbody tr').length === 1")


def check_keyboard(browser, url):
    """Tab reaches every link, field and table; Enter follows a link and sorts; keys scroll the ranks."""
    browser.open(url)
    browser.await_true("document.querySelectorAll('#jobs tbody tr').length === 6")
    reached = []
    while not reached or reached[-1] != "large":
        browser.press("Tab")
        reached.append(browser.evaluate("document.activeElement.innerText || document.activeElement.placeholder"))
        assert len(reached) < 10, reached
    assert reached == ["Skip to the content", "acclaunch", "Filter jobs", "running", "large"], reached
    browser.press("Enter")
    browser.await_true(f"location.hash === '#/job/large' && {NUM_RANKS} === '4096'")
    # Only the rows in sight are in the document.
    assert browser.evaluate(f"{RANKS}.length") < 60
    assert browser.evaluate(f"{RANKS}[0]") == 0
    browser.evaluate("document.getElementById('ranks').focus()")
    browser.press("End")
    browser.await_true(f"{RANKS}.includes(4095)")
    browser.evaluate("document.querySelector('[data-column=\"3\"]').focus()")  # by step: the slowest rank first
    browser.press("Enter")
    browser.evaluate("document.getElementById('ranks').scrollTop = 0")
    browser.await_true(f"{RANKS}[0] === 2049")
    assert browser.evaluate("document.activeElement.dataset.column") == "3"
    browser.evaluate("document.querySelector('#content input').focus()")
    browser.call("Input.insertText", {"text": "node511"})
    browser.await_true(f"{NUM_RANKS} === '8' && {RANKS}.length === 8")


def check_job(browser, url, name, words, **size):
    browser.open(f"{url}/#/job/{name}", **size)
    browser.await_true(f"document.querySelector('#ranks') && {NUM_RANKS} >= 2 && document.querySelectorAll('ol.events li').length === 3")
    browser.await_true("document.querySelectorAll('.spark path').length === 4")
    text = browser.text()
    for word in words:
        assert word in text, (name, word, text)
    width = browser.evaluate("document.documentElement.scrollWidth")
    assert width <= size.get("width", 1280), (name, width)  # nothing sticks out at the side
    if SHOTS:
        browser.screenshot(SHOTS / f"{name}_{size.get('width', 1280)}{'_dark' if size.get('dark') else ''}.png")


def check_rank(browser, url):
    """A click on a rank shows everything that is known of it; the same key closes it. The pointer reads a value off a chart."""
    browser.open(f"{url}/#/job/running")
    browser.await_true(f"document.querySelector('#ranks') && {NUM_RANKS} >= 2 && document.querySelectorAll('.spark path').length === 4")
    browser.await_true("document.querySelector('.hangs').innerText.startsWith('ranks 0, 2–3: all_gather 7 of unit transformer.h.3, forward, waiting, for 1')")
    browser.evaluate("document.querySelector('tr[data-rank=\"3\"] td:nth-child(3)').click()")
    browser.await_true("document.querySelector('#rank')")
    text = browser.evaluate("document.querySelector('#rank').innerText")
    for word in ("Rank 3", "node1", "4003", "Waits in a collective for 1", "all_gather 7 of unit transformer.h.3", "accuracy\n0.61",
                 "parameters\n4 GiB", "Learning rate\n3.00e-4", "Loss\nnot finite", "\nrunning"):
        assert word in text, (word, text)
    browser.evaluate("document.querySelector('tr[data-rank=\"1\"] button').focus()")
    browser.press("Enter")
    browser.await_true("document.querySelector('#rank').innerText.includes('Last collective')")
    browser.evaluate("document.querySelector('#rank .close').click()")
    browser.await_true("!document.querySelector('#rank')")
    box = browser.evaluate("(() => { const box = document.querySelector('[data-chart=loss] svg').getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })()")
    browser.call("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": box[0] + box[2] / 2, "y": box[1] + box[3] / 2})
    browser.await_true("/^\\d+\\.\\d+ at \\d\\d:\\d\\d:\\d\\d, step [\\d,]+$/.test(document.querySelector('.tile.wide small').innerText)")
    browser.await_true("document.querySelectorAll('line.cursor').length === 1")
    assert browser.evaluate("[...document.querySelectorAll('[data-chart=loss] .y span, [data-chart=loss] .x span')].every((each) => each.innerText !== '')")


def contrast(browser):
    """The lowest contrast of text and what is behind it, of all states' badges and of soft text (WCAG 2, 1.4.3)."""
    return browser.evaluate("""(() => {
      const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
      const light = (colour) => { const [r, g, b] = colour.match(/[\\d.]+/g).map(Number); return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
      const behind = (element) => { const own = getComputedStyle(element).backgroundColor; return own === 'rgba(0, 0, 0, 0)' ? behind(element.parentElement) : own; };
      return Math.min(...[...document.querySelectorAll('.state, .soft, .bad, a, h2, th, td, small, dt, dd')].map((element) => {
        const [high, low] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
        return (high + 0.05) / (low + 0.05); }));
    })()""")


def check_jobs(browser, url):
    check_job(browser, url, "running", ["▶\nrunning", "0 of 3", "4 of 4 ranks report", "node1", "not finite", "1 slowest", "round formed"])
    check_job(browser, url, "stopped", ["■\nstopped", "stopped by SIGINT", "Exit status 130"])
    check_job(browser, url, "restarting", ["↻\nrestarting", "1 of 3", "1 more machine", "✕\nlost", "machine 1 (node1) is lost"])
    failed = ["✕\nfailed", "rank 2: exited with code 1", "RuntimeError: mat1 and mat2", "step 411, loss 2.31", "ranks 0–1, 3: ended by acclaunch",
              "rank 2 did not enter reduce_scatter 41 of unit transformer.h.3, backward", "/scratch/logs/run_1/attempt_0"]
    for dark in (False, True):
        check_job(browser, url, "failed", failed, dark=dark)
        browser.await_true("[...document.querySelectorAll('#ranks tr[data-rank]')].map((row) => row.cells[0].innerText + row.cells[1].innerText)"
                           ".join().replace(/\\s/g, '') === '0■stopped,1slowest■stopped,2firstfailure✕failed,3■stopped'")
        assert contrast(browser) >= 4.5, (dark, contrast(browser))
        check_job(browser, url, "failed", failed, width=390, height=800, dark=dark)


def check_markup(browser, url):
    """Text of programs and machines is shown as it is, and never becomes an element."""
    name = simulated_api.urllib.parse.quote(simulated_api.MARKUP, safe="")
    check_job(browser, url, name, [simulated_api.MARKUP])
    browser.evaluate("document.querySelector('tr[data-rank]').click()")
    browser.await_true(f"document.querySelector('#rank pre').innerText.includes({simulated_api.json.dumps(simulated_api.MARKUP)})")
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert "attacked" not in browser.evaluate("document.title").split("<")[0]


def check_unknown_and_lost(browser, url):
    browser.open(f"{url}/#/job/none")
    browser.await_true("document.body.innerText.includes('does not know this job')")
    browser.await_true("document.getElementById('live').innerText === 'live'")
    simulated_api.stop()
    browser.await_true("document.getElementById('live').innerText.startsWith('no connection')")


def main():
    check_answers()
    program = find_browser()
    if program is None:
        print("skipped: no Chromium is installed")
        sys.exit(77)
    url = f"http://127.0.0.1:{simulated_api.serve(PAGE)}"
    with Browser(program) as browser:
        check_list(browser, url)
        check_keyboard(browser, url)
        check_rank(browser, url)
        check_jobs(browser, url)
        check_markup(browser, url)
        # A 404 for a job that is not known is an answer, no fault of the page.
        faults = [error for error in browser.errors if "404" not in str(error)]
        assert faults == [], faults
        check_unknown_and_lost(browser, url)


main()
