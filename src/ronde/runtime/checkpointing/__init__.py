"""`ronde run --checkpoint`: scripts are recorded, saved, and replayed on resumption."""
