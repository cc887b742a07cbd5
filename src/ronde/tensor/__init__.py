"""A tensor that is whole to the script and rows on the rank: layout, edges, views, rules."""
