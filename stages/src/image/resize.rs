//! Pillow's antialiased resampling, bit for bit (`src/libImaging/Resample.c`): coefficients of 22 fractional bits, a
//! horizontal pass rounded to bytes and a vertical pass, in the order that Pillow chooses.
//!
//! A coefficient of 24 bits is split into two 16-bit halves, `c = high * 2^15 + low`, so that inner products of 16-bit
//! values (one `pmaddwd` for eight on plain x86-64) give the exact sum without 32-bit multiplications. Partial sums may
//! wrap; the whole sum fits, so the result does not depend on it.

use weft_engine::card::ResizeFilter;

const PRECISION: u32 = 32 - 8 - 2;
const SPLIT: u32 = 15;
/// Taps are padded with zero coefficients to a multiple of this.
const LANES: usize = 8;

/// Taps of one axis.
pub(super) struct Axis {
    taps: Vec<Tap>,
    high: Vec<i16>,
    low: Vec<i16>,
    whole: Vec<i32>,
    /// Coefficients of one output position, padding included.
    stride: usize,
    from: usize,
}

#[derive(Clone, Copy)]
struct Tap {
    start: usize,
    len: usize,
}

impl Axis {
    /// Coefficients that take `from` samples to `to`.
    pub(super) fn new(from: usize, to: usize, filter: ResizeFilter) -> Self {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let support = reach(filter) * stretch;
        let stride = (support.ceil() as usize * 2 + 1).next_multiple_of(LANES);
        let mut axis = Self {
            taps: Vec::with_capacity(to),
            high: vec![0; to * stride],
            low: vec![0; to * stride],
            whole: vec![0; to * stride],
            stride,
            from,
        };
        let mut weights = Vec::with_capacity(stride);
        for out in 0..to {
            let center = (out as f64 + 0.5) * scale;
            let start = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            weights.clear();
            weights.extend((start..end).map(|x| weight(filter, (x as f64 - center + 0.5) * (1.0 / stretch))));
            let sum: f64 = weights.iter().sum();
            for (i, weight) in weights.iter().enumerate() {
                let share = if sum == 0.0 { *weight } else { weight / sum } * f64::from(1 << PRECISION);
                let whole = (share + 0.5f64.copysign(share)) as i32;
                axis.whole[out * stride + i] = whole;
                axis.high[out * stride + i] = (whole >> SPLIT) as i16;
                axis.low[out * stride + i] = (whole & ((1 << SPLIT) - 1)) as i16;
            }
            axis.taps.push(Tap { start, len: end - start });
        }
        axis
    }

    fn len(&self) -> usize {
        self.taps.len()
    }

    fn is_identity(&self) -> bool {
        self.from == self.len()
    }
}

/// Both axes of one resize.
pub(super) struct Resize {
    columns: Axis,
    rows: Axis,
}

impl Resize {
    /// From one size to another, each as `(width, height)`.
    pub(super) fn new(from: (usize, usize), to: (usize, usize), filter: ResizeFilter) -> Self {
        Self { columns: Axis::new(from.0, to.0, filter), rows: Axis::new(from.1, to.1, filter) }
    }

    /// Rows `rows` of the result, three bytes a pixel, from the whole source.
    pub(super) fn band(&self, rgb: &[u8], rows: std::ops::Range<usize>) -> Vec<u8> {
        let source = self.columns.from * 3;
        let taps = &self.rows.taps[rows.clone()];
        let (Some(first), Some(last)) = (taps.first(), taps.last()) else {
            return Vec::new();
        };
        let needed = if self.rows.is_identity() { rows.clone() } else { first.start..last.start + last.len };
        let origin = needed.start;
        let lines = &rgb[needed.start * source..needed.end * source];
        if self.rows.is_identity() {
            return self.narrow(lines);
        }
        if self.rows_first() {
            return self.narrow(&self.shorten(lines, source, origin, rows));
        }
        self.shorten(&self.narrow(lines), self.columns.len() * 3, origin, rows)
    }

    /// Whether the vertical pass comes first, as in Pillow since 13.0: when the height loses more than twice what the
    /// width loses. The passes round to bytes in between, so their order shows.
    fn rows_first(&self) -> bool {
        let lost = |axis: &Axis| axis.from as i64 - axis.len() as i64;
        lost(&self.rows) > 0 && lost(&self.rows) > 2 * lost(&self.columns)
    }

    /// The vertical pass: rows `rows` of the result from lines of `width` bytes, the first of which is line `origin`.
    fn shorten(&self, lines: &[u8], width: usize, origin: usize, rows: std::ops::Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(rows.len() * width);
        let mut sums = vec![0i32; width];
        for row in rows {
            let Tap { start, len } = self.rows.taps[row];
            sums.fill(1 << (PRECISION - 1));
            let weights = &self.rows.whole[row * self.rows.stride..][..len];
            let lines = lines[(start - origin) * width..].chunks_exact(width);
            for (&weight, line) in weights.iter().zip(lines) {
                for (sum, &value) in sums.iter_mut().zip(line) {
                    *sum = sum.wrapping_add(i32::from(value).wrapping_mul(weight));
                }
            }
            out.extend(sums.iter().map(|&sum| clip(sum)));
        }
        out
    }

    /// The horizontal pass over whole lines.
    fn narrow(&self, rgb: &[u8]) -> Vec<u8> {
        if self.columns.is_identity() {
            return rgb.to_vec();
        }
        let axis = &self.columns;
        let mut out = vec![0u8; rgb.len() / (axis.from * 3) * axis.len() * 3];
        // One line as three planes of 16-bit values, with room for the zero coefficients past its end.
        let mut planes = vec![0i16; 3 * (axis.from + axis.stride)];
        let (red, rest) = planes.split_at_mut(axis.from + axis.stride);
        let (green, blue) = rest.split_at_mut(axis.from + axis.stride);
        for (line, target) in rgb.chunks_exact(axis.from * 3).zip(out.chunks_exact_mut(axis.len() * 3)) {
            for (((pixel, r), g), b) in line.chunks_exact(3).zip(&mut *red).zip(&mut *green).zip(&mut *blue) {
                (*r, *g, *b) = (i16::from(pixel[0]), i16::from(pixel[1]), i16::from(pixel[2]));
            }
            let weights = axis.high.chunks_exact(axis.stride).zip(axis.low.chunks_exact(axis.stride));
            for ((pixel, tap), (high, low)) in target.chunks_exact_mut(3).zip(&axis.taps).zip(weights) {
                let padded = tap.len.next_multiple_of(LANES);
                let (high, low) = (&high[..padded], &low[..padded]);
                for (value, plane) in pixel.iter_mut().zip([&*red, &*green, &*blue]) {
                    let samples = &plane[tap.start..tap.start + padded];
                    let sum = (inner(samples, high) << SPLIT).wrapping_add(inner(samples, low));
                    *value = clip(sum.wrapping_add(1 << (PRECISION - 1)));
                }
            }
        }
        out
    }
}

#[inline]
fn inner(samples: &[i16], weights: &[i16]) -> i32 {
    samples.iter().zip(weights).fold(0i32, |sum, (&a, &b)| sum.wrapping_add(i32::from(a) * i32::from(b)))
}

#[inline]
fn clip(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

const fn reach(filter: ResizeFilter) -> f64 {
    match filter {
        ResizeFilter::Bilinear => 1.0,
        ResizeFilter::Bicubic => 2.0,
        ResizeFilter::Lanczos => 3.0,
    }
}

fn weight(filter: ResizeFilter, x: f64) -> f64 {
    let near = x.abs();
    match filter {
        ResizeFilter::Bilinear => (1.0 - near).max(0.0),
        ResizeFilter::Bicubic => {
            const A: f64 = -0.5;
            if near < 1.0 {
                ((A + 2.0) * near - (A + 3.0)) * near * near + 1.0
            } else if near < 2.0 {
                (((near - 5.0) * near + 8.0) * near - 4.0) * A
            } else {
                0.0
            }
        }
        ResizeFilter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
        ResizeFilter::Lanczos => 0.0,
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pillow's loops as they stand, without the split.
    fn naive(rgb: &[u8], from: (usize, usize), to: (usize, usize), filter: ResizeFilter) -> Vec<u8> {
        let (columns, rows) = (Axis::new(from.0, to.0, filter), Axis::new(from.1, to.1, filter));
        let pass = |axis: &Axis, lines: usize, at: &dyn Fn(usize, usize, usize) -> u8| {
            let mut out = Vec::new();
            for line in 0..lines {
                for (i, tap) in axis.taps.iter().enumerate() {
                    for channel in 0..3 {
                        let weights = &axis.whole[i * axis.stride..];
                        let sum =
                            (0..tap.len).map(|k| i64::from(at(line, tap.start + k, channel)) * i64::from(weights[k]));
                        out.push(((sum.sum::<i64>() + (1 << 21)) >> 22).clamp(0, 255) as u8);
                    }
                }
            }
            out
        };
        if from.1 > to.1 && from.1 - to.1 > (2 * from.0).saturating_sub(2 * to.0) {
            let short = pass(&rows, from.0, &|x, y, c| rgb[(y * from.0 + x) * 3 + c]);
            return pass(&columns, to.1, &|y, x, c| short[(x * to.1 + y) * 3 + c]);
        }
        let wide = pass(&columns, from.1, &|y, x, c| rgb[(y * from.0 + x) * 3 + c]);
        let turned = pass(&rows, to.0, &|x, y, c| wide[(y * to.0 + x) * 3 + c]);
        (0..to.1 * to.0 * 3).map(|i| turned[((i / 3 % to.0) * to.1 + i / 3 / to.0) * 3 + i % 3]).collect()
    }

    #[test]
    fn split_coefficients_and_bands_equal_the_plain_loops() {
        for (from, to) in [
            ((37, 23), (9, 50)),
            ((300, 200), (16, 16)),
            ((9, 9), (40, 40)),
            ((2000, 3), (4, 3)),
            ((5, 400), (5, 7)),
            ((40, 60), (50, 31)),
        ] {
            let rgb: Vec<u8> = (0..from.0 * from.1 * 3).map(|i| (i * 7919 % 251 * (i % 3 + 1)) as u8).collect();
            for filter in [ResizeFilter::Bilinear, ResizeFilter::Bicubic, ResizeFilter::Lanczos] {
                let resize = Resize::new(from, to, filter);
                let mut bands = resize.band(&rgb, 0..to.1 / 2);
                bands.extend(resize.band(&rgb, to.1 / 2..to.1));
                assert_eq!(bands, naive(&rgb, from, to, filter), "{from:?} to {to:?} {filter:?}");
            }
        }
    }
}
