"""Admission of requests: checks of the machine, host name, web page and API key; a bound on parallel requests."""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from urllib.parse import SplitResult, urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from rnn_engine.errors import InvalidRequestError, OverloadedError
from rnn_engine.requests import ANONYMOUS, Client
from rnn_engine_server.auth.keys import ANYONE, KeyRing, Principal
from rnn_engine_server.core.call import RECORD
from rnn_engine_server.core.routing import LIFECYCLE, path_of, route_of
from rnn_engine_server.core.settings import ANY, LOCAL, AuthSettings, ServerSettings, check_origin

_log = logging.getLogger(__name__)


def is_local(address: object) -> bool:
    """Return True if a socket's address, as Python's `socket` gives it, can be reached from this machine alone.

    Loopback addresses and paths of Unix sockets are local. None, the address of a connection that has ended, is not.
    """
    if isinstance(address, str | bytes):
        return True
    ip = _ip_of(str(address[0])) if isinstance(address, tuple) and address else None
    return ip is not None and ip.is_loopback


def network_of(address: str) -> str:
    """Return the unit in which clients are counted: an IPv4 address itself, or the /64 network of an IPv6 address.

    One client usually has all addresses of such a network.
    """
    ip = _ip_of(address)
    return address if ip is None or ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))


def _ip_of(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address, which may have a zone; an IPv6 address that stands for one of IPv4 becomes that one."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return getattr(ip, "ipv4_mapped", None) or ip


def check_listener(listener: socket.socket, auth: AuthSettings) -> None:
    """Raise InvalidRequestError if other machines can reach a socket and the server asks for no API key.

    If the operator has chosen to admit everybody, log a warning instead.

    llama-server and vLLM listen on `0.0.0.0` without a key and without a warning, and people copy that command from
    one machine to the next. Here the command fails before the model is loaded, with an error that names the two ways
    on: a server that others can use by accident is the worse surprise.
    """
    address = listener.getsockname()
    if auth.keys or is_local(address):
        return
    if not auth.open:
        raise InvalidRequestError(
            "host",
            address[0],
            "a loopback address such as 127.0.0.1",
            f"other machines can reach {address[0]}, and there is no API key; set one with --api-key or "
            "--api-key-file, or admit every machine with --open",
        )
    _log.warning("no API key is asked for: whoever reaches %s may use the server and change what it keeps", address[0])


# The Host header, checked against DNS rebinding.
#
# If evil.example is made to resolve to 127.0.0.1, a browser takes a page of evil.example to be of the server's own
# origin. Only the name in Host shows the difference, so names have to be listed. Any IP address passes: a page that
# calls an address was itself loaded from that address, without DNS. A request without Host comes from no browser.
#
# If API keys are required, such a page can do nothing, since it has none. Host is then checked only if names are
# listed.

_HOST_AND_PORT = re.compile(r"(\[[^\[\]]*\]|[^:]*)(?::[0-9]*)?")


class AllowedHosts:
    """The host names under which the server answers requests; `localhost` is always one."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {_plain_host(name) for name in ("localhost", *names)}

    def __contains__(self, header: object) -> bool:
        """Return True if a Host header, with or without a port, has an allowed name or any IP address."""
        match = _HOST_AND_PORT.fullmatch(header) if isinstance(header, str) else None
        if match is None:
            return False
        name = _plain_host(match[1])
        return name in self._names or _is_address(name)


def _plain_host(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


# The web pages that may call the server: its own, and those of listed origins.
#
# A browser says which page a request comes from: in Origin for everything except plain loads (links, images, scripts),
# in Sec-Fetch-Site for all requests to this machine or over HTTPS, and else in Referer, unless the page hides it.
# A request from another page is rejected before anything is read or changed, so it does not matter which bodies a page
# can send without a preflight (a form, `text/plain`). The type of a body is therefore not checked: `curl -d` labels
# its JSON as a form although it is no web page.
#
# Links on other pages open the server's pages (`Route.is_page`) and nothing else. A GET that changes something
# (`Route.changes_by_get`) is rejected if a browser sends it, except on the server's own page and on listed origins.
# Other pages can hide themselves, and an address that a person typed counts as no page's even if another site redirects
# to it.

_PLAIN_LOADS = ("GET", "HEAD")
_BROWSERS = "Mozilla/"  # how the User-Agent of every browser begins
_LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class Origins:
    """The list of web origins whose pages may call the server, and the CORS headers for them."""

    def __init__(self, allowed: Iterable[str]) -> None:
        """Store the allowed origins. Raises InvalidRequestError if one of `allowed` is not an origin."""
        self._allowed = frozenset(map(check_origin, allowed))

    def lists(self, origin: str | None) -> bool:
        """Return True if the list allows pages of `origin`. The server's own origin need not be on the list."""
        if origin is None:
            return False
        named = ANY in self._allowed or origin.lower() in self._allowed
        page = _page(origin)
        return named or (LOCAL in self._allowed and page is not None and page.hostname in _LOCAL_HOSTS)

    def admits(
        self, method: str, headers: Mapping[str, str], *, is_page: bool = False, changes_by_get: bool = False
    ) -> bool:
        """Return True if the request may come in: no web page made a browser send it, or that page may call the server.

        With `is_page`, a link on any page may open the answer as a page of its own.
        """
        origin, site, referrer = (headers.get(name) for name in ("Origin", "Sec-Fetch-Site", "Referer"))
        if origin is not None:  # a proxy in front may have replaced Host, but not what the browser says
            return site == "same-origin" or self._may_call(origin, headers)
        if changes_by_get:  # after a redirect `none` and the referrer say nothing
            from_browser = site or referrer or headers.get("User-Agent", "").startswith(_BROWSERS)
            return site == "same-origin" or not from_browser
        if site is not None:
            wanted = headers.get("Sec-Fetch-Mode"), headers.get("Sec-Fetch-Dest")
            opens_page = method in _PLAIN_LOADS and wanted == ("navigate", "document")  # a link's page can't read it
            return site in ("none", "same-origin") or (is_page and opens_page)
        if method not in _PLAIN_LOADS or is_page or referrer is None:  # with all other methods browsers send Origin
            return True
        page = _page(referrer)
        return self._may_call("null" if page is None else f"{page.scheme}://{page.netloc}", headers)

    def _may_call(self, origin: str, headers: Mapping[str, str]) -> bool:
        page, host = _page(origin), headers.get("Host", "")
        # The schemes are not compared: a proxy in front may use another.
        is_own = page is not None and host != "" and page.netloc.lower() == host.lower()
        return is_own or self.lists(origin)

    def headers(self, origin: str | None) -> Mapping[str, str]:
        """Return the CORS headers that let a page of `origin` read an answer; none if the origin is not listed."""
        if origin is None or not self.lists(origin):
            return {}
        if ANY in self._allowed:
            return {"Access-Control-Allow-Origin": ANY, **_EXPOSED}
        allow = {"Access-Control-Allow-Origin": origin, "Access-Control-Allow-Credentials": "true"}
        return {**allow, **_EXPOSED, "Vary": "Origin"}


_EXPOSED = {"Access-Control-Expose-Headers": "Content-Disposition, Retry-After, Retry-After-Ms, X-Request-Id"}


def _page(origin: str) -> SplitResult | None:
    """Parse the URL or origin of a web page. Return None if it is not http or https, or can't be parsed."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts if parts.scheme in ("http", "https") else None


_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # answers hold texts
}
_METHODS = "GET, POST, PUT, DELETE, OPTIONS"
_PREFLIGHT_HEADERS = {"Access-Control-Allow-Private-Network": "true", "Access-Control-Max-Age": "86400"}


def origins_middleware(settings: ServerSettings) -> Middleware:
    """Return middleware that answers 403 to requests from machines, host names or web pages that are not allowed.

    The API key is checked later.
    """
    auth, keyless = settings.auth, not settings.auth.keys
    only_local = keyless and not auth.open
    hosts = AllowedHosts((settings.host, *auth.allowed_hosts)) if keyless or auth.allowed_hosts else None
    origins = Origins(auth.cors_origins)

    def refusal(request: web.Request) -> str | None:
        if only_local and not is_local(request.get_extra_info("peername")):
            return "without an API key this server answers its own machine only"
        host = request.headers.get(hdrs.HOST)
        if hosts is not None and host is not None and host not in hosts:
            return f"host: {host[:80]!r} is not a name of this server; its operator may add it with --allowed-host"
        route = route_of(request)
        admitted = origins.admits(
            request.method,
            request.headers,
            is_page=route is not None and route.is_page,
            changes_by_get=route is not None and route.changes_by_get,
        )
        return None if admitted else _refusal(request)

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        refused = refusal(request)
        readable = _READABLE if refused is not None and hdrs.ORIGIN in request.headers else {}
        if request.method == hdrs.METH_OPTIONS and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers:
            wanted = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "*")
            allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Allow-Headers": wanted}
            return web.Response(headers={**allowed, **(readable or _PREFLIGHT_HEADERS)})
        if refused is not None:
            raise web.HTTPForbidden(text=refused, headers=readable)
        return await handler(request)

    return admit


_READABLE = {"Access-Control-Allow-Origin": ANY}
"""Lets a page that is not admitted read why. It can read that alone: its next request is refused, too."""


def _refusal(request: web.Request) -> str:
    """Return the error text that says why a web page's request is rejected."""
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None:
        return (
            f"a page of {origin[:80]!r} may not call this server; its operator may allow it with --cors-origin. If it "
            "is the server's own page behind a proxy, the proxy should pass on the header Host"
        )
    return (
        f"{request.method} {request.path[:80]} comes from a page of another site, or from a browser that does "
        "not send its page's origin; other sites may only link to this server's pages"
    )


def header_setter(settings: ServerSettings) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return a signal handler that adds the security and CORS headers to every answer, streams included."""
    origins = Origins(settings.auth.cors_origins)

    async def set_headers(request: web.Request, response: web.StreamResponse) -> None:
        for name, value in (*_SECURITY_HEADERS.items(), *origins.headers(request.headers.get(hdrs.ORIGIN)).items()):
            response.headers.setdefault(name, value)

    return set_headers


# Who sent a request.

PRINCIPAL: web.RequestKey[Principal] = web.RequestKey("principal", Principal)
"""Who sent a request. Absent if the key was wrong, or if none was checked, as on routes that always answer."""


def client_of(request: web.Request) -> Client:
    """Return the client to whose limits a request counts: its API key or, without keys, its address or IPv6 network.

    Requests of routes that need no key share one client.
    """
    if (principal := request.get(PRINCIPAL)) is None:
        return ANONYMOUS
    return Client(principal.name or network_of(request.remote or ""), principal.weight)


_API_KEY = "X-Api-Key"
_ADMIN_TOKEN, _ADMIN_PATHS = "admin_token", ("/admin/", "/api/admin/")


def admission_middleware(settings: ServerSettings) -> Middleware:
    """Return middleware that checks a request's API key and its scope and counts the request as running.

    Routes that always answer need no key and are not counted.
    """
    ring = KeyRing(settings.auth.keys) if settings.auth.keys else None

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = route_of(request)
        if route is not None and route.always:
            return await handler(request)
        principal = request[PRINCIPAL] = ANYONE if ring is None else _principal(request, ring)
        request[RECORD].key = principal.name or None
        if route is not None and not principal.scope.includes(route.scope):
            raise web.HTTPForbidden(
                text=f"the API key {principal.name!r} has the scope {principal.scope.value!r}; "
                f"{request.method} {request.path} needs {route.scope.value!r}"
            )
        with request.app[LIFECYCLE].request():
            return await handler(request)

    return admit


def _principal(request: web.Request, ring: KeyRing) -> Principal:
    key = _sent_key(request)
    principal = None if key is None else ring.find(key)
    if principal is None:
        raise web.HTTPUnauthorized(
            text="the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            headers={hdrs.WWW_AUTHENTICATE: "Bearer"},
        )
    return principal


def _sent_key(request: web.Request) -> str | None:
    """Return the API key that a request carries in a header or in its query, or None.

    OpenAI's clients send `Authorization: Bearer`, Anthropic's `X-Api-Key`, ai00's admins `admin_token` in the query.
    """
    scheme, _, key = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    in_query = request.query.get(_ADMIN_TOKEN) if path_of(request).startswith(_ADMIN_PATHS) else None
    return request.headers.get(_API_KEY, in_query)


_RETRY_SECONDS = 1.0


def clients_middleware(most: int) -> Middleware:
    """Return middleware that rejects a client's requests while `most` of its requests are running.

    It must run after the check of the key. A client is an API key, or without keys an address. Without keys, requests
    through a Unix socket are not bounded.
    """
    running: Counter[str] = Counter()

    @web.middleware
    async def bound(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not (client := client_of(request).name):
            return await handler(request)
        if running[client] >= most:
            who = f"the API key {client!r}" if request[PRINCIPAL].name else client
            raise OverloadedError(f"{who} has {most} requests running, the most for one client", _RETRY_SECONDS)
        running[client] += 1
        try:
            return await handler(request)
        finally:
            running[client] -= 1
            if running[client] == 0:
                del running[client]

    return bound
