raise ImportError("horovod.tensorflow: ronde has the PyTorch interface only, horovod.torch")
