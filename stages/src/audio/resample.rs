//! Change of sample rate of one channel, in a stream: band-limited (FFT, Blackman-Harris window), without delay, and of the
//! length that the ratio gives.

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

use crate::error::{ErrorKind, Result, StageError};

/// Input samples of one block: long enough for a steep edge (pass band to 0.97 of the lower rate's half).
const BLOCK: usize = 4096;

/// See the module.
pub(super) struct Resampler {
    fft: Option<Fft<f32>>,
    from: u64,
    to: u64,
    waiting: Vec<f32>,
    block: Vec<f32>,
    taken: u64,
    given: u64,
    /// Leading samples that are the filter's delay.
    late: usize,
}

impl Resampler {
    /// From one rate to another, in samples a second.
    pub(super) fn new(from: u32, to: u32) -> Result<Self> {
        let fft = if from == to {
            None
        } else {
            let window = WindowFunction::BlackmanHarris2;
            let made = Fft::new_custom(from as usize, to as usize, block(from, to), 1, 1, window, FixedSync::Both);
            Some(made.map_err(|error| fault(&error))?)
        };
        let late = fft.as_ref().map_or(0, |fft| fft.output_delay());
        let block = vec![0.0; fft.as_ref().map_or(0, |fft| fft.output_frames_max())];
        Ok(Self { fft, from: from.into(), to: to.into(), waiting: Vec::new(), block, taken: 0, given: 0, late })
    }

    /// Takes samples and appends what is ready.
    pub(super) fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<()> {
        self.taken += samples.len() as u64;
        let Some(need) = self.fft.as_ref().map(|fft| fft.input_frames_next()) else {
            out.extend_from_slice(samples);
            return Ok(());
        };
        self.waiting.extend_from_slice(samples);
        let mut at = 0;
        while self.waiting.len() - at >= need {
            self.step(at, need, out)?;
            at += need;
        }
        self.waiting.drain(..at);
        Ok(())
    }

    /// Appends the rest, so that the whole has the input's length times the ratio, rounded.
    pub(super) fn finish(mut self, out: &mut Vec<f32>) -> Result<()> {
        if self.fft.is_none() {
            return Ok(());
        }
        let whole = (self.taken * self.to + self.from / 2) / self.from;
        let mut left = self.waiting.len();
        while self.given < whole {
            self.step(0, left, out)?;
            left = 0;
        }
        let surplus = usize::try_from(self.given - whole).unwrap_or(0);
        out.truncate(out.len() - surplus);
        Ok(())
    }

    /// One block: `count` samples from `at`, and silence where these are fewer than a block.
    fn step(&mut self, at: usize, count: usize, out: &mut Vec<f32>) -> Result<()> {
        let Some(fft) = &mut self.fft else {
            return Ok(());
        };
        let need = fft.input_frames_next();
        let partial = (count < need).then_some(count);
        let padded;
        let input = if partial.is_some() {
            let mut block = self.waiting[at..at + count].to_vec();
            block.resize(need, 0.0);
            padded = block;
            &padded[..]
        } else {
            &self.waiting[at..at + need]
        };
        let frames = self.block.len();
        let source = InterleavedSlice::new(input, 1, need).map_err(|error| fault(&error))?;
        let mut target = InterleavedSlice::new_mut(&mut self.block, 1, frames).map_err(|error| fault(&error))?;
        let indexing = Indexing { partial_len: partial, ..Indexing::default() };
        let (_, made) =
            fft.process_into_buffer(&source, &mut target, Some(&indexing)).map_err(|error| fault(&error))?;
        let skipped = self.late.min(made);
        self.late -= skipped;
        self.given += (made - skipped) as u64;
        out.extend_from_slice(&self.block[skipped..made]);
        Ok(())
    }
}

// An even number of smallest blocks: half a block of input, the filter's delay, is then a whole number of output samples.
fn block(from: u32, to: u32) -> usize {
    let gcd = |mut a: u32, mut b: u32| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let smallest = (from / gcd(from, to)) as usize;
    smallest * BLOCK.div_ceil(smallest).next_multiple_of(2)
}

fn fault(error: &dyn std::fmt::Display) -> StageError {
    StageError::new(ErrorKind::Internal, format!("the sample rate cannot be changed: {error}"))
}
