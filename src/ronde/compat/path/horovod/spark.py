raise ImportError("horovod.spark: ronde has the PyTorch interface only, horovod.torch")
