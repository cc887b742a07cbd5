"""The training with TensorFlow: one process, or MultiWorkerMirroredStrategy by TF_CONFIG."""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import models
import tensorflow as tf  # pyright: ignore - of another environment
from loop import Engine, run


class Operations:
    """Operations in the layout of TensorFlow's kernels for CPUs.

    Channels are last, and kernels (in, out).
    """

    relu, tanh = staticmethod(tf.nn.relu), staticmethod(tf.tanh)

    def conv(self, x, kernel, stride, padding):
        x = tf.pad(x, [[0, 0], [padding, padding], [padding, padding], [0, 0]]) if padding else x
        return tf.nn.conv2d(x, kernel, stride, "VALID")

    def batch_norm(self, x, weights, name):
        # Without moving averages, which no loss of this training depends on.
        scale, offset = weights[name + ".weight"], weights[name + ".bias"]
        return tf.compat.v1.nn.fused_batch_norm(x, scale, offset, epsilon=models.BATCH_NORM_EPS)[0]

    def max_pool(self, x):
        # Behind a relu, where padding by zeros is as good as by the smallest number.
        return tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")

    def mean_of_pixels(self, x):
        return tf.reduce_mean(x, [1, 2])

    def linear(self, x, kernel, bias):
        return tf.linalg.matmul(x, kernel) + bias

    def tied(self, x, table, bias):
        return tf.linalg.matmul(x, table, transpose_b=True) + bias

    def embedding(self, table, rows):
        return tf.gather(table, rows)

    def with_places(self, x, positions, segments):
        return x + positions + tf.repeat(segments, x.shape[1] // 2, axis=0)

    def layer_norm(self, x, scale, offset):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, offset, scale, models.LAYER_NORM_EPS)

    def gelu(self, x):
        return tf.nn.gelu(x, approximate=False)

    def attention(self, mixed, heads):
        _, length, width = mixed.shape
        size = width // 3 // heads
        parts = tf.transpose(tf.reshape(mixed, [-1, length, 3, heads, size]), [2, 0, 3, 1, 4])
        queries, keys, values = tf.unstack(parts)
        scores = tf.nn.softmax(tf.linalg.matmul(queries * size**-0.5, keys, transpose_b=True))
        return tf.reshape(
            tf.transpose(tf.linalg.matmul(scores, values), [0, 2, 1, 3]), [-1, length, heads * size]
        )

    def first_word(self, x):
        return x[:, 0]

    def at(self, x, places):
        return tf.gather(x, places, axis=1)

    def column(self, targets, number):
        return targets[:, number]

    def all_but_last(self, targets):
        return targets[:, :-1]

    def cross_entropy(self, logits, targets):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits))


def converted(name, value):
    """Return a weight in TensorFlow's layout."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    is_table = name in ("words.weight", "positions.weight", "segments.weight")
    return value.T if value.ndim == 2 and not is_table else value


class TensorFlow(Engine):
    version = tf.__version__

    def __init__(self, case, arrays):
        super().__init__(case, arrays)
        tf.config.threading.set_intra_op_parallelism_threads(self.threads)
        tf.config.threading.set_inter_op_parallelism_threads(self.threads)
        if self.inputs.ndim == 4:
            self.inputs = self.inputs.transpose(0, 2, 3, 1)
        strategy = (
            tf.distribute.MultiWorkerMirroredStrategy() if self.ranks > 1 else tf.distribute.get_strategy()
        )
        rate = case["learning_rate"]
        with strategy.scope():
            weights = {
                name: tf.Variable(converted(name, value), name=name.replace(".", "_"))
                for name, value in self.weights.items()
                if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
            }
            if case["optimizer"] == "adam":
                optimizer = tf.keras.optimizers.Adam(rate, epsilon=1e-8)
            else:
                optimizer = tf.keras.optimizers.SGD(rate, momentum=0.9)
            optimizer.build(list(weights.values()))
        del self.weights
        operations = Operations()

        def train(inputs, targets):
            with tf.GradientTape() as tape:
                loss = models.loss(operations, weights, inputs, targets, case)
                # The optimizer sums the gradients of all replicas.
                shared = loss / self.ranks
            variables = list(weights.values())
            optimizer.apply_gradients(zip(tape.gradient(shared, variables), variables))
            return loss

        @tf.function
        def step(inputs, targets):
            return strategy.run(train, args=(inputs, targets))

        self._step = step

    def step(self, inputs, targets):
        return self._step(tf.constant(inputs), tf.constant(targets)).numpy()


if __name__ == "__main__":
    run(TensorFlow)
