"""The training with PaddlePaddle: one process, or `paddle.DataParallel` over Gloo."""

from __future__ import annotations

import models
import paddle  # pyright: ignore[reportMissingImports] - of another environment
import paddle.nn.functional as F  # pyright: ignore[reportMissingImports]
from loop import Engine, run


class Operations:
    relu, tanh = staticmethod(F.relu), staticmethod(paddle.tanh)

    def conv(self, x, kernel, stride, padding):
        return F.conv2d(x, kernel, stride=stride, padding=padding)

    def batch_norm(self, x, weights, name):
        mean, variance, scale, offset = (
            weights[f"{name}.{each}"] for each in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(
            x, mean, variance, scale, offset, training=True, epsilon=models.BATCH_NORM_EPS,
            momentum=1 - models.MOMENTUM,
        )  # fmt: skip

    def max_pool(self, x):
        return F.max_pool2d(x, 3, 2, 1)

    def mean_of_pixels(self, x):
        return x.mean([2, 3])

    def linear(self, x, kernel, bias):
        return F.linear(x, kernel, bias)

    def tied(self, x, table, bias):
        return paddle.matmul(x, table, transpose_y=True) + bias

    def embedding(self, table, rows):
        return F.embedding(rows, table)

    def with_places(self, x, positions, segments):
        return x + (positions + paddle.repeat_interleave(segments, x.shape[1] // 2, axis=0))

    def layer_norm(self, x, scale, offset):
        return F.layer_norm(x, x.shape[-1:], scale, offset, models.LAYER_NORM_EPS)

    def gelu(self, x):
        return F.gelu(x)

    def attention(self, mixed, heads):
        _, length, width = mixed.shape
        size = width // 3 // heads
        parts = mixed.reshape([-1, length, 3, heads, size]).transpose([2, 0, 3, 1, 4])
        queries, keys, values = parts.unbind(0)
        scores = F.softmax(paddle.matmul(queries * size**-0.5, keys, transpose_y=True))
        return paddle.matmul(scores, values).transpose([0, 2, 1, 3]).reshape([-1, length, heads * size])

    def first_word(self, x):
        return x[:, 0]

    def at(self, x, places):
        return paddle.index_select(x, paddle.to_tensor(places), axis=1)

    def column(self, targets, number):
        return targets[:, number]

    def all_but_last(self, targets):
        return targets[:, :-1]

    def cross_entropy(self, logits, targets):
        return F.cross_entropy(logits, targets.unsqueeze(-1))


def converted(name, value):
    """Return a weight in Paddle's layout: kernels are (in, out)."""
    is_table = name in ("words.weight", "positions.weight", "segments.weight")
    return value.T if value.ndim == 2 and not is_table else value


class Net(paddle.nn.Layer):
    """The loss of a batch."""

    def __init__(self, case, weights):
        super().__init__()
        self.case, self.named = case, {}
        for name, value in weights.items():
            key, value = name.replace(".", "_"), converted(name, value)
            if name.endswith(("running_mean", "running_var")):
                self.register_buffer(key, paddle.to_tensor(value))
            elif not name.endswith("num_batches_tracked"):
                assigned = paddle.nn.initializer.Assign(value)
                self.add_parameter(key, self.create_parameter(value.shape, default_initializer=assigned))
            self.named[name] = key

    def forward(self, inputs, targets):
        weights = {name: getattr(self, key) for name, key in self.named.items() if hasattr(self, key)}
        return models.loss(Operations(), weights, inputs, targets, self.case)


class Paddle(Engine):
    version = paddle.__version__

    def __init__(self, case, arrays):
        super().__init__(case, arrays)
        paddle.set_device("cpu")
        self.net = Net(case, self.weights)
        del self.weights
        rate, parameters = case["learning_rate"], self.net.parameters()
        if case["optimizer"] == "adam":
            self.optimizer = paddle.optimizer.Adam(rate, epsilon=1e-8, parameters=parameters)
        else:
            self.optimizer = paddle.optimizer.Momentum(rate, momentum=0.9, parameters=parameters)
        if self.ranks > 1:
            paddle.distributed.init_parallel_env()
            self.net = paddle.DataParallel(self.net)

    def step(self, inputs, targets):
        loss = self.net(paddle.to_tensor(inputs), paddle.to_tensor(targets))
        loss.backward()
        self.optimizer.step()
        self.optimizer.clear_grad()
        return loss.item()


if __name__ == "__main__":
    run(Paddle)
