def refuse(name):
    raise ImportError(f"{name}: ronde has the PyTorch interface only, horovod.torch")
