#!/usr/bin/env python3
"""Checks by contrib/tailwater.schema.json the configurations of IOKernels that the tree has: files, and blocks of pages.

A block of TOML is one if all of its first keys are keys of the schema; the others are of programs and of cargo. Needs
Debian's python3-jsonschema and Python 3.11 or later, and is skipped without.
"""

import json
import pathlib
import re
import sys

try:
    import jsonschema
    import tomllib
except ImportError as error:
    print(f"skipped: {error} (apt install python3-jsonschema; tomllib is part of Python from 3.11 on)")
    sys.exit(0)

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = ["contrib/tailwater.toml", "tests/busy.toml", "tests/dedicated.toml"]
# What a schema must refuse.
WRONG = ["managed-core = 1", "mtu = 1", "[ports]\nxpd = 'eth1'", "[[grant]]\nprograms = 1", "priority = 'sesion'"]
BLOCK = re.compile(r"^```toml[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def configurations(keys):
    """Each configuration, with its place."""
    for name in FILES:
        yield name, tomllib.loads((ROOT / name).read_text())
    for page in sorted((ROOT / "docs/src").rglob("*.md")):
        text = page.read_text()
        for block in BLOCK.finditer(text):
            config = tomllib.loads(block[1])
            if config and set(config) <= keys:
                line = text.count("\n", 0, block.start()) + 1
                yield f"{page.relative_to(ROOT)}:{line}", config


def main():
    schema = json.loads((ROOT / "contrib/tailwater.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)
    checker = jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)
    wrong, blocks = 0, 0
    for place, config in configurations(set(schema["properties"])):
        blocks += place not in FILES
        for error in checker.iter_errors(config):
            wrong += 1
            print(f"{place}: {'.'.join(map(str, error.path))}: {error.message}")
    for text in WRONG:
        if checker.is_valid(tomllib.loads(text)):
            wrong += 1
            print(f"contrib/tailwater.schema.json permits {text!r}")
    if blocks < 5:
        wrong += 1
        print(f"only {blocks} blocks of the pages were taken for configurations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
