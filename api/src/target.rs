//! What a name stands for: a pipeline, or a model's built-in pipeline.

use weft_pipelines::Runtime;
use weft_pipelines::request::Target;

/// A pipeline of this name goes before a model of this name; an unknown name is left for the runtime to refuse.
pub(crate) fn named(runtime: &Runtime, name: &str) -> Target {
    let is_pipeline = runtime.pipelines().iter().any(|p| p.name == name && p.source != "built-in");
    if !is_pipeline && runtime.models().iter().any(|m| m.name == name) {
        return Target::Model(name.to_owned());
    }
    Target::Pipeline(name.to_owned())
}
