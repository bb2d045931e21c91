//! `weft pipelines`.

use super::args::PipelinesCommand;
use super::{Failure, out};

pub(super) fn pipelines(command: PipelinesCommand) -> Result<(), Failure> {
    match command {
        PipelinesCommand::Schema => {
            out::line(&format!("{:#}", weft_pipelines::definition::schema()));
            Ok(())
        }
        PipelinesCommand::Check { paths } => {
            let mut faults = 0;
            for path in &paths {
                let diagnostics = weft_pipelines::check(path);
                for diagnostic in &diagnostics {
                    out::note(&diagnostic.to_string());
                }
                if diagnostics.is_empty() {
                    out::line(&format!("{}: ok", path.display()));
                }
                faults += diagnostics.len();
            }
            if faults == 0 {
                return Ok(());
            }
            Err(Failure::Work(format!("{faults} fault{} found", if faults == 1 { "" } else { "s" })))
        }
    }
}
