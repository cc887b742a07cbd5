"""BytePS's names, for scripts that `ronde bpslaunch` starts."""

__version__ = "0.2.5+ronde"
