//! The integration tests live in the test binary `suite`; this library is empty.
