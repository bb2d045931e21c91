//! Config of the Qwen vision tower, resolved.

use weft_kernels::shapes::Activation;

use crate::checkpoint::Fields;
use crate::error::Result;
use crate::families::decoder::config::activation;

/// Which models the tower stands in; their configs and tensors differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Qwen2-VL: layer norms, a plain product, every layer sees the whole picture.
    Two,
    /// Qwen2.5-VL: RMS norms, a gated product, windows.
    TwoFive,
    /// Qwen2.5-Omni: as Qwen2.5-VL, with queries, keys and values in tensors of their own.
    Omni,
}

/// The tower.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VisionConfig {
    pub(crate) generation: Generation,
    pub(crate) layers: usize,
    pub(crate) hidden: usize,
    pub(crate) intermediate: usize,
    pub(crate) heads: usize,
    pub(crate) out: usize,
    pub(crate) patch: usize,
    pub(crate) temporal_patch: usize,
    /// Patches merged on each side.
    pub(crate) merge: usize,
    pub(crate) windows: Windows,
    pub(crate) theta: f64,
    pub(crate) activation: Activation,
}

/// How far patches see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Windows {
    /// The whole picture in every layer.
    Never,
    /// Squares of `side` merged patches, but for the layers of `except`.
    Squares { side: usize, except: Vec<usize> },
}

impl VisionConfig {
    /// Reads `vision_config`.
    pub(crate) fn read(fields: &Fields<'_>, generation: Generation) -> Result<Self> {
        let two = generation == Generation::Two;
        let hidden = fields.size(if two { "embed_dim" } else { "hidden_size" })?;
        let heads = fields.size("num_heads")?;
        if !hidden.is_multiple_of(heads) || !(hidden / heads).is_multiple_of(4) {
            return Err(fields.wrong("num_heads", "heads of a multiple of four elements"));
        }
        // `in_channels` and `in_chans` stand for the same in configs of different age.
        if fields.opt_size("in_channels")?.or(fields.opt_size("in_chans")?).unwrap_or(3) != 3 {
            return Err(fields.unsupported("the vision tower must take three channels"));
        }
        let patch = fields.size("patch_size")?;
        let merge = fields.opt_size("spatial_merge_size")?.unwrap_or(2);
        let rope = fields.object("rope_parameters")?;
        Ok(Self {
            generation,
            layers: fields.size("depth")?,
            hidden,
            intermediate: match two {
                true => (fields.number("mlp_ratio")?.unwrap_or(4.0) * hidden as f64) as usize,
                false => fields.size("intermediate_size")?,
            },
            heads,
            out: fields.size(if two { "hidden_size" } else { "out_hidden_size" })?,
            patch,
            temporal_patch: fields.opt_size("temporal_patch_size")?.unwrap_or(2),
            merge,
            windows: if two { Windows::Never } else { Windows::read(fields, merge * patch)? },
            theta: rope.map(|rope| rope.number("rope_theta")).transpose()?.flatten().unwrap_or(10_000.0),
            activation: match (two, fields.get("hidden_act")) {
                (true, None) => Activation::QuickGelu,
                _ => activation(fields, "hidden_act")?,
            },
        })
    }

    /// Values of one patch.
    pub(crate) const fn patch_values(&self) -> usize {
        3 * self.temporal_patch * self.patch * self.patch
    }
}

impl Windows {
    /// `token` is the side of a merged patch in pixels.
    fn read(fields: &Fields<'_>, token: usize) -> Result<Self> {
        let side = fields.opt_size("window_size")?.unwrap_or(112) / token;
        if side == 0 {
            return Err(fields.wrong("window_size", "at least one merged patch"));
        }
        let except = fields.sizes("fullatt_block_indexes")?.unwrap_or_else(|| vec![7, 15, 23, 31]);
        Ok(Self::Squares { side, except })
    }
}
