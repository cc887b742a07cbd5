"""Global tensors: the whole value to the script, this rank's rows underneath."""
