//! A product with its optional bias, as every layer has several.

use weft_kernels::Backend;

use crate::checkpoint::Loader;
use crate::error::Result;

/// `x W^T + b`.
pub(crate) struct Linear<B: Backend> {
    weight: B::Weight,
    bias: Option<B::Tensor>,
}

impl<B: Backend> Linear<B> {
    /// Loads `{name}.weight`, `[outputs, inputs]`, and with `bias` also `{name}.bias`.
    pub(crate) fn load(loader: &mut Loader<'_, B>, name: &str, shape: [usize; 2], bias: bool) -> Result<Self> {
        let [outputs, inputs] = shape;
        let weight = loader.weight(&format!("{name}.weight"), outputs, inputs)?;
        let bias = loader.bias(&format!("{name}.bias"), outputs, bias)?;
        Ok(Self { weight, bias })
    }

    /// Loads part `part` of several products that lie below one another in the tensor `{name}.weight` (and with `bias` in
    /// `{name}.bias`): queries, keys and values of one matrix. `parts` are the outputs of each.
    pub(crate) fn load_part(
        loader: &mut Loader<'_, B>,
        name: &str,
        (part, parts): (usize, &[usize]),
        inputs: usize,
        bias: bool,
    ) -> Result<Self> {
        let all = parts.iter().sum();
        let start = parts[..part].iter().sum::<usize>();
        let rows = start..start + parts[part];
        let weight = loader.weight_rows(&format!("{name}.weight"), all, rows.clone(), inputs)?;
        let bias = match bias {
            true => Some(loader.vector_part(&format!("{name}.bias"), all, rows)?),
            false => None,
        };
        Ok(Self { weight, bias })
    }

    /// The product.
    pub(crate) fn forward(&self, backend: &B, x: &B::Tensor) -> Result<B::Tensor> {
        Ok(backend.linear(x, &self.weight, self.bias.as_ref())?)
    }

    /// For [`Backend::linear_group`].
    pub(crate) fn part(&self) -> (&B::Weight, Option<&B::Tensor>) {
        (&self.weight, self.bias.as_ref())
    }
}

/// Several products of one input in one launch.
pub(crate) fn group<B: Backend, const N: usize>(
    backend: &B,
    x: &B::Tensor,
    parts: [&Linear<B>; N],
) -> Result<[B::Tensor; N]> {
    let results = backend.linear_group(x, &parts.map(Linear::part))?;
    let count = results.len();
    <[B::Tensor; N]>::try_from(results).map_err(|_| {
        let detail = format!("a group of {N} products gave {count} results");
        crate::error::EngineError::new(crate::error::ErrorKind::Internal, detail)
    })
}
