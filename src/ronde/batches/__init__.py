"""What a DataLoader gives, cut: each rank loads its rows."""
