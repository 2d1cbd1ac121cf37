"""Networks for images, with torchvision's parameter names, so that its files of weights can be loaded."""

from pydist.vision.models._api import (
    Weights,
    WeightsEnum,
    get_model,
    get_model_builder,
    get_model_weights,
    get_weight,
    list_models,
)
from pydist.vision.models.alexnet import AlexNet, AlexNet_Weights, alexnet
from pydist.vision.models.densenet import (
    DenseNet,
    DenseNet121_Weights,
    DenseNet161_Weights,
    DenseNet169_Weights,
    DenseNet201_Weights,
    densenet121,
    densenet161,
    densenet169,
    densenet201,
)
from pydist.vision.models.mobilenetv2 import MobileNetV2, MobileNet_V2_Weights, mobilenet_v2
from pydist.vision.models.mobilenetv3 import (
    MobileNetV3,
    MobileNet_V3_Large_Weights,
    MobileNet_V3_Small_Weights,
    mobilenet_v3_large,
    mobilenet_v3_small,
)
from pydist.vision.models.resnet import (
    ResNeXt50_32X4D_Weights,
    ResNeXt101_32X8D_Weights,
    ResNeXt101_64X4D_Weights,
    ResNet,
    ResNet18_Weights,
    ResNet34_Weights,
    ResNet50_Weights,
    ResNet101_Weights,
    ResNet152_Weights,
    Wide_ResNet50_2_Weights,
    Wide_ResNet101_2_Weights,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnet152,
    resnext50_32x4d,
    resnext101_32x8d,
    resnext101_64x4d,
    wide_resnet50_2,
    wide_resnet101_2,
)
from pydist.vision.models.squeezenet import (
    SqueezeNet,
    SqueezeNet1_0_Weights,
    SqueezeNet1_1_Weights,
    squeezenet1_0,
    squeezenet1_1,
)
from pydist.vision.models.vgg import (
    VGG,
    VGG11_BN_Weights,
    VGG11_Weights,
    VGG13_BN_Weights,
    VGG13_Weights,
    VGG16_BN_Weights,
    VGG16_Weights,
    VGG19_BN_Weights,
    VGG19_Weights,
    vgg11,
    vgg11_bn,
    vgg13,
    vgg13_bn,
    vgg16,
    vgg16_bn,
    vgg19,
    vgg19_bn,
)
