"""What a script finds around it, alike on all ranks: clock, seeds, signals, console, threads."""
