//! Which families there are. A family is a module with three functions and a line of the table below:
//!
//! | function | gives |
//! |---|---|
//! | `tensor_name(name)` | how the family calls a tensor of a file; `None` for a part that is not taken |
//! | `outline(checkpoint)` | sizes and processors, from headers alone |
//! | `load(backend, checkpoint, config, page_tokens)` | the model, every weight on the device |

use weft_kernels::Backend;

use super::{Model, Outline};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::handle::ModelConfig;

macro_rules! families {
    ($($(#[$doc:meta])* $family:ident, $name:literal, [$($kind:literal),+], $module:ident;)+) => {
        /// A model family: its files, its layers, its equality with a reference implementation.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Family {
            $($(#[$doc])* $family,)+
        }

        impl Family {
            /// Every `model_type` of a `config.json` that is known.
            pub const MODEL_TYPES: &'static [&'static str] = &[$($($kind,)+)+];

            /// The family of a `model_type`.
            pub fn of(model_type: &str) -> Option<Self> {
                match model_type {
                    $($($kind)|+ => Some(Self::$family),)+
                    _ => None,
                }
            }

            /// Name for people.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$family => $name,)+
                }
            }

            pub(crate) fn tensor_name(self, name: String) -> Option<String> {
                match self {
                    $(Self::$family => super::$module::tensor_name(name),)+
                }
            }

            pub(super) fn outline(self, checkpoint: &Checkpoint) -> Result<Outline> {
                match self {
                    $(Self::$family => super::$module::outline(checkpoint),)+
                }
            }

            pub(super) fn load<B: Backend>(
                self,
                backend: &B,
                checkpoint: &Checkpoint,
                config: &ModelConfig,
                page_tokens: usize,
            ) -> Result<Box<dyn Model<B>>> {
                match self {
                    $(Self::$family => super::$module::load(backend, checkpoint, config, page_tokens),)+
                }
            }
        }
    };
}

families! {
    /// Qwen2.5-Omni thinker: image, audio and text in, text out.
    QwenOmni, "qwen2.5-omni", ["qwen2_5_omni", "qwen2_5_omni_thinker"], omni;
    /// Qwen2-VL: image and text in, text out.
    Qwen2Vl, "qwen2-vl", ["qwen2_vl"], qwen_vl;
    /// Qwen2.5-VL: image and text in, text out.
    Qwen25Vl, "qwen2.5-vl", ["qwen2_5_vl"], qwen_vl;
    /// Whisper: speech in, transcript out.
    Whisper, "whisper", ["whisper"], whisper;
    /// Text decoder of the Llama kind (Llama, SmolLM2, Mistral).
    Llama, "llama", ["llama", "mistral"], decoder;
    /// Qwen2 text decoder.
    Qwen2, "qwen2", ["qwen2"], decoder;
    /// Qwen3 text decoder.
    Qwen3, "qwen3", ["qwen3"], decoder;
    /// Phi-3 and Phi-4 text decoder.
    Phi3, "phi3", ["phi3"], decoder;
}
