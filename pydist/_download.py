"""Files from the network."""

import urllib.error
import urllib.request

TIMEOUT = 20  # seconds without a byte after which a download fails
CHUNK = 1 << 20


def chunks(url, file):
    """Writes the content of `url` to `file`. Yields, after each chunk, (the bytes that came, the bytes of all or None).
    Raises URLError where it ends early, or the server does not answer."""
    request = urllib.request.Request(url, headers={"User-Agent": "pydist"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        size = response.headers.get("Content-Length")
        size = None if size is None else int(size)
        while chunk := response.read(CHUNK):
            file.write(chunk)
            yield len(chunk), size
        if size is not None and file.tell() != size:
            raise urllib.error.URLError(f"only {file.tell()} of {size} bytes came")
