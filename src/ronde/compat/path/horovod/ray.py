from horovod._torch_only import refuse

refuse(__name__)
