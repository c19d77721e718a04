#!/usr/bin/env python3
"""Lists comment lines over 100 columns and lines of Markdown over 120; exits with 1 if there are any.

    .ci/wrap.py                          every file of the repository
    .ci/wrap.py --rust, --markdown       those of one kind; the third is --hash: TOML, Python, shell
    .ci/wrap.py FILE...                  these files

Exempt are what cannot wrap: rows of tables, headings, fenced blocks, and lines that are one word behind their indentation and
marker, such as a long link.
"""

import pathlib
import re
import subprocess
import sys

COMMENT, MARKDOWN = 100, 120
SLASHES = re.compile(r"^\s*//[/!]?\s?(.*)$")
HASH = re.compile(r"^\s*#\s?(.*)$")
MARKER = re.compile(r"^\s*(?:[-*>]|\d+\.)?\s*")


def over_long(path):
    """The numbers and lengths of the lines of a file that are too long."""
    markdown = path.suffix == ".md"
    limit, fenced = (MARKDOWN if markdown else COMMENT), False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line
        if not markdown:
            comment = (SLASHES if path.suffix == ".rs" else HASH).match(line)
            if not comment:
                fenced = False
                continue
            text = comment[1]
        if text.lstrip().startswith("```"):
            fenced = not fenced
        exempt = text.lstrip().startswith(("|", "#")) or " " not in MARKER.sub("", text, count=1)
        if len(line) > limit and not exempt and not (markdown and fenced):
            yield number, len(line)


KINDS = {"--rust": ["*.rs"], "--markdown": ["*.md"], "--hash": ["*.toml", "*.py", "*.supp", ".ci/run", ".ci/full", ".ci/stages.sh", ".ci/soak"]}


def main(names):
    if not names or names[0] in KINDS:
        kinds = KINDS[names[0]] if names else sum(KINDS.values(), [])
        tracked = subprocess.run(["git", "ls-files", *kinds], capture_output=True, text=True, check=True)
        names = tracked.stdout.splitlines()
    found = {name: list(over_long(pathlib.Path(name))) for name in names}
    for name, lines in found.items():
        for number, length in lines:
            print(f"{name}:{number}: {length} columns")
    print(f"{sum(map(len, found.values()))} lines are too long", file=sys.stderr)
    return any(found.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
