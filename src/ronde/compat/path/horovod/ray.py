raise ImportError("horovod.ray: ronde has the PyTorch interface only, horovod.torch")
