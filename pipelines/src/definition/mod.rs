//! Pipeline definitions: YAML version 1, read, checked, resolved.
//!
//! Two steps: as written ([`raw`], unknown keys refused where they stand), then resolved ([`graph`]: every reference found,
//! every type checked, no options left open). What needs loaded models is checked by the runtime.

mod diagnostic;
mod draw;
mod graph;
mod order;
mod raw;
mod resolve;
mod source;
mod stage;
mod template;

pub use diagnostic::Diagnostic;
pub use graph::{Definition, GenerateStage, Inputs, ModelRef, Stage, StageKind};
pub use template::Template;

pub(crate) use graph::is_path;

use serde::Deserialize;
use serde_saphyr::Spanned;

use raw::RawPipeline;
use source::{Place, Source};

/// Version of the format.
const VERSION: u64 = 1;

/// Bytes of a definition that are read at all.
const MOST_BYTES: usize = 1 << 20;

/// Reads a definition. `name` is the file's name, for messages and as the pipeline's name when it states none.
pub fn parse(name: &str, yaml: &str) -> Result<Definition, Diagnostic> {
    parse_all(name, yaml).map_err(|faults| {
        faults.into_iter().next().unwrap_or_else(|| Source { file: name, text: yaml }.fault(Place::START, "not valid"))
    })
}

/// Like [`parse`], with every fault that was found.
pub fn parse_all(name: &str, yaml: &str) -> Result<Definition, Vec<Diagnostic>> {
    let source = Source { file: name, text: yaml };
    if yaml.len() > MOST_BYTES {
        let text = format!("the file has {} bytes: at most {MOST_BYTES} are read", yaml.len());
        return Err(vec![source.fault(Place::START, text)]);
    }
    check_version(&source).map_err(|fault| vec![fault])?;
    let raw: RawPipeline = serde_saphyr::from_str(yaml).map_err(|error| vec![source.yaml(&error)])?;
    resolve::resolve(&source, raw)
}

/// JSON Schema of version 1, for editors.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(RawPipeline).to_value();
    schema["$id"] = "https://weft.example/schema/pipeline-v1.json".into();
    schema
}

/// The version comes first: a file of another version would only show faults that are none.
fn check_version(source: &Source<'_>) -> Result<(), Diagnostic> {
    #[derive(Deserialize)]
    struct Head {
        version: Option<Spanned<serde_json::Value>>,
    }

    let head: Head = serde_saphyr::from_str(source.text).map_err(|error| source.yaml(&error))?;
    let Some(version) = head.version else {
        let fault = source.fault(Place::START, "the field `version` is missing");
        return Err(fault.remedy(format!("begin the file with `version: {VERSION}`")));
    };
    if version.value.as_u64() == Some(VERSION) {
        return Ok(());
    }
    let place = Place::of(version.referenced);
    let fault = source.fault(place, format!("version {} is not known", version.value));
    Err(fault.remedy(format!("this build reads `version: {VERSION}`")))
}
