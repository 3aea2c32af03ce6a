"""The bytes of a picture at an http(s) address, within limits of time, size and redirections."""

import ipaddress
import socket
import time
from contextlib import suppress

from huggingface_hub.utils import httpx


MAX_SECONDS, MAX_BYTES, MAX_HOPS = 20, 64 * 2**20, 5


def fetch(url: str, name: str) -> bytes:
    """
    What is at an address, with limits of time, size and redirections; none from another host to a private one.

    Raises:
        `ValueError`: for whatever goes wrong, naming the address and the status.
    """
    deadline = time.monotonic() + MAX_SECONDS
    try:
        with httpx.Client(timeout=MAX_SECONDS, headers={"Accept-Encoding": "identity"}) as client:
            address = httpx.URL(url)
            for _ in range(MAX_HOPS + 1):
                with client.stream("GET", address) as response:
                    if response.has_redirect_location:
                        address = next_address(address, response.next_request.url)
                        continue
                    response.raise_for_status()
                    return read_all(response, deadline)
            raise ValueError(f"redirected more than {MAX_HOPS} times")
    except httpx.HTTPStatusError as error:
        status = error.response
        raise ValueError(f"{name}: cannot be fetched: status {status.status_code} {status.reason_phrase}") from error
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        raise ValueError(f"{name}: cannot be fetched: {str(error) or type(error).__name__}") from error


def read_all(response: httpx.Response, deadline: float) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES // 2**20} MiB, too large")
        if time.monotonic() > deadline:
            raise ValueError(f"not complete after {MAX_SECONDS} s")
    return bytes(content)


def next_address(current: httpx.URL, target: httpx.URL) -> httpx.URL:
    """The address redirected to; an error if that leads from one host into a private network."""
    if target.host != current.host:
        with suppress(socket.gaierror):  # a name that a proxy alone can resolve
            for *_, (address, *_) in socket.getaddrinfo(target.host, None):
                if not ipaddress.ip_address(address.partition("%")[0]).is_global:
                    raise ValueError(f"redirected to {target.host}, a private host")
    return target
