"""Scenarios: a store, weir, a load and what must come of it, in one file.

    parts.py       what a scenario consists of
    file.py        reads and checks a scenario file
    expression.py  acceptance lines: what they say
    verdict.py     whether they hold
    sections.py    where something stands in it
    homes.py       keys that live on a store of one's choice
    catalogue.py   everything that a line may ask for
    measured.py    what a run has shown, looked up by line
    servers.py     the processes of a run
    clock.py       what happens beside the load, at its time
    stage.py       one run: servers up, load, events in time, servers down
    report.py      the table, as text, Markdown and JSON
    ablation.py    scenarios with each layer switched off: table, findings, picture
"""
