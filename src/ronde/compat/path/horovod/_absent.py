"""An import finder that refuses Horovod's missing modules by name."""

from __future__ import annotations

_FRAMEWORKS = ("_keras", "keras", "mxnet", "ray", "spark", "tensorflow")


class Absent:
    """The last finder on `sys.meta_path`: it is asked for modules that do not exist."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top != "horovod":
            return
        part = rest.partition(".")[0]
        if part in _FRAMEWORKS:
            raise ModuleNotFoundError(f"{name}: ronde has the PyTorch interface only, horovod.torch [R723]")
        if part == "runner":
            raise ModuleNotFoundError(
                f"{name}: ronde starts ranks by itself; call horovod.run(function, np=N), or start a script "
                "by ronde horovodrun -np N python SCRIPT [R723]"
            )
        raise ModuleNotFoundError(
            f"{name} is not in this version of ronde; it has what docs/guides/horovod.md names [R723]"
        )
