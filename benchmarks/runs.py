"""Runs that resume: a table of rows, each written when it is done."""

import csv
import os
import time

import torch

__all__ = ["read", "sweep", "write_table"]

MACHINE = "2 cores, x86_64, runs on one thread"


def read(path):
    """Rows of a table, as dicts; none if there is no file."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text().splitlines() if line[:1] != "#"]
    return list(csv.DictReader(lines))


def sweep(path, keys, runs, one_run, title, machine=MACHINE):
    """Make the rows of those runs, tuples, that are not in the table; yield each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    done = {tuple(row[key] for key in keys) for row in read(path)}
    for run in runs:
        if tuple(map(str, run)) in done:
            continue
        row = one_run(*run)
        before, today = read(path), time.strftime("%Y-%m-%d")
        fields = list(before[0] if before else row)
        also = {"date": today, "machine": machine}
        path.parent.mkdir(exist_ok=True)
        with path.open("a", newline="") as file:
            writer = csv.DictWriter(file, fields, lineterminator="\n")
            if not before:
                file.write(f"# {title}; begun {today}; {machine}\n")
                writer.writeheader()
            writer.writerow({k: v for k, v in also.items() if k in fields} | row)
        yield row


def write_table(path, table):
    """Write the rows as a table of a page."""
    rows = read(path)
    table.parent.mkdir(exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
