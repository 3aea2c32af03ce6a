"""The bytes of a picture at an http(s) address, within limits of time, size and redirections."""

import ipaddress
import socket
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

from huggingface_hub.utils import httpx


MAX_SECONDS, MAX_BYTES, MAX_HOPS = 20, 64 * 2**20, 5


def fetch(url: str, name: str) -> bytes:
    """
    What is at an address, with limits of time, size and redirections; none from another host to a private one.

    transformers' own loader has no limits, takes the pages of errors for pictures and would decode PostScript; this one asks with
    the same library.

    Raises:
        `ValueError`: for whatever goes wrong, naming the address and the status.
    """
    answers: SimpleQueue = SimpleQueue()
    # A thread, since the time-outs of the library are of single steps: a server that drips would be waited for.
    Thread(target=lambda: answers.put(get(url)), daemon=True).start()
    try:
        answer = answers.get(timeout=MAX_SECONDS)
    except Empty:
        answer = f"not complete after {MAX_SECONDS} s"
    if isinstance(answer, str):
        raise ValueError(f"{name}: cannot be fetched: {answer}")
    return answer


def get(url: str) -> bytes | str:
    """The bytes, or what went wrong."""
    try:
        address = httpx.URL(url)
        with httpx.Client(timeout=MAX_SECONDS, headers={"Accept-Encoding": "identity"}) as client:
            for _ in range(MAX_HOPS + 1):
                with client.stream("GET", address) as response:
                    if response.has_redirect_location:
                        address = next_address(address, response.next_request.url)
                    elif response.status_code != 200:
                        return f"status {response.status_code} {response.reason_phrase}"
                    else:
                        return read_all(response)
        return f"redirected more than {MAX_HOPS} times"
    except Exception as error:
        return str(error) or type(error).__name__


def read_all(response: httpx.Response) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES // 2**20} MiB, too large")
    return bytes(content)


def next_address(current: httpx.URL, target: httpx.URL) -> httpx.URL:
    """The address redirected to; an error if that leads from one host into a private network."""
    if target.host != current.host:
        with suppress(socket.gaierror):  # a name that a proxy alone can resolve
            for *_, (address, *_) in socket.getaddrinfo(target.host, None):
                if not ipaddress.ip_address(address.partition("%")[0]).is_global:
                    raise ValueError(f"redirected to {target.host}, a private host")
    return target
