"""Averages of weights, next to torch's: swa_utils, and the averaging schedule."""

import pytest

import pydist


def network(lib):
    return lib.nn.Sequential(lib.nn.Linear(3, 4), lib.nn.BatchNorm1d(4), lib.nn.Linear(4, 2))


@pytest.mark.parametrize("kind", ["swa", "ema", "buffers", "one"])
def test_averaged_model(torch, kind):
    def run(lib):
        swa = lib.optim.swa_utils
        options = {
            "swa": {},
            "ema": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)},
            "buffers": {"avg_fn": swa.get_ema_avg_fn(0.8), "use_buffers": True},
            "one": {"avg_fn": swa.get_swa_avg_fn()},
        }[kind]
        model = network(lib)
        with lib.no_grad():
            for p in model.parameters():
                p.copy_(lib.arange(p.numel()).reshape(p.shape) * 0.1)
        averaged = swa.AveragedModel(model, **options)
        x = lib.arange(24).reshape(8, 3) / 10
        for step in range(3):
            with lib.no_grad():
                for p in model.parameters():
                    p.add_(0.5 + step)
            model(x * (step + 1))
            averaged.update_parameters(model)
        values = [v.double().tolist() for v in averaged.state_dict().values()]
        assert not any(p.requires_grad and p.grad is not None for p in averaged.parameters())
        swa.update_bn([(x,), [x * 2]], averaged)
        assert averaged.training and averaged.module[1].momentum == 0.1
        return values, averaged.module[1].running_mean.tolist(), averaged(x).tolist(), list(averaged.state_dict())

    import torch.optim.swa_utils

    import pydist.optim.swa_utils

    ours, theirs = run(pydist), run(torch)
    assert ours[3] == theirs[3]
    for mine, want in zip(ours[:3], theirs[:3]):
        pydist.testing.assert_close(
            [pydist.tensor(v) for v in mine], [pydist.tensor(v) for v in want], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("options", [{}, {"anneal_epochs": 3, "anneal_strategy": "linear"}, {"anneal_epochs": 0}])
def test_schedule(torch, options):
    from torch.optim.swa_utils import SWALR as theirs

    from pydist.optim.swa_utils import SWALR as ours

    def rates(lib, schedule):
        groups = [{"params": [lib.nn.Parameter(lib.zeros(1))]}, {"params": [lib.nn.Parameter(lib.zeros(1))], "lr": 0.5}]
        optimizer = lib.optim.SGD(groups, lr=0.1)
        made, found = schedule(optimizer, [0.01, 0.9], **options), []
        for _ in range(6):
            found += [group["lr"] for group in optimizer.param_groups]
            optimizer.step()
            made.step()
        made.load_state_dict(made.state_dict())
        return found

    assert rates(pydist, ours) == pytest.approx(rates(torch, theirs))


def test_wrong_arguments():
    from pydist.optim.swa_utils import AveragedModel, SWALR, get_ema_avg_fn, get_ema_multi_avg_fn

    model = pydist.nn.Linear(1, 1)
    optimizer = pydist.optim.SGD(model.parameters(), lr=0.1)
    for make in (
        lambda: get_ema_avg_fn(1.5), lambda: get_ema_multi_avg_fn(-1), lambda: SWALR(optimizer, 0.1, anneal_epochs=-1),
        lambda: SWALR(optimizer, 0.1, anneal_strategy="step"), lambda: SWALR(optimizer, [0.1, 0.2]),
        lambda: AveragedModel(model, avg_fn=max, multi_avg_fn=max),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            make()
