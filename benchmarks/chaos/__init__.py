"""Faults in single ranks of real runs, and whether the explanation names them.

A row of `faults.py` is a case. `running.py` runs one, `report.py` holds the results and prints them.
"""
