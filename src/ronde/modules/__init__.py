"""Calls of modules, on this rank's rows or in parts."""
