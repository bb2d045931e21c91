//! A CPU backend that fails when told to: media that hold [`POISON`] cannot be uploaded, and watching token
//! [`FATAL_WATCH`] is a kernel that panics.

use weft_kernels::shapes::{
    Activation, AttentionSpec, Conv1dSpec, PageLayout, PagedSequence, RotaryFrequencies, SampleRow, Sampled, Segment,
};
use weft_kernels::weights::WeightData;
use weft_kernels::{Backend, CpuBackend, KernelError, Result};

type Tensor = <CpuBackend as Backend>::Tensor;
type Weight = <CpuBackend as Backend>::Weight;
type Pages = <CpuBackend as Backend>::Pages;
type Rows = std::ops::Range<usize>;

pub const POISON: f32 = 12345.5;
pub const FATAL_WATCH: u32 = 666;

#[derive(Clone)]
pub struct Faulty(pub CpuBackend);

macro_rules! delegate {
    ($(fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {
        $(fn $name(&self $(, $arg: $type)*) -> $result { self.0.$name($($arg),*) })*
    };
}

impl Backend for Faulty {
    type Tensor = Tensor;
    type Weight = Weight;
    type Pages = Pages;

    fn upload(&self, rows: usize, cols: usize, values: &[f32]) -> Result<Tensor> {
        if values.contains(&POISON) {
            return Err(KernelError::Device("poisoned".into()));
        }
        self.0.upload(rows, cols, values)
    }

    fn sample(&self, logits: &Tensor, rows: &[SampleRow]) -> Result<Vec<Sampled>> {
        assert!(!rows.iter().any(|row| row.watch.contains(&FATAL_WATCH)), "a kernel bug");
        self.0.sample(logits, rows)
    }

    delegate! {
        fn describe(&self) -> String;
        fn download(&self, x: &Tensor) -> Result<Vec<f32>>;
        fn shape(&self, x: &Tensor) -> (usize, usize);
        fn weight(&self, data: &WeightData<'_>) -> Result<Weight>;
        fn synchronize(&self) -> Result<()>;
        fn embed(&self, table: &Weight, ids: &[u32]) -> Result<Tensor>;
        fn linear(&self, x: &Tensor, w: &Weight, bias: Option<&Tensor>) -> Result<Tensor>;
        fn linear_group(&self, x: &Tensor, parts: &[(&Weight, Option<&Tensor>)]) -> Result<Vec<Tensor>>;
        fn conv1d(&self, x: &Tensor, w: &Weight, bias: Option<&Tensor>, segments: &[Rows], spec: Conv1dSpec) -> Result<Tensor>;
        fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor>;
        fn add_rms_norm(&self, x: &Tensor, residual: &Tensor, weight: &Tensor, eps: f32) -> Result<(Tensor, Tensor)>;
        fn layer_norm(&self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f32) -> Result<Tensor>;
        fn add(&self, a: &Tensor, b: &Tensor) -> Result<Tensor>;
        fn activate(&self, x: &Tensor, f: Activation) -> Result<Tensor>;
        fn gated(&self, gate: &Tensor, up: &Tensor, f: Activation) -> Result<Tensor>;
        fn rotary_table(&self, frequencies: &RotaryFrequencies, positions: &[u32], axes: usize) -> Result<Tensor>;
        fn rotary(&self, x: &Tensor, table: &Tensor, head_dim: usize) -> Result<Tensor>;
        fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, segments: &[Segment], spec: &AttentionSpec) -> Result<Tensor>;
        fn pages(&self, layout: PageLayout, count: usize) -> Result<Pages>;
        fn kv_write(&self, pages: &mut Pages, k: &Tensor, v: &Tensor, slots: &[u32]) -> Result<()>;
        fn rotary_kv_write(&self, pages: &mut Pages, qkv: (&Tensor, &Tensor, &Tensor), table: &Tensor, slots: &[u32]) -> Result<Tensor>;
        fn paged_attention(&self, q: &Tensor, pages: &Pages, sequences: &[PagedSequence<'_>], spec: &AttentionSpec) -> Result<Tensor>;
        fn gather_rows(&self, x: &Tensor, rows: &[u32]) -> Result<Tensor>;
        fn scatter_rows(&self, x: &Tensor, rows: &[u32], values: &Tensor) -> Result<Tensor>;
        fn concat_rows(&self, parts: &[&Tensor]) -> Result<Tensor>;
        fn reshape(&self, x: &Tensor, rows: usize, cols: usize) -> Result<Tensor>;
        fn mean_rows(&self, x: &Tensor, segments: &[Rows], n: usize) -> Result<Tensor>;
    }
}
