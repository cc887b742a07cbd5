"""Views of a run for people: in the terminal, as page, as timeline."""
