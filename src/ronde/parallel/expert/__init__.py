"""Expert parallelism: calls of mixtures with experts on several ranks."""
