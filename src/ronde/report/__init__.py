"""What a run was, for people to look at: a view in the terminal, a page, a timeline."""
