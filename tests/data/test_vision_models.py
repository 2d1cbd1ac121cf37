"""Networks: the published counts, torchvision's names, shapes and outputs where it is installed, files of weights."""

import copy
import os
import pickle
import re

import pytest

import pydist
from pydist import nn

np = pytest.importorskip("numpy")

from pydist.vision import models

LONG = "FULL_LONG" in os.environ  # .ci/full
NAMES = models.list_models()
SMALL = [
    "resnet18",
    "squeezenet1_0",
    "squeezenet1_1",
    "densenet121",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "mobilenet_v3_small",
]


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "name, parameters",
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnext50_32x4d", 25_028_904),
        *[("vgg11", 132_863_336)] * LONG,  # vgg16 is made of the same parts
        ("vgg16", 138_357_544),
        ("alexnet", 61_100_840),
        ("densenet121", 7_978_856),
        ("mobilenet_v2", 3_504_872),
        ("mobilenet_v3_small", 2_542_856),
        ("squeezenet1_1", 1_235_496),
    ],
)
def test_published_counts(name, parameters):
    assert count(getattr(models, name)()) == parameters
    assert models.get_model_weights(name).DEFAULT.meta["num_params"] == parameters


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_are_torchvisions(tv, torch, name):
    with torch.device("meta"):
        ref = getattr(tv.models, name)()
    mine = getattr(models, name)()
    shapes = [[(key, tuple(value.shape)) for key, value in m.state_dict().items()] for m in (mine, ref)]
    assert shapes[0] == shapes[1]
    assert count(mine) == models.get_model_weights(name).DEFAULT.meta["num_params"]
    weights, theirs = models.get_model_weights(name), tv.models.get_model_weights(name)
    assert {w.name: w.url for w in weights}.items() <= {w.name: w.url for w in theirs}.items()
    assert weights.DEFAULT.name == theirs.DEFAULT.name
    assert [str(w.transforms()).split("interp")[0] for w in weights] == [
        str(theirs[w.name].transforms()).split("interp")[0] for w in weights
    ]


@pytest.mark.parametrize("name", SMALL)
def test_outputs_and_gradients_are_torchvisions(tv, torch, name):
    """The same weights, through a state dict, give the same outputs in evaluation and gradients in training."""
    torch.manual_seed(0)
    ref = getattr(tv.models, name)(num_classes=7)
    mine = getattr(models, name)(num_classes=7)
    mine.load_state_dict({key: pydist.from_numpy(value.numpy().copy()) for key, value in ref.state_dict().items()})
    x = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    out, expected = mine.eval()(pydist.from_numpy(x)), ref.eval()(torch.from_numpy(x))
    assert np.abs(out.detach().numpy() - expected.detach().numpy()).max() <= 1e-4 * max(
        1.0, expected.abs().max().item()
    )
    for model, data in ((mine, pydist.from_numpy(x)), (ref, torch.from_numpy(x))):
        model(data).sum().backward()
    grads = {key: p.grad.numpy() for key, p in ref.named_parameters()}
    for key, p in mine.named_parameters():
        assert np.abs(p.grad.numpy() - grads[key]).max() <= 2e-3 * max(1.0, np.abs(grads[key]).max()), key


@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn", "densenet121", "alexnet"])
def test_initial_values_have_torchvisions_spread(tv, torch, name):
    options = {"init_weights": True} if name.startswith("vgg") else {}
    ref, mine = getattr(tv.models, name)(num_classes=5, **options), getattr(models, name)(num_classes=5, **options)
    theirs = dict(ref.named_parameters())
    for key, p in mine.named_parameters():
        a, b = p.detach().numpy(), theirs[key].detach().numpy()
        if b.std() == 0:
            assert np.array_equal(a, b), key
        elif a.size > 4000:
            assert abs(a.std() / b.std() - 1) < 0.1 and abs(a.mean() - b.mean()) < 0.1 * b.std() + 1e-6, key


def test_variants():
    zero = models.resnet18(num_classes=3, zero_init_residual=True)
    assert not zero.layer1[0].bn2.weight.any() and zero.layer1[0].bn1.weight.all()
    dilated = models.resnet50(num_classes=3, replace_stride_with_dilation=(False, True, True)).eval()
    with pydist.no_grad():
        x = dilated.maxpool(dilated.relu(dilated.bn1(dilated.conv1(pydist.randn(1, 3, 64, 64)))))
        assert dilated.layer4(dilated.layer3(dilated.layer2(dilated.layer1(x)))).shape == (1, 2048, 8, 8)
        assert dilated(pydist.randn(2, 3, 32, 32)).shape == (2, 3)
    wide = models.resnet.ResNet(
        models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=2, norm_layer=lambda c: nn.BatchNorm2d(c, eps=1e-3)
    )
    assert wide.bn1.eps == 1e-3 and wide(pydist.randn(2, 3, 32, 32)).shape == (2, 2)
    small = models.densenet.DenseNet(8, (2, 2), 16, drop_rate=0.5, num_classes=4)
    assert small(pydist.randn(2, 3, 32, 32)).shape == (2, 4)
    assert models.vgg11(num_classes=2, init_weights=False).classifier[6].out_features == 2
    for bad, error in (
        (lambda: models.resnet18(groups=2), ValueError),
        (lambda: models.resnet50(replace_stride_with_dilation=(True,)), ValueError),
        (lambda: models.resnet18(replace_stride_with_dilation=(True, True, True)), NotImplementedError),
        (lambda: models.squeezenet.SqueezeNet("2_0"), ValueError),
        (lambda: models.resnet18(nonsense=1), TypeError),
    ):
        with pytest.raises(error):
            bad()


def test_a_network_learns_and_copies():
    pydist.manual_seed(0)
    model = models.resnet.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=2)
    optimizer = pydist.optim.SGD(model.parameters(), lr=0.05)
    x, y = pydist.randn(8, 3, 32, 32), pydist.tensor([0, 1] * 4)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with pydist.no_grad():
            assert (twin.eval()(x) == model.eval()(x)).all()


# By name.


def test_lists():
    assert {"resnet18", "vgg19_bn", "alexnet", "densenet201", "squeezenet1_1", "wide_resnet101_2"} <= set(NAMES)
    assert NAMES == sorted(NAMES) and models.list_models(models.vgg) == [n for n in NAMES if n.startswith("vgg")]
    assert models.list_models(models) == NAMES
    assert models.list_models(include="resnet*", exclude=["*5*", "*1"]) == ["resnet18", "resnet34"]
    assert models.get_model_builder("ResNet18") is models.resnet18 is models.__dict__["resnet18"]
    # as scripts look for their choices
    found = [n for n in models.__dict__ if n.islower() and not n.startswith("_") and callable(models.__dict__[n])]
    assert set(NAMES) <= set(found)
    assert models.get_weight("ResNet50_Weights.IMAGENET1K_V2") is models.ResNet50_Weights.DEFAULT
    assert pickle.loads(pickle.dumps(models.resnet18)) is models.resnet18
    assert pickle.loads(pickle.dumps(models.ResNet18_Weights.DEFAULT)) is models.ResNet18_Weights.DEFAULT
    for bad in (lambda: models.get_model("resnet19"), lambda: models.get_weight("ResNet18_Weights.V9")):
        with pytest.raises(ValueError, match="Unknown"):
            bad()


# Files of weights.


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


@pytest.mark.parametrize("options", [{"weights": "DEFAULT"}, {"pretrained": True}, {"weights": True}], ids=str)
def test_missing_weights_say_where_to_put_them(checkpoints, options):
    with pytest.raises(FileNotFoundError) as error:
        models.resnet18(**options)
    assert str(checkpoints / "resnet18-f37072fd.pth") in str(error.value) and "download it from https://" in str(
        error.value
    )
    assert "use weights=None" in str(error.value)


def test_weights_in_the_folder_are_loaded(checkpoints):
    pydist.manual_seed(3)
    source = models.squeezenet1_1()
    pydist.save(source.state_dict(), checkpoints / "squeezenet1_1-b8a52dc0.pth")
    for weights in (models.SqueezeNet1_1_Weights.DEFAULT, "IMAGENET1K_V1", "SqueezeNet1_1_Weights.IMAGENET1K_V1"):
        model = models.get_model("squeezenet1_1", weights=weights, dropout=0.1)
        assert all((a == b).all() for a, b in zip(model.parameters(), source.parameters()))
        assert model.classifier[0].p == 0.1
    for off in (None, False):
        assert not (models.squeezenet1_1(weights=off).features[0].weight == source.features[0].weight).all()
    with pytest.raises(ValueError, match="num_classes=10 with SqueezeNet1_1_Weights.IMAGENET1K_V1 .expected 1000"):
        models.squeezenet1_1(weights="DEFAULT", num_classes=10)
    with pytest.raises(KeyError):
        models.squeezenet1_1(weights="V7")
    with pytest.raises(TypeError, match="expected SqueezeNet1_1_Weights but received ResNet18_Weights"):
        models.squeezenet1_1(weights=models.ResNet18_Weights.DEFAULT)


def test_weights_saved_by_pytorch_are_loaded(tv, torch, checkpoints):
    ref = tv.models.squeezenet1_1()
    torch.save(ref.state_dict(), checkpoints / "squeezenet1_1-b8a52dc0.pth")
    model = models.squeezenet1_1(weights=models.SqueezeNet1_1_Weights.DEFAULT)
    theirs = dict(ref.named_parameters())
    assert all(np.array_equal(p.detach().numpy(), theirs[key].detach().numpy()) for key, p in model.named_parameters())


def test_densenets_published_names_are_understood(checkpoints):
    source = models.densenet121()
    names = {}
    for key, value in source.state_dict().items():
        old = re.sub(r"(denselayer\d+\.(?:norm|conv))([12]\.)", r"\1.\2", key)
        names[old] = value
    assert len(names) == len(source.state_dict()) and "features.denseblock1.denselayer1.norm.1.weight" in names
    pydist.save(names, checkpoints / "densenet121-a639ec97.pth")
    model = models.densenet121(pretrained=True)
    assert all((a == b).all() for a, b in zip(model.parameters(), source.parameters()))


def test_preset_is_torchvisions(tv, torch):
    image = np.random.default_rng(0).integers(0, 256, (3, 300, 260)).astype(np.uint8)
    for name in ("IMAGENET1K_V1", "IMAGENET1K_V2"):
        mine = models.ResNet50_Weights[name].transforms()(pydist.from_numpy(image))
        ref = tv.models.ResNet50_Weights[name].transforms()(torch.from_numpy(image))
        assert mine.shape == tuple(ref.shape) and np.abs(mine.numpy() - ref.numpy()).max() <= 0.02
