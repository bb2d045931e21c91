//! Lets a client read its refusal. A server that answers in the middle of an upload and closes makes the kernel reset
//! the connection, and the client loses the answer together with the rest of its bytes. So whatever a handler leaves
//! unread of a body is read on in the background and thrown away, up to a number of bytes and seconds; past them the
//! connection closes. Nothing here looks at the bytes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::extract::Request;
use axum::http::header;
use futures_util::{Stream, StreamExt as _};

/// Most bytes that are read on for one request.
const LINGER_BYTES: usize = 256 << 20;
/// Longest time that they are read on.
const LINGER: Duration = Duration::from_secs(10);

/// The request with a body that is read on after its reader is gone. A client that asked with `Expect: 100-continue`
/// sends nothing before it is told to, so there is nothing to read on.
pub(super) fn linger(request: Request) -> Request {
    if request.body().is_end_stream() || request.headers().contains_key(header::EXPECT) {
        return request;
    }
    request.map(|body| Body::from_stream(Lingering(Some(body.into_data_stream()))))
}

/// A body; `None` once it ended.
struct Lingering(Option<BodyDataStream>);

impl Stream for Lingering {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(rest) = &mut self.0 else { return Poll::Ready(None) };
        let item = std::task::ready!(rest.poll_next_unpin(context));
        if !matches!(item, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(item)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(mut rest) = self.0.take() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let read_on = async move {
            let mut left = LINGER_BYTES;
            while let Some(Ok(chunk)) = rest.next().await {
                let Some(fewer) = left.checked_sub(chunk.len()) else { return };
                left = fewer;
            }
        };
        drop(runtime.spawn(tokio::time::timeout(LINGER, read_on)));
    }
}
