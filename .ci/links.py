"""Checks that relative links of Markdown files lead to files and headings, and that every chapter is in the summary."""

import functools
import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*$")


def files(names):
    for name in names:
        path = pathlib.Path(name)
        yield from sorted(path.rglob("*.md")) if path.is_dir() else [path]


@functools.cache
def anchors(path):
    """The anchors of a page's headings, as GitHub and mdbook make them: without marks, blanks as hyphens."""
    found, fenced = [], False
    for line in path.read_text(encoding="utf-8").splitlines():
        fenced ^= line.lstrip().startswith("```")
        heading = HEADING.match(line)
        if heading and not fenced and (named := re.search(r"\{#([\w-]+)\}$", heading[1])):
            found.append(named[1])
        elif heading and not fenced:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            anchor = "".join(c for c in text if c.isalnum() or c in " -_").replace(" ", "-")
            # A heading that is there again has a number.
            count = sum(a == anchor or re.fullmatch(re.escape(anchor) + r"-\d+", a) is not None for a in found)
            found.append(f"{anchor}-{count}" if count else anchor)
    return found


def broken(path):
    for target in LINK.findall(path.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        page = path.parent / file if file else path
        if not page.exists():
            yield f"{path}: {target} does not exist"
        elif anchor and page.suffix == ".md" and anchor not in anchors(page.resolve()):
            yield f"{path}: {target} is no heading of that page"


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
