raise ImportError(f"{__name__}: ronde has the PyTorch interface only, byteps.torch [R723]")
