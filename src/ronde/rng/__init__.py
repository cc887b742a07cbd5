"""Random draws, equal to the single-device ones: each rank takes its rows."""
