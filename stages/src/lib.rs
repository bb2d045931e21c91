//! Stages turn the bytes of a request into what the engine takes: pictures into patches, clips into log-mel frames,
//! conversations into tokens, and turn answer tokens back into text.
//!
//! [`Stages`] is the handle. Behind it, each stage is a fixed pool of actors over one bounded inbox: a full inbox is an
//! [`ErrorKind::Overloaded`] answer, work whose caller has gone is skipped, and a fault in a decoder costs one request.
//! Patch sizes, normalisation constants and mel bands come with each call from the model's card; the stages hold no such
//! constant. They know no YAML, no HTTP and no device.
//!
//! [`Service`] is the whole of stages and engine behind one door: what pipelines call.
#![forbid(unsafe_code)]

mod actors;
pub mod audio;
pub mod bench;
mod cancel;
pub mod error;
pub mod image;
mod inbox;
pub mod inspect;
pub mod limits;
mod prepared;
pub mod service;
pub mod text;

pub use self::audio::{AudioFacts, AudioFormat, Length, audio_facts};
pub use self::image::{ImageFacts, ImageFormat, image_facts};
pub use actors::{StageDepth, StageDepths, Stages, StagesConfig};
pub use error::{ErrorKind, Result, StageError};
pub use limits::{AudioLimits, ImageLimits, Limits};
pub use prepared::{MediaFacts, Prepared};
pub use service::{Service, ServiceConfig};
pub use weft_engine::handle::gpu;
/// Engine types that the service's signatures mention.
pub use weft_engine::{
    LearnedCosts, LearnedModel,
    card::{AudioProcessor, Family, GenerationDefaults, ImageProcessor, ModelCard},
    grammar::GrammarSpec,
    handle::{
        DeviceChoice, EngineConfig, EngineStats, ModelConfig, ModelSource, Policy, Precision, Speculation, StepKind,
    },
    request::{Class, DeviceTimes, FinishReason, RequestId, Sampling, Usage},
    transcribe::{Mode, Task, Transcript, TranscriptSegment},
};
