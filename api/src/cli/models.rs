//! `weft models`.

use weft_pipelines::inspect;

use super::args::ModelsCommand;
use super::{Failure, out};

pub(super) fn models(command: ModelsCommand) -> Result<(), Failure> {
    let ModelsCommand::Show { path, json } = command;
    let report = match path {
        Some(path) => inspect::model(&weft_pipelines::config::ModelSource::Path(path))?,
        None => inspect::model(&crate::embedded::model().source)?,
    };
    if json {
        out::line(&serde_json::json!(report).to_string());
    } else {
        out::line(&report.to_string());
    }
    Ok(())
}
