"""The draws of one device, of which each rank takes its rows."""
