"""Files of weights by URL, in the folder in which PyTorch's `torch.hub` keeps them. Code from repositories is not
loaded."""

import hashlib
import os
import re
from pathlib import Path
from urllib.parse import urlparse  # noqa: F401 (scripts take it from here)

HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")  # model-5c106cde.pth
_folder = None


def _get_torch_home():
    """$TORCH_HOME, or ~/.cache/torch."""
    home = os.environ.get("TORCH_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch"))
    return os.path.expanduser(home)


def get_dir():
    """The folder: the one given to `set_dir`, or $TORCH_HOME/hub, or ~/.cache/torch/hub."""
    return os.path.join(_get_torch_home(), "hub") if _folder is None else _folder


def set_dir(d):
    """Sets the folder that get_dir() returns."""
    global _folder
    _folder = os.path.expanduser(d)


def download_url_to_file(url, dst, hash_prefix=None, progress=True):
    """Downloads `url` into the file `dst`. Raises RuntimeError, with the URL, if that fails or if the SHA-256 of the
    content does not begin with `hash_prefix`."""
    from pydist.vision.datasets.utils import _download, download_url

    target = Path(dst)
    if hash_prefix is None:
        download_url(url, target.parent, target.name)
        return

    def check(got):
        if not got.startswith(hash_prefix):
            raise RuntimeError(f'invalid hash value (expected "{hash_prefix}", got "{got}")')

    _download(url, target, hashlib.sha256(), check)


def load_state_dict_from_url(
    url, model_dir=None, map_location=None, progress=True, check_hash=False, file_name=None, weights_only=True
):
    """The object in the file of this URL. The file is downloaded into `model_dir` (default: get_dir()/checkpoints)
    unless it is there.

    check_hash: compare the file's SHA-256 with the hash in its name, such as model-5c106cde.pth.
    """
    from pydist.serialization import load

    name = file_name or url.rpartition("/")[2].partition("?")[0]
    path = Path(model_dir or os.path.join(get_dir(), "checkpoints"), name).expanduser()
    if not path.is_file():
        ending = path.stem.rpartition("-")[2] if check_hash and "-" in path.stem else None
        download_url_to_file(url, path, ending)
    return load(path, map_location=map_location, weights_only=weights_only)


def load(repo_or_dir, model, *args, **kwargs):
    """Raises RuntimeError: pydist does not run code from repositories."""
    raise RuntimeError(
        f"hub.load: {repo_or_dir}: {model}: pydist does not run code from repositories (expected a model built here, then load_state_dict)"
    )
