"""The training with MXNet's Gluon: one process, or workers and servers of `dist_sync`."""

from __future__ import annotations

import os

import models
import mxnet as mx  # pyright: ignore[reportMissingImports] - of another environment
from loop import Engine, run
from mxnet import autograd, gluon  # pyright: ignore[reportMissingImports]


class Operations:
    """Operations on arrays and on symbols, of which Gluon makes a graph."""

    def __init__(self, F, sizes):
        self.F, self.sizes = F, sizes

    def relu(self, x):
        return self.F.relu(x)

    def tanh(self, x):
        return self.F.tanh(x)

    def conv(self, x, kernel, stride, padding):
        # A symbol does not know its shape: a name has the filters.
        filters, _, height, width = kernel.of_shape
        return self.F.Convolution(
            x, kernel.value, kernel=(height, width), stride=(stride, stride), pad=(padding, padding),
            num_filter=filters, no_bias=True,
        )  # fmt: skip

    def batch_norm(self, x, weights, name):
        names = ("weight", "bias", "running_mean", "running_var")
        arrays = (weights[f"{name}.{each}"].value for each in names)
        return self.F.BatchNorm(
            x, *arrays, fix_gamma=False, eps=models.BATCH_NORM_EPS, momentum=1 - models.MOMENTUM
        )

    def max_pool(self, x):
        return self.F.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")

    def mean_of_pixels(self, x):
        return self.F.mean(x, axis=(2, 3))

    def linear(self, x, kernel, bias):
        outputs = kernel.of_shape[0]
        return self.F.FullyConnected(x, kernel.value, bias.value, num_hidden=outputs, flatten=False)

    tied = linear

    def embedding(self, table, rows):
        count, width = table.of_shape
        return self.F.Embedding(rows, table.value, input_dim=count, output_dim=width)

    def with_places(self, x, positions, segments):
        halves = self.F.repeat(segments.value, repeats=self.sizes["length"] // 2, axis=0)
        return self.F.broadcast_add(x, self.F.expand_dims(positions.value + halves, 0))

    def layer_norm(self, x, scale, offset):
        return self.F.LayerNorm(x, scale.value, offset.value, eps=models.LAYER_NORM_EPS)

    def gelu(self, x):
        return self.F.LeakyReLU(x, act_type="gelu")

    def attention(self, mixed, heads):
        F, length, width = self.F, self.sizes["length"], self.sizes["width"]
        size = width // heads
        # (3, rows * heads, length, size)
        parts = F.transpose(F.reshape(mixed, (-1, length, 3, heads, size)), (2, 0, 3, 1, 4))
        queries, keys, values = F.split(F.reshape(parts, (3, -1, length, size)), 3, axis=0, squeeze_axis=True)
        scores = F.softmax(F.batch_dot(queries * size**-0.5, keys, transpose_b=True))
        found = F.reshape(F.batch_dot(scores, values), (-1, heads, length, size))
        return F.reshape(F.transpose(found, (0, 2, 1, 3)), (-1, length, width))

    def first_word(self, x):
        return self.F.reshape(self.F.slice_axis(x, axis=1, begin=0, end=1), (-1, self.sizes["width"]))

    def at(self, x, places):
        found = [self.F.slice_axis(x, axis=1, begin=place, end=place + 1) for place in places]
        return self.F.concat(*found, dim=1)

    def column(self, targets, number):
        return self.F.reshape(self.F.slice_axis(targets, axis=1, begin=number, end=None), (-1,))

    def all_but_last(self, targets):
        return self.F.slice_axis(targets, axis=1, begin=0, end=-1)

    def cross_entropy(self, logits, targets):
        return -self.F.mean(self.F.pick(self.F.log_softmax(logits, axis=-1), targets, axis=-1))


class Weight:
    """A parameter's array or symbol, and its shape."""

    def __init__(self, value, of_shape):
        self.value, self.of_shape = value, of_shape


class Net(gluon.HybridBlock):
    """The loss of a batch."""

    def __init__(self, case, weights):
        super().__init__(prefix="")
        self.case, self.shapes = case, {}
        for name, value in weights.items():
            if name.endswith("num_batches_tracked"):
                continue
            self.shapes[name] = value.shape
            trained = not name.endswith(("running_mean", "running_var"))
            parameter = self.params.get(
                name.replace(".", "_"), shape=value.shape, grad_req="write" if trained else "null"
            )
            setattr(self, name.replace(".", "_"), parameter)
            parameter.initialize(init=mx.init.Zero())
            parameter.set_data(mx.nd.array(value))

    def hybrid_forward(self, F, inputs, targets, **parameters):
        weights = {
            name: Weight(parameters[name.replace(".", "_")], shape) for name, shape in self.shapes.items()
        }
        return models.loss(Operations(F, self.case["sizes"]), weights, inputs, targets, self.case)


class Mxnet(Engine):
    version = mx.__version__

    def __init__(self, case, arrays):
        store = mx.kv.create("dist_sync") if self.ranks > 1 else None
        super().__init__(case, arrays)
        if store is not None:
            self.rank = store.rank
        self.net = Net(case, self.weights)
        del self.weights
        self.net.hybridize(static_alloc=True, static_shape=True)
        settings = {"learning_rate": case["learning_rate"]}
        settings.update({"epsilon": 1e-8} if case["optimizer"] == "adam" else {"momentum": 0.9})
        self.trainer = gluon.Trainer(self.net.collect_params(), case["optimizer"], settings, kvstore=store)

    def step(self, inputs, targets):
        inputs, targets = mx.nd.array(inputs), mx.nd.array(targets)
        with autograd.record():
            loss = self.net(inputs, targets)
        loss.backward()
        # The store adds the gradients of the workers.
        self.trainer.step(self.ranks)
        found = loss.asscalar()
        mx.nd.waitall()
        return found


if __name__ == "__main__":
    if os.environ.get("DMLC_ROLE", "worker") == "worker":
        # Servers and the scheduler work, and end, while MXNet is imported.
        run(Mxnet)
