raise ImportError("horovod.keras: ronde has the PyTorch interface only, horovod.torch")
