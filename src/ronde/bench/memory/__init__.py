"""Memory of each rank under each plan, beside the formula."""
