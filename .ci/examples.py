#!/usr/bin/env python3
"""Lists the public types, traits and macros of a crate that have no doc example: examples.py FILE, where FILE is what
`cargo +nightly rustdoc -p CRATE -- -Z unstable-options --output-format json --document-hidden-items` wrote.

Follows re-exports from the crate's root, also out of hidden modules, but not into them. Leaves out trait
implementations, fields and variants. Exits with 1 if it lists anything. rustdoc's JSON is not stable: if the file cannot be
read and its format is none of FORMATS, says so and exits with 0.
"""
import json
import sys

# Values of `format_version` with which this program is known to work. A file of such a format that
# cannot be read is an error of this program.
FORMATS = {57}
DOCUMENTED = {"struct", "enum", "union", "trait", "macro"}


def main(path):
    with open(path) as file:
        crate = json.load(file)
    try:
        return list_items(crate)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        version = crate.get("format_version")
        if version in FORMATS:
            raise
        print(f"skipped: rustdoc's JSON has another format, {version} ({error!r})")
        return 0


def list_items(crate):
    items, seen, found = crate["index"], set(), []

    def visit(number, parent):
        item = items.get(str(number))
        if item is None or number in seen or item["crate_id"] != 0:
            return
        seen.add(number)
        ((kind, inner),) = item["inner"].items()
        name = f"{parent}::{item['name']}" if parent else item["name"]
        if kind in DOCUMENTED and "```" not in (item["docs"] or ""):
            span = item["span"]
            found.append(f"{span['filename']}:{span['begin'][0]}: {kind} {name} has no example")
        if kind == "module" and not is_hidden(item):
            for child in inner["items"]:
                visit(child, name)
        elif kind == "use":
            visit(inner["id"], parent)
        elif kind == "trait":
            for child in inner["items"]:
                visit(child, name)
        elif kind in ("struct", "enum", "union"):
            for number in inner["impls"]:
                implementation = items.get(str(number))
                if implementation and implementation["inner"]["impl"]["trait"] is None:
                    for child in implementation["inner"]["impl"]["items"]:
                        if items[str(child)]["visibility"] == "public" and not is_hidden(items[str(child)]):
                            visit(child, name)

    def is_hidden(item):
        return any("hidden" in str(attribute) for attribute in item["attrs"])

    visit(crate["root"], "")
    if not seen:
        raise ValueError("there is no root")
    print("\n".join(sorted(found) + [f"{len(seen)} items, {len(found)} without an example"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
