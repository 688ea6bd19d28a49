# SPDX-License-Identifier: Apache-2.0
"""The search of a built site works in pages that are opened as files, without a network.

    site_search.py FOLDER
"""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))
from browser import Browser, find_browser  # noqa: E402

SITE = pathlib.Path(sys.argv[1]).resolve()
PAGES = ("index.html", "docs/start/hpc.html")  # in folders of different depth


def main():
    program = find_browser()
    if program is None:
        print("no Chromium: the search is not tried")
        return
    with Browser(program) as browser:
        browser.call("Network.enable")
        browser.call("Network.setBlockedURLs", {"urls": ["http://*", "https://*"]})
        for name in PAGES:
            browser.open((SITE / name).as_uri())
            browser.await_true("document.readyState === 'complete' && document.querySelector('[data-md-component=search-query]')")
            browser.evaluate("""(() => {
                const query = document.querySelector("[data-md-component=search-query]");
                query.focus();
                query.value = "requeue";
                query.dispatchEvent(new KeyboardEvent("keyup", { key: "e" }));
                query.dispatchEvent(new Event("input"));
            })()""")
            browser.await_true("document.querySelectorAll('.md-search-result__item a').length > 0")
            links = browser.evaluate("[...document.querySelectorAll('.md-search-result__item a')].map((link) => link.pathname)")
            assert any(link.endswith("/docs/start/hpc.html") for link in links), links
        assert not browser.errors, browser.errors
    print(f"the search finds a word in {len(PAGES)} pages that are opened as files")


if __name__ == "__main__":
    main()
