"""Launchers of functions on ranks."""

from ronde.compat.horovod.running import run
