"""Modules that launchers share."""
