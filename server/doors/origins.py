"""The web pages that may call the server: its own, and those of listed origins.

A browser says which page a request comes from: in Origin for everything but plain loads (links, images, scripts), in
Sec-Fetch-Site for all requests to this machine or over HTTPS, and else in Referer, unless the page hides it. Whatever
comes from another page is refused before anything is read or changed, so it does not matter what a page can send
without asking first (a form, `text/plain`). The type of a body is therefore not looked at: `curl -d` claims that its
JSON is a form, and is no web page.

Links on other pages open the server's pages (`Route.is_page`) and nothing else. A GET that changes something
(`Route.changes_by_get`) is refused to browsers, except on the server's own page and on listed origins: other pages can
hide themselves, and an address that a person typed comes from no page even where another site redirects it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from rnn_engine.errors import InvalidRequestError

ANY = "*"
"""The origin that stands for all; for servers with API keys, which pages have to know."""

LOCAL = "localhost"
"""The origin that stands for all of this machine: any port of its names."""

_PLAIN_LOADS = ("GET", "HEAD")
_BROWSERS = "Mozilla/"  # how the User-Agent of every browser begins
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


def check_origin(origin: str) -> str:
    """Return an origin as browsers write it. Raises InvalidRequestError for what is none."""
    parts = urlsplit(origin)
    written = origin.lower().removesuffix("/")
    if origin not in (ANY, LOCAL, "null") and (
        not parts.netloc or written != f"{parts.scheme}://{parts.netloc.lower()}"
    ):
        raise InvalidRequestError("cors origin", origin, "an origin as https://chat.example:8080, localhost, null or *")
    return written


class Origins:
    """Which pages may call, and which headers let them read the answers."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Raises InvalidRequestError for what is no origin."""
        self._allowed = frozenset(map(check_origin, allowed))

    def lists(self, origin: str | None) -> bool:
        """Whether pages of this origin may call although they are not the server's own."""
        if origin is None:
            return False
        named = ANY in self._allowed or origin.lower() in self._allowed
        return named or (LOCAL in self._allowed and _is_local(origin))

    def admits(
        self, method: str, headers: Mapping[str, str], *, is_page: bool = False, changes_by_get: bool = False
    ) -> bool:
        """Return True if a request comes from a page that may call, from no page at all, or opens what `is_page`."""
        origin, site, referrer = (headers.get(name) for name in ("Origin", "Sec-Fetch-Site", "Referer"))
        if origin is not None:
            return self._may_call(origin, headers)
        if changes_by_get:  # after a redirect `none` and the referrer say nothing
            from_browser = site or referrer or headers.get("User-Agent", "").startswith(_BROWSERS)
            return site == "same-origin" or not from_browser
        if site is not None:
            return site in ("none", "same-origin") or (is_page and _opens_a_page(method, headers))
        if method not in _PLAIN_LOADS or is_page or referrer is None:  # with all other methods browsers send Origin
            return True
        return self._may_call(_origin_of(referrer), headers)

    def _may_call(self, origin: str, headers: Mapping[str, str]) -> bool:
        return self.lists(origin) or _is_own(origin, headers.get("Host", ""))

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """Return the headers by which a browser lets a page of `origin` read an answer; none for other pages."""
        if origin is None or not self.lists(origin):
            return {}
        if ANY in self._allowed:
            return {"Access-Control-Allow-Origin": ANY, **_EXPOSED}
        allow = {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}
        return {**allow, **_EXPOSED, "Vary": "Origin"}


_EXPOSED = {"Access-Control-Expose-Headers": "Content-Disposition, Retry-After, Retry-After-Ms, X-Request-Id"}


def _is_local(origin: str) -> bool:
    """Whether an origin is that of a page that a server of this machine sends."""
    parts = _page(origin)
    return parts is not None and parts.hostname in _LOCAL_HOSTS


def _is_own(origin: str, host: str) -> bool:
    """Whether an origin is that of a page of this server. The scheme may be that of a proxy before it."""
    parts = _page(origin)
    return parts is not None and host != "" and parts.netloc.lower() == host.lower()


def _page(origin: str) -> SplitResult | None:
    """Return the parts of the origin of a web page; None for another one, and for what is none."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") else None


def _opens_a_page(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a person follows a link: what opens is no part of the page with the link, which can't read it."""
    wanted = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
    return method in _PLAIN_LOADS and wanted == ("navigate", "document")


def _origin_of(url: str) -> str:
    """Return the origin of a page at `url`; an opaque one, `null`, for what is no web page."""
    parts = _page(url)
    return "null" if parts is None else f"{parts.scheme}://{parts.netloc}"
