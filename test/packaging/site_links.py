# SPDX-License-Identifier: Apache-2.0
"""Every link of a built site leads to a file in it, and to an anchor in that file. Pages load nothing from elsewhere.

    site_links.py FOLDER
"""
import functools
import pathlib
import sys
import urllib.parse
from html.parser import HTMLParser

SITE = pathlib.Path(sys.argv[1]).resolve()


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], {"", "__top"}
        self.loaded = []  # scripts, pictures and styles
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors.update(values[name] for name in ("id", "name") if values.get(name))
        self.links += [values[name] for name in ("href", "src") if values.get(name)]
        self.loaded += [values["src"]] if values.get("src") else []
        self.loaded += [values["href"]] if tag == "link" and "stylesheet" in values.get("rel", "") else []


@functools.cache
def page(path):
    return Page(path)


def main():
    wrong = set()
    count = 0
    for file in sorted(SITE.rglob("*.html")):
        if file.name == "404.html":  # its links are absolute
            continue
        wrong.update(f"{file.relative_to(SITE)}: loads {link}" for link in page(file).loaded
                     if urllib.parse.urlsplit(link).netloc)
        for link in page(file).links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            count += 1
            if not target.exists():
                wrong.add(f"{file.relative_to(SITE)}: no file for {link}")
            elif parts.fragment and target.suffix == ".html" and \
                    urllib.parse.unquote(parts.fragment) not in page(target).anchors:
                wrong.add(f"{file.relative_to(SITE)}: no anchor for {link}")
    for each in sorted(wrong):
        print(each)
    print(f"{len(list(SITE.rglob('*.html')))} pages, {count} links, {len(wrong)} of them wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
