"""Serve the page on a loopback address, for a browser on this machine."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from eventbus.errors import ConfigError


def open_server(page: str, document: str, port: int) -> ThreadingHTTPServer:
    """Serve ``/`` and ``/asyncapi.json`` on 127.0.0.1; 0 is any free port. Raises ConfigError if the port is in use."""
    answers = {
        "/": ("text/html; charset=utf-8", page.encode()),
        "/asyncapi.json": ("application/json", document.encode()),
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content_type, body = answers.get(self.path.partition("?")[0], ("text/plain", b""))
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do nothing: requests for the page are not logged."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Answers)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"port {port} cannot be listened on: {reason}; choose another with --port") from None
