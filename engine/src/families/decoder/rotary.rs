//! Rotary frequencies from a config, old style (`rope_theta`, `rope_scaling`) or new (`rope_parameters`).
//!
//! Formulas: linear scaling divides all frequencies; `llama3` only the slow ones, with a smooth band between (Llama 3.1);
//! `yarn` likewise by rotations within the trained context, and sharpens attention (Peng et al. 2023, section 3.4).
//! `transformers/modeling_rope_utils.py` is the reference for names and defaults.

use std::f64::consts::PI;

use weft_kernels::shapes::RotaryFrequencies;

use crate::checkpoint::Fields;
use crate::error::Result;

/// Frequencies of a text decoder with heads of `head_dim` elements.
pub(crate) fn frequencies(config: &Fields<'_>, head_dim: usize, context: usize) -> Result<RotaryFrequencies> {
    let fields = match config.object("rope_parameters")? {
        Some(fields) => Some(fields),
        None => config.object("rope_scaling")?,
    };
    let number = |key: &str| -> Result<Option<f64>> {
        match fields.as_ref().map(|fields| fields.number(key)).transpose()?.flatten() {
            Some(value) => Ok(Some(value)),
            None => config.number(key),
        }
    };
    let theta = number("rope_theta")?.unwrap_or(10_000.0);
    let fraction = number("partial_rotary_factor")?.unwrap_or(1.0);
    if !(theta > 1.0 && fraction > 0.0 && fraction <= 1.0) {
        return Err(config.wrong("rope_parameters", "a rope_theta above 1 and a partial_rotary_factor up to 1"));
    }
    let dim = (head_dim as f64 * fraction) as usize;
    if dim == 0 || !dim.is_multiple_of(2) {
        return Err(config.wrong("rope_parameters", "an even number of rotary elements a head"));
    }
    let plain: Vec<f64> = (0..dim / 2).map(|i| theta.powf(-((2 * i) as f64) / dim as f64)).collect();
    let scaling = Scaling { theta, dim, context };
    let (inverse, attention_factor) = match &fields {
        Some(fields) => scaling.apply(fields, plain)?,
        None => (plain, 1.0),
    };
    let sections = fields.as_ref().map(|fields| fields.sizes("mrope_section")).transpose()?.flatten();
    let axis = match sections {
        Some(sections) => {
            if sections.iter().sum::<usize>() != dim / 2 {
                return Err(config.wrong("mrope_section", &format!("a list that adds up to {}", dim / 2)));
            }
            sections.iter().enumerate().flat_map(|(i, &pairs)| std::iter::repeat_n((i % 3) as u8, pairs)).collect()
        }
        None => vec![0; dim / 2],
    };
    let inverse = inverse.into_iter().map(|frequency| frequency as f32).collect();
    Ok(RotaryFrequencies { inverse, axis, attention_factor: attention_factor as f32 })
}

/// What scaling formulas take besides their own fields.
struct Scaling {
    theta: f64,
    dim: usize,
    context: usize,
}

impl Scaling {
    fn apply(&self, fields: &Fields<'_>, plain: Vec<f64>) -> Result<(Vec<f64>, f64)> {
        let kind = fields.text("rope_type")?.or(fields.text("type")?).unwrap_or("default");
        let factor = || -> Result<f64> {
            let factor = fields.number("factor")?.filter(|&factor| factor >= 1.0);
            factor.ok_or_else(|| fields.wrong("factor", "a number of at least 1"))
        };
        match kind {
            // `mrope` is how early Qwen-VL configs spell the default with sections.
            "default" | "mrope" => Ok((plain, 1.0)),
            "linear" => {
                let factor = factor()?;
                Ok((plain.into_iter().map(|frequency| frequency / factor).collect(), 1.0))
            }
            "llama3" => Ok((llama3(fields, plain, factor()?)?, 1.0)),
            "yarn" => self.yarn(fields, plain),
            "factors" => {
                let factors = fields.numbers("factors")?.filter(|factors| factors.len() == plain.len());
                let factors = factors.ok_or_else(|| fields.wrong("factors", "one number a rotary pair"))?;
                Ok((plain.iter().zip(factors).map(|(frequency, factor)| frequency / factor).collect(), 1.0))
            }
            other => Err(fields.unsupported(&format!(
                "rotary scaling of kind {other} is not supported; default, linear, llama3 and yarn are"
            ))),
        }
    }

    fn yarn(&self, fields: &Fields<'_>, plain: Vec<f64>) -> Result<(Vec<f64>, f64)> {
        let original = fields.number("original_max_position_embeddings")?.unwrap_or(self.context as f64);
        let factor = fields.number("factor")?.unwrap_or(self.context as f64 / original);
        let boundary =
            |rotations: f64| self.dim as f64 * (original / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let nonzero = |value: Option<f64>, default: f64| value.filter(|&value| value != 0.0).unwrap_or(default);
        let mut low = boundary(nonzero(fields.number("beta_fast")?, 32.0));
        let mut high = boundary(nonzero(fields.number("beta_slow")?, 1.0));
        if fields.flag("truncate")?.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(self.dim as f64 - 1.0));
        if low == high {
            high += 0.001;
        }
        let scaled = plain.iter().enumerate().map(|(i, frequency)| {
            let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            frequency / factor * interpolated + frequency * (1.0 - interpolated)
        });
        let scaled = scaled.collect();
        let sharpness = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
        let attention =
            match (fields.number("attention_factor")?, fields.number("mscale")?, fields.number("mscale_all_dim")?) {
                (Some(given), _, _) => given,
                (None, Some(one), Some(all)) if one != 0.0 && all != 0.0 => sharpness(one) / sharpness(all),
                (None, _, _) => sharpness(1.0),
            };
        Ok((scaled, attention))
    }
}

fn llama3(fields: &Fields<'_>, plain: Vec<f64>, factor: f64) -> Result<Vec<f64>> {
    let need = |key: &str| -> Result<f64> {
        let value = fields.number(key)?.filter(|&value| value > 0.0);
        value.ok_or_else(|| fields.wrong(key, "a positive number"))
    };
    let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
    let original = need("original_max_position_embeddings")?;
    let scale = |frequency: f64| {
        let wavelength = 2.0 * PI / frequency;
        if wavelength < original / high {
            frequency
        } else if wavelength > original / low {
            frequency / factor
        } else {
            let smooth = (original / wavelength - low) / (high - low);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    };
    Ok(plain.into_iter().map(scale).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: &serde_json::Value) -> Result<RotaryFrequencies> {
        frequencies(&Fields::new("config.json", config), 8, 64)
    }

    #[test]
    fn old_and_new_spelling_mean_the_same() {
        let old = json!({ "rope_theta": 100.0, "rope_scaling": { "type": "linear", "factor": 4.0 } });
        let new = json!({ "rope_parameters": { "rope_theta": 100.0, "rope_type": "linear", "factor": 4.0 } });
        assert_eq!(read(&old).unwrap(), read(&new).unwrap());
        assert_eq!(read(&old).unwrap().inverse[0], 0.25);
    }

    #[test]
    fn sections_choose_the_axis_in_turn() {
        let config = json!({ "rope_scaling": { "type": "mrope", "mrope_section": [1, 1, 2] } });
        assert_eq!(read(&config).unwrap().axis, [0, 1, 2, 2]);
        let short = json!({ "rope_scaling": { "type": "mrope", "mrope_section": [1, 1, 1] } });
        assert!(read(&short).unwrap_err().message.contains("adds up to 4"));
    }

    #[test]
    fn an_unknown_kind_is_named() {
        let error = read(&json!({ "rope_scaling": { "rope_type": "dynamic", "factor": 2.0 } })).unwrap_err();
        assert_eq!(error.kind, crate::ErrorKind::Unsupported);
        assert!(error.message.contains("dynamic"), "{error}");
    }

    #[test]
    fn llama3_keeps_fast_and_divides_slow_frequencies() {
        let config = json!({ "rope_parameters": {
            "rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        } });
        let inverse = read(&config).unwrap().inverse;
        assert_eq!(inverse[0], 1.0);
        let slowest = 500_000f64.powf(-6.0 / 8.0) as f32;
        assert!((inverse[3] - slowest / 8.0).abs() < 1e-9);
    }
}
