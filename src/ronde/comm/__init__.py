"""Move bytes: the ranks' private process groups and the collectives on them."""
