"""Parts of a plan that work on models: one final class for each, in the order in which a session has them."""
