//! Memory aligned to cache lines, read as bytes, 16-bit words or floats.

#![expect(unsafe_code, reason = "reinterprets aligned plain memory")]

/// One cache line; also the widest vector.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A heap buffer aligned to 64 bytes.
pub(crate) struct Buffer {
    lines: Vec<Line>,
}

impl Buffer {
    /// At least `bytes` zero bytes, rounded up to whole lines.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        Self { lines: vec![Line([0; 64]); bytes.div_ceil(64)] }
    }

    /// Bytes, whole lines.
    pub(crate) fn len(&self) -> usize {
        self.lines.len() * 64
    }

    /// The contents, as elements of a plain type.
    pub(crate) fn as_elements<T: Plain>(&self) -> &[T] {
        let count = self.len() / size_of::<T>();
        // SAFETY: as in `elements`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), count) }
    }

    /// The contents, to be written as elements of a plain type.
    pub(crate) fn elements<T: Plain>(&mut self) -> &mut [T] {
        let count = self.len() / size_of::<T>();
        // SAFETY: `Plain` types allow any bit pattern, need at most 64-byte alignment and fit `count` times.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), count) }
    }
}

/// Types of which every bit pattern is a value.
///
/// # Safety
/// Size and alignment are at most 64 and the alignment is a power of two, any bytes are valid, and there is no padding.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: a primitive number.
unsafe impl Plain for u8 {}
// SAFETY: five 4-byte numbers.
unsafe impl Plain for super::quant::ActivationBlock {}
// SAFETY: a primitive number.
unsafe impl Plain for i8 {}
// SAFETY: a primitive number.
unsafe impl Plain for f32 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::f16 {}
// SAFETY: a transparent u16.
unsafe impl Plain for half::bf16 {}
