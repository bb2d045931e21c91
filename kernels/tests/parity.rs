//! Backends against the reference: a backend joins with one line.

use weft_kernels::CpuBackend;
use weft_kernels::parity;
use weft_kernels::reference::Reference;

#[test]
fn the_reference_passes_its_own_suite() {
    parity::check(&Reference).assert();
}

#[test]
fn cpu_on_one_thread() {
    let report = parity::check(&CpuBackend::new(1));
    println!("{report}");
    report.assert();
}

#[test]
fn cpu_on_three_threads() {
    parity::check(&CpuBackend::new(3)).assert();
}
