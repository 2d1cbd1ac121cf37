"""Files of datasets: checksums, downloads, archives."""

import gzip
import hashlib
import lzma
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

from pydist._download import CHUNK, chunks
from pydist._files import replacing


def calculate_md5(fpath, chunk_size=CHUNK):
    """The file's MD5 as hexadecimal digits."""
    with open(fpath, "rb") as file:
        return _digest(file, hashlib.md5(usedforsecurity=False), chunk_size)


def _digest(file, algorithm, chunk_size=CHUNK):
    while chunk := file.read(chunk_size):
        algorithm.update(chunk)
    return algorithm.hexdigest()


def check_md5(fpath, md5, **kwargs):
    """Whether the file's MD5 is `md5`."""
    return md5 == calculate_md5(fpath, **kwargs)


def check_integrity(fpath, md5=None):
    """Whether the file exists and, if `md5` is given, has that MD5."""
    return os.path.isfile(fpath) and (md5 is None or check_md5(fpath, md5))


def _fetch(url, file):
    """Writes the content of `url` to `file`, with a progress bar."""
    from tqdm import tqdm

    with tqdm(unit="B", unit_scale=True, desc=url.rpartition("/")[2], leave=False) as bar:
        for came, bar.total in chunks(url, file):
            bar.update(came)


def _download(url, target, algorithm, check):
    """Downloads `url` into `target`, which appears only when it is complete and check(its digest) did not raise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(target, "w+b") as file:
            _fetch(url, file)
            file.seek(0)
            check(_digest(file, algorithm))
    except (OSError, ValueError) as error:  # URLError is an OSError
        reason = getattr(error, "reason", None) or error
        raise RuntimeError(f"download of {url} failed: {reason}; without a network put the file at {target}") from error


def download_url(url, root, filename=None, md5=None, max_redirect_hops=3):
    """Downloads `url` into the folder `root` as `filename` (default: the URL's last part), unless it is there with this
    MD5.

    The file appears only when it is complete. Raises RuntimeError with the URL, the reason, and where to put the file
    by hand.
    """
    target = Path(root).expanduser() / (filename or url.rpartition("/")[2])
    if check_integrity(target, md5):
        return

    def check(got):
        if md5 not in (None, got):
            raise RuntimeError(f"download of {url}: File not found or corrupted: MD5 {got} (expected {md5})")

    _download(url, target, hashlib.md5(usedforsecurity=False), check)


def _inside(folder, name):
    """The path of an archive's member in `folder`. Raises RuntimeError if it would be outside."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise RuntimeError(f"{name}: the archive has a file outside its folder (expected files inside it)")
    return path


def _extract_tar(source, folder):
    with tarfile.open(source) as archive:
        for member in archive:  # only plain files and folders: a link could lead outside
            path = _inside(folder, member.name)
            if member.isdir():
                path.mkdir(parents=True, exist_ok=True)
            elif member.isfile():
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as content, open(path, "wb") as file:
                    shutil.copyfileobj(content, file)


def _extract_zip(source, folder):
    with zipfile.ZipFile(source) as archive:
        for name in archive.namelist():
            _inside(folder, name)
        archive.extractall(folder)


_TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz")
_COMPRESSED = {".gz": gzip.open, ".xz": lzma.open}


def extract_archive(from_path, to_path=None, remove_finished=False):
    """Unpacks a .zip, a .tar (.gz, .bz2, .xz), or a single .gz or .xz file into `to_path` (default: the archive's
    folder).

    Returns the folder, or the file's path. Raises RuntimeError for other names and for damaged archives.
    """
    source = Path(from_path)
    folder = source.parent if to_path is None else Path(to_path)
    result = folder
    try:
        if source.name.lower().endswith(_TARS):
            _extract_tar(source, folder)
        elif source.suffix.lower() == ".zip":
            _extract_zip(source, folder)
        elif (opener := _COMPRESSED.get(source.suffix.lower())) is not None:
            result = folder / source.stem
            with opener(source, "rb") as content, open(result, "wb") as file:
                shutil.copyfileobj(content, file)
        else:
            raise RuntimeError(f"{source}: unknown kind of archive (expected .zip, .tar, .gz or .xz)")
    except (EOFError, OSError, tarfile.TarError, zipfile.BadZipFile, lzma.LZMAError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise RuntimeError(f"{source}: the archive is damaged: {error}") from error
    if remove_finished:
        source.unlink()
    return os.fspath(result)


def download_and_extract_archive(url, download_root, extract_root=None, filename=None, md5=None, remove_finished=False):
    """download_url, then extract_archive into `extract_root` (default: `download_root`)."""
    root = Path(download_root).expanduser()
    filename = filename or url.rpartition("/")[2]
    download_url(url, root, filename, md5)
    extract_archive(root / filename, extract_root or root, remove_finished)
