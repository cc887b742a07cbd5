"""Segments spheres with MONAI's UNet, transforms, SupervisedTrainer and evaluator."""

import logging

import numpy
import torch
from monai.data import CacheDataset, DataLoader, create_test_image_2d
from monai.engines import SupervisedEvaluator, SupervisedTrainer
from monai.handlers import CheckpointSaver, MeanDice, ValidationHandler, from_engine
from monai.inferers import SimpleInferer
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    EnsureChannelFirstd,
    RandFlipd,
    RandRotate90d,
    ScaleIntensityd,
)
from monai.utils import set_determinism

logging.disable(logging.INFO)
set_determinism(seed=0)
random = numpy.random.RandomState(0)
files = []
for _ in range(20):
    image, label = create_test_image_2d(32, 32, num_objs=4, rad_max=6, num_seg_classes=1, random_state=random)
    files.append({"image": image.astype("float32"), "label": label.astype("float32")})
keys = ["image", "label"]
fixed = [EnsureChannelFirstd(keys=keys, channel_dim="no_channel"), ScaleIntensityd(keys="image")]
train_transforms = Compose([*fixed, RandRotate90d(keys=keys, prob=0.5), RandFlipd(keys=keys, prob=0.5)])
train = CacheDataset(files[:16], train_transforms, num_workers=0, progress=False)
val = CacheDataset(files[16:], Compose(fixed), num_workers=0, progress=False)

device = torch.device("cpu")
net = UNet(
    spatial_dims=2, in_channels=1, out_channels=1, channels=(4, 8, 16), strides=(2, 2), num_res_units=1
)
post = Compose([Activationsd(keys="pred", sigmoid=True), AsDiscreted(keys="pred", threshold=0.5)])
evaluator = SupervisedEvaluator(
    device=device,
    val_data_loader=DataLoader(val, batch_size=4),
    network=net,
    inferer=SimpleInferer(),
    postprocessing=post,
    key_val_metric={"dice": MeanDice(output_transform=from_engine(["pred", "label"]))},
    val_handlers=[CheckpointSaver(save_dir="runs", save_dict={"net": net}, save_key_metric=True)],
)
trainer = SupervisedTrainer(
    device=device,
    max_epochs=2,
    train_data_loader=DataLoader(train, batch_size=8, shuffle=True),
    network=net,
    optimizer=torch.optim.Adam(net.parameters(), 1e-2),
    loss_function=DiceLoss(sigmoid=True),
    inferer=SimpleInferer(),
    train_handlers=[ValidationHandler(validator=evaluator, interval=1, epoch_level=True)],
)


@trainer.on("ITERATION_COMPLETED")
def show(engine):
    print(f"{engine.state.iteration} {engine.state.output[0]['loss']:.12g}")


@evaluator.on("COMPLETED")
def score(engine):
    print(f"dice {engine.state.metrics['dice']:.12g}")


trainer.run()
