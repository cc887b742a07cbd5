"""Memory of each rank under each plan, beside what the formula says."""
