//! The one place where an error class becomes a status number.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use weft_pipelines::{Error, ErrorKind, Reason};

/// An error on its way to a caller: `{"error": {"message", "type", "code", "param", "request_id"}}`.
#[derive(Debug, Clone)]
pub struct ApiError {
    error: Error,
    status: StatusCode,
}

/// Status of an error class.
pub fn status_of(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Malformed => StatusCode::BAD_REQUEST,
        ErrorKind::Unsupported => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ErrorKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        // Nobody reads this answer; the number is for the log.
        ErrorKind::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        ErrorKind::Deadline => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl ApiError {
    /// The service cannot answer yet (models are loading) or no longer (shutting down).
    pub fn unavailable(message: impl Into<String>) -> Self {
        let error = Error::new(ErrorKind::Overloaded, message);
        Self { error, status: StatusCode::SERVICE_UNAVAILABLE }
    }

    /// A fault of this service: the panic is in the log, the caller learns no internals.
    pub fn fault() -> Self {
        Error::new(ErrorKind::Internal, "a fault in this service; the log has its details under the request's id")
            .into()
    }

    /// A caller without a valid key.
    pub fn unauthorized() -> Self {
        let message = "this server asks for a key: send `Authorization: Bearer KEY`";
        Self { error: Error::new(ErrorKind::Malformed, message), status: StatusCode::UNAUTHORIZED }
    }

    /// A wrong method on a known route.
    pub fn method(message: impl Into<String>) -> Self {
        Self { error: Error::new(ErrorKind::Malformed, message), status: StatusCode::METHOD_NOT_ALLOWED }
    }

    /// A request body or parameter that cannot be understood.
    pub fn malformed(param: &str, message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Malformed, message).about(param).into()
    }

    /// A known parameter with a value that this service does not serve: 400, as OpenAI clients expect.
    pub fn unsupported_value(param: &str, message: impl Into<String>) -> Self {
        let error = Error::new(ErrorKind::Unsupported, message).about(param);
        Self { error, status: StatusCode::BAD_REQUEST }
    }

    /// Predicted time until the same request may go well, where it is known.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.error.refusal.map(|refusal| refusal.retry_after)
    }

    /// The JSON that goes out, also as the data of an `error` event in a stream.
    pub fn body(&self, request_id: &str) -> serde_json::Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 | 503 => "overloaded_error",
            500..=599 => "server_error",
            _ => "invalid_request_error",
        };
        json!({ "error": {
            "message": self.error.message,
            "type": kind,
            "code": self.error.kind.name(),
            "param": self.error.param,
            "request_id": request_id,
        }})
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        // What the whole house holds is this service's trouble; a queue is something that callers can wait out.
        let status = match error.refusal.map(|refusal| refusal.reason) {
            Some(Reason::Bytes | Reason::Pixels | Reason::Seconds | Reason::Tokens) => StatusCode::SERVICE_UNAVAILABLE,
            _ => status_of(error.kind),
        };
        Self { error, status }
    }
}

/// Carries the error to [`super::identify`], which knows the request's id and writes the body.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body(""))).into_response();
        if matches!(self.status.as_u16(), 429 | 503) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_its_number() {
        let pairs = [
            (ErrorKind::Malformed, 400),
            (ErrorKind::Unsupported, 415),
            (ErrorKind::TooLarge, 413),
            (ErrorKind::Overloaded, 429),
            (ErrorKind::NotFound, 404),
            (ErrorKind::Cancelled, 499),
            (ErrorKind::Deadline, 504),
            (ErrorKind::Internal, 500),
        ];
        for (kind, number) in pairs {
            assert_eq!(status_of(kind).as_u16(), number, "{kind:?}");
        }
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let response = ApiError::from(Error::new(ErrorKind::Overloaded, "full")).into_response();
        assert!(response.headers().contains_key(header::RETRY_AFTER));
    }
}
