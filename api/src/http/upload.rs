//! Multipart uploads, read field by field under limits.

use axum::extract::Multipart;
use axum::extract::multipart::{Field, MultipartError};
use bytes::Bytes;
use weft_pipelines::config::Limits;
use weft_pipelines::{Error, ErrorKind};

use super::ApiError;

/// A multipart field, read whole.
pub(super) enum Uploaded {
    /// A file or a field named as one.
    File(Bytes),
    /// A plain value.
    Text(String),
}

/// Reads the fields in order and hands each to `take(name, value)`. Names in `files` are media, the rest is text.
pub(super) async fn read(
    mut form: Multipart,
    limits: &Limits,
    files: &[&str],
    mut take: impl FnMut(&str, Uploaded) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    while let Some(field) = form.next_field().await.map_err(broken)? {
        let Some(name) = field.name().map(str::to_owned) else {
            return Err(ApiError::malformed("body", "a multipart field has no name"));
        };
        let is_file = files.contains(&name.trim_end_matches("[]"));
        let limit = if is_file { limits.media_bytes } else { limits.prompt_bytes };
        let bytes = bounded(field, &name, limit).await?;
        let value = if is_file {
            if bytes.is_empty() {
                return Err(ApiError::malformed(&name, "the file is empty"));
            }
            Uploaded::File(bytes)
        } else {
            let text = String::from_utf8(bytes.into()).map_err(|_| ApiError::malformed(&name, "not UTF-8 text"))?;
            Uploaded::Text(text)
        };
        take(name.trim_end_matches("[]"), value)?;
    }
    Ok(())
}

async fn bounded(mut field: Field<'_>, name: &str, limit: usize) -> Result<Bytes, ApiError> {
    let mut whole = Vec::new();
    while let Some(chunk) = field.chunk().await.map_err(broken)? {
        if whole.len() + chunk.len() > limit {
            let detail = format!("{name} is larger than the limit of {limit} bytes");
            return Err(Error::new(ErrorKind::TooLarge, detail).about(name).into());
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole.into())
}

fn broken(error: MultipartError) -> ApiError {
    if error.status().as_u16() == 413 {
        return Error::new(ErrorKind::TooLarge, "the upload is larger than this server accepts").about("body").into();
    }
    ApiError::malformed("body", format!("broken multipart upload: {}", error.body_text()))
}
