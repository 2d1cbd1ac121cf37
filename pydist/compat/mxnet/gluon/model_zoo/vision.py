"""ResNets (He and others, 2015), without pretrained values."""

from pydist.compat.mxnet._base import absent
from pydist.compat.mxnet.gluon import nn
from pydist.compat.mxnet.gluon.block import HybridBlock

_STAGES = {18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}


def _conv3x3(channels, stride, in_channels):
    return nn.Conv2D(channels, kernel_size=3, strides=stride, padding=1, use_bias=False, in_channels=in_channels)


class BasicBlockV1(HybridBlock):
    """Two convolutions of 3 x 3 beside the input."""

    def __init__(self, channels, stride, downsample=False, in_channels=0, **kwargs):
        super().__init__(**kwargs)
        self.body, self.downsample = nn.HybridSequential(prefix=""), None
        self._add(channels, stride, in_channels)
        if downsample:
            self.downsample = nn.HybridSequential(prefix="")
            self.downsample.add(nn.Conv2D(channels, 1, stride, use_bias=False, in_channels=in_channels), nn.BatchNorm())

    def _add(self, channels, stride, in_channels):
        self.body.add(_conv3x3(channels, stride, in_channels), nn.BatchNorm(), nn.Activation("relu"))
        self.body.add(_conv3x3(channels, 1, channels), nn.BatchNorm())

    def hybrid_forward(self, F, x):
        return F.relu((self.downsample(x) if self.downsample else x) + self.body(x))


class BottleneckV1(BasicBlockV1):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 beside the input."""

    def _add(self, channels, stride, in_channels):
        inner = channels // 4
        self.body.add(nn.Conv2D(inner, 1, stride), nn.BatchNorm(), nn.Activation("relu"))
        self.body.add(_conv3x3(inner, 1, inner), nn.BatchNorm(), nn.Activation("relu"))
        self.body.add(nn.Conv2D(channels, 1), nn.BatchNorm())


class ResNetV1(HybridBlock):
    """A ResNet. thumbnail: for small images, without the first reduction."""

    def __init__(self, block, layers, channels, classes=1000, thumbnail=False, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            if thumbnail:
                self.features.add(_conv3x3(channels[0], 1, 0))
            else:
                self.features.add(
                    nn.Conv2D(channels[0], 7, 2, 3, use_bias=False), nn.BatchNorm(), nn.Activation("relu")
                )
                self.features.add(nn.MaxPool2D(3, 2, 1))
            for i, (count, now, then) in enumerate(zip(layers, channels, channels[1:])):
                stage = nn.HybridSequential(prefix=f"stage{i + 1}_")
                with stage.name_scope():
                    stage.add(block(then, 2 if i else 1, now != then, in_channels=now, prefix=""))
                    stage.add(*[block(then, 1, False, in_channels=then, prefix="") for _ in range(count - 1)])
                self.features.add(stage)
            self.features.add(nn.GlobalAvgPool2D())
            self.output = nn.Dense(classes, in_units=channels[-1])

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def get_resnet(version, num_layers, pretrained=False, ctx=None, root=None, **kwargs):
    """A ResNet of 18, 34 or 50 layers, version 1."""
    if version != 1 or num_layers not in _STAGES or pretrained:
        raise absent(
            f"resnet{num_layers}_v{version}, pretrained={pretrained}", "18, 34 or 50 layers, version 1, not pretrained"
        )
    deep = num_layers == 50
    channels = [64, *(n * (4 if deep else 1) for n in (64, 128, 256, 512))]
    return ResNetV1(BottleneckV1 if deep else BasicBlockV1, _STAGES[num_layers], channels, **kwargs)


def _model(layers):
    model = lambda **kwargs: get_resnet(1, layers, **kwargs)
    model.__doc__ = f"{layers} layers, version 1."
    return model


resnet18_v1, resnet34_v1, resnet50_v1 = map(_model, _STAGES)


def get_model(name, **kwargs):
    """A model of a name: resnet18_v1, resnet34_v1, resnet50_v1. Raises ValueError for others."""
    models = {"resnet18_v1": resnet18_v1, "resnet34_v1": resnet34_v1, "resnet50_v1": resnet50_v1}
    if name.lower() not in models:
        raise ValueError(f"get_model: got {name!r} (expected one of {', '.join(models)})")
    return models[name.lower()](**kwargs)


def __getattr__(name):
    if name.startswith(("resnet", "vgg", "alexnet", "densenet", "squeezenet", "inception", "mobilenet")):
        raise absent(f"mx.gluon.model_zoo.vision.{name}", "resnet18_v1, resnet34_v1 or resnet50_v1")
    raise AttributeError(f"pydist has no mxnet.gluon.model_zoo.vision.{name}")
