"""Elastic Horovod jobs, with ranks on a changing set of hosts: `ronde horovodrun --min-np`."""
