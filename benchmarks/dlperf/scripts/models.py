"""The models as functions of a framework's operations and of weights with torch's names.

`torch_models.py` has the same as modules, and a test compares the two.
"""

from __future__ import annotations

LAYER_NORM_EPS, BATCH_NORM_EPS, MOMENTUM = 1e-12, 1e-5, 0.1


def masked_places(sizes):
    """Return the places of the words that are predicted, as far apart as possible."""
    step = (sizes["length"] - 2) // max(1, sizes["masked"])
    return [1 + step * number for number in range(sizes["masked"])]


def segments(sizes):
    """Return the number of the sentence of each word."""
    return [int(place >= sizes["length"] // 2) for place in range(sizes["length"])]


def resnet(ops, weights, images, sizes):
    """Return the logits of ResNet v1.5, (N, classes)."""

    def normalized(x, name, stride, padding, norm):
        return ops.batch_norm(ops.conv(x, weights[name + ".weight"], stride, padding), weights, norm)

    x = ops.relu(normalized(images, "conv1", 2, 3, "bn1"))
    x = ops.max_pool(x)
    for stage, blocks in enumerate(sizes["stages"]):
        for block in range(blocks):
            name = f"stages.{stage}.{block}."
            stride = 2 if stage and not block else 1
            y = ops.relu(normalized(x, name + "conv1", 1, 0, name + "bn1"))
            y = ops.relu(normalized(y, name + "conv2", stride, 1, name + "bn2"))
            y = normalized(y, name + "conv3", 1, 0, name + "bn3")
            short = x if block else normalized(x, name + "short.0", stride, 0, name + "short.1")
            x = ops.relu(y + short)
    return ops.linear(ops.mean_of_pixels(x), weights["head.weight"], weights["head.bias"])


def bert(ops, weights, words, sizes):
    """Return the logits of masked words and of the text.

    They are (N, masked, vocabulary), or None where no word is masked, and (N, classes).
    """

    def linear(x, name):
        return ops.linear(x, weights[name + ".weight"], weights[name + ".bias"])

    def norm(x, name):
        return ops.layer_norm(x, weights[name + ".weight"], weights[name + ".bias"])

    x = ops.embedding(weights["words.weight"], words)
    x = norm(ops.with_places(x, weights["positions.weight"], weights["segments.weight"]), "norm")
    for number in range(sizes["layers"]):
        name = f"encoder.layers.{number}."
        attention = name + "self_attn."
        mixed = ops.linear(x, weights[attention + "in_proj_weight"], weights[attention + "in_proj_bias"])
        x = norm(x + linear(ops.attention(mixed, sizes["heads"]), attention + "out_proj"), name + "norm1")
        x = norm(x + linear(ops.gelu(linear(x, name + "linear1")), name + "linear2"), name + "norm2")
    text = linear(ops.tanh(linear(ops.first_word(x), "pooler")), "classifier")
    if not sizes["masked"]:
        return None, text
    found = norm(ops.gelu(linear(ops.at(x, masked_places(sizes)), "transform")), "transform_norm")
    return ops.tied(found, weights["words.weight"], weights["words_bias"]), text


def loss(ops, weights, inputs, targets, case):
    """Return the mean loss of a batch.

    Targets are integers: the class of an image or a text in the last column, masked words in those before it.
    """
    if case["model"] == "resnet":
        return ops.cross_entropy(resnet(ops, weights, inputs, case["sizes"]), ops.column(targets, -1))
    words, text = bert(ops, weights, inputs, case["sizes"])
    of_text = ops.cross_entropy(text, ops.column(targets, -1))
    if words is None:
        return of_text
    return ops.cross_entropy(words, ops.all_but_last(targets)) + of_text
