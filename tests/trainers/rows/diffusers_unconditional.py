"""diffusers' train_unconditional.py, as found in its repository, with a small UNet and pictures made here."""

import json
from pathlib import Path

from programs.data import pictures
from programs.listing import Program
from trainers.row import Row

UNET = {
    "_class_name": "UNet2DModel",
    "sample_size": 16,
    "in_channels": 3,
    "out_channels": 3,
    "layers_per_block": 1,
    "block_out_channels": [16, 32],
    "norm_num_groups": 4,
    "attention_head_dim": 8,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
}


def data(folder: Path) -> None:
    pictures(folder / "images", number=16, side=16)
    (folder / "unet").mkdir()
    (folder / "unet" / "config.json").write_text(json.dumps(UNET))


ROW = Row(
    title="diffusers' `train_unconditional.py`",
    packages=("diffusers==0.42.1", "torchvision==0.28.0", "datasets==5.2.0"),
    source=Program(
        repository="huggingface/diffusers",
        path="examples/unconditional_image_generation/train_unconditional.py",
        commit="58eb52c0803ea9af3abec60841c2a093bdf1f951",
        sha256="0314b03f4fa7eed825389e7e3e97c87188c24b49d0974dfc7710d6a16325acfe",
        field="images",
        arguments="--train_data_dir images --model_config_name_or_path unet --resolution 16 "
        "--train_batch_size 4 --eval_batch_size 2 --num_epochs 1 --ddpm_num_steps 100 "
        "--ddpm_num_inference_steps 2 --use_ema --lr_warmup_steps 0 --save_images_epochs 1 "
        "--save_model_epochs 1 --output_dir out --cache_dir cache",
        steps=1000,
        standins=(),
        beside=(),
    ),
    data=data,
    expected={"ddp": "one piece", "zero3": "one piece", "tensor=2": "divided"},
    start="`ronde run` in place of `accelerate launch`.",
)
