"""Server of the live page: `ronde ui`."""
