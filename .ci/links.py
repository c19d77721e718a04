"""Checks that relative links of Markdown files lead somewhere, and that every chapter is in the summary."""

import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")


def files(names):
    for name in names:
        path = pathlib.Path(name)
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


def broken(path):
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            continue
        if not (path.parent / target.split("#")[0]).exists():
            yield f"{path}: {target} does not exist"


def orphans(book):
    summary = book / "SUMMARY.md"
    if summary.exists():
        named = {(book / link).resolve() for link in LINK.findall(summary.read_text(encoding="utf-8"))}
        for chapter in sorted(book.rglob("*.md")):
            if chapter != summary and chapter.resolve() not in named:
                yield f"{chapter} is not in {summary}"


def main(names):
    found = [fault for path in files(names) for fault in broken(path)]
    found += [fault for name in names if pathlib.Path(name).is_dir() for fault in orphans(pathlib.Path(name))]
    print("\n".join(found) or "all links lead somewhere")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
