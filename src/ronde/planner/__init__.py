"""What fits, how fast, and which wall: a cost model, a simulator and a search over plans. No torch."""
