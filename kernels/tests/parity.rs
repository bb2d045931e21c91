//! Backends against the reference: a backend joins with one line.

use weft_kernels::cpu::product::Level;
use weft_kernels::cuda::Activations;
use weft_kernels::parity;
use weft_kernels::reference::Reference;
use weft_kernels::{CpuBackend, CudaBackend};

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

/// The GPU, or `None` where there is none, with the reason. `WEFT_REQUIRE_GPU` makes its absence a failure.
fn gpu(activations: Activations) -> Option<CudaBackend> {
    if let Err(reason) = CudaBackend::probe() {
        assert!(std::env::var_os("WEFT_REQUIRE_GPU").is_none(), "{reason}");
        println!("skipped: {reason}");
        return None;
    }
    Some(CudaBackend::open(activations).expect("the GPU opens"))
}

#[test]
fn cuda_in_float32() {
    if let Some(cuda) = gpu(Activations::F32) {
        let report = parity::check(&cuda);
        println!("{report}");
        report.assert();
    }
}

#[test]
fn cuda_in_bf16() {
    if let Some(cuda) = gpu(Activations::Bf16) {
        let report = parity::check_narrow(&cuda);
        println!("{report}");
        report.assert();
    }
}
