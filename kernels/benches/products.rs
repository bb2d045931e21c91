//! How near the products come to what the machine can do, in one run: multiply-add peak and read bandwidth first, then
//! shapes of real models as fractions of them.
//!
//! `cargo bench -p weft-kernels --bench products [-- filter] [threads=2] [level=avx2] [shape=4x768x128]`
//!
//! Every figure is the best of several short runs, since other processes only ever add time. On a busy Linux machine
//! even that is noise: `clock=cpu` runs one thread and gives the mean of its processor time.

#![expect(clippy::print_stdout, reason = "a report for people")]
#![expect(unsafe_code, reason = "the peak loop uses intrinsics of a level that was detected")]

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weft_kernels::cpu::pool::Pool;
use weft_kernels::cpu::product::{Level, PackedWeight, ProductPart, products};
use weft_kernels::quant::quantize;
use weft_kernels::weights::{WeightData, WeightFormat};

/// Time spent on each figure.
const PATIENCE: Duration = Duration::from_millis(400);

const FORMATS: [WeightFormat; 11] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::BF16,
    WeightFormat::Q4_0,
    WeightFormat::Q4_1,
    WeightFormat::Q5_0,
    WeightFormat::Q5_1,
    WeightFormat::Q8_0,
    WeightFormat::Q4K,
    WeightFormat::Q5K,
    WeightFormat::Q6K,
];

struct Machine {
    pool: Arc<Pool>,
    level: Level,
    /// Multiply-adds a second, as two operations.
    peak: f64,
    /// Bytes a second that all threads read from memory.
    bandwidth: f64,
}

fn best(mut run: impl FnMut()) -> f64 {
    run();
    if CPU_CLOCK.load(Ordering::Relaxed) {
        let (start, mut runs) = (cpu_seconds(), 0);
        loop {
            run();
            runs += 1;
            let spent = cpu_seconds() - start;
            if spent >= PATIENCE.as_secs_f64() {
                return spent / f64::from(runs);
            }
        }
    }
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    while start.elapsed() < PATIENCE {
        let once = Instant::now();
        run();
        best = best.min(once.elapsed().as_secs_f64());
    }
    best
}

static CPU_CLOCK: AtomicBool = AtomicBool::new(false);

/// Processor time of this thread, a scheduler tick at most behind.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("clock=cpu needs Linux");
    let nanoseconds: f64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    nanoseconds / 1e9
}

fn main() {
    let mut filter = String::new();
    let mut shape = None;
    let (mut threads, mut level) = (2, Level::detect());
    for argument in std::env::args().skip(1) {
        if let Some(n) = argument.strip_prefix("threads=") {
            threads = n.parse().unwrap_or(threads);
        } else if let Some(name) = argument.strip_prefix("level=") {
            level = Level::ALL.into_iter().find(|l| l.to_string() == name).unwrap_or(level);
        } else if let Some(text) = argument.strip_prefix("shape=") {
            let sizes: Vec<usize> = text.split('x').filter_map(|n| n.parse().ok()).collect();
            shape = Some((sizes[0], sizes[1], sizes[2]));
        } else if argument == "clock=cpu" {
            CPU_CLOCK.store(true, Ordering::Relaxed);
            threads = 1;
        } else if !argument.starts_with("--") {
            filter = argument;
        }
    }
    let pool = Pool::new(threads);
    for level in Level::ALL.into_iter().filter(|l| l.available()) {
        println!("peak {level:>9}: {:7.1} GFLOP/s", peak(&pool, level) / 1e9);
    }
    let (peak, bandwidth) = (peak(&pool, level), bandwidth(&pool));
    println!("{threads} threads, {level}: read {:.1} GB/s", bandwidth / 1e9);
    let empty = best(|| (0..1000).for_each(|_| pool.run(2, &|i| _ = black_box(i))));
    println!("empty job: {:.2} us", empty * 1e3);
    let machine = Machine { pool, level, peak, bandwidth };
    if let Some(shape) = shape {
        FORMATS.into_iter().for_each(|format| machine.product(shape, format, false));
        return;
    }
    let shows = |name: &str| name.contains(&filter);
    if shows("dense") {
        machine.dense();
    }
    if shows("quant") {
        machine.quantised();
    }
    if shows("decoder") {
        machine.decoder();
    }
}

impl Machine {
    fn weight(&self, rows: usize, cols: usize, format: WeightFormat) -> PackedWeight {
        let values: Vec<f32> = (0..rows * cols).map(|i| (i * 7919 % 1013) as f32 / 1013.0 - 0.5).collect();
        let bytes = Cow::Owned(quantize(&values, rows, cols, format));
        PackedWeight::with_level(&WeightData { rows, cols, format, bytes }, self.level).expect("a detected level")
    }

    /// One product; weights are rotated among enough copies to come from memory when `cold`.
    fn product(&self, (rows, cols, outputs): (usize, usize, usize), format: WeightFormat, cold: bool) {
        let one = self.weight(outputs, cols, format);
        let bytes = one.bytes() as f64;
        let copies = if cold { (96e6 / bytes).ceil().min(64.0) as usize } else { 1 };
        let mut weights = vec![one];
        weights.extend((1..copies).map(|_| self.weight(outputs, cols, format)));
        let x: Vec<f32> = (0..rows * cols).map(|i| (i * 31 % 101) as f32 / 101.0 - 0.5).collect();
        let mut out = vec![0.0; rows * outputs];
        let mut turn = 0;
        let seconds = best(|| {
            turn += 1;
            let weight = &weights[turn % copies];
            products(&self.pool, &x, rows, &mut [ProductPart { weight, bias: None, out: &mut out }]);
        });
        let flops = 2.0 * (rows * cols * outputs) as f64 / seconds;
        println!(
            "{format:?} {rows:4} x {cols:4} x {outputs:5} {}: {:8.1} us, {:6.1} GFLOP/s = {:3.0}% of peak, {:5.1} GB/s = {:3.0}% of read",
            if cold { "cold" } else { "warm" },
            seconds * 1e6,
            flops / 1e9,
            100.0 * flops / self.peak,
            bytes / seconds / 1e9,
            100.0 * bytes / seconds / self.bandwidth,
        );
    }

    fn dense(&self) {
        for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
            for shape in [(1500, 384, 384), (1500, 384, 1536), (1500, 1536, 384), (1500, 512, 2048), (1500, 2048, 512)]
            {
                self.product(shape, format, false);
            }
            for rows in [1, 2, 3, 4, 5, 8, 12, 16, 24, 32, 64, 128] {
                self.product((rows, 512, 2048), format, rows <= 32);
            }
        }
    }

    fn quantised(&self) {
        for format in &FORMATS[3..] {
            for rows in [1, 4, 512] {
                self.product((rows, 768, 3072), *format, rows < 512);
            }
        }
        for rows in [1, 2, 3, 4, 5, 8, 16, 32, 64] {
            self.product((rows, 576, 1536), WeightFormat::Q4_1, true);
        }
    }

    /// The products of SmolLM2-135M in order: 121 launches a step.
    fn decoder(&self) {
        for format in [WeightFormat::Q4_1, WeightFormat::Q8_0, WeightFormat::BF16] {
            let layer = || [(960, 576), (576, 576), (3072, 576), (576, 1536)].map(|(r, c)| self.weight(r, c, format));
            let layers: Vec<_> = (0..30).map(|_| layer()).collect();
            let head = self.weight(49152, 576, format);
            let bytes: usize = layers.iter().flatten().map(PackedWeight::bytes).sum::<usize>() + head.bytes();
            for rows in [1, 2, 4, 8, 32, 512] {
                let x = vec![0.25; rows * 1536];
                let mut out = vec![0.0; rows * 3072];
                let mut logits = vec![0.0; rows.min(32) * 49152];
                let seconds = best(|| {
                    for weight in layers.iter().flatten() {
                        let out = &mut out[..rows * weight.rows()];
                        let part = ProductPart { weight, bias: None, out };
                        products(&self.pool, &x[..rows * weight.cols()], rows, &mut [part]);
                    }
                    // A prompt needs one row of logits, a batch of decodes one for each.
                    let rows = if rows > 32 { 1 } else { rows };
                    let part = ProductPart { weight: &head, bias: None, out: &mut logits[..rows * 49152] };
                    products(&self.pool, &x[..rows * 576], rows, &mut [part]);
                });
                println!(
                    "decoder {format:?} {rows:3} rows: {:7.2} ms, {:6.0} tokens/s, {:5.1} GB/s = {:3.0}% of read",
                    seconds * 1e3,
                    rows as f64 / seconds,
                    bytes as f64 / seconds / 1e9,
                    100.0 * bytes as f64 / seconds / self.bandwidth,
                );
            }
        }
    }
}

/// Bytes a second at which all threads together sum a buffer that no cache holds.
fn bandwidth(pool: &Pool) -> f64 {
    let data: Vec<u64> = (0..32 << 20).collect();
    let chunks: Vec<&[u64]> = data.chunks(1 << 17).collect();
    let seconds = best(|| {
        pool.run(chunks.len(), &|i| {
            let mut sums = [0u64; 16];
            for piece in chunks[i].chunks_exact(16) {
                for (sum, v) in sums.iter_mut().zip(piece) {
                    *sum = sum.wrapping_add(*v);
                }
            }
            black_box(sums);
        });
    });
    8.0 * data.len() as f64 / seconds
}

/// Operations a second of a loop that only multiplies and adds registers.
fn peak(pool: &Pool, level: Level) -> f64 {
    const ROUNDS: usize = 100_000;
    let operations = match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => 2 * 16 * 16,
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => 2 * 8 * 12,
        _ => 2 * 4 * 8,
    };
    let threads = pool.threads();
    let seconds = best(|| {
        pool.run(threads, &|_| match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only called for available levels.
            Level::Avx512 => unsafe { x86::peak512(ROUNDS) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only called for available levels.
            Level::Avx2 => unsafe { x86::peak256(ROUNDS) },
            _ => {
                let mut sums = [[1.0f32; 4]; 8];
                for _ in 0..black_box(ROUNDS) {
                    sums.iter_mut().flatten().for_each(|s| *s = *s * 0.999 + 0.001);
                    sums = black_box(sums);
                }
                black_box(sums);
            }
        });
    });
    (threads * ROUNDS * operations) as f64 / seconds
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f")]
    pub(super) fn peak512(rounds: usize) {
        let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        let mut sums = [_mm512_set1_ps(1.0); 16];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn peak256(rounds: usize) {
        let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
        let mut sums = [_mm256_set1_ps(1.0); 12];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm256_fmadd_ps(*sum, a, b);
            }
        }
        black_box(sums);
    }
}
