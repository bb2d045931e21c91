//! Backends against the reference: a backend joins with one line.

use weft_kernels::CpuBackend;
use weft_kernels::cpu::product::Level;
use weft_kernels::parity;
use weft_kernels::reference::Reference;

#[test]
fn the_reference_passes_its_own_suite() {
    parity::check(&Reference).assert();
}

#[test]
fn cpu_on_three_threads() {
    let report = parity::check(&CpuBackend::new(3));
    println!("{report}");
    report.assert();
}

/// Every level that this processor has, on one thread.
#[test]
fn cpu_on_every_level() {
    for level in Level::ALL.into_iter().filter(|level| level.available()) {
        parity::check(&CpuBackend::with_level(1, level).expect("the level is available")).assert();
    }
}
