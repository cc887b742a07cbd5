"""`ronde bench chaos`: real runs with a fault put into one rank, and whether the explanation names it.

A row of `faults.py` is a case. `running.py` runs one, `report.py` holds what was found, `table.py` prints it.
"""
