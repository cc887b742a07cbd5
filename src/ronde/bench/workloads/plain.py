"""A workload on one device, as a user writes it: `ronde run` runs this very file on its ranks."""

from training import Adapter, train

if __name__ == "__main__":
    train(Adapter)
