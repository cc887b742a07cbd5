"""How fast ronde is, against what a user would write by hand: workloads, runner, statistics, report."""
