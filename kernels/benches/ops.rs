//! `cargo bench -p weft-kernels --bench ops [-- threads]`: attention, norms and activations in the shapes of the
//! served models, each as a fraction of what the machine could do: multiply-adds in registers for attention, a copy
//! of the same bytes for the others. One table, one run; best of several repetitions.

#![expect(unsafe_code, reason = "calls the multiply-add loop for the instruction set that was detected")]
#![expect(clippy::print_stdout, reason = "the table is the product of this program")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use weft_kernels::shapes::{Activation, AttentionSpec, Mask, PageLayout, PagedSequence, Segment};
use weft_kernels::{Backend, CpuBackend, Result};

/// Best time of one call.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let (start, mut least) = (Instant::now(), f64::INFINITY);
    let mut calls = 0;
    while calls < 5 || (start.elapsed() < Duration::from_millis(700) && calls < 2000) {
        let one = Instant::now();
        f();
        least = least.min(one.elapsed().as_secs_f64());
        calls += 1;
    }
    least
}

#[inline(always)]
fn multiply_adds(rounds: usize) -> [[f32; 16]; 12] {
    let (a, b) = (black_box([1.000_001f32; 16]), black_box([1e-7f32; 16]));
    let mut sums = [[1.0f32; 16]; 12];
    for _ in 0..rounds {
        for sum in &mut sums {
            for i in 0..16 {
                sum[i] = sum[i].mul_add(a[i], b[i]);
            }
        }
    }
    sums
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
fn multiply_adds_avx512(rounds: usize) -> [[f32; 16]; 12] {
    multiply_adds(rounds)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_adds_avx2(rounds: usize) -> [[f32; 16]; 12] {
    multiply_adds(rounds)
}

/// Multiply-adds a second of `threads` threads, in registers.
fn peak(threads: usize) -> f64 {
    const ROUNDS: usize = 1 << 20;
    let one = || {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the instruction set.
            return black_box(unsafe { multiply_adds_avx512(ROUNDS) });
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the instruction set.
            return black_box(unsafe { multiply_adds_avx2(ROUNDS) });
        }
        black_box(multiply_adds(ROUNDS))
    };
    let seconds = best(|| {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(one))));
    });
    (threads * ROUNDS * 12 * 16) as f64 / seconds
}

/// Seconds in which `threads` threads copy `elements`.
fn copy_seconds(threads: usize, elements: usize) -> f64 {
    let from = vec![1.0f32; elements];
    let mut to = vec![0.0f32; elements];
    let part = elements.div_ceil(threads);
    best(|| {
        std::thread::scope(|scope| {
            for (to, from) in to.chunks_mut(part).zip(from.chunks(part)) {
                scope.spawn(|| to.copy_from_slice(black_box(from)));
            }
        });
        black_box(&mut to);
    })
}

fn values(rows: usize, cols: usize) -> Vec<f32> {
    (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect()
}

struct Bench {
    cpu: CpuBackend,
    threads: usize,
    peak: f64,
}

impl Bench {
    fn row(&self, name: &str, seconds: f64, rate: &str, fraction: f64) {
        println!("{name:58} {:10.3} ms  {rate:>16}  {:5.0} %", seconds * 1e3, fraction * 100.0);
    }

    fn attention_row(&self, name: &str, multiply_adds: f64, f: impl FnMut()) {
        let seconds = best(f);
        let rate = multiply_adds / seconds;
        self.row(name, seconds, &format!("{:.1} GFLOP/s", 2e-9 * rate), rate / self.peak);
    }

    fn fresh(&self, name: &str, rows: usize, segment: usize, spec: AttentionSpec) -> Result<()> {
        let q = self.cpu.upload(rows, spec.heads * spec.head_dim, &values(rows, spec.heads * spec.head_dim))?;
        let kv = spec.kv_heads * spec.head_dim;
        let k = self.cpu.upload(rows, kv, &values(rows, kv))?;
        let segments: Vec<_> = (0..rows).step_by(segment).map(|at| Segment::both(at..at + segment)).collect();
        let keys = if spec.mask == Mask::Full { segment as f64 } else { (segment + 1) as f64 / 2.0 };
        let work = rows as f64 * keys * (2 * spec.heads * spec.head_dim) as f64;
        self.attention_row(name, work, || {
            black_box(self.cpu.attention(&q, &k, &k, &segments, &spec).expect("operands fit"));
        });
        Ok(())
    }

    /// One decode step: bound by reading keys and values, so compared with a copy of half as many bytes.
    fn decode(&self, batch: usize, context: usize, spec: AttentionSpec) -> Result<()> {
        let layout = PageLayout { page_tokens: 16, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
        let pages_each = context.div_ceil(16);
        let mut pages = self.cpu.pages(layout, pages_each * batch)?;
        let (tokens, kv) = (pages_each * batch * 16, spec.kv_heads * spec.head_dim);
        let k = self.cpu.upload(tokens, kv, &values(tokens, kv))?;
        self.cpu.kv_write(&mut pages, &k, &k, &(0..tokens as u32).collect::<Vec<_>>())?;
        let q = self.cpu.upload(batch, spec.heads * spec.head_dim, &values(batch, spec.heads * spec.head_dim))?;
        let tables: Vec<Vec<u32>> =
            (0..batch).map(|i| (0..pages_each).map(|p| (p * batch + i) as u32).collect()).collect();
        let sequences: Vec<_> =
            tables.iter().enumerate().map(|(i, table)| PagedSequence { query: i..i + 1, context, table }).collect();
        let seconds = best(|| {
            black_box(self.cpu.paged_attention(&q, &pages, &sequences, &spec).expect("operands fit"));
        });
        let name =
            format!("decode, batch {batch}, context {context}, {}/{} x {}", spec.heads, spec.kv_heads, spec.head_dim);
        let elements = 2 * batch * context * kv;
        let rate = format!("{:.1} GB/s", 4e-9 * elements as f64 / seconds);
        self.row(&name, seconds, &rate, copy_seconds(self.threads, elements / 2) / seconds);
        Ok(())
    }

    /// An operation that reads and writes `rows x cols`, against a copy of them.
    fn streamed(&self, name: &str, (rows, cols): (usize, usize), f: impl FnMut()) {
        let seconds = best(f);
        let elements = rows * cols;
        let rate = format!("{:.1} GB/s", 8e-9 * elements as f64 / seconds);
        let name = format!("{name} [{rows}, {cols}]");
        self.row(&name, seconds, &rate, copy_seconds(self.threads, elements) / seconds);
    }
}

fn spec(heads: usize, kv_heads: usize, head_dim: usize, mask: Mask) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), mask }
}

fn main() -> Result<()> {
    let threads = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(0);
    let cpu = CpuBackend::new(threads);
    let threads = match threads {
        0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        given => given,
    };
    let peak = peak(threads);
    println!("{}: {:.0} GFLOP/s in registers", cpu.describe(), 2e-9 * peak);
    println!("{:58} {:>13}  {:>16}  of bound", "operation", "best", "rate");
    let bench = Bench { cpu: cpu.clone(), threads, peak };
    bench.fresh("whisper encoder: 1500 frames, 6 x 64", 1500, 1500, spec(6, 6, 64, Mask::Full))?;
    bench.fresh("vision, windows of 64 of 4096 patches, 16 x 80", 4096, 64, spec(16, 16, 80, Mask::Full))?;
    bench.fresh("vision, full over 2048 patches, 16 x 80", 2048, 2048, spec(16, 16, 80, Mask::Full))?;
    bench.fresh("prefill of 512, 9/3 x 64", 512, 512, spec(9, 3, 64, Mask::Causal))?;
    bench.fresh("prefill of 512, 16/2 x 128", 512, 512, spec(16, 2, 128, Mask::Causal))?;
    bench.decode(1, 256, spec(9, 3, 64, Mask::Causal))?;
    bench.decode(1, 4096, spec(9, 3, 64, Mask::Causal))?;
    bench.decode(8, 1024, spec(9, 3, 64, Mask::Causal))?;
    bench.decode(1, 4096, spec(16, 2, 128, Mask::Causal))?;
    bench.decode(8, 1024, spec(16, 2, 128, Mask::Causal))?;

    for (rows, cols) in [(1, 576), (64, 576), (1500, 1536), (4096, 1280)] {
        let x = cpu.upload(rows, cols, &values(rows, cols))?;
        let w = cpu.upload(1, cols, &values(1, cols))?;
        let shape = (rows, cols);
        bench.streamed("rms_norm", shape, || drop(black_box(cpu.rms_norm(&x, &w, 1e-6))));
        bench.streamed("layer_norm", shape, || drop(black_box(cpu.layer_norm(&x, &w, Some(&w), 1e-6))));
        bench.streamed("gelu", shape, || drop(black_box(cpu.activate(&x, Activation::Gelu))));
        bench.streamed("silu, gated", shape, || drop(black_box(cpu.gated(&x, &x, Activation::Silu))));
        bench.streamed("add", shape, || drop(black_box(cpu.add(&x, &x))));
    }
    Ok(())
}
