#!/usr/bin/env python3
"""Adds up what ctest ran: summary.py JUNIT.xml

A test that runs many cases says so in its output ("12 passed, 0 failed, 1 skipped", the closing line of Catch2, "3 of 4 traces exact"); others count one.
Names what was skipped and what failed; the last line is "N passed, N failed, N skipped". Exits 1 where something failed or nothing ran.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
TRACES = re.compile(r"^(\d+) of (\d+) traces exact", re.M)
CATCH_GOOD = re.compile(r"^All tests passed \(.* in (\d+) test cases?\)", re.M)
CATCH_BAD = re.compile(r"^test cases: +(\d+) \|(.*)$", re.M)


def counts(output, status):
    """(passed, failed, skipped) of one entry of ctest; status is its own verdict."""
    if status == "notrun":
        return 0, 0, 1
    result = None
    if found := SUMMARY.findall(output):
        result = [int(n) for n in found[-1]]
    elif found := TRACES.findall(output):
        result = [int(found[-1][0]), int(found[-1][1]) - int(found[-1][0]), 0]
    elif found := CATCH_GOOD.findall(output):
        result = [int(found[-1]), 0, 0]
    elif found := CATCH_BAD.findall(output):
        failed = re.search(r"(\d+) failed(?! as expected)", found[-1][1])
        failed = int(failed[1]) if failed else 0
        result = [int(found[-1][0]) - failed, failed, 0]
    if result is None:
        return (1, 0, 0) if status == "run" else (0, 1, 0)
    if status == "fail":
        result[1] = max(result[1], 1)
    return tuple(result)


def main(path):
    total = [0, 0, 0]
    failed, skipped = [], []
    try:
        suite = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        print(f"no results of ctest: {error}\n0 passed, 1 failed, 0 skipped")
        return 1
    for case in suite.iter("testcase"):
        output = case.findtext("system-out") or ""
        part = counts(output, case.get("status"))
        total = [a + b for a, b in zip(total, part)]
        if part[1]:
            failed.append(case.get("name"))
        if part[2]:
            reasons = re.findall(r"^skipped: (.*)$", output, re.M)
            skipped.append(case.get("name") + (": " + "; ".join(dict.fromkeys(reasons)) if reasons else ""))
    for line in skipped:
        print(f"skipped in {line}")
    for name in failed:
        print(f"failed: {name}")
    print("{} passed, {} failed, {} skipped".format(*total))
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
