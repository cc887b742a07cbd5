raise ImportError("horovod.mxnet: ronde has the PyTorch interface only, horovod.torch")
