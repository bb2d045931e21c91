//! The parity suite: every operation of a backend against [`Reference`], on the same random inputs.
//!
//! A backend joins with one line in a test: `parity::check(&backend).assert()`. For every operation the suite holds
//! * values within the stated tolerance, on odd sizes, with results poisoned beforehand (tensors of NaN of the
//!   result's shape are made and dropped, so that a recycled buffer that is not fully written shows);
//! * row invariance, bit for bit: the operation on some of the rows gives what it gave on all of them;
//! * that operands which do not fit are errors.
//!
//! An error is `|got - want| / max(1, |want|)`; inputs are sized so that results are about 1.
//!
//! A backend with bf16 activations takes [`check_narrow`]: inputs are rounded to bf16 before anyone sees them, so that
//! moving rows stays exact; results are held to [`NARROW`], and bits are compared up to [`NARROW_ROWS`] rows only.

mod attention;
mod faults;
mod inputs;
mod pointwise;
mod products;
mod rows;
mod sampling;

use std::fmt;
use std::ops::Range;

use self::inputs::Random;
use crate::backend::Backend;
use crate::error::Result;
use crate::reference::{Matrix, Reference};

/// What was checked of one operation.
#[derive(Debug, Clone)]
pub struct Case {
    /// The operation and what is special about the case.
    pub name: String,
    /// Largest error seen.
    pub error: f64,
    /// Largest error allowed.
    pub tolerance: f64,
    /// Why the case failed, if it did.
    pub failure: Option<String>,
}

/// All that was checked of a backend.
#[derive(Debug, Clone)]
pub struct Report {
    /// The backend, as it describes itself.
    pub backend: String,
    /// In the order of checking.
    pub cases: Vec<Case>,
}

impl Report {
    /// Cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(|case| case.failure.is_some())
    }

    /// Panics with the table of failures, if there are any.
    pub fn assert(&self) {
        let failures: Vec<_> = self.failures().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{}:\n{}", self.backend, failures.join("\n"));
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:56} {:9.2e} of {:7.0e}", self.name, self.error, self.tolerance)?;
        self.failure.iter().try_for_each(|failure| write!(f, "  FAILED: {failure}"))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "parity of {}", self.backend)?;
        self.cases.iter().try_for_each(|case| writeln!(f, "{case}"))
    }
}

/// Tolerance of results that are rounded to bf16: a step is 2^-8 of a value, and weights of attention are rounded too.
pub const NARROW: f64 = 2e-2;
/// Rows up to which a bf16 backend gives the same bits in any company.
pub const NARROW_ROWS: usize = 64;

/// Checks every operation of a backend with float32 activations.
pub fn check<B: Backend>(backend: &B) -> Report {
    check_with(backend, false)
}

/// Checks every operation of a backend with bf16 activations.
pub fn check_narrow<B: Backend>(backend: &B) -> Report {
    check_with(backend, true)
}

fn check_with<B: Backend>(backend: &B, narrow: bool) -> Report {
    let report = Report { backend: backend.describe(), cases: Vec::new() };
    let mut suite = Suite { backend, narrow, random: Random::new(1, narrow), report };
    products::check(&mut suite);
    pointwise::check(&mut suite);
    rows::check(&mut suite);
    attention::check(&mut suite);
    sampling::check(&mut suite);
    faults::check(&mut suite);
    suite.report
}

struct Suite<'a, B> {
    backend: &'a B,
    narrow: bool,
    random: Random,
    report: Report,
}

/// `|got - want| / max(1, |want|)`, the largest of all elements; NaN counts as infinite unless both are NaN.
fn error(got: &[f32], want: &[f32]) -> f64 {
    let one = |(&got, &want): (&f32, &f32)| match (got.is_nan(), want.is_nan()) {
        (true, true) => 0.0,
        (false, false) => f64::from((got - want).abs()) / f64::from(want.abs()).max(1.0),
        _ => f64::INFINITY,
    };
    got.iter().zip(want).map(one).fold(0.0, f64::max)
}

/// Equal bit by bit, any NaN being equal to any other.
fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
}

impl<B: Backend> Suite<'_, B> {
    fn note(&mut self, name: String, (error, tolerance): (f64, f64), outcome: std::result::Result<(), String>) {
        let failure = match outcome {
            Ok(()) if error <= tolerance => None,
            Ok(()) => Some("beyond the tolerance".into()),
            Err(why) => Some(why),
        };
        self.report.cases.push(Case { name, error, tolerance, failure });
    }

    /// What is allowed of a result that float32 activations give within `tolerance`.
    fn allowed(&self, tolerance: f64) -> f64 {
        if self.narrow && tolerance > 0.0 { tolerance.max(NARROW) } else { tolerance }
    }

    /// Equal as far as this backend promises for results of this many rows.
    fn alike(&self, rows: usize, a: &[f32], b: &[f32]) -> bool {
        if self.narrow && rows > NARROW_ROWS { a.len() == b.len() && error(a, b) <= NARROW } else { same_bits(a, b) }
    }

    /// Leaves NaN in memory that a result of this shape may be given.
    fn poison(&self, (rows, cols): (usize, usize)) -> Result<()> {
        let nan = vec![f32::NAN; rows * cols];
        let poisoned = (0..4).map(|_| self.backend.upload(rows, cols, &nan)).collect::<Result<Vec<_>>>()?;
        drop(poisoned);
        self.backend.synchronize()
    }

    /// `run` gives `want` within the tolerance.
    fn values(&mut self, name: String, tolerance: f64, want: &Matrix, run: impl Fn(&B) -> Result<B::Tensor>) {
        let tolerance = self.allowed(tolerance);
        let got = self.poison((want.rows, want.cols)).and_then(|()| {
            let got = run(self.backend)?;
            Ok((self.backend.shape(&got), self.backend.download(&got)?))
        });
        match got {
            Ok((shape, got)) if shape == (want.rows, want.cols) && got.len() == want.values.len() => {
                self.note(name, (error(&got, &want.values), tolerance), Ok(()));
            }
            Ok((shape, _)) => {
                self.note(name, (0.0, tolerance), Err(format!("{shape:?} instead of {:?}", (want.rows, want.cols))));
            }
            Err(e) => self.note(name, (0.0, tolerance), Err(e.to_string())),
        }
    }

    /// `run` on the reference gives what it gives here, and on a part of the rows what it gives on all.
    fn rowwise(
        &mut self,
        (name, tolerance): (String, f64),
        rows: usize,
        want: impl Fn(&Reference, Range<usize>) -> Result<Matrix>,
        run: impl Fn(&B, Range<usize>) -> Result<B::Tensor>,
    ) {
        match want(&Reference, 0..rows) {
            Ok(want) => self.values(name.clone(), tolerance, &want, |b| run(b, 0..rows)),
            Err(e) => self.note(name.clone(), (0.0, tolerance), Err(format!("the reference refuses: {e}"))),
        }
        let outcome = self.invariant(rows, run).map_err(|e| e.to_string()).and_then(|faulty| match faulty {
            None => Ok(()),
            Some(part) => Err(format!("rows {part:?} alone differ from the same rows of {rows}")),
        });
        self.note(format!("{name}, row invariance"), (0.0, 0.0), outcome);
    }

    /// A range of rows whose result differs from the same rows of the whole.
    fn invariant(
        &self,
        rows: usize,
        run: impl Fn(&B, Range<usize>) -> Result<B::Tensor>,
    ) -> Result<Option<Range<usize>>> {
        let whole = self.backend.download(&run(self.backend, 0..rows)?)?;
        let cols = whole.len() / rows.max(1);
        let parts = [0..1, rows - 1..rows, rows / 2..rows, 0..rows.div_ceil(3), rows / 3..rows - rows / 4];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let got = self.backend.download(&run(self.backend, part.clone())?)?;
            if !self.alike(rows, &got, &whole[part.start * cols..part.end * cols]) {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}

/// Runs the same expression on the reference and on the backend: values and row invariance.
macro_rules! rowwise {
    ($suite:expr, $name:expr, $tolerance:expr, $rows:expr, |$backend:ident, $range:ident| $body:expr) => {
        $suite.rowwise(($name, $tolerance), $rows, |$backend, $range| $body, |$backend, $range| $body)
    };
}

/// Runs the same expression on the reference and on the backend: values.
macro_rules! values {
    ($suite:expr, $name:expr, $tolerance:expr, |$backend:ident| $body:expr) => {{
        let want = |$backend: &crate::reference::Reference| $body;
        match want(&crate::reference::Reference) {
            Ok(want) => $suite.values($name, $tolerance, &want, |$backend| $body),
            Err(e) => $suite.note($name, (0.0, $tolerance), Err(format!("the reference refuses: {e}"))),
        }
    }};
}

use {rowwise, values};
