"""One file per clause of the law: pure functions from recorded runs to a verdict."""
