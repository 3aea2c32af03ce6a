"""What errors call a picture, and the bytes of one at an http(s) address, within limits of time, size and redirections."""

import ipaddress
import os
import re
import socket
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from huggingface_hub.utils import httpx


MAX_SECONDS, MAX_BYTES, MAX_HOPS = 20, 64 * 2**20, 5
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def fetch(url: str, name: str) -> bytes:
    """
    What is at an address, with limits of time, size and redirections; none from another host to a private one.

    transformers' own loader has no limits, takes the pages of errors for pictures and would decode PostScript; this one asks with
    the same library.

    Raises:
        `ValueError`: for whatever goes wrong, naming the address and the status.
    """
    answers: SimpleQueue = SimpleQueue()
    with httpx.Client(timeout=MAX_SECONDS, headers={"Accept-Encoding": "identity"}) as client:
        # A thread, since the time-outs of the library are of single steps: a server that drips would be waited for.
        Thread(target=lambda: answers.put(get(client, url)), daemon=True).start()
        try:
            answer = answers.get(timeout=MAX_SECONDS)
        except Empty:
            answer = f"not complete after {MAX_SECONDS} s"
    if isinstance(answer, str):
        raise ValueError(f"{name}: cannot be fetched: {answer}")
    return answer


def get(client: httpx.Client, url: str) -> bytes | str:
    """The bytes, or what went wrong."""
    try:
        address, deadline = httpx.URL(url), time.monotonic() + MAX_SECONDS
        for _ in range(MAX_HOPS + 1):
            with client.stream("GET", address) as response:
                if response.has_redirect_location:
                    address = next_address(address, response.next_request.url)
                elif response.status_code != 200:
                    return f"status {response.status_code} {response.reason_phrase}"
                else:
                    return read_all(response, deadline)
        return f"redirected more than {MAX_HOPS} times"
    except Exception as error:
        return str(error) or type(error).__name__


def read_all(response: httpx.Response, deadline: float) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES // 2**20} MiB, too large")
        if time.monotonic() > deadline:
            raise ValueError("too slow")
    return bytes(content)


def next_address(current: httpx.URL, target: httpx.URL) -> httpx.URL:
    """
    The address redirected to; an error if that leads from one host into a private network. (A name that is resolved anew, to
    something else, for the connection itself is not noticed.)
    """
    if target.host != current.host:
        with suppress(socket.gaierror):  # a name that a proxy alone can resolve
            for *_, (address, *_) in socket.getaddrinfo(target.host, None):
                if is_private(ipaddress.ip_address(address.partition("%")[0])):
                    raise ValueError(f"redirected to {target.host}, a private host")
    return target


def is_private(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether an address is of no public host, or of one by way of a translation from IPv4 (6to4, NAT64)."""
    is_translated = address in NAT64 or getattr(address, "sixtofour", None) is not None
    return not address.is_global or address.is_multicast or is_translated


def name_of(source: Any) -> str:
    """What an error calls a picture that was given no name."""
    if isinstance(source, dict):
        source = source.get("path")
    if not isinstance(source, (str, os.PathLike)):
        source = getattr(source, "filename", None) or getattr(source, "name", None)
    if not isinstance(source, (str, os.PathLike)):
        return "picture"
    text = without_password(os.fspath(source))
    return text if len(text) <= 200 or not isinstance(text, str) else f"{text[:60]}..."


def without_password(name: str | bytes) -> str | bytes:
    """An address without user and password."""
    return re.sub(r"(?i)^(https?://)[^/@]*@", r"\1", name) if isinstance(name, str) else name
