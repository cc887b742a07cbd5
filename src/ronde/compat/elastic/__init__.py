"""Jobs written for Horovod whose hosts come and go while ranks go on: `ronde horovodrun --min-np`."""
