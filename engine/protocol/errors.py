"""The one tree of errors. Each class says whose fault it is, and whether a retry helps.

    FewerError
    ├── ClientError                 the request is wrong; sending it again will not help
    │   ├── InvalidRequest          400  a field is malformed, of a wrong type, or out of range
    │   │   └── ContextLengthExceeded    prompt + n x output can never fit
    │   ├── Unauthenticated         401  no key, or a wrong, revoked or expired one
    │   ├── Forbidden               403  a good key that may not do this
    │   ├── NotFound                404  no such page, model, route or method
    │   │   └── ModelNotFound
    │   ├── TooLarge                413  the body is over the limit
    │   └── RateLimited             429  a limit of the caller's own
    ├── ServiceError                we, or what is behind us, cannot serve now; a retry may help
    │   ├── Overloaded              503  the queue is full, or the deadline cannot be met
    │   ├── Unavailable             503  a backend is down, restarting or draining
    │   ├── UpstreamFailed          502  a backend answered nonsense or broke off
    │   ├── DeadlineExceeded        504  time ran out
    │   └── InternalFault           500  a bug of ours
    ├── Cancelled                   499  the client left; nobody reads the answer
    └── SetupError                  at start-up: one line for the person at the terminal
        ├── ConfigError             fewer.yaml: file, line, key and what to do
        └── ModelFileError          a model file that is missing, cut short or unsupported

The wire form is OpenAI's: `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

from typing import Any


class FewerError(Exception):
    """Base of all errors of the project.

    status:        HTTP status
    type:          OpenAI's `error.type`
    code:          OpenAI's `error.code`, stable, for programs
    param:         the request field at fault, if one is
    retry_after_s: seconds to wait before a retry can succeed; None where waiting will not help
    """

    status: int = 500
    type: str = "server_error"
    code: str | None = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code

    def to_wire(self) -> dict[str, Any]:
        """OpenAI's error object, the value of the key `error` included."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }


class ClientError(FewerError):
    status, type, code = 400, "invalid_request_error", "invalid_request"


class InvalidRequest(ClientError):
    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class Unauthenticated(ClientError):
    status, type, code = 401, "authentication_error", "invalid_api_key"


class Forbidden(ClientError):
    status, type, code = 403, "permission_error", "forbidden"


class NotFound(ClientError):
    status, code = 404, "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class TooLarge(ClientError):
    status, code = 413, "request_too_large"


class RateLimited(ClientError):
    status, type, code = 429, "rate_limit_error", "rate_limit_exceeded"


class ServiceError(FewerError):
    status, type, code = 503, "server_error", "service_unavailable"


class Overloaded(ServiceError):
    code = "overloaded"


class Unavailable(ServiceError):
    code = "unavailable"


class UpstreamFailed(ServiceError):
    status, code = 502, "upstream_failed"


class DeadlineExceeded(ServiceError):
    status, type, code = 504, "timeout_error", "deadline_exceeded"


class InternalFault(ServiceError):
    status, code = 500, "internal_error"


class Cancelled(FewerError):
    status, type, code = 499, "cancelled", "cancelled"


class SetupError(FewerError):
    code = "setup_error"


class ConfigError(SetupError):
    code = "config_error"


class ModelFileError(SetupError):
    code = "model_file_error"


_BY_CODE: dict[str, type[FewerError]] = {
    kind.code: kind
    for kind in (
        ClientError, InvalidRequest, ContextLengthExceeded, Unauthenticated, Forbidden, NotFound,
        ModelNotFound, TooLarge, RateLimited, ServiceError, Overloaded, Unavailable,
        UpstreamFailed, DeadlineExceeded, InternalFault, Cancelled,
    )
    if kind.code is not None
}  # fmt: skip


def from_code(
    code: str, message: str, *, param: str | None = None, retry_after_s: float | None = None
) -> FewerError:
    """The error that a peer named by `code`; an unknown code is a failed upstream."""
    kind = _BY_CODE.get(code, UpstreamFailed)
    return kind(message, param=param, retry_after_s=retry_after_s)
